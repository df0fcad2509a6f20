"""Every code block of the README and the documentation runs, and every link leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from optional_libraries import usable_torchvision
from resemblance.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
MADE = [ROOT / "docs/reference/api.md", *(ROOT / "docs/reference/api").glob("*.md")]
FIGURES = ROOT / "docs/figures"
SLOW = {"first-comparison.md", "language-models.md"}
SECTIONS = ("Start", "How-to", "Understand", "Reference", "Evidence")
PARSED = {  # the library that a block needs, and what must read it
    "yaml": ("yaml", lambda text: importlib.import_module("yaml").safe_load(text)),
    "toml": ("tomllib", lambda text: importlib.import_module("tomllib").loads(text)),
}
NOT_IN_SDIST = [ROOT / "reproduction", ROOT / "benchmarks", FIGURES]


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.slow] if p.name in SLOW else [])
        for p in PAGES
        if p not in MADE
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """Python in one namespace a page, commands in the same folder; `console` is for people.

    A command ends with status 0, or with the one in the comment behind it (`# exit status 1`).
    """
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    if "import LlamaConfig" in page.read_text(encoding="utf-8"):
        usable_torchvision()
    for language, text in blocks(page):
        assert text.strip(), f"an empty block of {language}"
        assert language in ("python", "sh", "console", "text", "json", *PARSED), language
        if language in PARSED:
            pytest.importorskip(PARSED[language][0])
            PARSED[language][1](text)
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
        for line in text.splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            status = re.search(r" # exit status (\d+)", line)
            assert words[0] == "resemblance", line
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # as in a process of its own
                with pytest.raises(SystemExit) as end:
                    main(words[1:])
            assert end.value.code == (int(status[1]) if status else 0), line


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
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


def made_by(script):
    """The module of a script that writes a page."""
    spec = importlib.util.spec_from_file_location(script, ROOT / f"docs/{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_reference_is_up_to_date():
    pages = made_by("build_api").pages()
    assert {path.relative_to(ROOT / "docs/reference").as_posix() for path in MADE} == pages.keys()
    for name, text in pages.items():
        path = ROOT / "docs/reference" / name
        assert path.read_text(encoding="utf-8") == text, "run python docs/build_api.py"


def test_the_page_of_copies_says_what_was_measured():
    if not (ROOT / "benchmarks").exists():
        pytest.skip("the benchmarks are not in a source package")
    page = (ROOT / "docs/evidence/copies.md").read_text(encoding="utf-8")
    assert page == made_by("build_copies").page(), "run python docs/build_copies.py"


def test_the_page_of_the_benchmark_of_measures_says_what_was_measured():
    if not (ROOT / "reproduction").exists():
        pytest.skip("the reproduction is not in a source package")
    page = (ROOT / "docs/evidence/benchmark.md").read_text(encoding="utf-8")
    made = made_by("build_benchmark")
    assert page == made.page(), "run python docs/build_benchmark.py"
    table = made.by_question(made.results())
    assert table in (ROOT / "docs/understand/measures.md").read_text(encoding="utf-8"), table


@pytest.mark.parametrize("script", ["build_copies", "build_benchmark"])
def test_a_conclusion_that_a_result_does_not_bear_out_is_refused(script):
    if not (ROOT / f"docs/{script}.py").exists():
        pytest.skip("the script is not in a source package")
    claim = made_by(script).claim
    assert claim(True, "It passes.") == "It passes."
    with pytest.raises(SystemExit, match=r"does not bear out: It passes\."):
        claim(False, "It passes.")


def test_every_figure_is_in_the_gallery_below_what_made_it():
    if not FIGURES.exists():
        pytest.skip("the figures are not in a source package")
    gallery = (ROOT / "docs/evidence/gallery.md").read_text(encoding="utf-8")
    sections = gallery.split("\n## ")[1:]
    for figure in FIGURES.iterdir():
        (section,) = (one for one in sections if f"](../figures/{figure.name})" in one)
        command = section.split("```console\n")[1].split("```")[0]
        assert section.index("```console") < section.index(f"figures/{figure.name}")
        for script in re.findall(r"^python (?:-m )?(\S+)", command, re.M):
            path = script if script.endswith(".py") else f"{script.replace('.', '/')}.py"
            assert (ROOT / path).exists(), script


def test_what_is_read_from_the_beginning_is_short():
    """Start, How-to and Understand; what is looked up may be long."""
    script = made_by("words")
    count = script.words()
    print(count)
    assert {section.lower() for section in SECTIONS} <= count.keys()
    assert script.limited(count) <= script.LIMIT, count


def test_the_readme_lists_the_sections():
    listed = (ROOT / "README.md").read_text(encoding="utf-8").split("## Documentation")[1]
    for section in SECTIONS:
        assert f"**{section}**" in listed
        assert f"(docs/{section.lower()}/" in listed


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_into_a_page_name_a_place_there(page):
    for target, place in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        text = ((page.parent / target) if target else page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
        assert f'<a id="{place}"></a>' in text or place in slugs, f"{target}#{place}"


GLOSSARY = ROOT / "docs/understand/scores.md"


def test_every_word_of_the_glossary_has_an_anchor_of_its_own():
    words = GLOSSARY.read_text(encoding="utf-8").split("\n## Words\n")[1]
    rows = [row for row in words.splitlines() if row.startswith("| ")][1:]
    anchors = [re.match(r'\| <a id="(\w+)"></a>\*\*', row) for row in rows]
    assert len(rows) > 10
    assert all(anchors), rows
    assert len({anchor[1] for anchor in anchors}) == len(rows)


@pytest.mark.parametrize("name", ["evidence/accuracy", "evidence/performance"])
@pytest.mark.parametrize("word", ["bucket", "fold", "n_eff"])
def test_words_of_the_glossary_are_linked_where_a_page_first_uses_them(name, word):
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    first = re.search(rf"(?i)(?<![\w-]){word}", text)
    if first:
        link = text.find(f"(../understand/scores.md#{word})")
        assert -1 < link - first.start() < 40, f"{name}.md uses {word!r} before it says what it is"
