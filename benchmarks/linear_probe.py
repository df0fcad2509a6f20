"""A linear probe: logistic regression on a layer's features, its penalty chosen on held-out images.

Features are centred and scaled to a mean squared norm of one, then turned into the directions that
the images fitted span, which changes no prediction of a penalised fit and makes layers of any width
cost the same. A quarter of the images says which of five penalties is best; the last fit has all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # on the squared weights, from strong to weak


def probe_accuracy(fit: Tensor, y: Tensor, test: Tensor, z: Tensor) -> float:
    """Accuracy on test features (m, d) with labels z, of a probe fitted to (n, d) with labels y."""
    x, new = _spanned(fit, test)
    classes = int(max(y.max(), z.max())) + 1
    held = torch.arange(len(x), device=x.device) % 4 == 0
    found = []
    weights = x.new_zeros(x.shape[1] + 1, classes)
    for penalty in PENALTIES:  # each begins where the one before it ended
        weights = _fitted(x[~held], y[~held], weights, penalty)
        found.append(_accuracy(x[held], y[held], weights))
    best = PENALTIES[found.index(max(found))]
    whole = _fitted(x, y, x.new_zeros(x.shape[1] + 1, classes), best)
    return _accuracy(new, z, whole)


def cross_validated(x: Tensor, y: Tensor, folds: int = 5) -> float:
    """Accuracy on images left out, a fold at a time."""
    fold = torch.arange(len(x), device=x.device) % folds
    hits = [
        probe_accuracy(x[fold != k], y[fold != k], x[fold == k], y[fold == k])
        * int((fold == k).sum())
        for k in range(folds)
    ]
    return sum(hits) / len(x)


def _spanned(fit: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both in coordinates of the span of the first: (n, r) and (m, r), float32."""
    mean = fit.mean(0)
    x, new = (fit - mean).double(), (test - mean).double()
    scale = x.square().sum(1).mean().sqrt().clamp_min(1e-12)
    x, new = x / scale, new / scale
    if x.shape[1] <= len(x):
        return x.float(), new.float()
    values, vectors = torch.linalg.eigh(x @ x.T)
    kept = values > 1e-10 * values.amax()
    axes = x.T @ (vectors[:, kept] / values[kept].sqrt())
    return (x @ axes).float(), (new @ axes).float()


def _fitted(x: Tensor, y: Tensor, start: Tensor, penalty: float) -> Tensor:
    weights = start.detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=100, history_size=20, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        value = value + penalty * weights[:-1].square().sum()
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    return weights.detach()


def _accuracy(x: Tensor, y: Tensor, weights: Tensor) -> float:
    return float(((x @ weights[:-1] + weights[-1]).argmax(1) == y).double().mean())
