"""Every code block of the README and the documentation runs, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
MADE = ROOT / "docs/api.md"
SLOW = {"quickstart.md"}
NOT_IN_SDIST = [ROOT / "reproduction", ROOT / "benchmarks", ROOT / "docs/figures"]


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.slow] if p.name in SLOW else [])
        for p in PAGES
        if p != MADE
    ],
    ids=lambda p: p.name,
)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """Python in one namespace a page, commands in the same folder; `console` is for people."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for language, text in blocks(page):
        assert language in ("python", "sh", "console", "text", "json"), language
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
        for line in text.splitlines() if language == "sh" else ():
            words = shlex.split(line)
            assert words[0] == "resemblance", line
            subprocess.run([sys.executable, "-m", "resemblance", *words[1:]], check=True)


@pytest.mark.parametrize("page", LINKED, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    unpacked = (ROOT / "PKG-INFO").exists()  # from an sdist
    left_out = [folder for folder in NOT_IN_SDIST if unpacked and not folder.exists()]
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        path = (page.parent / target).resolve()
        if not target.startswith("http") and not any(path.is_relative_to(f) for f in left_out):
            assert path.exists(), target


def test_commands_for_people_exist():
    """`console` blocks of the README name make targets and subcommands that are there."""
    makefile = (ROOT / "Makefile").read_text()
    help_text = subprocess.run(
        [sys.executable, "-m", "resemblance", "--help"], capture_output=True, text=True
    ).stdout
    for language, text in blocks(ROOT / "README.md"):
        for line in text.splitlines() if language == "console" else ():
            words = line.split()
            if words[0] == "make":
                assert f"\n{words[1]}:" in makefile
            elif words[0] == "resemblance":
                assert f"\n  {words[1]} " in help_text


def test_the_api_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("build_api", ROOT / "docs/build_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert MADE.read_text() == module.page(), "run python docs/build_api.py"
