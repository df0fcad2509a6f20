"""Who is of one descent, on networks for digits: copies, exchanged copies, twins."""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import digit_copies
import resemblance as rs
from resemblance._data import probe_samples
from resemblance.zoo.descent import (
    NOISE,
    NOISE_LEVEL,
    derivatives,
    descent,
    may_be_related,
    mean_decibels,
    without_logits,
)
from resemblance.zoo.zoo import Zoo

OPTIONS = {"gradients": False, "buckets": 0}


@functools.cache
def twin():
    """Trained as the base is, from another seed."""
    x, y = (part[: digit_copies.TRAINED_ON] for part in digit_copies.images())
    net = copy.deepcopy(digit_copies.trained())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for module in net:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def exchanged(net):
    """The same function with its hidden units in another order."""
    net = copy.deepcopy(net)
    layers = [module for module in net if isinstance(module, nn.Linear)]
    with torch.no_grad():
        for layer, following in itertools.pairwise(layers):
            order = torch.randperm(len(layer.weight), generator=torch.Generator().manual_seed(2))
            layer.weight.copy_(layer.weight[order].clone())
            layer.bias.copy_(layer.bias[order].clone())
            following.weight.copy_(following.weight[:, order].clone())
    return net


NETS = {
    "base": digit_copies.trained,
    "int8": lambda: digit_copies.rounded(8),
    "int4": lambda: digit_copies.rounded(4),
    "pruned": lambda: digit_copies.pruned(0.6),
    "twin": twin,
    "exchanged": lambda: exchanged(digit_copies.trained()),
}


@functools.cache
def recorded(name, **options):
    x, _ = digit_copies.unseen()
    given = {"data_id": "unseen", **OPTIONS, **options}
    return rs.record(NETS[name](), x[:400], name=name, **given)


@functools.cache
def on_noise(name):
    x = torch.stack([probe_samples.noise_image(i, 8)[:1] for i in range(200)])
    return rs.record(NETS[name](), x, name=name, data_id=NOISE, **OPTIONS)


@pytest.mark.parametrize("name", ["int8", "int4", "pruned"])
def test_copies_are_of_one_descent_with_their_origin(name):
    found = descent(recorded("base"), recorded(name))
    assert found.related
    assert found.shown_by == "coordinates"
    assert found.strength > 1
    assert found.alarms == 1e-3
    assert found.decibels == pytest.approx(found.coordinates.decibels[0].mean())
    words = found.summary()
    assert f"base and {name} share an ancestor" in words
    assert "2 of 2 layers are in the same order (false-alarm rate: 0.001)" in words


@functools.cache
def deep(seed, stem=0):
    """Seven linear layers; the first `stem` are frozen, random, and the same for every seed."""
    x, y = (part[: digit_copies.TRAINED_ON] for part in digit_copies.images())
    with torch.random.fork_rng():
        torch.manual_seed(100)
        shared = [nn.Linear(64, 64) for _ in range(stem)]
        torch.manual_seed(seed)
        own = [nn.Linear(64, 64) for _ in range(6 - stem)]
        parts = [part for layer in (*shared, *own) for part in (layer, nn.ReLU())]
        net = nn.Sequential(nn.Flatten(), *parts, nn.Linear(64, 10))
        optimiser = torch.optim.Adam([p for x in (*own, net[-1]) for p in x.parameters()], 2e-3)
        for _ in range(60):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
    return net


def deep_recorded(net, name):
    x, _ = digit_copies.unseen()
    layers = [str(i) for i in range(2, 14, 2)]  # after each ReLU
    return rs.record(net, x[:400], name=name, layers=layers, data_id="unseen", **OPTIONS)


@pytest.mark.parametrize("stem", [1, 2, 3])
def test_a_shared_stem_is_reported_and_is_not_descent(tmp_path, stem):
    """Networks trained apart over one frozen random stem, of up to half of their layers."""
    one, two = (deep_recorded(deep(seed, stem), f"net {seed}") for seed in (1, 2))
    found = descent(one, two)
    assert (found.related, found.partial) == (False, True)
    assert list(found.shared) == list(one.layer_names)[:stem]
    assert found.strength < 1
    words = found.summary()
    assert f"share units at {stem} of 6 layers (2" in words
    assert "is no evidence that one was derived from the other" in words
    zoo = Zoo(tmp_path / "z")
    zoo.add_all([one, two])
    near = zoo.derivatives("net 1")
    assert (len(near), [x.entry.name for x in near.partial]) == (0, ["net 2"])
    assert near.partial[0].descent.shared == found.shared
    assert f"only {stem} of 6 layers" in near.summary()
    assert near.to_dict()["partial"][0]["shared"] == list(found.shared)
    assert zoo.family_tree().counts() == (0, 2)


@pytest.mark.parametrize("stem", [0, 2])
def test_copies_share_units_at_most_layers_however_much_is_pruned(stem):
    net = deep(1, stem)
    pruned = copy.deepcopy(net)
    with torch.no_grad():
        for layer in pruned:
            if isinstance(layer, nn.Linear):
                size = layer.weight.abs()
                layer.weight[size <= size.flatten().kthvalue(int(0.8 * size.numel())).values] = 0
    found = descent(deep_recorded(net, "base"), deep_recorded(pruned, "pruned"))
    assert found.related
    assert len(found.shared) > 3


def test_a_shared_stem_on_noise_is_not_descent_either():
    """Early features on noise are alike because of the stem, which explains them."""
    x = torch.stack([probe_samples.noise_image(i, 8)[:1] for i in range(200)])
    reps = [
        rs.record(deep(seed, 3), x, name=f"net {seed}", data_id=NOISE,
                  layers=[str(i) for i in range(2, 14, 2)], **OPTIONS)
        for seed in (1, 2)
    ]  # fmt: skip
    found = descent(*reps)
    assert found.noise > NOISE_LEVEL
    assert (found.related, found.partial) == (False, True)


def test_a_twin_is_not(tmp_path):
    path = recorded("twin").save(tmp_path / "twin.rsm")
    found = descent(recorded("base"), path)
    assert not found.related
    assert found.strength < 1
    assert np.isnan(found.decibels)
    assert found.summary().startswith("No evidence that base and twin share an ancestor.")
    assert "record both on probe:noise" in found.summary()


def test_exchanged_units_hide_descent_until_there_is_noise():
    assert not descent(recorded("base"), recorded("exchanged")).related
    found = descent(on_noise("base"), on_noise("exchanged"))
    assert found.shown_by == "noise"
    assert found.noise == pytest.approx(1, abs=1e-4)
    assert found.alarms > 1e-3
    assert "probably share an ancestor" in found.summary()
    apart = descent(on_noise("base"), on_noise("twin"))
    assert apart.noise < NOISE_LEVEL
    assert not apart.related
    assert "On noise, early features score 0." in apart.summary()


def test_on_noise_coordinates_go_first():
    found = descent(on_noise("base"), on_noise("int4"))
    assert (found.shown_by, found.alarms) == ("coordinates", 1e-3)


def test_logits_do_not_count_as_units_of_their_own():
    layers = ["2", "4", "5"]
    one, two = (recorded(name, layers=tuple(layers)) for name in ("base", "twin"))
    assert rs.coordinates(one, two).shared  # both know the digits
    assert [x.name for x in without_logits(one)] == ["2", "4"]
    assert not descent(one, two).related
    only = [recorded(name, layers=("5",)) for name in ("base", "twin")]
    found = descent(*only)
    assert not found.related
    assert "only logits were recorded" in found.summary()


def test_what_cannot_be_compared_in_coordinates_says_why():
    short = rs.record(NETS["base"](), digit_copies.unseen()[0][:100], name="short", **OPTIONS)
    found = descent(recorded("base"), short)
    assert not found.related
    assert found.obstacle.startswith("'base' and 'short' were recorded on different samples")
    assert "The order of units was not compared: 'base' and 'short'" in found.summary()
    assert descent(on_noise("base"), recorded("base")).noise is None


@pytest.mark.parametrize(
    ("decibels", "words"),
    [
        (48, "8 bits"),
        (22, "4 bits"),
        (9, "half"),
        (2, "as large as the features"),
        (np.inf, "are unchanged"),
    ],
)
def test_how_far_features_moved_is_told_in_words(decibels, words):
    found = descent(recorded("base"), recorded("int8"))
    values = np.full_like(found.coordinates.decibels, decibels)
    told = replace(found, coordinates=replace(found.coordinates, decibels=values))
    assert words in told.summary()


def test_the_mean_leaves_out_what_is_unknown_or_did_not_move():
    assert mean_decibels(np.array([10.0, np.nan, np.inf, 20.0])) == 15
    assert mean_decibels(np.array([np.inf, np.nan])) == np.inf
    assert np.isnan(mean_decibels(np.array([np.nan])))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    out = Zoo(tmp_path_factory.mktemp("descent") / "z")
    for name in NETS:
        out.add(recorded(name), tags=["base"] if name == "base" else [])
    for name in ("base", "exchanged", "twin"):
        out.add(on_noise(name).renamed(f"{name} on noise"))
    return out


def test_derivatives_come_least_changed_first(zoo):
    found = zoo.derivatives("base")
    assert [x.entry.name for x in found] == ["int8", "int4", "pruned"]
    assert found.looked_at == 5
    assert found.left_out == {"recorded on different samples or with different settings": 3}
    words = found.summary()
    assert words.startswith(
        "Networks that share an ancestor with base: 3 of 5 entries on unseen, 400 samples."
    )
    assert "int8 (" in words
    assert "Skipped: 3 recorded on different samples or with different settings." in words
    assert len(zoo.derivatives("base", limit=1)) == 1
    assert [x.entry.name for x in zoo.derivatives("int8")] == ["base", "int4", "pruned"]
    itself = zoo.derivatives(recorded("twin"))  # as it was given as a recording
    assert len(itself) == 1
    assert "with equal features" in itself.summary()


def test_derivatives_on_noise_find_exchanged_copies(zoo):
    found = zoo.derivatives("base on noise")
    assert [(x.entry.name, x.descent.shown_by) for x in found] == [("exchanged on noise", "noise")]
    assert "units permuted" in found.summary()


def test_derivatives_can_be_read_and_kept(zoo):
    found = zoo.derivatives("base")
    assert list(found.to_frame()["shown_by"]) == ["coordinates"] * 3
    kept = found.to_dict()
    assert kept["relatives"][0]["entry"]["name"] == "int8"
    assert kept["relatives"][0]["decibels"] > 30
    assert repr(found) == "Descents(3 of 5 share an ancestor with 'base')"


def test_entries_with_other_layers_or_damage_are_left_out(tmp_path):
    zoo = Zoo(tmp_path / "z")
    zoo.add(recorded("base"))
    zoo.add(recorded("int4"))
    odd = np.random.default_rng(0).normal(size=(400, 3))
    zoo.add(rs.record_arrays({"odd": odd}, name="odd", data_id="odd"))
    strange = replace(recorded("twin"), layers=recorded("twin").layers[:1])
    renamed = replace(strange.layers[0], name="odd", bare_name="odd")
    zoo.add(replace(strange, layers=(renamed,)).renamed("strange"))
    files = {rs.load(path).name: path for path in (tmp_path / "z" / "objects").rglob("*.rsm")}
    files["int4"].write_bytes(b"")
    found = derivatives(zoo, "base")
    assert len(found) == 0
    assert found.left_out == {
        "recorded on different samples or with different settings": 1,
        "with other layers": 1,
        "damaged": 1,
    }


def test_copies_without_blocks_or_gradients_are_found(tmp_path):
    """A recording without blocks has no signature; one with gradients is of the same group."""
    zoo = Zoo(tmp_path / "z")
    zoo.add(recorded("int8", gradients=True))
    zoo.add(recorded("int4", blocks=0))
    zoo.add(recorded("pruned", blocks=0))
    assert [x.entry.name for x in zoo.derivatives(recorded("base"))] == ["int8"]
    found = zoo.derivatives(recorded("base", blocks=0))
    assert [x.entry.name for x in found] == ["int4", "pruned"]
    assert found.looked_at == 2


def test_pairs_that_cannot_be_matched_need_no_comparison():
    one = recorded("base")
    assert may_be_related(one, recorded("int8"))
    assert not may_be_related(one, recorded("twin"))
    other = replace(one, layers=(replace(one[0], name="x", bare_name="x", shape=(9,)),))
    assert not may_be_related(one, other)
