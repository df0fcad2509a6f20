"""How well each layer of a network predicts labels, each sample from all others, in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from .._data import labels
from .._model.losses import FindLogits
from .._model.pooling import Pool
from ..similarity import combinations, kernels
from ..similarity.combinations import Kernel
from .kernel_ridge import Problem
from .sample_vectors import Pass, Vectors, joined, visit


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out accuracy of kernel ridge at each layer, and the α at which it was reached."""

    accuracies: Mapping[str, float]
    alphas: Mapping[str, float]
    samples: int


def leave_one_out(
    model: nn.Module,
    data: Any,
    y: Any = None,
    *,
    layers: str | Sequence[str] = "auto",
    kernel: Kernel = "features",
    pool: Pool = "flatten",
    beta: float = 0.5,
    logits: FindLogits | None = None,
    max_dim: int | None = 16384,
    seed: int = 0,
    batch_size: int = 128,
) -> LeaveOneOut:
    """Leave-one-out accuracy of kernel ridge classification at each layer.

    One-hot targets T, kernel K: sample i is predicted as tᵢ − [(K+αI)⁻¹T]ᵢ / [(K+αI)⁻¹]ᵢᵢ, which is
    what fitting without it gives. α is that of least squared error on a grid of 17. Nothing is
    trained and nothing set aside, which makes it a measure of how well a network suits a small
    labelled data set (docs/adaptation.md).

    Args:
        data, y: as in `KernelClassifier.fit`: labels in the data, or apart.
        kernel: features, gradients or product.
        max_dim: wider layers are folded to this width; None folds nothing.

    Bias: α has seen the samples it is scored on, which lifts the accuracy a little, by less than
    its standard error √(p(1−p)/N). Cost: one pass; N × d floats and O(N² min(N, d)) a layer.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    >>> dict(leave_one_out(net, x, [1, 0] * 20, layers="0").accuracies)
    {'0': 1.0}
    """
    combinations.check("ridge", kernel)
    given = None if y is None else labels.as_labels(y)
    how = Pass(kernels.needs(kernel), pool, beta, logits, None, max_dim, seed, batch_size)
    found: list[np.ndarray] = []
    rows: dict[str, list[Vectors]] = {}

    def consume(indices: np.ndarray, own: Any, layers: dict[str, Vectors]) -> None:
        found.append(labels.of_batch(indices, own, given))
        for name, vectors in layers.items():
            rows.setdefault(name, []).append(vectors)

    visit(model, data, layers, how, consume)
    whole = np.concatenate(found)
    targets = labels.one_hot(whole, labels.classes(whole))
    accuracies, alphas = {}, {}
    for name in list(rows):
        problem = Problem.of_items(joined(rows.pop(name)), targets)  # vectors go once used
        alphas[name], accuracies[name] = problem.best_by_leave_one_out(problem.alphas())
    return LeaveOneOut(accuracies, alphas, len(whole))
