"""Signatures: short vectors of networks whose cosine approximates the mean CKA of two networks.

CKA is the cosine between flattened kernels, and random signs preserve cosines: each kernel entry
is added, with a random sign, to one of 1,024 numbers (CountSketch: Charikar, Chen, Farach-Colton
2002). The bucket and the sign are a pure function of the entry's position, so signatures of
networks added years apart are comparable. A signature concatenates the sketches of the layers at
four relative depths, each of norm one half, so that the cosine of two signatures is the mean over
depths. Signatures select candidates; `search` computes their exact scores.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from .._ops import packing
from .._utils.hashing import BUCKET, random_bits
from ..representation.layer import Layer
from ..representation.representation import Representation
from ..similarity.kernels import required_kinds
from ..similarity.pair_statistics import u_centred_block
from ..similarity.stored_kernels import blocks_at_once, equal_size_runs, has_full_gram, read_blocks

SearchKernel = Literal["features", "gradients", "product"]
SEARCH_KERNELS: tuple[SearchKernel, ...] = get_args(SearchKernel)
DEPTHS = 4
WIDTH = 1024  # numbers a depth
AT_ONCE = 512  # signatures in memory at a time: few enough for a processor's cache
_CHECKSUMS_PATTERN = re.compile(r'"signatures": \{([^}]*)\}')  # in facts, as json.dumps writes them
_NAN_SIGNATURE = np.full(DEPTHS * WIDTH, np.nan, "<f2").tobytes()
_SEED = 20_200_711  # of the projection: another one would make every zoo anew
_MAX_PAIRS = 2**21  # of samples that enter: of very large blocks, the first ones do


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
    chosen = layers_at_depths(rep)
    return {
        kernel: signature(rep, kernel, chosen)
        for kernel in SEARCH_KERNELS
        if rep.block_sizes and set(required_kinds(kernel)) <= set(rep[0].kinds)
    }


def mismatched_kernels(stored: Mapping[str, Any], fresh: Mapping[str, np.ndarray]) -> list[str]:
    """The kernels whose stored signature is missing, superfluous or not that of the recording.

    Args:
        stored: what an index has for a recording, by kernel: the bytes of (4096,) float16.
        fresh: the `signatures` of that recording.
    """
    return [
        str(kernel)
        for kernel in dict.fromkeys([*fresh, *stored])
        if kernel not in fresh or not _nearly_equal(stored.get(kernel), fresh[kernel])
    ]


def _nearly_equal(stored: Any, fresh: np.ndarray) -> bool:
    """Whether two signatures are equal but for the rounding of other machines."""
    if not isinstance(stored, bytes) or len(stored) != fresh.nbytes:
        return False
    numbers = np.frombuffer(stored, "<f2").astype(float)
    return bool(np.allclose(numbers, fresh.astype(float), rtol=1e-2, atol=1e-3))


def layers_at_depths(rep: Representation) -> list[Layer]:
    """The layers at four relative depths, from the first to the last; of few layers, some twice."""
    return [rep[place] for place in depth_indices(len(rep))]


def depth_indices(layers: int) -> list[int]:
    """Places of the layers at four relative depths.

    >>> depth_indices(10), depth_indices(2)
    ([0, 3, 6, 9], [0, 0, 1, 1])
    """
    return [round(i * (layers - 1) / (DEPTHS - 1)) for i in range(DEPTHS)]


def signature(
    rep: Representation,
    kernel: SearchKernel,
    layers: Sequence[Layer | None],  # one a depth; None leaves a depth out
    *,
    seed: int = _SEED,
) -> np.ndarray:  # (4096,) float16
    """Projected kernels of some layers side by side, of length one in all."""
    there = [x for x in layers if x is not None]
    places = [depth for depth, x in enumerate(layers) if x is not None]
    out = np.zeros((DEPTHS, WIDTH))
    out[places] = _project_layers(rep, kernel, there, places, seed)
    length = np.linalg.norm(out, axis=1, keepdims=True) * len(there) ** 0.5
    return np.divide(out, length, out=out, where=length > 0).astype(np.float16).ravel()


def _project_layers(
    rep: Representation,
    kernel: SearchKernel,
    layers: Sequence[Layer],
    at: Sequence[int],  # the depth of each
    seed: int,
) -> np.ndarray:  # (L, 1024)
    out = np.zeros((len(layers), 2 * WIDTH))
    for whole in (False, True):
        some = [i for i, layer in enumerate(layers) if has_full_gram(layer, kernel) == whole]
        sizes = (rep.samples,) if whole else _leading_blocks(rep.block_sizes)
        if some:
            of, where = [layers[i] for i in some], [at[i] for i in some]
            out[some] = _accumulate(of, kernel, sizes, rep.samples, where, seed, whole=whole)
    return out[:, :WIDTH] - out[:, WIDTH:]


def _accumulate(
    layers: Sequence[Layer],
    kernel: SearchKernel,
    sizes: tuple[int, ...],  # of blocks
    samples: int,
    at: Sequence[int],
    seed: int,
    *,
    whole: bool,
) -> np.ndarray:  # (L, 2048): what is to be taken off comes last
    """Entries added up where they belong, block by block."""
    places, done = _bucket_indices(sizes, seed), 0
    out = np.zeros((len(layers), 2 * WIDTH))
    for start, stop in equal_size_runs(sizes, blocks_at_once(len(layers), "cpu")):
        n = sizes[start]
        entries = _weighted_entries(layers, kernel, slice(start, stop), n, samples, whole=whole)
        for block in entries.reshape(stop - start, len(layers), -1):
            here = slice(done, done + block.shape[1])
            depths = (places[depth, here] for depth in at)
            out += [np.bincount(x, y, 2 * WIDTH) for x, y in zip(depths, block, strict=True)]
            done = here.stop
    return out


def _weighted_entries(
    layers: Sequence[Layer],
    kernel: SearchKernel,
    which: slice,
    n: int,
    samples: int,
    *,
    whole: bool,
) -> np.ndarray:  # (g·L, n(n+1)/2) float32: triangles, then diagonals
    """Kernels of blocks with such weights that inner products add up to those of all samples.

    As in `pair_statistics.inner_products`: pairs and single samples of a block of n stand for those
    of all N. Of centred kernels, U-centred ones have no other terms, but for some of the order of
    1/n. The kernel of all samples is centred as it is.
    """
    centre = kernel == "features"
    unit = float(samples)  # a mean diagonal of about one, for which float32 will do
    triangle, diagonal = read_blocks(
        layers, kernel, which, n, "cpu", unit, loose=centre, whole=whole
    )
    pairs, single = samples - 1.0, n - 1.0
    if centre and n < 4:
        return np.zeros((len(diagonal), n * (n + 1) // 2), np.float32)
    if centre:
        # the mean of a block took a share of 1/n off each of its samples
        pairs, single = (1, 1) if whole else (samples * (n - 1) / (n - 3), n**2 / (n - 1))
        triangle, diagonal, _ = u_centred_block(triangle, diagonal)
        means = diagonal / n - diagonal.sum(1, keepdim=True) / (2 * n**2)
        diagonal = diagonal - 2 * means  # of HKH, like the rest of a whole kernel
        if whole:
            i, j = packing.lower_triangle(n)
            triangle = triangle - means[:, i] - means[:, j]
    return torch.cat([triangle * (2 * pairs) ** 0.5, diagonal * single**0.5], 1).numpy()


def _leading_blocks(sizes: Sequence[int]) -> tuple[int, ...]:
    """The first blocks, of no more pairs than are looked at."""
    ends = np.cumsum([n * (n + 1) // 2 for n in sizes])
    return tuple(sizes[: max(1, int(np.searchsorted(ends, _MAX_PAIRS, side="right")))])


@functools.lru_cache(maxsize=4)
def _bucket_indices(sizes: tuple[int, ...], seed: int) -> np.ndarray:  # (depths, entries) int16
    """Where each entry is added at each depth, in the upper half if it is taken off instead.

    Entries come block by block, triangle and diagonal, and count as in the kernel of all samples,
    so that those of blocks meet their own in it. Depths have sixteen random bits of each, and use
    eleven.
    """
    every, begin = [], 0
    for n in sizes:
        i, j = (x.numpy() + begin for x in packing.lower_triangle(n))
        own = np.arange(begin, begin + n)
        every += [i * (i + 1) // 2 + j, own * (own + 3) // 2]
        begin += n
    random = random_bits(seed, BUCKET, np.concatenate(every))
    apart = random.astype("<u8").view("<u2").reshape(-1, DEPTHS).T
    return (apart % (2 * WIDTH)).astype(np.int16)


def exact_nearest(
    blocks: Iterable[tuple[list[str], np.ndarray]], signature: np.ndarray, limit: int
) -> list[tuple[str, float]]:
    """Ids and cosines of the nearest of signatures that come in blocks, the nearest first.

    Every one is compared. Of equals, the one that came first is nearer. Rows of NaN come before the
    nearest and do not count towards the limit.
    """
    asked = np.asarray(signature, np.float32).ravel()
    asked = asked / max(float(np.linalg.norm(asked)), np.finfo(np.float32).tiny)
    ids: list[str] = []
    parts = [np.zeros(0, np.float32)]
    for names, vectors in blocks:
        rows = vectors.astype(np.float32)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        parts.append(rows @ asked / np.maximum(lengths, np.finfo(np.float32).tiny))
        ids += names
    cosines = np.concatenate(parts)
    order = np.argsort(-np.nan_to_num(cosines, nan=np.inf), kind="stable")
    best = order[: np.isnan(cosines).sum() + limit]
    return [(ids[i], float(cosines[i])) for i in best]


def signature_checksums(by_kernel: Mapping[str, np.ndarray | bytes]) -> dict[str, int]:
    """The checksum of each signature, by kernel."""
    return {
        kernel: zlib.crc32(x if isinstance(x, bytes) else np.asarray(x, "<f2").tobytes())
        for kernel, x in by_kernel.items()
    }


def verified_signatures(
    rows: Iterable[tuple[str, Any, Any]], kernel: str
) -> tuple[list[str], np.ndarray]:
    """Signatures from rows of an index, compared with their checksums.

    Args:
        rows: the id, the facts and the stored signature (bytes, or None) of each entry.
        kernel: which signature it is.

    Returns:
        Ids and signatures (n, 4096) of the entries that have one of this kernel and width; a row of
        NaN where it is not as it was written.
    """
    verified = ((id, _verified(facts, kernel, vector)) for id, facts, vector in rows)
    known = {id: x for id, x in verified if x is not None and len(x) == len(_NAN_SIGNATURE)}
    return list(known), np.frombuffer(b"".join(known.values()), "<f2").reshape(-1, DEPTHS * WIDTH)


def _verified(facts: Any, kernel: str, vector: Any) -> bytes | None:
    """The bytes of a signature, NaN if they are damaged, and None if the entry is to have none."""
    found = _CHECKSUMS_PATTERN.search(facts) if isinstance(facts, str) else None
    if found is None:
        return _NAN_SIGNATURE
    expected = re.search(rf'"{kernel}": (\d+)', found[1])
    if expected is None:
        return None
    same = isinstance(vector, bytes) and zlib.crc32(vector) == int(expected[1])
    return vector if same else _NAN_SIGNATURE
