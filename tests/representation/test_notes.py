"""Notes of results: codes, values and sentences, in memory, in warnings and in files."""

import copy
import json
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import resemblance as rs
from resemblance.errors import FormatError, ResemblanceWarning, warn
from resemblance.representation.notes import SENTENCES, Note, make_note

SOURCE = Path(rs.__file__).parent
# what version 0.2.0.dev0 saved when notes were sentences alone
OLD_FILE = """
{"comparison": 1, "models": ["a", "b"], "rows": ["x", "c"], "columns": ["x", "c"],
 "scores": [[0.06064154380690566, 1.0], [null, null]], "stderr": [[null, null], [null, null]],
 "chance": [[0.33333332627126994, 0.33333333245468294], [null, null]],
 "chance_high": [[0.6514414091408272, 0.923616856113787], [null, null]],
 "kernel": "features", "index": "cka", "centre": true, "estimator": "blocks", "paired": true,
 "samples": [4, 4],
 "notes": ["layer 'c' of 'a' is constant on these data, or nearly so: its scores are undefined",
  "only 4 samples: below 50, standard errors, chance levels and bounds are unreliable, so record more samples"],
 "df": [[3.0, 3.0], [3.0, 3.0]], "replicates": [[null, null], [null, null]],
 "n_eff": [[2.267413707011585, null], [4.0, 2.267413707011585]], "effective_blocks": null,
 "matched_by": "name", "matched": [0, 1], "tokens": null, "behaviour": null}
"""  # noqa: E501


@pytest.fixture
def few():
    """Four samples, of which one layer is constant in one network."""
    f = np.random.default_rng(0).normal(size=(4, 1))
    layers = {"x": f, "c": np.ones((4, 1))}, {"x": f[::-1] + f, "c": f}
    return [
        rs.record_arrays(x, data_id="p", name=name, buckets=0)
        for x, name in zip(layers, "ab", strict=True)
    ]


def test_notes_have_codes_and_values_and_are_warned_of(few):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = rs.compare(*few, kernel="features")
    codes = [note.code for note in found.notes]
    assert codes == ["constant-layer", "few-samples"]
    assert [dict(note.values) for note in found.notes] == [
        {"layer": "c", "model": "a"},
        {"samples": 4, "unit": "sample"},
    ]
    assert [warning.message.code for warning in caught] == codes
    assert [str(warning.message) for warning in caught] == list(found.notes)
    assert caught[0].filename == __file__  # the caller's own line


def test_a_warning_that_is_no_note_has_a_code_as_well():
    with pytest.warns(ResemblanceWarning) as caught:
        warn("something")
    assert caught[0].message.code == "text"


@pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")
def test_files_keep_codes_values_and_sentences(few, tmp_path):
    for made in (rs.compare(*few, kernel="features"), rs.trajectory(few)):
        path = made.save(tmp_path / "result.json")
        loaded = type(made).load(path)
        assert loaded == made
        assert made.notes[0].code == "constant-layer"
        for attribute in ("code", "values"):
            one, two = ([getattr(note, attribute) for note in x.notes] for x in (made, loaded))
            assert one == two
        stored = json.loads(path.read_text())["notes"][0]
        assert stored == {
            "code": "constant-layer",
            "values": {"layer": "c", "model": "a"},
            "text": str(made.notes[0]),
        }


@pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")
def test_files_whose_notes_are_sentences_are_read(few, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(OLD_FILE)
    old, new = rs.Comparison.load(path), rs.compare(*few, kernel="features")
    assert {note.code for note in old.notes} == {"text"}
    assert old.notes == new.notes  # word for word
    assert old.summary() == new.summary()
    assert np.array_equal(old.scores, new.scores, equal_nan=True)


def test_notes_of_later_versions_are_read_as_they_stand(tmp_path):
    path = tmp_path / "later.json"
    content = json.loads(OLD_FILE)
    later = {"code": "of-a-later-version", "values": {"x": 1}, "text": "a sentence"}
    path.write_text(json.dumps({**content, "notes": [later]}))
    (note,) = rs.Comparison.load(path).notes
    assert (note, note.code, note.values) == ("a sentence", "of-a-later-version", {"x": 1})
    for wrong in (1, {}, {**later, "code": 1}, {**later, "values": "x"}):
        path.write_text(json.dumps({**content, "notes": [wrong]}))
        with pytest.raises(FormatError, match="notes"):
            rs.Comparison.load(path)


@pytest.mark.parametrize("of", [copy.deepcopy, lambda note: pickle.loads(pickle.dumps(note))])
def test_copies_of_notes_are_whole(of):
    note = make_note("mean-of-blocks", index="mine").of_kernel("features")
    assert note == "features: mine is the mean over blocks of samples"
    again = of(note)
    assert (again, again.code, again.values) == (note, note.code, note.values)
    assert note.values == {"index": "mine", "kernel": "features"}


def test_every_code_is_used():
    code = "".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    used = set(re.findall(r'make_note\(\s*"([a-z-]+)"', code))
    assert used == set(SENTENCES)


def test_names_in_lists_are_joined_and_long_lists_are_cut():
    assert make_note("extra-layers", model="m", layers=["a", "b"]).endswith("judged: a, b")
    many = make_note("unreliable-layers", kernel="gradients", layers=list("abcd"), compared=9)
    assert "at 4 of 9 layers ('a', 'b', 'c' and 1 more)" in many
    assert "smaller `beta`" in many
    assert isinstance(many, Note)
