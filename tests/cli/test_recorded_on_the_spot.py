"""Models that `check` records on the spot: as their base was, whether that is a file or a model."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

import resemblance as rs
from digit_copies import pruned, rounded, trained
from resemblance.cli.recorded_on_the_spot import Network, Samples, recorded
from resemblance.errors import DataError, LayerError

NET = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10)
    )
"""
MODEL = "digit_net.py:net"


@pytest.fixture
def weights(folder):
    for name, net in {"base": trained(), "int8": rounded(8), "pruned": pruned(0.6)}.items():
        save_file(net.state_dict(), folder / f"{name}.safetensors")
    (folder / "digit_net.py").write_text(NET)
    return folder


def samples(**changes):
    return Samples(**{"data": "digits", "size": 224, "raw": False, "limit": 300,
                      "layers": None, "device": "cpu"} | changes)  # fmt: skip


@pytest.mark.parametrize(("copy", "status"), [("int8", 0), ("pruned", 1)])
def test_two_models_are_recorded_and_checked(weights, run, copy, status):
    words = ("--base-weights", "base.safetensors", "--copy-weights", f"{copy}.safetensors")
    words += ("--data", "digits", "--max-disagreement", 0.02, "--json", "c.json")
    assert run("check", MODEL, MODEL, *words)[0] == status
    content = json.loads((weights / "c.json").read_text())
    assert (content["base"], content["copy"]) == ("base.safetensors", f"{copy}.safetensors")
    assert content["samples"] == 1797


def test_a_copy_is_recorded_as_the_file_of_its_base_was(weights, run):
    words = ("--seed", 5, "--beta", 0.7, "--layer", "2", "--block", 20, "--limit", 400)
    words += ("--weights", "base.safetensors", "-o", "base.rsm")
    run("record", "--model", MODEL, "--data", "digits", *words)
    base, copy = recorded(
        Network("base", "base.rsm", None),
        Network("copy", MODEL, "int8.safetensors"),
        samples(limit=400),
    )
    assert copy.settings == base.settings
    assert copy.layer_names == base.layer_names == ["2"]
    assert copy.model.address == f"{MODEL} --weights int8.safetensors"
    assert rs.check(base, copy, max_disagreement=0.05, min="gradients=0.5")


def test_samples_of_the_base_that_go_by_a_name_are_the_copys_too(weights, run):
    words = ("--weights", "base.safetensors", "--data-id", "mine", "--limit", 300, "-o", "base.rsm")
    run("record", "--model", MODEL, "--data", "digits", *words)
    both = Network("base", "base.rsm", None), Network("copy", MODEL, "int8.safetensors")
    base, copy = recorded(*both, samples())
    assert copy.data == base.data
    assert rs.check(base, copy, max_disagreement=0.05)
    with pytest.raises(DataError, match=r"which it calls 'mine'; digits holds others\. Give those"):
        recorded(*both, samples(limit=299))


def test_features_alone_are_recorded_of_a_copy_of_such_a_base(weights):
    rs.record(trained(), torch.rand(300, 1, 8, 8), gradients=False).save("base.rsm")
    _, copy = recorded(Network("base", "base.rsm", None), Network("copy", MODEL, None), samples())
    assert copy[0].kinds == ("features",)


def test_layers_that_the_copy_does_not_have(weights):
    rs.record(trained(), torch.rand(300, 1, 8, 8), layers=["2"]).save("base.rsm")
    copy = Network("copy", "nets.py:small", None)
    (weights / "nets.py").write_text(
        "import torch\n\ndef small():\n    return torch.nn.Linear(8, 2)"
    )
    with pytest.raises(LayerError, match="no layer is named '2'"):
        recorded(Network("base", "base.rsm", None), copy, samples())


def test_a_target_of_ones_own_cannot_be_repeated(weights):
    def own(z, batch):
        return z.square().sum(1)

    rs.record(trained(), torch.rand(300, 1, 8, 8), target=own, name="base").save("base.rsm")
    with pytest.raises(DataError, match=r"a target of your own, .* record the copy as well"):
        recorded(Network("base", "base.rsm", None), Network("copy", MODEL, None), samples())


def test_what_is_a_model_and_what_a_file():
    models = ("torchvision:resnet18", "timm:resnet18", "hf:folder", "a/b.py:net")
    assert all(Network("base", address, None).is_model for address in models)
    assert not any(Network("base", file, None).is_model for file in ("a.rsm", "b", "hf"))
