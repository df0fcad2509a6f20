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
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from .._by_content import by_content
from ..errors import DataError, MismatchError, ResemblanceWarning, optional
from ..representation.as_given import Given, recording
from ..representation.representation import Representation
from ..similarity import combinations, error_bars
from ..similarity.combinations import Kernel
from ..similarity.doubtful_errors import fewest_effective
from . import squared_norms
from .leave_one_out import leave_one_out
from .same_network import refuse_other_network
from .squared_norms import SquaredNorms

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
    df: Mapping[str, np.ndarray]  # of each standard error, its degrees of freedom
    n_eff: np.ndarray  # (layers,) samples that carry the kernel, (Σ K_ii)² / Σ K_ii²

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

    def interval(self, column: str, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval that holds a share `level` of values from such samples.

        By Student's t: where few samples carry a kernel, a standard error is itself uncertain.
        """
        value, error = self[column], self[f"{column}_stderr"]
        if not (isinstance(level, Real) and 0 < level < 1):
            raise DataError(f"level must lie between 0 and 1; found {level!r}")
        far = error_bars.student_t(level, self.df[column]) * error
        return value - far, value + far

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
        degrees = {f"{name}_df": values for name, values in out.pop("df").items()}
        columns = {**out.pop("columns"), **degrees, "n_eff": out.pop("n_eff")}
        for name, values in columns.items():
            out[name] = [None if math.isnan(value) else value for value in values.tolist()]
        return out

    def to_frame(self) -> pandas.DataFrame:
        """One row a layer, in order of execution."""
        pandas = optional("pandas", "pandas", "frames")
        columns = {**self.columns, "n_eff": self.n_eff}
        return pandas.DataFrame(columns, index=pandas.Index(self.layers, name="layer"))

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
        names = [plot.literal(plot.shorten(name)) for name in longest.layers]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set(xlabel="layer", ylabel=column.replace("_", " "))
        axes.legend(frameon=False, fontsize=8)
        return figure


def adaptation(
    rep: Given,
    *,
    kernel: Kernel = "product",
    estimator: Literal["blocks", "paper"] = "blocks",
    model: nn.Module | None = None,
    data: Any = None,
) -> Adaptation:
    """‖μ‖, ‖K‖_F/N², √Tr K/N and their ratios at each layer, with standard errors.

    Args:
        rep: what `record` made of a network on a data set, or the path of a file that holds it.
        kernel: features, gradients, product, sum or elementwise.
        estimator: `"blocks"` is unbiased for ‖μ‖² of all N samples, off-diagonal entries being
            averaged as a U-statistic over pairs inside blocks, and nearly so for ‖K‖_F²; Tr K is
            exact. Of small data, whose kernel was kept whole, everything is exact. Where samples
            lie outside the blocks and the norms of all were kept, they say how heavy those are.
            `"paper"` is what the first code computed, sums over the bucket kernel: ‖μ‖² is then too
            large by about E‖f‖² E‖g‖² / M, and there is no standard error.
        model, data: the network and labelled data, (inputs, labels) or a data set of such pairs, of
            at most a few thousand samples. They add the column `loo_accuracy`: of kernel ridge on
            the layer's features, leave-one-out in closed form. This costs a pass over the data.

    A standard error says how far a value would move with other samples of the same source: the
    jackknife over blocks, or over groups of samples, for the three squared norms, the delta method
    for what is made of them; `interval` widens it where it is itself uncertain. Where a few samples
    carry the kernel (`n_eff`) no such error can be trusted, and a warning says so. Where ‖μ‖² is
    estimated below zero (it is then zero within its error), ‖μ‖ and its ratios are NaN and a
    warning says so; leaving those out of an average would bias it upwards, so average
    `mean_embedding_squared`, which always holds the unbiased estimate.

    Cost: one read of the blocks. Reference: Tang et al. 2020, arXiv 2003.11498, section 6.3.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3))
    >>> table = rs.adaptation(rs.record(net, torch.randn(256, 4)), kernel="features")
    >>> bool(table["mean_embedding"][0] > 0)
    True
    """
    rep = recording(rep)
    combinations.check("adaptation", kernel, estimator=estimator)
    if (model is None) != (data is None):
        raise DataError("loo_accuracy needs both model= and data=(inputs, labels); found one only")
    if model is not None:
        refuse_other_network(model, rep)
    estimated = squared_norms.from_blocks if estimator == "blocks" else squared_norms.from_buckets
    columns: dict[str, list[float]] = {}
    degrees: dict[str, list[float]] = {}
    n_eff = []
    for layer in rep:
        found = estimated(layer, kernel, rep)
        n_eff.append(found.n_eff)
        for into, each in zip((columns, degrees), _columns(found, layer.name), strict=True):
            for name, value in each.items():
                into.setdefault(name, []).append(value)
    table = {name: np.array(values) for name, values in columns.items()}
    if model is not None:
        table |= _leave_one_out(model, data, rep)
    where = rep.data.id or f"data {rep.data.fingerprint[:6]}"
    layers = tuple(rep.layer_names)
    df = {name: np.array(values) for name, values in degrees.items()}
    carried = np.array(n_eff)
    _warn_if_few(carried, rep)
    return Adaptation(rep.name, where, kernel, estimator, rep.samples, layers, table, df, carried)


def _warn_if_few(n_eff: np.ndarray, rep: Representation) -> None:
    """Say where error bars cannot be trusted, as `compare` does."""
    at = np.flatnonzero(n_eff < fewest_effective(rep, rep.samples // rep.settings.tokens))
    if len(at):
        worst = at[n_eff[at].argmin()]
        warnings.warn(
            f"few samples carry the kernel at {len(at)} of {len(rep)} layers (about "
            f"{n_eff[worst]:.0f} of {rep.samples:,} at {rep[int(worst)].name!r}): error bars are "
            "too narrow to be trusted there; record more samples, or with another beta",
            ResemblanceWarning,
            stacklevel=3,
        )


def _columns(found: SquaredNorms, layer: str) -> tuple[dict[str, float], dict[str, float]]:
    """Every column's value and standard error, by the delta method, and degrees of freedom."""
    squares = found.values
    out: dict[str, float] = {}
    degrees: dict[str, float] = {}

    def put(name: str, value: float, slope: np.ndarray) -> None:
        error = df = math.nan
        if found.deviations:
            moves = [torch.from_numpy(x @ slope) for x in found.deviations]
            error, df = (float(x) for x in error_bars.standard_error(moves))
        out.update({name: value, f"{name}_stderr": error})
        degrees[name] = df

    for name, exponents in _EXPONENTS.items():
        e = np.array(exponents)
        used = e != 0
        if (squares[used] > 0).all():
            value = float(np.prod(squares[used] ** e[used]))
            slope = np.zeros(3)
            slope[used] = value * e[used] / squares[used]
            put(name, value, slope)
        else:
            put(name, math.nan, np.full(3, math.nan))
    ratio = out["ratio_frobenius"]
    slope = np.array(_EXPONENTS["ratio_frobenius"]) / np.where(squares > 0, squares, math.nan)
    log = math.log(ratio) if ratio > 0 else math.nan  # zero if ‖K‖_F is beyond float64
    put("log_ratio", log, np.where(slope == 0, 0.0, slope))
    put("mean_embedding_squared", float(squares[0]), np.array([1.0, 0.0, 0.0]))
    if squares[0] <= 0:
        error = out["mean_embedding_squared_stderr"]
        warnings.warn(
            f"‖μ‖² at layer {layer!r} is estimated at {squares[0]:.3g} ± {error:.3g}"
            ", not above zero: ‖μ‖ and its ratios are NaN there; record more samples or blocks",
            ResemblanceWarning,
            stacklevel=3,
        )
    return out, degrees


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
