"""Checkpoints of a recording pass: when they are written, their files, and how a pass resumes.

A checkpoint is a recording of the blocks done so far, with its accumulators and a hash of each of
these blocks. Each process of a job writes its own file: the path given, with `.1`, `.2`, ...
appended to it for all but the first. A resumed job may have more processes or fewer: one
that takes over a file adds to what it holds.

With a checkpoint, a pass runs in segments (`CheckpointedPass`). After a block, the sums of the
current segment are merged with the earlier ones and written, but no more often than the interval
asked for, and for at most a fiftieth of the time.

A resumed pass refuses data that changed (`with_verification`). Recorded blocks are read again,
without running the model, and compared with their hashes: all of them if samples are in memory
(arrays, or batches of an iterable, which are read again anyway). For a data set on disk, a seeded
sample of blocks is compared: 1 % of the blocks done, but at least 8 and at most 64. A change
confined to other blocks is not noticed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from .._data.batches import take_samples
from .._data.sample_hashes import SampleFingerprints
from .._data.sources import Batch, Share, Source
from .._models.run import Prepare
from .._utils.atomic_files import check_writable
from .._utils.hashing import REREAD, random_bits
from ..errors import FormatError, MismatchError
from ..representation import tensor_file
from ..representation.file_format import load_with_checkpoint, save
from ..representation.merge import join_parts
from ..representation.representation import Representation
from ..representation.schema import MAPPING, check_part, list_of, whole
from .accumulators import Accumulators


@dataclass(frozen=True)
class RecordedBlocks:
    """Blocks that are recorded, and which they are."""

    part: Representation
    hashes: Mapping[int, int]  # by the block's number, 32 bits of its samples and labels


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
        self._own = _numbered_path(self._path, self._rank)
        self._old: list[Path] = []  # that this process takes over, and so removes
        check_writable(self._own)

    def take_over(self) -> tuple[RecordedBlocks | None, np.ndarray]:
        """What this process resumes from, and the hashes of blocks that any process has done.

        The latter lie at the blocks' numbers, (last block + 1,) uint32, with 0 for others.
        """
        numbers = checkpoint_numbers(self._path)
        found = {number: self._read(_numbered_path(self._path, number)) for number in numbers}
        own = [number for number in numbers if number % self._count == self._rank]
        self._old = [_numbered_path(self._path, number) for number in own if number != self._rank]
        for number in reversed(numbers):  # whoever took it over died before removing it
            others = [found[other].hashes.keys() for other in found if other != number]
            if any(found[number].hashes.keys() <= held for held in others):
                del found[number]
        every = _all_hashes(found.values())
        if sum(len(progress.hashes) for progress in found.values()) > len(every):
            raise FormatError(
                f"the checkpoints {self._path}* contain some blocks twice; delete those of an "
                "earlier run"
            )
        parts = [found[number] for number in own if number in found]
        return _join(parts) if parts else None, _hash_array(every)

    def write(self, progress: RecordedBlocks) -> None:
        """Replace this process's checkpoint, and remove those that it took over."""
        content = {"of": self._of, "hashes": _hash_array(progress.hashes).tolist()}
        save(progress.part, self._own, checkpoint=content)
        while self._old:
            self._old.pop().unlink(missing_ok=True)

    def _read(self, file: Path) -> RecordedBlocks:
        part, content = load_with_checkpoint(file)
        if content is None:
            raise FormatError(
                f"{file} is a recording, not a checkpoint; choose a different file for the "
                "checkpoint"
            )
        try:
            check_part("checkpoint", content, _CHECKPOINT_RULES)
        except FormatError as error:
            raise FormatError(f"{file} is not a readable checkpoint ({error})") from error
        wanted = {"Resemblance version": __version__, "torch version": torch.__version__}
        stored = {"Resemblance version": part.made.resemblance, "torch version": part.made.torch}
        for name, value in (wanted | self._of).items():
            if (before := (content["of"] | stored).get(name)) != value:
                raise MismatchError(
                    f"{file} is the checkpoint of a different recording: {name} was {before!r} and "
                    f"is now {value!r}. Resume with the same model, data, settings and versions, "
                    "or delete the checkpoint"
                )
        return RecordedBlocks(part, {i: x for i, x in enumerate(content["hashes"]) if x})


_CHECKPOINT_RULES = {"of": MAPPING, "hashes": list_of(whole("below 2³²", below=2**32))}


def checkpoint_numbers(path: str | os.PathLike[str]) -> list[int]:
    """The processes that left a checkpoint of this name."""
    path = Path(path)
    named = re.compile(re.escape(path.name) + r"\.([1-9][0-9]*)")
    others = [named.fullmatch(file.name) for file in path.parent.glob(f"{path.name}.*")]
    return sorted([*([0] if path.exists() else []), *(int(x[1]) for x in others if x)])


def remove_checkpoints(path: str | os.PathLike[str]) -> None:
    """Remove the checkpoints of a pass whose result is safe, and nothing but checkpoints."""
    for file in (_numbered_path(Path(path), number) for number in checkpoint_numbers(path)):
        with contextlib.suppress(FormatError):
            header, _ = tensor_file.read_tensors(file, lambda *_: [])
            if "checkpoint" in header:
                file.unlink(missing_ok=True)


def _numbered_path(path: Path, number: int) -> Path:
    """The file of one process."""
    return path if not number else path.with_name(f"{path.name}.{number}")


def _all_hashes(parts: Iterable[RecordedBlocks]) -> dict[int, int]:
    return {block: value for part in parts for block, value in part.hashes.items()}


def _join(parts: Sequence[RecordedBlocks]) -> RecordedBlocks:
    return RecordedBlocks(join_parts([x.part for x in parts]), _all_hashes(parts))


def _hash_array(hashes: Mapping[int, int]) -> np.ndarray:
    """Hashes at their blocks' numbers, with 0 where a block is not recorded."""
    out = np.zeros(max(hashes, default=-1) + 1, np.uint32)
    out[list(hashes)] = list(hashes.values())
    return out


_VERIFIED_FRACTION = 0.01  # of the recorded blocks is read again,
_MIN_VERIFIED_BLOCKS, _MAX_VERIFIED_BLOCKS = 8, 64  # but at least and at most this many
_MSG_DATA_CHANGED = (
    "the data changed since the checkpoint was written: {}. Resume with the same data, or delete "
    "the checkpoint and record again"
)


def with_verification(
    source: Source,
    hashes: np.ndarray,  # (blocks,) uint32, 0 where a block is not done
    prepare: Prepare,  # batches as they are hashed in a pass
    seed: int,
) -> Source:
    """The source, whose batches raise `MismatchError` once a block differs from its hash."""
    again = choose_verified_blocks(hashes != 0, seed, all_of_them=source.in_memory)
    if not again.any():
        return source

    def batches(batch_size: int, share: Share) -> Generator[Batch, None, None]:
        share = replace(share, done=(hashes != 0) & ~again)
        own = share.of(len(hashes))
        left = set(own[again[own]].tolist())
        seen = SampleFingerprints("", sum_blocks=True)
        for batch in source.batches(batch_size, share):
            for part, done in _split_verified(batch, again):
                if not done:
                    yield part
                    continue
                prepared = prepare(part)
                seen.begin(prepared.samples)
                seen.end(prepared, np.ones(len(part.indices), bool))
                seen.settle()
                start = 0
                for piece in part.pieces:
                    if piece.ends and seen.block_hash(piece.block) != hashes[piece.block]:
                        what = (
                            f"block {piece.block}, which contains sample {part.name(start)}, now "
                            "has different samples or labels"
                        )
                        raise MismatchError(_MSG_DATA_CHANGED.format(what))
                    start += len(piece.indices)
                left.difference_update(piece.block for piece in part.pieces if piece.ends)
        if left:
            what = f"the stream ends before block {min(left)}, which was recorded"
            raise MismatchError(_MSG_DATA_CHANGED.format(what))

    return replace(source, batches=batches)


def choose_verified_blocks(
    done: np.ndarray, seed: int, *, all_of_them: bool = False
) -> np.ndarray:  # bool
    """Which of the blocks that are done to read again, the same in every process.

    >>> done = [np.ones(n, dtype=bool) for n in (5, 100, 5000, 50_000)]
    >>> [int(choose_verified_blocks(each, seed=0).sum()) for each in done]
    [5, 8, 50, 64]
    """
    if all_of_them:
        return done
    numbers = np.flatnonzero(done)
    share = int(_VERIFIED_FRACTION * len(numbers))
    count = min(max(_MIN_VERIFIED_BLOCKS, share), _MAX_VERIFIED_BLOCKS)
    out = np.zeros(len(done), bool)
    out[numbers[np.argsort(random_bits(seed, REREAD, numbers), kind="stable")[:count]]] = True
    return out


def _split_verified(batch: Batch, again: np.ndarray) -> Iterator[tuple[Batch, bool]]:
    """Runs of a batch's pieces, and whether they are read again."""
    start = 0
    for done, run in itertools.groupby(
        batch.pieces, lambda piece: piece.block < len(again) and bool(again[piece.block])
    ):
        pieces = list(run)
        stop = start + sum(len(piece.indices) for piece in pieces)
        samples = take_samples(batch.samples, slice(start, stop))
        yield Batch(pieces, samples, names=batch.names[start:stop]), done
        start = stop


# as long as writing takes, a pass must have gone on for its share to be a fiftieth
_MIN_PASS_TO_WRITE_TIME = 49
_ASSUMED_WRITE_RATE = 5e7  # bytes of accumulators a second, until one was timed


class CheckpointedPass(Accumulators):
    """Accumulators of a pass in segments: the sums of each are written, then they begin anew."""

    def __init__(
        self,
        files: CheckpointFiles,
        before: RecordedBlocks | None,  # from an earlier start
        every: float,  # seconds
        **how: Any,  # as for `Accumulators`
    ) -> None:
        super().__init__(**how)
        self._files, self._before, self._every = files, before, every
        self._began = self._since = time.monotonic()  # the pass, and since the last checkpoint
        self._cost: float | None = None  # seconds that writing it took
        self._spent = 0.0  # seconds that writing took in all
        self._blocks: list[int] = []  # of this segment, that are whole

    def end(self) -> None:
        """Finish the batch, and after a block write a checkpoint if it is time."""
        super().end()
        self._blocks += [piece.block for piece in self._pieces if piece.ends]
        if self._pieces[-1].ends and self._due() and self.samples:
            began = time.monotonic()
            self._files.write(self._close())
            self._start()
            self._since = time.monotonic()
            self._cost = self._since - began
            self._spent += self._cost

    def _due(self) -> bool:
        now, spent = time.monotonic(), self._spent
        cost = self.nbytes / _ASSUMED_WRITE_RATE if self._cost is None else self._cost
        paid_for = now - self._began >= _MIN_PASS_TO_WRITE_TIME * (spent + cost) + spent
        return paid_for and now - self._since >= self._every

    def _close(self) -> RecordedBlocks:
        """The segment with what came before it."""
        part = super().result()
        assert part is not None
        parts = [RecordedBlocks(part, self.block_hashes(self._blocks))]
        if self._before is not None:
            parts.insert(0, self._before)
        self._before, self._blocks = _join(parts), []
        return self._before

    def result(self) -> Representation | None:
        """All of the pass, with its accumulators where parts were joined; None of no blocks."""
        if self.samples or (self._before is None and self._blocks):
            return self._close().part
        if self._before is None:
            return None
        part = self._before.part
        return replace(part, data=replace(part.data, skipped=part.data.skipped + self.skipped))
