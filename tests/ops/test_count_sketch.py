"""The sketch by its theorems. Tolerances are five standard errors; seeds are fixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from resemblance import CountSketch
from resemblance._ops.count_sketch import add_to_buckets
from resemblance.errors import DataError

SEEDS = st.integers(0, 2**64 - 1)
FIRST_BUCKETS = [0, 255, 344, 186, 294, 86, 50, 254]
FIRST_SIGNS = [1.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0]


# -- assign -------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    seed=SEEDS,
    indices=st.lists(st.integers(0, 2**62), min_size=1, max_size=30),
    per_sample=st.sampled_from([1, 2, 4]),
)
def test_assign_is_a_pure_function_of_seed_and_index(seed, indices, per_sample):
    sketch = CountSketch(buckets=64, seed=seed, per_sample=per_sample)
    h, s = sketch.assign(indices)
    for n, index in enumerate(indices):  # alone, or among others in any order
        alone = sketch.assign([index])
        assert torch.equal(alone[0][0], h[n])
        assert torch.equal(alone[1][0], s[n])
    again = CountSketch(buckets=64, seed=seed, per_sample=per_sample).assign(np.array(indices))
    assert torch.equal(again[0], h)
    assert torch.equal(again[1], s)


def test_assign_is_fixed_for_ever():
    """Files from different versions compare only while these numbers stay."""
    h, s = CountSketch(seed=0).assign(range(8))
    assert h.flatten().tolist() == FIRST_BUCKETS
    assert s.flatten().tolist() == FIRST_SIGNS


def test_assign_touches_no_global_generator():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    CountSketch().assign(range(100))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


@pytest.mark.parametrize("per_sample", [1, 4])
def test_buckets_are_uniform_and_signs_balanced(per_sample):
    n, m = 64_000, 64
    h, s = CountSketch(m, seed=5, per_sample=per_sample).assign(range(n))
    rows = m // per_sample
    for t in range(per_sample):
        counts = torch.bincount(h[:, t] - t * rows, minlength=rows).double()
        chi2 = float(((counts - n / rows) ** 2 / (n / rows)).sum())
        # χ² with rows − 1 degrees of freedom has standard deviation √(2(rows − 1))
        assert abs(chi2 - (rows - 1)) < 5 * np.sqrt(2 * (rows - 1))
        assert abs(float(s[:, t].sign().sum())) < 5 * np.sqrt(n)
        # buckets and signs are independent of each other
        assert abs(float((s[:, t].sign() * (h[:, t] % 2 * 2 - 1)).sum())) < 5 * np.sqrt(n)


@pytest.mark.parametrize("per_sample", [1, 4])
def test_expectation_of_the_gram_of_the_sketch_is_the_identity(per_sample):
    n, m, seeds = 12, 32, 2000
    total = torch.zeros(n, n, dtype=torch.float64)
    for seed in range(seeds):
        S = CountSketch(m, seed, per_sample).matrix(range(n)).double()
        total += S.T @ S
    mean = total / seeds
    assert torch.allclose(mean.diagonal(), torch.ones(n, dtype=torch.float64), atol=1e-6)
    off = mean - torch.diag(mean.diagonal())
    # An entry is ±1/t for each of t collisions of probability t/M: its variance is 1/M for any t.
    assert float(off.abs().max()) < 5 / np.sqrt(m * seeds)


def test_more_buckets_a_sample_lower_the_chance_of_a_full_collision():
    counts = {}
    for per_sample in (1, 4):
        S = [CountSketch(64, seed, per_sample).matrix(range(40)).double() for seed in range(50)]
        overlaps = torch.stack([(s.T @ s).abs() for s in S])
        counts[per_sample] = int((overlaps > 0.99).sum()) - 50 * 40
    assert counts[1] > 0
    assert counts[4] == 0


def test_seeds_and_streams_are_independent():
    a, b = (CountSketch(512, seed).assign(range(20_000)) for seed in (0, 1))
    assert abs(float((a[1] * b[1]).sum())) < 5 * np.sqrt(20_000)
    assert abs(int((a[0] == b[0]).sum()) - 20_000 / 512) < 5 * np.sqrt(20_000 / 512)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1), "`buckets` must be a whole number, 1 or more; found 0"),
        ((-8, 1), "`buckets` must be a whole number, 1 or more; found -8"),
        ((8, 0), "`per_sample` must be a whole number, 1 or more; found 0"),
        ((8, 3), "`buckets` must be a positive multiple of `per_sample`"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(DataError, match=message):
        CountSketch(buckets=sizes[0], per_sample=sizes[1])


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, None])
def test_a_seed_is_a_number_of_64_bits(seed):
    with pytest.raises(DataError, match="`seed` must be a whole number"):
        CountSketch(seed=seed)


def test_negative_indices_are_refused():
    with pytest.raises(DataError, match="must not be negative; found -3"):
        CountSketch().assign([1, -3])
    with pytest.raises(DataError, match="must be whole numbers; found float64"):
        CountSketch().assign([0.5])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 99), per_sample=st.sampled_from([1, 2]))
def test_adding_to_buckets_is_the_sketch_times_the_rows(n, seed, per_sample):
    sketch = CountSketch(16, seed, per_sample)
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table = torch.zeros(16, 5, dtype=torch.float64)
    h, s = sketch.assign(range(n))
    add_to_buckets(table, x, h, s.double())
    assert torch.allclose(table, sketch.matrix(range(n)).double() @ x, atol=1e-12)
    by_hand = reference.algorithm_1(x.numpy(), h.numpy(), s.double().numpy(), 16)
    assert np.allclose((table @ table.T).numpy(), by_hand, rtol=1e-12, atol=1e-12)
