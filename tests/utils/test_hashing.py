"""The hash that order, buckets and folds are drawn from."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from resemblance._utils import hashing
from resemblance._utils.hashing import seeded_permutation, update_hashes

SEEDS = st.integers(-(2**63), 2**64)
RNG = np.random.default_rng(0)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 300), seed=SEEDS)
def test_shuffled_is_a_permutation(n, seed):
    assert sorted(seeded_permutation(n, seed).tolist()) == list(range(n))


def test_the_order_never_changes():
    """Files recorded with one version must compare with those of the next."""
    assert seeded_permutation(8, seed=0).tolist() == [2, 3, 7, 5, 1, 0, 4, 6]


def test_shuffled_positions_are_uniform():
    n, seeds = 10, 3000
    first = np.bincount([seeded_permutation(n, seed)[0] for seed in range(seeds)], minlength=n)
    assert np.abs(first - seeds / n).max() < 5 * np.sqrt(seeds / n)


def test_mix_depends_on_every_word_its_place_and_the_start():
    words = RNG.integers(1, 2**63, (1, 6)).astype(np.uint64)
    zero = np.zeros(1, np.uint64)
    base = update_hashes(zero, words)[0]
    others = {
        int(update_hashes(zero + np.uint64(1), words)[0]),
        int(update_hashes(zero, words[:, ::-1])[0]),
    }
    for j in range(6):
        changed = words.copy()
        changed[0, j] += np.uint64(1)
        others.add(int(update_hashes(zero, changed)[0]))
    assert int(base) not in others
    assert len(others) == 8


def test_a_hash_does_not_depend_on_how_many_are_made_at_a_time(monkeypatch):
    words = RNG.integers(0, 2**63, (50, 6)).astype(np.uint64)
    start = RNG.integers(0, 2**63, 50).astype(np.uint64)
    base = update_hashes(start, words)
    for at_once in (1, 7, 90):
        monkeypatch.setattr(hashing, "_WORDS_PER_CHUNK", at_once)
        assert (update_hashes(start, words) == base).all()


def test_zero_words_at_the_end_do_not_change_a_hash():
    words = RNG.integers(0, 2**63, (3, 4)).astype(np.uint64)
    padded = np.pad(words, ((0, 0), (0, 5)))
    start = np.zeros(3, np.uint64)
    assert (update_hashes(start, words) == update_hashes(start, padded)).all()
