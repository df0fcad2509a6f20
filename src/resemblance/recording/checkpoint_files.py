"""What a pass has recorded so far, in files from which it can go on after its process has died.

A checkpoint is a recording of some blocks, with its accumulators, and the numbers of these blocks.
Each process of a job has a file of its own: the one named, and `.1`, `.2`, ... after it. The next
start may have more processes or fewer: whoever takes over a file adds to what it holds.
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._atomic_files import check_writable
from ..errors import FormatError, MismatchError
from ..representation import container
from ..representation.file_format import opened, save
from ..representation.merging import joined
from ..representation.representation import Representation
from ..representation.schema import COUNT, MAPPING, TEXT, check_part


@dataclass(frozen=True)
class Progress:
    """Blocks that are recorded, and which they are."""

    part: Representation
    done: np.ndarray  # (blocks,) bool, of all blocks up to the last that is done


class CheckpointFiles:
    """The checkpoints of one pass: `take_over` what there is, and `write` what there is more."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        of: Mapping[str, Any],  # what a pass must have in common with the one it goes on with
        process: tuple[int, int] = (0, 1),  # its rank, of so many
    ) -> None:
        self._path, self._of = Path(path), dict(of)
        self._rank, self._count = process
        self._own = self._named(self._rank)
        self._old: list[Path] = []  # that this process takes over, and so removes
        check_writable(self._own)

    def take_over(self) -> tuple[Progress | None, np.ndarray]:
        """What this process goes on from, and which blocks any process has done."""
        found = {number: self._read(self._named(number)) for number in numbers(self._path)}
        own = [number for number in sorted(found) if number % self._count == self._rank]
        self._old = [self._named(number) for number in own if number != self._rank]
        for number in _superseded(found):
            del found[number]
        done = together([progress.done for progress in found.values()])
        if sum(int(progress.done.sum()) for progress in found.values()) != int(done.sum()):
            raise FormatError(
                f"the checkpoints {self._path}* hold some blocks twice; delete those of an older "
                "pass"
            )
        parts = [found[number] for number in own if number in found]
        if not parts:
            return None, done
        return Progress(joined([x.part for x in parts]), together([x.done for x in parts])), done

    def write(self, progress: Progress) -> None:
        """Replace this process's checkpoint, and remove those that it took over."""
        content = {"of": self._of, "blocks": len(progress.done), "done": _packed(progress.done)}
        save(progress.part, self._own, checkpoint=content)
        while self._old:
            self._old.pop().unlink(missing_ok=True)

    def _named(self, number: int) -> Path:
        return _named(self._path, number)

    def _read(self, file: Path) -> Progress:
        part, content = opened(file)
        if content is None:
            raise FormatError(
                f"{file} is a recording, not a checkpoint of a pass; name another file for that"
            )
        try:
            check_part("checkpoint", content, _RULES)
            done = _unpacked(content["done"], content["blocks"])
        except (FormatError, ValueError, zlib.error) as error:
            raise FormatError(f"{file} is no checkpoint that can be read ({error})") from error
        for name, value in self._of.items():
            if content["of"].get(name) != value:
                raise MismatchError(
                    f"{file} is the checkpoint of another pass: {name} was "
                    f"{content['of'].get(name)!r} and is {value!r}; go on with the same model, "
                    "data and settings, or delete it"
                )
        return Progress(part, done)


_RULES = {"of": MAPPING, "blocks": COUNT, "done": TEXT}


def numbers(path: str | os.PathLike[str]) -> list[int]:
    """The processes that left a checkpoint of this name."""
    path = Path(path)
    named = re.compile(re.escape(path.name) + r"\.([1-9][0-9]*)")
    others = [named.fullmatch(file.name) for file in path.parent.glob(f"{path.name}.*")]
    return sorted([*([0] if path.exists() else []), *(int(x[1]) for x in others if x)])


def remove(path: str | os.PathLike[str]) -> None:
    """Remove the checkpoints of a pass whose result is safe, and nothing but checkpoints."""
    for file in (_named(Path(path), number) for number in numbers(path)):
        if _is_checkpoint(file):
            file.unlink(missing_ok=True)


def _is_checkpoint(file: Path) -> bool:
    try:
        header, _ = container.read(file, lambda *_: [])
    except FormatError:
        return False
    return "checkpoint" in header


def _named(path: Path, number: int) -> Path:
    """The file of one process."""
    return path if not number else path.with_name(f"{path.name}.{number}")


def together(masks: list[np.ndarray]) -> np.ndarray:
    """The blocks that any mask has.

    >>> together([np.array([True]), np.array([False, False, True])]).tolist()
    [True, False, True]
    """
    out = np.zeros(max(map(len, masks), default=0), bool)
    for mask in masks:
        out[: len(mask)] |= mask
    return out


def _superseded(found: Mapping[int, Progress]) -> list[int]:
    """Files whose blocks another holds too: whoever took them over died before removing them."""
    out: list[int] = []
    for number in sorted(found, reverse=True):
        others = [found[other].done for other in found if other != number and other not in out]
        held = found[number].done
        if any(int(held.sum()) == int((held & _cut(other, len(held))).sum()) for other in others):
            out.append(number)
    return out


def _cut(mask: np.ndarray, length: int) -> np.ndarray:
    return together([mask, np.zeros(length, bool)])[:length]


def _packed(mask: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def _unpacked(text: str, blocks: int) -> np.ndarray:
    packed = base64.b64decode(text, validate=True)
    bits = np.frombuffer(zlib.decompressobj().decompress(packed, blocks // 8 + 1), np.uint8)
    return np.unpackbits(bits, count=blocks).astype(bool)
