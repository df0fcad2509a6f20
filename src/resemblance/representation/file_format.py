"""Representations as files: which record goes under which name (docs/format.md).

This is the only place where tensors and sums have names; everywhere else they are fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .._whole_numbers import is_whole
from ..errors import FormatError, LayerError, nearest
from . import container, schema
from .layer import KINDS, Blocks, Buckets, Layer, Products, Recorded, Sketch, Sums, Whole
from .outputs import Outputs
from .provenance import DataInfo, Made, ModelInfo
from .representation import Representation, TokenRows
from .settings import Settings

Tensors = Mapping[str, Tensor]
T = TypeVar("T")


def save(
    rep: Representation,
    path: str | os.PathLike[str],
    *,
    checkpoint: Mapping[str, Any] | None = None,  # of a pass that goes on: which, and how far
) -> Path:
    """Write one file; it appears whole or not at all."""
    header, tensors = _parts(rep)
    if checkpoint is not None:
        header["checkpoint"] = dict(checkpoint)
    return container.write(path, header, tensors)


def content(rep: Representation) -> bytes:
    """What `save` would write."""
    return container.content(*_parts(rep))


def _parts(rep: Representation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file."""
    tensors: dict[str, Tensor] = {}
    for i, layer in enumerate(rep.layers):
        for kind in layer.kinds:
            for name, tensor in _tensors(layer.recorded(kind)).items():
                tensors[f"{i}.{kind}.{name}"] = tensor
    for name in _SHARED:
        shared = getattr(rep.layers[0], name)
        if shared is not None:
            tensors[name] = shared
    if rep.rows is not None:
        tensors |= {
            f"rows.{field.name}": getattr(rep.rows, field.name) for field in fields(rep.rows)
        }
    if rep.outputs is not None:
        tensors |= {f"outputs.{name}": x for name, x in rep.outputs.tensors().items()}
    header = {
        "settings": asdict(rep.settings),
        "samples": rep.samples,
        "model": asdict(rep.model),
        "data": asdict(rep.data),
        "made": asdict(rep.made),
        **{name: getattr(rep, name) for name in _OF_BLOCKS},
        "classes": None if rep.outputs is None else rep.outputs.classes,
        "layers": [
            {name: getattr(layer, name) for name in _OF_LAYER} | {"moments": _moments(layer)}
            for layer in rep.layers
        ],
    }
    return header, tensors


def load(
    path: str | os.PathLike[str], *, layers: Sequence[str | int] | None = None
) -> Representation:
    """The Representation in a file that `save` wrote; nothing in it is ever executed.

    With `layers`, names or positions, it holds these alone, and no others are read.
    """
    found, checkpoint = opened(path, layers=layers)
    if checkpoint is not None:
        raise FormatError(
            f"{path} is the checkpoint of a pass that has not come to its end; start the pass "
            "again with the same checkpoint, and it goes on"
        )
    return found


def opened(
    path: str | os.PathLike[str], *, layers: Sequence[str | int] | None = None
) -> tuple[Representation, Any]:
    """The Representation in a file, and which pass it is a checkpoint of, if it is one."""
    chosen: list[int] = []

    def groups(header: Mapping[str, Any], present: Collection[str]) -> list[str]:
        try:
            schema.check_header(header)
            schema.check_groups(header, present)
        except FormatError as error:
            raise _invalid(path, header, error) from error
        chosen.extend(positions([layer["name"] for layer in header["layers"]], layers))
        return ["", "rows", "outputs", *map(str, chosen)]

    header, tensors = container.read(path, groups)
    try:
        schema.check_tensors(header, tensors, chosen)
    except FormatError as error:
        raise _invalid(path, header, error) from error
    data = {**header["data"], "shards": tuple((i, n) for i, n in header["data"]["shards"])}
    blocks = {key: header.get(key) for key in _OF_BLOCKS}
    sizes = tuple(header["block_sizes"])
    found = Representation(
        layers=tuple(_layer(i, header["layers"][i], sizes, tensors) for i in chosen),
        settings=_known(Settings, header["settings"]),
        samples=header["samples"],
        model=_known(ModelInfo, header["model"]),
        data=_known(DataInfo, data),
        made=_known(Made, header["made"]),
        rows=_rows(tensors),
        outputs=_outputs(header.get("classes"), tensors),
        **{key: None if value is None else tuple(value) for key, value in blocks.items()},  # type: ignore[arg-type]
    )
    return found, header.get("checkpoint")


def _rows(tensors: Tensors) -> TokenRows | None:
    found = [tensors.get(f"rows.{field.name}") for field in fields(TokenRows)]
    return None if found[0] is None or found[1] is None else TokenRows(found[0], found[1])


def _outputs(classes: int | None, tensors: Tensors) -> Outputs | None:
    start = "outputs."
    found = {key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)}
    return None if classes is None else Outputs(classes, **found)


def positions(names: Sequence[str], layers: Sequence[str | int] | None) -> list[int]:
    """Where layers, by name or position, are in a file; None for all."""
    if layers is None:
        return list(range(len(names)))
    out = set()
    several = isinstance(layers, Iterable) and not isinstance(layers, str)
    for layer in layers if several else [layers]:
        at: Any = names.index(layer) if isinstance(layer, str) and layer in names else layer
        if not is_whole(at) or not -len(names) <= at < len(names):
            raise LayerError(
                f"no layer {layer!r} in the file; nearest: {nearest(str(layer), names)}"
            )
        out.add(int(at) % len(names))
    if not out:
        raise LayerError("expected names or numbers of layers, found none; None reads them all")
    return sorted(out)


def _invalid(path: object, header: Mapping[str, Any], error: FormatError) -> FormatError:
    if "task2vec" in header:
        return FormatError(f"{path} holds a TaskEmbedding; read it with TaskEmbedding.load")
    return FormatError(f"{path} is not a valid Representation: {error}; record it again")


def _known(kind: type[T], values: Mapping[str, Any]) -> T:
    """A record from a part of the header; keys that a later version may add are passed over."""
    return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})  # type: ignore[arg-type]


_SHARED = ("signs", "sketch_signs")  # tensors that all layers have in common
_OF_BLOCKS = ("block_sizes", "block_numbers", "block_hashes", "label_hashes")
_OF_LAYER = ("name", "shape", "dim", "folded", "bare_name", "channels_last")

# The tensors of one kind: their names in a file after `layer.kind.`, by the record they fill.
_TENSORS: dict[str, tuple[str, ...]] = {
    "blocks": ("blocks.triangle", "blocks.diagonal", "blocks.offset"),
    "whole": ("whole.triangle", "whole.diagonal", "whole.offset"),
    "sketch": ("sketch.table", "sketch.total"),
    "buckets": ("buckets.triangle", "buckets.diagonal", "buckets.mean"),
    "sums": ("sums", "total"),
}


def _tensors(recorded: Recorded) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {} if recorded.norms is None else {"norms": recorded.norms}
    for part, names in _TENSORS.items():
        record = getattr(recorded, part)
        record = record.kernel if isinstance(record, Whole) else record
        if record is not None:
            values = (getattr(record, field.name) for field in fields(record))
            named = zip(names, values, strict=False)
            out |= {name: value for name, value in named if value is not None}
    return out


def _recorded(
    prefix: str, trace: float, mean: float | None, sizes: tuple[int, ...], tensors: Tensors
) -> Recorded:
    found = {
        part: [tensors.get(prefix + name) for name in names]
        for part, names in _TENSORS.items()
        if prefix + names[0] in tensors
    }

    def made(part: str, kind: Callable[..., T]) -> T | None:
        return kind(*found[part]) if part in found else None

    return Recorded(
        trace=float(trace),  # which JSON may have without a point
        blocks=made("blocks", Blocks),
        whole=made("whole", lambda *kernel: Whole(Blocks(*kernel), sizes)),
        norms=tensors.get(f"{prefix}norms"),
        sketch=made("sketch", Sketch),
        buckets=made("buckets", lambda *kernel: Buckets(*kernel, mean_norm=float(mean or 0))),
        sums=made("sums", Sums),
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


def _layer(i: int, entry: Mapping[str, Any], sizes: tuple[int, ...], tensors: Tensors) -> Layer:
    moments = entry["moments"]
    kinds: dict[str, Any] = {
        kind: _recorded(
            f"{i}.{kind}.", moments[f"trace_{kind}"], moments.get(f"mean_{kind}"), sizes, tensors
        )
        for kind in KINDS
        if f"trace_{kind}" in moments
    }
    products = None
    if "gradients" in kinds:
        products = Products(*(float(moments[name]) for name in _PRODUCTS))
    own: dict[str, Any] = {name: entry[name] for name in _OF_LAYER if name in entry}
    own |= {name: tensors.get(name) for name in _SHARED}
    return Layer(**{**own, "shape": tuple(entry["shape"])}, products=products, **kinds)
