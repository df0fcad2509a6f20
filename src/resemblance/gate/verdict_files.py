"""A verdict as continuous integration reads it: JUnit XML, and Markdown for a pull request.

Names of models and layers come from elsewhere. In XML whatever it cannot hold is spelt out, and in
Markdown nothing in them is markup, and nobody is called by them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from .._shown_text import shown

if TYPE_CHECKING:
    from .verdict import Verdict

_NAME = "resemblance check"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(verdict: Verdict) -> str:
    """A test case for each threshold: failed, skipped where it is undecided, or passed."""
    from .verdict import names

    suite = _suite(len(verdict.findings))
    for finding, name in zip(verdict.findings, names(verdict.findings), strict=True):
        case = _case(suite, f"{verdict.copy} as a copy of {verdict.base}", name)
        text = finding.text(verdict.unit)
        if finding.status == "failed":
            ElementTree.SubElement(case, "failure", message=_xml(text), type="threshold")
        elif finding.status == "undecided":
            ElementTree.SubElement(case, "skipped", message=_xml(f"undecided: {text}"))
        ElementTree.SubElement(case, "system-out").text = _xml(text)
    count = [finding.status for finding in verdict.findings].count
    suite.set("failures", str(count("failed")))
    suite.set("skipped", str(count("undecided")))
    return _document(suite)


def junit_of_mistake(message: str) -> str:
    """A test case with an error, for a check that could not be made."""
    suite = _suite(1)
    case = _case(suite, _NAME, "thresholds")
    ElementTree.SubElement(case, "error", message=_xml(message), type="mistake")
    suite.set("errors", "1")
    return _document(suite)


def markdown(verdict: Verdict) -> str:
    """The verdict in a line, a table of thresholds, and notes."""
    from .verdict import names

    said = {"passed": "passes", "failed": "fails", "undecided": "is undecided"}[verdict.status]
    out = [
        f"### {_code(verdict.copy)} {said} as a copy of {_code(verdict.base)}",
        "",
        f"{verdict.rests_on().capitalize()}.",
        "",
        "| threshold | measured | between | layer | verdict |",
        "|---|---|---|---|---|",
    ]
    for finding, name in zip(verdict.findings, names(verdict.findings), strict=True):
        layer = "" if finding.layer is None else _code(finding.layer)
        ended = f"**{finding.status}**" if finding.status != "passed" else "passed"
        if why := finding.why(verdict.unit):
            ended += f": {_text(why)}"
        row = (name, finding.value(), finding.bounds(), layer, ended)
        out.append(f"| {' | '.join(row)} |")
    for note in verdict.notes:
        out += ["", f"Note: {_text(note)}."]
    return "\n".join([*out, ""])


def _suite(tests: int) -> ElementTree.Element:
    counts = {"tests": str(tests), "failures": "0", "errors": "0", "skipped": "0"}
    return ElementTree.Element("testsuite", {"name": _NAME, **counts})


def _case(suite: ElementTree.Element, group: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_xml(group), name=_xml(name))


def _document(suite: ElementTree.Element) -> str:
    suites = ElementTree.Element("testsuites", name=_NAME)
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, "unicode")}\n'


def _xml(text: str) -> str:
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), shown(text))


def _code(name: str) -> str:
    """A name as code, in a cell of a table or elsewhere."""
    return f"`{shown(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _text(text: str) -> str:
    """A sentence in which names may stand: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", shown(text)).replace("@", "(at)")
