"""Verdicts as continuous integration reads them, with names that try to be more than names."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import resemblance as rs
from digit_copies import recorded
from resemblance.gate.thresholds import Threshold
from resemblance.gate.verdict import Finding, Verdict
from resemblance.gate.verdict_files import junit, junit_of_mistake, markdown

NASTY = "a`b|c<d>&\"'\x1b[31m\ufffe\u202e@all\ud800"
FINDINGS = (
    Finding(Threshold("disagreement", 0.02), "undecided", 0.01, 0.004, 0.03, samples_needed=1200),
    Finding(Threshold("score", 0.8, "gradients"), "failed", 0.5, 0.4, 0.6, NASTY),
    Finding(Threshold("score", 0.8, "features", mean=True), "passed", 0.9, 0.85, 0.95),
)
VERDICT = Verdict(NASTY, "copy", 400, None, FINDINGS, notes=(f"layer {NASTY!r} *left* out",))


def test_junit_has_a_case_for_each_threshold():
    (suite,) = ElementTree.fromstring(junit(VERDICT))
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    undecided, failed, passed = suite
    assert undecided.get("name") == "max-disagreement 2 %"
    assert undecided.find("skipped").get("message").startswith("undecided: disagreement, 1 %")
    assert "at most 0.600, asked for 0.8" in failed.find("failure").get("message")
    assert [child.tag for child in passed] == ["system-out"]


def test_junit_is_xml_whatever_names_hold():
    (suite,) = ElementTree.fromstring(junit(VERDICT).encode())
    assert suite[0].get("classname") == (
        "copy as a copy of a`b|c<d>&\"'\\x1b[31m\\ufffe\\u202e@all\\ud800"
    )


def test_junit_of_a_mistake_has_an_error():
    (suite,) = ElementTree.fromstring(junit_of_mistake("no file at \x07a.rsm"))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert suite[0].find("error").get("message") == "no file at \\x07a.rsm"


def test_markdown_of_a_real_verdict():
    found = rs.check(recorded(), recorded("pruned"), max_disagreement=0.02, min="features=0.1")
    first, second = found.findings
    lines = found.to_markdown().splitlines()
    assert lines[:6] == [
        "### `pruned` fails as a copy of `base`",
        "",
        "Judged on 1,197 samples by one-sided 95 % bounds.",
        "",
        "| threshold | measured | between | layer | verdict |",
        "|---|---|---|---|---|",
    ]
    assert lines[6] == (
        f"| max-disagreement 2 % | {first.value()} | {first.bounds()} |  | **failed** |"
    )
    assert lines[7] == (
        f"| min features 0.1 | {second.value()} | {second.bounds()} | `{second.layer}` | passed |"
    )


def test_nothing_in_a_name_is_markup():
    text = markdown(VERDICT)
    assert "`a'b\\|c<d>&\"'\\x1b[31m\\u202e@all\\ud800`" in text.replace("\ufffe", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}  # of five cells
    note = text.splitlines()[-1]
    assert "\\*left\\*" in note
    assert "@" not in note
    assert "\\<d\\>" in note


def test_markdown_can_be_written_as_utf8():
    markdown(VERDICT).encode()
    junit(VERDICT).encode()


@pytest.mark.parametrize("form", ["to_junit", "to_markdown"])
def test_methods_give_the_same(form):
    assert getattr(VERDICT, form)() == {"to_junit": junit, "to_markdown": markdown}[form](VERDICT)
