"""`resemblance sensitivity`, end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import save_file

import resemblance as rs
from digit_copies import rounded, trained
from resemblance.demo.digit_networks import load_digits_data

NET = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10)
    )
"""
MODELS = (
    "sensitivity", "digit_net.py:net", "digit_net.py:net", "--data", "digits",
    "--base-weights", "base.safetensors", "--copy-weights",
)  # fmt: skip


@pytest.fixture
def files(folder):
    for name, net in {"base": trained(), "int3": rounded(3)}.items():
        save_file(net.state_dict(), folder / f"{name}.safetensors")
    (folder / "digit_net.py").write_text(NET)
    return folder


def test_a_table_a_list_and_a_figure(files, run):
    status, out, err = run(*MODELS, "int3.safetensors", "--keep", 1, "--png", "s.png")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "block"
    assert [line.split()[0] for line in lines[2:5]] == ["1", "3", "5"]
    assert "int3.safetensors as a copy of base.safetensors: KL(base‖copy), in nats, is" in out
    assert "\nregex: ^(" in out
    assert '\nllm-compressor: ["re:^' in out
    assert "\nonnxruntime: [n.name for n in graph.node if" in out
    assert (files / "s.png").stat().st_size > 10_000


def test_numbers_are_those_of_python(files, run):
    words = ("--json", "-", "--samples", 100, "--measure", "js", "--target", 0.001, "--seed", 2)
    status, out, _ = run(*MODELS, "int3.safetensors", *words)
    assert status == 0
    found = json.loads(out)
    how = {"measure": "js", "samples": 100, "target": 0.001, "seed": 2}
    expected = rs.sensitivity(trained(), rounded(3), load_digits_data(), **how)
    assert np.allclose(found["own"], expected.own)
    assert found["spared"] == list(expected.spared)
    assert found["lists"]["names"] == found["spared"]


def test_one_precision_and_some_blocks(files, run):
    words = ("base.safetensors", "--copy-dtype", "bfloat16", "--group", "1", "--group", "5")
    status, out, _ = run(*MODELS, *words, "--json", "-")
    found = json.loads(out)
    assert (status, found["blocks"]) == (0, ["1", "5"])
    assert found["models"] == ["base.safetensors", "base.safetensors (bfloat16)"]


def test_recordings_and_wrong_devices_are_refused(files, run, refused):
    run("record", "--model", "digit_net.py:net", "--data", "digits", "-o", "a.rsm")
    assert refused("sensitivity", "a.rsm", "digit_net.py:net", "--data", "digits").startswith(
        "expected a model, found the file a.rsm. Recordings contain no weights"
    )
    assert "--keep or --target" in refused(
        *MODELS, "int3.safetensors", "--keep", 1, "--target", 0.1
    )
    assert "nowhere" in refused(*MODELS, "int3.safetensors", "--copy-device", "nowhere")
