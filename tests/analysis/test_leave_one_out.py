"""How well each layer predicts labels, each sample from all others."""

import pytest
import torch
from torch import nn

from resemblance.analysis.kernel_classifier import KernelClassifier
from resemblance.analysis.leave_one_out import leave_one_out
from resemblance.errors import DataError

N, NEW = 90, 25


@pytest.fixture(scope="module")
def task():
    """A small trained-looking network, and three classes that overlap a little."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    y = torch.arange(N + NEW) % 3
    x = torch.randn(N + NEW, 6) + 1.5 * nn.functional.one_hot(y, 6)
    return net, x[:N], y[:N], x[N:], y[N:]


def test_leave_one_out_of_every_layer_is_that_of_a_classifier_on_it(task):
    net, x, y, _, _ = task
    found = leave_one_out(net, x, y, layers=["0", "1"])
    for layer in ("0", "1"):
        alone = KernelClassifier(net, layer=layer).fit(x, y)
        assert found.accuracies[layer] == pytest.approx(alone.loo_score_)
        assert found.alphas[layer] == pytest.approx(alone.alpha_)
    with pytest.raises(DataError, match="kernel must be"):
        leave_one_out(net, x, y, kernel="sum")


@pytest.mark.parametrize("batch_size", [7, 128])
def test_it_is_what_fitting_without_each_sample_gives(task, batch_size):
    """At the α it chose: ridge on all others, in float64, one sample at a time."""
    net, x, y, _, _ = task
    found = leave_one_out(net, x, y, layers="1", batch_size=batch_size)
    with torch.no_grad():
        f = net[1](net[0](x)).double()
    targets = nn.functional.one_hot(y, 3).double()
    hits = 0
    for n in range(N):
        rest = torch.arange(N) != n
        K = f[rest] @ f[rest].T + found.alphas["1"] * torch.eye(N - 1, dtype=torch.float64)
        hits += int((f[n] @ f[rest].T @ torch.linalg.solve(K, targets[rest])).argmax() == y[n])
    assert found.accuracies["1"] == pytest.approx(hits / N)
    assert found.samples == N


def test_labels_in_the_data_are_those_given_apart(task):
    net, x, y, _, _ = task
    apart, within = leave_one_out(net, x, y), leave_one_out(net, (x, y))
    assert dict(apart.accuracies) == dict(within.accuracies)
    with pytest.raises(DataError, match="found no labels"):
        leave_one_out(net, x)
