"""Messages, help, pages and documentation use the field's terms: old turns of phrase do not return.

Each pattern is a phrase that readers had to translate. Where a phrase is also good English, the
pattern is narrow enough that only the old sense matches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OLD_TURNS = {
    r"when memory ends|memory did not do": "out of memory",
    r"\b(run|runs|ran) as written\b": "in eager mode",
    r"\bcarried by (few|the equivalent)|\bfew samples carry\b": "a few samples dominate",
    r"\bthe level of chance\b": "the chance level",
    r"error bars? (are|is) too short|error bars? cannot be trusted": "may be too small",
    r"\bwhere (they|networks|features) part\b|\bfeatures part at\b": "where they diverge",
    r"\b(a copy|units|each layer) moved\b": "drift, relative error, SQNR",
    r"\bshares? (no )?coordinates\b|\bin shared coordinates\b": "the same unit order",
    r"\bexchanged units\b": "permuted units",
    r"\bstrangers?'? networks?\b": "other people's networks",
    r"\b(is|are) no (copy|zoo|model|checkpoint|file|recording) (of|that|written)\b": "is not a",
    r"\bspread weights\b|\baltered layers\b": "sharded weights, adapters and quantised layers",
    r"\bgoes on from (it|there)\b": "resumes from it",
    r"\b(a|every) fault of (the program|resemblance|the server)\b": "internal error",
    r"\bcame twice\b|\bof its own kind\b": "duplicate",
    r"\bas written or\b|\blikewise\.\"": "name the noun again",
    r"\bmean little in theory\b": "have little meaning",
    r"\ban? label a line\b|\bone a sample\b|\ba name a line\b": "one per line, one per sample",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The text that people read in a file: all of it, or the strings of a module."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.JoinedStr):
            parts = (x.value if isinstance(x, ast.Constant) else "{}" for x in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def read_by_people() -> list[Path]:
    found = [ROOT / "README.md"]
    for folder, endings in (("src", (".py", ".html", ".js", ".md")), ("docs", (".md",))):
        found += [x for x in sorted((ROOT / folder).rglob("*")) if x.suffix in endings]
    return found


@pytest.mark.parametrize("pattern", OLD_TURNS)
def test_old_turns_of_phrase_are_gone(pattern):
    old = re.compile(pattern, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:120]}"
        for path in read_by_people()
        for line, text in texts(path)
        if old.search(" ".join(text.split()))
    ]
    assert not found, f"write {OLD_TURNS[pattern]!r} instead:\n" + "\n".join(found)


def test_the_patterns_find_the_sentences_they_came_from():
    before = (
        "16 error bars cannot be trusted: their kernels are carried by the equivalent of 100",
        "Read from the input on, features part at act1",
        "the key of 'a' came twice, and keys tell samples apart",
        "An average of networks that share no coordinates is worth nothing",
        "File to save progress in; a pass that finds it goes on from there.",
    )
    for sentence in before:
        assert any(re.search(pattern, sentence) for pattern in OLD_TURNS), sentence
