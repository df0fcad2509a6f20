"""What estimators hand over: kept in bounds, with errors and replicates that belong together."""

import numpy as np
import pytest
import torch

from resemblance.similarity import error_bars
from resemblance.similarity.estimate import Estimate

SCORES = torch.tensor([[0.5, 1.2], [-0.3, 0.9]], dtype=torch.float64)
ALIVE = (torch.tensor([True, True]), torch.tensor([True, False]))


def deviations(seed=0, parts=8):
    """What each of some parts moves the scores by; they add up to nothing."""
    moves = torch.from_numpy(np.random.default_rng(seed).normal(size=(parts, 2, 2)))
    return moves - moves.mean(0)


def test_scores_and_chance_are_kept_in_bounds():
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, (SCORES - 1, SCORES + 1))
    np.testing.assert_allclose(found.scores, [[0.5, 1.0], [0.0, 0.9]])
    np.testing.assert_allclose(found.chance, [[0.0, 0.2], [0.0, 0.0]], atol=1e-12)
    np.testing.assert_allclose(found.chance_high, [[1.0, 1.0], [0.7, 1.0]])
    signed = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, low=-1.0)
    np.testing.assert_allclose(signed.scores, [[0.5, 1.0], [-0.3, 0.9]])
    assert signed.chance is None
    assert signed.chance_high is None


def test_known_standard_errors_come_without_degrees_of_freedom():
    found = Estimate.of(SCORES, torch.full((2, 2), 0.25), ALIVE)
    assert (found.stderr == 0.25).all()
    assert found.df is None
    assert found.replicates is None
    assert [x.tolist() for x in found.alive] == [[True, True], [True, False]]


def test_deviations_become_standard_errors_degrees_of_freedom_and_replicates():
    moves = [deviations(0), deviations(1, parts=5)]
    found = Estimate.of(SCORES, moves, ALIVE)
    error, df = error_bars.standard_error(moves)
    np.testing.assert_allclose(found.stderr, error)
    np.testing.assert_allclose(found.df, df)
    assert found.replicates.shape == (13, 2, 2)
    again = error_bars.jackknife(torch.from_numpy(found.replicates))
    np.testing.assert_allclose(again, found.stderr)
    # replicates are about the score as it was estimated, which the bounds are not applied to
    np.testing.assert_allclose(found.replicates.mean(0), SCORES)


def test_what_a_score_rests_on_is_kept():
    carried = (torch.tensor([10.0, 20.0]), torch.tensor([30.0, 40.0]))
    blocks = torch.full((2, 2), 7.0)
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, n_eff=carried, effective_blocks=blocks)
    assert [x.tolist() for x in found.n_eff] == [[10, 20], [30, 40]]
    assert (found.effective_blocks == 7).all()


def test_other_standard_errors_scale_the_replicates():
    found = Estimate.of(SCORES, [deviations()], ALIVE)
    wider = torch.from_numpy(found.stderr) * torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    other = found.with_errors(wider)
    np.testing.assert_allclose(other.stderr, wider)
    again = error_bars.jackknife(torch.from_numpy(other.replicates))
    np.testing.assert_allclose(again, other.stderr, atol=1e-12)
    np.testing.assert_allclose(other.replicates.mean(0), SCORES)
    np.testing.assert_array_equal(other.scores, found.scores)


def test_a_score_without_error_has_replicates_without_spread():
    same = deviations()
    same[:, 0, 0] = 0.0  # as of a network beside itself
    other = Estimate.of(SCORES, [same], ALIVE).with_errors(torch.ones(2, 2))
    assert np.isfinite(other.replicates).all()
    np.testing.assert_allclose(other.replicates[:, 0, 0], 0.5)


def test_other_standard_errors_need_no_replicates():
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE).with_errors(torch.full((2, 2), 3.0))
    assert (found.stderr == 3).all()
    assert found.replicates is None


@pytest.mark.parametrize("levels", [(), (SCORES / 4, SCORES / 2)], ids=["plain", "chance"])
def test_a_part_replaces_its_rows_and_columns_alone(levels):
    found = Estimate.of(SCORES, [deviations(0)], ALIVE, levels)
    small = [x[..., 1:, :1] for x in (SCORES + 0.7, deviations(2), *levels)]
    part = Estimate.of(small[0], [small[1]], (ALIVE[0][1:], ALIVE[1][:1]), small[2:])
    rows, columns = np.array([False, True]), np.array([True, False])
    other = found.with_part(part, rows, columns)
    assert other.scores[1, 0] == pytest.approx(0.4)
    assert found.scores[1, 0] == 0.0  # it is not changed in place
    for name in (
        "scores",
        "stderr",
        "df",
        "replicates",
        *(("chance", "chance_high") * bool(levels)),
    ):
        mine, theirs, mixed = (getattr(x, name) for x in (found, part, other))
        np.testing.assert_array_equal(mixed[..., 1:, :1], theirs)
        for i, j in ((0, 0), (0, 1), (1, 1)):
            np.testing.assert_array_equal(mixed[..., i, j], mine[..., i, j])
    if not levels:
        assert other.chance is None


def test_a_part_without_chance_leaves_that_of_the_whole():
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, (SCORES / 4, SCORES / 2))
    every = np.array([True, True])
    other = found.with_part(Estimate.of(SCORES / 3, torch.ones(2, 2), ALIVE), every, every)
    np.testing.assert_array_equal(other.chance, found.chance)
    np.testing.assert_allclose(other.scores, (SCORES / 3).clamp(0, 1))
