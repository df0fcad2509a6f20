"""Files that were damaged or made up, as `benchmarks/fuzz_files.py` does by the million."""

from __future__ import annotations

import warnings

import pytest

import resemblance as rs
from resemblance.representation import schema

fuzz = pytest.importorskip(
    "benchmarks.fuzz_files", reason="the benchmarks are not in a source package"
)


@pytest.fixture(scope="module")
def files():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fuzz.valid_files()


@pytest.mark.parametrize(("kind", "cases"), [("bytes", 400), ("header", 300), ("tensors", 150)])
def test_an_edited_file_is_refused_or_right(files, kind, cases):
    counts, wrong = fuzz.run(range(cases), files, kinds={kind: 1})
    assert [(one["case"], one["error"]) for one in wrong] == []
    found = {outcome for *_, outcome in counts}
    assert found == {"refused", "equal", "other"}, "the edits leave something out"


def test_a_file_is_what_it_was_after_being_taken_apart(files):
    for name, content in files.items():
        if name != "comparison":
            file = fuzz.taken_apart(content)
            assert fuzz.taken_apart(fuzz.put_together(file)) == file


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_a_file_that_knows_few_norms_can_be_used(files, tmp_path, known):
    file = fuzz.taken_apart(files["blocks"])
    for name, x in file.tensors.items():
        if name.endswith(".norms"):
            unknown = b"\xff" * (len(x.content) - 4 * known)  # NaN
            file.tensors[name] = x._replace(content=x.content[: 4 * known] + unknown)
    path = tmp_path / "few.rsm"
    path.write_bytes(fuzz.put_together(file))
    rep = rs.load(path)
    assert int(rep[0].features.norms.isfinite().sum()) == known
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fuzz.used(rep, path)


@pytest.mark.parametrize(
    ("kind", "check"), [("tensors", "check_tensors"), ("header", "check_part")]
)
def test_a_reader_that_left_a_check_out_would_be_noticed(files, monkeypatch, kind, check):
    monkeypatch.setattr(schema, check, lambda *_, **__: None)
    _, wrong = fuzz.run(range(60), files, kinds={kind: 1})
    assert wrong
