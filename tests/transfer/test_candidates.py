"""Candidates from a dict, a zoo or a file, and what one recording pass of them shows."""

import dataclasses

import numpy as np
import pytest
import torch
from candidate_networks import filled, network, task
from safetensors.torch import save_file
from torch import nn

import resemblance as rs
from resemblance._models.logits import LogitsReader
from resemblance.errors import DataError, FormatError, MismatchError
from resemblance.transfer import candidates
from resemblance.transfer.candidates import (
    Candidate,
    collect_candidates,
    networks_from_file,
    run_candidate,
)
from resemblance.transfer.query_samples import Query

X, _ = task()


@pytest.fixture
def zoo(tmp_path):
    networks = {"one": network(1), "two": network(2)}
    opened, entries = filled(tmp_path / "zoo", networks, X)
    with opened:
        yield opened, networks, entries


def names(found):
    return [one.name for one in found[0]]


def test_a_dict_is_taken_as_it_is():
    field = collect_candidates({"a": network(0), "b": network})
    assert names(field) == ["a", "b"]
    assert all(isinstance(one.load(), nn.Module) for one in field[0])
    with pytest.raises(DataError, match="a dict already names its networks"):
        collect_candidates({"a": network(0)}, {"a": network(0)})
    with pytest.raises(DataError, match="empty dict"):
        collect_candidates({})
    with pytest.raises(DataError, match="found int"):
        collect_candidates(3)


def test_models_names_entries_by_name_id_or_function(zoo):
    opened, networks, entries = zoo
    by_name = collect_candidates(opened, networks)
    by_id = collect_candidates(opened, {entries[k].id[:10]: net for k, net in networks.items()})
    by_function = collect_candidates(opened, lambda entry: networks[entry.name])
    assert sorted(names(by_name)) == sorted(names(by_id)) == sorted(names(by_function))
    assert by_name[1] == []
    for one in by_name[0]:
        assert one.load() is networks[one.name]


def test_an_entry_without_a_network_is_left_out_and_said(zoo):
    opened, networks, _ = zoo
    field = collect_candidates(opened, {"two": networks["two"]})
    assert names(field) == ["two"]
    assert [(one.name, one.why) for one in field[1]] == [("one", "models has no network for it")]
    assert len(collect_candidates(opened)[1]) == 2


def test_an_address_is_run_only_if_it_is_repeated(zoo, tmp_path):
    opened, _, _ = zoo
    (tmp_path / "net.py").write_text("raise SystemExit('was run')\n")
    address = f"{tmp_path / 'net.py'}:make"
    rep = rs.record(network(7), X, name="three", progress=False)
    opened.add(dataclasses.replace(rep, model=dataclasses.replace(rep.model, address=address)))
    why = {one.name: one.why for one in collect_candidates(opened)[1]}
    assert f"its address {address!r} is loaded only if listed in `trust`" in why["three"]
    for trust in (address, [address]):
        (found,) = collect_candidates(opened, trust=trust)[0]
        with pytest.raises(SystemExit, match="was run"):
            found.load()
    (found,) = collect_candidates(opened, trust={address: lambda: network(7)})[0]
    assert found.load().state_dict().keys() == network(7).state_dict().keys()  # made, not loaded
    for other in ([str(tmp_path)], f"{address}s", [f"{address}s"]):  # not even by a letter
        assert not collect_candidates(opened, trust=other)[0]


def test_a_network_of_other_weights_is_refused(zoo):
    opened, _, _ = zoo
    one = next(c for c in collect_candidates(opened, {"one": network(5)})[0])
    with pytest.raises(MismatchError, match="has different weights than the recorded one"):
        one.load()


def test_one_network_on_two_probes_is_one_candidate(zoo):
    opened, networks, _ = zoo
    opened.add(rs.record(networks["one"], X[:100], name="one", progress=False))
    for models in (networks, lambda entry: networks[entry.name]):
        field = collect_candidates(opened, models)
        assert sorted(names(field)) == ["one", "two"]
        assert field[1] == []


def test_recordings_of_training_data_are_no_candidates(zoo):
    opened, networks, _ = zoo
    data = opened.add(rs.record(network(8), X + 1, name="data of three", progress=False))
    seen = rs.record(network(3), X, name="three", progress=False)
    opened.add(seen, trained_on=data.id)
    field = collect_candidates(opened, {**networks, "three": network(3)})
    assert sorted(names(field)) == ["one", "three", "two"]
    assert field[1] == []


def test_names_that_several_have_are_told_apart(zoo):
    opened, networks, _ = zoo
    other = network(9)
    opened.add(rs.record(other, X, name="one", progress=False))
    with pytest.raises(DataError, match="expected one entry, found 2 for 'one'"):
        collect_candidates(opened, networks)
    found = names(collect_candidates(opened, lambda entry: network()))
    assert len(set(found)) == 3
    with pytest.raises(DataError, match=r"no entry 'tow' in .*; nearest: two"):
        collect_candidates(opened, {"tow": network()})
    with pytest.raises(DataError, match="`models` must be a dict"):
        collect_candidates(opened, 3)


def test_an_empty_zoo_is_refused(tmp_path):
    with rs.Zoo(tmp_path / "empty") as empty, pytest.raises(DataError, match="has no entries"):
        collect_candidates(empty)


def test_a_candidate_may_be_an_address_of_the_callers(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    assert isinstance(Candidate("a", f"{tmp_path / 'net.py'}:make").load(), nn.Linear)


def query(x):
    return Query(x, np.zeros(len(x)), len(x), len(x))


def test_vectors_and_logits_are_in_one_order():
    net, (x, _) = network(), task()
    shown = run_candidate(net, query(x), batch_size=50)
    assert list(shown.layers) == ["1", "3"]
    assert sorted(shown.positions.tolist()) == list(range(len(x)))
    with torch.no_grad():
        expected = net(x)[shown.positions]
        features = net[1](net[0](x))[shown.positions]
    assert torch.allclose(shown.logits, expected, atol=1e-6)
    assert torch.allclose(shown.layers["1"]["features"], features, atol=1e-6)
    assert torch.allclose(shown.logits.softmax(1).sum(1), torch.ones(len(x)))
    assert set(shown.layers["1"]) == {"features"}
    assert shown.parameters == sum(p.numel() for p in net.parameters())


def test_wide_layers_are_folded():
    net, (x, _) = network(), task()
    shown = run_candidate(net, query(x), layers=["1"], width=8)
    assert set(shown.layers["1"]) == {"features"}
    assert shown.layers["1"]["features"].shape == (len(x), 8)


def test_outputs_that_are_no_logits_are_not_taken_for_some():
    x, _ = task()
    for end in (
        nn.Linear(24, 1),
        nn.Sequential(nn.Linear(24, 3), nn.ReLU()),
        nn.Unflatten(1, (4, 6)),
    ):
        net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), end)
        assert run_candidate(net, query(x), layers=["1"]).logits is None
    sure = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3), nn.Softmax(1))
    p = run_candidate(sure, query(x), layers=["1"], logits=LogitsReader("probabilities"))
    with torch.no_grad():
        expected = sure(x).numpy()[p.positions]
    assert np.allclose(p.logits.softmax(1).numpy(), expected, atol=1e-6)


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
    made = {name: make() for name, make in networks_from_file("models.toml", device="cpu").items()}
    assert list(made) == ["plain", "filled", "also"]
    for name in ("filled", "also"):
        assert torch.equal(made[name].weight, state["weight"])
    assert not torch.equal(made["plain"].weight, state["weight"])


def test_weights_are_pretrained_if_the_table_says_so(folder, monkeypatch):
    asked = []

    def load(model, **options):
        asked.append((model, options))
        return nn.Linear(3, 2)

    monkeypatch.setattr(candidates, "load_model", load)
    (folder / "models.toml").write_text(
        '[models]\na = { model = "timm:x", pretrained = true }\nb = { model = "timm:x" }\n'
    )
    made = [make() for make in networks_from_file("models.toml", device="meta").values()]
    assert [options["pretrained"] for _, options in asked] == [True, False]
    assert all(net.weight.device.type == "meta" for net in made)


def test_a_function_that_gives_networks_or_what_makes_them(folder):
    made = networks_from_file("nets.py:zoo")
    assert isinstance(made["one"](), nn.Linear)
    assert isinstance(made["two"](), nn.Linear)
    with pytest.raises(DataError, match="has int for 'bad'"):
        made["bad"]()
    with pytest.raises(DataError, match="returned list; expected a dict"):
        networks_from_file("nets.py:none")


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
        networks_from_file("models.toml")
