"""Files with embeddings: format 3, what they may hold, and that others stay as they were."""

from __future__ import annotations

import pytest
import torch

import resemblance as rs
from resemblance.errors import FormatError
from resemblance.representation import tensor_file
from resemblance.representation.embeddings import join_embeddings

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def rep():
    return rs.record_arrays(X, outputs=X, logits="none", data_id="x", block=40, buckets=16)


def edited(rep, path, change):
    """The recording's file with its header and tensors changed and its checksums right."""
    header, tensors = tensor_file.read_tensors(rep.save(path))
    del header["checksums"]
    change(header, tensors)
    tensor_file.write_tensors(path, header, tensors)
    return path


def test_a_file_gives_back_what_was_saved(rep, tmp_path):
    path = rep.save(tmp_path / "e.rsm")
    header, tensors = tensor_file.read_tensors(path)
    assert (header["format"], header["dimensions"], header["classes"]) == (3, 6, None)
    assert tensors["outputs.vectors"].dtype == torch.float16
    found = rs.load(path)
    assert found == rep
    assert found.outputs is found.embeddings
    assert rs.load(path, layers=[0]).embeddings == rep.embeddings


def test_files_without_embeddings_are_of_the_format_that_they_were(rep, tmp_path):
    for other in (rep.without_outputs(), rs.record_arrays(X, outputs=X, data_id="x")):
        header, _ = tensor_file.read_tensors(other.save(tmp_path / "o.rsm"))
        assert header["format"] == 2
        assert "dimensions" not in header


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h, _: h.update(dimensions=5), r"outputs.vectors must be F16 \[120, 5\]"),
        (lambda h, _: h.update(dimensions=1), "dimensions must be a whole number from 2"),
        (lambda h, _: h.update(classes=6), "classes must be null"),
        (lambda h, _: h.update(dimensions="6"), "dimensions must be a whole number"),
        (lambda h, _: h.pop("dimensions"), "labels is missing"),
        (lambda h, _: h.update(format=2), "groups of tensors that this version does not know"),
        (lambda _, t: t.update({"outputs.vectors": X.float()}), "must be F16"),
        (lambda _, t: t["outputs.vectors"].mul_(2), "vectors of length 1 or 0"),
        (lambda _, t: t["outputs.vectors"][0].fill_(torch.nan), "values that it cannot have"),
        (lambda _, t: t.pop("outputs.vectors"), "outputs.vectors is missing"),
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_refused(rep, tmp_path, change, why):
    with pytest.raises(FormatError, match=why):
        rs.load(edited(rep, tmp_path / "bad.rsm", change))


def test_zero_vectors_are_kept(tmp_path):
    x = X.clone()
    x[5] = 0
    rep = rs.record_arrays(outputs=x, logits="none", data_id="x")
    assert int((~rep.embeddings.vectors.any(1)).sum()) == 1
    assert rs.load(rep.save(tmp_path / "z.rsm")) == rep


def test_parts_are_joined_by_the_numbers_of_their_blocks():
    vectors = torch.arange(8, dtype=torch.float16)[:, None].expand(8, 2)
    parts = [rs.Embeddings(vectors[4:]), rs.Embeddings(vectors[:4])]
    found = join_embeddings(parts[:1], [(2, 3, 5000)], [(2, 2, 2)], 2)
    assert found.vectors[:, 0].tolist() == [4, 5, 6, 7]
    found = join_embeddings(parts, [(1, 3, 5000), (0, 2)], [(2, 2, 2), (1, 3)], 2)
    assert found.vectors[:, 0].tolist() == [0, 4, 5, 1, 2, 3, 6, 7]


def test_a_zoo_keeps_them_in_either_store(rep, tmp_path):
    from resemblance.zoo.lance_tables import join_recording, split_recording

    zoo = rs.Zoo(tmp_path / "folder")
    entry = zoo.add(rep)
    assert entry.classes is None
    assert zoo.get(entry.id) == rep
    assert join_recording(*split_recording(rep), classes=None) == rep


def test_facts_of_a_file_name_them(rep, tmp_path):
    from resemblance.cli.output import file_facts

    facts = file_facts(rep.save(tmp_path / "e.rsm"))
    assert facts["outputs"] == "embeddings of 6 dimensions"
