"""Probes that ship with the package: the same images and texts for everyone, made from seeds.

Networks can be compared that saw the same samples; strangers share none, unless they take these.
`images` are fields, gratings, edges, shapes, stripes, clouds, strokes and mixtures of them: enough
structure that trained networks respond, and nobody's photographs. They are functions on the unit
square, so that one picture can be had in any size. `texts` are prose, code and figures by a small
grammar. `noise` is no picture at all, on which networks of one descent still agree. All are pure
functions of their number, equal everywhere and for ever: arithmetic is in
float64 and rounded to 8 bits, which no processor's last digit can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from .._seeded_random import bits

IMAGES, TEXTS = 1024, 512  # samples of a probe
_IMAGE_STREAM, _TEXT_STREAM, _NOISE_STREAM = range(3)
_CELLS = 32
_SEED = 20_200_711
_DRAWS = 2**16  # random numbers that a sample may take
_Field = np.ndarray  # (size, size), from 0 to 1
_Plane = tuple[np.ndarray, np.ndarray]  # x and y of each pixel's centre, from 0 to 1


def images(count: int = IMAGES, size: int = 32) -> Tensor:
    """The first images of the probe, (count, 3, size, size) in [0, 1].

    >>> images(2, size=8).shape
    torch.Size([2, 3, 8, 8])
    """
    return torch.stack([image(number, size) for number in range(count)])


def image(number: int, size: int) -> Tensor:  # (3, size, size) in [0, 1]
    """One image of the probe; its kind is its number's, modulo eight."""
    draw = _Draw(number, _IMAGE_STREAM)
    at = (np.arange(size) + 0.5) / size
    plane = (np.broadcast_to(at, (size, size)), np.broadcast_to(at[:, None], (size, size)))
    painted = _painted(KINDS[number % len(KINDS)], plane, draw)
    return torch.from_numpy(np.rint(255 * painted.clip(0, 1)).astype(np.uint8)).float() / 255


def noise(number: int, size: int) -> Tensor:  # (3, size, size) in [0, 1]
    """One image of the probe of noise: 32 × 32 cells, each of any colour."""
    cells = _Draw(number, _NOISE_STREAM).uniform(3 * _CELLS**2).reshape(3, _CELLS, _CELLS)
    at = ((np.arange(size) + 0.5) / size * _CELLS).astype(int)
    pixels = cells[:, at[:, None], at]
    return torch.from_numpy(np.rint(255 * pixels).astype(np.uint8)).float() / 255


def texts(count: int = TEXTS) -> list[str]:
    """The first texts of the probe: prose, code and figures in turn, of 34 to 112 words each."""
    return [text(number) for number in range(count)]


def text(number: int) -> str:
    """One text of the probe."""
    draw = _Draw(number, _TEXT_STREAM)
    return (_prose, _code, _figures)[number % 3](draw)


class _Draw:
    """The random numbers of one sample, in the order in which they are asked for."""

    def __init__(self, number: int, stream: int) -> None:
        self._stream, self._next = stream, number * _DRAWS

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        found = bits(_SEED, self._stream, np.arange(self._next, self._next + count))
        self._next += count
        share: np.ndarray = (found >> np.uint64(11)).astype(np.float64) / 2.0**53
        return low + (high - low) * share

    def one(self, low: float = 0.0, high: float = 1.0) -> float:
        return float(self.uniform(1, low, high)[0])

    def below(self, bound: int) -> int:
        return int(self.one() * bound)

    def of(self, words: str) -> str:
        """One of several words, separated by blanks."""
        every = words.split()
        return every[self.below(len(every))]


# -- images -------------------------------------------------------------------------------------


def _painted(kind: Callable[[_Plane, _Draw], _Field], plane: _Plane, draw: _Draw) -> np.ndarray:
    """A field between two colours, lit from one side."""
    field = kind(plane, draw)
    dark, light = draw.uniform(3, 0.0, 0.6), draw.uniform(3, 0.3, 1.0)
    across = _along(plane, draw.one(0, 2 * np.pi))
    shade = 1 - draw.one(0, 0.4) * across
    every = [(d + (bright - d) * field) * shade for d, bright in zip(dark, light, strict=True)]
    return np.stack(every)


def _along(plane: _Plane, angle: float) -> _Field:
    """How far along a direction a point lies, about 0 to 1."""
    x, y = plane
    return 0.5 + (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)


def _waves(plane: _Plane, draw: _Draw, count: int, low: float, high: float, angle: float) -> _Field:
    """Many waves of about so many periods, of all directions or (angle > 0) of nearly one."""
    periods = low * (high / low) ** draw.uniform(count)
    turned = draw.one(0, 2 * np.pi)
    angles = (
        draw.uniform(count, 0, 2 * np.pi) if not angle else turned + draw.uniform(count, 0, angle)
    )
    phases = draw.uniform(count, 0, 2 * np.pi)
    total = np.zeros_like(plane[0])
    for f, turn, phase in zip(periods, angles, phases, strict=True):
        total += np.cos(2 * np.pi * f * _along(plane, turn) + phase) / f**0.5
    return 0.5 + 0.35 * total / np.sqrt((1 / periods).sum())


def _smooth(plane: _Plane, draw: _Draw) -> _Field:
    return _waves(plane, draw, 12, 0.5, 3.0, angle=0)


def _grating(plane: _Plane, draw: _Draw) -> _Field:
    fine = _waves(plane, draw, 3, 3.0, 11.0, angle=0.5)
    mask = _waves(plane, draw, 4, 0.5, 1.5, angle=0)
    return 0.5 + (fine - 0.5) * (2 * mask).clip(0, 2)


def _edges(plane: _Plane, draw: _Draw) -> _Field:
    total = np.zeros_like(plane[0])
    sharp = draw.one(8, 60)
    for weight in draw.uniform(1 + draw.below(3), 0.4, 1.0):
        offset = draw.one(0.25, 0.75)
        side = _along(plane, draw.one(0, 2 * np.pi)) - offset
        total += weight * np.tanh(sharp * side)
    return 0.5 + 0.45 * np.tanh(total)


def _shapes(plane: _Plane, draw: _Draw) -> _Field:
    out = 0.3 * _waves(plane, draw, 3, 0.3, 1.0, angle=0)
    for level in draw.uniform(2 + draw.below(4), 0.2, 1.0):
        inside = _shape(plane, draw)
        out = out * (1 - inside) + level * inside
    return out


def _shape(plane: _Plane, draw: _Draw) -> _Field:
    """A disc, a box or a triangle, with soft edges."""
    cx, cy = draw.uniform(2, 0.2, 0.8)
    radius, angle, corners = draw.one(0.08, 0.3), draw.one(0, 2 * np.pi), draw.below(3)
    x, y = plane[0] - cx, plane[1] - cy
    if corners == 0:
        distance = np.sqrt(x * x + y * y)
    else:
        sides = angle + np.arange(4 if corners == 1 else 3) * 2 * np.pi / (4 if corners == 1 else 3)
        distance = np.max([x * np.cos(t) + y * np.sin(t) for t in sides], axis=0)
    return 0.5 - 0.5 * np.tanh(60 * (distance - radius))


def _stripes(plane: _Plane, draw: _Draw) -> _Field:
    angle, periods, phase = draw.one(0, 2 * np.pi), draw.one(2, 8), draw.one(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * periods * _along(plane, angle) + phase)
    if draw.below(2):  # a board of squares
        wave = wave * np.sin(2 * np.pi * periods * _along(plane, angle + np.pi / 2) + phase)
    return 0.5 + 0.5 * np.tanh(6 * wave)


def _clouds(plane: _Plane, draw: _Draw) -> _Field:
    """Noise on lattices of 4 to 32 cells, interpolated; the finest looks like grain."""
    total, weights = np.zeros_like(plane[0]), draw.uniform(4, 0.2, 1.0)
    for cells, weight in zip((4, 8, 16, 32), weights, strict=True):
        lattice = draw.uniform((cells + 1) ** 2, -1, 1).reshape(cells + 1, cells + 1)
        x, y = (axis * cells for axis in plane)
        i, j = (np.minimum(axis.astype(int), cells - 1) for axis in (x, y))
        u, v = x - i, y - j
        top = lattice[j, i] * (1 - u) + lattice[j, i + 1] * u
        bottom = lattice[j + 1, i] * (1 - u) + lattice[j + 1, i + 1] * u
        total += weight * (top * (1 - v) + bottom * v)
    return 0.5 + 0.5 * total / weights.sum() * 1.5


def _strokes(plane: _Plane, draw: _Draw) -> _Field:
    """Light lines on dark that hang together, as writing does."""
    x, y = plane
    out, width = np.zeros_like(x), draw.one(0.02, 0.06)
    ax, ay = draw.uniform(2, 0.2, 0.8)
    for _ in range(3 + draw.below(4)):
        bx, by = draw.uniform(2, 0.15, 0.85)
        long = (bx - ax) ** 2 + (by - ay) ** 2 + 1e-6
        t = (((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / long).clip(0, 1)
        distance = np.sqrt((x - ax - t * (bx - ax)) ** 2 + (y - ay - t * (by - ay)) ** 2)
        out = np.maximum(out, 0.5 - 0.5 * np.tanh((distance - width) / 0.015))
        ax, ay = bx, by
    return out


def _mixed(plane: _Plane, draw: _Draw) -> _Field:
    inside, outside = (KINDS[draw.below(7)](plane, draw) for _ in range(2))
    mask = np.maximum(_shape(plane, draw), _shape(plane, draw))
    return mask * inside + (1 - mask) * outside


KINDS: tuple[Callable[[_Plane, _Draw], _Field], ...] = (
    _smooth,
    _grating,
    _edges,
    _shapes,
    _stripes,
    _clouds,
    _strokes,
    _mixed,
)

# -- texts --------------------------------------------------------------------------------------

_THINGS = (
    "river bridge garden letter market engine teacher window kitchen village doctor paper forest "
    "harbour mountain child soldier painter ship story train clock island farmer table cousin king"
)
_QUALITIES = (
    "old small bright heavy quiet broken green early famous narrow cold patient strange red"
)
_DOINGS = (
    "crossed found carried opened painted followed forgot described repaired visited watched sold "
    "measured built left remembered"
)
_PLACES = "near behind beyond under beside above across inside"
_WHEN = "yesterday later soon often again seldom suddenly finally"
_NAMES = "Anna Tomas Mira Jonas Leila Peter Ruth Omar Clara Ivan"
_VARIABLES = "count total index value items result width rows name offset limit left queue table"
_CALLS = "append update sorted filter merge split insert reduce lookup parse"
_UNITS = "kg km litres hours euros degrees pages metres"


def _prose(draw: _Draw) -> str:
    return " ".join(_sentence(draw) for _ in range(6 + draw.below(4)))


def _sentence(draw: _Draw) -> str:
    def noun() -> str:
        quality = f"{draw.of(_QUALITIES)} " if draw.below(2) else ""
        return f"the {quality}{draw.of(_THINGS)}"

    who = draw.of(_NAMES) if draw.below(2) else noun()
    out = f"{who} {draw.of(_DOINGS)} {noun()}"
    if draw.below(2):
        out += f" {draw.of(_PLACES)} {noun()}"
    if draw.below(3) == 0:
        out += f", and {noun()} {draw.of(_DOINGS)} {noun()} {draw.of(_WHEN)}"
    return out[0].upper() + out[1:] + (". ", "! ", ". ", "? ")[draw.below(4)].strip()


def _code(draw: _Draw) -> str:
    name, first, second = draw.of(_CALLS), draw.of(_VARIABLES), draw.of(_VARIABLES)
    lines = [f"def {name}_{first}({first}, {second}={draw.below(100)}):"]
    lines += [f'    """{_sentence(draw)}"""']
    for _ in range(5 + draw.below(5)):
        lines += [f"    {line}" for line in _statement(draw)]
    return "\n".join([*lines, f"    return {draw.of(_VARIABLES)}", ""])


def _statement(draw: _Draw) -> Iterator[str]:
    a, b, c = (draw.of(_VARIABLES) for _ in range(3))
    number = draw.below(1000)
    kind = draw.below(4)
    if kind == 0:
        yield f"{a} = {b} + {number}"
    elif kind == 1:
        yield f"for {a} in range(len({b})):"
        yield f"    {c}.{draw.of(_CALLS)}({b}[{a}])"
    elif kind == 2:
        yield f"if {a} > {number} and {b} is not None:"
        yield f"    raise ValueError('{c} is {draw.of(_QUALITIES)}')"
    else:
        yield f"{a}, {b} = {draw.of(_CALLS)}({c}, key={number})"


def _figures(draw: _Draw) -> str:
    """Sums, dates and small tables."""
    lines = [f"{draw.of(_THINGS).capitalize()}s, {1900 + draw.below(120)}"]
    for _ in range(7 + draw.below(6)):
        kind, a, b = draw.below(4), draw.below(1000), 1 + draw.below(99)
        if kind == 0:
            lines.append(f"{a} + {b} = {a + b}; {a} x {b} = {a * b}")
        elif kind == 1:
            day = f"{1900 + draw.below(120)}-{1 + draw.below(12):02d}-{1 + draw.below(28):02d}"
            lines.append(f"{day}: {a}.{b:02d} {draw.of(_UNITS)}")
        elif kind == 2:
            lines.append(" | ".join([draw.of(_NAMES), *(str(draw.below(500)) for _ in range(4))]))
        else:
            lines.append(
                f"{draw.of(_NAMES)} paid {a} {draw.of(_UNITS)} for {b} {draw.of(_THINGS)}s"
            )
    return "\n".join([*lines, ""])
