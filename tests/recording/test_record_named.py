"""`record_named`: the same as by hand, and the model's address is stored."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import little_language
import resemblance as rs
from optional_libraries import needs
from resemblance.recording.config import RecordConfig
from resemblance.recording.record import NamedRecording, load_recording_data, record_named

MODELS = """
import torch
from torch import nn


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return f"{path}:net"


def test_a_model_on_data_with_weights_from_a_file(file, tmp_path):
    wanted = NamedRecording(file, "digits", limit=300)
    data = load_recording_data(wanted)
    plain = record_named(wanted, data, RecordConfig(name="a"))
    assert (plain.samples, plain.model.address, plain.name) == (300, file, "a")
    weights = {
        "1.weight": torch.ones(9, 64), "1.bias": torch.zeros(9),
        "3.weight": torch.eye(10, 9), "3.bias": torch.zeros(10),
    }  # fmt: skip
    save_file(weights, tmp_path / "w.safetensors")
    other = NamedRecording(file, "digits", weights=str(tmp_path / "w.safetensors"), limit=300)
    rep = record_named(other, data, RecordConfig(layers="1"))
    assert rep.model.address == f"{file} --weights {tmp_path / 'w.safetensors'}"
    assert rep.model.weights != plain.model.weights
    assert rep.layer_names == ["1"]


@needs("transformers")
def test_text_has_the_tokenizer_of_its_model(tmp_path):
    folder = little_language.saved(
        tmp_path / "gpt", little_language.gpt2(), little_language.tokenizer()
    )
    (tmp_path / "text.txt").write_text("the cat sat on the mat and looked at the dog\n" * 200)
    wanted = NamedRecording(f"hf:{folder}", str(tmp_path / "text.txt"), limit=20)
    rep = record_named(wanted, load_recording_data(wanted), RecordConfig(tokens=2))
    assert rep.model.tokenizer is not None
    assert rep.settings.unit == "token"


def test_a_device_that_is_not_there_is_refused(file):
    wanted = NamedRecording(file, "digits", device="cuda:99")
    with pytest.raises(rs.ResemblanceError, match="cuda"):
        record_named(wanted, load_recording_data(wanted), RecordConfig())


def test_strangers_on_the_probe_saw_the_same_samples_in_any_size(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(
        MODELS.replace("nn.Flatten()", "nn.AdaptiveAvgPool2d(8), nn.Flatten()").replace("64", "192")
    )
    small, large = (
        NamedRecording(f"{path}:net", "probe:images", size=size, raw=raw, limit=40)
        for size, raw in ((8, True), (16, False))
    )
    a, b = (record_named(x, load_recording_data(x), RecordConfig()) for x in (small, large))
    assert a.data.id == "probe:images"
    assert a.data.fingerprint == b.data.fingerprint
    assert rs.compare(a, b, kernel="features").paired
    named = record_named(small, load_recording_data(small), RecordConfig(data_id="mine"))
    assert named.data.id == "mine"
