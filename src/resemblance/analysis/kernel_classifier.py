"""Classification without training: kernel ridge regression on a layer of a fixed network.

One-hot targets T and the kernel K of a layer give t* = Tᵀ (K + αI)⁻¹ k(x*). Up to a few thousand
samples this is exact; beyond, samples and targets are added, with the same random signs, into the M
buckets of a CountSketch: t* = T̃ᵀ (K̃ + αI)⁻¹ k̃(x*). docs/classification.md says what that costs in
accuracy. `KernelClassifier` follows scikit-learn's conventions, without needing it.
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

from .._data import labels
from .._deprecation import deprecated
from .._model import pooling
from .._model.losses import FindLogits
from .._model.model_pass import RunModel
from .._ops.count_sketch import CountSketch
from .._whole_numbers import whole_number
from ..errors import DataError, LayerError, MismatchError, ResemblanceError
from ..representation.as_given import Given, recording
from ..similarity import combinations
from ..similarity.combinations import Kernel
from ..similarity.kernels import needs
from .gathered_samples import Gathered, sketch_targets
from .kernel_ridge import Problem, kernel
from .same_network import refuse_other_network
from .sample_vectors import Pass, Vectors, visit

SKETCHES = ("auto", None, "both")


@dataclass(eq=False, repr=False)
class KernelClassifier:
    """Kernel ridge classification on one layer of a network that is not trained further.

    Args:
        model: any `nn.Module`; with the gradients and product kernels it must end in logits.
        layer: a name, as in `record`; None is the last that `layers="auto"` finds.
        kernel: features, gradients (of the tempered loss, no label needed) or product.
        alpha: the ridge; None chooses it on a grid, by leave-one-out in closed form for an exact
            fit and by five-fold cross-validation on up to 1,000 samples for a sketched one.
        sketch: `"auto"` is exact up to `exact_up_to` samples and `"both"` above; None is always
            exact; `"both"` always sketches samples and targets.
        buckets: M, the number of sketched items.
        classes: all labels there are; None takes those in the data.
        pool, beta, logits, call, seed, batch_size: as in `record`.
        max_dim: wider layers are folded to this width, an unbiased sketch of the kernel; None
            folds nothing.

    After `fit`: `classes_`, `layer_`, `alpha_`, `sketch_` (what was used), `n_samples_`, and the
    accuracy on left-out samples: `loo_score_` (exact) or `cv_score_` (sketched), the other None.

    Cost: one pass; an exact fit holds N × d floats and takes O(N² min(N, d)), a sketched one holds
    M × d and takes O(M³). Reference: Tang et al. 2020, supplement; Avron, Clarkson, Woodruff 2017.

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
    pool: pooling.Pool = "flatten"
    beta: float = 0.5
    logits: FindLogits | None = None
    call: RunModel | None = None
    max_dim: int | None = 16384
    seed: int = 0
    batch_size: int = 128

    _estimator_type = "classifier"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> KernelClassifier:
        """Replace some of the constructor's arguments."""
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
        combinations.check("ridge", self.kernel)
        if self.sketch in ("data", "labels"):
            what = f"sketch={self.sketch!r}, which now does what 'both' does,"
            deprecated(what, "sketch='both'", since="0.2", stacklevel=4)
        elif self.sketch not in SKETCHES:
            raise DataError(f"sketch must be one of {SKETCHES}; found {self.sketch!r}")
        number = isinstance(self.alpha, numbers.Real) and not isinstance(self.alpha, bool)
        if self.alpha is not None and not (number and 0 < self.alpha < math.inf):
            raise DataError(
                f"alpha must be a positive number, or None to choose it; found {self.alpha!r}"
            )
        whole_number("exact_up_to", self.exact_up_to)
        run = (self.pool, self.beta, self.logits, self.call, max_dim, seed, self.batch_size)
        self._how = Pass(needs(self.kernel), *run)
        self._width = 0
        self.loo_score_: float | None = None
        self.cv_score_: float | None = None

    def fit(self, data: Any, y: Any = None) -> KernelClassifier:
        """One pass over the data: anything `record` takes, with labels in it or as `y`."""
        self._prepare(self.max_dim, self.seed)
        given = None if y is None else labels.as_labels(y)
        most = {"auto": self.exact_up_to, None: math.inf}.get(self.sketch, 0)
        gathered = Gathered(CountSketch(self.buckets, int(self.seed)), most)
        names: list[str] = []
        found: list[np.ndarray] = []

        def consume(indices: np.ndarray, own: Any, layers: dict[str, Vectors]) -> None:
            names[:] = layers
            vectors = layers[names[-1]]  # with layer=None the last of the automatic ones
            self._check_width(vectors, names[-1])
            found.append(labels.of_batch(indices, own, given))
            gathered.add(indices, vectors)

        visit(self.model, data, "auto" if self.layer is None else self.layer, self._how, consume)
        if self.layer is not None and len(names) > 1:
            all_of_them = ", ".join(names)
            raise LayerError(f"layer={self.layer!r} stands for {all_of_them}; name one of them")
        _refuse_count(given, gathered.count)
        targets = self._targets(np.concatenate(found))
        problem = gathered.problem(targets)
        alphas = problem.alphas() if self.alpha is None else [float(self.alpha)]
        if gathered.exact:
            alpha, self.loo_score_ = problem.best_by_leave_one_out(alphas)
        else:
            alpha, self.cv_score_ = gathered.best_by_folds(targets, alphas)
        self.sketch_ = None if gathered.exact else "both"
        return self._fitted(problem, alpha, names[-1], gathered.count)

    def fit_representation(self, rep: Given, y: Any) -> KernelClassifier:
        """Fit on what `record(..., keep_sums=True)` kept, without another pass over the data.

        Targets go to the same buckets as their samples, since the assignment depends on the seed
        and the index alone: `y` are the labels in the order of the data set. Nothing is held
        out to choose α by, so `alpha` must be given.
        """
        rep = recording(rep)
        s = rep.settings
        self._prepare(s.max_dim, s.seed)
        if self.alpha is None:
            raise DataError("fit_representation has no sample to choose alpha by; pass alpha=")
        refuse_other_network(self.model, rep)
        layer = rep[self.layer if self.layer is not None else -1]
        sums: Vectors = {}
        for kind in self._how.kinds:
            found = getattr(layer, kind) and getattr(layer, kind).sums
            if found is None:
                raise MismatchError(
                    f"layer {layer.name!r} holds no accumulators of {kind}; record it with "
                    "keep_sums=True, gradients=True and buckets above 0"
                )
            sums[kind] = found.buckets.double()
        if layer.folded and len(layer.shape) > 2 and layer.features.sketch is None:
            raise MismatchError(
                f"layer {layer.name!r} was folded by an older version, in another way; record it "
                "again, or with max_dim=None"
            )
        here = {"pool": pooling.check(self.pool), "beta": self.beta}
        for what in ("pool", "beta") if "gradients" in sums else ("pool",):
            if here[what] != getattr(s, what):
                raise MismatchError(
                    f"{what} differs: {getattr(s, what)!r} in the recording, {here[what]!r} here; "
                    "set the classifier's to the recording's"
                )
        given = labels.as_labels(y)
        _refuse_count(given, rep.samples + rep.data.skipped)
        if rep.data.skipped:
            raise MismatchError(
                f"{rep.data.skipped} samples were skipped as not finite, and it is not known "
                "which: their labels cannot be left out; use fit on finite samples"
            )
        sketch = CountSketch(s.buckets, s.seed, s.per_sample)
        table = sketch_targets(self._targets(given), sketch, np.arange(len(given)), len(sums))
        self._check_width(sums, layer.name)
        self.sketch_ = "both"
        problem = Problem.of_items(sums, table)
        return self._fitted(problem, float(self.alpha), layer.name, rep.samples)

    def decision_function(self, data: Any) -> np.ndarray:  # (n, classes)
        """t*, the regressed one-hot target of each sample, in the order of the data."""
        return self._decide(data)[0]

    def predict(self, data: Any) -> np.ndarray:  # (n,)
        """The class of the largest t*, in the order of the data."""
        values = self.decision_function(data)  # first, as it says whether there are classes yet
        return self.classes_[values.argmax(1)]

    def score(self, data: Any, y: Any = None) -> float:
        """Accuracy; labels are in the data or `y`, and must be among `classes_`."""
        values, own = self._decide(data)
        true = own if y is None else labels.as_labels(y)
        if true is None:
            raise DataError("found no labels to score by; pass y, or data of (inputs, labels)")
        _refuse_count(true, len(values))
        labels.refuse_unseen(true, self.classes_)
        return float((self.classes_[values.argmax(1)] == true).mean())

    def _decide(self, data: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """t* and the data's own labels, if it has them, in the order of the data."""
        if not hasattr(self, "_weights"):
            raise ResemblanceError("this KernelClassifier is not fitted yet: call fit first")
        order, values, true = [], [], []

        def consume(indices: np.ndarray, own: Any, layers: dict[str, Vectors]) -> None:
            self._check_width(layers[self.layer_], self.layer_)
            order.append(indices)
            values.append(kernel(layers[self.layer_], self._items) @ self._weights)
            if own is not None:
                true.append(labels.of_batch(indices, own, None))

        visit(self.model, data, self.layer_, self._how, consume)
        indices = np.concatenate(order)
        back = np.argsort(indices)
        if indices[back[-1]] >= len(indices):
            raise DataError(
                "samples that are known by keys come in no order to give predictions in; pass a "
                "data set or arrays, or shuffle nothing and leave the keys out"
            )
        return torch.cat(values).numpy()[back], np.concatenate(true)[back] if true else None

    def _targets(self, found: np.ndarray) -> Tensor:  # (n,) -> (n, classes)
        self.classes_ = labels.classes(found, self.classes)
        return labels.one_hot(found, self.classes_)

    def _fitted(self, problem: Problem, alpha: float, layer: str, count: int) -> KernelClassifier:
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


def _refuse_count(given: Any, samples: int) -> None:
    if given is not None and len(given) != samples:
        raise DataError(f"expected {samples} labels, one a sample; found {len(given)}")
