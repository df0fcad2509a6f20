"""Saving and loading Representations: which field is stored under which name.

docs/reference/format.md specifies them.

This is the only place where tensors and sums have names; everywhere else they are fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .._utils.validation import is_integer
from ..errors import FormatError, LayerError, close_matches
from . import schema, tensor_file
from .embeddings import Embeddings
from .file_header import check_header, invalid_file_error, refuse_checkpoint
from .layer import Blocks, Buckets, Layer, Products, Recorded, Sketch, Whole
from .outputs import Outputs
from .representation import DataInfo, Made, ModelInfo, Representation, Settings, TokenRows

NamedTensors = Mapping[str, Tensor]
T = TypeVar("T")


def save(
    rep: Representation,
    path: str | os.PathLike[str],
    *,
    checkpoint: Mapping[str, Any] | None = None,  # of a pass that goes on: which, and how far
) -> Path:
    """Write one file; it appears whole or not at all."""
    header, tensors = _header_and_tensors(rep)
    if checkpoint is not None:
        header["checkpoint"] = dict(checkpoint)
    return tensor_file.write_tensors(path, header, tensors)


def representation_bytes(rep: Representation) -> bytes:
    """What `save` would write."""
    return tensor_file.tensor_file_bytes(*_header_and_tensors(rep))


def _header_and_tensors(rep: Representation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file."""
    tensors: dict[str, Tensor | None] = {}
    for i, layer in enumerate(rep.layers):
        for kind in layer.kinds:
            named = _tensors_of_kind(layer.recorded(kind))
            tensors |= {f"{i}.{kind}.{name}": tensor for name, tensor in named.items()}
    tensors |= {name: getattr(rep.layers[0], name) for name in _SHARED_TENSORS}
    if rep.rows is not None:
        tensors |= {f"rows.{name}": x for name, x in vars(rep.rows).items()}
    predicts: dict[str, Any] = {"classes": None}
    if rep.outputs is not None:
        tensors |= {f"outputs.{name}": x for name, x in rep.outputs.tensors().items()}
        predicts = _header_of_outputs(rep.outputs)
    header = {
        "settings": asdict(rep.settings),
        "samples": rep.samples,
        "model": asdict(rep.model),
        "data": asdict(rep.data),
        "made": asdict(rep.made),
        **{name: getattr(rep, name) for name in _BLOCK_FIELDS},
        **predicts,
        "layers": [
            {name: getattr(layer, name) for name in _LAYER_FIELDS}
            | {"moments": _layer_moments(layer)}
            for layer in rep.layers
        ],
    }
    return header, {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _header_of_outputs(outputs: Outputs | Embeddings) -> dict[str, Any]:
    """What a header says of the outputs; of predictions of one class no newer format is needed."""
    newest = {"format": tensor_file.NEWEST_FORMAT, "classes": None}
    if isinstance(outputs, Embeddings):
        return newest | {"dimensions": outputs.dimensions}
    if outputs.multi_label:
        return newest | {"labels": outputs.classes}
    sketched = outputs.sketch_p is not None
    return (newest if sketched else {}) | {"classes": outputs.classes}


def load(
    path: str | os.PathLike[str], *, layers: Sequence[str | int] | None = None
) -> Representation:
    """Read a recording from a file that `save` wrote. Nothing in the file is ever executed.

    Args:
        path: path of the file.
        layers: names or positions of the layers to read; None reads all.

    Returns:
        The recording, with the layers that were asked for.

    Raises:
        FormatError: if the file is missing, damaged, from a newer version, or the checkpoint of a
            pass that has not finished.
    """
    found, checkpoint = load_with_checkpoint(path, layers=layers)
    refuse_checkpoint(path, checkpoint)
    return found


def load_with_checkpoint(
    path: str | os.PathLike[str], *, layers: Sequence[str | int] | None = None
) -> tuple[Representation, Any]:
    """The Representation in a file, and which pass it is a checkpoint of, if it is one."""
    chosen: list[int] = []

    def groups(header: Mapping[str, Any], present: Collection[str]) -> list[str]:
        check_header(path, header, present)
        chosen.extend(layer_positions([layer["name"] for layer in header["layers"]], layers))
        return ["", "rows", "outputs", *map(str, chosen)]

    header, tensors = tensor_file.read_tensors(path, groups)
    try:
        schema.check_tensors(header, tensors, chosen)
    except FormatError as error:
        raise invalid_file_error(path, header, error) from error
    model = dict(header["model"])
    if model.get("classes") is not None:
        model["classes"] = tuple(model["classes"])
    data = {**header["data"], "shards": tuple((i, n) for i, n in header["data"]["shards"])}
    blocks = {key: header.get(key) for key in _BLOCK_FIELDS}
    sizes = tuple(header["block_sizes"])
    rows = {key.removeprefix("rows."): x for key, x in tensors.items() if key.startswith("rows.")}
    predicted = {
        key.removeprefix("outputs."): x for key, x in tensors.items() if key.startswith("outputs.")
    }
    classes = schema.predicted_labels(header) or header.get("classes")
    outputs: Outputs | Embeddings | None = Outputs(classes, **predicted) if classes else None
    if schema.embedding_dimensions(header):
        outputs = Embeddings(**predicted)
    found = Representation(
        layers=tuple(_read_layer(i, header["layers"][i], sizes, tensors) for i in chosen),
        settings=_from_known_keys(Settings, header["settings"]),
        samples=header["samples"],
        model=_from_known_keys(ModelInfo, model),
        data=_from_known_keys(DataInfo, data),
        made=_from_known_keys(Made, header["made"]),
        rows=TokenRows(**rows) if rows else None,
        outputs=outputs,
        **{key: None if value is None else tuple(value) for key, value in blocks.items()},  # type: ignore[arg-type]
    )
    return found, header.get("checkpoint")


def layer_positions(names: Sequence[str], layers: Sequence[str | int] | None) -> list[int]:
    """Where layers, by name or position, are in a file; None for all."""
    if layers is None:
        return list(range(len(names)))
    out = set()
    several = isinstance(layers, Iterable) and not isinstance(layers, str)
    for layer in layers if several else [layers]:
        at: Any = names.index(layer) if isinstance(layer, str) and layer in names else layer
        if not is_integer(at) or not -len(names) <= at < len(names):
            raise LayerError(
                f"no layer {layer!r} in the file; nearest: {close_matches(str(layer), names)}"
            )
        out.add(int(at) % len(names))
    if not out:
        raise LayerError("expected names or numbers of layers, found none; None reads them all")
    return sorted(out)


def _from_known_keys(kind: type[T], values: Mapping[str, Any]) -> T:
    """A record from a part of the header; keys that a later version may add are passed over."""
    return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})  # type: ignore[arg-type]


_SHARED_TENSORS = ("signs", "sketch_signs")  # tensors that all layers have in common
_BLOCK_FIELDS = ("block_sizes", "block_numbers", "block_hashes", "label_hashes")
_LAYER_FIELDS = ("name", "shape", "dim", "folded", "bare_name", "channels_last")

# The tensors of one kind: their names in a file after `layer.kind.`, by the record they fill.
_TENSOR_NAMES: dict[str, tuple[str, ...]] = {
    "blocks": ("blocks.triangle", "blocks.diagonal", "blocks.offset"),
    "whole": ("whole.triangle", "whole.diagonal", "whole.offset"),
    "sketch": ("sketch.table", "sketch.total"),
    "buckets": ("buckets.triangle", "buckets.diagonal", "buckets.mean"),
    "sums": ("sums", "total"),
}


def _tensors_of_kind(recorded: Recorded) -> dict[str, Tensor | None]:
    out = {"norms": recorded.norms}
    for part, names in _TENSOR_NAMES.items():
        record = getattr(recorded, part)
        record = record.kernel if isinstance(record, Whole) else record
        if record is not None:
            out |= zip(names, vars(record).values(), strict=False)
    return out


def _read_kind(
    prefix: str, trace: float, mean: float, sizes: tuple[int, ...], tensors: NamedTensors
) -> Recorded:
    kinds: dict[str, Callable[..., Any]] = {
        "blocks": Blocks,
        "whole": lambda *kernel: Whole(Blocks(*kernel), sizes),
        "sketch": Sketch,
        "buckets": lambda *kernel: Buckets(*kernel, mean_norm=float(mean)),
        "sums": Sketch,
    }
    parts = {
        part: kinds[part](*(tensors.get(prefix + name) for name in names))
        for part, names in _TENSOR_NAMES.items()
        if prefix + names[0] in tensors
    }
    # JSON may have a number without a point
    return Recorded(float(trace), norms=tensors.get(f"{prefix}norms"), **parts)


_PRODUCT_KEYS = ("product", "inner", "inner_squared", "inner_fourth")  # the fields of Products


def _layer_moments(layer: Layer) -> dict[str, float]:
    out = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        out[f"trace_{kind}"] = recorded.trace
        if recorded.buckets is not None:
            out[f"mean_{kind}"] = recorded.buckets.mean_norm
    if layer.products is not None:
        out |= zip(_PRODUCT_KEYS, astuple(layer.products), strict=True)
    return out


def _read_layer(
    i: int, entry: Mapping[str, Any], sizes: tuple[int, ...], tensors: NamedTensors
) -> Layer:
    moments = entry["moments"]
    values: dict[str, Any] = {name: entry[name] for name in _LAYER_FIELDS if name in entry}
    values |= {name: tensors.get(name) for name in _SHARED_TENSORS}
    values["shape"] = tuple(entry["shape"])
    for kind in schema.recorded_kinds(entry):
        trace, mean = moments[f"trace_{kind}"], moments.get(f"mean_{kind}", 0)
        values[kind] = _read_kind(f"{i}.{kind}.", trace, mean, sizes, tensors)
    if "gradients" in values:
        values["products"] = Products(*(float(moments[name]) for name in _PRODUCT_KEYS))
    return Layer(**values)
