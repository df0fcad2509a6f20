"""Whether the channels of an image-like output come last, (n, height, width, channels), or first.

Shapes do not say, so the layers do that an output is handed to, or that made it: a norm, a linear
layer or a convolution knows how many channels it works on. If that is the length of the last axis
and not of the second, channels are last. Where both are equally long, another module of the same
class may tell; else linear layers and norms over given axes (`nn.LayerNorm`, but no class with "2d"
in its name) work along the last axis, and everything else along the second. A module whose output
no such layer sees is taken like others of its class, and otherwise to have its channels first, as
PyTorch's convolutions have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .call_trace import Call, Place

_FEWEST_AXES = 4  # of images: samples, channels, and two of positions


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
        place = call.input if is_input else call.output
        if not _is_image(place):
            return False
        if is_input:
            found = self._of_input(call)
        else:
            by_clarity = sorted([call, *self._alike[call.build]], key=_axes_are_equal)
            found = next(filter(None, map(self._of_output, by_clarity)), [])
        return sum(found) * 2 > len(found)

    def _of_input(self, call: Call) -> list[bool]:
        takers = [taker for giver in call.given_by for taker in self._takers[giver]]
        return _said([(c, c.takes) for c in (call, *takers)], call.input)

    def _of_output(self, call: Call) -> list[bool]:
        makers = [call, *(self._by_end[moment] for moment in call.hands_on)]
        said = [(c, c.takes) for c in self._takers[call.ended]]
        return _said(said + [(c, c.gives) for c in makers], call.output)


def _axes_are_equal(call: Call) -> bool:
    return call.shape is not None and len(call.shape) > 1 and call.shape[1] == call.shape[-1]


def _is_image(place: Place | None) -> bool:
    return place is not None and len(place.shape) >= _FEWEST_AXES


def _said(layers: Sequence[tuple[Call, int | None]], place: Place | None) -> list[bool]:
    """Whether channels are last in a place, by each layer that works on so many and can tell."""
    if place is None or not _is_image(place):
        return []
    second, last = place.shape[1], place.shape[-1]
    return [
        call.along_last if second == last else channels == last
        for call, channels in layers
        if call.leaf and channels in (second, last)
    ]
