"""Recordings as a caller hands them over: themselves, or their files."""

from __future__ import annotations

from pathlib import Path

import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError
from resemblance.representation.as_given import recording, recordings


@pytest.fixture
def file(rep, tmp_path):
    return rep.save(tmp_path / "a.rsm")


def test_a_representation_is_itself_and_a_path_is_read(rep, file):
    assert recording(rep) is rep
    for path in (file, str(file)):
        assert recording(path) == rep
    assert recordings(each for each in (rep, file)) == [rep, rep]


def test_every_reader_takes_a_path(rep, file, tmp_path):
    kept = rs.record_arrays(  # with sums, for the classifier
        {"act1": [[0.0, 1.0], [1.0, 0.0]] * 10}, data_id="x", keep_sums=True, buckets=8
    )
    sums = str(kept.save(tmp_path / "sums.rsm"))
    assert rs.compare(str(file), file) == rs.compare(rep, rep)
    assert rs.compare_all([str(file), rep]) == rs.compare_all([rep, rep])
    assert rs.adaptation(file) == rs.adaptation(rep)
    assert rs.fisher_rao(file) == rs.fisher_rao(rep)
    assert rs.merge([file]) == rs.merge([rep])
    assert rs.report([file], tmp_path / "page.html").is_file()
    import torch

    net = torch.nn.Identity()
    fitted = rs.KernelClassifier(net, alpha=1.0).fit_representation(sums, [0, 1] * 10)
    assert fitted.n_samples_ == 20


@pytest.mark.parametrize("given", [None, 3, [], {"a": 1}])
def test_anything_else_is_refused_with_what_it_was(given):
    kind = type(given).__name__
    with pytest.raises(DataError, match=f"expected a Representation or the path.*found {kind}"):
        recording(given)


@pytest.mark.parametrize("given", [None, 3, {"a": 1}])
def test_several_are_in_a_list(given):
    with pytest.raises(DataError, match=f"a list of .*, found {type(given).__name__}; write"):
        recordings(given)


def test_one_where_several_are_expected(rep):
    with pytest.raises(DataError, match=r"found one Representation; write \[a, b\]"):
        recordings(rep)
    for path in ("a.rsm", Path("a.rsm")):
        with pytest.raises(DataError, match=r"found the path 'a\.rsm'; write \[a, b\]"):
            recordings(path)


def test_a_file_that_is_not_there(rep):
    with pytest.raises(FormatError, match=r"no file at gone\.rsm"):
        recordings([rep, "gone.rsm"])
