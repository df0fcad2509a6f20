"""Which layers to record: names, patterns or `"auto"`, resolved to calls in order of execution.

`select` turns what the user asked for into `Tap`s. A pattern is a name in which `*` stands for
anything but a dot, `**` for anything, `?` for one letter that is no dot and `[...]` for one of
several; `name:in` is a module's input, `name#1` what it gives the first time it runs, and a `!`
before any of these takes out what it matches.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import LayerError, nearest, warn
from .automatic_layers import INPUT, Choice, automatic
from .call_trace import Call, modules_of
from .channel_axis import ChannelAxis

_NOT = "!"


@dataclass(frozen=True)
class Tap:
    """Where to record: one call of a module, its output or its input."""

    name: str
    module: str
    call: int
    is_input: bool
    position: int = 0  # of the tensor to record among the floating-point ones there
    channels_last: bool = False  # images (n, ..., channels) instead of (n, channels, ...)
    axis: int | None = None  # of the samples, where a trace leaves no doubt


def select(model: nn.Module, layers: str | Sequence[str], calls: Sequence[Call]) -> list[Tap]:
    """Taps in order of execution for `"auto"`, a name, a pattern, or a list of them.

    What a `!pattern` matches is taken out, wherever it stands in the list; where nothing else is
    asked for, it is taken out of what `"auto"` chooses.
    """
    asked = _asked(layers)
    wanted = [pattern for pattern in asked if not pattern.startswith(_NOT)] or ["auto"]
    unwanted = [pattern.removeprefix(_NOT) for pattern in asked if pattern.startswith(_NOT)]
    outputs: dict[str, Call] = {}
    inputs: dict[str, Call] = {}
    for pattern in wanted:
        if pattern == "auto":
            choice = _automatic(calls)
            outputs |= {c.name: c for c in choice.outputs}
            inputs |= {c.name: c for c in choice.inputs}
        else:
            found = {c.name: c for c in _matching(model, pattern, calls)}
            (inputs if pattern.endswith(INPUT) else outputs).update(found)
    for pattern in unwanted:
        for call in _matching(model, pattern, calls):
            (inputs if pattern.endswith(INPUT) else outputs).pop(call.name, None)
    axis = ChannelAxis(calls)
    chosen = [(c.ended, _tap(c, axis, is_input=False)) for c in outputs.values()]
    chosen += [(c.began, _tap(c, axis, is_input=True)) for c in inputs.values()]
    if not chosen:
        raise LayerError(f"{asked} takes out every layer that it asks for; leave some")
    return [tap for _, tap in sorted(chosen, key=lambda item: item[0])]


def _asked(layers: str | Sequence[str]) -> list[str]:
    one = isinstance(layers, str | bytes) or not isinstance(layers, Iterable)
    asked: list[Any] = [layers] if one else list(layers)
    if wrong := [name for name in asked if not isinstance(name, str)]:
        raise LayerError(f'layers must be "auto", a name or a list of names; found {wrong[0]!r}')
    if not asked:
        raise LayerError('no layers were asked for; pass layers="auto" or at least one name')
    return asked


def _automatic(calls: Sequence[Call]) -> Choice:
    choice = automatic(calls)
    if choice.left_out:
        warn(_LEFT_OUT.format(", ".join(choice.left_out)))
    if not (choice.outputs or choice.inputs):
        raise LayerError(
            'layers="auto" found no layer that gives a floating-point tensor with one row a '
            "sample; name the layers"
        )
    return choice


_LEFT_OUT = (
    'layers="auto" leaves out what cannot be recorded, as its output has no axis of samples: {}'
)


def _tap(call: Call, axis: ChannelAxis, *, is_input: bool) -> Tap:
    place = call.input if is_input else call.output
    return Tap(
        call.name + (INPUT if is_input else ""),
        call.module,
        call.number,
        is_input,
        place.position if place else 0,
        axis.is_last(call, is_input=is_input),
        place.axis if place and len(set(place.shape[:2])) == len(place.shape[:2]) else None,
    )


def _matching(model: nn.Module, pattern: str, calls: Sequence[Call]) -> Sequence[Call]:
    """The calls that a name or a pattern stands for, or an error with the nearest names."""
    wanted = pattern.removesuffix(INPUT)
    exact = [c for c in calls if wanted in (c.name, c.module, f"{c.module}#{c.number}")]
    if exact and wanted not in {c.module for c in exact}:  # one call of it, by its number
        return exact
    matches = _compiled(wanted)
    hits = exact or [c for c in calls if matches.fullmatch(_called(c, wanted))]
    if not exact and "**" not in wanted:
        _refuse_other_meaning(pattern, wanted, hits, calls)
    if hits:
        return hits
    close = nearest(wanted, (c.name for c in calls))
    if any(name == wanted or matches.fullmatch(name) for name in modules_of(model)):
        raise LayerError(
            f"layer {pattern!r} exists but never runs in the forward pass; these do: {close}"
        )
    raise LayerError(
        f"no layer is named {pattern!r} and no name matches it as a pattern; nearest: {close}"
    )


def _called(call: Call, pattern: str) -> str:
    """A call's name, with its number also the first time if the pattern asks for that."""
    return f"{call.module}#{call.number}" if pattern.endswith("#1") else call.name


def _refuse_other_meaning(
    pattern: str, wanted: str, hits: Sequence[Call], calls: Sequence[Call]
) -> None:
    """`*` crossed dots in version 0.1: a pattern that matched other layers then is refused."""
    before = [c for c in calls if fnmatch.fnmatchcase(c.name, wanted)]
    crossing = [c for c in before if c not in hits]
    if crossing:
        suffix = INPUT if pattern.endswith(INPUT) else ""
        wide, deeper = wanted.replace("*", "**") + suffix, f"!{wanted}.**{suffix}"
        raise LayerError(
            f"* no longer crosses dots: {pattern!r} stands for {len(hits)} layers, and stood for "
            f"{len(before)}, such as {crossing[0].name!r}. Write {wide!r} for those, and "
            f"{[wide, deeper]} for these"
        )


def _compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression for a pattern of names.

    >>> bool(_compiled("layer?.*").fullmatch("layer1.0"))
    True
    >>> bool(_compiled("layer?.*").fullmatch("layer1.0.conv1"))
    False
    >>> bool(_compiled("layer?.**").fullmatch("layer1.0.conv1"))
    True
    """
    parts = re.findall(r"\*\*|\*|\?|\[!?[^\]]+\]|.", pattern, flags=re.DOTALL)
    return re.compile("".join(map(_expression, parts)), flags=re.DOTALL)


def _expression(part: str) -> str:
    if part == "**":
        return ".*"
    if part in ("*", "?"):
        return "[^.]" + part.replace("?", "")
    if len(part) > 1:  # one of several letters
        inside = part[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)
