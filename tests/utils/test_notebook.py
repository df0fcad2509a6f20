"""What a notebook shows of a result: its line, heat maps and a table, escaped, without scripts."""

from __future__ import annotations

import html
import pickle
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

import resemblance as rs
from made_up import comparison, recorded, trajectory
from resemblance._utils.notebook import HeatMap, heat_map_svg, table_html
from test_results import NAMES, results  # noqa: F401 - a fixture

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('x')</script>\u202e&\"'"


class Balanced(HTMLParser):
    """Reads HTML, and refuses a tag that is not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.words = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(text):
    page = Balanced()
    page.feed(text)
    page.close()
    assert not page.open
    return page


@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_its_line_a_table_and_its_summary(results, name):  # noqa: F811
    one = results[name]
    page = read(one._repr_html_())
    assert page.tags <= {
        "div", "table", "tr", "th", "td", "details", "summary", "br", "code",
        "svg", "g", "rect", "text", "title",
    }  # fmt: skip
    assert {"table", "td", "details"} <= page.tags
    assert page.words[0] == f"{name}: {one._text()}"
    words = "".join(page.words)
    assert all(line in words for line in one.summary().split("\n"))
    drawn = ("KernelComparison", "FullComparison", "ComparisonMatrix", "Trajectory")
    assert ("svg" in page.tags) == (name in drawn)


def test_a_verdict_has_a_mark_for_each_threshold(results):  # noqa: F811
    words = " ".join(read(results["Verdict"]._repr_html_()).words)
    assert "max-disagreement 2 % ✗ failed 5 % 3.1 % to 7 %" in words
    assert "min-db 20 dB ✓ passed unchanged" in words


@pytest.mark.parametrize("make", [comparison, trajectory])
def test_names_are_never_markup(make):
    if make is comparison:
        one = comparison([[0.5, 0.2]], models=(EVIL, "b"), rows=(EVIL,), notes=(rs.Note(EVIL),))
    else:
        one = trajectory(layers=(EVIL, "b"), steps=(EVIL, 1, 2))
    text = one._repr_html_()
    assert "script" not in read(text).tags
    assert "<script" not in text
    assert "\u202e" not in text  # which would turn the line around it
    assert html.escape("<script>alert(") in text


def test_a_heat_map_has_the_colour_of_every_score():
    scores = np.array([[0.0, 0.5, 1.0], [0.23, np.nan, -0.1]])
    drawn = ElementTree.fromstring(heat_map_svg(HeatMap("t", scores, ("a", "b"), ("x", "y", "z"))))
    cells = [cell for cell in drawn.iter(f"{SVG}rect") if cell.find(f"{SVG}title") is not None]
    assert [cell.find(f"{SVG}title").text for cell in cells] == [
        "a, x: 0.000", "a, y: 0.500", "a, z: 1", "b, x: 0.230", "b, y: –", "b, z: -0.100",
    ]  # fmt: skip
    viridis = matplotlib.colormaps["viridis"]
    for cell, score in zip(cells, scores.ravel(), strict=True):
        fill = cell.get("fill")
        if np.isnan(score):
            assert fill == "none"
            continue
        shown = [int(fill[i : i + 2], 16) for i in (1, 3, 5)]
        exact = [255 * x for x in viridis(max(score, 0.0))[:3]]
        assert np.abs(np.subtract(shown, exact)).max() < 6  # lines between eleven colours
    assert {text.text for text in drawn.iter(f"{SVG}text")} >= {"t", "a", "b", "x", "y", "z"}


def test_a_large_map_is_left_to_the_figure_and_many_names_to_the_cells():
    assert "<svg" not in comparison(np.full((51, 50), 0.5))._repr_html_()
    shown = comparison(np.full((40, 2), 0.5))._repr_html_()
    assert shown.count("<title>") == 80
    assert not re.search(r"<text [^>]*>r39</text>", shown)


def test_a_table_is_short_and_shows_what_is_known():
    columns = {
        "layer": [f"l{i}" for i in range(20)],
        "score": np.full(20, 0.5),
        "stderr": np.full(20, 0.012),
        "decibels": np.full(20, np.inf),
        "unknown": [None] * 20,
        "tags": [("a", "b")] * 20,
        "same": np.ones(20, bool),
    }
    page = read(table_html(columns))
    text = " ".join(page.words)
    assert text.startswith("layer score decibels tags same l0 0.500 ± 0.012 ∞ a, b yes l1")
    assert text.endswith("and 4 more rows:  to_frame()  has all")
    assert "l15" in text
    assert "l16" not in text
    assert "−∞" in table_html({"decibels": [-np.inf]})


def test_a_table_of_no_rows_is_a_table():
    page = read(rs.flips(recorded_outputs(), recorded_outputs())._repr_html_())
    assert "table" in page.tags


def recorded_outputs():
    logits = np.random.default_rng(0).normal(size=(60, 3))
    return rs.record_arrays(outputs=logits, data_id="x")


def test_what_a_comparison_shows_are_counterparts():
    one = rs.compare(recorded(0, 100), recorded(1, 100))
    words = read(one._repr_html_()).words
    assert words.count("features") == words.count("gradients") == 2  # a row for each layer


def test_a_figure_shows_itself_and_goes_through_pickle():
    figure = trajectory().plot()
    picture = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(b"\x89PNG")


def test_a_recording_shows_its_layers_and_what_it_was_recorded_from():
    rep = recorded(0, 100)
    words = read(rep._repr_html_()).words
    assert words[0] == repr(rep)
    assert all(name in words for name in rep.layer_names)
    trace = rep[0].features.trace
    assert f"{(trace / 100) ** 0.5:.3g}" in " ".join(words)
    assert f"seed {rep.settings.seed}," in " ".join(words)
    assert "script" not in read(rep.renamed(EVIL)._repr_html_()).tags


def test_a_recording_of_arrays_without_gradients_shows_its_features():
    rep = recorded_outputs()
    assert "gradients" not in read(rep._repr_html_()).words
