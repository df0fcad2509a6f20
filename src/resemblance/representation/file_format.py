"""Representations as files: which record goes under which name (docs/format.md, format 1).

This is the only place where tensors and sums have names; everywhere else they are fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from . import container
from .layer import KINDS, Blocks, Buckets, Layer, Products, Recorded, Sums
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
            {name: getattr(layer, name) for name in ("name", "shape", "dim", "folded")}
            | {"moments": _moments(layer)}
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


# The tensors of one kind: their names in a file after `layer.kind.`, by the record they fill.
_TENSORS: dict[str, tuple[str, ...]] = {
    "blocks": ("blocks.triangle", "blocks.diagonal"),
    "buckets": ("buckets.triangle", "buckets.diagonal", "buckets.mean"),
    "sums": ("sums", "total"),
}


def _tensors(recorded: Recorded) -> dict[str, Tensor]:
    return {
        name: getattr(getattr(recorded, part), field.name)
        for part, names in _TENSORS.items()
        if getattr(recorded, part) is not None
        for name, field in zip(names, fields(getattr(recorded, part)), strict=False)
    }


def _recorded(prefix: str, trace: float, mean: float | None, tensors: Tensors) -> Recorded:
    blocks, buckets, sums = (
        [tensors[prefix + name] for name in names] if prefix + names[0] in tensors else None
        for names in _TENSORS.values()
    )
    return Recorded(
        trace=trace,
        blocks=Blocks(*blocks) if blocks else None,
        buckets=Buckets(*buckets, mean_norm=mean) if buckets and mean is not None else None,
        sums=Sums(*sums) if sums else None,
    )


_PRODUCTS = ("product", "inner", "inner_squared", "inner_fourth")  # fields of Products, in a file


def _moments(layer: Layer) -> dict[str, float]:
    out = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        out[f"trace_{kind}"] = recorded.trace
        if recorded.buckets is not None:
            out[f"mean_{kind}"] = recorded.buckets.mean_norm
    if layer.products is not None:
        out |= zip(_PRODUCTS, astuple(layer.products), strict=True)
    return out


def _layer(i: int, entry: Mapping[str, Any], tensors: Tensors) -> Layer:
    moments = entry["moments"]
    kinds: dict[str, Recorded] = {
        kind: _recorded(
            f"{i}.{kind}.", moments[f"trace_{kind}"], moments.get(f"mean_{kind}"), tensors
        )
        for kind in KINDS
        if f"trace_{kind}" in moments
    }
    products = Products(*(moments[name] for name in _PRODUCTS)) if "inner" in moments else None
    shape, signs = tuple(entry["shape"]), tensors.get("signs")
    return Layer(
        entry["name"], shape, entry["dim"], entry["folded"], products=products, signs=signs, **kinds
    )
