"""Files that no one runs by hand say what is so: workflow, hooks, citation, changelog, Makefile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import resemblance

ROOT = Path(__file__).resolve().parent.parent
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def yaml_of(name: str) -> dict:
    yaml = pytest.importorskip("yaml")
    if not (ROOT / name).exists():
        pytest.skip(f"{name} is not in a source package")
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_runs_targets_that_exist():
    workflow = yaml_of(".github/workflows/ci.yml")
    assert set(workflow[True]) == {"pull_request", "push"}  # YAML reads the key `on` as true
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split() for step in steps if "run" in step]
    assert {tuple(words) for words in commands} >= {("make", "check"), ("make", "test")}
    assert all(words[0] == "make" and set(words[1:]) <= TARGETS for words in commands)


def test_the_workflow_tests_every_python_that_is_promised():
    matrix = yaml_of(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert matrix == promised


def test_hooks_are_the_tools_of_the_environment():
    (repo,) = yaml_of(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    assert [hook["id"] for hook in repo["hooks"]] == ["ruff-check", "ruff-format", "mypy"]


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml_of("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == resemblance.__version__
    assert {"message", "title", "authors"} <= set(citation)
    paper = citation["references"][0]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Tang", "Maddox", "Dickens", "Diethe", "Damianou",
    ]  # fmt: skip
    assert "2003.11498" in paper["url"]


def test_the_changelog_has_its_form():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.M)
    assert versions[0] == "Unreleased"
    # a version under way is the unreleased one
    assert ".dev" in resemblance.__version__ or resemblance.__version__ in versions
    kinds = set(re.findall(r"^(?:### (?=[A-Z])|\*\*)(\w+)(?:\*\*)?$", text, re.M)) - {"New"}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_unreleased_changes_begin_with_a_summary_and_are_folded_by_area():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = re.split(r"^## ", text, flags=re.M)[1]
    summary, *areas = unreleased.split("<details><summary>")
    assert len(summary.partition("<!--")[0].split()) <= 500
    assert all(area.count("</details>") == 1 for area in areas)
    below = "".join(areas)
    folded = re.sub(r"^.*?</summary>|</details>", "", below, flags=re.M)
    loose = [line for line in folded.splitlines() if line and line[0] not in "-* `"]
    assert not loose


def test_targets_that_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {
        word
        for page in pages
        for words in re.findall(r"(?:^|`)make ([a-z ]+?)(?=  |`|$)", page.read_text(), re.M)
        for word in words.split()
    }
    assert {"test", "check", "slow", "coverage", "demo"} <= named <= TARGETS
