"""What is printed: numbers, tables that fit a pipe, JSON in a file or instead of a table."""

from __future__ import annotations

import json
import re

import pytest

from made_up import comparison
from resemblance.cli import tables


def test_no_colours_in_a_pipe(recorded):
    _, out, _ = recorded("compare", "a.rsm", "b.rsm")
    assert "\x1b" not in out


def test_compare_says_the_mean_its_error_and_what_scores_rest_on(recorded):
    _, out, _ = recorded("compare", "a.rsm", "b.rsm")
    assert re.search(r"Mean over layers matched by \w+ 0\.\d+ ± 0\.\d+", out)
    assert re.search(r"Kernels rest on [\d,]+( to [\d,]+)? of [\d,]+ samples \(n_eff\)", out)


def test_adaptation_says_what_each_layer_rests_on(capsys):
    names = ("mean_embedding", "log_ratio")
    values = {f"{name}{end}": [0.5, None] for name in names for end in ("", "_stderr")}
    tables.show_adaptation(
        {"model": "net", "layers": ["u", "v"], "n_eff": [1234.4, None], **values}
    )
    head, _, first, second = (line.split() for line in capsys.readouterr().out.splitlines()[2:6])
    assert head[-1] == "n_eff"
    assert first[-1] == "1,234"
    assert second == ["v"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.126, "0.13"),
        (-0.5, "-0.50"),
        (10, "10.00"),
        (123.4, "123"),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_a_number_has_two_decimals_or_three_digits(value, shown):
    assert tables.number(value) == shown


def test_rows_and_columns_are_numbered_and_other_columns_named_below(capsys):
    tables.show_scores(comparison([[0.25, 0.5]]))
    out = capsys.readouterr().out
    head, _, row = (line.split() for line in out.splitlines()[1:4])
    assert (head, row) == (["1", "2", "with"], ["1", "r0", "0.25", "0.50", "2"])
    expected = "layers matched by similarity; columns: 1 c0, 2 c1"
    assert " ".join(out.split()).endswith(expected)
    tables.show_scores(comparison([[0.25]], columns=("r0",)))
    assert " ".join(capsys.readouterr().out.split()).endswith(" 1 r0 0.25 layers matched by name")


def test_a_layer_without_a_counterpart_has_none_in_the_table(capsys):
    tables.show_scores(comparison([[0.9, 0.1], [0.5, 0.6], [0.2, 0.8]], columns=("r0", "r2")))
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines()[3:6]] == ["1", "–", "2"]
    assert " ".join(out.split()).endswith("layers matched by name; columns: 1 r0, 2 r2")


def test_json_goes_to_a_file_or_takes_the_place_of_the_table(tmp_path, capsys):
    assert not tables.wrote_json(None, [1])
    assert not tables.wrote_json(str(tmp_path / "a.json"), {"at": tmp_path})
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "a.json").read_text()) == {"at": str(tmp_path)}
    assert tables.wrote_json("-", [1])
    assert json.loads(capsys.readouterr().out) == [1]
