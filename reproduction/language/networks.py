"""The networks by name, trained when they are first asked for and kept in a folder.

`small/0` learnt Python source and is the base of its size; `small/1` is its twin from another seed,
`small/c` learnt C headers, `small/untrained` nothing. What is made of a base has its name in front:
`small/0/int4`, `small/0/int3@2` (block 2 alone), `small/0/pruned-35`, `small/0/tuned`,
`small/0/tuned-docs`, `small/0/low-rank`, and `large/0/distilled`, a small network that it taught.
Facts of training lie beside, in a folder of their own, which is small enough to be kept.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from . import models
from .changes import adapted, pruned, rounded
from .clock import Clock
from .scale import Scale
from .text import Text
from .training import Loss, filling_in, next_byte, taught_by, train

BASE = "0"
TRAINED = ("tuned", "tuned-docs", "low-rank", "distilled")  # copies that are kept
_SEEDS = {"0": 0, "1": 1, "c": 2, "untrained": 3}


class Networks:
    """Loads networks, and makes those that are not there yet."""

    def __init__(
        self, text: Text, scale: Scale, folder: Path, device: torch.device, clock: Clock
    ) -> None:
        self.scale, self.device, self.clock = scale, device, clock
        self.learnt = {k: torch.from_numpy(v.copy()).to(device) for k, v in text.learnt.items()}
        self._weights, self._facts = folder / "networks", folder / "facts"
        for place in (self._weights, self._facts):
            place.mkdir(parents=True, exist_ok=True)
        self._bases: dict[str, nn.Module] = {}

    def family(self, size: str) -> list[str]:
        """Names of all that is measured against the base of a size, what matters most first."""
        base, scale = f"{size}/{BASE}", self.scale
        bits = scale.masked_bits if size == "masked" else scale.bits
        shares = scale.masked_pruned if size == "masked" else scale.pruned
        copies = [f"{base}/int{n}" for n in bits] + [f"{base}/pruned-{n}" for n in shares]
        if size == "masked":
            return [*copies, f"{size}/1", f"{size}/untrained"]
        depth = scale.networks[size].layers
        places = sorted({depth // 4, depth // 2, depth - 1})
        return [
            *copies, f"{size}/1", *(f"{base}/{kind}" for kind in TRAINED[:3]),
            *(f"{base}/int{min(bits)}@{place}" for place in places),
            f"{size}/c", f"{size}/untrained", f"{base}/distilled",
        ]  # fmt: skip

    def __call__(self, name: str) -> nn.Module:
        """A network, in evaluation mode on the device."""
        if name in self._bases:
            return self._bases[name]
        size, which, *kind = name.split("/")
        if kind and kind[0] not in TRAINED:
            return self._edited(self(f"{size}/{which}"), kind[0])
        if which == "untrained":
            return self._fresh(size, which)
        with self._alone(name):
            net = self._loaded(name) if self._path(name).exists() else self._made(name)
        if which == BASE and not kind:
            self._bases[name] = net
        return net

    def facts(self, name: str) -> dict[str, Any] | None:
        """What is known of a network's training; None if it was not trained yet."""
        path = self._facts / f"{_file(name)}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def from_scratch(self, size: str) -> list[str]:
        """Names of what is trained and needs no other network: for a process of its own."""
        return [f"{size}/{which}" for which in (BASE, "1", *(() if size == "masked" else ("c",)))]

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Where another process makes the network already, wait until it has."""
        if self._path(name).exists():
            yield
            return
        with self._path(name).with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, and with its process
            yield

    def _edited(self, net: nn.Module, kind: str) -> nn.Module:
        if kind.startswith("pruned-"):
            return pruned(net, int(kind.removeprefix("pruned-")) / 100)
        bits, _, place = kind.removeprefix("int").partition("@")
        return rounded(net, int(bits), int(place) if place else None)

    def _fresh(self, size: str, which: str) -> nn.Module:
        seed = _SEEDS[which]
        if size == "masked":
            return models.masked(self.scale, seed).to(self.device)
        return models.causal(self.scale, size, seed).to(self.device)

    def _made(self, name: str) -> nn.Module:
        size, which, *kind = name.split("/")
        start = time.perf_counter()
        if not kind:
            net, loss = self._fresh(size, which), next_byte
            if size == "masked":
                loss = filling_in(_SEEDS[which])
            learnt = "c" if which == "c" else "python"
            facts = self._train(net, learnt, loss, size=size, seed=_SEEDS[which])
        else:
            net, facts = self._copied(self(f"{size}/{which}"), size, kind[0])
        facts |= {
            "parameters": sum(w.numel() for w in net.parameters()),
            "seconds": round(time.perf_counter() - start, 1),
            "weights": fingerprint(net),
        }
        self._save(name, net, facts)
        return net

    def _copied(self, base: nn.Module, size: str, kind: str) -> tuple[nn.Module, dict[str, Any]]:
        """A copy that is trained further, or a student."""
        scale = self.scale
        if kind == "distilled":
            student = self._fresh("small", "untrained")
            how = {"size": "small", "seed": 10, "steps": scale.distilled}
            return student, self._train(student, "python", taught_by(base), **how)
        net = copy.deepcopy(base)
        learnt = "python" if kind == "tuned" else "documentation"
        how = {"size": size, "seed": 11, "steps": scale.tuned}
        if kind == "low-rank":
            torch.manual_seed(11)
            with adapted(net, scale.rank) as weights:
                facts = self._train(net, learnt, next_byte, weights=weights, **how)
            return net, facts | {"rank": scale.rank}
        return net, self._train(net, learnt, next_byte, rate=scale.tuned_rate, **how)

    def _train(
        self, net: nn.Module, learnt: str, loss: Loss, *, size: str, seed: int,
        steps: float = 1.0, rate: float = 1.0, weights: list[nn.Parameter] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Trained for a share of the usual steps at a share of the usual rate."""
        how, context = self.scale.networks[size], self.scale.context
        count = max(1, round(steps * how.steps))
        last = train(
            net, self.learnt[learnt], loss, steps=count, rate=rate * how.rate, batch=how.batch,
            context=context, seed=seed, clock=self.clock, weights=weights,
        )  # fmt: skip
        return {
            "learnt": learnt, "steps": count, "bytes": count * how.batch * context,
            "rate": rate * how.rate, "loss": round(last, 4),
        }  # fmt: skip

    def _path(self, name: str) -> Path:
        return self._weights / f"{_file(name)}.safetensors"

    def _loaded(self, name: str) -> nn.Module:
        size, which, *kind = name.split("/")
        net = self._fresh("small" if kind == ["distilled"] else size, which)
        net.load_state_dict(load_file(self._path(name)), strict=False)  # tied ones are kept once
        return net

    def _save(self, name: str, net: nn.Module, facts: dict[str, Any]) -> None:
        draft = self._path(name).with_suffix(".tmp")
        save_file(_own_weights(net), draft)
        (self._facts / f"{_file(name)}.json").write_text(json.dumps(facts))
        draft.rename(self._path(name))  # last: a network that is there is whole
        print(f"{name}: {facts}", flush=True)


def fingerprint(net: nn.Module) -> str:
    """A hash of all weights: training twice need not give the same network."""
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in sorted(_own_weights(net).items()):
        digest.update(name.encode() + weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def _own_weights(net: nn.Module) -> dict[str, Tensor]:
    """Each parameter once, though several modules may share it."""
    return {name: weight.detach().contiguous() for name, weight in net.named_parameters()}


def _file(name: str) -> str:
    return name.replace("/", "_")
