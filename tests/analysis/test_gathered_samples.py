"""The samples of one pass: all of them, or a sketch and a random few held back."""

import numpy as np
import pytest
import torch

from resemblance import CountSketch
from resemblance.analysis.gathered_samples import Gathered, sketch_targets
from resemblance.analysis.kernel_ridge import Problem


def test_reservoir_holds_any_sample_with_equal_chance():
    early = []
    for seed in range(20):
        gathered = Gathered(CountSketch(4, seed), exact_up_to=0)
        for start in range(0, 3000, 500):
            rows = {"features": torch.zeros(500, 1)}
            gathered.add(np.arange(start, start + 500), rows)
        held = np.array(list(gathered.held))
        assert len(held) == 1000
        early.append((held < 1500).mean())
    assert np.mean(early) == pytest.approx(0.5, abs=0.02)  # four standard errors of 20,000 draws


def added(exact_up_to, sizes=(7, 5, 8), per_sample=1):
    """Twenty samples of two kinds, in batches, with their indices out of order."""
    generator = torch.Generator().manual_seed(0)
    rows = {kind: torch.randn(20, 3, generator=generator) for kind in ("features", "gradients")}
    indices = np.random.default_rng(0).permutation(20)
    gathered = Gathered(CountSketch(8, 1, per_sample), exact_up_to)
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        gathered.add(indices[part], {k: x[part] for k, x in rows.items()})
        start += size
    return gathered, rows, indices


def test_samples_are_kept_up_to_the_limit_and_sketched_beyond():
    kept, rows, indices = added(exact_up_to=20)
    assert kept.exact
    problem = kept.problem(torch.eye(3, dtype=torch.float64)[indices % 3])
    assert all(torch.equal(x, rows[kind]) for kind, x in problem.items.items())
    sketched, _, _ = added(exact_up_to=19)
    assert not sketched.exact
    assert sketched.count == kept.count == 20


@pytest.mark.parametrize("per_sample", [1, 2])
@pytest.mark.parametrize("exact_up_to", [0, 10, 19])
def test_a_sketched_problem_is_the_dense_sketch_whenever_sketching_began(exact_up_to, per_sample):
    gathered, rows, indices = added(exact_up_to, per_sample=per_sample)
    targets = torch.eye(3, dtype=torch.float64)[indices % 3]
    S = CountSketch(8, 1, per_sample).matrix(indices).double()
    items = {kind: S @ x.double() for kind, x in rows.items()}
    expected = Problem.of_items(items, sketch_targets(targets, gathered.sketch, indices, 2))
    found = gathered.problem(targets)
    torch.testing.assert_close(found.weights(0.5), expected.weights(0.5), rtol=1e-4, atol=1e-5)


def test_held_samples_can_be_taken_off_as_if_they_had_never_come():
    gathered, rows, indices = added(exact_up_to=0)
    targets = torch.eye(3, dtype=torch.float64)[indices % 3]
    out = [2, 11, 19]
    kept = np.setdiff1d(np.arange(20), out)
    S = CountSketch(8, 1).matrix(indices[kept]).double()
    items = {kind: S @ x[kept].double() for kind, x in rows.items()}
    table = sketch_targets(targets[kept], gathered.sketch, indices[kept], 2)
    found = gathered.problem(targets, without=out).weights(0.5)
    expected = Problem.of_items(items, table).weights(0.5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
