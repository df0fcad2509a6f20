"""Verdict: whether a copy passes, threshold by threshold, as a result to read, print and keep.

Made by `check`; nothing here judges. Other forms of it, for continuous integration, are in
`verdict_files`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .._shown_text import shown
from .thresholds import Threshold

Status = Literal["passed", "failed", "undecided"]
EXIT: dict[Status, int] = {"passed": 0, "failed": 1, "undecided": 3}
_IN_WORDS: dict[Status, str] = {
    "passed": "passes as a copy of",
    "failed": "fails as a copy of",
    "undecided": "is undecided as a copy of",
}
_HEADS: dict[Status, str] = {"failed": "Fails", "undecided": "Undecided", "passed": "Passes"}


@dataclass(frozen=True)
class Finding:
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

    def text(self, unit: str) -> str:
        """In words: what was measured, its bound, and what was asked for."""
        of = self.threshold
        out = [f"{_subject(of)}{'' if self.layer is None else f' ({shown(self.layer)})'}"]
        if self.measured is not None:
            out += [self.value(), *([] if math.isinf(self.measured) else [self._bounds()])]
        out.append(f"{'allowed' if of.allows_at_most else 'asked for'} {amount(of)}")
        why = self.why(unit)
        return ", ".join(out) + (f": {why}" if why else "")

    def why(self, unit: str) -> str | None:
        """Why it is so, or what would decide, as far as there is more to say than bounds do."""
        if self.samples_needed is None:
            return self.reason
        decide = f"about {self.samples_needed:,} {unit} would decide"
        return decide if self.reason is None else f"{decide}, {self.reason}"

    def _bounds(self) -> str:
        of = self.threshold
        if self.low is None or self.high is None:
            return "with an error that is not known"
        low, high = _amount(of, self.low), _amount(of, self.high)
        if self.status == "undecided":
            return f"between {low} and {high}"
        at_most = (self.status == "passed") == of.allows_at_most
        return f"at most {high}" if at_most else f"at least {low}"

    def value(self) -> str:
        """What was measured, as a cell of a table has it."""
        return "" if self.measured is None else _amount(self.threshold, self.measured)

    def bounds(self) -> str:
        """Both bounds, as a cell of a table has them."""
        if self.low is None or self.high is None or math.isinf(self.high):
            return ""
        return " to ".join(_amount(self.threshold, x) for x in (self.low, self.high))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; what is not finite becomes None."""
        return {
            "name": self.threshold.name,
            "limit": self.threshold.limit,
            "status": self.status,
            **{key: _plain(getattr(self, key)) for key in ("measured", "low", "high")},
            "layer": self.layer,
            "samples_needed": self.samples_needed,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Verdict:
    """Whether a copy passes: it fails if any threshold does, and passes if all do.

    Its truth value is whether it passed, so that `assert rs.check(...)` says what it seems to.
    """

    base: str
    copy: str
    samples: int  # or tokens
    sequences: int | None  # where samples are tokens
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        found = {finding.status for finding in self.findings}
        return next(status for status in _HEADS if status in found)

    @property
    def exit_status(self) -> int:
        """0 (passes), 1 (any threshold fails) or 3 (otherwise undecided)."""
        return EXIT[self.status]

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

    def __repr__(self) -> str:
        return f"Verdict({self.status}: {self.paragraph()})"

    def heading(self) -> str:
        """The verdict alone."""
        return f"{shown(self.copy)} {_IN_WORDS[self.status]} {shown(self.base)}"

    def rests_on(self) -> str:
        """What it was judged on."""
        what = f"{self.samples:,} samples"
        if self.sequences is not None:
            what = f"{self.samples:,} tokens of {self.sequences:,} sequences"
        return f"judged on {what} by one-sided 95 % bounds"

    def paragraph(self) -> str:
        """The verdict and what became of each threshold, in one paragraph."""
        out = [f"{self.heading()}, {self.rests_on()}."]
        for status, head in _HEADS.items():
            which = [x.text(self.unit) for x in self.findings if x.status == status]
            if which:
                out.append(f"{head}: {'; '.join(which)}.")
        return " ".join(out)

    def summary(self) -> str:
        """The paragraph, and notes below it, a line each."""
        return "\n".join([self.paragraph(), *(f"Note: {note}." for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; what is not finite becomes None."""
        return {
            "check": 1,
            "status": self.status,
            "exit_status": self.exit_status,
            **{key: getattr(self, key) for key in ("base", "copy", "samples", "sequences")},
            "samples_needed": self.samples_needed,
            "confidence": 0.95,
            "thresholds": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
            "summary": self.summary(),
        }

    def to_junit(self) -> str:
        """As JUnit XML: a test case for each threshold, skipped where it is undecided."""
        from .verdict_files import junit

        return junit(self)

    def to_markdown(self) -> str:
        """As Markdown, for the summary of a pull request: the verdict and a table."""
        from .verdict_files import markdown

        return markdown(self)


def names(findings: Sequence[Finding]) -> list[str]:
    """Each threshold with its limit, as a table or a test report lists them."""
    return [f"{finding.threshold.name} {amount(finding.threshold)}" for finding in findings]


def amount(of: Threshold) -> str:
    """The limit as it was given, with its unit."""
    if of.quantity == "disagreement":
        return f"{100 * of.limit:.6g} %"
    return f"{of.limit:.6g}{_UNITS.get(of.quantity, '')}"


_UNITS = {"kl": " nats", "js": " nats", "decibels": " dB"}
_SUBJECTS = {"disagreement": "disagreement", "kl": "KL", "js": "JS"}


def _subject(of: Threshold) -> str:
    if of.quantity == "decibels":
        return "decibels of features at the worst layer"
    if of.kernel is None:
        return _SUBJECTS[of.quantity]
    return f"{of.kernel} {'on average' if of.mean else 'at the worst layer'}"


def _amount(of: Threshold, x: float) -> str:
    """A measured value in the unit of its threshold."""
    if of.quantity == "disagreement":
        return f"{100 * x:.{2 if x < 0.995 else 3}g} %"
    if of.quantity == "decibels":
        return "unchanged" if math.isinf(x) else f"{x:.1f} dB"
    if of.quantity == "score":  # two digits of what is missing from 1, where that is little
        missing = 1 - x
        if missing < 5e-7:
            return "1"
        return f"{x:.{min(6, max(3, 1 - math.floor(math.log10(missing))))}f}"
    return f"{x:.3g}{_UNITS[of.quantity]}"


def _plain(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None
