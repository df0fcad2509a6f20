"""Probe data that ship with the package: identical images and texts for everyone, from seeds.

Networks can be compared if they saw the same samples; unrelated networks share none, unless both
are recorded on these. `probe:images` are fields, gratings, edges, shapes, stripes, clouds, strokes
and mixtures of them: enough structure for trained networks to respond to, and nobody's photographs.
They are functions on the unit square, so an image exists at any size. `probe:text` is prose, code
and figures from a small grammar. `probe:noise` is random colours, on which networks of common
descent still agree. Every sample is a pure function of its number, the same on every machine:
arithmetic is in float64 and rounded to 8 bits, which absorbs differences in the last digit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .._utils.hashing import random_bits

NUM_IMAGES, NUM_TEXTS = 1024, 512  # samples of a probe
_IMAGE_STREAM, _TEXT_STREAM, _NOISE_STREAM = range(3)
_CELLS = 32
_SEED = 20_200_711
_NUMBERS_PER_SAMPLE = 2**16  # random numbers that a sample may take
_Field = np.ndarray  # (size, size), from 0 to 1
_Plane = tuple[np.ndarray, np.ndarray]  # x and y of each pixel's centre, from 0 to 1


def probe_image(number: int, size: int) -> Tensor:  # (3, size, size) in [0, 1]
    """One image of the probe; its kind is its number's, modulo eight.

    >>> probe_image(0, size=8).shape
    torch.Size([3, 8, 8])
    """
    draw = _SampleRandom(number, _IMAGE_STREAM)
    at = (np.arange(size) + 0.5) / size
    plane = (np.broadcast_to(at, (size, size)), np.broadcast_to(at[:, None], (size, size)))
    painted = _paint(IMAGE_KINDS[number % len(IMAGE_KINDS)], plane, draw)
    return torch.from_numpy(np.rint(255 * painted.clip(0, 1)).astype(np.uint8)).float() / 255


def noise_image(number: int, size: int) -> Tensor:  # (3, size, size) in [0, 1]
    """One image of the probe of noise: 32 × 32 cells, each of any colour."""
    cells = _SampleRandom(number, _NOISE_STREAM).uniform(3 * _CELLS**2).reshape(3, _CELLS, _CELLS)
    at = ((np.arange(size) + 0.5) / size * _CELLS).astype(int)
    pixels = cells[:, at[:, None], at]
    return torch.from_numpy(np.rint(255 * pixels).astype(np.uint8)).float() / 255


def probe_text(number: int) -> str:
    """One text of the probe: prose, code and figures in turn, of 34 to 112 words each."""
    return (_prose, _code, _number_lines)[number % 3](_SampleRandom(number, _TEXT_STREAM))


class _SampleRandom:
    """The random numbers of one sample, in the order in which they are asked for."""

    def __init__(self, number: int, stream: int) -> None:
        self._stream, self._next = stream, number * _NUMBERS_PER_SAMPLE

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        words = random_bits(_SEED, self._stream, np.arange(self._next, self._next + count))
        self._next += count
        share: np.ndarray = (words >> np.uint64(11)).astype(np.float64) / 2.0**53
        return low + (high - low) * share

    def one(self, low: float = 0.0, high: float = 1.0) -> float:
        return float(self.uniform(1, low, high)[0])

    def below(self, bound: int) -> int:
        return int(self.one() * bound)

    def word(self, words: str) -> str:
        """One of several words, separated by blanks."""
        choices = words.split()
        return choices[self.below(len(choices))]


# -- images -------------------------------------------------------------------------------------


def _paint(
    kind: Callable[[_Plane, _SampleRandom], _Field], plane: _Plane, draw: _SampleRandom
) -> np.ndarray:
    """A field between two colours, lit from one side."""
    field = kind(plane, draw)
    dark, light = draw.uniform(3, 0.0, 0.6), draw.uniform(3, 0.3, 1.0)
    across = _project(plane, draw.one(0, 2 * np.pi))
    shade = 1 - draw.one(0, 0.4) * across
    every = [(d + (bright - d) * field) * shade for d, bright in zip(dark, light, strict=True)]
    return np.stack(every)


def _project(plane: _Plane, angle: float) -> _Field:
    """How far along a direction a point lies, about 0 to 1."""
    x, y = plane
    return 0.5 + (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)


def _waves(
    plane: _Plane, draw: _SampleRandom, count: int, low: float, high: float, angle: float
) -> _Field:
    """Many waves of about so many periods, of all directions or (angle > 0) of nearly one."""
    periods = low * (high / low) ** draw.uniform(count)
    turned = draw.one(0, 2 * np.pi)
    angles = (
        draw.uniform(count, 0, 2 * np.pi) if not angle else turned + draw.uniform(count, 0, angle)
    )
    phases = draw.uniform(count, 0, 2 * np.pi)
    total = np.zeros_like(plane[0])
    for f, turn, phase in zip(periods, angles, phases, strict=True):
        total += np.cos(2 * np.pi * f * _project(plane, turn) + phase) / f**0.5
    return 0.5 + 0.35 * total / np.sqrt((1 / periods).sum())


def _smooth(plane: _Plane, draw: _SampleRandom) -> _Field:
    return _waves(plane, draw, 12, 0.5, 3.0, angle=0)


def _grating(plane: _Plane, draw: _SampleRandom) -> _Field:
    fine = _waves(plane, draw, 3, 3.0, 11.0, angle=0.5)
    mask = _waves(plane, draw, 4, 0.5, 1.5, angle=0)
    return 0.5 + (fine - 0.5) * (2 * mask).clip(0, 2)


def _edges(plane: _Plane, draw: _SampleRandom) -> _Field:
    total = np.zeros_like(plane[0])
    sharp = draw.one(8, 60)
    for weight in draw.uniform(1 + draw.below(3), 0.4, 1.0):
        offset = draw.one(0.25, 0.75)
        side = _project(plane, draw.one(0, 2 * np.pi)) - offset
        total += weight * np.tanh(sharp * side)
    return 0.5 + 0.45 * np.tanh(total)


def _shapes(plane: _Plane, draw: _SampleRandom) -> _Field:
    out = 0.3 * _waves(plane, draw, 3, 0.3, 1.0, angle=0)
    for level in draw.uniform(2 + draw.below(4), 0.2, 1.0):
        inside = _shape(plane, draw)
        out = out * (1 - inside) + level * inside
    return out


def _shape(plane: _Plane, draw: _SampleRandom) -> _Field:
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


def _stripes(plane: _Plane, draw: _SampleRandom) -> _Field:
    angle, periods, phase = draw.one(0, 2 * np.pi), draw.one(2, 8), draw.one(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * periods * _project(plane, angle) + phase)
    if draw.below(2):  # a board of squares
        wave = wave * np.sin(2 * np.pi * periods * _project(plane, angle + np.pi / 2) + phase)
    return 0.5 + 0.5 * np.tanh(6 * wave)


def _clouds(plane: _Plane, draw: _SampleRandom) -> _Field:
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


def _strokes(plane: _Plane, draw: _SampleRandom) -> _Field:
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


def _mixed(plane: _Plane, draw: _SampleRandom) -> _Field:
    inside, outside = (IMAGE_KINDS[draw.below(7)](plane, draw) for _ in range(2))
    mask = np.maximum(_shape(plane, draw), _shape(plane, draw))
    return mask * inside + (1 - mask) * outside


IMAGE_KINDS: tuple[Callable[[_Plane, _SampleRandom], _Field], ...] = (
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

_NOUNS = (
    "river bridge garden letter market engine teacher window kitchen village doctor paper forest "
    "harbour mountain child soldier painter ship story train clock island farmer table cousin king"
)
_ADJECTIVES = (
    "old small bright heavy quiet broken green early famous narrow cold patient strange red"
)
_VERBS = (
    "crossed found carried opened painted followed forgot described repaired visited watched sold "
    "measured built left remembered"
)
_PREPOSITIONS = "near behind beyond under beside above across inside"
_ADVERBS = "yesterday later soon often again seldom suddenly finally"
_NAMES = "Anna Tomas Mira Jonas Leila Peter Ruth Omar Clara Ivan"
_VARIABLES = "count total index value items result width rows name offset limit left queue table"
_FUNCTIONS = "append update sorted filter merge split insert reduce lookup parse"
_UNITS = "kg km litres hours euros degrees pages metres"


def _prose(draw: _SampleRandom) -> str:
    return " ".join(_sentence(draw) for _ in range(6 + draw.below(4)))


def _sentence(draw: _SampleRandom) -> str:
    def noun() -> str:
        quality = f"{draw.word(_ADJECTIVES)} " if draw.below(2) else ""
        return f"the {quality}{draw.word(_NOUNS)}"

    who = draw.word(_NAMES) if draw.below(2) else noun()
    out = f"{who} {draw.word(_VERBS)} {noun()}"
    if draw.below(2):
        out += f" {draw.word(_PREPOSITIONS)} {noun()}"
    if draw.below(3) == 0:
        out += f", and {noun()} {draw.word(_VERBS)} {noun()} {draw.word(_ADVERBS)}"
    return out[0].upper() + out[1:] + (". ", "! ", ". ", "? ")[draw.below(4)].strip()


def _code(draw: _SampleRandom) -> str:
    name, first, second = draw.word(_FUNCTIONS), draw.word(_VARIABLES), draw.word(_VARIABLES)
    lines = [f"def {name}_{first}({first}, {second}={draw.below(100)}):"]
    lines += [f'    """{_sentence(draw)}"""']
    for _ in range(5 + draw.below(5)):
        lines += [f"    {line}" for line in _statement(draw)]
    return "\n".join([*lines, f"    return {draw.word(_VARIABLES)}", ""])


def _statement(draw: _SampleRandom) -> list[str]:
    a, b, c = (draw.word(_VARIABLES) for _ in range(3))
    number = draw.below(1000)
    kinds: tuple[Callable[[], list[str]], ...] = (
        lambda: [f"{a} = {b} + {number}"],
        lambda: [f"for {a} in range(len({b})):", f"    {c}.{draw.word(_FUNCTIONS)}({b}[{a}])"],
        lambda: [
            f"if {a} > {number} and {b} is not None:",
            f"    raise ValueError('{c} is {draw.word(_ADJECTIVES)}')",
        ],
        lambda: [f"{a}, {b} = {draw.word(_FUNCTIONS)}({c}, key={number})"],
    )
    return kinds[draw.below(4)]()


def _number_lines(draw: _SampleRandom) -> str:
    """Sums, dates and small tables."""
    title = f"{draw.word(_NOUNS).capitalize()}s, {1900 + draw.below(120)}"
    return "\n".join([title, *(_number_line(draw) for _ in range(7 + draw.below(6))), ""])


def _number_line(draw: _SampleRandom) -> str:
    kind, a, b = draw.below(4), draw.below(1000), 1 + draw.below(99)
    if kind == 0:
        return f"{a} + {b} = {a + b}; {a} x {b} = {a * b}"
    if kind == 1:
        day = f"{1900 + draw.below(120)}-{1 + draw.below(12):02d}-{1 + draw.below(28):02d}"
        return f"{day}: {a}.{b:02d} {draw.word(_UNITS)}"
    if kind == 2:
        return " | ".join([draw.word(_NAMES), *(str(draw.below(500)) for _ in range(4))])
    return f"{draw.word(_NAMES)} paid {a} {draw.word(_UNITS)} for {b} {draw.word(_NOUNS)}s"
