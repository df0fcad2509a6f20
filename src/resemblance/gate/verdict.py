"""The `Verdict` of `check`, as text, JSON, JUnit XML and Markdown.

Nothing is judged here. Names of models and layers come from other people: characters that XML
cannot hold are escaped, and in Markdown nothing in them is markup or mentions a user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from .._utils.formatting import printable
from ..representation.notes import Note
from ..similarity.results import Content, Result, count_samples, plain
from .thresholds import Threshold

Status = Literal["passed", "failed", "undecided"]
_BY_SEVERITY: dict[Status, tuple[str, str, int]] = {  # in a list, in a sentence, exit status
    "failed": ("Failed", "fails as a copy of", 1),
    "undecided": ("Undecided", "is undecided as a copy of", 3),
    "passed": ("Passed", "passes as a copy of", 0),
}
MARKS: dict[Status, str] = {"failed": "✗", "undecided": "?", "passed": "✓"}


@dataclass(frozen=True)
class Finding(Content):
    """What became of one threshold.

    `low` and `high` hold the truth each with 95 %. Of the worst layer they are bounds of the least
    score of all layers, and `layer` is the one that decided, or would have to.
    """

    threshold: Threshold
    status: Status
    measured: float | None
    low: float | None
    high: float | None
    layer: str | None = None
    samples_needed: int | None = None  # that would decide, of tokens sequences; None: not known
    reason: str | None = None  # why, where bounds do not say it
    remarks: tuple[str, ...] = ()  # what a reader must know to use the result: assumptions, caps

    def text(self, unit: str) -> str:
        """In words: what was measured, its bound and the limit."""
        limit = f"limit: {self.limit()}"
        value = f" is {self.value()}" if self.measured is not None else ""
        bound = [self.bound()] if self.bound() else []
        why = f": {why}" if (why := self.why(unit)) else ""
        return f"{self.subject()}{value} ({'; '.join([*bound, limit, *self.remarks])}){why}"

    def subject(self) -> str:
        """What was measured, and at which layer."""
        layer = "" if self.layer is None else f" ({printable(self.layer)})"
        return f"{self.threshold.subject}{layer}"

    def limit(self) -> str:
        """The limit with its direction."""
        of = self.threshold
        limit = of.limit_text if of.percentile is None else f"{100 * of.allowed:.6g} % of samples"
        return f"{'at most' if of.allows_at_most else 'at least'} {limit}"

    def why(self, unit: str) -> str | None:
        """Why it is so, or what would decide, as far as there is more to say than bounds do."""
        if self.samples_needed is None:
            return self.reason
        decide = f"about {self.samples_needed:,} {unit} would decide"
        return decide if self.reason is None else f"{decide}, {self.reason}"

    def bound(self) -> str:
        """The one-sided bound that decided, or both of an undecided threshold."""
        of = self.threshold
        if self.measured is None or math.isinf(self.measured):
            return ""
        if self.low is None or self.high is None:
            return "error unknown"
        low, high = of.value_text(self.low), of.value_text(self.high)
        if self.status == "undecided":
            return f"between {low} and {high}"
        at_most = (self.status == "passed") == of.allows_at_most
        return f"at most {high}" if at_most else f"at least {low}"

    def value(self) -> str:
        """What was measured, as a cell of a table has it."""
        return "" if self.measured is None else self.threshold.value_text(self.measured)

    def label(self) -> str:
        """The threshold with its limit, as a table or a test report lists it."""
        return f"{self.threshold.name} {self.threshold.limit_text}"

    def line(self, unit: str) -> str:
        """The threshold, what was measured, both bounds, the layer, and why."""
        value = f", measured {self.value()}" if self.measured is not None else ""
        bounds = f" ({bounds})" if (bounds := self.bounds()) else ""
        layer = "" if self.layer is None else f", at layer {printable(self.layer)}"
        why = f"; {why}" if (why := self.why(unit)) else ""
        return f"{self.label()}{value}{bounds}{layer}{why}"

    def bounds(self) -> str:
        """Both bounds, as a cell of a table has them."""
        if self.low is None or self.high is None or math.isinf(self.high):
            return ""
        return " to ".join(self.threshold.value_text(x) for x in (self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; what is not finite becomes None."""
        found = super().to_dict()
        del found["threshold"]
        return {"name": self.threshold.name, "limit": self.threshold.limit, **found}


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """Whether a copy passes: it fails if any threshold fails, and passes if all pass.

    Its truth value is whether it passed, so `assert rs.check(...)` works. `to_frame` has one row
    for each threshold: name, limit, status, measured, low and high (each holds with 95 %), layer,
    samples_needed, reason and remarks.

    Attributes:
        base: name of the original network.
        copy: name of the copy.
        samples: number of samples, or of tokens.
        sequences: number of sequences; None where samples are not tokens.
        findings: the result of each threshold.
        notes: remarks that the summary repeats.
    """

    base: str
    copy: str
    samples: int
    sequences: int | None
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()

    _kind = "check"

    @property
    def status(self) -> Status:
        found = {finding.status for finding in self.findings}
        return next(status for status in _BY_SEVERITY if status in found)

    @property
    def exit_status(self) -> int:
        """0 (passes), 1 (any threshold fails) or 3 (otherwise undecided)."""
        return _BY_SEVERITY[self.status][2]

    @property
    def samples_needed(self) -> int | None:
        """How many samples, or sequences, would decide all that is undecided; None: not known."""
        needed = [x.samples_needed for x in self.findings if x.status == "undecided"]
        known = [x for x in needed if x is not None]
        return max(known) if known and len(known) == len(needed) else None

    @property
    def unit(self) -> str:
        """What more of would decide."""
        return "samples" if self.sequences is None else "sequences"

    def __bool__(self) -> bool:
        return self.status == "passed"

    def _text(self) -> str:
        return f"{self.status}: {self.paragraph()}"

    def _heading(self, spell: Callable[[str], str]) -> str:
        """The verdict alone, with names as they are spelt."""
        return f"{spell(self.copy)} {_BY_SEVERITY[self.status][1]} {spell(self.base)}"

    def _rests_on(self) -> str:
        """What it was judged on."""
        count = count_samples(self.samples, self.sequences)
        return f"judged on {count} with one-sided 95 % bounds"

    def paragraph(self) -> str:
        """The verdict and what became of each threshold, in one paragraph.

        Returns:
            The text, without the notes.
        """
        out = [f"{self._heading(printable)}, {self._rests_on()}."]
        for status, (head, *_) in _BY_SEVERITY.items():
            which = [x.text(self.unit) for x in self.findings if x.status == status]
            if which:
                out.append(f"{head}: {'; '.join(which)}.")
        return " ".join(out)

    def lines(self) -> list[str]:
        """The verdict, then a line for each threshold, the worst first, then the notes.

        Returns:
            The lines, each threshold's with ✗, ? or ✓.
        """
        out = [f"{self._heading(printable)}, {self._rests_on()}:"]
        for status, mark in MARKS.items():
            for finding in self.findings:
                if finding.status == status:
                    out.append(f"{mark} {status}: {finding.line(self.unit)}")
        return [*out, *(f"Note: {note}." for note in self.notes)]

    def _sentences(self) -> list[str]:
        return [self.paragraph()]

    def _columns(self) -> Mapping[str, Any]:
        rows = [finding.to_dict() for finding in self.findings]
        return {key: [row[key] for row in rows] for key in rows[0]}

    def _table(self) -> Mapping[str, Any]:
        found = self.findings
        return {
            "threshold": [x.label() for x in found],
            "verdict": [f"{MARKS[x.status]} {x.status}" for x in found],
            "measured": [x.value() for x in found],
            "between": [x.bounds() for x in found],
            "layer": [x.layer for x in found],
            "why": [x.why(self.unit) for x in found],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None.

        Returns:
            The status, the findings and what they rest on, as JSON can hold them.
        """
        head = ("status", "exit_status", "base", "copy", "samples", "sequences", "samples_needed")
        found = {name: getattr(self, name) for name in head}
        rest = {"thresholds": self.findings, "notes": self.notes, "summary": self.summary()}
        return plain({"check": 1, **found, "confidence": 0.95, **rest})

    def to_junit(self) -> str:
        """As JUnit XML: a test case for each threshold, skipped where it is undecided.

        Returns:
            The text of the XML document.
        """
        ended = {"failed": "failure", "undecided": "skipped", "passed": ""}
        cases = []
        for finding in self.findings:
            text = finding.text(self.unit)
            message = f"undecided: {text}" if finding.status == "undecided" else text
            cases.append((finding.label(), ended[finding.status], message, text))
        return _junit_document(f"{self.copy} as a copy of {self.base}", cases)

    def to_markdown(self) -> str:
        """As Markdown, for the summary of a pull request: the verdict and a table.

        Returns:
            The text, which ends with a line break.
        """
        out = [
            f"### {self._heading(_markdown_code)}",
            "",
            f"{self._rests_on().capitalize()}.",
            "",
            "| threshold | measured | between | layer | verdict |",
            "|---|---|---|---|---|",
        ]
        for finding in self.findings:
            layer = "" if finding.layer is None else _markdown_code(finding.layer)
            ended = finding.status if finding.status == "passed" else f"**{finding.status}**"
            if why := finding.why(self.unit):
                ended += f": {_markdown_text(why)}"
            if finding.remarks:
                ended += f" ({_markdown_text('; '.join(finding.remarks))})"
            row = (finding.label(), finding.value(), finding.bounds(), layer, ended)
            out.append(f"| {' | '.join(row)} |")
        notes = (f"\nNote: {_markdown_text(note)}." for note in self.notes)
        return "\n".join([*out, *notes, ""])


def junit_error_xml(message: str) -> str:
    """As JUnit XML, a test case with an error, for a check that could not be made."""
    return _junit_document(_SUITE_NAME, [("thresholds", "error", message, "")])


_SUITE_NAME = "resemblance check"
_INVALID_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENDS = {  # elements that say how a case ended if it did not pass: their count and their type
    "failure": ("failures", {"type": "threshold"}),
    "error": ("errors", {"type": "mistake"}),
    "skipped": ("skipped", {}),
}


def _junit_document(group: str, cases: Sequence[tuple[str, str, str, str]]) -> str:
    """A suite of cases: the name of each, how it ended (empty: it passed), why, and its output."""
    suites = ElementTree.Element("testsuites", name=_SUITE_NAME)
    suite = ElementTree.SubElement(suites, "testsuite", name=_SUITE_NAME, tests=str(len(cases)))
    for tag, (count, _) in _ENDS.items():
        suite.set(count, str(sum(ended == tag for _, ended, _, _ in cases)))
    for name, ended, why, output in cases:
        names = {"classname": _xml_text(group), "name": _xml_text(name)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if ended:
            ElementTree.SubElement(case, ended, {"message": _xml_text(why), **_ENDS[ended][1]})
        if output:
            ElementTree.SubElement(case, "system-out").text = _xml_text(output)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, "unicode")}\n'


def _xml_text(text: str) -> str:
    return _INVALID_XML.sub(
        lambda found: found[0].encode("unicode_escape").decode(), printable(text)
    )


def _markdown_code(name: str) -> str:
    """A name as code, in a cell of a table or elsewhere."""
    return f"`{printable(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _markdown_text(text: str) -> str:
    """A sentence in which names may stand: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", printable(text)).replace("@", "(at)")
