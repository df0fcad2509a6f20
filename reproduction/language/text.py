"""Real text that ships with installed packages, as bytes in one file.

    python -m reproduction.language.text --to FILE [--quick]

Three kinds: Python source, documentation (.rst and .md files, package descriptions, and docstrings
of source files that are not in the first kind) and C and C++ headers. Each has a part to learn from
and a held-out part of other *folders*, as files of one folder often repeat each other. Files that
are the same but for white space are taken once. Order, split and cut are functions of a seed and of
the files' relative paths.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import inspect
import json
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KINDS = ("python", "documentation", "c")
SEED, HELD_OUT = 0, 0.05  # of the folders
LEARNT = {"python": 25_000_000, "documentation": 6_000_000, "c": 6_000_000}  # bytes
HELD = {"python": 1_000_000, "documentation": 400_000, "c": 400_000}
QUICK_SHARE = 0.02
_SMALLEST, _LARGEST = 300, 400_000  # bytes of a file: no stubs, no tables of data
_SHORTEST_DOCSTRING = 200
_BETWEEN = "\n\n\n"


@dataclass(frozen=True)
class Text:
    """Bytes of each kind: to learn from, and held out."""

    learnt: dict[str, np.ndarray]
    held: dict[str, np.ndarray]
    facts: dict[str, dict[str, object]]

    def described(self) -> dict[str, dict[str, object]]:
        """The facts, and what a byte costs whom it is known only how frequent bytes are."""
        return {
            kind: {**facts, "nats a byte by frequency": round(entropy(self.held[kind]), 3)}
            for kind, facts in self.facts.items()
        }

    def save(self, path: Path) -> None:
        arrays = {kind: self.learnt[kind] for kind in KINDS}
        arrays |= {f"{kind}_held": self.held[kind] for kind in KINDS}
        draft = path.with_suffix(".tmp.npz")
        np.savez_compressed(draft, facts=np.array(json.dumps(self.facts)), **arrays)
        draft.rename(path)

    @staticmethod
    def load(path: Path) -> Text:
        with np.load(path) as file:
            return Text(
                {kind: file[kind] for kind in KINDS},
                {kind: file[f"{kind}_held"] for kind in KINDS},
                json.loads(str(file["facts"])),
            )


def entropy(data: np.ndarray) -> float:
    """Of single bytes, in nats.

    >>> round(entropy(np.array([7, 7, 9, 9])), 3)
    0.693
    """
    share = np.bincount(data) / len(data)
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


@dataclass(frozen=True)
class Source:
    """A file, named by its place in its package."""

    path: Path
    name: str

    @property
    def package(self) -> str:
        return self.name.split("/")[0]

    @property
    def is_held(self) -> bool:
        folder = self.name.rpartition("/")[0]
        return _draw(f"folder {folder}") < HELD_OUT

    def text(self) -> str | None:
        """What it holds, if that is text of a usual size."""
        if not _SMALLEST <= self.path.stat().st_size <= _LARGEST:
            return None
        try:
            found = self.path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            return None
        return None if "\0" in found else found.replace("\r\n", "\n")


def gather(share: float = 1.0) -> Text:
    """All three kinds, cut to a share of their usual sizes."""
    python = _Filling("python", share)
    source = _sources((".py",))
    python.take((one, one.text()) for one in source)
    documentation = _Filling("documentation", share)
    documentation.take((one, one.text()) for one in _sources((".rst", ".md", "METADATA")))
    others = (one for one in source if one.name not in python.taken)
    documentation.take((one, _docstrings(one)) for one in others)
    c = _Filling("c", share)
    c.take((one, one.text()) for one in _sources((".h", ".hpp", ".cuh")))
    made = dict(zip(KINDS, (python, documentation, c), strict=True))
    return Text(
        {kind: filling.bytes(held=False) for kind, filling in made.items()},
        {kind: filling.bytes(held=True) for kind, filling in made.items()},
        {kind: filling.facts() for kind, filling in made.items()},
    )


class _Filling:
    """One kind of text, filled file by file up to its sizes."""

    def __init__(self, kind: str, share: float) -> None:
        self.room = {False: int(LEARNT[kind] * share), True: int(HELD[kind] * share)}
        self.taken: set[str] = set()
        self._seen: set[bytes] = set()
        self._parts: dict[bool, list[bytes]] = {False: [], True: []}
        self._sizes = {False: 0, True: 0}
        self._packages: Counter[str] = Counter()

    def take(self, files: Iterable[tuple[Source, str | None]]) -> None:
        """Files that are not there yet, until both parts are full."""
        for source, text in files:
            if all(self._sizes[held] >= room for held, room in self.room.items()):
                return
            held = source.is_held
            if text is None or self._sizes[held] >= self.room[held]:
                continue
            content = hashlib.blake2b("".join(text.split()).encode()).digest()
            if content in self._seen:
                continue
            self._seen.add(content)
            self.taken.add(source.name)
            data = (text.strip() + _BETWEEN).encode()
            self._parts[held].append(data)
            self._sizes[held] += len(data)
            if not held:
                self._packages[source.package] += len(data)

    def bytes(self, *, held: bool) -> np.ndarray:
        joined = b"".join(self._parts[held])[: self.room[held]]
        return np.frombuffer(joined, np.uint8)

    def facts(self) -> dict[str, object]:
        total = max(1, sum(self._packages.values()))
        return {
            "bytes": len(self.bytes(held=False)),
            "held-out bytes": len(self.bytes(held=True)),
            "files": len(self._parts[False]),
            "held-out files": len(self._parts[True]),
            "packages": {p: round(n / total, 3) for p, n in self._packages.most_common(5)},
        }


def _sources(endings: tuple[str, ...]) -> list[Source]:
    """Files with such endings in all packages, in an order drawn by their names."""
    found = [one for one in _installed() if one.name.endswith(endings)]
    return sorted(found, key=lambda one: _draw(f"file {one.name}"))


@functools.cache
def _installed() -> list[Source]:
    """All files of the standard library and of installed packages, each once."""
    found: dict[Path, Source] = {}
    for place in ("purelib", "platlib", "stdlib"):
        root = sysconfig.get_path(place)
        for folder, inside, files in os.walk(root):
            if place == "stdlib" and "site-packages" in inside:
                inside.remove("site-packages")
            within = Path(folder).relative_to(root).as_posix()
            prefix = "python" if place == "stdlib" else ""
            for file in files:
                path = Path(folder, file)
                name = "/".join(part for part in (prefix, within, file) if part not in ("", "."))
                found.setdefault(path, Source(path, name))
    return list(found.values())


def _docstrings(source: Source) -> str | None:
    """The longer docstrings of a Python file."""
    text = source.text()
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in old sources
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (
        ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, kinds)
    )
    long = [inspect.cleandoc(one) for one in found if one and len(one) >= _SHORTEST_DOCSTRING]
    return "\n\n".join(long) if long else None


def _draw(name: str) -> float:
    """A number from 0 to 1 that belongs to a name."""
    digest = hashlib.blake2b(f"{SEED} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of it")
    chosen = parser.parse_args(words)
    chosen.to.parent.mkdir(parents=True, exist_ok=True)
    text = gather(QUICK_SHARE if chosen.quick else 1.0)
    text.save(chosen.to)
    print(json.dumps(text.facts, indent=1))
    print(f"{chosen.to}: {chosen.to.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
