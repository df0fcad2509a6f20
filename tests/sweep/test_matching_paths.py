"""Patterns stand for what matches them, numbers in order."""

from __future__ import annotations

import pytest

from resemblance.errors import DataError
from resemblance.sweep.matching_paths import expanded


@pytest.fixture
def base(tmp_path):
    for name in ("runs/checkpoint-9", "runs/checkpoint-10", "runs/logs", "odd[1]"):
        (tmp_path / name).mkdir(parents=True)
        if "log" not in name:
            (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "runs/a.pt").touch()
    return tmp_path


def test_folders_of_models(base):
    found = ["hf:runs/checkpoint-9", "hf:runs/checkpoint-10"]
    assert expanded("runs/*", base, "model") == found
    assert expanded("hf:**/checkpoint-*", base, "model") == found
    assert expanded("hf:odd[1]", base, "model") == ["hf:odd[1]"]


def test_files_and_data(base):
    assert expanded("runs/*", base, "weights") == ["runs/a.pt"]
    assert len(expanded("runs/*", base, "data")) == 4
    assert expanded("hf:runs/c*-9", base, "data") == ["hf:runs/checkpoint-9"]


@pytest.mark.parametrize("address", ["timm:vit_*", "nets.py:f*", "digits"])
def test_what_is_no_pattern(base, address):
    assert expanded(address, base, "model") == [address]


def test_what_matches_nothing(base):
    with pytest.raises(DataError, match=r"'x/\*' matches no folder of Hugging Face's"):
        expanded("x/*", base, "model")
    with pytest.raises(DataError, match=r"write model: FILE.py:FUNCTION and weights: runs/\*\.pt"):
        expanded("runs/*.pt", base, "model")
    with pytest.raises(DataError, match="matches no file below"):
        expanded("runs/*.bin", base, "weights")
