"""What a file must hold to be read: every key of its header, every tensor's dtype and shape.

A checksum says that a file is as it was written, this that a Representation can be made of it. Keys
that a later version may add are passed over where that is safe: in what says where things came
from. Nowhere else.
"""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._ops.feature_fold import rows_and_run
from ..errors import FormatError
from .container import DTYPES
from .layer import KINDS, NORMS_KEPT
from .outputs import ALL_UP_TO, GROUPS, TOP


class Rule(NamedTuple):
    """What a value of a header must be."""

    words: str
    holds: Callable[[Any], bool]
    needed: bool = True


def _whole(x: Any, least: int = 0, below: int = 2**63) -> bool:
    return type(x) is int and least <= x < below


def _number(x: Any) -> bool:
    return type(x) is float or _whole(x, -(2**1000), 2**1000)


def _real(x: Any) -> bool:
    return _number(x) and math.isfinite(x)


def _is_hash(x: Any) -> bool:
    return type(x) is str and len(x) == 16 and set(x) <= set("0123456789abcdef")


def _shards(x: Any) -> bool:
    return PAIRS.holds(x) and _ascend(x) and all(i < n == x[0][1] for i, n in x)


def _ascend(x: Sequence[Any]) -> bool:
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
    return Rule(f"a list{many}, each {rule.words}", holds)


COUNT = Rule("a whole number from 0 up", _whole)
ONE = Rule("a whole number from 1 up", lambda x: _whole(x, 1))
TEXT = Rule("text", lambda x: type(x) is str)
YES_NO = Rule("true or false", lambda x: type(x) is bool)
REAL = Rule("a finite number", _real)
SQUARE = Rule("a finite number from 0 up", lambda x: _real(x) and x >= 0)
HASH = Rule("16 hexadecimal digits", _is_hash)
MAPPING = Rule("an object", lambda x: type(x) is dict)
PAIRS = list_of(list_of(COUNT, 2, 2), 1)
SHARDS = Rule("ascending pairs [i, n], i below n and n the same in all", _shards)
TABLE = list_of(list_of(or_null(Rule("a number", _number))))


_TOP = {
    "settings": MAPPING,
    "samples": ONE,
    "model": MAPPING,
    "data": MAPPING,
    "made": MAPPING,
    "block_sizes": list_of(ONE),
    "block_numbers": list_of(COUNT),
    "block_hashes": optional(or_null(list_of(HASH))),
    "label_hashes": optional(or_null(list_of(HASH))),
    "classes": optional(or_null(Rule("a whole number from 2 up", lambda x: _whole(x, 2)))),
    "layers": list_of(MAPPING, 1),
}
_SETTINGS = {
    "seed": Rule("a whole number below 2⁶⁴", lambda x: _whole(x, 0, 2**64)),
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
_PARTS = {
    "model": {
        "name": TEXT,
        "fingerprint": or_null(HASH),
        "parameters": or_null(COUNT),
        "weights": optional(or_null(HASH)),
        "address": optional(or_null(TEXT)),
        "tokenizer": optional(or_null(HASH)),
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
    },
}
_LAYER = {
    "name": TEXT,
    "shape": list_of(ONE),
    "dim": ONE,
    "folded": YES_NO,
    "moments": MAPPING,
    "bare_name": optional(TEXT),
    "channels_last": optional(YES_NO),
}
_PRODUCTS = {"product": SQUARE, "inner": REAL, "inner_squared": SQUARE, "inner_fourth": SQUARE}


def check_header(header: Mapping[str, Any]) -> None:
    """An error that names the first key of a header which is not what it must be."""
    check_part("", header, _TOP)
    check_part("settings", header["settings"], _SETTINGS, closed=True)
    for part, rules in _PARTS.items():
        check_part(part, header[part], rules)
    settings = header["settings"]
    for i, layer in enumerate(header["layers"]):
        where = f"layers[{i}]"
        check_part(where, layer, _LAYER)
        moments = layer["moments"]
        kinds = [kind for kind in KINDS if f"trace_{kind}" in moments]
        wanted = ["features"]
        wanted += ["gradients"] if settings["target"] != "none" else []
        wanted += ["elementwise"] if settings["elementwise"] else []
        if kinds != wanted:
            raise FormatError(f"{where}.moments must have traces of {wanted}, found {kinds}")
        rules = {f"trace_{kind}": SQUARE for kind in kinds}
        if settings["buckets"]:
            rules |= {f"mean_{kind}": SQUARE for kind in kinds}
        if "gradients" in kinds:
            rules |= _PRODUCTS
        check_part(f"{where}.moments", moments, rules)
    _check_sizes(header)


def _check_sizes(header: Mapping[str, Any]) -> None:
    """What must agree between keys."""
    settings, sizes, numbers = (header[key] for key in ("settings", "block_sizes", "block_numbers"))
    hashes = [header.get(key) for key in ("block_hashes", "label_hashes")]
    names = [layer["name"] for layer in header["layers"]]
    in_numbers = len(numbers) == len(sizes) and _ascend(numbers)
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
            _in_windows(sizes, numbers, settings.get("tokens", 1)),
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
            raise FormatError(f"{words}, found {_short(found)}")


def _in_windows(sizes: Sequence[int], numbers: Sequence[int], tokens: int) -> bool:
    """Whether blocks come in runs, one a token, that begin at a multiple and have one size."""
    if tokens == 1:
        return True
    if len(sizes) != len(numbers) or len(sizes) % tokens:
        return False
    starts = range(0, len(sizes), tokens)
    runs = [(set(sizes[i : i + tokens]), list(numbers[i : i + tokens])) for i in starts]
    return all(
        len(size) == 1 and run[0] % tokens == 0 and run == list(range(run[0], run[0] + tokens))
        for size, run in runs
    )


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
            raise FormatError(f"{name} must be {rule.words}, found {_short(part[key])}")
    if closed:
        _refuse_unknown(f"keys of {where}", set(part) - set(rules))


def check_groups(header: Mapping[str, Any], present: Collection[str]) -> None:
    """An error if a file has groups of tensors that belong to no layer, nor to a later version."""
    known = [*map(str, range(len(header["layers"]))), ""]
    known += ["outputs"] if header.get("classes") is not None else []
    known += ["rows"] if header["settings"].get("unit") == "token" else []
    _refuse_unknown("groups of tensors", set(present).difference(known))


def _refuse_unknown(what: str, names: Collection[str]) -> None:
    if names:
        raise FormatError(f"{what} that this version does not know: {_short(sorted(names))}")


class Form(NamedTuple):
    """What a tensor must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def check_tensors(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], layers: Sequence[int]
) -> None:
    """An error that names the first tensor that is missing, unknown or not what it must be."""
    known: set[str] = set()
    settings = header["settings"]
    forms = {"signs": Form(torch.float32, (settings["buckets"],))} if settings["buckets"] else {}
    known |= _check(tensors, forms)
    if any(key == "sketch_signs" or key.endswith(".sketch.table") for key in tensors):
        known |= _check(tensors, {"sketch_signs": Form(torch.float32, (128,))})
    if header.get("classes") is not None:
        known |= _check(tensors, _of_outputs(header, tensors))
        _check_outputs(header, tensors)
    if any(key.startswith("rows.") for key in tensors):
        form = Form(torch.int64, (len(header["block_sizes"]), settings["block"]))
        known |= _check(tensors, {"rows.sequence": form, "rows.position": form})
        _check_rows(header, tensors)
    for i in layers:
        layer = header["layers"][i]
        for kind in (kind for kind in KINDS if f"trace_{kind}" in layer["moments"]):
            prefix = f"{i}.{kind}."
            here = {key.removeprefix(prefix) for key in tensors if key.startswith(prefix)}
            width = _folded(header, layer, f"{i}.features.sketch.table" in tensors)
            forms = _forms(header, here, tensors.get(f"{prefix}norms"), width)
            if kind == "elementwise":  # of which neither is kept
                forms = {k: v for k, v in forms.items() if k != "norms" and "sketch" not in k}
            known |= _check(tensors, {prefix + name: form for name, form in forms.items()})
    _refuse_unknown("tensors", set(tensors) - known)
    _check_padding(header, tensors)
    _check_norms(header, tensors)


def _folded(header: Mapping[str, Any], layer: Mapping[str, Any], by_channel: bool) -> int:
    """The width of a layer's accumulators; channels are folded apart since there are sketches."""
    settings, dim, shape = header["settings"], layer["dim"], layer["shape"]
    images = by_channel and settings["pool"] == "flatten" and len(shape) > 2
    return math.prod(rows_and_run(dim, settings["max_dim"] or dim, shape[0] if images else 1))


def _forms(
    header: Mapping[str, Any],
    here: Collection[str],
    norms: Tensor | None,
    width: int,  # of accumulators
) -> dict[str, Form]:
    """The tensors that one kind of a layer must have, those that are optional if they are here."""
    settings, k, n = header["settings"], len(header["block_sizes"]), header["samples"]
    size, m = settings["block"], settings["buckets"]
    out: dict[str, Form] = {}
    if settings["blocks"]:
        whole = "whole.triangle" in here and sum(header["block_sizes"]) == n
        name, count, b = ("whole", 1, n) if whole else ("blocks", k, size)
        out[f"{name}.triangle"] = Form(torch.int16, (count, b * (b - 1) // 2))
        out[f"{name}.diagonal"] = Form(torch.float32, (count, b))
        if f"{name}.offset" in here:
            out[f"{name}.offset"] = Form(torch.float32, (count, b))
    if m:
        out["buckets.triangle"] = Form(torch.uint8, (m * (m - 1) // 2, 3))
        out["buckets.diagonal"] = out["buckets.mean"] = Form(torch.float32, (m,))
    if norms is not None:
        out["norms"] = Form(torch.float32, (min(norms.numel(), NORMS_KEPT),))
    if "sketch.table" in here or "sketch.total" in here:
        out["sketch.table"] = Form(torch.float32, (128, 256))
        out["sketch.total"] = Form(torch.float64, (256,))
    if m and ("sums" in here or "total" in here):
        out |= {"sums": Form(torch.float32, (m, width)), "total": Form(torch.float64, (width,))}
    return out


def _check(tensors: Mapping[str, Tensor], forms: Mapping[str, Form]) -> set[str]:
    for name, form in forms.items():
        if name not in tensors:
            raise FormatError(f"tensor {name} is missing")
        x = tensors[name]
        found, wanted = (x.dtype, tuple(x.shape)), (form.dtype, form.shape)
        if found != wanted:
            kind = DTYPES.get(x.dtype, str(x.dtype).removeprefix("torch."))
            raise FormatError(
                f"tensor {name} must be {DTYPES[form.dtype]} {list(form.shape)}, found "
                f"{kind} {list(x.shape)}"
            )
        if not _sensible(name, x):
            raise FormatError(f"tensor {name} holds values that it cannot have")
    return set(forms)


def _check_padding(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A block that is not full fills the beginning of its row."""
    full = header["settings"]["block"]
    short = [(i, n) for i, n in enumerate(header["block_sizes"]) if n < full]
    for name in (name for name in tensors if ".blocks." in name):
        for i, n in short:
            rest = n * (n - 1) // 2 if name.endswith(".triangle") else n
            if bool(tensors[name][i, rest:].any()):
                raise FormatError(
                    f"tensor {name} must be zero beyond the {n} samples of block {i}, found other "
                    "values"
                )


def _of_outputs(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """The tensors of what was predicted."""
    rows, classes = sum(header["block_sizes"]), header["classes"]
    out: dict[str, Form] = {}
    if classes <= ALL_UP_TO:
        out["every"] = Form(torch.float32, (rows, classes))
    else:
        out["top"] = Form(torch.int64, (rows, TOP))
        out["top_log_p"] = Form(torch.float32, (rows, TOP))
        out["groups"] = Form(torch.float32, (rows, GROUPS))
        if "outputs.others" in tensors or "outputs.others_log_p" in tensors:
            out["others"], out["others_log_p"] = out["top"], out["top_log_p"]
    if "outputs.labels" in tensors:
        out["labels"] = Form(torch.int64, (rows,))
    return {f"outputs.{name}": form for name, form in out.items()}


def _check_outputs(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Classes that there are, and logarithms of probabilities that add up to one."""
    for name, least in (("top", 0), ("others", 0), ("labels", -1)):
        x = tensors.get(f"outputs.{name}")
        if x is not None and bool(((x < least) | (x >= header["classes"])).any()):
            raise FormatError(f"tensor outputs.{name} must hold classes, found other numbers")
    for name in ("every", "groups"):
        x = tensors.get(f"outputs.{name}")
        if x is not None and bool((x.double().exp().sum(1) - 1).abs().gt(1e-3).any()):
            raise FormatError(f"tensor outputs.{name} must hold probabilities, found others")
    top = tensors.get("outputs.top_log_p")
    if top is not None and bool((top[:, 1:] > top[:, :-1]).any()):
        raise FormatError("tensor outputs.top_log_p must fall from the likeliest on")


def _check_rows(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Places of tokens in the data, and -1 beyond the size of a block."""
    sizes = torch.tensor(header["block_sizes"], dtype=torch.int64)[:, None]
    inside = torch.arange(header["settings"]["block"])[None] < sizes
    for name in ("rows.sequence", "rows.position"):
        if not torch.equal(tensors[name] >= 0, inside) or bool((tensors[name] < -1).any()):
            raise FormatError(
                f"tensor {name} must have places from 0 up for the samples of each block and -1 "
                "beyond them, found others"
            )


def _check_norms(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """All layers and kinds know the norms of the same samples."""
    known = [~x.isnan() for name, x in tensors.items() if name.endswith(".norms")]
    if any(not torch.equal(x, known[0]) for x in known):
        raise FormatError("tensors norms must be of the same samples in all layers, found others")
    if known and int(known[0].sum()) > header["samples"]:
        raise FormatError(
            f"tensors norms must be of at most {header['samples']} samples, found "
            f"{int(known[0].sum())}"
        )


def _sensible(name: str, x: Tensor) -> bool:
    """Finite numbers, squares not below zero, correlations within ±1; NaN for a norm not known."""
    if x.dtype == torch.int16:
        return not bool((x == -(2**15)).any())
    if x.dtype == torch.uint8:  # three bytes, lowest first
        return not bool(((x[:, 2] == 0x80) & (x[:, 1] == 0) & (x[:, 0] == 0)).any())
    if not x.is_floating_point():
        return True
    if name.startswith("outputs."):  # logarithms, -inf of nothing
        return not bool((x.isnan() | (x > 1e-3)).any())
    if name.endswith(".norms"):
        return not bool((x.isinf() | (x < 0)).any())
    squares = name.endswith(".diagonal")
    return bool(x.isfinite().all()) and not (squares and bool((x < 0).any()))


def _short(value: Any) -> str:
    return reprlib.repr(value)
