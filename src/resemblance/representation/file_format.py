"""Representations as files: which record goes under which name (docs/format.md, format 1).

This is the only place where tensors and sums have names; everywhere else they are fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from . import container
from .layer import KINDS, Blocks, Buckets, Kind, Layer, Products, Recorded, Sums
from .provenance import DataInfo, Made, ModelInfo
from .representation import Representation
from .settings import Settings

Tensors = Mapping[str, Tensor]
T = TypeVar("T")


def save(rep: Representation, path: str | os.PathLike[str]) -> Path:
    """Write one file; it appears whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for i, layer in enumerate(rep.layers):
        for kind in layer.kinds:
            for name, tensor in _tensors(layer.recorded(kind)).items():
                tensors[f"{i}.{kind}.{name}"] = tensor
    signs = rep.layers[0].signs
    if signs is not None:
        tensors["signs"] = signs
    header = {
        "settings": asdict(rep.settings),
        "samples": rep.samples,
        "model": asdict(rep.model),
        "data": asdict(rep.data),
        "made": asdict(rep.made),
        "block_sizes": rep.block_sizes,
        "block_numbers": rep.block_numbers,
        "layers": [
            {
                "name": layer.name,
                "shape": layer.shape,
                "dim": layer.dim,
                "folded": layer.folded,
                "moments": _moments(layer),
            }
            for layer in rep.layers
        ],
    }
    return container.write(path, header, tensors)


def load(path: str | os.PathLike[str]) -> Representation:
    """The Representation in a file that `save` wrote; nothing in it is ever executed."""
    header, tensors = container.read(path)
    data = {**header["data"], "shards": tuple((i, n) for i, n in header["data"]["shards"])}
    return Representation(
        layers=tuple(_layer(i, entry, tensors) for i, entry in enumerate(header["layers"])),
        settings=Settings(**header["settings"]),
        samples=header["samples"],
        model=_known(ModelInfo, header["model"]),
        data=_known(DataInfo, data),
        made=_known(Made, header["made"]),
        block_sizes=tuple(header["block_sizes"]),
        block_numbers=tuple(header["block_numbers"]),
    )


def _known(kind: type[T], values: Mapping[str, Any]) -> T:
    """A record from a part of the header; keys that a later version may add are passed over."""
    return kind(**{f.name: values[f.name] for f in fields(kind)})  # type: ignore[arg-type]


def _tensors(recorded: Recorded) -> dict[str, Tensor]:
    """The tensors of one kind by their names after `layer.kind.`."""
    out = {}
    if recorded.blocks is not None:
        out["blocks.triangle"] = recorded.blocks.triangle
        out["blocks.diagonal"] = recorded.blocks.diagonal
    if recorded.buckets is not None:
        out["buckets.triangle"] = recorded.buckets.triangle
        out["buckets.diagonal"] = recorded.buckets.diagonal
        out["buckets.mean"] = recorded.buckets.mean
    if recorded.sums is not None:
        out["sums"], out["total"] = recorded.sums.buckets, recorded.sums.total
    return out


def _moments(layer: Layer) -> dict[str, float]:
    out = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        out[f"trace_{kind}"] = recorded.trace
        if recorded.buckets is not None:
            out[f"mean_{kind}"] = recorded.buckets.mean_norm
    if layer.products is not None:
        inner = {f.name: getattr(layer.products, f.name) for f in fields(Products)}
        out |= {"product": inner.pop("norms"), **inner}
    return out


def _layer(i: int, entry: Mapping[str, Any], tensors: Tensors) -> Layer:
    moments = entry["moments"]
    kinds: dict[str, Recorded] = {
        kind: _recorded(f"{i}.{kind}.", kind, moments, tensors)
        for kind in KINDS
        if f"trace_{kind}" in moments
    }
    inner = None
    if "inner" in moments:
        inner = Products(
            moments["product"], moments["inner"], moments["inner_squared"], moments["inner_fourth"]
        )
    return Layer(
        name=entry["name"],
        shape=tuple(entry["shape"]),
        dim=entry["dim"],
        folded=entry["folded"],
        products=inner,
        signs=tensors.get("signs"),
        **kinds,
    )


def _recorded(prefix: str, kind: Kind, moments: Mapping[str, float], tensors: Tensors) -> Recorded:
    def found(*names: str) -> list[Tensor] | None:
        """Those tensors, if the first is there."""
        keys = [prefix + name for name in names]
        return [tensors[key] for key in keys] if keys[0] in tensors else None

    blocks = found("blocks.triangle", "blocks.diagonal")
    buckets = found("buckets.triangle", "buckets.diagonal", "buckets.mean")
    sums = found("sums", "total")
    return Recorded(
        trace=moments[f"trace_{kind}"],
        blocks=Blocks(*blocks) if blocks else None,
        buckets=Buckets(*buckets, mean_norm=moments[f"mean_{kind}"]) if buckets else None,
        sums=Sums(*sums) if sums else None,
    )
