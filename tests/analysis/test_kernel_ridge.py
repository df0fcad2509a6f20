"""Kernel ridge in closed form against solving and refitting."""

import numpy as np
import pytest
import torch

import reference_analysis as reference
from resemblance.analysis.kernel_ridge import Problem, kernel


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
    fit = Problem.of_items(items, targets)
    for alpha in (0.01, 1.0, 30.0):
        predicted = kernel({"features": torch.from_numpy(new)}, items) @ fit.weights(alpha)
        np.testing.assert_allclose(predicted, reference.ridge(k, t, alpha, new @ x.T), atol=1e-8)
        np.testing.assert_allclose(
            fit.leave_one_out(alpha), reference.leave_one_out(k, t, alpha), atol=1e-7
        )


def test_product_kernel_multiplies_the_kinds():
    x, t, _ = problem(20, 4)
    items = {"features": torch.from_numpy(x), "gradients": torch.from_numpy(x**2)}
    k = (x @ x.T) * (x**2 @ (x**2).T)
    got = kernel(items, items)
    np.testing.assert_allclose(got, k)
    weights = Problem.of_items(items, torch.from_numpy(t)).weights(0.5)
    np.testing.assert_allclose(k @ weights.numpy(), reference.ridge(k, t, 0.5, k), atol=1e-8)


def test_alpha_has_the_least_leave_one_out_error_of_the_grid():
    x, t, _ = problem(30, 5)
    fit = Problem.of_items({"features": torch.from_numpy(x)}, torch.from_numpy(t))
    alpha, accuracy = fit.best_by_leave_one_out(fit.alphas())
    errors = {a: ((reference.leave_one_out(x @ x.T, t, a) - t) ** 2).sum() for a in fit.alphas()}
    assert alpha == min(errors, key=errors.get)
    left_out = reference.leave_one_out(x @ x.T, t, alpha)
    assert accuracy == (left_out.argmax(1) == t.argmax(1)).mean()
