"""What becomes of files that were damaged or made up: each is refused with a FormatError, or right.

    python -m benchmarks.fuzz_files --cases 1000000
    python -m benchmarks.fuzz_files --cases 1000000 --go-on   # after those that the file holds
    python -m benchmarks.fuzz_files --only 31415      # one case again, with its traceback

A case is a small valid file, of either format, and one to three edits: of its bytes (flip, insert,
delete, truncate, swap); of its header or its tensors, with every checksum made right again. What
loads must hold what docs/reference/format.md says, be the same after saving and loading, and be
compared, measured and shown without any error but the package's own. What loads after an edit of
bytes must be what was saved. Cases are numbered, and each is a function of its number and the seed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import math
import multiprocessing
import os
import platform
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import safetensors
import torch
from torch import nn

import resemblance as rs
from resemblance.analysis.task2vec import TaskEmbedding
from resemblance.cli.output import file_facts
from resemblance.errors import FormatError, ResemblanceError

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests/golden"
WIDTHS = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


NOTHING: dict[str, Any] = {
    "cases": 0, "seconds": 0, "wrong": [], "by kind of edit": {}, "by file": {}
}  # fmt: skip


class Raw(NamedTuple):
    """A tensor as it lies in a file."""

    dtype: str
    shape: list[int]
    content: bytes


class File(NamedTuple):
    """A file taken apart, so that any part can be changed and the whole put together again."""

    format: int
    header: dict[str, Any]
    tensors: dict[str, Raw]


def taken_apart(content: bytes) -> File:
    (length,) = struct.unpack("<Q", content[:8])
    table = json.loads(content[8 : 8 + length])
    header = json.loads(table.pop("__metadata__")["resemblance"])
    begin = 8 + length
    tensors = {}
    for name, entry in table.items():
        first, last = entry["data_offsets"]
        tensors[name] = Raw(entry["dtype"], entry["shape"], content[begin + first : begin + last])
    return File(header["format"], header, tensors)


def put_together(file: File) -> bytes:
    """The bytes of a file, with checksums that are right for its format, whatever it holds."""
    sums: dict[str, int] = {}
    for name, x in sorted(file.tensors.items()):
        group = name.split(".")[0] if "." in name and file.format > 1 else ""
        described = f"{name} {x.dtype} {x.shape}" if file.format > 1 else f"{name} {x.shape}"
        sums[group] = zlib.crc32(x.content, zlib.crc32(described.encode(), sums.get(group, 0)))
    header = dict(file.header)
    if file.format > 1 and "checksums" in header:
        header["checksums"] = {group: f"{crc:08x}" for group, crc in sums.items()}
    text = as_json(header)
    crc = zlib.crc32(text.encode())
    if file.format == 1:
        for name, x in sorted(file.tensors.items()):
            crc = zlib.crc32(x.content, zlib.crc32(f"{name} {x.shape}".encode(), crc))
    table: dict[str, Any] = {"__metadata__": {"resemblance": text, "crc32": f"{crc:08x}"}}
    at, parts = 0, []
    for name, x in sorted(file.tensors.items(), key=lambda item: -WIDTHS[item[1].dtype]):
        end = at + len(x.content)
        table[name] = {"dtype": x.dtype, "shape": x.shape, "data_offsets": [at, end]}
        parts.append(x.content)
        at = end
    start = json.dumps(table).encode()
    start += b" " * (-len(start) % 8)
    return struct.pack("<Q", len(start)) + start + b"".join(parts)


# The files that are edited.


def valid_files() -> dict[str, bytes]:
    """Small valid files of every kind, by name."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(14, 3)
    small = {"layers": ["1", "3"], "block": 4, "blocks": 3, "buckets": 4, "data_id": "x"}
    few = {**small, "buckets": 2, "name": "few"}
    recorded = {
        "blocks": rs.record(net, x, **small),
        "whole": rs.record(net, x[:5], **{**few, "blocks": 64}),
        "features": rs.record(net, x, gradients=False, **few),
        "sums": rs.record(net, x, elementwise=True, keep_sums=True, max_dim=2, **few),
        "shard": rs.record(net, x, shard=(1, 2), **small),
        "large mean": rs.record(net, x + 50, **few),
        "no buckets": rs.record(net, x, **{**small, "buckets": 0}),
        "no blocks": rs.record(net, x, **{**small, "blocks": 0}),
        "tokens": rs.record(
            nn.Sequential(nn.Embedding(9, 4), nn.Tanh(), nn.Linear(4, 3)),
            torch.arange(40).view(8, 5) % 9,
            **{**small, "layers": ["0", "1"], "blocks": 4, "unit": "token", "tokens": 2},
        ),
    }
    embedding = rs.task2vec(net, x)
    comparison = rs.compare(recorded["features"], recorded["features"], kernel="features")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        wide, out = recorded["no blocks"].save(path).read_bytes(), {}
        for name, rep in recorded.items():
            out[name] = _narrow(taken_apart(rep.save(path).read_bytes()))
        for name in ("blocks", "sums", "shard", "no blocks"):
            out[f"{name}, format 1"] = put_together(_old(taken_apart(out[name])))
        out["sketch"] = wide
        out["task embedding"] = embedding.save(path).read_bytes()
        out["comparison"] = comparison.save(path).read_bytes()
    if GOLDEN.exists():
        out["golden, format 1"] = (GOLDEN / "shard-0.rsm").read_bytes()
    return out


def _narrow(file: File) -> bytes:
    """Without the sketch, which has one size, large; and made on a day that does not change."""
    file.header["made"]["date"] = "2026-01-01T00:00:00+00:00"
    kept = {name: x for name, x in file.tensors.items() if "sketch" not in name}
    return put_together(file._replace(tensors=kept))


def _old(file: File) -> File:
    """The same in format 1, which knew less."""
    new = {"checksums", "block_hashes", "label_hashes", "unit", "weights", "address", "tokenizer"}
    new |= {"content", "labels", "bare_name"}

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(x) for key, x in value.items() if key not in new}
        return [without(x) for x in value] if isinstance(value, list) else value

    header = {**without(file.header), "format": 1}
    kept = {k: x for k, x in file.tensors.items() if not k.endswith((".norms", ".offset"))}
    return File(1, header, kept)


# Edits. Each takes what it changes and a random generator, and gives it back changed.

# what json.dumps cannot write, by what stands for it
AS_TEXT = {
    "@inf": "1e999",
    "@deep": "[" * 100_000 + "]" * 100_000,
    "@deeper": '{"a":' * 3000 + "1" + "}" * 3000,
    "@digits": "9" * 5000,
    "@twice": '1, "samples": 1, "samples": 2',
}


def as_json(header: dict[str, Any]) -> str:
    text = json.dumps(header)
    for mark, words in AS_TEXT.items():
        text = text.replace(f'"{mark}"', words)
    return text


ODD = (
    *(-1, 0, 1, 2, 3, 4, -5, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63), -(10**400)),
    *(0.0, -0.0, 0.2, 0.5, 1.0, 2.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", "1", "none", "stream", "sample", "features", "0" * 16, "x" * 3000, "\ud800", "\x00\x1b["),
    *(True, False, None, [], {}, [[]], [None], [1, 2], [[0, 1]], [[0, 2], [0, 2]], {"": 0}),
    *([0] * 3000, [[[[[[[[1]]]]]]]], ["0" * 16] * 3, *AS_TEXT),
)
KEYS = ("", "x", "samples", "format", "task2vec", "unit", "outputs", "trace_gradients", "\ud800")
NAMES = (
    *("x", "", ".", "signs", "sketch_signs", "rows.0", "outputs.0", "9.features.norms", "-1.x.y"),
    *("0.features.norms", "0.features.sums", "0.features.total", "0.features.blocks.offset"),
    *("0.gradients.norms", "1.elementwise.norms", "0.features.whole.triangle", "0", "0.0", "é.x"),
    *("0.features.sketch.table", "1.features.whole.diagonal", "01.features.norms", "0.features"),
)


def edited_bytes(content: bytes, rng: random.Random) -> bytes:
    out, at = bytearray(content), rng.randrange(len(content))
    if rng.random() < 0.5:  # half of them in the table and the header
        at = rng.randrange(min(len(content), 8 + int.from_bytes(content[:8], "little")))
    many = rng.choice((1, 1, 1, 2, 8, 100))
    match rng.choice(("flip", "flip", "digit", "set", "insert", "delete", "truncate", "swap")):
        case "flip":
            out[at] ^= 1 << rng.randrange(8)
        case "digit":  # what is read as text stays text
            out[at] = rng.choice(b"0123456789")
        case "set":
            out[at : at + many] = rng.randbytes(len(out[at : at + many]))
        case "insert":
            out[at:at] = rng.choice((rng.randbytes(many), b" " * many, b"0"))
        case "delete":
            del out[at : at + many]
        case "truncate":
            del out[at:]
        case "swap":
            other = rng.randrange(len(content))
            out[at], out[other] = out[other], out[at]
    return bytes(out)


def edited_header(header: dict[str, Any], rng: random.Random) -> None:
    """Delete, add, rename, change or exchange a value somewhere in it."""
    if not header:
        return
    places = list(_places(header))
    where, key = rng.choice(places)
    odd = copy.deepcopy(rng.choice(ODD))
    match rng.choice(("delete", "add", "rename", "set", "set", "set", "near", "exchange")):
        case "delete":
            del where[key]
        case "add" if isinstance(where, dict):
            where[rng.choice(KEYS)] = odd
        case "add":
            where.insert(key, rng.choice((copy.deepcopy(where[key]), odd)))
        case "rename" if isinstance(where, dict):
            where[rng.choice((f"{key}2", *KEYS))] = where.pop(key)
        case "near" if type(where[key]) in (int, float):
            where[key] = rng.choice((where[key] + 1, where[key] - 1, -where[key], where[key] * 2))
        case "near" if isinstance(where[key], str):
            where[key] = where[key][rng.randrange(3) :] + rng.choice(("", "é", "0"))
        case "exchange":
            other, place = rng.choice(places)
            if not isinstance(where[key], list | dict) and not isinstance(
                other[place], list | dict
            ):
                where[key], other[place] = other[place], where[key]
        case _:
            where[key] = odd


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a header."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def edited_tensors(tensors: dict[str, Raw], rng: random.Random) -> None:
    """Change one tensor's name, dtype, shape or values, or take it away, or add one."""
    if not tensors:
        return
    name = rng.choice(sorted(tensors))
    dtype, shape, content = tensors[name]
    width = WIDTHS[dtype]
    kinds = ("delete", "add", "rename", "dtype", "shape", "size", "alike", *["values"] * 4)
    match rng.choice(kinds):
        case "delete":
            del tensors[name]
        case "add":
            tensors[rng.choice(NAMES)] = tensors[name]
        case "rename":
            tensors[rng.choice((*NAMES, *tensors))] = tensors.pop(name)
        case "dtype":
            other = rng.choice(sorted(WIDTHS))
            if WIDTHS[other] == width:
                tensors[name] = Raw(other, shape, content)
            elif len(content) % WIDTHS[other] == 0:
                tensors[name] = Raw(other, [len(content) // WIDTHS[other]], content)
        case "shape":
            shapes = [shape[::-1], [math.prod(shape)], [1, *shape], [*shape, 1]]
            tensors[name] = Raw(dtype, rng.choice(shapes), content)
        case "size":  # one entry of the first axis more or less, or none at all
            rows = shape[0] if shape else 1
            row = len(content) // max(1, rows)
            rows = max(0, rng.choice((rows + 1, rows - 1, 0)))
            content = (content + b"\0" * row)[: rows * row]
            tensors[name] = Raw(dtype, [rows, *shape[1:]], content)
        case "values":  # one of them, or all
            count = rng.choice((1, 1, 1, len(content) // width))
            at = width * rng.randrange(max(1, len(content) // width - count + 1))
            new = content[:at] + _value(dtype, rng) * count + content[at + width * count :]
            tensors[name] = Raw(dtype, shape, new[: len(content)])
        case "alike":  # all values from one on, in every layer and kind
            at, value = width * rng.randrange(max(1, len(content) // width)), _value(dtype, rng)
            for key, x in tensors.items():
                if key.split(".", 2)[2:] == name.split(".", 2)[2:]:
                    more = value * (max(0, len(x.content) - at) // width)
                    tensors[key] = x._replace(content=x.content[:at] + more)


def _value(dtype: str, rng: random.Random) -> bytes:
    code = {"F32": "<f", "F64": "<d"}.get(dtype)
    if code is None:
        width = WIDTHS[dtype]
        low = bytes([0] * (width - 1) + [0x80])
        return rng.choice((low, b"\xff" * width, b"\0" * width, rng.randbytes(width)))
    odd = (math.nan, math.inf, -math.inf, -1.0, -1e-30, 0.0, -0.0, 1e-45, 3e38, 1.0, 1e-30, 1e30)
    return struct.pack(code, rng.choice(odd))


def edited(content: bytes, kind: str, rng: random.Random) -> bytes:
    """A file with one to three edits of a kind."""
    times = rng.choice((1, 1, 1, 2, 3))
    if kind == "bytes":
        for _ in range(times):
            content = edited_bytes(content, rng) if content else content
        return content
    if content.startswith(b"{"):  # JSON through and through
        header = json.loads(content)
        for _ in range(times):
            edited_header(header, rng)
        return as_json(header).encode()
    file = taken_apart(content)
    for _ in range(times):
        if kind == "header":
            edited_header(file.header, rng)
        else:
            edited_tensors(file.tensors, rng)
    return put_together(file)


# What must be so.


class Wrong(AssertionError):  # noqa: N818 - it is a finding
    """A file that was neither refused nor right."""


def outcome(content: bytes, original: bytes, kind: str, partly: bool, folder: Path) -> str:
    """What loading a file comes to, one of refused, equal, other; or an error."""
    path, again = folder / "case.rsm", folder / "again.rsm"
    load = _loader(original, partly)
    path.write_bytes(content)
    try:
        found = load(path)
    except FormatError:
        return "refused"
    if _loaded(original, partly) == found:
        return "equal"
    if kind == "bytes" and load != rs.Comparison.load:
        raise Wrong("damage was not noticed")
    if isinstance(found, rs.Representation):
        holds_what_is_documented(found)
        used(found, path)
    elif isinstance(found, TaskEmbedding):
        _settle(lambda: (repr(found), found.complexity(), found.distance(found)))
    else:
        _settle(lambda: (repr(found), found.summary(), found.mean(), found.match()))
    found.save(again)
    if _loader(original, False)(again) != found:
        raise Wrong("saved and loaded it is another")
    return "other"


def _loader(original: bytes, partly: bool) -> Callable[[Path], Any]:
    if original.startswith(b"{"):
        return rs.Comparison.load
    if b"task2vec" in original[:2000]:
        return TaskEmbedding.load
    return partial(rs.load, layers=[0]) if partly else rs.load


@functools.lru_cache(maxsize=64)
def _loaded(original: bytes, partly: bool) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "original.rsm")
        path.write_bytes(original)
        return _loader(original, partly)(path)


def used(rep: rs.Representation, path: Path) -> None:
    """What people do with a Representation ends in a result or in an error of the package."""
    repr(rep)
    json.dumps(file_facts(path))
    kernel = "product" if rep.settings.gradients else "features"
    _settle(lambda: rs.compare(rep, rep, kernel=kernel).summary())
    _settle(lambda: rs.adaptation(rep, kernel=kernel))


def _settle(work: Callable[[], Any]) -> None:
    with contextlib.suppress(ResemblanceError):
        work()


def holds_what_is_documented(rep: rs.Representation) -> None:
    """Dtypes and shapes by docs/reference/format.md, written out a second time."""
    s, k = rep.settings, len(rep.block_sizes)
    kinds = ["features", *["gradients"] * s.gradients, *["elementwise"] * s.elementwise]
    assert rep.layers
    assert rep.samples > 0
    assert len(rep.block_numbers) == k
    assert sum(rep.block_sizes) <= rep.samples
    assert s.tokens == 1 or s.unit == "token"
    assert k % s.tokens == 0
    if rep.rows is not None:
        for rows in (rep.rows.sequence, rep.rows.position):
            _is(rows, torch.int64, k, s.block)
            assert [int((row >= 0).sum()) for row in rows] == list(rep.block_sizes)
    if rep.outputs is not None:
        rows, c = sum(rep.block_sizes), rep.outputs.classes
        assert c >= 2
        for name, x in rep.outputs.tensors().items():
            assert len(x) == rows
            assert x.dtype == (
                torch.int64 if name in ("top", "others", "labels") else torch.float32
            )
            assert not x.is_floating_point() or not x.isnan().any()
        assert (rep.outputs.every is not None) == (c <= 1024)
    for layer in rep:
        assert list(layer.kinds) == kinds
        assert (layer.products is None) != s.gradients
        assert (layer.signs is not None) == (s.buckets > 0)
        if layer.signs is not None:
            _is(layer.signs, torch.float32, s.buckets)
        for kind in kinds:
            kept = layer.recorded(kind)
            assert type(kept.trace) is float
            assert 0 <= kept.trace < math.inf
            assert kept.blocks is None or kept.whole is None
            assert (kept.blocks is None and kept.whole is None) == (s.blocks == 0)
            if kept.blocks is not None or kept.whole is not None:
                blocks = kept.whole.kernel if kept.whole else kept.blocks
                count, b = (1, rep.samples) if kept.whole else (k, s.block)
                _is(blocks.triangle, torch.int16, count, b * (b - 1) // 2)
                assert not (blocks.triangle == -(2**15)).any()
                _is(blocks.diagonal, torch.float32, count, b)
                assert (blocks.diagonal >= 0).all()
                if blocks.offset is not None:
                    _is(blocks.offset, torch.float32, count, b)
            assert (kept.buckets is None) == (s.buckets == 0)
            if kept.buckets is not None:
                _is(kept.buckets.triangle, torch.uint8, s.buckets * (s.buckets - 1) // 2, 3)
                _is(kept.buckets.diagonal, torch.float32, s.buckets)
                assert (kept.buckets.diagonal >= 0).all()
                _is(kept.buckets.mean, torch.float32, s.buckets)
                assert type(kept.buckets.mean_norm) is float
            if kept.sums is not None:
                width = min(layer.dim, s.max_dim or layer.dim)
                _is(kept.sums.table, torch.float32, s.buckets, width)
                _is(kept.sums.total, torch.float64, width)
            if kept.norms is not None:
                assert kept.norms.dtype == torch.float32
                assert kept.norms.ndim == 1
                assert not ((kept.norms < 0) | kept.norms.isinf()).any()
            if kept.sketch is not None:
                _is(kept.sketch.table, torch.float32, 128, 256)
                _is(kept.sketch.total, torch.float64, 256)


def _is(x: torch.Tensor, dtype: torch.dtype, *shape: int) -> None:
    assert x.dtype == dtype
    assert tuple(x.shape) == shape
    assert not x.is_floating_point() or bool(x.isfinite().all())


# Running them.

KINDS = {"bytes": 8, "header": 2, "tensors": 1}  # and how often each


class Case(NamedTuple):
    name: str  # of the file
    kind: str
    partly: bool  # one layer is read alone
    content: bytes


def case(
    number: int, files: dict[str, bytes], seed: int = 0, kinds: dict[str, int] = KINDS
) -> Case:
    rng = random.Random(f"{seed} {number}")
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    weights = [0.1 if len(content) > 20_000 else 1 for content in files.values()]
    name = rng.choices(list(files), weights)[0]
    partly = rng.random() < 0.2
    return Case(name, kind, partly, edited(files[name], kind, rng))


def run(
    numbers: range, files: dict[str, bytes], seed: int = 0, kinds: dict[str, int] = KINDS
) -> tuple[Counter[tuple[str, ...]], list[dict[str, Any]]]:
    """How often each kind of edit came to what, and what should not have been."""
    counts: Counter[tuple[str, ...]] = Counter()
    wrong = []
    memory = Path("/dev/shm")  # where there is one, nothing goes to a disk
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.exists() else None) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for number in numbers:
            made = case(number, files, seed, kinds)
            try:
                found = outcome(
                    made.content, files[made.name], made.kind, made.partly, Path(folder)
                )
            except Exception as error:
                found = "wrong"
                trace = traceback.format_exc()
                wrong.append({"case": number, "error": repr(error)[:300], "trace": trace})
            counts[made.name, made.kind, found] += 1
    return counts, wrong


def shown(
    counts: Counter[tuple[str, ...]], at: int, held: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """The counts by kind of edit (1) or by file (0), and what they came to, added to others."""
    out = copy.deepcopy(held)
    for key, count in counts.items():
        row = out.setdefault(key[at], {})
        row[key[2]] = row.get(key[2], 0) + count
    return out


_MEMORY = 8 * 2**30  # bytes
_given: dict[str, Any] = {}  # to a process, once: its tasks are small, and can be dropped


def _begin(files: dict[str, bytes], seed: int) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))  # or a case takes the machine down
    _given.update(files=files, seed=seed)


def _work(numbers: range) -> tuple[Counter[tuple[str, ...]], list[dict[str, Any]]]:
    return run(numbers, **_given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after, if not done")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=HERE / "results/fuzz_files.json")
    parser.add_argument("--go-on", action="store_true", help="add to the cases in the file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = valid_files()
    if options.only is not None:
        counts, wrong = run(range(options.only, options.only + 1), files, options.seed)
        print(*counts, *(one["trace"] for one in wrong), sep="\n")
        return bool(wrong)
    step = 1000
    held = json.loads(options.out.read_text()) if options.go_on else NOTHING
    first = range(held["cases"], options.cases, step)
    chunks = [range(i, min(i + step, options.cases)) for i in first]
    total: Counter[tuple[str, ...]] = Counter()
    bad: list[dict[str, Any]] = []
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes, _begin, (files, options.seed)) as pool:
        for done, (counts, wrong) in enumerate(pool.imap(_work, chunks), 1):
            total += counts
            bad += wrong
            for one in wrong:
                print(f"case {one['case']}: {one['error']}", flush=True)
            if done % 20 == 0 or done == len(chunks):
                cases, seconds = sum(total.values()), time.perf_counter() - start
                print(f"{cases:,} cases, {seconds:,.0f} s, {len(bad)} wrong", flush=True)
            if time.perf_counter() - start > 60 * options.minutes:
                break
    result = {
        "what": "outcomes of loading edited files",
        "cases": held["cases"] + sum(total.values()),
        "seed": options.seed,
        "seconds": held["seconds"] + round(time.perf_counter() - start),
        "wrong": held["wrong"] + [{key: one[key] for key in ("case", "error")} for one in bad],
        "by kind of edit": shown(total, 1, held["by kind of edit"]),
        "by file": shown(total, 0, held["by file"]),
        "environment": {
            "torch": torch.__version__,
            "safetensors": safetensors.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "processes": options.processes,
            "date": str(date.today()),
        },
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("by kind of edit", "by file")}, indent=1))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
