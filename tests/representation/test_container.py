"""The file: whole or not at all, and damage noticed."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import resemblance as rs
from resemblance import _atomic_files as files
from resemblance.errors import FormatError
from resemblance.representation import container
from small import record


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


@pytest.mark.parametrize("header", ["[]", "{}", "not json", '{"format": "x"}'])
def test_a_header_that_is_none_is_damage(tmp_path, header):
    path = tmp_path / "odd.rsm"
    save_file({"signs": torch.zeros(3)}, path, {"resemblance": header})
    with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
        rs.load(path)


def test_a_newer_format_is_refused(tmp_path, rep, monkeypatch):
    monkeypatch.setattr(container, "FORMAT", 2)
    path = rep.save(tmp_path / "net.rsm")
    monkeypatch.undo()
    with pytest.raises(
        FormatError, match=r"has format 2, newer than this version reads .1.; upgrade"
    ):
        rs.load(path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path, rep, monkeypatch, step, error
):
    path = record().save(tmp_path / "net.rsm")
    before = path.read_bytes()

    def fail(*_):
        raise error("no")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(error, match="no"):
        rep.save(path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["net.rsm"]
    assert path.read_bytes() == before


def test_saving_into_a_missing_folder_is_the_systems_error(tmp_path, rep):
    with pytest.raises(FileNotFoundError):
        rep.save(tmp_path / "missing" / "net.rsm")


def test_a_saved_file_can_be_read_by_others(tmp_path, rep):
    assert os.stat(rep.save(tmp_path / "net.rsm")).st_mode & 0o444 == 0o444
