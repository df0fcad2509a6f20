"""Trajectory: how the layers of a network change from checkpoint to checkpoint, as a result.

Made by `trajectory`; nothing here computes a similarity. A `Course` has the scores of one kernel, a
`Trajectory` the courses of features and of gradients, with what the checkpoints predict.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from .._by_content import by_content
from ..errors import DataError, optional
from ..representation import schema
from ..representation.schema import COUNT, ONE, REAL, TABLE, TEXT, Rule, list_of, one_of, or_null
from . import result_files
from .combinations import ESTIMATORS, Estimator
from .comparison import Comparison
from .layer_matching import RULES, MatchedBy
from .predictions_of_many import BehaviourOfAll
from .result_files import plain, table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from .parting_layer import Parting

Step = int | float | str
Seen = Literal["features", "gradients"]
SETTLED = 0.9  # a score with the last checkpoint from which on a layer counts as settled
_RULES = {
    "models": list_of(TEXT, 2),
    "steps": list_of(Rule("a number or text", lambda x: REAL.holds(x) or TEXT.holds(x)), 2),
    "layers": list_of(TEXT, 1),
    "matched_by": one_of(*RULES),
    "samples": COUNT,
    "tokens": or_null(ONE),
    "features": schema.MAPPING,
    "gradients": or_null(schema.MAPPING),
    "behaviour": or_null(schema.MAPPING),
    "notes": list_of(TEXT),
}
_COURSE = {
    "kernel": TEXT,
    "estimator": one_of(*ESTIMATORS),
    **dict.fromkeys(("scores", "stderr", "replicates"), list_of(TABLE)),
}


@by_content
@dataclass(frozen=True, eq=False)
class Course:
    """CKA of one kernel, centred for features, between all pairs of checkpoints at each layer.

    Standard errors are those of `Comparison`. Views of it come as (score, standard error).
    """

    kernel: Seen
    estimator: Estimator
    scores: np.ndarray  # (layers, checkpoints, checkpoints); NaN where a layer is constant
    stderr: np.ndarray
    replicates: np.ndarray  # (groups, layers, checkpoints): against the first, without a group of
    # samples each

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
            raise DataError(f"level must lie between 0 and 1, as scores do; found {level!r}")
        score, error = self.against_last()
        sure = score - 2 * np.nan_to_num(error) >= level
        sure[:, -1] = True
        found = sure.shape[1] - np.logical_and.accumulate(sure[:, ::-1], 1).sum(1)
        known = np.isfinite(score).all(1)
        return tuple(int(i) if there else None for i, there in zip(found, known, strict=True))


@by_content
@dataclass(frozen=True, eq=False)
class Trajectory:
    """Checkpoints of one run, or copies of one network, in order: every one against every other.

    `features` and `gradients` hold the scores with their standard errors, `behaviour` what the
    checkpoints predict.
    """

    models: tuple[str, ...]
    steps: tuple[Step, ...]  # what the checkpoints are called
    layers: tuple[str, ...]  # by their names in the first
    matched_by: MatchedBy  # how it was found which layers belong together
    samples: int  # or tokens
    tokens: int | None  # of each sequence, where these are the samples
    features: Course
    gradients: Course | None  # None if not recorded
    behaviour: BehaviourOfAll | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Trajectory({self.heading})"

    @property
    def heading(self) -> str:
        """What was compared, on how many samples."""
        what = "samples"
        if self.tokens is not None:
            what = f"tokens of {self.samples // self.tokens:,} sequences"
        seen = " and ".join(course.kernel for course in self.courses())
        return (
            f"{len(self.steps)} checkpoints, cka of {seen} at {len(self.layers)} layers, "
            f"{self.samples:,} {what}"
        )

    def courses(self) -> Iterator[Course]:
        """Those of the kernels that were recorded."""
        yield self.features
        if self.gradients is not None:
            yield self.gradients

    def parting(self, kernel: Seen = "features", *, least: float | None = None) -> list[Parting]:
        """Where each checkpoint but the first parts from the first, as `Comparison.parting` has it.

        One a checkpoint, in order: for copies of a network that are changed ever more, the curve of
        where the change begins to show (`position`) and by how much scores fall there (`fall`).
        """
        course = self.gradients if kernel == "gradients" else self.features
        if course is None or course.kernel != kernel:
            raise DataError(
                f"kernel must be 'features', or 'gradients' where those were recorded; found "
                f"{kernel!r}"
            )
        rest = range(1, len(self.steps))
        return [self._with_first(course, i).parting(least=least) for i in rest]

    def _with_first(self, course: Course, i: int) -> Comparison:
        """The first checkpoint and another, of which only counterparts have a score."""
        number = len(self.layers)
        tables = []
        for values in (course.scores, course.stderr):
            tables.append(np.full((number, number), np.nan))
            np.fill_diagonal(tables[-1], values[:, 0, i])
        return Comparison(
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

    def partings(self, course: Course) -> list[Parting]:
        """Where checkpoints part from the first; none where falls cannot be tested."""
        try:
            return self.parting(course.kernel)
        except DataError:
            return []

    def summary(self) -> str:
        """The trajectory in a few plain sentences.

        A layer is settled from the checkpoint on at which it stays 0.9 alike to the last, or more,
        beyond two standard errors.
        """
        from .course_in_words import sentences

        return "\n".join(sentences(self))

    def plot(self) -> Figure:
        """Maps of layers × checkpoints against the last and the first, features beside gradients.

        Rings mark where each layer is settled, and where each checkpoint parts from the first.
        Below is the share of predictions that differ from those of either.
        """
        from ..views import course_drawn as plot

        return plot.drawn(self)

    def to_frame(self) -> pandas.DataFrame:
        """One row for each kernel, layer and pair of checkpoints: kernel, layer, i, j (positions),
        step_i, step_j (what those are called), score, stderr."""
        number, layers, parts = len(self.steps), len(self.layers), list(self.courses())
        layer, i, j = (x.ravel() for x in np.indices((layers, number, number)))
        steps = np.array(self.steps, dtype=object)
        frame = optional("pandas", "pandas", "frames").DataFrame
        joined = {
            "kernel": np.repeat([course.kernel for course in parts], len(i)),
            "layer": np.tile(np.array(self.layers, dtype=object)[layer], len(parts)),
            "i": np.tile(i, len(parts)),
            "j": np.tile(j, len(parts)),
            "step_i": np.tile(steps[i], len(parts)),
            "step_j": np.tile(steps[j], len(parts)),
            "score": np.concatenate([course.scores.ravel() for course in parts]),
            "stderr": np.concatenate([course.stderr.ravel() for course in parts]),
        }
        return frame(joined).infer_objects()

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trajectory as JSON; `Trajectory.load` reads it."""
        return result_files.write(path, "trajectory", self.to_dict())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trajectory:
        """The Trajectory in a file that `save` wrote."""
        values = result_files.read(path, "trajectory", "Trajectory", _RULES, _values)
        return Trajectory(**values)


def _values(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Trajectory from what a file holds."""
    values = {field.name: content[field.name] for field in fields(Trajectory)}
    number, layers = len(values["models"]), len(values["layers"])
    if len(values["steps"]) != number:
        raise ValueError(f"steps must be those of {number} checkpoints")
    for key in ("models", "steps", "layers", "notes"):
        values[key] = tuple(values[key])
    for key in get_args(Seen):
        if values[key] is not None:
            values[key] = _course(key, values[key], layers, number)
    if values["behaviour"] is not None:
        values["behaviour"] = BehaviourOfAll.of(values["behaviour"])
        if values["behaviour"].models != values["models"]:
            raise ValueError("behaviour must be of the same models")
    return values


def _course(name: str, content: dict[str, Any], layers: int, number: int) -> Course:
    schema.check_part(name, content, {**_COURSE, "kernel": one_of(name)})
    shapes = {
        "scores": (layers, number, number),
        "stderr": (layers, number, number),
        "replicates": (-1, layers, number),
    }
    tables = {key: table(content[key], shape) for key, shape in shapes.items()}
    return Course(**{key: content[key] for key in _COURSE} | tables)
