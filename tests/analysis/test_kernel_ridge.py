"""Kernel ridge in closed form: one decomposition for all scores, and leave-one-out predictions."""

import numpy as np
import pytest
import torch
from torch import nn

import reference_analysis as reference
from resemblance.analysis.classifier import KernelClassifier
from resemblance.analysis.kernel_ridge import (
    FeatureSpectrum,
    RidgeProblem,
    as_spectrum,
    cross_kernel,
    encode_labels,
    leave_one_out,
)
from resemblance.errors import DataError


def problem(n, d, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 1)
    return x, reference.one_hot(y), rng.normal(size=(7, d))


@pytest.mark.parametrize(("n", "d"), [(30, 5), (12, 40)])
def test_weights_and_leave_one_out_are_those_of_explicit_fits(n, d):
    x, t, new = problem(n, d)
    k = x @ x.T
    items, targets = {"features": torch.from_numpy(x)}, torch.from_numpy(t)
    fit = RidgeProblem.of_items(items, targets)
    for alpha in (0.01, 1.0, 30.0):
        predicted = cross_kernel({"features": torch.from_numpy(new)}, items) @ fit.weights(alpha)
        np.testing.assert_allclose(predicted, reference.ridge(k, t, alpha, new @ x.T), atol=1e-8)
        np.testing.assert_allclose(
            fit.leave_one_out(alpha), reference.leave_one_out(k, t, alpha), atol=1e-7
        )


def test_product_kernel_multiplies_the_kinds():
    x, t, _ = problem(20, 4)
    items = {"features": torch.from_numpy(x), "gradients": torch.from_numpy(x**2)}
    k = (x @ x.T) * (x**2 @ (x**2).T)
    got = cross_kernel(items, items)
    np.testing.assert_allclose(got, k)
    weights = RidgeProblem.of_items(items, torch.from_numpy(t)).weights(0.5)
    np.testing.assert_allclose(k @ weights.numpy(), reference.ridge(k, t, 0.5, k), atol=1e-8)


def test_alpha_has_the_least_leave_one_out_error_of_the_grid():
    x, t, _ = problem(30, 5)
    fit = RidgeProblem.of_items({"features": torch.from_numpy(x)}, torch.from_numpy(t))
    alpha, accuracy = fit.best_by_leave_one_out(fit.alphas())
    errors = {a: ((reference.leave_one_out(x @ x.T, t, a) - t) ** 2).sum() for a in fit.alphas()}
    assert alpha == min(errors, key=errors.get)
    left_out = reference.leave_one_out(x @ x.T, t, alpha)
    assert accuracy == (left_out.argmax(1) == t.argmax(1)).mean()


@pytest.mark.parametrize("shape", [(20, 7), (12, 40)])
def test_coordinates_have_the_features_inner_products(shape):
    f = np.random.default_rng(0).normal(size=shape) + 1
    found = FeatureSpectrum.of(torch.tensor(f))
    x = found.coordinates.numpy()
    assert np.allclose(x @ x.T, f @ f.T)
    assert found.width == shape[1]
    y = found.centred().coordinates.numpy()
    g = f - f.mean(0)
    assert np.allclose(y @ y.T, g @ g.T)
    assert len(found.centred().values) == min(shape[0] - 1, shape[1])


def test_a_spectrum_stays_one_and_integers_are_numbers():
    found = as_spectrum(np.array([[1, 2], [3, 4], [5, 7]]))
    assert as_spectrum(found) is found
    assert found.values.dtype == torch.float64


def test_features_that_are_no_table_are_refused():
    with pytest.raises(DataError, match=r"expected features of shape \(samples, width\)"):
        FeatureSpectrum.of(np.zeros((3, 2, 2)))


def test_labels_are_numbered():
    numbers, classes = encode_labels(["b", "a", "b"], 3)
    assert numbers.tolist() == [1, 0, 1]
    assert classes == 2


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
    with pytest.raises(DataError, match="`kernel` must be"):
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
