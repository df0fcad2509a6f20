"""The result as people, tables and files read it."""

import pytest

from resemblance.errors import DataError
from resemblance.transfer.candidates import ExcludedCandidate
from resemblance.transfer.recommendation import ExpectedAccuracy, RankedCandidate, Recommendation
from resemblance.transfer.transferability import CandidateScores


def one(rank, name, **changes):
    values = {
        "rank": rank,
        "name": name,
        "id": None,
        "value": 1 - rank / 10,
        "layer": "3",
        "expected": ExpectedAccuracy(0.8, 0.7, 0.9),
        "scores": CandidateScores(
            {"1": {"ridge": 0.6}, "3": {"ridge": float("nan")}}, {"leep": -1.0}
        ),
        "distance": None,
        "parameters": 100,
        "seconds": 1.2345,
        "reasons": ("it is good", "1.2 s"),
    }
    return RankedCandidate(**{**values, **changes})


def result(count=2, **changes):
    ranked = tuple(one(i + 1, f"net {i}") for i in range(count))
    values = {
        "ranked": ranked,
        "left_out": (ExcludedCandidate("gone", "no network was passed for it"),),
        "score": "ridge",
        "samples": 10,
        "total": 10,
        "classes": 2,
        "budget": "none",
        "notes": ("A note.",),
        "seconds": 3.0,
    }
    return Recommendation(**{**values, **changes})


def test_it_is_read_by_place_and_by_name():
    found = result()
    assert found[0] is found.best is found["net 0"]
    assert len(found) == len(list(found)) == 2
    assert repr(found) == "Recommendation('net 0' from '3', ridge 0.9, best of 2)"
    with pytest.raises(DataError, match="there are net 0, net 1"):
        found["net 7"]


def test_the_summary_says_what_to_do_why_and_what_was_left_out():
    lines = result().summary().split("\n")
    assert lines == [
        "Start from net 0, at layer '3': a linear probe there should reach 80% (70% to 90%).",
        "1. net 0: it is good; 1.2 s.",
        "2. net 1: it is good; 1.2 s.",
        "gone was skipped: no network was passed for it.",
        "A note.",
    ]
    assert "2 more are ranked lower." in result(12).summary()
    gone = tuple(ExcludedCandidate(f"net {i}", "no network was passed for it") for i in range(13))
    lines = result(left_out=gone).summary().split("\n")
    assert sum("was skipped" in line for line in lines) == 10
    assert "3 more were skipped; see left_out." in lines
    plain = result(ranked=(one(1, "a", expected=None),)).summary()
    assert plain.startswith("Start from a, at layer '3'.\n")


def test_a_frame_has_a_row_a_candidate():
    frame = result().to_frame()
    assert list(frame.index) == ["net 0", "net 1"]
    assert frame.loc["net 0", "ridge"] == 0.6
    assert frame.loc["net 0", "expected_low"] == 0.7
