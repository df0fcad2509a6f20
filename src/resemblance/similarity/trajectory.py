"""Compare checkpoints of a run, or copies of a network, layer by layer (`trajectory`).

For each layer, the checkpoints are treated as the layers of one network, which is compared with
itself. So scores and standard errors are those of `compare`, from the same estimators, while no
kernel is read again for every pair. The result is a `Trajectory`: for each kernel (features,
gradients) the scores of all pairs of checkpoints, and how much their predictions differ.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from .._utils.formatting import join_names, printable
from .._utils.notebook import HeatMap
from .._utils.validation import is_integer as is_whole_number
from ..errors import DataError, MismatchError, warn
from ..representation import schema
from ..representation.layer import Layer
from ..representation.notes import Note, make_note
from ..representation.representation import Representation, RepresentationLike, as_representations
from ..representation.schema import (
    COUNT,
    NOTES,
    ONE,
    REAL,
    TABLE,
    TEXT,
    Rule,
    list_of,
    one_of,
    or_null,
)
from . import block_estimator, ratio_estimator
from .agreement_matrix import BehaviourMatrix, behaviour_matrix, check_models
from .block_estimator import LayerPairing
from .compare import ratio_supported
from .compare_all import check_comparable
from .comparison import KernelComparison, mean_over_layers
from .jackknife import unreliable_note
from .kernels import ESTIMATORS, CompareConfig, Estimator
from .pairing import MATCHING_RULES, MatchedBy, layers_in_all, recorded_without
from .results import Content, Plotted, Shape, StoredResult, count_samples
from .stored_kernels import has_full_gram

if TYPE_CHECKING:
    from .divergence import LayerDivergence


Step = int | float | str
TrajectoryKernel = Literal["features", "gradients"]
SETTLED = 0.9  # a score with the last checkpoint from which on a layer counts as settled
_FILE_RULES = {
    "models": list_of(TEXT, 2),
    "steps": list_of(Rule("a number or text", lambda x: REAL.holds(x) or TEXT.holds(x)), 2),
    "layers": list_of(TEXT, 1),
    "matched_by": one_of(*MATCHING_RULES),
    "samples": COUNT,
    "tokens": or_null(ONE),
    "features": schema.MAPPING,
    "gradients": or_null(schema.MAPPING),
    "behaviour": or_null(schema.MAPPING),
    "notes": NOTES,
}
_KERNEL_RULES = {
    "kernel": one_of(*get_args(TrajectoryKernel)),
    "estimator": one_of(*ESTIMATORS),
    **dict.fromkeys(("scores", "stderr", "replicates"), list_of(TABLE)),
}


@dataclass(frozen=True, eq=False)
class KernelTrajectory(Content):
    """CKA of one kernel, centred for features, between all pairs of checkpoints at each layer.

    Standard errors are those of `KernelComparison`. Views of it come as (score, standard error).
    """

    kernel: TrajectoryKernel
    estimator: Estimator
    scores: np.ndarray  # (layers, checkpoints, checkpoints); NaN where a layer is constant
    stderr: np.ndarray
    replicates: np.ndarray  # (groups, layers, checkpoints): against the first, without a group of
    # samples each

    _rules = _KERNEL_RULES

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        layers, number, _ = np.shape(content["scores"])
        table = layers, number, number
        return {"scores": table, "stderr": table, "replicates": (-1, layers, number)}

    def against_first(self) -> tuple[np.ndarray, np.ndarray]:  # (layers, checkpoints)
        """How alike each layer still is to what it was at the first checkpoint."""
        return self.scores[:, 0], self.stderr[:, 0]

    def against_last(self) -> tuple[np.ndarray, np.ndarray]:  # (layers, checkpoints)
        """How alike each layer already is to what it becomes."""
        return self.scores[:, -1], self.stderr[:, -1]

    def pace(self) -> tuple[np.ndarray, np.ndarray]:  # (layers, checkpoints - 1)
        """How alike each checkpoint is to the next."""
        at = np.arange(self.scores.shape[1] - 1)
        return self.scores[:, at, at + 1], self.stderr[:, at, at + 1]

    def settled(self, level: float = SETTLED) -> tuple[int | None, ...]:
        """Of each layer, the position of the checkpoint from which on it is settled.

        It is where its score with the last checkpoint, less two standard errors, is `level` or more
        from there on; the last checkpoint, if it is so nowhere before. None without a score.
        """
        if not (isinstance(level, Real) and 0 < level <= 1):
            raise DataError(f"`level` must be between 0 and 1; found {level!r}")
        score, error = self.against_last()
        sure = score - 2 * np.nan_to_num(error) >= level
        sure[:, -1] = True
        found = sure.shape[1] - np.logical_and.accumulate(sure[:, ::-1], 1).sum(1)
        known = np.isfinite(score).all(1)
        return tuple(int(i) if there else None for i, there in zip(found, known, strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Plotted, StoredResult):
    """Checkpoints of one run, or copies of one network, in order: every one against every other.

    In the summary, a layer is settled from the checkpoint on at which it stays 0.9 alike to the
    last, or more, beyond two standard errors. `plot` draws heatmaps of layers × checkpoints against
    the last and the first, features beside gradients; rings mark where each layer is settled, and
    where each checkpoint diverges from the first. Below is the share of predictions that differ
    from those of either. `to_frame` has one row for each kernel, layer and pair of checkpoints:
    kernel, layer, i, j (positions), step_i, step_j (names of the steps), score and stderr.

    Attributes:
        models: names of the recordings.
        steps: names of the checkpoints: numbers, such as training steps, or words.
        layers: layers by their names in the first checkpoint.
        matched_by: how layers were matched: by name or by position.
        samples: number of samples, or of tokens.
        tokens: tokens drawn from each sequence; None where samples are not tokens.
        features: scores of the features with their standard errors.
        gradients: scores of the gradients; None if they were not recorded.
        behaviour: how differently the checkpoints predict; None if not known.
        notes: remarks that the summary repeats.
    """

    models: tuple[str, ...]
    steps: tuple[Step, ...]
    layers: tuple[str, ...]
    matched_by: MatchedBy
    samples: int
    tokens: int | None
    features: KernelTrajectory
    gradients: KernelTrajectory | None
    behaviour: BehaviourMatrix | None = None
    notes: tuple[Note, ...] = ()

    _kind = "trajectory"
    _rules = _FILE_RULES
    _parts: ClassVar = {
        "features": KernelTrajectory,
        "gradients": KernelTrajectory,
        "behaviour": BehaviourMatrix,
    }

    def _text(self) -> str:
        course = self.features
        value = mean_over_layers(course.scores[:, 0, -1])[0]
        return f"{value:.3f} from first to last, {self.heading}"

    @property
    def heading(self) -> str:
        """What was compared, on how many samples."""
        count = count_samples(self.samples, self.tokens and self.samples // self.tokens)
        seen = " and ".join(course.kernel for course in self.courses())
        return f"{len(self.steps)} checkpoints, cka of {seen} at {len(self.layers)} layers, {count}"

    def courses(self) -> Iterator[KernelTrajectory]:
        """Those of the kernels that were recorded.

        Returns:
            The features, and the gradients if they are there.
        """
        yield self.features
        if self.gradients is not None:
            yield self.gradients

    def parting(
        self, kernel: TrajectoryKernel = "features", *, least: float | None = None
    ) -> list[LayerDivergence]:
        """Where each checkpoint but the first parts from it, as `KernelComparison.parting` has it.

        One a checkpoint, in order: for copies of a network that are changed ever more, the curve of
        where the change begins to show (`position`) and by how much scores fall there (`fall`).

        Args:
            kernel: `features`, or `gradients` where they were recorded.
            least: falls of a score of no more than that do not count; by default as in
                `Comparison.parting`.

        Returns:
            One result for each checkpoint but the first.

        Raises:
            DataError: if the kernel was not recorded, or falls cannot be tested.
        """
        course = self.gradients if kernel == "gradients" else self.features
        if course is None or course.kernel != kernel:
            raise DataError(
                f"`kernel` must be 'features', or 'gradients' where those were recorded; found "
                f"{kernel!r}"
            )
        rest = range(1, len(self.steps))
        return [self._with_first(course, i).parting(least=least) for i in rest]

    def _with_first(self, course: KernelTrajectory, i: int) -> KernelComparison:
        """The first checkpoint and another, of which only counterparts have a score."""
        number = len(self.layers)
        tables = []
        for values in (course.scores, course.stderr):
            tables.append(np.full((number, number), np.nan))
            np.fill_diagonal(tables[-1], values[:, 0, i])
        return KernelComparison(
            models=(self.models[0], self.models[i]),
            rows=self.layers,
            columns=self.layers,
            scores=tables[0],
            stderr=tables[1],
            chance=None,
            chance_high=None,
            kernel=course.kernel,
            index="cka",
            centre=course.kernel == "features",
            estimator=course.estimator,
            paired=True,
            samples=(self.samples, self.samples),
            notes=(),
            replicates=course.replicates[:, :, i],
            matched_by=self.matched_by,
            matched=tuple(range(number)),
            tokens=self.tokens,
        )

    def partings(self, course: KernelTrajectory) -> list[LayerDivergence]:
        """Where checkpoints part from the first; none where falls cannot be tested.

        Args:
            course: the features or the gradients of this result.

        Returns:
            One result for each checkpoint but the first, or an empty list.
        """
        try:
            return self.parting(course.kernel)
        except DataError:
            return []

    def _sentences(self) -> Iterator[str]:
        yield f"{self.heading}."
        for course in self.courses():
            yield _first_last_sentence(self, course)
            yield _settling_sentence(self, course)
            yield from _divergence_sentences(self, course)
        yield from _prediction_sentences(self)

    def _maps(self) -> Iterator[HeatMap]:
        steps = list(map(str, self.steps))
        for course in self.courses():
            for end, scores in (("first", course.scores[:, 0]), ("last", course.scores[:, -1])):
                yield HeatMap(f"{course.kernel}, vs the {end}", scores, self.layers, steps)

    def _table(self) -> Mapping[str, Any]:
        parts, layers = list(self.courses()), len(self.layers)
        return {
            "kernel": np.repeat([course.kernel for course in parts], layers),
            "layer": np.tile(self.layers, len(parts)),
            "first to last": np.concatenate([course.scores[:, 0, -1] for course in parts]),
            "stderr": np.concatenate([course.stderr[:, 0, -1] for course in parts]),
            "settled at": [
                None if at is None else str(self.steps[at])
                for course in parts
                for at in course.settled()
            ],
        }

    def _columns(self) -> Mapping[str, Any]:
        number, layers, parts = len(self.steps), len(self.layers), list(self.courses())
        layer, i, j = (x.ravel() for x in np.indices((layers, number, number)))
        steps = np.array(self.steps, dtype=object)
        return {
            "kernel": np.repeat([course.kernel for course in parts], len(i)),
            "layer": np.tile(np.array(self.layers, dtype=object)[layer], len(parts)),
            "i": np.tile(i, len(parts)),
            "j": np.tile(j, len(parts)),
            "step_i": np.tile(steps[i], len(parts)),
            "step_j": np.tile(steps[j], len(parts)),
            "score": np.concatenate([course.scores.ravel() for course in parts]),
            "stderr": np.concatenate([course.stderr.ravel() for course in parts]),
        }

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        number, layers = len(content["models"]), len(content["layers"])
        if len(content["steps"]) != number:
            raise ValueError(f"steps must be those of {number} checkpoints")
        for kernel in ("features", *(["gradients"] if content["gradients"] else [])):
            part, shape = content[kernel], (layers, number, number)
            if (part.get("kernel"), np.shape(part.get("scores"))) != (kernel, shape):
                raise ValueError(f"{kernel} must be of {layers} layers at {number} checkpoints")
        check_models(content)
        return {}


_MAX_NAMED = 6  # checkpoints, or layers, that a sentence names


def _first_last_sentence(of: Trajectory, course: KernelTrajectory) -> str:
    value, error = mean_over_layers(course.scores[:, 0, -1], course.replicates[..., -1])
    pace = course.pace()[0]
    means = [float(mean_over_layers(step)[0]) for step in pace.T]
    what = course.kernel.capitalize()
    if np.isnan(value):
        return f"{what}: no layer has a score at both the first and the last checkpoint."
    bar = "" if np.isnan(error) else f" ± {error:.3f}"
    out = f"{what}: similarity of first and last checkpoint {value:.3f}{bar}, mean over layers"
    if len(means) > 1 and not np.isnan(means).all():
        at = int(np.nanargmin(means))
        ends = f"{_step_name(of, at)} and {_step_name(of, at + 1)}"
        out += f"; neighbouring checkpoints differ most between {ends} (similarity {means[at]:.3f})"
    return f"{out}."


def _settling_sentence(of: Trajectory, course: KernelTrajectory) -> str:
    """Which layers settle first and last."""
    end = len(of.steps) - 1
    layers: dict[int, list[str]] = {}
    for at, name in zip(course.settled(), of.layers, strict=True):
        if at is not None:
            layers.setdefault(at, []).append(name)
    before = sorted(at for at in layers if at < end)
    what = f"settled (similarity to the last checkpoint at least {SETTLED:g} from then on)"
    if not before:
        return f"No layer is {what} before the last."
    first, last = (
        f"{join_names(layers[at])} (at {_step_name(of, at)})" for at in (min(layers), max(layers))
    )
    if end in layers:
        last = f"{join_names(layers[end])} (not before the last)"
    if len(layers) == 1:
        return f"All layers are {what} at {_step_name(of, before[0])}."
    return f"First {what}: {first}; last: {last}."


def _divergence_sentences(of: Trajectory, course: KernelTrajectory) -> list[str]:
    """Where checkpoints first diverge from the first one, grouped by layer."""
    found = of.partings(course)
    if not any(each.found for each in found):
        return []
    told = []
    for layer, run in itertools.groupby(range(len(found)), lambda at: found[at].layer):
        at = [i + 1 for i in run]
        where = "no layer" if layer is None else f"layer {printable(layer)}"
        ends = " to ".join(dict.fromkeys(_step_name(of, i) for i in (at[0], at[-1])))
        told.append(f"{where} (checkpoint{'s' if len(at) > 1 else ''} {ends})")
    back = ", going back from the output" if course.kernel == "gradients" else ""
    return [
        f"First layer at which {course.kernel} diverge from checkpoint {_step_name(of, 0)}{back}: "
        f"{'; '.join(told)}."
    ]


def _prediction_sentences(of: Trajectory) -> list[str]:
    """How many predictions differ from those of the last checkpoint and of the first, over time."""
    if (told := of.behaviour) is None:
        return []
    what, lines = "samples" if told.sequences is None else "tokens", []
    for end, word in ((-1, "last"), (0, "first")):
        share, error = told.disagreement[end], told.disagreement_stderr[end]
        known = np.delete(np.arange(len(share)), end)
        known = known[np.isfinite(share[known])]
        if len(known):
            some = known[np.unique(np.linspace(0, len(known) - 1, _MAX_NAMED).round().astype(int))]
            numbers = (
                f"{100 * share[i]:.3g} ± {100 * error[i]:.2g} % ({_step_name(of, i)})" for i in some
            )
            lines.append(
                f"Predictions that differ from those of the {word} checkpoint ({told.samples:,} "
                f"{what}): {', '.join(numbers)}."
            )
    return [*lines, *told.missing]


def _step_name(of: Trajectory, at: int) -> str:
    return printable(str(of.steps[at]))


def trajectory(
    reps: Iterable[RepresentationLike], *, steps: Sequence[Step] | None = None
) -> Trajectory:
    """Checkpoints of one run against the first, the last and each other, layer by layer.

    Features are compared by centred CKA, and gradients, if all recordings have them, by CKA, as
    `compare` does with the estimator that the result names: `ratio` for gradients of more than
    1,024 samples where the norms of all are known, else `blocks`. Scores and standard errors are
    the same. Layers are matched by name, as in `compare`, where at least half of the first
    network's have namesakes in all of them, else by position in networks of as many layers.

    Cost: for each layer, that of comparing two networks of as many layers as there are checkpoints.

    Args:
        reps: two or more recordings in order, or their paths, made on the same samples with the
            same settings. They may as well be ever more changed copies of one network, the first
            of them the network itself.
        steps: what to call each: a number, such as that of its step, or a word; all different. None
            takes the names of the recordings, or numbers from 0 where those are not all different.

    Returns:
        Scores of every pair of checkpoints at every layer, and what the checkpoints predict.

    Raises:
        DataError: if there are fewer than two recordings, or `steps` do not name each of them.
        MismatchError: if samples, settings or layers do not go together.

    Example:
        >>> import torch, resemblance as rs
        >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> reps = [rs.record_arrays(y, data_id="x") for y in (x, x.tanh())]
        >>> found = rs.trajectory(reps, steps=[100, 200])
        >>> found.features.scores.shape  # layers × checkpoints × checkpoints
        (1, 2, 2)
    """
    reps = as_representations(reps)
    check_comparable(reps, "features")
    without = recorded_without(reps, "gradients")
    if not without:
        check_comparable(reps, "gradients")
    called = _step_names(reps, steps)
    chosen, matched_by = _matched_layers(reps)
    notes: list[Note] = []
    features = _kernel_trajectory(reps, chosen, "features", notes)
    gradients = None if without else _kernel_trajectory(reps, chosen, "gradients", notes)
    notes = list(dict.fromkeys(notes))
    for note in notes:
        warn(note)
    if without and any(rep[0].gradients for rep in reps):
        notes.append(make_note("no-gradients", reason=without))
    return Trajectory(
        models=tuple(rep.name for rep in reps),
        steps=called,
        layers=tuple(layer.name for layer in chosen[0]),
        matched_by=matched_by,
        samples=sum(reps[0].block_sizes),
        tokens=reps[0].settings.tokens_of_each,
        features=features,
        gradients=gradients,
        behaviour=behaviour_matrix(reps),
        notes=tuple(notes),
    )


def _step_names(reps: Sequence[Representation], steps: Sequence[Step] | None) -> tuple[Step, ...]:
    """What each checkpoint is called, as plain numbers and words."""
    if steps is None:
        names = tuple(rep.name for rep in reps)
        return names if len(set(names)) == len(names) else tuple(range(len(names)))
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise DataError(
            f"`steps` must be a list of numbers or strings, one per recording; found {steps!r}"
        )
    called = tuple(map(_checked_step, steps))
    if len(called) != len(reps) or len(set(called)) != len(called):
        raise DataError(
            f"`steps` must be different for each of {len(reps)} recordings; found {list(called)}"
        )
    return called


def _checked_step(given: Step) -> Step:
    if isinstance(given, str):
        return given
    if is_whole_number(given):
        return int(given)
    if isinstance(given, numbers.Real) and math.isfinite(given) and not isinstance(given, bool):
        return float(given)
    raise DataError(f"a step must be a finite number or a string; found {given!r}")


def _matched_layers(reps: Sequence[Representation]) -> tuple[list[list[Layer]], MatchedBy]:
    """Of each checkpoint, the layers that all of them have, one by one."""
    if (found := layers_in_all(reps)) is not None:
        return found
    depths = [len(rep) for rep in reps]
    raise MismatchError(
        "expected checkpoints or copies of one network, with the same layer names; found networks "
        f"of {min(depths)} to {max(depths)} layers with mostly different names; compare those with "
        "compare_all"
    )


def _kernel_trajectory(
    reps: Sequence[Representation],
    chosen: Sequence[Sequence[Layer]],
    kernel: TrajectoryKernel,
    notes: list[Note],
) -> KernelTrajectory:
    """All pairs of checkpoints at each layer; what there is to say about it is added to notes."""
    layers = list(zip(*chosen, strict=True))
    together = [replace(reps[0], layers=row) for row in layers]  # a layer of all, side by side
    asked = CompareConfig(kernel, "cka", kernel == "features", "blocks")
    if ratio_supported(together, asked):
        asked = replace(asked, estimator="ratio")
    samples, sizes = reps[0].samples, reps[0].block_sizes
    whole = [all(has_full_gram(x, kernel) for x in row) for row in layers]
    spans = block_estimator.sample_groups(samples)
    if not all(whole):  # where some layers have blocks alone, the same ones are left out in all
        weights = block_estimator.block_weights(sizes, samples, centre=asked.centre)
        spans = block_estimator.block_spans(sizes, weights)
    doubtful, found = [], []
    for rep, row, exact in zip(together, layers, whole, strict=True):
        if exact:
            every = LayerPairing(rep.layers, rep.layers, asked, samples, spans)
            here = block_estimator.full_gram_scores(every)
        elif asked.estimator == "ratio":
            here = ratio_estimator.ratio_scores(rep, rep, asked)
        else:
            here = block_estimator.block_scores(rep, rep, asked)
        found.append(here)
        for original, layer, alive in zip(reps, row, here.alive[0], strict=True):
            if not alive:
                notes.append(make_note("constant-layer", layer=layer.name, model=original.name))
        if unreliable_note(rep, here):
            doubtful.append(row[0].name)
    if doubtful:
        notes.append(
            make_note("unreliable-layers", kernel=kernel, layers=doubtful, compared=len(layers))
        )
    return KernelTrajectory(
        kernel=kernel,
        estimator=asked.estimator,
        scores=np.stack([x.scores for x in found]),
        stderr=np.stack([x.stderr for x in found]),
        replicates=np.stack([x.replicates[:, 0] for x in found if x.replicates is not None], 1),
    )
