"""Resolve `layers=`: names, patterns or `"auto"` become taps, in order of execution.

In a pattern `*` matches anything but a dot, `**` matches anything, `?` matches one character other
than a dot, and `[...]` matches one of several. `name:in` is a module's input, `name#1` is its
output the first time it runs, and a leading `!` excludes what the rest matches.

For image-like outputs a tap also says whether channels come last, (n, height, width, channels), or
first. Shapes do not show this, so it is read from the layers that produce or receive an output: a
norm, a linear layer or a convolution knows its number of channels. If that is the length of the
last axis and not of the second, channels are last. Where both axes are equally long, another module
of the same class may decide. Otherwise linear layers and norms over given axes (`nn.LayerNorm`, but
no class with "2d" in its name) work along the last axis, and all others along the second. A module
whose output no such layer sees is treated like others of its class, or else as channels first, as
in PyTorch's convolutions.
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .._utils.formatting import count_noun
from ..errors import LayerError, close_matches, warn
from .auto_layers import INPUT_SUFFIX, choose_auto_layers
from .runtimes.runtime import FUSED, OUTPUTS, Runtime
from .trace import Call, Place, modules_by_name

_MIN_IMAGE_AXES = 4  # of images: samples, channels, and two of positions


class ChannelAxis:
    """Where the channels are in what each call of a trace gives, or is given."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._by_end = {call.ended: call for call in calls}
        self._takers: defaultdict[int, list[Call]] = defaultdict(list)  # by whose output they take
        self._alike: defaultdict[tuple[type, ...], list[Call]] = defaultdict(list)
        for call in calls:
            self._alike[call.build].append(call)
            for giver in call.given_by if call.leaf else ():
                self._takers[giver].append(call)

    def is_last(self, call: Call, *, is_input: bool = False) -> bool:
        """Whether the channels are on the last of four or more axes."""
        if not _is_image(call.input if is_input else call.output):
            return False
        same_class = [] if is_input else self._alike[call.build]
        by_clarity = sorted([call, *same_class], key=_channel_axis_is_ambiguous)
        votes = next(filter(None, (self._votes(each, is_input) for each in by_clarity)), [])
        return sum(votes) * 2 > len(votes)

    def _votes(self, call: Call, is_input: bool) -> list[bool]:
        """Whether channels are last, by each layer that works on so many and can tell."""
        place = call.input if is_input else call.output
        if place is None or not _is_image(place):
            return []
        second, last = place.shape[1], place.shape[-1]
        takers = [
            c for end in (call.given_by if is_input else [call.ended]) for c in self._takers[end]
        ]
        makers = [] if is_input else [call, *(self._by_end[moment] for moment in call.hands_on)]
        layers = [(c, c.takes) for c in ([call, *takers] if is_input else takers)]
        return [
            layer.along_last if second == last else channels == last
            for layer, channels in layers + [(c, c.gives) for c in makers]
            if layer.leaf and channels in (second, last)
        ]


def _is_image(place: Place | None) -> bool:
    return place is not None and len(place.shape) >= _MIN_IMAGE_AXES


def _channel_axis_is_ambiguous(call: Call) -> bool:
    return call.shape is not None and len(call.shape) > 1 and call.shape[1] == call.shape[-1]


_EXCLUDE = "!"
_WILDCARDS = {"**": ".*", "*": "[^.]*", "?": "[^.]"}


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


def select_layers(
    model: nn.Module, layers: str | Sequence[str], calls: Sequence[Call]
) -> list[Tap]:
    """Taps in order of execution for `"auto"`, a name, a pattern, or a list of them.

    What a `!pattern` matches is taken out, wherever it stands in the list; where nothing else is
    asked for, it is taken out of what `"auto"` chooses.
    """
    asked = _pattern_list(layers)
    wanted = [pattern for pattern in asked if not pattern.startswith(_EXCLUDE)] or ["auto"]
    if isinstance(model, Runtime):
        wanted = _patterns_in_runtime(model, wanted, calls)
    unwanted = [pattern.removeprefix(_EXCLUDE) for pattern in asked if pattern.startswith(_EXCLUDE)]
    chosen: dict[int, tuple[Call, bool]] = {}  # by the moment of a call and whether of its input
    for pattern in wanted:
        if pattern == "auto":
            choice = choose_auto_layers(calls)
            if choice.left_out:
                warn(_MSG_NO_SAMPLE_AXIS.format(", ".join(choice.left_out)))
            if not (choice.outputs or choice.inputs):
                raise LayerError(_MSG_NO_AUTO_LAYERS)
            chosen |= _by_moment(choice.outputs, False) | _by_moment(choice.inputs, True)
        else:
            chosen |= _matching_calls(model, pattern, calls)
    for pattern in unwanted:
        for moment in _matching_calls(model, pattern, calls):
            chosen.pop(moment, None)
    if not chosen:
        raise LayerError(f"{asked} excludes every layer it includes; keep some")
    axis = ChannelAxis(calls)
    return [_tap_of_call(*chosen[moment], axis) for moment in sorted(chosen)]


def _patterns_in_runtime(model: Runtime, wanted: Sequence[str], calls: Sequence[Call]) -> list[str]:
    """Without names of layers that the runtime no longer computes, which a warning lists."""
    names = {name for call in calls for name in (call.name, call.module)}
    if names == {OUTPUTS}:
        wanted = [OUTPUTS if pattern == "auto" else pattern for pattern in wanted]
    found: list[str] = []
    lost: list[str] = []
    for pattern in wanted:
        name = pattern.removesuffix(INPUT_SUFFIX)
        if name in names or any(sign in name for sign in "*?[") or pattern == "auto":
            found.append(pattern)
        elif pattern.endswith(INPUT_SUFFIX) and name + FUSED in names:  # given the same
            found.append(name + FUSED + INPUT_SUFFIX)
        else:
            lost.append(pattern)
    if not found:
        return list(wanted)
    if lost:
        warn(
            f"{model.source} does not compute the outputs of "
            f"{count_noun(len(lost), 'layer', 'layers')} (folded into others or renamed), which "
            f"are skipped: {', '.join(lost)}"
        )
    return found


def _by_moment(calls: Sequence[Call], is_input: bool) -> dict[int, tuple[Call, bool]]:
    return {call.began if is_input else call.ended: (call, is_input) for call in calls}


def _pattern_list(layers: str | Sequence[str]) -> list[str]:
    one = isinstance(layers, str | bytes) or not isinstance(layers, Iterable)
    asked: list[Any] = [layers] if one else list(layers)
    if wrong := [name for name in asked if not isinstance(name, str)]:
        raise LayerError(f'`layers` must be "auto", a name or a list of names; found {wrong[0]!r}')
    if not asked:
        raise LayerError('no layers were given; pass `layers="auto"` or at least one name')
    return asked


_MSG_NO_AUTO_LAYERS = (
    '`layers="auto"` found no layer that gives a floating-point tensor with one row a sample; name '
    "the layers"
)
_MSG_NO_SAMPLE_AXIS = '`layers="auto"` skips layers without a sample dimension: {}'


def _tap_of_call(call: Call, is_input: bool, axis: ChannelAxis) -> Tap:
    place = call.input if is_input else call.output
    return Tap(
        call.name + (INPUT_SUFFIX if is_input else ""),
        call.module,
        call.number,
        is_input,
        place.position if place else 0,
        axis.is_last(call, is_input=is_input),
        place.axis if place and len(set(place.shape[:2])) == len(place.shape[:2]) else None,
    )


def _matching_calls(
    model: nn.Module, pattern: str, calls: Sequence[Call]
) -> dict[int, tuple[Call, bool]]:
    """The calls that a name or a pattern stands for, or an error with the nearest names."""
    wanted, is_input = pattern.removesuffix(INPUT_SUFFIX), pattern.endswith(INPUT_SUFFIX)
    exact = [c for c in calls if wanted in (c.name, c.module, f"{c.module}#{c.number}")]
    matches = _pattern_regex(wanted)
    numbered = wanted.endswith("#1")  # a call's number counts also the first time
    names = [f"{c.module}#{c.number}" if numbered else c.name for c in calls]
    hits = exact or [c for c, name in zip(calls, names, strict=True) if matches.fullmatch(name)]
    if not exact and "**" not in wanted:
        _raise_if_star_crossed_dots(pattern, wanted, hits, calls)
    if hits:
        return _by_moment(hits, is_input)
    close = close_matches(wanted, (c.name for c in calls))
    if any(name == wanted or matches.fullmatch(name) for name in modules_by_name(model)):
        raise LayerError(
            f"layer {pattern!r} exists but never runs in the forward pass; these do: {close}"
        )
    raise LayerError(
        f"no layer is named {pattern!r} and no name matches it as a pattern; nearest: {close}"
    )


def _raise_if_star_crossed_dots(
    pattern: str, wanted: str, hits: Sequence[Call], calls: Sequence[Call]
) -> None:
    """`*` crossed dots in version 0.1: a pattern that matched other layers then is refused."""
    before = [c for c in calls if fnmatch.fnmatchcase(c.name, wanted)]
    crossing = [c for c in before if c not in hits]
    if crossing:
        suffix = INPUT_SUFFIX if pattern.endswith(INPUT_SUFFIX) else ""
        wide, deeper = wanted.replace("*", "**") + suffix, f"!{wanted}.**{suffix}"
        raise LayerError(
            f"* no longer crosses dots: {pattern!r} matches {len(hits)} layers now, and matched "
            f"{len(before)} before, such as {crossing[0].name!r}. Write {wide!r} for the old "
            f"meaning, and {[wide, deeper]} for the new"
        )


def _pattern_regex(pattern: str) -> re.Pattern[str]:
    """A regular expression for a pattern of names.

    >>> bool(_pattern_regex("layer?.*").fullmatch("layer1.0"))
    True
    >>> bool(_pattern_regex("layer?.*").fullmatch("layer1.0.conv1"))
    False
    >>> bool(_pattern_regex("layer?.**").fullmatch("layer1.0.conv1"))
    True
    """

    def regex(part: re.Match[str]) -> str:
        if len(part[0]) > 2:  # one of several letters
            inside = part[0][1:-1].replace("\\", "\\\\")
            return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
        return _WILDCARDS.get(part[0], re.escape(part[0]))

    parts = r"\*\*|\[!?[^\]]+\]|."
    return re.compile(re.sub(parts, regex, pattern, flags=re.DOTALL), flags=re.DOTALL)
