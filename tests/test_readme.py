"""The README followed word by word in an empty folder, by a script that extracts its commands.

Lines of `console` blocks are run by a shell, one after the other, and a `python` block as a script.
A `text` block is what the command or script before it prints: the same words, and numbers within
20 % or 0.02 of those on the page, because they depend on the machine's arithmetic.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
RELATIVE, ABSOLUTE = 0.2, 0.02


def same_words(printed: str, expected: str) -> bool:
    """Whether two texts are equal but for numbers and where lines break."""
    words = [" ".join(re.sub(NUMBER, "#", text).split()) for text in (printed, expected)]
    return words[0] == words[1]


def far_apart(printed: str, expected: str) -> list[tuple[float, float]]:
    """The numbers of two texts that differ by more than the tolerance."""
    pairs = zip(re.findall(NUMBER, printed), re.findall(NUMBER, expected), strict=True)
    numbers = [(float(a), float(b)) for a, b in pairs]
    return [(a, b) for a, b in numbers if abs(a - b) > max(ABSOLUTE, RELATIVE * abs(b))]


@pytest.mark.parametrize(
    ("printed", "words", "close"),
    [
        ("disagreement, 6.0 %\n(kappa 0.93)", True, True),
        ("disagreement, 9.1 % (kappa 0.93)", True, False),
        ("disagreement, 6.2 % (kappa 0.7)", True, False),
        ("agreement, 6.2 % (kappa 0.93)", False, True),
    ],
)
def test_texts_are_compared_by_words_and_numbers(printed, words, close):
    expected = "disagreement, 6.2 % (kappa 0.93)"
    assert same_words(printed, expected) == words
    assert (not far_apart(printed, expected)) == close


def extras() -> set[str]:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def installs(words: list[str]) -> None:
    """That `pip install` names this folder, and an extra that it has."""
    match = re.fullmatch(r"\.(?:\[(\w+)\])?", words[2])
    assert match, words
    assert match[1] is None or match[1] in extras()


def environment(folder: Path) -> dict[str, str]:
    """One in which `python` and `resemblance` are those of this test."""
    programs = folder / "programs"
    programs.mkdir()
    for name, module in {"python": "", "resemblance": " -m resemblance"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
def test_the_readme_followed_word_by_word(tmp_path):
    folder, printed, compared = tmp_path / "empty", "", 0
    folder.mkdir()
    variables = environment(tmp_path)

    def run(command: str, status: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True
        )
        assert done.returncode == status, f"{command}\n{done.stderr}"
        return done.stdout

    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S):
        if language == "python":
            (folder / "script.py").write_text(text, encoding="utf-8")
            printed = run("python script.py")
            assert (folder / "seeds.png").stat().st_size > 10_000
        elif language == "text":
            assert same_words(printed, text), printed
            assert not far_apart(printed, text)
            compared += 1
        else:
            assert language == "console"
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                status = re.search(r"# exit status (\d)", line)
                if words[:2] == ["pip", "install"]:
                    installs(words)
                elif words[0] == "cd":
                    folder = folder / words[1]
                    assert folder.is_dir()
                else:
                    assert words[0] == "resemblance", line
                    printed = run(line, int(status[1]) if status else 0)
    assert compared == 2
    assert (folder / "report.html").exists()
    assert (folder / "mine.rsm").exists()


def test_the_readme_is_short():
    assert len(README.split()) < 700


def test_the_table_of_extras_is_complete():
    table = README.split("| extra | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == extras() - {"dev"}
