"""Copies that compute the same in another basis, and networks that do not."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from digit_copies import recorded, rounded, trained, unseen
from resemblance.cli.compare_table import comparison_table
from resemblance.errors import ResemblanceWarning
from resemblance.similarity.same_function import recognise, rounding_tolerance

HIDDEN = ("2", "4")  # activations between the layers that are changed
CHAIN = (1, 3, 5)


def permuted(net, seed=0):
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for i, j in itertools.pairwise(CHAIN):
            order = torch.randperm(len(net[i].weight), generator=generator)
            net[i].weight.copy_(net[i].weight[order].clone())
            net[i].bias.copy_(net[i].bias[order].clone())
            net[j].weight.copy_(net[j].weight[:, order].clone())
    return net


def rescaled(net, seed=0, sigma=1.0):
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for i, j in itertools.pairwise(CHAIN):
            scale = (sigma * torch.randn(len(net[i].weight), generator=generator)).exp()
            net[i].weight.mul_(scale[:, None])
            net[i].bias.mul_(scale)
            net[j].weight.div_(scale)
    return net


class Linear(nn.Module):
    """Two linear layers without an activation between, whose middle may be turned."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(self.first(x))))


def turned(net):
    net = copy.deepcopy(net)
    turn = torch.linalg.qr(torch.randn(16, 16)).Q
    with torch.no_grad():
        net.first.weight.copy_(turn @ net.first.weight)
        net.first.bias.copy_(turn @ net.first.bias)
        net.middle.weight.copy_(net.middle.weight @ turn.T)
    return net


def compared(a, b, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        one, two = (rs.record(net, data, buckets=0, **options) for net in (a, b))
        return rs.compare(one, two)


@pytest.fixture(scope="module")
def images():
    return unseen()[0][:300]


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (permuted, ("permuted", "permuted or rotated")),
        (rescaled, ("rescaled", "rescaled")),
        (lambda net: rescaled(permuted(net)), ("rescaled", "rescaled")),
        (lambda net: rescaled(net, sigma=0), (None, None)),
    ],
)
def test_permuted_and_rescaled_units(change, told, elementwise, images):
    how = {"layers": list(HIDDEN), "elementwise": elementwise}
    found = compared(trained(), change(trained()), images, **how)
    expected = told[0] if elementwise else told[1]
    if expected is None:
        assert found.same_function is None
        return
    assert found.same_function.layers == found.same_function.moved == HIDDEN
    assert found.same_function.basis == (expected, expected)
    assert found.same_function.recognised
    assert f"the same function in a different basis, {expected} at 2, 4" in found.summary()
    said = "CKA of the elementwise kernel f ∘ g does" in found.summary()
    assert said == (expected == "rescaled")


@pytest.mark.parametrize("elementwise", [True, False])
def test_a_rotation_is_no_permutation(elementwise):
    torch.manual_seed(0)
    net, x = Linear(), torch.randn(300, 12)
    how = {"layers": ["first", "middle"], "elementwise": elementwise}
    found = compared(net, turned(net), x, **how).same_function
    assert found.basis == ("rotated" if elementwise else "permuted or rotated", "unchanged")
    assert found.moved == ("first",)


def test_more_samples_than_a_full_gram_matrix_has():
    torch.manual_seed(1)
    net = Linear()
    how = {"layers": ["first"], "elementwise": True}
    found = compared(net, turned(net), torch.randn(1300, 12), **how)
    assert found.gradients.estimator == "ratio"
    assert found.same_function.basis == ("rotated",)


@pytest.mark.parametrize("elementwise", [True, False])
def test_units_that_are_rescaled_and_rotated(elementwise):
    torch.manual_seed(5)
    net = Linear()
    other, scale = copy.deepcopy(net), torch.randn(16).exp()
    with torch.no_grad():
        other.first.weight.mul_(scale[:, None])
        other.first.bias.mul_(scale)
        other.middle.weight.div_(scale)
    how = {"layers": ["first"], "elementwise": elementwise}
    found = compared(net, turned(other), torch.randn(300, 12), **how).same_function
    assert found.basis == ("rescaled and rotated" if elementwise else "rescaled",)


def test_a_folded_norm_is_a_rescaled_layer():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(12, 24), nn.RMSNorm(24), nn.Linear(24, 5))
    with torch.no_grad():
        net[1].weight.copy_(torch.randn(24).exp())
    folded = copy.deepcopy(net)
    with torch.no_grad():
        folded[2].weight.mul_(net[1].weight)
        folded[1].weight.fill_(1)
    found = compared(net, folded, torch.randn(300, 12), layers=["0", "1"])
    assert found.same_function.basis == ("unchanged", "rescaled")


def test_other_networks_are_never_called_the_same(images):
    how = {"layers": list(HIDDEN), "elementwise": True}
    for other in (rounded(8), rounded(4), permuted(rounded(8))):
        assert compared(trained(), other, images, **how).same_function is None
    torch.manual_seed(3)
    twins = [nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3)) for _ in range(4)]
    for net in twins[1:]:  # untrained ones predict nearly the same
        net[2].weight.data.mul_(0.01)
        assert (
            compared(twins[0], net, torch.randn(300, 12), **{**how, "layers": ["1"]}).same_function
            is None
        )


def test_equal_predictions_from_other_units_are_undecided():
    """A layer that is doubled, each half with half of the weight, is no permutation."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    other = copy.deepcopy(net)
    other[0], other[2] = nn.Linear(12, 16), nn.Linear(16, 3)
    with torch.no_grad():
        for k in range(2):
            other[0].weight[8 * k : 8 * k + 8] = net[0].weight
            other[0].bias[8 * k : 8 * k + 8] = net[0].bias
            other[2].weight[:, 8 * k : 8 * k + 8] = net[2].weight / 2
        other[2].bias.copy_(net[2].bias)
    found = compared(net, other, torch.randn(300, 12), layers=["1"])
    assert found.same_function.basis == ("undecided",)
    assert not found.same_function.recognised
    assert "it is undecided whether the copy is the same network" in found.summary()


def test_without_gradients_little_scales_are_undecided(images):
    how = {"layers": list(HIDDEN), "gradients": False}
    found = compared(trained(), rescaled(trained(), sigma=0.2), images, **how)
    assert found.coordinates.cosine[0].min() > 0.9
    assert found.same_function.basis == ("undecided", "undecided")
    rough = compared(trained(), rounded(13), images, **how)
    assert rough.behaviour.kl < 1e-6
    assert rough.same_function is None
    moved = compared(trained(), permuted(trained()), images, **how)
    assert moved.same_function.basis == ("permuted or rotated",) * 2


def test_without_predictions_nothing_is_said(images):
    how = {"layers": list(HIDDEN), "outputs": False}
    assert compared(trained(), permuted(trained()), images, **how).same_function is None


def test_rounding_depends_on_the_precision(images):
    a = recorded("base")
    assert rounding_tolerance(a, a) == 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        low = rs.record(trained(), images, dtype="bfloat16", layers=list(HIDDEN))
        moved = rs.record(permuted(trained()), images, dtype="bfloat16", layers=list(HIDDEN))
    assert rounding_tolerance(a, low) == 1e-3
    assert rs.compare(low, moved).same_function.basis == ("permuted or rotated",) * 2


def test_small_errors_in_low_precision_are_no_other_basis(images):
    """An int8 copy in bfloat16, whose predictions are equal within that rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        how = {"dtype": "bfloat16", "layers": list(HIDDEN)}
        base, other = (rs.record(net, images, **how) for net in (trained(), rounded(7)))
    found = rs.compare(base, other)
    assert found.behaviour.kl < rounding_tolerance(base, other)
    assert found.same_function is None
    assert rs.check(base, other, min_db=60).status == "failed"


def test_it_is_kept_in_files_and_older_files_are_read(tmp_path, images):
    found = compared(trained(), rescaled(trained()), images, layers=list(HIDDEN))
    again = rs.FullComparison.load(found.save(tmp_path / "c.json"))
    assert again == found
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["same_function"]["basis"] == ["rescaled", "rescaled"]
    del content["same_function"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert rs.FullComparison.load(tmp_path / "old.json").same_function is None


def test_a_gate_leaves_undecided_what_does_not_apply(images):
    how = {"layers": list(HIDDEN), "buckets": 0}
    base = rs.record(trained(), images, **how, name="base")
    for change, kind in ((permuted, "permuted or rotated"), (rescaled, "rescaled")):
        other = rs.record(change(trained()), images, **how, name="copy")
        assert rs.check(base, other, max_kl=0.05).status == "passed"
        verdict = rs.check(base, other, min_db=20)
        assert verdict.status == "undecided"
        assert (
            "does not apply to the same function in a different basis "
            f"({kind}; predictions are equal up to rounding): SQNR compares unit by unit"
        ) in verdict.summary()
        scores = rs.check(base, other, min={"features": 0.999})
        assert scores.status == ("passed" if change is permuted else "undecided")
    assert np.isnan(rs.copies(base, [other]).decibels[0])
    assert rs.check(base, rs.record(rounded(3), images, **how), min_db=30).status == "failed"


def test_the_table_names_the_basis_and_leaves_out_its_decibels(images):
    found = compared(trained(), rescaled(trained()), images, layers=[*HIDDEN, "5"])
    assert found.coordinates.shared
    lines = comparison_table(found, 120)[0]
    assert [line.split()[-1] for line in lines] == [
        "basis",
        lines[1].split()[-1],
        *found.same_function.basis,
    ]
    assert found.same_function.basis == ("rescaled", "rescaled", "unchanged")
    assert [line.split()[-3:-1] for line in lines[2:4]] == [["–", "–"]] * 2
    assert "–" not in lines[4]


def test_an_estimate_of_kl_must_be_zero_beyond_its_noise(images):
    """Beyond 1,024 classes KL is estimated, and a noisy estimate may lie at or below zero."""
    a, b = (rs.record(net, images, buckets=0) for net in (trained(), permuted(trained())))
    found = rs.compare(a, b)
    assert found.same_function is not None
    for noise, recognised in ((0.0, True), (1e-3, False)):
        estimate = replace(found.behaviour, kl=-1e-5, kl_stderr=noise, js_upper=0.0)
        same = recognise(
            a, b, found.features, found.gradients, found.coordinates, estimate, found.features.best
        )
        assert (same is not None) == recognised
