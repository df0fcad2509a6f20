"""Defaults and the documentation state what was measured."""

import json
import re
from pathlib import Path

import pytest

from resemblance.transfer import recommendation, transferability

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
COLLECTIONS = ("recommend_cpu_part", "recommend_clothes", "recommend_new_classes")
SETS = ("fashion", "svhn", "cifar10")
NUMBER = r"(-?0\.\d\d)"
INTERVAL = rf"{NUMBER} \({NUMBER} to {NUMBER}\)"
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="the kept results are not here")


@pytest.fixture(scope="module")
def kept():
    return json.loads((RESULTS / "recommend_cpu.json").read_text())


@pytest.fixture(scope="module")
def joint():
    return json.loads((RESULTS / "recommend_joint.json").read_text())


def section(name):
    """The text under a heading of the page of measurements."""
    text = (ROOT / "docs/evidence/recommending.md").read_text().replace("−", "-")
    return re.split(r"\n#+ ", text.split(f"# {name}\n")[1])[0]


def written(own):
    """τ and its interval as the page has it."""
    return tuple(f"{x:.2f}" for x in (own["tau"], *own["tau_interval"]))


def test_an_expected_accuracy_is_shifted_and_widened_as_measured(kept):
    assert round(kept["expected"]["shift"], 2) == recommendation.SHIFT
    assert round(kept["expected"]["spread"], 2) == recommendation.SPREAD


def test_no_rival_ranks_better_than_the_default_beyond_its_interval(joint):
    assert transferability.DEFAULT_SCORE == "ridge+log_me"
    for name, own in joint["joint"].items():
        assert own["tau_less_pair_interval"][0] <= 0, name
        assert own["regret_less_pair_interval"][1] >= 0, name


def test_the_default_is_at_least_as_good_as_its_parts_on_each_collection(joint):
    for name in COLLECTIONS:
        taus = {score: own["tau"] for score, own in joint[name].items()}
        assert taus["ridge and log_me, best"] >= max(taus["ridge, best"], taus["log_me, best"])


def test_the_former_ranking_without_labels_was_not_above_chance_everywhere(joint):
    lows = [joint[name]["log_ratio, middle"]["tau_interval"][0] for name in COLLECTIONS]
    assert min(lows) <= 0


def test_the_pair_is_nearer_to_the_best_layer_than_ridge(kept):
    pair = kept["layers"][" and ".join(transferability.STARTING_LAYER_SCORES)]
    assert pair["less_ridge_interval"][1] < 0


def test_every_row_of_the_joint_table_has_the_results(joint):
    rows = re.findall(rf"^\| [^|]* \| {INTERVAL} \|", section("Which score ranks networks"), re.M)
    assert len(rows) > 10
    assert set(rows) <= {written(own) for own in joint["joint"].values()}


def test_the_how_to_page_has_the_same_rows(joint):
    page = (ROOT / "docs/how-to/recommend.md").read_text()
    rows = re.findall(rf"^\| [^|]* \| {INTERVAL} \| (\d\.\d) \|", page, re.M)
    means = joint["joint"].values()
    assert len(rows) == 5
    assert set(rows) <= {(*written(own), f"{100 * own['regret']:.1f}") for own in means}


def test_every_row_of_the_full_table_has_the_results(kept):
    text = section("The collection of six data sets in full")
    rows = re.findall(rf"^\| [^|]* \| {INTERVAL} \|", text, re.M)
    assert len(rows) > 10
    assert set(rows) <= {written(own) for own in kept["mean"].values()}


def test_every_row_without_labels_has_the_results(joint):
    rows = re.findall(rf"^\|(.*{INTERVAL}.*)\|$", section("Without labels"), re.M)
    found = [re.findall(INTERVAL, row[0]) for row in rows]
    names = (*COLLECTIONS, "joint")
    measured = [[written(joint[name][score]) for name in names] for score in joint["joint"]]
    assert len(found) == 4
    assert all(row in measured for row in found)


def test_the_table_of_shifts_has_the_results():
    means = json.loads((RESULTS / "shift.json").read_text())["mean"]
    row = r" ?\| ".join([INTERVAL, "[^|]*", NUMBER, NUMBER, NUMBER])
    rows = re.findall(rf"^\| [^|]* \| {row}", section("Which score follows the error rate"), re.M)
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
    best = json.loads((RESULTS / "shift.json").read_text())["mean"]["all"]["dispersity of outputs"]
    assert best["less_mean_embedding_interval"][0] > 0
