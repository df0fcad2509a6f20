"""The file: whole or not at all, and damage noticed."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import resemblance as rs
from resemblance._utils import atomic_files as files
from resemblance.analysis.task2vec import TaskEmbedding
from resemblance.errors import DataError, FormatError
from resemblance.representation import file_format, tensor_file
from small import record

GOLDEN = Path(__file__).parents[1] / "golden"


def test_any_damaged_byte_is_noticed(tmp_path, rep):
    path = rep.save(tmp_path / "net.rsm")
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    places = {0, 7, 8, 9, len(content) - 1, *generator.integers(0, len(content), 60).tolist()}
    places |= {content.index(b'"crc32') + 12, content.index(b"trace_features") + 20}
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 0x05
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"damaged|not one of this package's|newer"):
            rs.load(path)


def test_equal_recordings_are_equal_files(rep):
    """safetensors writes two entries of metadata in a random order: half of these would differ."""
    assert len({file_format.representation_bytes(rep) for _ in range(20)}) == 1


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, rep, length):
    path = rep.save(tmp_path / "net.rsm")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FormatError, match="damaged, truncated or not a Representation"):
        rs.load(path)


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"no file at .*missing\.rsm"):
        rs.load(tmp_path / "missing.rsm")
    (tmp_path / "text.rsm").write_text("hello, hello, hello")
    with pytest.raises(FormatError, match="damaged, truncated or not a Representation"):
        rs.load(tmp_path / "text.rsm")
    save_file({"weight": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(FormatError, match="a safetensors file, but not one of this package's"):
        rs.load(tmp_path / "weights.safetensors")


def with_header(path, text):
    """A file with this text for its header, and a checksum that is right in format 2."""
    metadata = {"resemblance": text, "crc32": f"{zlib.crc32(text.encode()):08x}"}
    save_file({"signs": torch.zeros(3)}, path, metadata)
    return path


def test_a_file_that_another_process_removes_while_it_is_opened_is_missing(
    tmp_path, rep, monkeypatch
):
    path, is_file = tmp_path / "rep.rsm", Path.is_file
    rep.save(path)

    def then_removed(self):
        there = is_file(self)
        self.unlink()
        return there

    monkeypatch.setattr(Path, "is_file", then_removed)
    with pytest.raises(FormatError, match="no file at"):
        rs.load(path)


@pytest.mark.parametrize(
    "text",
    ["not json", '{"format": 2, "x": NaN}', "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000],
)
def test_a_header_that_is_not_json_is_damage(tmp_path, text):
    with pytest.raises(FormatError, match="is damaged: its header is not JSON that can be read"):
        rs.load(with_header(tmp_path / "odd.rsm", text))


@pytest.mark.parametrize("found", ['"1"', "0.2", "1.0", "1e999", "-5", "0", "true", "null", "[2]"])
def test_a_format_that_is_no_number_of_one_is_damage(tmp_path, found):
    path = with_header(tmp_path / "odd.rsm", f'{{"format": {found}}}')
    with pytest.raises(FormatError, match="is damaged: expected a format from 1 to 3, found"):
        rs.load(path)


@pytest.mark.parametrize("text", ["[]", "{}", "3"])
def test_a_header_without_a_format_is_damage(tmp_path, text):
    with pytest.raises(FormatError, match="expected a format from 1 to 3, found None"):
        rs.load(with_header(tmp_path / "odd.rsm", text))


def table(content):
    """Where each tensor of a file lies in it."""
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:begin])
    del entries["__metadata__"]
    return {name: tuple(begin + x for x in e["data_offsets"]) for name, e in entries.items()}


def test_another_dtype_of_the_same_bytes_is_noticed(tmp_path, rep):
    path = rep.save(tmp_path / "net.rsm")
    content = path.read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b'"I16"', b'"F16"'), (b'"F64"', b'"I64"')):
        path.write_bytes(content.replace(old, new, 1))
        with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
            rs.load(path)


def test_another_dtype_is_noticed_in_format_1_whose_checksum_does_not_cover_it(tmp_path):
    content = (GOLDEN / "a.rsm").read_bytes()
    path = tmp_path / "old.rsm"
    for old, new in ((b'"F32"', b'"I32"'), (b'"I16"', b'"F16"'), (b'"F64"', b'"I64"')):
        path.write_bytes(content.replace(old, new, 1))
        with pytest.raises(FormatError, match=r"tensor \S+ must be \S+ \[.*\], found"):
            rs.load(path)


def test_damage_in_one_layer_does_not_hinder_reading_another(tmp_path, rep):
    path = rep.save(tmp_path / "net.rsm")
    content = bytearray(path.read_bytes())
    begin, end = table(content)["0.gradients.buckets.triangle"]
    content[(begin + end) // 2] ^= 1
    path.write_bytes(content)
    found = rs.load(path, layers=["act2"])
    assert found.layers == rep.layers[1:]
    for layers in (None, ["act1"], [0, 1]):
        with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
            rs.load(path, layers=layers)


@pytest.mark.parametrize("damage", ["shared", "header"])
def test_damage_in_what_layers_share_is_noticed_whichever_is_read(tmp_path, rep, damage):
    path = rep.save(tmp_path / "net.rsm")
    content = bytearray(path.read_bytes())
    at = (
        table(content)["signs"][0] if damage == "shared" else content.index(b"trace_gradients") + 22
    )
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
        rs.load(path, layers=["act2"])


@pytest.mark.parametrize("sums", [None, [], {"": "00000000"}, {"0": None}])
def test_checksums_that_are_none_are_damage(tmp_path, rep, sums):
    text = json.dumps({"format": 2, "checksums": sums})
    path = with_header(tmp_path / "odd.rsm", text)
    with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
        tensor_file.read_tensors(path)


def test_a_sum_that_is_not_finite_is_not_written(tmp_path, rep):
    first = dataclasses.replace(rep[0], features=dataclasses.replace(rep[0].features, trace=np.inf))
    broken = dataclasses.replace(rep, layers=(first, rep[1]))
    with pytest.raises(DataError, match=r"cannot write .*net.rsm: expected finite numbers, found"):
        broken.save(tmp_path / "net.rsm")
    assert list(tmp_path.iterdir()) == []


def test_a_task_embedding_is_no_representation_nor_the_reverse(tmp_path, rep):
    embedding = TaskEmbedding({"w": torch.ones(3).double()}, 4, None, "task")
    path = embedding.save(tmp_path / "task.rsm")
    with pytest.raises(
        FormatError, match=r"holds a TaskEmbedding; read it with TaskEmbedding.load"
    ):
        rs.load(path)
    with pytest.raises(FormatError, match="holds no TaskEmbedding; expected a file written by"):
        TaskEmbedding.load(rep.save(tmp_path / "net.rsm"))


def test_a_newer_format_is_refused(tmp_path, rep, monkeypatch):
    monkeypatch.setattr(tensor_file, "DEFAULT_FORMAT", 4)
    path = rep.save(tmp_path / "net.rsm")
    monkeypatch.undo()
    with pytest.raises(
        FormatError, match=r"has format 4, newer than this version reads .3.; upgrade"
    ):
        rs.load(path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("error", "raised"), [(OSError, DataError), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path, rep, monkeypatch, step, error, raised
):
    path = record().save(tmp_path / "net.rsm")
    before = path.read_bytes()

    def fail(*_):
        raise error("no")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(raised, match="no"):
        rep.save(path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["net.rsm"]
    assert path.read_bytes() == before


def test_saving_into_a_missing_folder_says_so(tmp_path, rep):
    with pytest.raises(DataError, match=r"net\.rsm: its folder does not exist"):
        rep.save(tmp_path / "missing" / "net.rsm")


def test_a_saved_file_can_be_read_by_others(tmp_path, rep):
    assert os.stat(rep.save(tmp_path / "net.rsm")).st_mode & 0o444 == 0o444
