"""Checkpoints on disk: taken over once, by whoever there is, and refused by other passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.errors import DataError, FormatError, MismatchError
from resemblance.recording.checkpoints import (
    CheckpointFiles,
    RecordedBlocks,
    checkpoint_numbers,
    remove_checkpoints,
)
from resemblance.representation.file_format import save

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
OF = {"seed": 0, "layers": ["features"]}
COUNT = 8  # blocks


def progress(*blocks):
    """What a process has that recorded these of eight shards, which are blocks of ten."""
    parts = [rs.record_arrays(X, data_id="x", block=10, shard=(i, COUNT)) for i in blocks]
    part = parts[0] if len(parts) == 1 else rs.merge(parts, keep_sums=True)
    return RecordedBlocks(part, {block: block + 1 for block in blocks})


def blocks_of(found):
    return sorted(found.hashes)


def test_what_is_written_is_taken_over(tmp_path):
    CheckpointFiles(tmp_path / "c", OF).write(progress(0, 3))
    found, hashes = CheckpointFiles(tmp_path / "c", OF).take_over()
    assert blocks_of(found) == [0, 3]
    assert found.hashes == {0: 1, 3: 4}
    assert hashes.tolist() == [1, 0, 0, 4]
    assert found.part.samples == 20
    assert found.part.block_numbers == (0, 3)


def test_nothing_is_there_at_first(tmp_path):
    found, done = CheckpointFiles(tmp_path / "c", OF).take_over()
    assert found is None
    assert not done.any()


@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_the_number_of_processes_may_change(tmp_path, before, after):
    for rank in range(before):
        files = CheckpointFiles(tmp_path / "c", OF, (rank, before))
        files.write(progress(rank, rank + 5) if rank < 3 else progress(rank))
    every = [CheckpointFiles(tmp_path / "c", OF, (rank, after)) for rank in range(after)]
    taken = [files.take_over() for files in every]
    own = [block for found, _ in taken if found is not None for block in blocks_of(found)]
    whole = np.flatnonzero(taken[0][1]).tolist()
    assert sorted(own) == whole
    assert len(whole) == before + min(before, 3)
    assert all(np.array_equal(done, taken[0][1]) for _, done in taken)
    for files, (found, _) in zip(every, taken, strict=True):
        if found is not None:
            files.write(found)
    assert set(checkpoint_numbers(tmp_path / "c")) <= set(range(after))
    again, done = CheckpointFiles(tmp_path / "c", OF).take_over()
    assert blocks_of(again) == np.flatnonzero(done).tolist() == whole


def test_a_file_that_was_taken_over_but_not_removed_counts_once(tmp_path):
    CheckpointFiles(tmp_path / "c", OF, (0, 2)).write(progress(0))
    CheckpointFiles(tmp_path / "c", OF, (1, 2)).write(progress(1))
    # one process took over both and died between writing its own and removing the other
    CheckpointFiles(tmp_path / "c", OF).write(progress(0, 1, 2))
    files = CheckpointFiles(tmp_path / "c", OF)
    found, done = files.take_over()
    assert blocks_of(found) == np.flatnonzero(done).tolist() == [0, 1, 2]
    files.write(found)
    assert checkpoint_numbers(tmp_path / "c") == [0]


def test_what_one_process_writes_is_not_removed_by_another(tmp_path):
    """A file whose blocks are held elsewhere has the name of the second process."""
    CheckpointFiles(tmp_path / "c", OF, (0, 2)).write(progress(0, 1))
    CheckpointFiles(tmp_path / "c", OF, (1, 2)).write(progress(1))
    first, second = (CheckpointFiles(tmp_path / "c", OF, (rank, 2)) for rank in range(2))
    before, _ = first.take_over()
    assert second.take_over()[0] is None
    second.write(progress(3))
    first.write(before)
    found, _ = CheckpointFiles(tmp_path / "c", OF).take_over()
    assert blocks_of(found) == [0, 1, 3]


def test_without_room_the_last_checkpoint_stays_whole(tmp_path):
    resource = pytest.importorskip("resource")
    files = CheckpointFiles(tmp_path / "c", OF)
    files.write(progress(0))
    before = (tmp_path / "c").read_bytes()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, most))
    try:
        with pytest.raises(DataError, match=r"cannot write .*c: file too large; expected a place"):
            files.write(progress(0, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (tmp_path / "c").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


def test_blocks_that_two_files_hold_are_refused(tmp_path):
    CheckpointFiles(tmp_path / "c", OF, (0, 2)).write(progress(0, 1))
    CheckpointFiles(tmp_path / "c", OF, (1, 2)).write(progress(1, 2))
    with pytest.raises(FormatError, match="contain some blocks twice"):
        CheckpointFiles(tmp_path / "c", OF).take_over()


def test_another_pass_is_refused_by_what_differs(tmp_path):
    CheckpointFiles(tmp_path / "c", OF).write(progress(0))
    with pytest.raises(MismatchError, match="different recording: seed was 0 and is now 1"):
        CheckpointFiles(tmp_path / "c", {**OF, "seed": 1}).take_over()


@pytest.mark.parametrize("what", ["resemblance", "torch"])
def test_a_checkpoint_of_a_different_version_is_refused(tmp_path, what):
    """Its sums may mean something else, and the result would claim one version for both."""
    written = progress(0)
    part = replace(written.part, made=replace(written.part.made, **{what: "9.9.9"}))
    CheckpointFiles(tmp_path / "c", OF).write(replace(written, part=part))
    with pytest.raises(MismatchError, match=rf"(?i:{what}) version was '9.9.9' and is now"):
        CheckpointFiles(tmp_path / "c", OF).take_over()


@pytest.mark.parametrize("hashes", [[1, -1], [1, 2**32], [1.0], "AAAA", None])
def test_a_checkpoint_with_other_hashes_is_refused(tmp_path, hashes):
    save(progress(0).part, tmp_path / "c", checkpoint={"of": OF, "hashes": hashes})
    with pytest.raises(FormatError, match="hashes must be a list, each a whole number below 2³²"):
        CheckpointFiles(tmp_path / "c", OF).take_over()


def test_a_recording_is_no_checkpoint_and_a_checkpoint_no_recording(tmp_path):
    rs.record_arrays(X, data_id="x").save(tmp_path / "rep.rsm")
    with pytest.raises(FormatError, match="is a recording, not a checkpoint"):
        CheckpointFiles(tmp_path / "rep.rsm", OF).take_over()
    CheckpointFiles(tmp_path / "c", OF).write(progress(0))
    with pytest.raises(FormatError, match="checkpoint of an unfinished recording"):
        rs.load(tmp_path / "c")


@pytest.mark.parametrize("at", [9, 400, -40])
def test_damage_is_seen(tmp_path, at):
    CheckpointFiles(tmp_path / "c", OF).write(progress(0))
    content = bytearray((tmp_path / "c").read_bytes())
    content[at] ^= 1
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(FormatError):
        CheckpointFiles(tmp_path / "c", OF).take_over()


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path):
    with pytest.raises(DataError, match="its folder does not exist"):
        CheckpointFiles(tmp_path / "none" / "c", OF)


def test_removing_takes_all_of_them_and_nothing_else(tmp_path):
    CheckpointFiles(tmp_path / "c", OF).write(progress(0))
    for name in ("c.1", "c.12", "c.0", "c.txt", "d"):
        (tmp_path / name).write_bytes((tmp_path / "c").read_bytes())
    (tmp_path / "c.2").write_text("no checkpoint")
    rs.record_arrays(X, data_id="x").save(tmp_path / "c.3")
    remove_checkpoints(tmp_path / "c")
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == ["c.0", "c.2", "c.3", "c.txt", "d"]
