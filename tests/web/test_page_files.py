"""The files of the page."""

from __future__ import annotations

import re

import pytest

from resemblance.web.page_files import page_files


def test_the_page_names_only_files_that_there_are():
    files = page_files()
    page = files["page"].content.decode()
    assert "{{" not in page
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert named
    assert {f"/static/{name}" for name in files if name != "page"} == set(named)


def test_nothing_stands_inline_that_the_policy_forbids():
    page = page_files()["page"].content.decode()
    assert "<style" not in page
    assert not re.search(r"\sstyle=|\son\w+=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize("name", ["charts.js", "pair.js", "zoo.js"])
def test_scripts_never_turn_text_into_markup(name):
    text = page_files()[name].content.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|"
        r"setAttribute\(\"style|srcdoc|https?://(?!www\.w3\.org/2000/svg)",
        text,
    )


def test_a_tag_tells_one_content_from_another():
    files = page_files()
    assert len({file.tag for file in files.values()}) == len(files)
    assert re.fullmatch(r'"[0-9a-f]{24}"', files["page"].tag)
