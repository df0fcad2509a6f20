"""Thresholds on neighbours and cosines: bounds, chance, a shared basis, and their messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta

import resemblance as rs
from resemblance.errors import DataError, FormatError, MismatchError
from resemblance.gate.bounds import mean_bounds
from resemblance.gate.thresholds import collect_thresholds
from resemblance.similarity.neighbours import NeighbourLists


def recorded(vectors, name="arrays"):
    return rs.record_arrays(outputs=vectors, logits="none", data_id="x", name=name)


def pair(n=600, size=0.1, dim=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(n, dim, generator=generator)
    two = one + size * torch.randn(n, dim, generator=generator)
    return one, two


def judged(one, two, **asked):
    (finding,) = rs.check(recorded(one, "base"), recorded(two, "copy"), **asked).findings
    return finding


def test_neighbours_have_betting_bounds_over_queries():
    one, two = (recorded(x) for x in pair())
    overlap = NeighbourLists(one.embeddings.vectors, two.embeddings.vectors).overlap
    missing = mean_bounds(1 - overlap, 1.0)
    (finding,) = rs.check(one, two, min_neighbours=0.5).findings
    assert len(overlap) == 300
    assert finding.status == "passed"
    assert finding.measured == pytest.approx(overlap.mean())
    assert (finding.low, finding.high) == pytest.approx((1 - missing.high, 1 - missing.low))
    assert "300 queries among 300 different samples" in finding.remarks[0]
    assert "bounds hold for new queries on this pool" in finding.remarks[0]


def test_a_limit_above_the_bounds_fails_and_one_between_is_undecided():
    one, two = pair(size=0.4)
    measured = judged(one, two, min_neighbours=0.9)
    assert measured.status == "failed"
    between = judged(one, two, min_neighbours=measured.measured - 0.005)
    assert between.status == "undecided"
    assert between.samples_needed is None  # a file holds no more
    assert "but a recording holds the embeddings of 4,096" in between.reason
    wider = judged(one, two, min_neighbours=measured.low - 0.03)
    assert wider.status == "passed"
    fewer = judged(one[:100], two[:100], min_neighbours=0.5)
    assert fewer.status in ("undecided", "passed")


def test_few_samples_say_how_many_would_decide():
    one, two = pair(n=120, size=0.1)
    found = judged(one, two, min_neighbours=0.88)
    assert found.status == "undecided"
    assert 120 < found.samples_needed < 2000
    assert found.samples_needed % 2 == 0  # every second one is a query


def test_unrelated_embeddings_do_not_pass_by_chance():
    """A threshold below the chance level is no threshold."""
    one, two = torch.randn(2, 100, 8, generator=torch.Generator().manual_seed(0))
    found = judged(one, two, min_neighbours=0.05)  # chance is 0.2: 10 of 50
    assert found.status == "undecided"
    assert "below the chance level" in found.reason
    assert found.samples_needed is None


def test_collapsed_embeddings_are_not_related():
    """All vectors are equal, so all queries have the same neighbours in both networks."""
    constant = torch.ones(100, 8)
    found = judged(constant, 2 * constant, min_neighbours=0.9)
    assert found.status == "undecided"
    assert "below the chance level" in found.reason


def test_agreement_that_pairing_does_not_explain_is_withheld():
    """Limits above the permutations' quantile whose p-value is too large do not pass."""
    generator = torch.Generator().manual_seed(3)
    found = [
        judged(*torch.randn(2, 40, 4, generator=generator), min_neighbours=0.3) for _ in range(40)
    ]
    assert sum(x.status == "passed" for x in found) <= 3  # of 5 %: 2


def test_a_percentile_of_cosines_is_a_rate():
    one, two = pair(n=1000, size=0.2)
    rep, copy = recorded(one), recorded(two)
    kept = [x.embeddings.vectors.double() for x in (rep, copy)]
    below = float((torch.cosine_similarity(*kept) < 0.97).double().mean())
    found = judged(one, two, min_cosine="p10=0.97")
    assert found.measured == pytest.approx(below)
    hits = round(1000 * below)
    assert found.high == pytest.approx(beta.ppf(0.95, hits + 1, 1000 - hits))
    assert found.low == pytest.approx(beta.ppf(0.05, hits, 1000 - hits + 1))
    assert found.status == "failed"
    assert judged(one, two, min_cosine={"p05": 0.9}).status == "passed"


@pytest.mark.parametrize(("n", "status"), [(298, "undecided"), (299, "passed")])
def test_a_first_percentile_takes_299_samples(n, status):
    one = torch.randn(n, 12, generator=torch.Generator().manual_seed(0))
    found = judged(one, one, min_cosine="p01=0.98")
    assert found.status == status
    assert found.samples_needed == (300 if status == "undecided" else None)
    assert "p01 of these" in found.remarks[0]


def test_cosines_of_a_rotated_copy_are_undecided_and_of_a_ruined_one_fail():
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(600, 24, generator=generator)
    rotation = torch.linalg.qr(torch.randn(24, 24, generator=generator))[0]
    rotated = judged(one, one @ rotation, min_cosine="p01=0.9")
    assert rotated.status == "undecided"
    assert "do not appear to share a basis" in rotated.reason
    assert "of their neighbours in common" in rotated.reason
    assert judged(one, one @ rotation, min_neighbours=0.9).status == "passed"
    ruined = torch.randn(600, 24, generator=generator)
    assert judged(one, ruined, min_cosine="p01=0.9").status == "failed"
    wider = judged(one, torch.cat([one, one], 1), min_cosine="p01=0.9")
    assert (wider.status, wider.measured) == ("undecided", None)
    # equal in all units, so that no order of them is told from another: it never passes
    flat = torch.randn(600, 1, generator=generator).sign().expand(600, 24)
    alike = judged(flat, flat, min_cosine="p01=0.9")
    assert alike.status == "undecided"


def test_a_basis_that_is_not_shown_keeps_a_pass_back():
    """Two networks whose vectors all point one way: cosines near 1 that units do not explain."""
    generator = torch.Generator().manual_seed(0)
    one, two = 10 + torch.randn(2, 600, 24, generator=generator)
    found = judged(one, two, min_cosine="p01=0.9")
    assert found.status == "undecided"
    assert "do not appear to share a basis" in found.reason


def test_a_single_query_is_undecided():
    one, two = pair(n=3)
    with pytest.warns(rs.errors.ResemblanceWarning):
        found = judged(one, two, min_neighbours=0.9)
    assert found.status == "undecided"
    assert "record more samples" in found.reason


def test_repeated_samples_do_not_pass():
    """The nearest neighbours of a repeated sample are its repetitions, by any two networks."""
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(60, 8, generator=generator).repeat(20, 1) for _ in range(2))
    for copy in (one, two):
        verdict = rs.check(recorded(one), recorded(copy), min_neighbours=0.5)
        assert verdict.status == "undecided"
        assert "1,140 of 1,200 samples are duplicates" in verdict.findings[0].reason
        assert [note.code for note in verdict.notes] == ["repeated-samples"]
    few = torch.randn(300, 8, generator=generator)
    few[0], few[2] = few[1], few[3]
    assert rs.check(recorded(few), recorded(few), min_neighbours=0.5)


def test_thresholds_are_read_from_words_and_files(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text("min-neighbours = 0.9\nmin-cosine = { p01 = 0.98, p10 = 0.99 }\n")
    found = collect_thresholds(thresholds=path, min_cosine=["p1=0.97"])
    assert [(x.name, x.limit) for x in found] == [
        ("min-neighbours", 0.9),
        ("min-cosine p01", 0.97),
        ("min-cosine p10", 0.99),
    ]
    assert [x.allowed for x in found] == [0.9, 0.01, 0.1]
    assert found[1].subject == "share of samples with cosine similarity below 0.97"


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_neighbours": 1.0},
        {"min_neighbours": 0},
        {"min_cosine": "0.98"},
        {"min_cosine": {"mean": 0.98}},
        {"min_cosine": "p00=0.98"},
        {"min_cosine": "p01=1"},
    ],
)
def test_wrong_limits_are_refused(wrong):
    with pytest.raises(DataError, match=r"min-(neighbours|cosine)"):
        collect_thresholds(**wrong)


def test_a_wrong_limit_in_a_file_is_named(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text("min-cosine = 0.98\n")
    with pytest.raises(FormatError, match=r"min-cosine must be pNN=x"):
        collect_thresholds(thresholds=path)


def test_predictions_have_no_neighbours_and_embeddings_no_disagreement():
    one, two = pair(n=60)
    predicts = rs.record_arrays(outputs=one, data_id="x")
    with pytest.raises(MismatchError, match="predicts classes or labels"):
        rs.check(predicts, predicts, min_neighbours=0.9)
    with pytest.raises(MismatchError, match="returns embeddings"):
        rs.check(recorded(one), recorded(two), max_disagreement=0.1)


def test_copies_are_ordered_by_their_neighbours():
    one, near = pair(size=0.05)
    far = one + 0.5 * (near - one) * 20
    found = rs.copies(
        recorded(one, "base"), [recorded(far, "far"), recorded(near, "near")], min_neighbours=0.8
    )
    assert found.name == ("near", "far")
    assert found.verdict == ("passed", "failed")
    assert found.neighbours[0] > found.neighbours[1]
    assert found.cosine[0] == pytest.approx(
        np.quantile(torch.cosine_similarity(one, near).numpy(), 0.01), abs=1e-3
    )
    assert np.isnan(found.disagreement).all()
    assert "neighbours in common" in found.summary()
    assert found.plot().axes[1].get_xlabel() == "other nearest neighbours"
