"""Which samples and tokens were recorded: by content, by name, by block."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance._data import sample_hashes
from resemblance._data.sample_hashes import SampleFingerprints
from resemblance._data.sources import Batch, Piece, SampledTokens
from resemblance.errors import MismatchError

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 5
ORDER = torch.randperm(48, generator=torch.Generator().manual_seed(1))


def record(data, **options):
    return rs.record(networks.seeded(networks.MLP), data, **{"block": 8, **options})


def test_content_is_told_whatever_the_name_and_the_order():
    plain, named, turned = record(X), record(X, data_id="x"), record(X[ORDER])
    assert plain.data.content == named.data.content == turned.data.content
    assert plain.data.fingerprint != named.data.fingerprint
    assert plain.data.fingerprint != turned.data.fingerprint
    assert record(X + 1).data.content != plain.data.content
    assert plain.block_hashes == named.block_hashes
    assert len(set(plain.block_hashes)) == len(plain.block_sizes) == 6
    assert set(plain.block_hashes).isdisjoint(turned.block_hashes)


def test_labels_are_hashed_by_value():
    plain, labelled = record(X), record((X, Y))
    assert plain.data.labels is None
    assert plain.label_hashes is None
    assert labelled.block_hashes == plain.block_hashes
    assert labelled.label_hashes is not None
    assert record((X, Y.int())).data.labels == labelled.data.labels
    assert record((X, Y + 1)).data.labels != labelled.data.labels
    words = record((X, [f"class {i}" for i in Y.tolist()]))
    assert len(words.label_hashes) == 6


@pytest.mark.parametrize("batch_size", [3, 8, 16, 48])
def test_neither_batches_nor_shards_change_a_hash(batch_size):
    whole = record((X, Y))
    other = record((X, Y), batch_size=batch_size)
    merged = rs.merge([record((X, Y), shard=(i, 3), batch_size=batch_size) for i in range(3)])
    for one in (other, merged):
        assert one.data.content == whole.data.content
        assert one.data.labels == whole.data.labels
        assert one.block_hashes == whole.block_hashes
        assert one.label_hashes == whole.label_hashes


def test_a_permuted_data_set_under_one_name_is_seen():
    one, two = record(X, data_id="x"), record(X[ORDER], data_id="x")
    with pytest.raises(
        MismatchError, match="the same samples under the same name, but in a different order"
    ):
        rs.compare(one, two, kernel="product", estimator="blocks")


def test_a_permuted_data_set_with_other_preprocessing_is_seen_by_its_labels():
    one = record((X, Y), data_id="x")
    scaled = record((2 * X, Y), data_id="x")
    rs.compare(one, scaled, kernel="features", estimator="blocks")
    with pytest.raises(
        MismatchError, match="the same samples under the same name, but in a different order"
    ):
        rs.compare(
            one, record((2 * X[ORDER], Y[ORDER]), data_id="x"), kernel="product", estimator="blocks"
        )


def test_other_labels_of_the_same_samples_are_no_other_order():
    one, coarser = record((X, Y), data_id="x"), record((2 * X, Y // 2), data_id="x")
    rs.compare(one, coarser, kernel="features", estimator="blocks")


def test_skipped_samples_are_in_no_hash():
    spoilt = X.clone()
    spoilt[5] = torch.nan
    rep = record(spoilt, on_bad="skip")
    seen = SampleFingerprints(None)
    rest = np.flatnonzero(np.arange(48) != 5)
    seen.begin(X[rest])
    seen.end(Batch([Piece(0, rest)], None), np.ones(47, bool))
    seen.settle()
    assert rep.data.content == seen.fingerprints()["content"]
    assert rep.data.fingerprint == seen.fingerprints()["fingerprint"]
    assert sum(a != b for a, b in zip(rep.block_hashes, record(X).block_hashes, strict=True)) == 1


def test_names_stand_for_samples():
    def known_by(name, samples):
        seen = SampleFingerprints(name)
        seen.begin(samples)
        seen.end(Batch([Piece(0, np.arange(3))], None), np.ones(3, bool))
        seen.settle()
        return seen.fingerprints()["fingerprint"]

    assert known_by("a", X[:3]) == known_by("a", X[3:6])
    assert known_by("a", X[:3]) != known_by("b", X[:3])
    assert known_by(None, X[:3]) != known_by(None, X[3:6])


def seen_in(sizes, unread, keyed=False, drawn=False, labels=True):
    """All of X in batches of such sizes, blocks of eight; what came to the host is read late."""
    seen = SampleFingerprints(None, stored=6, keyed=keyed)
    keep = np.arange(48) % 7 != 3
    keep[8:16] = False  # a whole block
    for rows in np.split(np.arange(48), np.cumsum(sizes)[:-1]):
        tokens = SampledTokens(np.stack([rows % 5, rows % 3], 1), 6) if drawn else None
        seen.begin((X[rows], Y[rows]) if labels else X[rows])
        pieces = [Piece(block, rows[rows // 8 == block]) for block in np.unique(rows // 8)]
        seen.end(Batch(pieces, None, tokens), keep[rows])
        assert seen._size < sample_hashes._HASHED_BYTES_AT_ONCE
        seen.settle(unread)
    seen.settle()
    return seen.fingerprints(), seen.block_hashes, seen.label_hashes


@pytest.mark.parametrize("how", [{}, {"keyed": True}, {"drawn": True}, {"labels": False}], ids=str)
@pytest.mark.parametrize("at_once", [1, 400, 2**22])
def test_neither_does_hashing_many_batches_at_once(how, at_once, monkeypatch):
    monkeypatch.setattr(sample_hashes, "_HASHED_BYTES_AT_ONCE", at_once)
    base = seen_in([48], 0, **how)
    assert len(base[1]) == 5 * (1 + ("drawn" in how))  # all but the block without a sample
    for sizes in ([8] * 6, [3, 5, 16, 20, 4], [24, 24], [1] * 48):
        for unread in (0, 1, 4):
            assert seen_in(sizes, unread, **how) == base


def test_batches_of_another_form_are_hashed_apart():
    seen = SampleFingerprints(None, stored=4)
    for i, x in enumerate((X[:8], X[8:16], X[16:24].double(), X[24:32])):
        seen.begin(x)
        seen.end(Batch([Piece(i, np.arange(8))], None), np.ones(8, bool))
    seen.settle()
    assert len(set(seen.block_hashes)) == 4
    assert record(X[:32], batch_size=8).data.content != seen.fingerprints()["content"]
