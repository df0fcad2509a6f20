"""Validation of files: every key of the header, and the dtype, shape and values of every tensor.

A checksum shows that a file is as it was written; the rules here show that a Representation can be
built from it. Unknown keys, which a later version may add, are ignored only where that is safe: in
the provenance. Result files and checkpoints use the same kind of rules. A header is validated
without torch.
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import FormatError
from .tensor_file import dtype_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    TensorSpec = tuple[torch.dtype, tuple[int, ...]]

# what a file holds at most: all log-probabilities of a sample, classes, labels of a multi-label
# network, and dimensions of an embedding
MAX_FULL_CLASSES, MAX_CLASSES, MAX_LABELS, MAX_DIMENSIONS = 1024, 2**22, 16384, 16384

Kind = Literal["features", "gradients", "elementwise"]
KINDS: tuple[Kind, ...] = ("features", "gradients", "elementwise")


class Rule(NamedTuple):
    """What a value of a header must be."""

    words: str
    holds: Callable[[Any], bool]
    needed: bool = True


def whole(words: str, least: int = 0, below: int = 2**63) -> Rule:
    """An integer in a range, which the words name; True and 1.0 are none."""
    return Rule(f"a whole number {words}", lambda x: type(x) is int and least <= x < below)


def _is_number(x: Any) -> bool:
    return type(x) is float or (type(x) is int and abs(x) < 2**1000)


def _is_ascending(x: Sequence[Any]) -> bool:
    return all(a < b for a, b in itertools.pairwise(x))


def or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.words} or null", lambda x: x is None or rule.holds(x), rule.needed)


def optional(rule: Rule) -> Rule:
    return rule._replace(needed=False)


def one_of(*words: str) -> Rule:
    return Rule(f"one of {', '.join(words)}", lambda x: type(x) is str and x in words)


def list_of(rule: Rule, least: int = 0, most: float = math.inf) -> Rule:
    def holds(x: Any) -> bool:
        return type(x) is list and least <= len(x) <= most and all(map(rule.holds, x))

    many = f" of {least} or more" if least else ""
    many = f" of {least}" if least == most else many
    limit = f", at most {most:,}" if least < most < math.inf else ""
    return Rule(f"a list{many}, each {rule.words}{limit}", holds)


COUNT = whole("from 0 up")
ONE = whole("from 1 up", 1)
TEXT = Rule("text", lambda x: type(x) is str)
YES_NO = Rule("true or false", lambda x: type(x) is bool)
REAL = Rule("a finite number", lambda x: _is_number(x) and math.isfinite(x))
SQUARE = Rule("a finite number from 0 up", lambda x: REAL.holds(x) and x >= 0)
HASH = Rule(
    "16 hexadecimal digits",
    lambda x: type(x) is str and re.fullmatch("[0-9a-f]{16}", x) is not None,
)
MAPPING = Rule("an object", lambda x: type(x) is dict)
_NOTE = {"code": TEXT, "values": MAPPING, "text": TEXT}
NOTES = list_of(  # sentences alone in files of earlier versions
    Rule(
        "text or a note",
        lambda x: (
            TEXT.holds(x)
            or (type(x) is dict and all(rule.holds(x.get(key)) for key, rule in _NOTE.items()))
        ),
    )
)
MAX_SHARDS = 65_536  # of one recording
MAX_AXES = 16  # of a layer's output, as of a tensor on a GPU in practice
PAIRS = list_of(list_of(COUNT, 2, 2), 1, MAX_SHARDS)
SHARDS = Rule(
    f"ascending pairs [i, n], at most {MAX_SHARDS:,}, i below n and n the same in all",
    lambda x: PAIRS.holds(x) and _is_ascending(x) and all(i < n == x[0][1] for i, n in x),
)
TABLE = list_of(list_of(or_null(Rule("a number", _is_number))))


_TOP_LEVEL_RULES = {
    "settings": MAPPING,
    "samples": ONE,
    "model": MAPPING,
    "data": MAPPING,
    "made": MAPPING,
    "block_sizes": list_of(ONE),
    "block_numbers": list_of(COUNT),
    "block_hashes": optional(or_null(list_of(HASH))),
    "label_hashes": optional(or_null(list_of(HASH))),
    "classes": optional(or_null(whole(f"from 2 to {MAX_CLASSES:,}", 2, MAX_CLASSES + 1))),
    "layers": list_of(MAPPING, 1),
}


def _format_3_rules(header: Mapping[str, Any]) -> dict[str, Rule]:
    """In format 3: files of multi-label networks, of embeddings, and of more than 1,024 classes."""
    none = {"classes": Rule("null", lambda x: x is None)}
    if "dimensions" in header and "labels" not in header:
        most = MAX_DIMENSIONS
        return none | {"dimensions": whole(f"from 2 to {most}", 2, most + 1)}
    if header.get("classes") is not None and header.get("labels") is None:
        least, most = MAX_FULL_CLASSES + 1, MAX_CLASSES
        return {"classes": whole(f"from {least:,} to {most:,}", least, most + 1)}
    return none | {"labels": whole(f"from 1 to {MAX_LABELS}", 1, MAX_LABELS + 1)}


_SETTINGS_RULES = {
    "seed": whole("below 2⁶⁴", below=2**64),
    "buckets": COUNT,
    "per_sample": ONE,
    "block": ONE,
    "blocks": COUNT,
    "max_dim": or_null(ONE),
    "pool": TEXT,
    "target": TEXT,
    "beta": or_null(REAL),
    "elementwise": YES_NO,
    "unit": optional(one_of("sample", "token")),
    "tokens": optional(ONE),
}
_PROVENANCE_RULES = {
    "model": {
        "name": TEXT,
        "fingerprint": or_null(HASH),
        "parameters": or_null(COUNT),
        "weights": optional(or_null(HASH)),
        "address": optional(or_null(TEXT)),
        "tokenizer": optional(or_null(HASH)),
        "classes": optional(or_null(list_of(TEXT))),
    },
    "data": {
        "id": or_null(TEXT),
        "total": or_null(ONE),
        "order": one_of("seeded", "stream", "keyed"),
        "shards": SHARDS,
        "skipped": COUNT,
        "fingerprint": HASH,
        "content": optional(or_null(HASH)),
        "labels": optional(or_null(HASH)),
        "first": optional(or_null(HASH)),
    },
    "made": {
        "dtype": TEXT,
        "autocast": or_null(TEXT),
        "device": TEXT,
        "torch": TEXT,
        "resemblance": TEXT,
        "date": TEXT,
        "logits": optional(or_null(TEXT)),
    },
}
_LAYER_RULES = {
    "name": TEXT,
    "shape": list_of(ONE, 0, MAX_AXES),
    "dim": ONE,
    "folded": YES_NO,
    "moments": MAPPING,
    "bare_name": optional(TEXT),
    "channels_last": optional(YES_NO),
}
_PRODUCT_RULES = {"product": SQUARE, "inner": REAL, "inner_squared": SQUARE, "inner_fourth": SQUARE}


def check_header(header: Mapping[str, Any]) -> None:
    """An error that names the first key of a header which is not what it must be."""
    check_part("", header, _TOP_LEVEL_RULES)
    if header["format"] == 3:
        check_part("", header, _format_3_rules(header))
    check_part("settings", header["settings"], _SETTINGS_RULES, closed=True)
    for part, rules in _PROVENANCE_RULES.items():
        check_part(part, header[part], rules)
    settings = header["settings"]
    left_out = {
        "gradients": settings["target"] == "none",
        "elementwise": not settings["elementwise"],
    }
    kinds = [kind for kind in KINDS if not left_out.get(kind)]
    sums = ["trace", "mean"] if settings["buckets"] else ["trace"]
    rules = {f"{name}_{kind}": SQUARE for name in sums for kind in kinds}
    rules |= _PRODUCT_RULES if "gradients" in kinds else {}
    for i, layer in enumerate(header["layers"]):
        check_part(f"layers[{i}]", layer, _LAYER_RULES)
        found = recorded_kinds(layer)
        if found != kinds:
            raise FormatError(f"layers[{i}].moments must have traces of {kinds}, found {found}")
        check_part(f"layers[{i}].moments", layer["moments"], rules)
    _check_sizes(header)


def recorded_kinds(layer: Mapping[str, Any]) -> list[Kind]:
    """Which kinds of vectors a layer of a header has."""
    return [kind for kind in KINDS if f"trace_{kind}" in layer["moments"]]


def _check_sizes(header: Mapping[str, Any]) -> None:
    """What must agree between keys."""
    settings, sizes, numbers = (header[key] for key in ("settings", "block_sizes", "block_numbers"))
    hashes = [header.get(key) for key in ("block_hashes", "label_hashes")]
    names = [layer["name"] for layer in header["layers"]]
    in_numbers = len(numbers) == len(sizes) and _is_ascending(numbers)
    rules = (
        ("names of layers must differ", len(set(names)) == len(names), names),
        ("block_numbers must ascend, one for each of block_sizes", in_numbers, numbers),
        (
            "block_numbers must be below the setting blocks",
            all(n < max(settings["blocks"], settings.get("tokens", 1)) for n in numbers),
            numbers,
        ),
        (
            "block_sizes must be at most the setting block",
            max(sizes, default=0) <= settings["block"],
            sizes,
        ),
        ("block_sizes must add up to at most samples", sum(sizes) <= header["samples"], sizes),
        (
            "block_hashes and label_hashes must come one a block",
            all(x is None or len(x) == len(sizes) for x in hashes),
            hashes,
        ),
        (
            "tokens must be 1 where a sample is no token",
            settings.get("unit") == "token" or settings.get("tokens", 1) == 1,
            settings.get("tokens"),
        ),
        (
            "blocks of tokens must come in whole windows",
            _are_whole_windows(sizes, numbers, settings.get("tokens", 1)),
            numbers,
        ),
        (
            "buckets must be a multiple of per_sample",
            settings["buckets"] % settings["per_sample"] == 0,
            settings["buckets"],
        ),
    )
    for words, holds, found in rules:
        if not holds:
            raise FormatError(f"{words}, found {reprlib.repr(found)}")


def _are_whole_windows(sizes: Sequence[int], numbers: Sequence[int], tokens: int) -> bool:
    """Whether blocks come in windows of one size, each of successive numbers, one a token."""
    starts = [number for number in numbers if number % tokens == 0]
    windows = zip(starts, sizes[::tokens], strict=False)
    expected = [(start + i, size) for start, size in windows for i in range(tokens)]
    return expected == list(zip(numbers, sizes, strict=False))


def check_part(
    where: str, part: Mapping[str, Any], rules: Mapping[str, Rule], *, closed: bool = False
) -> None:
    """An error if a part of a header breaks a rule, or, when closed, has a key without one."""
    for key, rule in rules.items():
        name = f"{where}.{key}".lstrip(".")
        if key not in part:
            if rule.needed:
                raise FormatError(f"{name} is missing, which must be {rule.words}")
        elif not rule.holds(part[key]):
            raise FormatError(f"{name} must be {rule.words}, found {reprlib.repr(part[key])}")
    if closed:
        _raise_unknown(f"keys of {where}", set(part) - set(rules))


def check_groups(header: Mapping[str, Any], present: Collection[str]) -> None:
    """An error if a file has groups of tensors that belong to no layer, nor to a later version."""
    known = [*map(str, range(len(header["layers"]))), ""]
    kept = header.get("classes") or predicted_labels(header) or embedding_dimensions(header)
    known += ["outputs"] if kept else []
    known += ["rows"] if header["settings"].get("unit") == "token" else []
    _raise_unknown("groups of tensors", set(present).difference(known))


def predicted_labels(header: Mapping[str, Any]) -> int | None:
    """How many labels a multi-label network predicts; None for other networks."""
    return header.get("labels") if header["format"] == 3 else None


def embedding_dimensions(header: Mapping[str, Any]) -> int | None:
    """The dimensions of a network's embeddings; None for networks that predict."""
    known = header["format"] == 3 and "labels" not in header
    return header.get("dimensions") if known else None


def _raise_unknown(what: str, names: Collection[str]) -> None:
    if names:
        raise FormatError(f"{what} that this version does not know: {reprlib.repr(sorted(names))}")


def check_tensors(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], layers: Sequence[int]
) -> None:
    """An error that names the first tensor that is missing, unknown or not what it must be."""
    known = _shared_specs(header, tensors)
    for i in layers:
        for kind in recorded_kinds(header["layers"][i]):
            known |= _kind_specs(header, i, kind, tensors)
    for name, (dtype, shape) in known.items():
        if name not in tensors:
            raise FormatError(f"tensor {name} is missing")
        x = tensors[name]
        if x.dtype != dtype or tuple(x.shape) != shape:
            found = dtype_name(x.dtype) or str(x.dtype).removeprefix("torch.")
            raise FormatError(
                f"tensor {name} must be {dtype_name(dtype)} {list(shape)}, found "
                f"{found} {list(x.shape)}"
            )
        if not _has_valid_values(name, x):
            raise FormatError(f"tensor {name} holds values that it cannot have")
    _raise_unknown("tensors", set(tensors) - set(known))
    for words, holds in _agreements(header, tensors):
        if not holds:
            raise FormatError(f"{words}, found other values")


def _complete(
    tensors: Mapping[str, Tensor], groups: Sequence[dict[str, TensorSpec]], prefix: str = ""
) -> dict[str, TensorSpec]:
    """Those groups of optional tensors of which a file has any: it must have all of the group."""
    named = [{prefix + name: spec for name, spec in group.items()} for group in groups]
    return {
        k: v for group in named if not tensors.keys().isdisjoint(group) for k, v in group.items()
    }


def _shared_specs(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, TensorSpec]:
    """The tensors that layers share: signs, which tokens rows are, and what was predicted."""
    import torch

    from .._ops.class_sketch import CLASS_BUCKETS
    from .embeddings import embedded_sizes
    from .outputs import CLASS_GROUPS, TOP_CLASSES, TOP_WITHOUT_SKETCH

    settings, rows = header["settings"], sum(header["block_sizes"])
    classes, labels = header.get("classes"), predicted_labels(header)
    dimensions = embedding_dimensions(header)
    out: dict[str, TensorSpec] = {}
    optional: list[dict[str, TensorSpec]] = []
    if settings["buckets"]:
        out["signs"] = torch.float32, (settings["buckets"],)
    if any(key == "sketch_signs" or key.endswith(".sketch.table") for key in tensors):
        out["sketch_signs"] = torch.float32, (128,)
    if settings.get("unit") == "token":
        places = torch.int64, (len(header["block_sizes"]), settings["block"])
        optional.append({"rows.sequence": places, "rows.position": places})
    if dimensions is not None:
        numbers, sizes = header["block_numbers"], header["block_sizes"]
        embedded = sum(embedded_sizes(numbers, sizes, settings["block"]))
        out["outputs.vectors"] = torch.float16, (embedded, dimensions)
    elif labels is not None:
        out["outputs.label_logits"] = torch.float32, (rows, labels)
        optional.append({"outputs.labels": (torch.int16, (rows, labels))})
    elif classes is not None:
        if classes <= MAX_FULL_CLASSES:
            out["outputs.every"] = torch.float32, (rows, classes)
        else:
            sketched = header["format"] == 3
            kept = TOP_CLASSES if sketched else TOP_WITHOUT_SKETCH
            out["outputs.top"] = torch.int64, (rows, kept)
            out["outputs.top_log_p"] = torch.float32, (rows, kept)
            out["outputs.groups"] = torch.float32, (rows, CLASS_GROUPS)
            if sketched:
                for name in ("sketch_p", "sketch_log_p"):
                    out[f"outputs.{name}"] = torch.float16, (rows, CLASS_BUCKETS)
                out["outputs.mean_log_p"] = torch.float32, (rows,)
                out["outputs.sketch_key"] = torch.int64, (rows,)
            # as many as the file of the base has
            both = {(rows, n) for n in (TOP_CLASSES, TOP_WITHOUT_SKETCH)}
            found = tensors.get("outputs.others")
            others = (rows, kept) if found is None or found.shape not in both else found.shape
            pair = {"others": (torch.int64, others), "others_log_p": (torch.float32, others)}
            optional.append({f"outputs.{name}": spec for name, spec in pair.items()})
        optional.append({"outputs.labels": (torch.int64, (rows,))})
    return out | _complete(tensors, optional)


def _kind_specs(
    header: Mapping[str, Any], i: int, kind: Kind, tensors: Mapping[str, Tensor]
) -> dict[str, TensorSpec]:
    """The tensors that one kind of a layer must have, those that are optional if they are here."""
    import torch

    from .._ops.fold import fold_shape
    from .layer import NORMS_KEPT

    settings, layer, prefix = header["settings"], header["layers"][i], f"{i}.{kind}."
    sizes, size, m = header["block_sizes"], settings["block"], settings["buckets"]
    out: dict[str, TensorSpec] = {}
    optional: list[dict[str, TensorSpec]] = []
    if settings["blocks"]:
        count, name = len(sizes), "blocks"
        if f"{prefix}whole.triangle" in tensors and sum(sizes) == header["samples"]:
            count, name, size = 1, "whole", header["samples"]
        out[f"{prefix}{name}.triangle"] = torch.int16, (count, size * (size - 1) // 2)
        out[f"{prefix}{name}.diagonal"] = torch.float32, (count, size)
        optional.append({f"{name}.offset": (torch.float32, (count, size))})
    if m:
        out[f"{prefix}buckets.triangle"] = torch.uint8, (m * (m - 1) // 2, 3)
        out[f"{prefix}buckets.diagonal"] = out[f"{prefix}buckets.mean"] = torch.float32, (m,)
        # channels are folded apart since there are sketches
        apart = settings["pool"] == "flatten" and len(layer["shape"]) > 2
        apart &= f"{i}.features.sketch.table" in tensors
        channels, dim = layer["shape"][0] if apart else 1, layer["dim"]
        width = math.prod(fold_shape(dim, settings["max_dim"] or dim, channels))
        optional.append({"sums": (torch.float32, (m, width)), "total": (torch.float64, (width,))})
    if kind != "elementwise":
        norms = tensors.get(f"{prefix}norms", torch.empty(0, dtype=torch.float32))
        optional.append({"norms": (torch.float32, (min(norms.numel(), NORMS_KEPT),))})
        sketch = {"table": (torch.float32, (128, 256)), "total": (torch.float64, (256,))}
        optional.append({f"sketch.{part}": spec for part, spec in sketch.items()})
    return out | _complete(tensors, optional, prefix)


def _agreements(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, bool | Tensor]]:
    """What tensors must fulfil beside each other and the header, in words, and whether they do."""
    import torch

    block, sizes = header["settings"]["block"], header["block_sizes"]
    inside = torch.arange(block) < torch.tensor(sizes, dtype=torch.int64)[:, None]
    short = [(i, n) for i, n in enumerate(sizes) if n < block]
    classes = header.get("classes") or 2  # a label is predicted or is not
    known = [~x.isnan() for name, x in tensors.items() if name.endswith(".norms")]
    if known:
        alike = all(torch.equal(x, known[0]) for x in known)
        yield "tensors norms must be of the same samples in all layers", alike
        words = f"tensors norms must be of at most {header['samples']} samples"
        yield words, known[0].sum() <= header["samples"]
    for name, x in tensors.items():
        end = name.removeprefix("outputs.")
        if end in ("top", "others", "labels") and end != name:
            least = -1 if end == "labels" else 0
            yield f"tensor {name} must hold classes", ((x >= least) & (x < classes)).all()
        elif name in ("outputs.every", "outputs.groups"):
            near = (x.double().exp().sum(1) - 1).abs() <= 1e-3
            yield f"tensor {name} must hold probabilities", near.all()
        elif name == "outputs.sketch_key":
            yield f"tensor {name} must hold 32 bits", ((x >= 0) & (x < 2**32)).all()
        elif name == "outputs.top_log_p":
            words = f"tensor {name} must fall from the likeliest on"
            yield words, (x[:, 1:] <= x[:, :-1]).all()
        elif name == "outputs.vectors":
            length = torch.linalg.vector_norm(x.double(), dim=1)
            near = ((length - 1).abs() <= _LENGTH_TOLERANCE) | (length == 0)
            yield f"tensor {name} must hold vectors of length 1 or 0", near.all()
        elif name.startswith("rows."):
            words = "places from 0 up for the samples of each block and -1 beyond them"
            known_rows = torch.equal(x >= 0, inside) and bool((x >= -1).all())
            yield f"tensor {name} must have {words}", known_rows
        elif ".blocks." in name:  # a block that is not full fills the beginning of its row
            for i, n in short:
                rest = x[i, n * (n - 1) // 2 if name.endswith(".triangle") else n :]
                words = f"must be zero beyond the {n} samples of block {i}"
                yield f"tensor {name} {words}", not rest.any()


_LENGTH_TOLERANCE = 2e-3  # of vectors rounded to float16
_LOG_PROBABILITIES = ("every", "top_log_p", "groups", "others_log_p")


def _has_valid_values(name: str, x: Tensor) -> bool:
    """Finite numbers, squares not below zero, correlations within ±1; NaN for a norm not known."""
    import torch

    if x.dtype == torch.int16:
        return not bool((x == -(2**15)).any())
    if x.dtype == torch.uint8:  # three bytes, lowest first
        return not bool(((x[:, 2] == 0x80) & (x[:, 1] == 0) & (x[:, 0] == 0)).any())
    if not x.is_floating_point():
        return True
    if name.removeprefix("outputs.") in _LOG_PROBABILITIES:  # -inf of nothing
        return not bool((x.isnan() | (x > 1e-3)).any())
    if name.endswith(".norms"):
        return not bool((x.isinf() | (x < 0)).any())
    squares = name.endswith(".diagonal")
    return bool(x.isfinite().all()) and not (squares and bool((x < 0).any()))
