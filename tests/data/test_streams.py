"""Streams as data: the same samples, whatever the loader or order; the shuffle buffer."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import little_language
import networks
import resemblance as rs
import shards
from optional_libraries import needs
from resemblance._data.make_source import make_source
from resemblance._data.sample_hashes import index_of_key
from resemblance._data.sources import Share
from resemblance._data.streams import shuffle_buffered
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.recording import checkpoints

TOTAL = 600
X = torch.randn(TOTAL, 6, generator=torch.Generator().manual_seed(0)).numpy()
Y = np.arange(TOTAL) % 3
OPTIONS = {"block": 16, "blocks": 20, "buckets": 128, "progress": False}
KEYS = [f"all/{i:05}" for i in range(TOTAL)]


def rows(count=TOTAL, scale=1.0):
    return [{"__key__": KEYS[i], "x": torch.from_numpy(X[i]) * scale} for i in range(count)]


def vector(row):
    return torch.as_tensor(row["x"])


def record(data, seed_of_model=0, **options):
    return rs.record(networks.seeded(networks.MLP, seed=seed_of_model), data, **OPTIONS | options)


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    return shards.write_arrays(tmp_path_factory.mktemp("tar"), X, shards=5)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    pytest.importorskip("pyarrow")
    return shards.write_parquet(tmp_path_factory.mktemp("parquet"), X)


def batches_with_keys():
    x = torch.from_numpy(X)
    return [
        {"input": x[i : i + 50], "__key__": KEYS[i : i + 50], "__url__": ["u"] * len(x[i : i + 50])}
        for i in range(0, TOTAL, 50)
    ]


def by_argument(model, batch):
    return model(batch["input"] if isinstance(batch, dict) else batch)


def buckets(rep):
    return [layer.buckets(kind, centre=False) for layer in rep for kind in layer.kinds]


def test_tar_parquet_rows_and_batches_with_keys_are_the_same_samples(tar, parquet):
    """Sums are added in another order: float32 round-off is all that may differ."""
    first = record(rs.stream(tar))
    others = {
        "parquet": record(rs.stream(parquet, buffer=50)),
        "rows": record(rs.stream(rows(), vector, buffer=1)),
        "batches": record(batches_with_keys(), call=by_argument),
    }
    assert first.data.order == "keyed"
    for rep in others.values():
        assert (rep.samples, rep.data.fingerprint) == (TOTAL, first.data.fingerprint)
        assert rep.data.content == first.data.content
        for one, two in zip(buckets(first), buckets(rep), strict=True):
            assert torch.allclose(one, two, rtol=0, atol=1e-5 * float(one.abs().max()))
        for one, two in zip(first, rep, strict=True):
            for kind in one.kinds:
                scale = float(one.recorded(kind).sketch.table.abs().max())
                torch.testing.assert_close(
                    one.recorded(kind).sketch.table,
                    two.recorded(kind).sketch.table,
                    rtol=0,
                    atol=1e-5 * scale,
                )


def test_another_order_is_compared_by_buckets_and_said(tar):
    one, two = record(rs.stream(tar)), record(rs.stream(tar, buffer=40), seed_of_model=1)
    found = rs.compare(one, two, kernel="features")
    assert (found.estimator, found.paired) == ("buckets", True)
    assert any("by their keys" in note for note in found.notes)
    together = record(rs.stream(tar), seed_of_model=1)
    exact = rs.compare(one, together, kernel="features", estimator="buckets")
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5)
    with pytest.raises(MismatchError, match="by their keys, but in a different order"):
        rs.compare(one, two, kernel="features", estimator="blocks")


def test_one_order_is_compared_by_blocks(tar):
    one, two = (record(rs.stream(tar), seed_of_model=i) for i in (0, 1))
    found = rs.compare(one, two, kernel="features")
    assert found.estimator == "blocks"
    assert not any("keys" in note for note in found.notes)


def test_other_preprocessing_in_another_order_is_seen_by_the_keys():
    """Neither content nor labels tell: the keys do."""
    one = record(rs.stream(rows(), vector), data_id="x")
    same = record(rs.stream(rows(scale=2.0), vector), data_id="x")
    other = record(rs.stream(rows(scale=2.0), vector, buffer=7), data_id="x")
    assert rs.compare(one, same, kernel="features").estimator == "blocks"
    assert rs.compare(one, other, kernel="features").estimator == "buckets"


def test_coordinates_need_no_order(tar):
    one, two = record(rs.stream(tar)), record(rs.stream(tar, buffer=9))
    found = rs.coordinates(one, two)
    assert found.shared
    assert np.nanmin(found.cosine) > 0.99999


def test_a_permuted_data_set_under_one_name_is_refused_by_buckets_as_well():
    x = torch.from_numpy(X)
    one, two = record(x, data_id="x"), record(x.flip(0), data_id="x")
    with pytest.raises(MismatchError, match=r"buckets cannot be compared: .* in a different order"):
        rs.compare(one, two, kernel="features")
    rs.compare(one, record(x.flip(0), data_id="x", block=8), kernel="features", estimator="buckets")


def read(stream, batch_size, seed=0, share=None, block=16):
    found = make_source(stream, seed=seed, block=block).batches(batch_size, share or Share())
    return [
        (piece.block, index, tuple(row))
        for batch in found
        for piece, part in zip(
            batch.pieces, batch.samples.split([len(p.indices) for p in batch.pieces]), strict=True
        )
        for index, row in zip(piece.indices.tolist(), part.tolist(), strict=True)
    ]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 100), st.integers(1, 80), st.integers(1, 40), st.integers(0, 5))
def test_neither_batches_nor_shards_change_a_block(count, batch_size, buffer, seed):
    stream = rs.stream(rows(count), vector, buffer=buffer)
    whole = read(stream, 16, seed)
    assert read(stream, batch_size, seed) == whole
    assert Counter(index for _, index, _ in whole) == Counter(map(index_of_key, KEYS[:count]))
    known = {index_of_key(key): tuple(x.tolist()) for key, x in zip(KEYS, X, strict=True)}
    assert all(known[index] == x for _, index, x in whole)
    if count > 32:
        parts = [read(stream, batch_size, seed, Share((i, 2))) for i in range(2)]
        assert sorted(parts[0] + parts[1]) == sorted(whole)


def test_files_are_visited_in_a_seeded_order(tar):
    orders = [[i for _, i, _ in read(rs.stream(tar, buffer=1), 16, seed)] for seed in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1


class Counted:
    """Makes samples, and counts how many."""

    def __init__(self):
        self.made = 0

    def __call__(self, row):
        self.made += 1
        return torch.from_numpy(row["npy"])


def test_only_what_is_used_is_decoded(tar):
    whole, parts = Counted(), [Counted() for _ in range(3)]
    one = record(rs.stream(tar, whole))
    found = [record(rs.stream(tar, part), shard=(i, 3)) for i, part in enumerate(parts)]
    assert whole.made == TOTAL + 2  # the trial's are made again
    assert max(part.made for part in parts) <= TOTAL // 3 + 16 + 2
    merged = rs.merge(found)
    assert merged.data.fingerprint == one.data.fingerprint
    assert merged.block_hashes == one.block_hashes
    np.testing.assert_allclose(rs.compare(one, merged, kernel="features").scores.diagonal(), 1)


def test_a_pass_that_goes_on_decodes_what_is_left(tar, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MIN_PASS_TO_WRITE_TIME", 0)
    one, file = record(rs.stream(tar)), (tmp_path / "c", 0)

    class Ends(Counted):
        def __call__(self, row):
            if self.made >= 400:
                raise KeyboardInterrupt
            return super().__call__(row)

    with pytest.raises(KeyboardInterrupt):
        record(rs.stream(tar, Ends()), checkpoint=file, batch_size=16)
    rest = Counted()
    with pytest.warns(ResemblanceWarning, match="read again from the start"):
        two = record(rs.stream(tar, rest), checkpoint=file, batch_size=16)
    assert 0 < rest.made < 400  # what is left of 600, and blocks read again to compare them
    assert two.data == one.data
    assert (two.block_hashes, two.block_sizes) == (one.block_hashes, one.block_sizes)
    found = rs.compare(one, two, kernel="features")
    np.testing.assert_allclose(found.scores.diagonal(), 1, atol=1e-6)


def test_norms_are_in_the_order_of_the_stream(tar):
    rep = record(rs.stream(tar, buffer=30), layers="act1", gradients=False)
    net = networks.seeded(networks.MLP)
    x = torch.tensor([row for *_, row in read(rs.stream(tar, buffer=30), 16)])
    with torch.no_grad():
        features = net.act1(net.fc1(x))
    torch.testing.assert_close(rep[0].features.norms, features.square().sum(1))


def test_tokens_of_sequences_with_keys():
    """Indices near 2⁶³ overflow nothing: the same rows in another order are in the same buckets."""
    ids = torch.randint(5, 60, (80, 12), generator=torch.Generator().manual_seed(0))
    table = [{"__key__": f"text/{i}", "input_ids": row} for i, row in enumerate(ids)]

    def tokens(row):
        return {"input_ids": row["input_ids"], "attention_mask": torch.ones(12, dtype=torch.long)}

    made = [
        rs.record(
            little_language.gpt2(),
            rs.stream(table, tokens, buffer=buffer),
            unit="token",
            tokens=4,
            block=8,
            buckets=128,
            progress=False,
        )
        for buffer in (80, 5)
    ]
    one, two = made
    assert one.samples == two.samples == 320
    assert int(one.rows.sequence.max()) > 2**59
    assert one.data.fingerprint == two.data.fingerprint
    for x, y in zip(buckets(one), buckets(two), strict=True):
        assert torch.allclose(x, y, rtol=0, atol=1e-5 * float(x.abs().max()))


def test_a_file_keeps_that_samples_have_keys(tar, tmp_path):
    rep = record(rs.stream(tar))
    rep.save(tmp_path / "a.rsm")
    assert rs.load(tmp_path / "a.rsm").data == rep.data


def test_a_sorted_stream_is_said_to_be_sorted_unless_the_buffer_is_large():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4000, 6, generator=generator)
    x += torch.randn(10, 6, generator=generator).repeat_interleave(400, 0)
    table = [{"__key__": str(i), "x": row} for i, row in enumerate(x)]
    how = {"layers": "act1", "gradients": False, "block": 50, "blocks": 20}
    with pytest.warns(ResemblanceWarning, match="the stream looks sorted"):
        record(rs.stream(table, vector, buffer=200), **how)
    with pytest.warns(ResemblanceWarning, match="changes as it goes on: .* which came first"):
        record(rs.stream(table, vector, buffer=2500), **how)
    record(rs.stream(table, vector), **how)  # warnings are errors


@needs("datasets")
def test_a_streaming_data_set_is_taken_as_it_is():
    import datasets

    table = datasets.Dataset.from_dict({"input": X.tolist(), "label": Y.tolist()})
    table = table.with_format("torch")
    streaming = record(table.to_iterable_dataset(), call=by_argument)
    indexed = record(table, call=by_argument)
    assert streaming.data.order == "keyed"
    assert streaming.data.fingerprint == indexed.data.fingerprint  # its rows are known by number
    assert streaming.data.labels == indexed.data.labels
    for one, two in zip(buckets(streaming), buckets(indexed), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-5 * float(one.abs().max()))
    assert rs.compare(streaming, indexed, kernel="features").estimator == "buckets"


@needs("datasets")
def test_a_row_of_a_streaming_data_set_may_have_its_key():
    import datasets

    table = datasets.Dataset.from_dict({"__key__": KEYS, "x": X.tolist()}).with_format("torch")
    found = record(rs.stream(table.to_iterable_dataset(), lambda row: row["x"]))
    assert found.data.fingerprint == record(rs.stream(rows(), vector)).data.fingerprint


def test_labels_come_along(tmp_path):
    folder = shards.write_arrays(tmp_path / "tar", X[:60], labels=Y)
    rep = record(rs.stream(folder), target="labels", block=8)
    plain = record((torch.from_numpy(X[:60]), torch.from_numpy(Y[:60])), target="labels", block=8)
    assert rep.data.labels == plain.data.labels


def test_a_bad_sample_is_named():
    table = rows(60)
    table[33]["x"] = torch.full((6,), torch.nan)
    with pytest.raises(DataError, match=r"at sample all/00033; repair"):
        record(rs.stream(table, vector))
    found = record(rs.stream(table, vector), on_bad="skip")
    assert (found.samples, found.data.skipped) == (59, 1)


def test_what_is_refused(tar, tmp_path):
    with pytest.raises(DataError, match="the data are empty"):
        record(rs.stream([]))
    with pytest.raises(DataError, match="`buffer` must be"):
        rs.stream(tar, buffer=0)
    with pytest.raises(DataError, match="sample must be a function"):
        rs.stream(tar, "jpg")
    for wrong in (3, torch.ones(3), {"x": X}):
        with pytest.raises(DataError, match="expected shards by name, a streaming data set or"):
            rs.stream(wrong)
    with pytest.raises(DataError, match=r"found '.*tar.*'; for shards, pass resemblance\.stream\("):
        record(str(tar))
    with pytest.raises(DataError, match=r"cannot build a sample from all/\d+ in .*KeyError: 'jpg'"):
        record(rs.stream(tar, lambda row: row["jpg"]))
    twice = [*rows(40), *rows(40)]
    with pytest.raises(DataError, match="duplicate sample key all/00000"):
        record(rs.stream(twice, vector))
    with pytest.raises(DataError, match="duplicate sample key all/00000"):
        record([*batches_with_keys(), *batches_with_keys()], call=by_argument)
    with pytest.raises(DataError, match="3 blocks of 16, too few for 9 shards"):
        record(rs.stream(rows(40), vector), shard=(0, 9))


def test_a_stream_can_be_recorded_again(tar):
    data = rs.stream(tar)
    assert record(data).data == record(data).data


def test_predictions_of_samples_with_keys_have_no_order(tar):
    net = networks.seeded(networks.MLP)
    machine = rs.KernelClassifier(net, kernel="features", layer="act1")
    machine.fit(torch.from_numpy(X[:90]), Y[:90])
    with pytest.raises(DataError, match="identified by keys have no order"):
        machine.predict(rs.stream(tar))


def test_a_stream_works_for_a_network_that_takes_images(tmp_path):
    pictures = [(f"{i}.png", shards.image((i * 9, 5, 2))) for i in range(24)]
    path = shards.write_tar(tmp_path / "s.tar", pictures)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    net(torch.zeros(1, 3, 224, 224))
    assert rs.record(net, rs.stream(path), block=4, progress=False).samples == 24


@given(st.lists(st.integers()), st.integers(0, 2**64 - 1), st.integers(1, 60))
def test_every_item_comes_once_in_an_order_of_the_seed(items, seed, size):
    found = list(shuffle_buffered(items, seed, size))
    assert sorted(found) == sorted(items)
    assert found == list(shuffle_buffered(iter(items), seed, size))


@given(st.integers(0, 300), st.integers(1, 60))
def test_no_more_wait_than_the_buffer_holds(count, size):
    taken = 0

    def items():
        nonlocal taken
        for i in range(count):
            taken += 1
            yield i

    for given_on, _ in enumerate(shuffle_buffered(items(), 0, size)):
        assert taken - given_on <= size


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 200))
def test_what_comes_first_does_not_depend_on_how_much_is_taken(count, size, some):
    whole = list(shuffle_buffered(range(count), 7, size))
    assert list(itertools.islice(shuffle_buffered(range(count), 7, size), some)) == whole[:some]


def test_a_buffer_of_one_leaves_the_order_and_seeds_differ():
    assert list(shuffle_buffered(range(50), 3, 1)) == list(range(50))
    assert list(shuffle_buffered(range(50), 3, 9)) != list(shuffle_buffered(range(50), 4, 9))


def test_a_buffer_of_all_is_as_random_as_can_be():
    places = np.array([list(shuffle_buffered(range(20), seed, 20)) for seed in range(2000)])
    share = np.array([(places == i).mean(0) for i in range(20)])
    # of 2,000 draws with chance 1/20, whose standard deviation is 0.005, 400 of them
    assert np.abs(share - 1 / 20).max() < 5 * 0.005


def test_bytes_that_wait_are_few():
    weights = [10, 10, 10, 1000, 10, 10]
    found = list(shuffle_buffered(weights, 0, 100, weight=lambda w: w, room=25))
    assert sorted(found) == sorted(weights)
    waiting = []
    for item in shuffle_buffered(
        (waiting.append(w) or w for w in weights), 0, 100, weight=lambda w: w, room=25
    ):
        waiting.remove(item)
        assert sum(waiting) <= 1010  # the newcomer, and what fitted


@pytest.mark.parametrize("size", [1, 5, 100])
def test_nothing_comes_of_nothing(size):
    assert list(shuffle_buffered([], 0, size)) == []
