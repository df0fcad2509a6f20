"""The table of compare at 80 and 120 columns, and the map of scores of all pairs of layers."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import resemblance as rs
from made_up import comparison
from resemblance.cli.compare_table import comparison_table, score_map
from resemblance.representation.notes import make_note
from resemblance.similarity.comparison import FullComparison
from resemblance.similarity.drift import Coordinates

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def at(run, monkeypatch):
    """The command at a width: what it prints."""

    def call(columns, *words):
        monkeypatch.setenv("COLUMNS", str(columns))
        status, out, err = run(*words)
        assert (status, err) == (0, "")
        return out.splitlines()

    return call


TABLE = """\
layer  features       chance  gradients      chance
─────  ─────────────  ──────  ─────────────  ──────  ──────────
1      0.881 ± 0.011   0.049  0.692 ± 0.024   0.565  ██████▉
3      0.823 ± 0.012   0.052  0.830 ± 0.019   0.739  ████████▎
"""
AT_80 = f"""\
small and small: cka of centred features and gradients, from blocks, 300
samples.

{TABLE}
features: rows small, columns small
      1   2
1 1 .88 .85
2 3 .85 .82

gradients: rows small, columns small
      1   2
1 1 .69 .67
2 3 .83 .83

Mean over 2 layers matched by name: features 0.852 ± 0.010, gradients
0.761 ± 0.018.
Features differ from the first layer compared on: the score at 1 is 0.12 below 1
(0.095 to 0.14).
Gradients differ from the last layer compared on: the score at 3 is 0.17 below 1
(0.13 to 0.21).
Note: predictions are not compared: small was recorded without them.
"""
AT_120 = f"""\
small and small: cka of centred features and gradients, from blocks, 300 samples.

{TABLE}
Mean over 2 layers matched by name: features 0.852 ± 0.010, gradients 0.761 ± 0.018.
Features differ from the first layer compared on: the score at 1 is 0.12 below 1 (0.095 to 0.14).
Gradients differ from the last layer compared on: the score at 3 is 0.17 below 1 (0.13 to 0.21).
Note: predictions are not compared: small was recorded without them.
"""


def test_compare_at_80_and_120_columns(at):
    files = (GOLDEN / "a.rsm", GOLDEN / "b.rsm")
    assert at(80, "compare", *files, "--map") == AT_80.splitlines()
    assert at(120, "compare", *files) == AT_120.splitlines()


def test_one_kernel_has_the_sentences_of_its_summary(at):
    files = (GOLDEN / "a.rsm", GOLDEN / "b.rsm")
    heading, _, head, *_ = lines = at(400, "compare", *files, "--kernel", "product")
    assert head.split() == ["layer", "product", "chance"]
    assert [heading, *lines[7:]] == rs.compare(*files, kernel="product").summary().split("\n")


def deep(**changes):
    """A hundred layers of a copy, from all but equal to very different."""
    names = [
        f"base_model.model.model.layers.{i}.{part}"
        for i in range(50)
        for part in ("self_attn.o_proj", "mlp.down_proj")
    ]
    apart = np.geomspace(2e-8, 0.97, 100)
    value = np.diag(1 - apart)
    values = {
        "rows": tuple(names),
        "columns": tuple(name.removeprefix("base_model.") for name in names),
        "stderr": np.diag(apart / 50),
        "chance": np.full((100, 100), 0.02),
        "chance_high": np.full((100, 100), 0.047),
        "matched_by": "name",
        "matched": tuple(range(100)),
        "n_eff": (np.linspace(600, 8, 100), np.full(100, 600.0)),
    }
    return comparison(value, **{**values, **changes})


def gradients(**changes):
    carried = {"n_eff": 8.0, "unit": "samples", "samples": 600}
    note = make_note("unreliable-errors", count=100, scores=10000, **carried)
    return deep(kernel="gradients", centre=False, notes=(note,), **changes)


def moved():
    """The change of a copy's layers, some beyond what rounding leaves, one not at all."""
    layers = deep().rows
    empty = np.zeros((1, 100))
    return Coordinates(
        models=("one", "two"),
        layers=layers[:-1],  # the last has another shape
        counterparts=layers[:-1],
        matched_by="name",
        kinds=("features",),
        decibels=np.array([[np.inf, *np.linspace(160, 3, 98)]]),
        decibels_stderr=empty[:, 1:],
        cosine=np.array([[1.0, *(1 - np.geomspace(1e-8, 0.6, 98))]]),
        cosine_stderr=empty[:, 1:],
        mean_share=empty[:, 1:],
        mean_share_stderr=empty[:, 1:],
        chance=empty[0, 1:],
        chance_high=np.full(99, 0.3),
        alarms=1e-3,
        floor=138.2,
        samples=100,
    )


def some(found):
    """The first, middle and last lines of a table, and what is said below it."""
    lines, legend = found
    assert len(lines) == 102
    return [*lines[:4], "...", *lines[50:52], "...", *lines[-3:], *legend]


HUNDRED = {  # by columns, and whether coordinates are shared
    (80, False): """\
layer                features              gradients             n_eff
───────────────────  ────────────────────  ────────────────────  ─────  ──────
0.self_attn.o_proj   1−2e-8   ± 4e-10      1−2e-8   ± 4e-10        600  ██████
0.mlp.down_proj      1−2e-8   ± 5e-10      1−2e-8   ± 5e-10        594  ██████
...
24.self_attn.o_proj  0.999893 ± 0.000002   0.999893 ± 0.000002     313  ██████
24.mlp.down_proj     0.999873 ± 0.000003   0.999873 ± 0.000003     307  ██████
...
48.mlp.down_proj     0.322    ± 0.014      0.322    ± 0.014         20  █▉
49.self_attn.o_proj  0.189    ± 0.016      0.189    ± 0.016         14  █▏
49.mlp.down_proj     0.030    ± 0.019   *  0.030    ± 0.019   *      8  ▏
Names of one begin with base_model.model.model.layers.…
Chance level (95 %): features 0.047, gradients 0.047.
* not above the 95 % chance level.
""",
    (120, False): """\
layer                features              chance  gradients             chance  n_eff
───────────────────  ────────────────────  ──────  ────────────────────  ──────  ─────  ──────
0.self_attn.o_proj   1−2e-8   ± 4e-10       0.047  1−2e-8   ± 4e-10       0.047    600  ██████
0.mlp.down_proj      1−2e-8   ± 5e-10       0.047  1−2e-8   ± 5e-10       0.047    594  ██████
...
24.self_attn.o_proj  0.999893 ± 0.000002    0.047  0.999893 ± 0.000002    0.047    313  ██████
24.mlp.down_proj     0.999873 ± 0.000003    0.047  0.999873 ± 0.000003    0.047    307  ██████
...
48.mlp.down_proj     0.322    ± 0.014       0.047  0.322    ± 0.014       0.047     20  █▉
49.self_attn.o_proj  0.189    ± 0.016       0.047  0.189    ± 0.016       0.047     14  █▏
49.mlp.down_proj     0.030    ± 0.019   *   0.047  0.030    ± 0.019   *   0.047      8  ▏
Names of one begin with base_model.model.model.layers.…
* not above the 95 % chance level.
""",
    (80, True): """\
layer             features         gradients        n_eff           dB  cosine
────────────────  ───────────────  ───────────────  ─────  ────  ─────  ────────
0.self_…n.o_proj  1−2e-8  ±4e-10   1−2e-8  ±4e-10     600  ████      ∞  1
0.mlp.down_proj   1−2e-8  ±5e-10   1−2e-8  ±5e-10     594  ████   >138  1−1e-8
...
24.self…n.o_proj  0.999893±2e-6    0.999893±2e-6      313  ████   83.9  0.99994
24.mlp.down_proj  0.999873±3e-6    0.999873±3e-6      307  ████   82.3  0.99993
...
48.mlp.down_proj  0.32    ±0.01    0.32    ±0.01       20  █▎      4.6  0.501
49.self…n.o_proj  0.19    ±0.02    0.19    ±0.02       14  ▊       3.0  0.400
49.mlp.down_proj  0.03    ±0.02 *  0.03    ±0.02 *      8  ▏         –  –
Names of one begin with base_model.model.model.layers.…
Chance level (95 %): features 0.047, gradients 0.047.
* not above the 95 % chance level.
dB, cosine: drift of features, as signal-to-noise ratio and as cosine similarity.
""",
    (120, True): """\
layer                features              chance  gradients             chance  n_eff             dB  cosine
───────────────────  ────────────────────  ──────  ────────────────────  ──────  ─────  ──────  ─────  ────────
0.self_attn.o_proj   1−2e-8   ± 4e-10       0.047  1−2e-8   ± 4e-10       0.047    600  ██████      ∞  1
0.mlp.down_proj      1−2e-8   ± 5e-10       0.047  1−2e-8   ± 5e-10       0.047    594  ██████   >138  1−1e-8
...
24.self_attn.o_proj  0.999893 ± 0.000002    0.047  0.999893 ± 0.000002    0.047    313  ██████   83.9  0.99994
24.mlp.down_proj     0.999873 ± 0.000003    0.047  0.999873 ± 0.000003    0.047    307  ██████   82.3  0.99993
...
48.mlp.down_proj     0.322    ± 0.014       0.047  0.322    ± 0.014       0.047     20  █▉        4.6  0.501
49.self_attn.o_proj  0.189    ± 0.016       0.047  0.189    ± 0.016       0.047     14  █▏        3.0  0.400
49.mlp.down_proj     0.030    ± 0.019   *   0.047  0.030    ± 0.019   *   0.047      8  ▏           –  –
Names of one begin with base_model.model.model.layers.…
* not above the 95 % chance level.
dB, cosine: drift of features, as signal-to-noise ratio and as cosine similarity.
""",  # noqa: E501 - as it is printed
}


@pytest.mark.parametrize(("room", "shared"), HUNDRED)
def test_a_hundred_layers_with_long_names(room, shared):
    found = FullComparison(deep(), gradients(), moved() if shared else None)
    assert some(comparison_table(found, room)) == HUNDRED[room, shared].splitlines()


@pytest.mark.parametrize("room", [70, 80, 90, 100, 110, 120, 200])
def test_no_line_is_wider_than_there_is_room_and_names_stay_apart(room):
    lines, _ = comparison_table(FullComparison(deep(), gradients(), moved()), room)
    assert max(map(len, lines)) <= room
    assert len({line.split()[0] for line in lines}) == 102


def test_names_are_whole_where_there_is_room():
    lines, legend = comparison_table(FullComparison(deep(), gradients(), moved()), 200)
    assert lines[2].startswith("base_model.model.model.layers.0.self_attn.o_proj  ")
    assert not any("begin with" in sentence for sentence in legend)


def test_coordinates_that_are_not_shared_are_not_shown():
    apart = replace(moved(), chance_high=np.full(99, 2.0))
    assert "dB" not in comparison_table(FullComparison(deep(), None, apart), 120)[0][0]


OTHERS = {"columns": tuple(f"backbone.stage{j}.conv" for j in range(3))}
BOTH = """\
layer  counterpart           features       gradients
─────  ────────────────────  ─────────────  ─────────────  ──────────
r0     backbone.stage0.conv  0.900 ± 0.010  0.200 ± 0.010  ██
r1     backbone.stage1.conv  0.600 ± 0.010  0.600 ± 0.010  ██████
"""
ONE = """\
layer  counterpart           features
─────  ────────────────────  ─────────────  ──────────
r0     backbone.stage0.conv  0.900 ± 0.010  █████████
r1     backbone.stage1.conv  0.600 ± 0.010  ██████
"""


def test_counterparts_have_a_column_where_they_are_no_namesakes():
    found = comparison([[0.9, 0.5, 0.2], [0.3, 0.6, 0.4]], **OTHERS)
    both = {**OTHERS, "matched_by": found.matched_by, "matched": found.matched}
    other = comparison([[0.2, 0.5, 0.1], [0.3, 0.6, 0.7]], kernel="gradients", **both)
    assert comparison_table(found, 80) == (ONE.splitlines(), [])
    assert comparison_table(FullComparison(found, other), 80) == (BOTH.splitlines(), [])


def test_a_layer_without_a_counterpart_or_a_score_has_a_dash():
    found = comparison([[0.9, 0.1], [0.5, 0.6], [0.2, np.nan]], columns=("r0", "r2"))
    lines, _ = comparison_table(found, 80)
    assert [line.split() for line in lines[3:]] == [["r1", "–"], ["r2", "–"]]


def test_n_eff_has_a_column_where_a_comparison_warned_of_it():
    calm, warned = (
        FullComparison(deep(), deep(kernel="gradients")),
        FullComparison(deep(), gradients()),
    )
    assert "n_eff" not in comparison_table(calm, 120)[0][0]
    assert comparison_table(warned, 120)[0][0].count("n_eff") == 1


def many(n):
    """Scores that fall with the distance of layers."""
    far = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return comparison(
        1 - far / n,
        rows=tuple(f"model.layers.{i}" for i in range(n)),
        columns=tuple(f"model.layers.{i}" for i in range(n)),
    )


def map_width(found):
    """How much room a map is said to need where there is none."""
    (line,) = score_map(found, 1)
    return int(line.split()[3])


def test_two_digits_a_pair_under_the_numbers_of_columns():
    found = comparison([[0.256, 1.0], [float("nan"), 0.999]])
    assert list(score_map(found, 80)) == [
        "features: rows one, columns two",
        "       1   2",
        "1 r0 .26   1",
        "2 r1   – .99",
        "columns: 1 c0, 2 c1",
    ]


def test_what_does_not_fit_in_digits_is_shaded():
    assert list(score_map(many(6), 13))[1:] == [
        "1 0 █▇▆▅▃▂",
        "2 1 ▇█▇▆▅▃",
        "3 2 ▆▇█▇▆▅",
        "4 3 ▅▆▇█▇▆",
        "5 4 ▃▅▆▇█▇",
        "6 5 ▂▃▅▆▇█",
        "columns 1 to 6, from ▁ (0) to █ (1)",
    ]


def test_a_map_is_no_wider_than_it_may_be():
    for n in (5, 19, 60, 100):
        found = many(n)
        for room in {map_width(found), max(80, map_width(found)), 120}:
            lines = list(score_map(found, room))
            assert max(map(len, lines[1:-1])) <= room
            assert len(lines) >= n + 2
    assert map_width(many(100)) == 107


def test_plain_characters_where_the_output_has_no_others(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    lines = list(score_map(many(6), 13))
    assert lines[1] == "1 0 986531"
    assert all(line.isascii() for line in lines)
