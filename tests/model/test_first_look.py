"""What is said of a model after its first samples: no gradients at all, and outputs that move."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._seeded_random import shuffled
from resemblance.errors import TargetError

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))


class Runs(networks.MLP):
    """Notes how many samples each run was on, and whether for a gradient."""

    def forward(self, x):
        self.__dict__.setdefault("runs", []).append((len(x), torch.is_grad_enabled()))
        return super().forward(x)


def record(model, data=X, **options):
    return rs.record(model, data, block=8, layers=["act1", "act2"], **options)


def test_one_small_run_more_than_there_are_batches():
    model = networks.seeded(Runs)
    record(model, batch_size=32)
    assert model.runs == [(2, False), (32, True), (2, False), (32, True), (32, True)]


def test_where_the_batch_size_is_open_that_run_is_a_trial():
    model = networks.seeded(Runs)
    record(model)
    assert model.runs == [(2, False), (2, True), (96, True)]


@pytest.mark.parametrize("batch_size", [1, 8, 16, 40, "auto"])
def test_no_gradient_at_all_is_refused_after_the_first_samples(batch_size):
    model = networks.seeded(Runs)
    with pytest.raises(TargetError, match="zero at every layer"):
        record(model, target=lambda z, _: 0 * z.sum(1), batch_size=batch_size)
    seen = [n for n, gradients in model.runs if gradients]
    assert sum(seen) <= {"auto": 98}.get(batch_size, 32 + 8)


def test_no_gradient_at_all_is_refused_where_there_are_few_samples():
    with pytest.raises(TargetError, match="zero at every layer"):
        record(networks.seeded(networks.MLP), X[:9], target=lambda z, _: 0 * z.sum(1))
    record(networks.seeded(networks.MLP), X[:9], gradients=False)


def test_the_first_samples_may_have_no_gradient_if_others_have_one():
    first = X[torch.from_numpy(shuffled(len(X), seed=0)[:10].copy())]

    def none_at_first(z, batch):
        quiet = (batch[:, None] == first).all(-1).any(1)
        return z.square().sum(1) * ~quiet

    one, all_at_once = (
        record(networks.seeded(networks.MLP), target=none_at_first, batch_size=n) for n in (1, 96)
    )
    assert one["act2"].gradients.norms.count_nonzero() == len(X) - 10
    assert torch.allclose(one["act2"].gradients.norms, all_at_once["act2"].gradients.norms)


def test_gradients_that_are_zero_where_samples_are_alike_are_not_refused():
    """A trial's batch is of one sample several times, whose spread has no slope at zero."""
    rep = record(networks.seeded(networks.MLP), target=lambda z, _: (z - z.mean(0)).square().sum(1))
    assert rep["act1"].gradients.norms.count_nonzero() > 90


@pytest.mark.parametrize("batch_size", [3, "auto"])
def test_a_random_model_is_named_whether_or_not_there_was_a_trial(batch_size):
    class Drops(networks.MLP):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5))

    with pytest.warns(UserWarning, match="gives other values when it is run again"):
        record(networks.seeded(Drops), batch_size=batch_size)
