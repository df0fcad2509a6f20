"""Recordings of the networks by (network, data, settings), made once and kept in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import resemblance as rs
from resemblance.errors import TargetError

from .images import Images, inputs, noise, probe
from .scale import Scale
from .zoo import Zoo

Wanted = tuple[str, str, str]  # network, data, variant


class Recordings:
    """Paths of .rsm files, recorded when they are first asked for.

    Data: `probe`, `noise`, `summary`, `exact`, `train:NAME`, `test:NAME`; labels come with training
    images alone. Variants: names for the settings of `record`, in `variants`.
    """

    def __init__(self, zoo: Zoo, data: dict[str, Images], scale: Scale, folder: Path) -> None:
        self.zoo, self.data, self.scale, self.folder = zoo, data, scale, folder
        self._inputs: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        m = {"buckets": scale.buckets}
        self.variants: dict[str, dict[str, Any]] = {
            "default": {**m, "elementwise": True},
            "sketch": {**m, "elementwise": True, "blocks": 0},
            "few buckets": {"buckets": scale.few_buckets, "elementwise": True},
            "four buckets a sample": {**m, "per_sample": 4},
            "batches of 32": {**m, "block": 32, "batch_size": 32, "blocks": 0},
            "batches of 1024": {**m, "block": 32, "batch_size": 1024, "blocks": 0},
            "beta 0": {**m, "beta": 0.0},
            "beta 0.25": {**m, "beta": 0.25},
            "beta 0.75": {**m, "beta": 0.75},
            "labels": {**m, "target": "labels"},
            "norms": {**m, "blocks": 32},
            "summary": {"buckets": 0, "block": 64, "blocks": 8},
        }

    def path(self, network: str, data: str, variant: str = "default") -> Path:
        parts = (network.replace("/", "_"), data.replace(":", "-"), variant.replace(" ", "-"))
        return self.folder / ("@".join(parts) + ".rsm")

    def make(self, wanted: Iterable[Wanted], dead: list[str] | None = None) -> None:
        """Record what is not there yet, one network after the other.

        A ruined copy may have no gradient at all: then it joins `dead`, if that is a list.
        """
        missing = sorted({w for w in wanted if not self.path(*w).exists()})
        last, net = None, None
        for i, (network, data, variant) in enumerate(missing):
            if network != last:
                net, last = self.zoo(network), network
            if i % 25 == 0:
                print(f"recording {i + 1} of {len(missing)}: {network} on {data}", flush=True)
            x = self.inputs(data, labels=variant == "labels")
            first = x[0] if isinstance(x, tuple) else x
            settings = {"batch_size": 1024, **self.variants[variant]}
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=first.is_cuda):
                    rep = rs.record(
                        net, x, layers=net.taps, name=network, data_id=data, progress=False,
                        **settings,
                    )  # fmt: skip
            except TargetError as error:
                if dead is None:
                    raise
                print(f"{network} on {data} is left out: {error}", flush=True)
                dead.append(network)
                continue
            rep.save(self.path(network, data, variant))

    def __call__(self, network: str, data: str, variant: str = "default") -> rs.Representation:
        self.make([(network, data, variant)])
        return rs.load(self.path(network, data, variant))

    def inputs(self, data: str, *, labels: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """What the networks see, on the device."""
        kind, _, home = data.partition(":")
        if data not in self._inputs:
            self._inputs[data] = self._images(kind, home)
        if not labels:
            return self._inputs[data]
        return self._inputs[data], self.data[home].ytr[: len(self._inputs[data])]

    def _images(self, kind: str, home: str) -> Tensor:
        if kind == "probe":
            return probe(self.data, self.scale.probe)
        if kind == "noise":
            return noise(probe(self.data, self.scale.probe))
        if kind == "exact":
            return inputs(self.data["cifar10"].xte[: self.scale.exact])
        if kind == "summary":
            return probe(self.data, self.scale.summary)
        if kind == "train":
            return inputs(self.data[home].xtr[: self.scale.own])
        return inputs(self.data[home].xte[: self.scale.test])
