"""Networks named in a file."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from resemblance.errors import DataError, FormatError
from resemblance.recommending import model_files
from resemblance.recommending.model_files import networks_in

NETS = """
from torch import nn

def small():
    return nn.Linear(3, 2)

def zoo():
    return {"one": small(), "two": small, "bad": lambda: 3}

def none():
    return []
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def test_a_table_of_addresses_and_weights(folder):
    state = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    save_file(state, folder / "w.safetensors")
    (folder / "models.toml").write_text(
        '[models]\nplain = "nets.py:small"\n'
        'filled = { model = "nets.py:small", weights = "w.safetensors" }\n'
        'also = "nets.py:small --weights w.safetensors"\n'
    )
    made = {name: make() for name, make in networks_in("models.toml", device="cpu").items()}
    assert list(made) == ["plain", "filled", "also"]
    for name in ("filled", "also"):
        assert torch.equal(made[name].weight, state["weight"])
    assert not torch.equal(made["plain"].weight, state["weight"])


def test_weights_are_pretrained_if_the_table_says_so(folder, monkeypatch):
    asked = []

    def load(model, **options):
        asked.append((model, options))
        return nn.Linear(3, 2)

    monkeypatch.setattr(model_files, "load_model", load)
    (folder / "models.toml").write_text(
        '[models]\na = { model = "timm:x", pretrained = true }\nb = { model = "timm:x" }\n'
    )
    made = [make() for make in networks_in("models.toml", device="meta").values()]
    assert [options["pretrained"] for _, options in asked] == [True, False]
    assert all(net.weight.device.type == "meta" for net in made)


def test_a_function_that_gives_networks_or_what_makes_them(folder):
    made = networks_in("nets.py:zoo")
    assert isinstance(made["one"](), nn.Linear)
    assert isinstance(made["two"](), nn.Linear)
    with pytest.raises(DataError, match="has int for 'bad'"):
        made["bad"]()
    with pytest.raises(DataError, match="gave list; expected a dict"):
        networks_in("nets.py:none")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "no file at"),
        ("[models\n", "cannot be read as TOML"),
        ("[other]\n", "names no networks"),
        ("[models]\na = 3\n", "expected an address for 'a'"),
        ('[models]\na = { weights = "w" }\n', "expected an address for 'a'"),
        ('[models]\na = { model = "x", size = 3 }\n', "expected an address for 'a'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(folder, text, match):
    if text is not None:
        (folder / "models.toml").write_text(text)
    with pytest.raises(FormatError, match=match):
        networks_in("models.toml")
