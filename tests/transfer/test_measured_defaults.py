"""Defaults, notes and the documentation state what was measured."""

import json
import re
from pathlib import Path

import pytest

from resemblance.representation.notes import make_note
from resemblance.transfer import recommendation, transferability

ROOT = Path(__file__).resolve().parents[2]
SETS = ("fashion", "svhn", "cifar10")
SHIFT = ROOT / "benchmarks/results/shift.json"
KEPT = ROOT / "benchmarks/results/recommend_cpu.json"
pytestmark = pytest.mark.skipif(not KEPT.exists(), reason="the kept results are not here")


@pytest.fixture(scope="module")
def kept():
    return json.loads(KEPT.read_text())


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs/how-to/recommend.md").read_text().replace("−", "-")


def default(score):
    return f"{score}, {transferability.SCORE_POSITION[score]}"


def test_an_expected_accuracy_is_shifted_and_widened_as_measured(kept):
    assert round(kept["expected"]["shift"], 2) == recommendation.SHIFT
    assert round(kept["expected"]["spread"], 2) == recommendation.SPREAD


def test_the_correlation_without_labels_is_what_is_said(kept):
    tau = kept["mean"][default(transferability.DEFAULT_UNLABELLED_SCORE)]["tau"]
    assert f"was {tau:.2f} on one collection" in make_note("unlabelled")


def test_no_rival_ranks_better_than_the_default_beyond_its_interval(kept):
    for name, own in kept["mean"].items():
        assert own["tau_less_ridge_interval"][0] <= 0, name
        assert own["regret_less_ridge_interval"][1] >= 0, name


def test_the_pair_is_nearer_to_the_best_layer_than_ridge(kept):
    assert (
        kept["layers"][" and ".join(transferability.STARTING_LAYER_SCORES)]["less_ridge_interval"][
            1
        ]
        < 0
    )


def test_every_row_of_the_page_is_one_of_the_results(kept, page):
    rows = re.findall(r"^\| [^|]* \| (-?0\.\d\d) \((-?0\.\d\d) to (-?0\.\d\d)\) \|", page, re.M)
    measured = {
        tuple(f"{x:.2f}" for x in (own["tau"], *own["tau_interval"]))
        for own in kept["mean"].values()
    }
    assert len(rows) > 10
    assert set(rows) <= measured


def test_the_table_of_shifts_has_the_results():
    means = json.loads(SHIFT.read_text())["mean"]
    text = (ROOT / "docs/evidence/recommending.md").read_text().replace("−", "-")
    section = text.split("## Which score follows the error rate")[1].split("\n## ")[0]
    number = r"(-?0\.\d\d)"
    row = [rf"{number} \({number} to {number}\)", "[^|]*", number, number, number]
    rows = re.findall(r"^\| [^|]* \| " + r" ?\| ".join(row), section, re.M)
    measured = {
        tuple(
            f"{x:.2f}"
            for x in (own["rho"], *own["interval"], *(means[d][score]["rho"] for d in SETS))
        )
        for score, own in means["all"].items()
    }
    assert len(rows) == len(measured)
    assert set(rows) == measured


def test_dispersity_follows_the_error_rate_better_than_the_mean_embedding():
    best = json.loads(SHIFT.read_text())["mean"]["all"]["dispersity of outputs"]
    assert best["less_mean_embedding_interval"][0] > 0
