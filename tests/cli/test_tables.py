"""What is printed: tables that fit and fold nothing, JSON in a file or instead of a table."""

from __future__ import annotations

import io
import json
import sys

import pytest

from resemblance.cli import tables
from resemblance.cli.tables import Column


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a function prints at a width."""

    def call(columns, function, *arguments, **options):
        monkeypatch.setenv("COLUMNS", str(columns))
        function(*arguments, **options)
        return capsys.readouterr().out

    return call


def test_no_colours_in_a_pipe(recorded):
    _, out, _ = recorded("compare", "a.rsm", "b.rsm", "--map")
    assert "\x1b" not in out


def test_a_pipe_is_100_columns_wide_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert tables.width() == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert tables.width() == 72
    monkeypatch.setenv("COLUMNS", "3")
    assert tables.width() == 40


ADAPTATION = """\
net
layer  ‖μ‖                log ratio         n_eff
─────  ─────────────────  ────────────────  ─────
u      0.01933 ± 0.00027  -9.536  ± 0.015   1,234
v      1.69e-4 ± 1.6e-5    9.4141 ± 0.0091     58
w      –                   –
"""


def test_small_numbers_of_adaptation_are_shown(printed):
    content = {
        "model": "net",
        "layers": ["u", "v", "w"],
        "mean_embedding": [0.01933, 0.000169, None],
        "mean_embedding_stderr": [0.00027, 0.000016, None],
        "log_ratio": [-9.5361, 9.4141, None],
        "log_ratio_stderr": [0.015, 0.0091, None],
        "n_eff": [1234.4, 58.0, None],
    }
    assert printed(80, tables.show_adaptation, content) == ADAPTATION
    assert printed(80, tables.show_adaptation, content, after=True) == f"\n{ADAPTATION}"


LAYERS = [
    {"layer": "stem", "kind": "Conv2d", "shape": [6, 6, 12], "auto": ["stem"]},
    {"layer": "blocks.0", "kind": "Gate", "shape": [], "auto": []},
    {"layer": "head", "kind": "Linear", "shape": [10], "auto": ["head:in", "head"]},
    {"layer": "pick", "kind": "Index", "shape": None, "auto": []},
]
LISTED = """\
layer     kind    shape       auto
────────  ──────  ──────────  ──────────────
stem      Conv2d  6 × 6 × 12  yes
blocks.0  Gate    scalar
head      Linear  10          yes, its input
pick      Index
"""


def test_layers_are_listed_one_a_line_with_what_auto_takes(printed):
    auto = ["stem", "head:in", "head"]
    said = "4 modules run; auto records 3: stem, head:in, head\n"
    assert printed(80, tables.show_layers, LAYERS, auto, 4) == LISTED + said
    many = [f"h.{i}" for i in range(9)]
    out = printed(80, tables.show_layers, LAYERS[:2], many, 400)
    assert out.splitlines()[-1] == "2 of 400 modules that run; auto records 9"


LONG = [f"encoder.layers.{i}.attention.output.dense" for i in (7, 8, 23)]


def test_names_give_way_where_a_table_is_too_wide(printed):
    rows = [(name, "A" * 25) for name in LONG]
    assert printed(80, tables.show, ("layer", "kind"), rows).splitlines()[2] == (
        f"{LONG[0]}   {'A' * 25}"
    )
    assert printed(55, tables.show, ("layer", "kind"), rows) == (
        f"layer                      kind\n{'─' * 25}  {'─' * 25}\n"
        f"7.attention.output.dense   {'A' * 25}\n"
        f"8.attention.output.dense   {'A' * 25}\n"
        f"23.attention.output.dense  {'A' * 25}\n"
        "Names begin with encoder.layers.…\n"
    )
    out = printed(44, tables.show, ("layer", "kind"), rows).splitlines()
    assert [line.split()[0] for line in out[2:5]] == [
        "7.attent…ut.dense",
        "8.attent…ut.dense",
        "23.atten…ut.dense",
    ]
    assert max(map(len, out)) == 44


def test_letters_of_two_cells_keep_columns_straight():
    columns = [Column("layer", ["层一", "b"]), Column("n_eff", ["1", "20"], right=True)]
    assert tables.lines(columns, 80)[2:] == ["层一       1", "b         20"]


def test_a_sentence_is_broken_between_words_and_keeps_a_number_with_its_error(printed):
    assert printed(40, tables.tell, "a mean over all of the layers of 0.5 ± 0.1") == (
        "a mean over all of the layers of\n0.5 ± 0.1\n"
    )
    assert printed(40, tables.tell, "of predictions that the copy may change 2 %") == (
        "of predictions that the copy may change\n2 %\n"
    )


def test_plain_characters_where_the_output_has_no_others(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "80")
    tables.show(("layer", "‖μ‖"), [("层", "0.5 ± 0.1"), ("b", "6 × 6")])
    tables.say(tables.bar(0.7, 4))
    out.seek(0)
    assert out.read().splitlines() == [
        "layer   |mu|",
        "------  ----------",
        "\\u5c42  0.5 +- 0.1",
        "b       6 x 6",
        "###",
    ]


ABOUT = """\
a.rsm
model    net
samples  1,797
seed     1000

layer  shape      width  holds
─────  ─────────  ─────  ────────
stem   6 × 6 × 8    288  features
head   scalar         1  features
"""


def test_info_has_a_fact_a_line_and_leaves_out_what_is_not_there(printed):
    kinds = {"folded": False, "kinds": ("features",)}
    layers = [
        {"name": "stem", "shape": (6, 6, 8), "dim": 288, **kinds},
        {"name": "head", "shape": (), "dim": 1, **kinds},
    ]
    content = {"file": "a.rsm", "model": "net", "address": None, "samples": 1797, "seed": 1000}
    assert printed(80, tables.show_file, {**content, "layers": layers}) == ABOUT
    again = printed(80, tables.show_file, {**content, "layers": layers}, after=True)
    assert again == f"\n{ABOUT}"


def test_what_a_file_lacks_takes_as_many_lines_as_it_needs(printed):
    content = {"file": "a b.rsm", "address": "a b " * 20, "lacks": "one thing, another, more " * 4}
    lines = printed(40, tables.show_file, {**content, "layers": []}).splitlines()
    assert lines[1] == f"address  {'a b ' * 20}"  # which can be copied
    assert lines[2] == "lacks    one thing, another, more one"
    assert lines[3] == "         thing, another, more one thing,"
    assert max(map(len, lines[2:])) <= 40


def test_json_goes_to_a_file_or_takes_the_place_of_the_table(tmp_path, capsys):
    assert not tables.wrote_json(None, [1])
    assert not tables.wrote_json(str(tmp_path / "a.json"), {"at": tmp_path})
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "a.json").read_text()) == {"at": str(tmp_path)}
    assert tables.wrote_json("-", [1])
    assert json.loads(capsys.readouterr().out) == [1]
