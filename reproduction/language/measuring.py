"""What is measured of each network against its base, kept file by file as a run goes.

A file remembers which base it was measured against, by a hash of the base's weights: where a base
had to be trained anew, what belongs to the former one is measured again.
"""

from __future__ import annotations

import functools
import json
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

import resemblance as rs

from . import models
from .behaviour import differences, filled_in, held_out, next_bytes
from .comparing import Comparing, Found
from .networks import BASE, Networks
from .scale import QUICK
from .scores import Recordings, recorded, units
from .text import Text


class Measuring:
    """Measures one size after the other; `masked` is one of them."""

    def __init__(self, networks: Networks, text: Text, folder: Path, comparing: Comparing) -> None:
        self.networks, self.scale, self.device = networks, networks.scale, networks.device
        self._comparing, self.folder = comparing, folder / "scores"
        self.folder.mkdir(parents=True, exist_ok=True)
        length = self.scale.context + 1
        rows = held_out(text.held["python"], self.scale.sequences, length)
        self.rows = rows.to(self.device)

    def path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '_')}.json"

    def missing(self, size: str) -> list[str]:
        """Names of what is not measured yet against the base as it is."""
        base = f"{size}/{BASE}"
        facts = self.networks.facts(base)
        known = None if facts is None else facts["weights"]
        return [
            name
            for name in (base, *self.networks.family(size))
            if not self.path(name).exists()
            or json.loads(self.path(name).read_text())["base"] != known
        ]

    def measure(self, size: str) -> None:
        """All of a size that is missing."""
        if not self.missing(size):
            return
        base_name = f"{size}/{BASE}"
        base = self.networks(base_name)
        reps = self._recorded(base, base_name)
        predict = filled_in() if size == "masked" else next_bytes
        try:
            for name in self.missing(size):
                self.networks.clock.check()
                net = base if name == base_name else self.networks(name)
                try:
                    own = reps if name == base_name else self._recorded(net, name)
                except rs.ResemblanceError as error:  # a ruined copy may have no gradient at all
                    print(f"{name} is left out: {error}", flush=True)
                    continue
                known = {"behaviour": differences(base, net, self.rows, predict)}
                keep = functools.partial(self._keep, name, base_name, known)
                self._comparing.begin(name, base_name, reps, own, keep)
        finally:  # also of what was begun before the time was over
            self._comparing.collect()

    def _ways(self, size: str) -> dict[str, dict[str, Any]]:
        if size != "masked":
            return units(self.scale)
        drawn = units(self.scale)["tokens"]
        return {"masked": {**drawn, "tokenizer": models.tokenizer()}, "not masked": drawn}

    def _recorded(self, net: nn.Module, name: str) -> Recordings:
        start, ids = time.perf_counter(), self.rows[:, :-1].contiguous()
        reps = recorded(net, ids, self._ways(name.split("/")[0]), name)
        print(f"{name} recorded in {time.perf_counter() - start:.1f} s", flush=True)
        return reps

    def _keep(self, name: str, base_name: str, known: Found, compared: Found) -> None:
        found = {**known, **compared}
        facts = self.networks.facts(base_name)
        assert facts is not None
        content = {"name": name, "base": facts["weights"], "environment": self._environment()}
        path = self.path(name)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps({**content, **found}, separators=(",", ":")))
        draft.rename(path)
        first = next(iter(found["scores"].values()))
        means = ", ".join(f"{k} {v['mean']}" for k, v in first.items())
        print(f"{name}: KL {found['behaviour']['kl']:.4g}, {means}", flush=True)

    def _environment(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            "date": str(date.today()), "python": platform.python_version(),
            "torch": torch.__version__, "resemblance": rs.__version__,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "quick": self.scale == QUICK,
        }  # fmt: skip
