"""Units: the numbers of `behaviour` are their means, of tokens sequence by sequence."""

from __future__ import annotations

import pytest
import torch

import networks
import resemblance as rs
from digit_copies import recorded
from resemblance.errors import MismatchError
from resemblance.gate.sampled_units import by_unit


def test_means_over_samples_are_those_of_behaviour():
    a, b = recorded(), recorded("int4")
    found, expected = by_unit(a, b), rs.behaviour(a, b)
    assert (found.rows, found.exact, len(found.kl)) == (1, True, 1197)
    for name in ("disagreement", "kl", "js"):
        mean = float(getattr(found, name).double().mean())
        assert mean == pytest.approx(getattr(expected, name), rel=1e-9)


def test_tokens_are_gathered_by_their_sequence():
    nets = [networks.seeded(networks.LittleForCausalLM, seed=seed) for seed in (0, 1)]
    a, b = (rs.record(net, networks.texts(41), tokens=3, block=8) for net in nets)
    found, expected = by_unit(a, b), rs.behaviour(a, b)
    assert (found.rows, len(found.kl)) == (3, 41)
    for name in ("disagreement", "kl", "js"):
        assert float(getattr(found, name).mean()) == pytest.approx(getattr(expected, name))
    rows = (a.rows.sequence >= 0).flatten()
    sequence = a.rows.sequence.flatten()[rows]
    differs = (a.outputs.prediction != b.outputs.prediction).double()
    each = torch.zeros(41, dtype=torch.float64).index_add_(0, sequence, differs) / 3
    assert found.disagreement.sort().values.tolist() == pytest.approx(each.sort().values.tolist())


def test_outputs_that_were_not_kept():
    rep = rs.record(networks.seeded(networks.MLP), torch.randn(40, 6), outputs=False)
    with pytest.raises(
        MismatchError, match=r"has none of its outputs.*record it again; thresholds"
    ):
        by_unit(rep, rep)
