"""Classification without training: `KernelClassifier`, kernel ridge on a layer of a network.

One-hot targets T and the kernel K of a layer give t* = Tᵀ (K + αI)⁻¹ k(x*). Up to a few thousand
samples this is exact. Beyond that, samples and targets are added with the same random signs into
the M buckets of a CountSketch: t* = T̃ᵀ (K̃ + αI)⁻¹ k̃(x*), and a random thousand samples are held
out for cross-validation. docs/evidence/classification.md gives the cost in accuracy. The class
follows scikit-learn's conventions without requiring scikit-learn.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import (
    as_labels,
    check_classes,
    check_known_labels,
    labels_for_batch,
    one_hot,
)
from .._models.layer_outputs import Pool, validate_pool
from .._models.logits import Logits, LogitsReader
from .._models.losses import Objective
from .._models.run import RunModel
from .._ops.count_sketch import CountSketch, add_to_buckets
from .._utils.validation import check_integer, warn_deprecated
from ..errors import DataError, LayerError, MismatchError, ResemblanceError
from ..representation.representation import RepresentationLike, as_representation
from ..similarity.kernels import Kernel, check_combination, required_kinds
from .kernel_ridge import RidgeProblem, best_alpha, cross_kernel
from .layer_vectors import (
    PassConfig,
    Vectors,
    concatenate_vectors,
    require_same_network,
    visit_batches,
)

_HELD_OUT = 1000
_FOLDS = 5


class GatheredSamples:
    """Vectors or buckets of one layer, `add`ed batch by batch."""

    def __init__(self, sketch: CountSketch, exact_up_to: float) -> None:
        self.sketch, self.exact_up_to, self.exact = sketch, exact_up_to, True
        self.count = 0
        self.held: dict[int, Vectors] = {}  # by position, in that order, each (1, d)
        self._indices: list[np.ndarray] = []
        self._waiting: list[tuple[np.ndarray, Vectors]] = []  # batches that are not sketched yet
        self._sums: Vectors = {}  # each (M, d)
        self._sketched = 0
        self._rng = np.random.default_rng(sketch.seed)

    def add(self, indices: np.ndarray, rows: Vectors) -> None:
        """Take in a batch: indices (n,), vectors (n, d)."""
        self._indices.append(indices)
        self._waiting.append((indices, rows))
        self.count += len(indices)
        self.exact = self.count <= self.exact_up_to
        while self._waiting and not self.exact:  # too many to keep: sketch them, and all to come
            self._add_up(*self._waiting.pop(0))

    def _add_up(self, indices: np.ndarray, rows: Vectors) -> None:
        h, s = self.sketch.assign(indices)
        for kind, x in rows.items():
            nothing = torch.zeros(self.sketch.buckets, x.shape[1], dtype=torch.float32)
            add_to_buckets(self._sums.setdefault(kind, nothing), x, h, s)
        for i in range(len(indices)):  # reservoir sampling: any sample is held with equal chance
            self._sketched += 1
            if len(self.held) >= _HELD_OUT:
                if self._rng.integers(self._sketched) >= _HELD_OUT:
                    continue
                del self.held[list(self.held)[self._rng.integers(_HELD_OUT)]]
            self.held[self._sketched - 1] = {k: x[i : i + 1].clone() for k, x in rows.items()}

    def problem(self, targets: Tensor, without: list[int] | None = None) -> RidgeProblem:
        """The ridge problem to targets (n, C), in the order of `add`, less some held samples."""
        if self.exact:
            rows = concatenate_vectors([rows for _, rows in self._waiting])
            return RidgeProblem.of_items(rows, targets)
        indices = np.concatenate(self._indices)
        items = {kind: x.double() for kind, x in self._sums.items()}
        if without:
            h, s = self.sketch.assign(indices[without])
            for kind, x in concatenate_vectors([self.held[i] for i in without]).items():
                add_to_buckets(items[kind], x.double(), h, -s.double())
        kept = np.setdiff1d(np.arange(self.count), without or [])
        table = sketch_targets(targets[kept], self.sketch, indices[kept], len(items))
        return RidgeProblem.of_items(items, table)

    def best_by_folds(self, targets: Tensor, alphas: Sequence[float]) -> tuple[float, float]:
        """The α of least squared error on left-out folds of held samples, and its accuracy."""
        mixed = np.random.default_rng(self.sketch.seed).permutation(list(self.held))
        predicted = []
        for part in np.array_split(mixed, min(_FOLDS, len(mixed))):
            fold = part.tolist()
            others = self.problem(targets, without=fold)
            similar = cross_kernel(concatenate_vectors([self.held[i] for i in fold]), others.items)
            predicted.append(torch.stack([similar @ others.weights(alpha) for alpha in alphas]))
        return best_alpha(alphas, list(torch.cat(predicted, 1)), targets[mixed])


def sketch_targets(
    targets: Tensor, sketch: CountSketch, indices: np.ndarray, kinds: int
) -> Tensor:  # (n, C) -> (M, C)
    """Targets in the buckets of their samples, with the sign that their kernel has there.

    In the product of two bucket kernels a sample's sign stands twice and is gone, so there targets
    are added without it. (The paper gives them the sign for every kernel; with the product, labels
    of opposite sign then cancel, and little is learnt: docs/evidence/classification.md.)
    """
    h, s = sketch.assign(indices)
    table = torch.zeros(sketch.buckets, targets.shape[1], dtype=torch.float64)
    add_to_buckets(table, targets, h, s.double() ** kinds)
    return table


SKETCHES = ("auto", None, "both")


@dataclass(eq=False, repr=False)
class KernelClassifier:
    """Kernel ridge classification on one layer of a network that is not trained further.

    After `fit` it has `classes_`, `layer_`, `alpha_`, `sketch_` (what was used), `n_samples_`, and
    the accuracy on held-out samples: `loo_score_` (exact fit) or `cv_score_` (sketched fit), the
    other one None.

    Cost: one pass. An exact fit holds N × d floats and takes O(N² min(N, d)), a sketched fit holds
    M × d and takes O(M³).

    Reference: Tang et al. 2020, supplement; Avron, Clarkson, Woodruff 2017.

    Args:
        model: any `nn.Module`; for the gradients and product kernels it must end in logits.
        layer: name of the layer, as in `record`; None takes the last that `layers="auto"` finds.
        kernel: `"features"`, `"gradients"` (of the tempered loss, without labels) or `"product"`.
        alpha: the ridge. None chooses it on a grid: by leave-one-out in closed form for an exact
            fit, by five-fold cross-validation on up to 1,000 samples for a sketched one.
        sketch: `"auto"` fits exactly up to `exact_up_to` samples and sketches beyond; None always
            fits exactly; `"both"` always sketches samples and targets.
        buckets: number of sketched items M.
        exact_up_to: largest number of samples that `sketch="auto"` fits exactly.
        classes: all labels there are; None takes those in the data.
        pool: how a layer's output becomes a vector, as in `record`.
        beta: the temperature of the tempered prediction, as in `record`.
        logits: what the model's outputs are, as in `record`.
        call: how to run the model on a batch, as in `record`.
        max_dim: layers wider than this are folded to this width, an unbiased sketch of the kernel;
            None folds nothing.
        seed: seed of the order, the sketch and the fold.
        batch_size: samples per forward pass.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(20, 1)
        >>> y = torch.tensor([1, 0]).repeat(20)
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
        >>> KernelClassifier(net, layer="0").fit(x, y).score(x, y)
        1.0
    """

    model: nn.Module
    _: KW_ONLY
    layer: str | None = None
    kernel: Kernel = "features"
    alpha: float | None = None
    sketch: Literal["auto", "both"] | None = "auto"
    buckets: int = 512
    exact_up_to: int = 8000
    classes: Sequence[Any] | None = None
    pool: Pool = "flatten"
    beta: float = 0.5
    logits: Logits = "auto"
    call: RunModel | None = None
    max_dim: int | None = 16384
    seed: int = 0
    batch_size: int = 128

    _estimator_type = "classifier"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn asks for them.

        Args:
            deep: ignored, as no argument is an estimator.

        Returns:
            Each argument by name.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> KernelClassifier:
        """Replace some of the constructor's arguments.

        Args:
            **params: new values by name.

        Returns:
            The classifier itself.

        Raises:
            DataError: if a name is not an argument of the constructor.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise DataError(f"no parameter {name!r}; there are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        options = f"layer={self.layer!r}, kernel={self.kernel!r}, sketch={self.sketch!r}"
        return f"KernelClassifier({type(self.model).__name__}, {options})"

    def __sklearn_tags__(self) -> Any:  # asked for by scikit-learn alone, which is there then
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def _prepare(self, max_dim: int | None, seed: int) -> None:
        """Check the parameters and forget an earlier fit; scikit-learn's estimators do it here."""
        check_combination("ridge", self.kernel)
        if self.sketch in ("data", "labels"):
            what = f"`sketch={self.sketch!r}`, which now does what 'both' does,"
            warn_deprecated(what, "`sketch='both'`", since="0.2", stacklevel=4)
        elif self.sketch not in SKETCHES:
            raise DataError(f"`sketch` must be one of {SKETCHES}; found {self.sketch!r}")
        number = isinstance(self.alpha, numbers.Real) and not isinstance(self.alpha, bool)
        if self.alpha is not None and not (number and 0 < self.alpha < math.inf):
            raise DataError(
                f"alpha must be a positive number, or None to choose it; found {self.alpha!r}"
            )
        check_integer("exact_up_to", self.exact_up_to)
        reader = LogitsReader(self.logits)
        run = (self.pool, self.beta, reader, self.call, max_dim, seed, self.batch_size)
        self._how = PassConfig(required_kinds(self.kernel), *run)
        self._width = 0
        self.loo_score_: float | None = None
        self.cv_score_: float | None = None

    def fit(self, data: Any, y: Any = None) -> KernelClassifier:
        """Fit on labelled data, in one pass over it.

        Args:
            data: anything that `record` takes.
            y: labels in the order of the data; None takes those in the data.

        Returns:
            The classifier itself.
        """
        self._prepare(self.max_dim, self.seed)
        given = None if y is None else as_labels(y)
        most = {"auto": self.exact_up_to, None: math.inf}.get(self.sketch, 0)
        gathered = GatheredSamples(CountSketch(self.buckets, int(self.seed)), most)
        names: list[str] = []
        found: list[np.ndarray] = []

        def consume(indices: np.ndarray, own: Any, layers: dict[str, Vectors]) -> None:
            names[:] = layers
            vectors = layers[names[-1]]  # with layer=None the last of the automatic ones
            self._check_width(vectors, names[-1])
            found.append(labels_for_batch(indices, own, given))
            gathered.add(indices, vectors)

        visit_batches(
            self.model, data, "auto" if self.layer is None else self.layer, self._how, consume
        )
        if self.layer is not None and len(names) > 1:
            all_of_them = ", ".join(names)
            raise LayerError(f"`layer={self.layer!r}` matches {all_of_them}; choose one of them")
        _check_label_count(given, gathered.count)
        targets = self._targets(np.concatenate(found))
        problem = gathered.problem(targets)
        alphas = problem.alphas() if self.alpha is None else [float(self.alpha)]
        if gathered.exact:
            alpha, self.loo_score_ = problem.best_by_leave_one_out(alphas)
        else:
            alpha, self.cv_score_ = gathered.best_by_folds(targets, alphas)
        self.sketch_ = None if gathered.exact else "both"
        return self._fitted(problem, alpha, names[-1], gathered.count)

    def fit_representation(self, rep: RepresentationLike, y: Any) -> KernelClassifier:
        """Fit on what `record(..., keep_sums=True)` kept, without another pass over the data.

        Targets go to the same buckets as their samples, since the assignment depends on the seed
        and the index alone. Nothing is held out to choose α by, so `alpha` must be given.

        Args:
            rep: a recording of the same network, or the path of its file.
            y: labels in the order of the data set.

        Returns:
            The classifier itself.

        Raises:
            MismatchError: if the recording is of a different network or was made with different
                options, lacks accumulators, or skipped samples.
        """
        rep = as_representation(rep)
        s = rep.settings
        self._prepare(s.max_dim, s.seed)
        if self.alpha is None:
            raise DataError("fit_representation has no sample to choose alpha by; pass `alpha`")
        require_same_network(self.model, rep)
        layer = rep[self.layer if self.layer is not None else -1]
        sums: Vectors = {}
        for kind in self._how.kinds:
            found = getattr(layer, kind) and getattr(layer, kind).sums
            if found is None:
                raise MismatchError(
                    f"layer {layer.name!r} holds no accumulators of {kind}; record it with "
                    "`keep_sums=True`, `gradients=True` and `buckets` above 0"
                )
            sums[kind] = found.table.double()
        if layer.folded and len(layer.shape) > 2 and layer.features.sketch is None:
            raise MismatchError(
                f"layer {layer.name!r} was folded by an older version, in another way; record it "
                "again, or with `max_dim=None`"
            )
        here: dict[str, Any] = {"pool": validate_pool(self.pool)}
        if "gradients" in sums:
            here |= {"target": Objective(logits=self._how.logits).name, "beta": self.beta}
        for what in here:
            if here[what] != getattr(s, what):
                raise MismatchError(
                    f"{what} differs: {getattr(s, what)!r} in the recording, {here[what]!r} here; "
                    "set the classifier's to the recording's"
                )
        given = as_labels(y)
        _check_label_count(given, rep.samples + rep.data.skipped)
        if rep.data.skipped:
            raise MismatchError(
                f"{rep.data.skipped} samples were skipped as not finite, and it is not known "
                "which: their labels cannot be left out; use fit on finite samples"
            )
        sketch = CountSketch(s.buckets, s.seed, s.per_sample)
        table = sketch_targets(self._targets(given), sketch, np.arange(len(given)), len(sums))
        self._check_width(sums, layer.name)
        self.sketch_ = "both"
        problem = RidgeProblem.of_items(sums, table)
        return self._fitted(problem, float(self.alpha), layer.name, rep.samples)

    def decision_function(self, data: Any) -> np.ndarray:  # (n, classes)
        """The regressed one-hot target t* of each sample.

        Args:
            data: anything that `record` takes.

        Returns:
            An array (n, classes), in the order of the data.
        """
        return self._decide(data)[0]

    def predict(self, data: Any) -> np.ndarray:  # (n,)
        """The class of the largest t* for each sample.

        Args:
            data: anything that `record` takes.

        Returns:
            An array (n,) of labels, in the order of the data.
        """
        values = self.decision_function(data)  # first, as it says whether there are classes yet
        return self.classes_[values.argmax(1)]

    def score(self, data: Any, y: Any = None) -> float:
        """Accuracy on labelled data.

        Args:
            data: anything that `record` takes.
            y: labels in the order of the data, all among `classes_`; None takes those in the data.

        Returns:
            The share of samples that are predicted correctly.
        """
        values, own = self._decide(data)
        true = own if y is None else as_labels(y)
        if true is None:
            raise DataError("found no labels to score by; pass y, or data of (inputs, labels)")
        _check_label_count(true, len(values))
        check_known_labels(true, self.classes_)
        return float((self.classes_[values.argmax(1)] == true).mean())

    def _decide(self, data: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """t* and the data's own labels, if it has them, in the order of the data."""
        if not hasattr(self, "_weights"):
            raise ResemblanceError("this KernelClassifier is not fitted yet: call fit first")
        order, values, true = [], [], []

        def consume(indices: np.ndarray, own: Any, layers: dict[str, Vectors]) -> None:
            self._check_width(layers[self.layer_], self.layer_)
            order.append(indices)
            values.append(cross_kernel(layers[self.layer_], self._items) @ self._weights)
            if own is not None:
                true.append(labels_for_batch(indices, own, None))

        visit_batches(self.model, data, self.layer_, self._how, consume)
        indices = np.concatenate(order)
        back = np.argsort(indices)
        if indices[back[-1]] >= len(indices):
            raise DataError(
                "samples identified by keys have no order for predictions; pass a data set or "
                "arrays, or omit the keys and do not shuffle"
            )
        return torch.cat(values).numpy()[back], np.concatenate(true)[back] if true else None

    def _targets(self, found: np.ndarray) -> Tensor:  # (n,) -> (n, classes)
        self.classes_ = check_classes(found, self.classes)
        return one_hot(found, self.classes_)

    def _fitted(
        self, problem: RidgeProblem, alpha: float, layer: str, count: int
    ) -> KernelClassifier:
        self.alpha_, self.layer_, self.n_samples_ = alpha, layer, count
        self._items, self._weights = problem.items, problem.weights(alpha)
        return self

    def _check_width(self, vectors: Vectors, layer: str) -> None:
        width = next(iter(vectors.values())).shape[1]
        self._width = self._width or width
        if width != self._width:
            raise DataError(
                f"layer {layer!r}: expected vectors of width {self._width} as before, found {width}"
                "; pass inputs of one size, or pool"
            )


def _check_label_count(given: Any, samples: int) -> None:
    if given is not None and len(given) != samples:
        raise DataError(f"expected {samples} labels, one per sample; found {len(given)}")
