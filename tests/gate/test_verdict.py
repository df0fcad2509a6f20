"""Verdicts: words, numbers and exit statuses; JUnit and Markdown with hostile names."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import resemblance as rs
from digit_copies import recorded
from resemblance.gate.thresholds import Threshold
from resemblance.gate.verdict import Finding, Verdict, junit_error_xml

RATE = Threshold("disagreement", 0.02)
SCORE = Threshold("score", 0.8, "gradients")
PASSED = Finding(SCORE, "passed", 0.91234, 0.9, 0.92, "layer3")
FAILED = Finding(RATE, "failed", 0.05, 0.031, 0.07)
UNDECIDED = Finding(RATE, "undecided", 0.01, 0.004, 0.03, samples_needed=1200)


def verdict(*findings, **changes):
    return Verdict("net", "net-int8", 400, None, findings, **changes)


@pytest.mark.parametrize(
    ("findings", "status", "code"),
    [
        ((PASSED,), "passed", 0),
        ((PASSED, FAILED), "failed", 1),
        ((UNDECIDED, FAILED, PASSED), "failed", 1),
        ((PASSED, UNDECIDED), "undecided", 3),
    ],
)
def test_any_failure_fails_and_all_must_pass(findings, status, code):
    found = verdict(*findings)
    assert (found.status, found.exit_status, bool(found)) == (status, code, status == "passed")


def test_the_paragraph():
    found = verdict(PASSED, FAILED, notes=("layers of net were left out",))
    assert found.summary() == (
        "net-int8 fails as a copy of net, judged on 400 samples with one-sided 95 % bounds. "
        "Failed: disagreement is 5 % (at least 3.1 %; limit: at most 2 %). Passed: gradient CKA at "
        "the worst layer (layer3) is 0.912 (at least 0.900; limit: at least 0.8).\n"
        "Note: layers of net were left out."
    )
    assert repr(found) == f"Verdict(failed: {found.paragraph()})"
    assert verdict(UNDECIDED).paragraph() == (
        "net-int8 is undecided as a copy of net, judged on 400 samples with one-sided 95 % "
        "bounds. Undecided: disagreement is 1 % (between 0.4 % and 3 %; limit: at most 2 %): about "
        "1,200 samples would decide."
    )


def test_tokens_and_what_has_no_bounds():
    nothing = Finding(SCORE, "failed", None, None, None, "a", reason="it is constant")
    unknown = Finding(Threshold("kl", 0.1), "undecided", 0.01, None, None, reason="so few")
    same = Finding(Threshold("decibels", 20.0), "passed", float("inf"), float("inf"), float("inf"))
    found = Verdict("net", "copy", 320, 40, (nothing, unknown, same))
    assert "judged on 320 tokens of 40 sequences" in found.paragraph()
    assert (
        "Failed: gradient CKA at the worst layer (a) (limit: at least 0.8): it is constant."
        in str(found)
    )
    assert "KL is 0.01 nats (error unknown; limit: at most 0.1 nats): so few" in str(found)
    assert "SQNR of features at the worst layer is unchanged (limit: at least 20 dB)" in str(found)
    assert [finding.bounds() for finding in found.findings] == ["", "", ""]
    assert found.to_dict()["thresholds"][2]["measured"] is None


def test_samples_that_would_decide_are_the_most_that_any_needs():
    more = Finding(SCORE, "undecided", 0.81, 0.7, 0.9, "a", samples_needed=5000)
    never = Finding(SCORE, "undecided", 0.81, 0.7, 0.9, "a", reason="no number would")
    assert verdict(UNDECIDED, more, PASSED).samples_needed == 5000
    assert verdict(UNDECIDED, never).samples_needed is None
    assert verdict(PASSED).samples_needed is None


@pytest.mark.parametrize(
    ("score", "text"),
    [(0.8, "0.800"), (0.99943, "0.99943"), (0.9999993, "0.999999"), (1.0, "1"), (-0.01, "-0.010")],
)
def test_scores_near_one_have_the_digits_that_tell_them_apart(score, text):
    assert Finding(SCORE, "passed", score, score, score).value() == text


def test_numbers_for_machines():
    found = rs.check(recorded(), recorded("int4"), max_disagreement=0.2, min="features=0.5")
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(content) == [
        "check", "status", "exit_status", "base", "copy", "samples", "sequences", "samples_needed",
        "confidence", "thresholds", "notes", "summary",
    ]  # fmt: skip
    assert list(content["thresholds"][0]) == [
        "name", "limit", "status", "measured", "low", "high", "layer", "samples_needed", "reason",
        "remarks",
    ]  # fmt: skip
    assert (content["base"], content["copy"], content["samples"]) == ("base", "int4", 1197)
    assert content["thresholds"][1]["name"] == "min features"


def test_names_from_files_are_not_obeyed():
    found = Verdict("a\x1b[31m", "b\n", 10, None, (PASSED,))
    assert found.paragraph().startswith("b\\n passes as a copy of a\\x1b[31m, ")


def test_remarks_stand_beside_the_result_whatever_it_is():
    remarked = replace(PASSED, remarks=("KL is capped at 1 nat",))
    assert remarked.text("samples").endswith("; KL is capped at 1 nat)")
    assert remarked.to_dict()["remarks"] == ["KL is capped at 1 nat"]
    verdict = Verdict("base", "copy", 300, None, (remarked,))
    assert "KL is capped at 1 nat" in verdict.to_markdown()
    assert "KL is capped at 1 nat" in verdict.to_junit()


NASTY = "a`b|c<d>&\"'\x1b[31m\ufffe\u202e@all\ud800"
FINDINGS = (
    Finding(Threshold("disagreement", 0.02), "undecided", 0.01, 0.004, 0.03, samples_needed=1200),
    Finding(Threshold("score", 0.8, "gradients"), "failed", 0.5, 0.4, 0.6, NASTY),
    Finding(Threshold("score", 0.8, "features", mean=True), "passed", 0.9, 0.85, 0.95),
)
VERDICT = Verdict(NASTY, "copy", 400, None, FINDINGS, notes=(f"layer {NASTY!r} *left* out",))


def test_junit_has_a_case_for_each_threshold():
    (suite,) = ElementTree.fromstring(VERDICT.to_junit())
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    undecided, failed, passed = suite
    assert undecided.get("name") == "max-disagreement 2 %"
    assert undecided.find("skipped").get("message").startswith("undecided: disagreement is 1 %")
    assert "at most 0.600; limit: at least 0.8" in failed.find("failure").get("message")
    assert [child.tag for child in passed] == ["system-out"]


def test_junit_is_xml_whatever_names_hold():
    (suite,) = ElementTree.fromstring(VERDICT.to_junit().encode())
    assert suite[0].get("classname") == (
        "copy as a copy of a`b|c<d>&\"'\\x1b[31m\\ufffe\\u202e@all\\ud800"
    )


def test_junit_of_a_mistake_has_an_error():
    (suite,) = ElementTree.fromstring(junit_error_xml("no file at \x07a.rsm"))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert suite[0].find("error").get("message") == "no file at \\x07a.rsm"


def test_markdown_of_a_real_verdict():
    found = rs.check(recorded(), recorded("pruned"), max_disagreement=0.02, min="features=0.1")
    first, second = found.findings
    lines = found.to_markdown().splitlines()
    assert lines[:6] == [
        "### `pruned` fails as a copy of `base`",
        "",
        "Judged on 1,197 samples with one-sided 95 % bounds.",
        "",
        "| threshold | measured | between | layer | verdict |",
        "|---|---|---|---|---|",
    ]
    assert lines[6] == (
        f"| max-disagreement 2 % | {first.value()} | {first.bounds()} |  | **failed** "
        f"({first.remarks[0]}) |"
    )
    assert lines[7] == (
        f"| min features 0.1 | {second.value()} | {second.bounds()} | `{second.layer}` | passed "
        f"({second.remarks[0]}) |"
    )


def test_nothing_in_a_name_is_markup():
    text = VERDICT.to_markdown()
    assert "`a'b\\|c<d>&\"'\\x1b[31m\\u202e@all\\ud800`" in text.replace("\ufffe", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}  # of five cells
    note = text.splitlines()[-1]
    assert "\\*left\\*" in note
    assert "@" not in note
    assert "\\<d\\>" in note


def test_markdown_can_be_written_as_utf8():
    VERDICT.to_markdown().encode()
    VERDICT.to_junit().encode()
