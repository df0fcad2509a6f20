"""Standard errors, their degrees of freedom, Student's t, and what estimators return."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import reference_compare
import resemblance as rs
from resemblance.similarity import jackknife
from resemblance.similarity.jackknife import Estimate, sequence_groups, window_without_group
from resemblance.similarity.pair_statistics import ChanceLevels

TOKENS = 4


class Table(nn.Module):
    """A network whose features are rows of a table, one for each token of each sequence."""

    def __init__(self, rows):  # (sequences, length, width)
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor(rows).float().flatten(0, 1))
        self.head = nn.Linear(rows.shape[-1], 3)

    def forward(self, ids):
        return self.head(self.table(ids))


def drawn(seed, sequences=60, length=8, shared=1.0):
    """Tokens of two networks; those of a sequence have a share in common, as do the networks."""
    rng = np.random.default_rng(seed)
    maps = np.random.default_rng(99).normal(size=(2, 5, 9))

    def causes():
        of_sequence = rng.normal(size=(sequences, 1, 5))
        return shared * of_sequence + rng.normal(size=(sequences, length, 5))

    common = causes()
    return [(0.8 * common + 0.4 * causes()) @ each for each in maps]


def recorded(rows, block=20, **options):
    ids = torch.arange(rows.shape[0] * rows.shape[1]).view(rows.shape[:2])
    options = {
        "layers": ["table"],
        "gradients": False,
        "tokens": TOKENS,
        "buckets": 0,
        "blocks": 400,
        **options,
    }
    return rs.record(Table(rows), ids, unit="token", block=block, data_id="made up", **options)


@pytest.mark.parametrize(("sequences", "block"), [(60, 20), (60, 60), (90, 4), (21, 21), (10, 10)])
def test_groups_are_twenty_or_more_and_leave_out_each_sequence_once(sequences, block):
    rep = recorded(drawn(0, sequences)[0], block)
    found = sequence_groups(rep)
    assert len(found) >= min(20, sequences)
    gone = {}
    for group in found:
        assert group.blocks.stop - group.blocks.start == TOKENS
        out = set(range(group.size)) - set(group.rest.tolist())
        assert not gone.setdefault(group.blocks.start, set()) & out
        gone[group.blocks.start] |= out
    assert sum(map(len, gone.values())) == sequences


def test_what_stays_of_a_window_is_what_was_recorded_of_it():
    rep = recorded(drawn(0)[0])
    group = sequence_groups(rep)[9]
    part, rest = window_without_group(rep, group), torch.from_numpy(group.rest)
    expected = rep["table"].blocks("features")[group.blocks][:, rest][:, :, rest]
    assert torch.equal(part["table"].blocks("features"), expected)
    assert part.block_sizes == (len(rest),) * TOKENS


def by_hand(kernels, centre):  # a list of pairs of (n, n)
    """Debiased CKA over pairs of different sequences, from blocks, in plain float64."""
    inner = reference_compare.hsic if centre else reference_compare.pairs
    sums = np.zeros(3)
    for one, two in kernels:
        n = len(one)
        each = [inner(x, y) for x, y in ((one, two), (one, one), (two, two))]
        sums += n * (n - 1) * np.array(each)
    return sums[0] / np.sqrt(sums[1] * sums[2])


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("block", [20, 60])
def test_scores_and_errors_match_plain_float64(centre, block):
    a, b = (recorded(rows, block) for rows in drawn(1))
    found = rs.compare(a, b, kernel="features", index="cka-debiased", centre=centre)
    blocks = [rep["table"].blocks("features").double().numpy() for rep in (a, b)]
    pairs = list(zip(*blocks, strict=True))
    assert found.scores[0, 0] == pytest.approx(by_hand(pairs, centre), abs=1e-6)
    scores = []
    for group in sequence_groups(a):
        rest = np.ix_(group.rest, group.rest)
        inside = range(group.blocks.start, group.blocks.stop)
        left = [(x[rest], y[rest]) if i in inside else (x, y) for i, (x, y) in enumerate(pairs)]
        scores.append(by_hand(left, centre))
    m = len(scores)
    expected = np.sqrt((m - 1) / m * np.square(scores - np.mean(scores)).sum())
    assert found.stderr[0, 0] == pytest.approx(expected, rel=1e-4)


def test_many_networks_agree_with_two():
    reps = [recorded(rows) for seed in (1, 2) for rows in drawn(seed)]
    table = rs.compare_all(reps, kernel="features")
    two = rs.compare(reps[0], reps[2], kernel="features")
    assert table.scores[0, 2] == pytest.approx(two.scores[0, 0], abs=1e-6)
    assert table.stderr[0, 2] == pytest.approx(two.stderr[0, 0], rel=1e-4)
    assert table.n_eff[0, 0] == pytest.approx(two.n_eff[0][0], rel=1e-5)


def test_n_eff_counts_sequences():
    rows = drawn(0)[0]
    rows[:3] *= 100  # three sequences carry everything
    rep = recorded(rows)
    with pytest.warns(UserWarning, match=r"\(n_eff\) is 3 of 60 sequences"):
        found = rs.compare(rep, recorded(drawn(0)[1]), kernel="features", centre=False)
    assert 1 < found.n_eff[0][0] < 3.5


@pytest.mark.parametrize("index", ["cka-debiased", "rsa", "nbs", "spectral"])
def test_every_index_has_an_error_from_sequences(index):
    a, b = (recorded(rows) for rows in drawn(3))
    found = rs.compare(a, b, kernel="features", index=index)
    assert 0 < found.stderr[0, 0] < 0.2


def test_chance_is_of_permuted_sequences():
    """Tokens of unrelated sequences: about one score in twenty lies above the 95 % quantile."""
    above = 0
    for seed in range(60):
        one, two = drawn(seed, shared=2.0)[0], drawn(seed + 1000, shared=2.0)[1]
        found = rs.compare(recorded(one), recorded(two), kernel="features", index="cka-debiased")
        above += found.scores[0, 0] > found.chance_high[0, 0]
    assert above <= 9  # at 5 % more would come once in 500


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.5, 2.0])
def test_intervals_cover_where_tokens_of_a_sequence_are_alike(shared):
    scores, covers, narrow = [], [], []
    draws = 150
    for seed in range(draws):
        a, b = (recorded(rows, 30) for rows in drawn(seed, shared=shared))
        found = rs.compare(a, b, kernel="features")
        scores.append(found.scores[0, 0])
        covers.append([float(x[0, 0]) for x in found.interval()])
        narrow.append(found.stderr[0, 0])
    truth, covers = np.mean(scores), np.array(covers)
    covered = ((covers[:, 0] <= truth) & (truth <= covers[:, 1])).mean()
    assert covered > 0.88  # below 0.93 at 1 % of 150 draws
    assert 0.8 < np.mean(narrow) / np.std(scores) < 1.4


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
def test_adaptation_leaves_out_sequences():
    found = []
    for seed in range(40):
        table = rs.adaptation(recorded(drawn(seed, shared=2.0)[0] + 2.0), kernel="features")
        first = next(iter(table.columns))
        found.append((table[first][0], table[f"{first}_stderr"][0]))
    values, errors = np.array(found).T
    assert 0.75 < errors.mean() / values.std() < 1.5


def test_what_is_not_offered_for_tokens_says_so():
    a, b = (recorded(rows, buckets=128) for rows in drawn(5))
    with pytest.raises(rs.ResemblanceError, match="not available for tokens"):
        rs.compare(a, b, kernel="features", centre=False, estimator="ratio")
    found = rs.compare(a, b, kernel="features", estimator="buckets")
    assert any("buckets treat the tokens" in note for note in found.notes)
    assert jackknife._MIN_GROUPS == 20


@pytest.mark.parametrize(
    ("level", "df", "expected"),
    [
        (0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 5, 2.5706), (0.95, 63, 1.9983),
        (0.99, 3, 5.8409), (0.99, 31, 2.7440), (0.5, 10, 0.6998), (0.95, 1000, 1.9623),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(level, df, expected):
    assert float(jackknife.student_t(level, np.array(float(df)))) == pytest.approx(
        expected, abs=1e-4
    )


def test_students_t_of_broken_degrees_of_freedom():
    from scipy import stats

    df = np.array([[1.5, 3.3], [17.2, np.nan]])
    np.testing.assert_allclose(
        jackknife.student_t(0.9, df), stats.t.ppf(0.95, df), rtol=1e-9, equal_nan=True
    )


def test_a_jackknife_of_means_is_the_standard_error_of_a_mean():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    rest = (x.sum(0) - x) / 39
    expected = x.std(0) / 40**0.5
    torch.testing.assert_close(jackknife.jackknife_error(rest), expected)
    torch.testing.assert_close(
        jackknife.standard_error([jackknife.jackknife_deviations(rest)])[0], expected
    )


def test_degrees_of_freedom_are_those_of_a_normal_or_of_the_few_that_matter():
    normal = torch.randn(64, 500, generator=torch.Generator().manual_seed(0)).double()
    _, df = jackknife.standard_error([jackknife.jackknife_deviations(normal)])
    assert 64 * 2 / 3 < float(df.median()) < 63
    one = torch.zeros(64, 1).double()
    one[3] = 5
    assert float(
        jackknife.standard_error([jackknife.jackknife_deviations(one)])[1]
    ) == pytest.approx(4 / 3, rel=0.05)
    alike = torch.ones(64, 1).double()  # nothing moves the score
    error, df = jackknife.standard_error([jackknife.jackknife_deviations(alike)])
    assert (float(error), float(df)) == (0, 63)


def test_replicates_have_the_same_standard_error():
    generator = torch.Generator().manual_seed(0)
    sets = [jackknife.jackknife_deviations(torch.randn(k, 2, generator=generator)) for k in (16, 9)]
    expected, _ = jackknife.standard_error(sets)
    found = jackknife.jackknife_replicates(torch.tensor([0.5, 0.7]), sets)
    assert found.shape == (25, 2)
    torch.testing.assert_close(jackknife.jackknife_error(found), expected)
    torch.testing.assert_close(found.mean(0), torch.tensor([0.5, 0.7]))


def test_effective_numbers():
    shares = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert jackknife.effective_number(shares).tolist() == [4, 1]


@pytest.mark.parametrize("df", [1.0, 1.4, 3.3, 31.0, 1000.0])
def test_the_tail_of_students_t_is_that_of_the_tables(df):
    from scipy import stats

    t = np.array([-3.0, -0.2, 0.0, 0.7, 2.5, 9.0, 60.0])
    found = jackknife.student_tail(t, np.full(len(t), df))
    np.testing.assert_allclose(found, stats.t.sf(t, df), rtol=1e-9, atol=1e-300)


def test_the_tail_of_students_t_undoes_its_quantile_and_has_ends():
    df = np.array([1.0, 4.5, 63.0])
    for level in (0.5, 0.95, 0.999):
        at = jackknife.student_t(level, df)
        np.testing.assert_allclose(jackknife.student_tail(at, df), (1 - level) / 2, rtol=1e-9)
    ends = jackknife.student_tail(np.array([np.inf, -np.inf, np.nan]), np.full(3, 5.0))
    np.testing.assert_array_equal(ends, [0, 1, np.nan])


SCORES = torch.tensor([[0.5, 1.2], [-0.3, 0.9]], dtype=torch.float64)
ALIVE = (torch.tensor([True, True]), torch.tensor([True, False]))


def deviations(seed=0, parts=8):
    """What each of some parts moves the scores by; they add up to nothing."""
    moves = torch.from_numpy(np.random.default_rng(seed).normal(size=(parts, 2, 2)))
    return moves - moves.mean(0)


def test_scores_and_chance_are_kept_in_bounds():
    levels = ChanceLevels(SCORES - 1, SCORES + 1, torch.zeros(2, 2))
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, levels)
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
    error, df = jackknife.standard_error(moves)
    np.testing.assert_allclose(found.stderr, error)
    np.testing.assert_allclose(found.df, df)
    assert found.replicates.shape == (13, 2, 2)
    again = jackknife.jackknife_error(torch.from_numpy(found.replicates))
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
    again = jackknife.jackknife_error(torch.from_numpy(other.replicates))
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


LEVELS = ChanceLevels(SCORES / 4, SCORES / 2, torch.full((2, 2), 0.5))


@pytest.mark.parametrize("levels", [None, LEVELS], ids=["plain", "chance"])
def test_a_part_replaces_its_rows_and_columns_alone(levels):
    found = Estimate.of(SCORES, [deviations(0)], ALIVE, levels)
    small = [x[..., 1:, :1] for x in (SCORES + 0.7, deviations(2), *(levels or ()))]
    part_levels = ChanceLevels(*small[2:]) if levels else None
    part = Estimate.of(small[0], [small[1]], (ALIVE[0][1:], ALIVE[1][:1]), part_levels)
    rows, columns = np.array([False, True]), np.array([True, False])
    other = found.with_part(part, rows, columns)
    assert other.scores[1, 0] == pytest.approx(0.4)
    assert found.scores[1, 0] == 0.0  # it is not changed in place
    for name in (
        "scores",
        "stderr",
        "df",
        "replicates",
        *(("chance", "chance_high", "p_value") * bool(levels)),
    ):
        mine, theirs, mixed = (getattr(x, name) for x in (found, part, other))
        np.testing.assert_array_equal(mixed[..., 1:, :1], theirs)
        for i, j in ((0, 0), (0, 1), (1, 1)):
            np.testing.assert_array_equal(mixed[..., i, j], mine[..., i, j])
    if not levels:
        assert other.chance is None


def test_a_part_without_chance_leaves_that_of_the_whole():
    found = Estimate.of(SCORES, torch.ones(2, 2), ALIVE, LEVELS)
    every = np.array([True, True])
    other = found.with_part(Estimate.of(SCORES / 3, torch.ones(2, 2), ALIVE), every, every)
    np.testing.assert_array_equal(other.chance, found.chance)
    np.testing.assert_allclose(other.scores, (SCORES / 3).clamp(0, 1))
