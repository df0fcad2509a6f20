"""How much must a network change for these data? The norm of the kernel mean embedding, by layer.

With K the kernel of a layer over N samples, ‖μ‖² = (1/N²) Σ_ij K_ij is the squared norm of the mean
of ψ(x); for the default `product` kernel ψ = g fᵀ, which is zero in the mean where the network has
settled. It is set against the normalisers of similarity indices: ‖K‖_F/N² (CKA), √Tr K / N (NBS).

Use it to compare data sets on one network. It does not rank networks for one data set: for that,
give it the network and labelled data, and read the column `loo_accuracy` (docs/adaptation.md).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import nn

from .._by_content import by_content
from ..errors import DataError, MismatchError, ResemblanceWarning, optional
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity import block_estimates, bucket_estimates, combinations, kernels
from ..similarity.combinations import Kernel
from .leave_one_out import leave_one_out

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_EXPONENTS = {  # of the squared norms ‖μ‖², ‖K‖_F² / N⁴ and Tr K / N²
    "mean_embedding": (0.5, 0, 0),
    "norm_frobenius": (0, 0.5, 0),
    "norm_trace": (0, 0, 0.5),
    "ratio_frobenius": (0.5, -0.5, 0),
    "ratio_trace": (0.5, 0, -0.5),
}
# log of the first ratio; ‖μ‖², which is unbiased and may come out below zero
COLUMNS = (*_EXPONENTS, "log_ratio", "mean_embedding_squared")
_SCALED = {"mean_embedding": 1, "norm_frobenius": 1, "norm_trace": 1, "mean_embedding_squared": 2}


@by_content
@dataclass(frozen=True, eq=False)
class Adaptation:
    """A table by layer: the columns of `COLUMNS`, each with its `_stderr` beside it.

    `loo_accuracy` joins them when `adaptation` was given the network and labelled data.
    """

    model: str
    data: str
    kernel: Kernel
    estimator: Literal["blocks", "paper"]
    samples: int
    layers: tuple[str, ...]
    columns: Mapping[str, np.ndarray]  # each (layers,)

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise DataError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return self.columns[column]

    def __repr__(self) -> str:
        what = f"{len(self.layers)} layers, {self.kernel}, from {self.estimator}"
        return f"Adaptation({self.label!r}, {what})"

    @property
    def label(self) -> str:
        return f"{self.model} on {self.data}"

    def scaled(self) -> Adaptation:
        """The same with ‖μ‖ and both normalisers times the number of layers, as the paper plots it.

        Ratios stay as they are. It makes networks of different depth comparable with ‖θ‖_fr.
        """
        columns = {
            name: values * len(self.layers) ** _SCALED.get(name.removesuffix("_stderr"), 0)
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        out = {**vars(self), "layers": list(self.layers)}
        for name, values in out.pop("columns").items():
            out[name] = [None if math.isnan(value) else value for value in values.tolist()]
        return out

    def to_frame(self) -> pandas.DataFrame:
        """One row a layer, in order of execution."""
        pandas = optional("pandas", "pandas", "frames")
        return pandas.DataFrame(dict(self.columns), index=pandas.Index(self.layers, name="layer"))

    def plot(self, *others: Adaptation, column: str = "mean_embedding") -> Figure:
        """One column over layers, with two standard errors, for this and other (model, data) pairs.

        Layers are matched by position, as networks of different depth have no others.
        """
        from ..views import figures as plot

        figure = plot.figure(6.4, 4.0)
        axes = figure.subplots()
        longest = max((self, *others), key=lambda one: len(one.layers))
        for one in sorted((self, *others), key=lambda one: one is not longest):
            plot.curve(axes, one[column], one[f"{column}_stderr"], one.layers, label=one.label)
        names = [plot.shorten(name) for name in longest.layers]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set(xlabel="layer", ylabel=column.replace("_", " "))
        axes.legend(frameon=False, fontsize=8)
        return figure


def adaptation(
    rep: Representation,
    *,
    kernel: Kernel = "product",
    estimator: Literal["blocks", "paper"] = "blocks",
    model: nn.Module | None = None,
    data: Any = None,
) -> Adaptation:
    """‖μ‖, ‖K‖_F/N², √Tr K/N and their ratios at each layer, with standard errors.

    Args:
        rep: what `record` made of a network on a data set.
        kernel: features, gradients, product, sum or elementwise.
        estimator: `"blocks"` is unbiased for ‖μ‖² and ‖K‖_F² of all N samples: off-diagonal entries
            are averaged as a U-statistic over pairs inside blocks, and Tr K is exact. `"paper"` is
            what the first code computed, sums over the bucket kernel: ‖μ‖² is then too large by
            about E‖f‖² E‖g‖² / M, and there is no standard error.
        model, data: the network and labelled data, (inputs, labels) or a data set of such pairs, of
            at most a few thousand samples. They add the column `loo_accuracy`: of kernel ridge on
            the layer's features, leave-one-out in closed form. This costs a pass over the data.

    A standard error says how far a value would move with other samples of the same source: the
    jackknife over blocks for the three squared norms, the delta method for what is made of them.
    Where ‖μ‖² is estimated below zero (it is then zero within its error), ‖μ‖ and its ratios are
    NaN and a warning says so; `mean_embedding_squared` always holds the unbiased estimate.

    Cost: one read of the blocks. Reference: Tang et al. 2020, arXiv 2003.11498, section 6.3.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> table = rs.adaptation(rs.record(net, torch.randn(256, 4)))
    >>> bool(table["mean_embedding"][0] > 0)
    True
    """
    combinations.check("adaptation", kernel, estimator=estimator)
    if (model is None) != (data is None):
        raise DataError("loo_accuracy needs both model= and data=(inputs, labels); found one only")
    squared_norms = _from_blocks if estimator == "blocks" else _from_buckets
    columns: dict[str, list[float]] = {}
    for layer in rep:
        for name, value in _columns(*squared_norms(layer, kernel, rep), layer.name).items():
            columns.setdefault(name, []).append(value)
    table = {name: np.array(values) for name, values in columns.items()}
    if model is not None:
        table |= _leave_one_out(model, data, rep)
    where = rep.data.id or f"data {rep.data.fingerprint[:6]}"
    layers = tuple(rep.layer_names)
    return Adaptation(rep.name, where, kernel, estimator, rep.samples, layers, table)


def _from_blocks(
    layer: Layer, kernel: Kernel, rep: Representation
) -> tuple[np.ndarray, np.ndarray]:  # (3,), (3, 3)
    """‖μ‖², ‖K‖_F²/N⁴ and Tr K/N² of all N samples, and their covariance by the jackknife."""
    n = rep.samples
    for kind in kernels.needs(kernel):
        layer.packed_blocks(kind)  # or an error that says how to record it
    rows = [  # samples, pairs, Σd, Σd², Σ_{i≠j}K, Σ_{i≠j}K²
        (len(d), len(d) * (len(d) - 1), d.sum(), (d**2).sum(), 2 * t.sum(), 2 * (t**2).sum())
        for t, d in block_estimates.kernel_blocks(layer, kernel, rep.block_sizes)
    ]
    sums = np.array(rows, float).reshape(-1, 6)
    if not sums[:, 1].any():
        raise MismatchError(
            f"no pair of samples shares a block at layer {layer.name!r}; record with blocks above "
            '0 and at least two samples, or use estimator="paper"'
        )

    def norms(totals: np.ndarray, trace: np.ndarray | float) -> np.ndarray:  # (..., 6) -> (..., 3)
        samples, pairs, _, d2, k, k2 = np.moveaxis(totals, -1, 0)
        mean = trace / n + (n - 1) / n * k / pairs
        frobenius = (d2 / samples + (n - 1) * k2 / pairs) / n**3
        return np.stack([mean, frobenius, trace / n + np.zeros_like(mean)], -1)

    trace = _trace(layer, kernel) / n
    whole, count = norms(sums.sum(0), trace), len(sums)
    if count < 2:
        return whole, np.full((3, 3), np.nan)
    others = sums.sum(0) - sums
    left_out = norms(others, others[:, 2] / others[:, 0])
    moves = left_out - left_out.mean(0)
    # Tr K sums over every sample, the blocks hold some: what it owes to chance is that much less.
    moves[:, 2] *= math.sqrt(min(1.0, sums[:, 0].sum() / n))
    return whole, (count - 1) / count * moves.T @ moves


def _from_buckets(
    layer: Layer, kernel: Kernel, rep: Representation
) -> tuple[np.ndarray, np.ndarray]:  # (3,), (3, 3)
    k = bucket_estimates.kernel_matrix(layer, kernel, centre=False, paper=True) / rep.samples**2
    squares = [float(k.sum()), float((k * k).sum()), float(k.trace())]
    return np.array(squares), np.full((3, 3), np.nan)


def _trace(layer: Layer, kernel: Kernel) -> float:
    if kernel == "sum":  # each part is divided by its own trace
        return 2.0
    if kernel == "product" and layer.products is not None:
        return layer.products.norms
    return layer.recorded(*kernels.needs(kernel)).trace


def _columns(squares: np.ndarray, covariance: np.ndarray, layer: str) -> dict[str, float]:
    """Every column's value and standard error, by the delta method."""
    mean, mean_error = float(squares[0]), math.sqrt(covariance[0, 0])
    if mean <= 0:
        warnings.warn(
            f"‖μ‖² at layer {layer!r} is estimated at {mean:.3g} ± {mean_error:.3g}"
            ", not above zero: ‖μ‖ and its ratios are NaN there; record more samples or blocks",
            ResemblanceWarning,
            stacklevel=3,
        )
    out: dict[str, float] = {}
    for name, exponents in _EXPONENTS.items():
        e = np.array(exponents)
        used, value, error = e != 0, math.nan, math.nan
        if (squares[used] > 0).all():
            value = float(np.prod(squares[used] ** e[used]))
            slope = value * e[used] / squares[used]
            variance = float(slope @ covariance[np.ix_(used, used)] @ slope)
            error = math.sqrt(max(variance, 0.0))  # below zero by round-off, if it is zero
        out |= {name: value, f"{name}_stderr": error}
    ratio, error = out["ratio_frobenius"], out["ratio_frobenius_stderr"]
    out |= {"log_ratio": math.log(ratio), "log_ratio_stderr": error / ratio}
    return out | {"mean_embedding_squared": mean, "mean_embedding_squared_stderr": mean_error}


def _leave_one_out(model: nn.Module, data: Any, rep: Representation) -> dict[str, np.ndarray]:
    if rep.settings.pool.startswith("function"):
        raise MismatchError(
            f"{rep.name!r} was recorded with pool={rep.settings.pool!r}, which cannot be repeated "
            "from its name; call leave_one_out with that function yourself"
        )
    found = leave_one_out(model, data, layers=rep.layer_names, pool=rep.settings.pool)
    accuracy = np.array([found.accuracies[name] for name in rep.layer_names])
    error = np.sqrt(accuracy * (1 - accuracy) / found.samples)
    return {"loo_accuracy": accuracy, "loo_accuracy_stderr": error}
