"""What is printed: tables that fit, JSON, shortened names, and output paths that are checked."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from resemblance.cli import output
from resemblance.cli.output import (
    TableColumn,
    check_outputs,
    shared_prefix,
    shorten_names,
)
from resemblance.errors import DataError


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
    assert output.output_width() == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert output.output_width() == 72
    monkeypatch.setenv("COLUMNS", "3")
    assert output.output_width() == 40


ADAPTATION = """\
net
layer  ‖μ‖                log ratio         n_eff
─────  ─────────────────  ────────────────  ─────
u      0.01933 ± 0.00027  -9.536  ± 0.015   1,234
v      1.69e-4 ± 1.6e-5    9.4141 ± 0.0091     58
w      –                   –
Outputs: dispersity 0.9.
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
    said = "Outputs: dispersity 0.9."
    assert printed(80, output.show_adaptation, content, said) == ADAPTATION
    assert printed(80, output.show_adaptation, content, said, after=True) == f"\n{ADAPTATION}"


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
    said = "4 modules run; auto selects 3: stem, head:in, head\n"
    assert printed(80, output.show_layers, LAYERS, auto, 4) == LISTED + said
    many = [f"h.{i}" for i in range(9)]
    out = printed(80, output.show_layers, LAYERS[:2], many, 400)
    assert out.splitlines()[-1] == "2 of 400 modules that run; auto selects 9"


LONG = [f"encoder.layers.{i}.attention.output.dense" for i in (7, 8, 23)]


def test_names_give_way_where_a_table_is_too_wide(printed):
    rows = [(name, "A" * 25) for name in LONG]
    assert printed(80, output.print_table, ("layer", "kind"), rows).splitlines()[2] == (
        f"{LONG[0]}   {'A' * 25}"
    )
    assert printed(55, output.print_table, ("layer", "kind"), rows) == (
        f"layer                      kind\n{'─' * 25}  {'─' * 25}\n"
        f"7.attention.output.dense   {'A' * 25}\n"
        f"8.attention.output.dense   {'A' * 25}\n"
        f"23.attention.output.dense  {'A' * 25}\n"
        "Names begin with encoder.layers.…\n"
    )
    out = printed(44, output.print_table, ("layer", "kind"), rows).splitlines()
    assert [line.split()[0] for line in out[2:5]] == [
        "7.attent…ut.dense",
        "8.attent…ut.dense",
        "23.atten…ut.dense",
    ]
    assert max(map(len, out)) == 44


def test_letters_of_two_cells_keep_columns_straight():
    columns = [TableColumn("layer", ["层一", "b"]), TableColumn("n_eff", ["1", "20"], right=True)]
    assert output.table_lines(columns, 80)[2:] == ["层一       1", "b         20"]


def test_a_sentence_is_broken_between_words_and_keeps_a_number_with_its_error(printed):
    assert printed(40, output.print_wrapped, "a mean over all of the layers of 0.5 ± 0.1") == (
        "a mean over all of the layers of\n0.5 ± 0.1\n"
    )
    assert printed(40, output.print_wrapped, "of predictions that the copy may change 2 %") == (
        "of predictions that the copy may change\n2 %\n"
    )


def test_plain_characters_where_the_output_has_no_others(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "80")
    output.print_table(("layer", "‖μ‖"), [("层", "0.5 ± 0.1"), ("b", "6 × 6")])
    output.print_line(output.format_bar(0.7, 4))
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
    assert printed(80, output.show_file, {**content, "layers": layers}) == ABOUT
    again = printed(80, output.show_file, {**content, "layers": layers}, after=True)
    assert again == f"\n{ABOUT}"


def test_what_a_file_lacks_takes_as_many_lines_as_it_needs(printed):
    content = {"file": "a b.rsm", "address": "a b " * 20, "lacks": "one thing, another, more " * 4}
    lines = printed(40, output.show_file, {**content, "layers": []}).splitlines()
    assert lines[1] == f"address  {'a b ' * 20}"  # which can be copied
    assert lines[2] == "lacks    one thing, another, more one"
    assert lines[3] == "         thing, another, more one thing,"
    assert max(map(len, lines[2:])) <= 40


def test_json_goes_to_a_file_or_takes_the_place_of_the_table(tmp_path, capsys):
    assert not output.write_json(None, [1])
    assert not output.write_json(str(tmp_path / "a.json"), {"at": tmp_path})
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "a.json").read_text()) == {"at": str(tmp_path)}
    assert output.write_json("-", [1])
    assert json.loads(capsys.readouterr().out) == [1]


LONG_NAMES = [
    f"base_model.model.model.layers.{i}.{part}"
    for i in range(32)
    for part in ("self_attn.o_proj", "mlp.down_proj")
]


def test_what_all_names_begin_with_ends_in_a_dot_and_leaves_something_of_each():
    assert shared_prefix(LONG_NAMES) == "base_model.model.model.layers."
    assert shared_prefix(["a.b", "a.b.c"]) == "a."
    assert shared_prefix(["ab.c", "ax.c"]) == ""
    assert shared_prefix(["a.b"]) == ""


@pytest.mark.parametrize("room", [1, 2, 7, 16, 20, 30])
def test_names_are_no_wider_than_there_is_room(room):
    for names in (LONG_NAMES, ["层" * 20, "короткое"]):
        assert max(map(cell_len, shorten_names(names, room))) <= room


def test_names_stay_apart_where_that_can_be():
    names = [name.removeprefix("base_model.model.model.layers.") for name in LONG_NAMES]
    assert len(set(shorten_names(names, 8))) == len(names)
    assert shorten_names(["block.1.attention", "block.2.attention"], 12) == [
        "block.1…tion",
        "block.2…tion",
    ]


def test_names_that_fit_are_left_alone():
    assert shorten_names(["conv1", "layer1.0"], 8) == ["conv1", "layer1.0"]


def test_what_can_be_written_may_be(tmp_path):
    check_outputs(
        None, "-", "/dev/stdout", tmp_path / "a", str(tmp_path / "b"), read=[None, "hf:x"]
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="its folder does not exist"):
        check_outputs(tmp_path / "gone" / "a")
    with pytest.raises(DataError, match="found an empty one"):
        check_outputs("")


@pytest.mark.parametrize("second", ["a", "./a", "sub/../a", "link"])
def test_a_file_for_two_things_is_refused(tmp_path, monkeypatch, second):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("link").symlink_to("a")
    with pytest.raises(DataError, match=f"{second} is given for two outputs"):
        check_outputs("a", None, Path(second) if second == "a" else second)


@pytest.mark.parametrize("read", ["a.py", "a.py:net", "./a.py:net", "link.py:net"])
def test_a_file_that_is_read_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("net = None")
    Path("link.py").symlink_to("a.py")
    with pytest.raises(DataError, match=r"a.py is an input and would be overwritten"):
        check_outputs("a.py", read=[read])
    assert Path("a.py").read_text() == "net = None"


RECORD = ("record", "--model", "nets.py:small", "--data", "digits")


@pytest.mark.parametrize(
    "words",
    [
        (*RECORD, "-o", "nets.py"),
        (*RECORD, "-o", "x.rsm", "--json", "x.rsm"),
        (*RECORD, "-o", "x.rsm", "--checkpoint", "x.rsm"),
        ("merge", "a.rsm", "b.rsm", "-o", "a.rsm"),
        ("compare", "a.rsm", "b.rsm", "--json", "b.rsm"),
        ("compare", "a.rsm", "b.rsm", "--json", "x.png", "--png", "x.png"),
        ("adaptation", "a.rsm", "--json", "a.rsm"),
        ("report", "a.rsm", "b.rsm", "-o", "a.rsm"),
        ("info", "a.rsm", "--json", "a.rsm"),
        ("check", "a.rsm", "b.rsm", "--json", "b.rsm", "--max-kl", "1"),
        ("check", "a.rsm", "b.rsm", "--json", "v", "--junit", "v", "--max-kl", "1"),
        ("zoo", "add", "zoo", "a.rsm", "--json", "a.rsm"),
        ("recommend", "--data", "digits", "--models", "nets.py:all", "-o", "nets.py"),
    ],
    ids=lambda words: " ".join(words),
)
def test_no_command_writes_over_what_it_reads_or_writes(recorded, words):
    before = {file: file.read_bytes() for file in Path().iterdir() if file.is_file()}
    status, out, err = recorded(*words)
    assert (status, out) == (2, "")
    assert "two outputs" in err or "is an input" in err
    assert {file: file.read_bytes() for file in Path().iterdir() if file.is_file()} == before


@pytest.mark.parametrize("there", ["c", "c.1"])
def test_what_is_no_checkpoint_is_not_taken_for_one(recorded, there):
    """Also where data are few, and no checkpoint is made."""
    Path(there).write_text("precious")
    words = ("record", "--model", "nets.py:small", "--data", "digits", "--limit", "64")
    status, _, err = recorded(*words, "-o", "x.rsm", "--checkpoint", "c")
    assert status == 2
    assert f"{there} is damaged, truncated or not a Representation" in err
    assert Path(there).read_text() == "precious"


def test_a_recording_is_not_removed_with_checkpoints_of_its_name(recorded):
    words = ("record", "--model", "nets.py:small", "--data", "digits", "-o", "c.1")
    assert recorded(*words, "--checkpoint", "c", "--every", "0")[0] == 0
    assert recorded("info", "c.1")[0] == 0
