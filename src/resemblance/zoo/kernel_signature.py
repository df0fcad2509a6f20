"""Signatures: short vectors of a network whose cosine is about the mean CKA of two networks.

CKA is the cosine between flattened kernels, and random signs keep cosines: each entry of a kernel
is added, with a sign, to one of 1,024 numbers (CountSketch: Charikar, Chen, Farach-Colton 2002).
Which number and which sign are a pure function of the entry's place, so that networks added years
apart meet. A signature has those of the layers at four relative depths, each at length one half,
so that its cosine with another is the mean over depths. It finds candidates; `nearest_networks`
computes their scores exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from .._ops import packed_kernels as packing
from .._seeded_random import BUCKET, bits
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity.kernels import needs
from ..similarity.stored_kernels import at_once, read, runs
from ..similarity.whole_estimates import is_whole

Searched = Literal["features", "gradients", "product"]
SEARCHED: tuple[Searched, ...] = get_args(Searched)
DEPTHS = 4
WIDTH = 1024  # numbers a depth
_SEED = 20_200_711  # of the projection: another one would make every zoo anew
_PAIRS = 2**21  # of samples that enter: of very large blocks, the first ones do


def signatures(rep: Representation) -> dict[str, np.ndarray]:  # each (4096,) float16
    """The signature of each kernel that was recorded; of features, with their means taken off.

    Bias: over projections, the mean of the cosine of two signatures is the mean over depths of the
    CKA of what is stored, to first order; where that is blocks, entries are weighed such that it
    estimates the CKA of all samples. Its standard deviation is at most 1/√1024 a depth (about
    1 − CKA² of that), and depths are projected apart: 1/64 in all. Cost: O(pairs of samples) a
    layer.

    A recording without blocks has none. A layer whose kernel was too wide to be kept whole meets
    others' in the pairs of its blocks alone: that lowers the cosine, not the score.
    """
    chosen = at_depths(rep)
    return {
        kernel: signature(rep, kernel, chosen)
        for kernel in SEARCHED
        if rep.block_sizes and set(needs(kernel)) <= set(rep[0].kinds)
    }


def at_depths(rep: Representation) -> list[Layer]:
    """The layers at four relative depths, from the first to the last; of few layers, some twice."""
    return [rep[place] for place in depths(len(rep))]


def depths(layers: int) -> list[int]:
    """Places of the layers at four relative depths.

    >>> depths(10), depths(2)
    ([0, 3, 6, 9], [0, 0, 1, 1])
    """
    return [round(i * (layers - 1) / (DEPTHS - 1)) for i in range(DEPTHS)]


def signature(
    rep: Representation,
    kernel: Searched,
    layers: Sequence[Layer | None],  # one a depth; None leaves a depth out
    *,
    seed: int = _SEED,
) -> np.ndarray:  # (4096,) float16
    """Projected kernels of some layers side by side, of length one in all."""
    there = [x for x in layers if x is not None]
    places = [depth for depth, x in enumerate(layers) if x is not None]
    out = np.zeros((DEPTHS, WIDTH))
    out[places] = _projected(rep, kernel, there, places, seed)
    length = np.linalg.norm(out, axis=1, keepdims=True) * len(there) ** 0.5
    return np.divide(out, length, out=out, where=length > 0).astype(np.float16).ravel()


def _projected(
    rep: Representation,
    kernel: Searched,
    layers: Sequence[Layer],
    at: Sequence[int],  # the depth of each
    seed: int,
) -> np.ndarray:  # (L, 1024)
    out = np.zeros((len(layers), 2 * WIDTH))
    for whole in (False, True):
        some = [i for i, layer in enumerate(layers) if is_whole(layer, kernel) == whole]
        sizes = (rep.samples,) if whole else _first(rep.block_sizes)
        if some:
            of, where = [layers[i] for i in some], [at[i] for i in some]
            out[some] = _added(of, kernel, sizes, rep.samples, where, seed, whole=whole)
    return out[:, :WIDTH] - out[:, WIDTH:]


def _added(
    layers: Sequence[Layer],
    kernel: Searched,
    sizes: tuple[int, ...],  # of blocks
    samples: int,
    at: Sequence[int],
    seed: int,
    *,
    whole: bool,
) -> np.ndarray:  # (L, 2048): what is to be taken off comes last
    """Entries added up where they belong, block by block."""
    places, done = _places(sizes, seed), 0
    out = np.zeros((len(layers), 2 * WIDTH))
    for start, stop in runs(sizes, at_once(len(layers), "cpu")):
        n = sizes[start]
        entries = _entries(layers, kernel, slice(start, stop), n, samples, whole=whole)
        for block in entries.reshape(stop - start, len(layers), -1):
            here = slice(done, done + block.shape[1])
            depths = (places[depth, here] for depth in at)
            out += [np.bincount(x, y, 2 * WIDTH) for x, y in zip(depths, block, strict=True)]
            done = here.stop
    return out


def _entries(
    layers: Sequence[Layer], kernel: Searched, which: slice, n: int, samples: int, *, whole: bool
) -> np.ndarray:  # (g·L, n(n+1)/2) float32: triangles, then diagonals
    """Kernels of blocks with such weights that inner products add up to those of all samples.

    As in `pair_sums.inner_product`: pairs and single samples of a block of n stand for those of
    all N. Of centred kernels, U-centred ones have no other terms, but for some of the order of 1/n.
    The kernel of all samples is centred as it is.
    """
    centre = kernel == "features"
    unit = float(samples)  # a mean diagonal of about one, for which float32 will do
    found = read(layers, kernel, which, n, "cpu", unit, loose=centre, whole=whole)
    triangle, diagonal = (x.numpy() for x in found)
    if not centre:
        return _joined(triangle, diagonal, pairs=samples - 1.0, single=n - 1.0)
    if n < 4:
        return np.zeros((len(diagonal), n * (n + 1) // 2), np.float32)
    diagonal = _centred(triangle, diagonal, whole=whole)
    if whole:
        return _joined(triangle, diagonal, pairs=1.0, single=1.0)
    # of each sample by itself, the mean of n took a share of 1/n
    return _joined(triangle, diagonal, pairs=samples * (n - 1) / (n - 3), single=n**2 / (n - 1))


def _centred(triangle: np.ndarray, diagonal: np.ndarray, *, whole: bool) -> np.ndarray:
    """Centres triangles in place: HKH of a whole kernel, U-centred (Székely and Rizzo 2014) of a
    block. Returns the diagonal of HKH."""
    n = diagonal.shape[1]
    rows = [slice(i * (i - 1) // 2, i * (i + 1) // 2) for i in range(n)]
    sums = np.zeros_like(diagonal)  # of rows, off the diagonal
    for i, row in enumerate(rows):
        sums[:, :i] += triangle[:, row]
        sums[:, i] += triangle[:, row].sum(1)
    every = sums + diagonal
    of_mean = every.sum(1, keepdims=True) / n**2
    centred: np.ndarray = diagonal - 2 * every / n + of_mean
    u = every / n - of_mean / 2
    if not whole:
        u = sums / (n - 2) - sums.sum(1, keepdims=True) / (2 * (n - 1) * (n - 2))
    for i, row in enumerate(rows):
        triangle[:, row] -= u[:, :i] + u[:, i : i + 1]
    return centred


def _joined(triangle: np.ndarray, diagonal: np.ndarray, pairs: float, single: float) -> np.ndarray:
    triangle *= np.float32((2 * pairs) ** 0.5)
    return np.concatenate([triangle, diagonal * np.float32(single**0.5)], 1)


def _first(sizes: Sequence[int]) -> tuple[int, ...]:
    """The first blocks, of no more pairs than are looked at."""
    ends = np.cumsum([n * (n + 1) // 2 for n in sizes])
    return tuple(sizes[: max(1, int(np.searchsorted(ends, _PAIRS, side="right")))])


@functools.lru_cache(maxsize=4)
def _places(sizes: tuple[int, ...], seed: int) -> np.ndarray:  # (depths, entries) int16
    """Where each entry is added at each depth, in the upper half if it is taken off instead.

    Entries come block by block, triangle and diagonal, and count as in the kernel of all samples,
    so that those of blocks meet their own in it. Depths have sixteen random bits of each, and use
    eleven.
    """
    every, begin = [], 0
    for n in sizes:
        i, j = (x.numpy() + begin for x in packing.lower(n))
        own = np.arange(begin, begin + n)
        every += [i * (i + 1) // 2 + j, own * (own + 3) // 2]
        begin += n
    random = bits(seed, BUCKET, np.concatenate(every))
    apart = random.astype("<u8").view("<u2").reshape(-1, DEPTHS).T
    return (apart % (2 * WIDTH)).astype(np.int16)
