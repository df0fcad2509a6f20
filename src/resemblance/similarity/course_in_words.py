"""A Trajectory in sentences: how far it went, which layers settled when, where copies part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._shown_text import shown
from .comparison import mean_over_layers
from .training_course import SETTLED, Course, Trajectory

_NAMED = 6  # checkpoints, or layers, that a sentence names


def sentences(of: Trajectory) -> list[str]:
    """What `Trajectory.summary` says, a line each."""
    lines = [f"{of.heading}."]
    for course in of.courses():
        lines += [_first_and_last(of, course), _settling(of, course), *_parted(of, course)]
    return [*lines, *_predicted(of), *(f"Note: {note}." for note in of.notes)]


def _first_and_last(of: Trajectory, course: Course) -> str:
    value, error = mean_over_layers(course.scores[:, 0, -1], course.replicates[..., -1])
    pace = course.pace()[0]
    means = [float(mean_over_layers(step)[0]) for step in pace.T]
    what = course.kernel.capitalize()
    if np.isnan(value):
        return f"{what}: no layer has a score at the first and the last checkpoint."
    bar = "" if np.isnan(error) else f" ± {error:.3f}"
    out = f"{what}: first and last checkpoint are {value:.3f}{bar} alike, mean over layers"
    if len(means) > 1 and not np.isnan(means).all():
        at = int(np.nanargmin(means))
        out += f"; they change most from {_named(of, at)} to {_named(of, at + 1)}"
        out += f" ({means[at]:.3f} alike)"
    return f"{out}."


def _settling(of: Trajectory, course: Course) -> str:
    """Which layers settle first and last."""
    end = len(of.steps) - 1
    layers: dict[int, list[str]] = {}
    for at, name in zip(course.settled(), of.layers, strict=True):
        if at is not None:
            layers.setdefault(at, []).append(name)
    before = sorted(at for at in layers if at < end)
    what = f"settled ({SETTLED:g} alike to the last checkpoint from then on)"
    if not before:
        return f"No layer is {what} before the last."
    first, last = (f"{_few(layers[at])} (at {_named(of, at)})" for at in (min(layers), max(layers)))
    if end in layers:
        last = f"{_few(layers[end])} (not before the last)"
    if len(layers) == 1:
        return f"All layers are {what} at {_named(of, before[0])}."
    return f"First {what}: {first}; last: {last}."


def _parted(of: Trajectory, course: Course) -> list[str]:
    """Where checkpoints part from the first, those of one layer together."""
    found = of.partings(course)
    if not any(each.found for each in found):
        return []
    runs: list[tuple[str | None, list[int]]] = []
    for at, each in enumerate(found, 1):
        if runs and runs[-1][0] == each.layer:
            runs[-1][1].append(at)
        else:
            runs.append((each.layer, [at]))
    told = []
    for layer, those in runs:
        where = "nowhere" if layer is None else f"at {shown(layer)}"
        ends = " to ".join(dict.fromkeys(_named(of, i) for i in (those[0], those[-1])))
        told.append(f"{where} ({ends})")
    return [
        f"Read {found[0].direction}, {course.kernel} part from those of {_named(of, 0)} "
        f"{', then '.join(told)}."
    ]


def _predicted(of: Trajectory) -> list[str]:
    """How many predictions differ from those of the last checkpoint and of the first, over time."""
    if (told := of.behaviour) is None:
        return []
    what, lines = "samples" if told.sequences is None else "tokens", []
    for end, word in ((-1, "last"), (0, "first")):
        share, error = told.disagreement[end], told.disagreement_stderr[end]
        known = np.delete(np.arange(len(share)), end)
        known = known[np.isfinite(share[known])]
        if len(known):
            some = known[np.unique(np.linspace(0, len(known) - 1, _NAMED).round().astype(int))]
            numbers = (
                f"{100 * share[i]:.3g} ± {100 * error[i]:.2g} % ({_named(of, i)})" for i in some
            )
            lines.append(
                f"Predicted otherwise than by the {word}, of {told.samples:,} {what}: "
                f"{', '.join(numbers)}."
            )
    return [*lines, *told.missing]


def _named(of: Trajectory, at: int) -> str:
    return shown(str(of.steps[at]))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(shown, names[:_NAMED])) + more
