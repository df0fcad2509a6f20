"""Adaptation scores: the norm of the kernel mean embedding at each layer.

It measures how much a network would have to change to fit the data. With K the kernel of a layer
over N samples, ‖μ‖² = (1/N²) Σ_ij K_ij is the squared norm of the mean of ψ(x). For the default
`product` kernel ψ = g fᵀ, whose mean is zero once the network has converged. The norm is reported
next to the normalisers of similarity indices, ‖K‖_F/N² (CKA) and √Tr K / N (NBS).

The three squared norms ‖μ‖², ‖K‖_F²/N⁴ and Tr K/N² are exact where the full Gram matrix is stored.
Otherwise they are estimated from blocks (and the norms of all samples, where known), or from
buckets, with jackknife deviations for the standard errors.

`dispersity` has two scores of the predictions, which stand beside these as `Adaptation.outputs`.

Use it to compare data sets on one network. It does not rank networks for one data set: for that,
pass the network and labelled data, and read the column `loo_accuracy` (docs/how-to/adaptation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .._ops.packing import symmetric_matrices
from .._utils.formatting import format_quantity, join_error, printable
from ..errors import DataError, MismatchError, warn
from ..representation.layer import Layer
from ..representation.notes import make_note
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..similarity import (
    block_estimator,
    bucket_estimator,
    jackknife,
    ratio_estimator,
    stored_kernels,
)
from ..similarity.jackknife import min_effective_samples
from ..similarity.kernels import Kernel, check_combination, required_kinds
from ..similarity.results import Result
from .dispersity import OutputAdaptation, output_adaptation
from .kernel_ridge import leave_one_out
from .layer_vectors import require_same_network

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_JACKKNIFE_GROUPS = 64  # of samples whose norms are known, to be left out in turn


class SquaredNorms(NamedTuple):
    """‖μ‖², ‖K‖_F²/N⁴ and Tr K/N² of all N samples."""

    values: np.ndarray  # (3,)
    deviations: list[np.ndarray]  # each (k, 3), whose squares add up to variances
    n_eff: float


def squared_norms_from_blocks(layer: Layer, kernel: Kernel, rep: Representation) -> SquaredNorms:
    """From exact kernels: of all samples, of blocks, or of blocks and the norms of all samples.

    Bias: none for ‖μ‖² and Tr K; with the norms of all samples, that of a ratio, to second order.
    Of a whole kernel everything is exact. Cost: one read of the blocks.
    """
    n = rep.samples
    for kind in required_kinds(kernel):
        layer.packed_blocks(kind)  # or an error that says how to record it
    total, others = _kernel_sums(layer, kernel, rep)
    if not total[1]:
        raise MismatchError(
            f"layer {layer.name!r} has no blocks with two or more samples; record with `blocks` "
            'above 0 and at least two samples, or use `estimator="paper"`'
        )
    held = total[0] / n  # the part of the samples that is in blocks
    plain = held >= 1 or rep.settings.tokens > 1  # whose norms do not tell sequences apart
    norms = None if plain else ratio_estimator.sample_norms([layer], kernel)
    if norms is not None:
        return _norms_with_diagonal(total, others, norms[0].numpy(), n)

    def squares(sums: np.ndarray, trace: np.ndarray | float) -> np.ndarray:  # (..., 8) -> (..., 3)
        samples, pairs, _, d2, k, k2 = np.moveaxis(sums[..., :6], -1, 0)
        return _norms_from_means(k / pairs, k2 / pairs, d2 / samples, trace, n)

    whole = squares(total, _kernel_trace(layer, kernel) / n)
    n_eff = float(total[2] ** 2 / total[3]) if total[3] else math.nan
    if len(others) < 2 or not others[:, 1].all():
        return SquaredNorms(whole, [], n_eff)
    left_out = jackknife.jackknife_deviations(
        torch.from_numpy(squares(others, others[:, 2] / others[:, 0]))
    )
    # Tr K sums over every sample, the blocks hold some: what it owes to chance is that much less.
    left_out[:, 2] *= math.sqrt(min(1.0, held))
    return SquaredNorms(whole, [left_out.numpy()], n_eff)


def _norms_from_means(
    off: np.ndarray, off2: np.ndarray, d2: np.ndarray, trace: np.ndarray | float, n: int
) -> np.ndarray:  # (..., 3)
    """From means of K_ij and K_ij² over pairs, and of K_ii² and K_ii over samples."""
    mean = trace / n + (n - 1) / n * off
    return np.stack([mean, (d2 + (n - 1) * off2) / n**3, trace / n + np.zeros_like(mean)], -1)


def _norms_with_diagonal(
    total: np.ndarray, others: np.ndarray, diagonal: np.ndarray, n: int
) -> SquaredNorms:  # (8,), (k, 8), (samples known,)
    """With K_ij = C_ij √(K_ii K_jj): the mean of C from blocks, K_ii of every sample."""

    def squares(sums: np.ndarray, every: np.ndarray) -> np.ndarray:  # (..., 8), (..., 4)
        k, k2, weight, weight2 = np.moveaxis(sums[..., 4:], -1, 0)
        known, root, d, d2 = np.moveaxis(every, -1, 0)
        pairs = known * (known - 1)
        off, off2 = k / weight * (root**2 - d) / pairs, k2 / weight2 * (d**2 - d2) / pairs
        return _norms_from_means(off, off2, d2 / known, d / known, n)

    each = np.stack([np.ones_like(diagonal), diagonal**0.5, diagonal, diagonal**2], -1)
    groups = np.array_split(each, min(_JACKKNIFE_GROUPS, len(each)))
    every = each.sum(0)
    n_eff = float(every[2] ** 2 / every[3]) if every[3] else math.nan
    whole = squares(total, every)
    if len(others) < 2 or not others[:, 1].all():
        return SquaredNorms(whole, [], n_eff)
    left_out = [
        squares(others, every),
        squares(total, every - [x.sum(0) for x in groups]),
    ]
    return SquaredNorms(
        whole,
        [jackknife.jackknife_deviations(torch.from_numpy(x)).numpy() for x in left_out],
        n_eff,
    )


def _kernel_sums(
    layer: Layer, kernel: Kernel, rep: Representation
) -> tuple[np.ndarray, np.ndarray]:  # (8,), (k, 8)
    """`_sums_over_rows` of all blocks, and without each part that a jackknife leaves out.

    Parts are groups of samples where the full Gram matrix is stored, groups of sequences of tokens,
    and else blocks.
    """
    tokens, sizes = rep.settings.tokens, rep.block_sizes
    if stored_kernels.has_full_gram(layer, kernel):
        n = rep.samples
        kept = [np.arange(n)]
        kept += [np.delete(kept[0], slice(*span)) for span in block_estimator.sample_groups(n)]
        whole = stored_kernels.read_blocks([layer], kernel, slice(0, 1), n, "cpu", whole=True)
        each = _sums_over_rows(*whole, kept)[0]
        return each[0], each[1:]
    sums, many = [np.zeros((0, 8))], stored_kernels.blocks_at_once(1, "cpu")
    for block in stored_kernels.iter_blocks([layer], kernel, sizes, at_once=many):
        sums.append(_sums_over_rows(*block, [np.arange(block[1].shape[1])])[:, 0])
    by_block = np.concatenate(sums)
    total = by_block.sum(0)
    if tokens == 1:
        return total, total - by_block
    others = []
    for group in jackknife.sequence_groups(rep):
        window = stored_kernels.read_blocks([layer], kernel, group.blocks, group.size, "cpu")
        rest = _sums_over_rows(*window, [group.rest])[:, 0]
        others.append(total - by_block[group.blocks].sum(0) + rest.sum(0))
    return total, np.stack(others)


def _sums_over_rows(
    triangles: Tensor, diagonals: Tensor, kept: Sequence[np.ndarray]
) -> np.ndarray:  # (b, n(n-1)/2), (b, n), g sets of rows -> (b, g, 8)
    """Of blocks with some rows kept: samples, pairs, Σd, Σd² of the diagonal, Σ_{i≠j} of K, of K²,

    and of what norms alone would make of them, √(d_i d_j) and d_i d_j.
    """
    rows = torch.zeros(len(kept), diagonals.shape[1], dtype=torch.float64)
    for row, which in zip(rows, kept, strict=True):
        row[torch.from_numpy(which)] = 1
    d, n = diagonals, rows.sum(1).expand(len(diagonals), -1)
    k = symmetric_matrices(triangles, torch.zeros_like(d))
    s, s2, roots = (x @ rows.T for x in (d, d.square(), d.clamp_min(0).sqrt()))
    of_pairs = [((rows @ x) * rows).sum(-1) for x in (k, k.square())]
    each = [n, n * (n - 1), s, s2, *of_pairs, roots**2 - s, s**2 - s2]
    return torch.stack(each, -1).numpy()


def squared_norms_from_buckets(layer: Layer, kernel: Kernel, rep: Representation) -> SquaredNorms:
    """Sums over the bucket kernel, as the first code had them; ‖μ‖² comes out too large."""
    k = bucket_estimator.bucket_kernel(layer, kernel, centre=False, paper=True) / rep.samples**2
    squares = [float(k.sum()), float((k * k).sum()), float(k.trace())]
    return SquaredNorms(np.array(squares), [], math.nan)


def _kernel_trace(layer: Layer, kernel: Kernel) -> float:
    if kernel == "sum":  # each part is divided by its own trace
        return 2.0
    if kernel == "product" and layer.products is not None:
        return layer.products.norms
    return layer.recorded(*required_kinds(kernel)).trace


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


@dataclass(frozen=True, eq=False, repr=False)
class Adaptation(Result):
    """How much a network must adapt to a data set, layer by layer.

    The columns are those of `COLUMNS`, each with its `_stderr` beside it. `loo_accuracy` joins them
    when `adaptation` was given the network and labelled data. `to_frame` has one row for each
    layer, in order of execution, with these columns and n_eff.

    Attributes:
        model: name of the network.
        data: name of the data set.
        kernel: name of the kernel.
        estimator: how the norms were estimated: from blocks, or as in the paper.
        samples: number of samples.
        layers: layers in order of execution.
        columns: values of each column, one for each layer.
        df: degrees of freedom of the standard errors of each column.
        n_eff: effective sample size of each layer's kernel, (Σ K_ii)² / Σ K_ii².
        outputs: two scores of the predictions. `outputs.dispersity` is their nuclear norm over its
            largest value (smaller where data differ more from the training data) and
            `outputs.mean_gradient` is ‖mean(p − q)‖, the norm of the mean of the tempered gradient
            at the logits (larger there); each has its `_stderr`. Where the recording has no
            probability of every class they are NaN, and `outputs.withheld` says why.
    """

    model: str
    data: str
    kernel: Kernel
    estimator: Literal["blocks", "paper"]
    samples: int
    layers: tuple[str, ...]
    columns: Mapping[str, np.ndarray]  # each (layers,)
    df: Mapping[str, np.ndarray]  # each (layers,)
    n_eff: np.ndarray  # (layers,)
    outputs: OutputAdaptation

    _kind = "adaptation"
    _index = "layer"

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise DataError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return self.columns[column]

    def _text(self) -> str:
        norm = f"‖μ‖ {self['mean_embedding'][-1]:.3g} at the last of {len(self.layers)} layers"
        return f"{self.label!r}, {norm}, {self.kernel}, from {self.estimator}"

    def _sentences(self) -> Iterator[str]:
        yield (
            f"{printable(self.label)}: {self.kernel}, from {self.estimator}, {self.samples:,} "
            "samples."
        )
        for name, value, error in zip(
            self.layers, self["mean_embedding"], self["mean_embedding_stderr"], strict=True
        ):
            yield f"{printable(name)}: ‖μ‖ {join_error(format_quantity(value, error))}."
        yield self.outputs.sentence()

    def _columns(self) -> Mapping[str, Any]:
        return {"layer": self.layers, **self.columns, "n_eff": self.n_eff}

    @property
    def label(self) -> str:
        return f"{self.model} on {self.data}"

    def interval(self, column: str, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals of a column, by Student's t.

        Where a few samples dominate a kernel, its standard error is itself uncertain, and the
        degrees of freedom account for that.

        Args:
            column: name of the column.
            level: confidence level of the interval.

        Returns:
            The lower and the upper ends, one for each layer.
        """
        value, error = self[column], self[f"{column}_stderr"]
        return jackknife.student_interval(value, error, self.df[column], level)

    def scaled(self) -> Adaptation:
        """The same with ‖μ‖ and both normalisers times the number of layers, as the paper plots it.

        Ratios stay as they are. It makes networks of different depth comparable with ‖θ‖_fr.

        Returns:
            A new result.
        """
        columns = {
            name: values * len(self.layers) ** _SCALED.get(name.removesuffix("_stderr"), 0)
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None.

        The columns stand beside the other attributes, degrees of freedom with the ending `_df`.

        Returns:
            The fields and columns by name, as JSON can hold them.
        """
        found = super().to_dict()
        last = ("columns", "df", "n_eff", "outputs")
        columns, df, n_eff, outputs = (found.pop(name) for name in last)
        degrees = {f"{name}_df": values for name, values in df.items()}
        return {**found, **columns, **degrees, "n_eff": n_eff, "outputs": outputs}

    def plot(self, *others: Adaptation, column: str = "mean_embedding") -> Figure:
        """One column over layers, with two standard errors, for this and other (model, data) pairs.

        Layers are matched by position, as networks of different depth have no others.

        Args:
            others: results to draw beside this one.
            column: the column to draw.

        Returns:
            The figure, which is not shown yet.
        """
        from ..views import plots

        return plots.plot_adaptations((self, *others), column)


def adaptation(
    rep: RepresentationLike,
    *,
    kernel: Kernel = "product",
    estimator: Literal["blocks", "paper"] = "blocks",
    model: nn.Module | None = None,
    data: Any = None,
) -> Adaptation:
    """‖μ‖, ‖K‖_F/N², √Tr K/N and their ratios at each layer, with standard errors.

    Beside them, in `outputs`, are two scores of the predictions: dispersity and ‖mean(p − q)‖.

    A standard error is that of new samples from the same source: a jackknife over blocks, or over
    groups of samples, for the three squared norms, and the delta method for what is computed from
    them; `interval` widens it where it is itself uncertain. Where a few samples dominate the kernel
    (`n_eff`), no standard error can be trusted, and a warning says so. Where the estimate of ‖μ‖²
    is negative (zero within its error), ‖μ‖ and its ratios are NaN, with a warning. An average that
    skipped those would be biased upwards, so average `mean_embedding_squared`, which always holds
    the unbiased estimate.

    Bias: with blocks, none for ‖μ‖² of all N samples, whose off-diagonal entries are averaged as a
    U-statistic over pairs inside blocks, and nearly none for ‖K‖_F²; Tr K is exact. With up to
    1,024 samples everything is exact. Cost: one read of the blocks.

    Reference: Tang et al. 2020, arXiv 2003.11498, section 6.3.

    Args:
        rep: a recording, or the path of its file.
        kernel: `"features"`, `"gradients"`, `"product"`, `"sum"` or `"elementwise"`.
        estimator: `"blocks"` as above, helped by the norms of all samples where they were kept.
            `"paper"` is what the first published code computed, sums over the bucket kernel: ‖μ‖²
            is then too large by about E‖f‖² E‖g‖² / M, and there is no standard error.
        model: the network, for the column `loo_accuracy`: the leave-one-out accuracy of kernel
            ridge on the layer's features, in closed form. It costs a pass over `data`.
        data: labelled data for that column, (inputs, labels) or a data set of such pairs, of at
            most a few thousand samples.

    Returns:
        The columns of the table, one row for each layer, and the scores of the predictions.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3)
        ... )
        >>> table = rs.adaptation(rs.record(net, torch.randn(256, 4)), kernel="features")
        >>> bool(table["mean_embedding"][0] > 0)
        True
    """
    rep = as_representation(rep)
    check_combination("adaptation", kernel, estimator=estimator)
    if (model is None) != (data is None):
        raise DataError("loo_accuracy needs both `model` and `data`; found one only")
    if model is not None:
        require_same_network(model, rep)
    estimated = squared_norms_from_blocks if estimator == "blocks" else squared_norms_from_buckets
    norms = [estimated(layer, kernel, rep) for layer in rep]
    cells = np.array(
        [_adaptation_columns(x, layer.name) for x, layer in zip(norms, rep, strict=True)]
    )
    table: dict[str, np.ndarray] = {}
    df: dict[str, np.ndarray] = {}
    for name, (values, errors, degrees) in zip(COLUMNS, cells.T, strict=True):
        table |= {name: values, f"{name}_stderr": errors}
        df[name] = degrees
    if model is not None:
        table |= _leave_one_out_columns(model, data, rep)
    where = rep.data.id or f"data {rep.data.fingerprint[:6]}"
    n_eff = np.array([x.n_eff for x in norms])
    _warn_if_few_effective(n_eff, rep)
    return Adaptation(
        rep.name,
        where,
        kernel,
        estimator,
        rep.samples,
        tuple(rep.layer_names),
        table,
        df,
        n_eff,
        output_adaptation(rep),
    )


def _warn_if_few_effective(n_eff: np.ndarray, rep: Representation) -> None:
    """Say where standard errors may be too small, as `compare` does."""
    at = np.flatnonzero(n_eff < min_effective_samples(rep, rep.samples // rep.settings.tokens))
    if len(at):
        worst = int(at[n_eff[at].argmin()])
        warn(
            make_note(
                "unreliable-adaptation",
                count=len(at),
                layers=len(rep),
                layer=rep[worst].name,
                n_eff=float(n_eff[worst]),
                samples=rep.samples,
            )
        )


def _adaptation_columns(found: SquaredNorms, layer: str) -> np.ndarray:  # (3, columns)
    """Every column's value, its standard error by the delta method, and degrees of freedom."""
    squares, powers = found.values, np.array([*_EXPONENTS.values()])
    known = np.where(squares > 0, squares, np.nan)
    values = np.prod(known**powers, 1)
    slopes = np.where(powers != 0, values[:, None] * powers / known, 0.0)
    ratio, exponents = (x[[*_EXPONENTS].index("ratio_frobenius")] for x in (values, powers))
    log = math.log(ratio) if ratio > 0 else math.nan  # zero if ‖K‖_F is beyond float64
    of_log = np.where(exponents != 0, exponents / known, 0.0)
    values = np.array([*values, log, squares[0]])
    slopes = np.array([*slopes, of_log, (1, 0, 0)])
    error = df = np.full(len(values), math.nan)
    if found.deviations:
        moves = [torch.from_numpy(x @ slopes.T) for x in found.deviations]
        error, df = (x.numpy() for x in jackknife.standard_error(moves))
    if squares[0] <= 0:
        warn(
            f"‖μ‖² at layer {layer!r} is estimated at {squares[0]:.3g} ± {error[-1]:.3g}"
            ", not above zero: ‖μ‖ and its ratios are NaN there; record more samples or blocks"
        )
    return np.stack([values, error, df])


def _leave_one_out_columns(
    model: nn.Module, data: Any, rep: Representation
) -> dict[str, np.ndarray]:
    if rep.settings.pool.startswith("function"):
        raise MismatchError(
            f"{rep.name!r} was recorded with `pool={rep.settings.pool!r}`, which cannot be "
            "repeated from its name; call leave_one_out with that function yourself"
        )
    found = leave_one_out(model, data, layers=rep.layer_names, pool=rep.settings.pool)
    accuracy = np.array([found.accuracies[name] for name in rep.layer_names])
    error = np.sqrt(accuracy * (1 - accuracy) / found.samples)
    return {"loo_accuracy": accuracy, "loo_accuracy_stderr": error}
