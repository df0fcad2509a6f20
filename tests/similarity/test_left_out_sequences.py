"""Error bars of tokens leave out whole sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import reference_compare
import resemblance as rs
from resemblance.similarity import left_out_sequences
from resemblance.similarity.left_out_sequences import groups, only

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
    found = groups(rep)
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
    group = groups(rep)[9]
    part, rest = only(rep, group), torch.from_numpy(group.rest)
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
    for group in groups(a):
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
    with pytest.warns(UserWarning, match="of 3 sequences|equivalent of . sequences"):
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


@pytest.mark.filterwarnings("ignore:.*error bars cannot be trusted")
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
    with pytest.raises(rs.ResemblanceError, match="not offered for tokens"):
        rs.compare(a, b, kernel="features", centre=False, estimator="ratio")
    found = rs.compare(a, b, kernel="features", estimator="buckets")
    assert any("independent samples" in note for note in found.notes)
    assert left_out_sequences._FEWEST == 20
