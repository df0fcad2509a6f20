"""Random bits as a pure function of a seed and an index, the same on every machine.

CountSketch buckets and signs, folds and the order of samples come from this SplitMix64 hash, never
from a random generator: two recordings made independently agree only because of that. The same hash
also condenses content (`update_hashes`).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

# independent streams of one seed; those from 16 on are of further buckets
BUCKET, SIGN, ORDER, FOLD_SIGN, FOLD_SHIFT, ROW, COLUMN, TOKEN, GROUP, BUFFER = range(10)
LABEL, REREAD, CLASS_ORDER, CLASS_BITS, ROW_KEY = range(10, 15)
_WORDS_PER_CHUNK = 2**14  # words that are read together: with what is made of them, a cache's worth


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all 64 bits."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def random_bits(seed: int, stream: int, indices: ArrayLike) -> np.ndarray:
    """64 random bits for each index; streams and seeds are independent of each other."""
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        key = _splitmix64(
            np.asarray([int(seed) % 2**64], np.uint64) + golden * np.uint64(stream + 1)
        )
        return _splitmix64(
            key ^ _splitmix64(np.asarray(indices).astype(np.uint64) * golden + golden)
        )


def scale_below(random: np.ndarray, bound: int) -> np.ndarray:
    """Integers in [0, bound) from the upper 32 of 64 random bits (bias below bound / 2³²)."""
    return (((random >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def update_hashes(
    hashes: np.ndarray, words: np.ndarray
) -> np.ndarray:  # (n,), (n, w) -> (n,) uint64
    """Running 64-bit hashes of rows, after reading each row's words; zero words add nothing."""
    keys, of_zeros = word_keys(words.shape[1])
    sums = np.empty(len(words), np.uint64)
    step = max(1, _WORDS_PER_CHUNK // max(1, words.shape[1]))
    for start in range(0, len(words), step):
        rows = _splitmix64(words[start : start + step] ^ keys)
        rows.sum(1, dtype=np.uint64, out=sums[start : start + step])
    return update_hashes_from_sums(hashes, sums - of_zeros)


def update_hashes_from_sums(hashes: np.ndarray, sums: np.ndarray) -> np.ndarray:  # (n,) uint64 each
    """`update_hashes`, from each row's Σ_j mix(word_j ^ key_j) less what zeros would give."""
    return _splitmix64(_splitmix64(hashes) + sums)


@functools.lru_cache(maxsize=8)
def word_keys(words: int) -> tuple[np.ndarray, np.uint64]:  # (words,) uint64
    """What tells the places in a row of words, and what `update_hashes` would sum up of zeros."""
    keys = random_bits(0, ROW, np.arange(words))
    return keys, _splitmix64(keys).sum(dtype=np.uint64)


def seeded_permutation(count: int, seed: int) -> np.ndarray:
    """The seeded order of `count` samples: indices sorted by their hash.

    >>> sorted(seeded_permutation(5, seed=0).tolist())
    [0, 1, 2, 3, 4]
    """
    # No two are equal, each step being a bijection: any sort gives the same order.
    return np.argsort(random_bits(seed, ORDER, np.arange(count)))
