"""Results as JSON: written with their kind, read only where rules hold."""

import json

import numpy as np
import pytest

from resemblance.errors import FormatError
from resemblance.representation.schema import COUNT, TABLE
from resemblance.similarity import result_files

RULES = {"number": COUNT, "table": TABLE}


def read(path):
    return result_files.read(path, "pile", "Pile", RULES, lambda content: content["number"])


def test_what_is_written_is_read(tmp_path):
    content = {"number": 3, "table": result_files.plain(np.array([[1.5, np.nan]]))}
    path = result_files.write(tmp_path / "p.json", "pile", content)
    assert json.loads(path.read_text()) == {"pile": 1, "number": 3, "table": [[1.5, None]]}
    assert read(path) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("3", "expected an object"),
        ("{}", "pile is missing, which must be 1"),
        ('{"pile": 2}', "pile must be 1, found 2"),
        ('{"pile": true}', "pile must be 1, found True"),
        ('{"pile": 1, "number": -1}', "number must be a whole number from 0 up, found -1"),
        ("[" * 100_000, ""),
    ],
)
def test_what_breaks_a_rule_is_refused(tmp_path, text, why):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=rf"is not a pile written by Pile.save \(.*{why}"):
        read(path)
    with pytest.raises(FormatError, match="No such file"):
        read(tmp_path / "gone.json")


def test_what_cannot_be_made_is_the_fault_of_the_file(tmp_path):
    path = result_files.write(tmp_path / "p.json", "pile", {"number": 3, "table": [[1.0]]})
    make = lambda content: result_files.table(content["table"], (2, 2))  # noqa: E731
    with pytest.raises(FormatError, match="reshape"):
        result_files.read(path, "pile", "Pile", RULES, make)


def test_plain_goes_into_everything():
    given = {"a": (np.array([1, 2]), float("nan")), "b": [{"c": np.nan}], "d": "x", "e": None}
    assert result_files.plain(given) == {
        "a": [[1, 2], None], "b": [{"c": None}], "d": "x", "e": None
    }  # fmt: skip
