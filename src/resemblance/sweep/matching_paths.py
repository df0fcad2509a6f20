"""Patterns that stand for all the files or folders that match them: `runs/*/epoch-*.pt`."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Literal

from ..errors import DataError

_ONLY_NAMES = ("torchvision:", "timm:")  # in which a star would be a character
_WANTED = {
    "model": "a folder of Hugging Face's, with config.json in it",
    "weights": "a file",
    "data": "a file or folder",
}
_REMEDY = (
    "; files of weights need a network around them: write model: FILE.py:FUNCTION and weights: {}"
)


def expanded(address: str, base: Path, kind: Literal["model", "weights", "data"]) -> list[str]:
    """The addresses that an address with a pattern stands for, numbers in them in order.

    Paths are relative to a folder. Of models, those of folders that match begin with `hf:`.
    """
    path = address.removeprefix("hf:")
    plain = not glob.has_magic(path) or ".py:" in path or path.startswith(_ONLY_NAMES)
    if plain or (base / path).exists():  # a name may have brackets
        return [address]
    there = sorted(glob.glob(path, root_dir=base, recursive=True), key=_in_order)
    found = [each for each in there if _is(base / each, kind)]
    if not found:
        files = kind == "model" and any((base / each).is_file() for each in there)
        raise DataError(
            f"{address!r} matches no {_WANTED[kind].removeprefix('a ')} below {base}"
            + (_REMEDY.format(path) if files else "; correct it, or leave it out")
        )
    prefix = "hf:" if kind == "model" or address != path else ""
    return [f"{prefix}{each}" for each in found]


def _is(path: Path, kind: str) -> bool:
    if kind == "model":
        return (path / "config.json").is_file()
    return path.is_file() if kind == "weights" else True


def _in_order(path: str) -> list[tuple[int, int, str]]:
    """Numbers by their size: epoch 9 before epoch 10.

    >>> sorted(["b/10", "b/9", "a"], key=_in_order)
    ['a', 'b/9', 'b/10']
    """
    parts = re.split(r"(\d+)", path)
    return [(0, int(x), x) if x.isdecimal() else (1, 0, x) for x in parts]
