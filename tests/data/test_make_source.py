"""Where samples come from, and that the loader does not matter."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from resemblance._data.batches import batch_inputs
from resemblance._data.make_source import make_source
from resemblance._data.sources import Share, block_size
from resemblance.errors import DataError

X = torch.arange(200.0).reshape(100, 2)
Y = torch.arange(100) % 3
ALL = Share()


class Records:
    """Map-style as in the datasets library: rows are dicts of plain values."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"x": X[index].tolist(), "label": int(Y[index])}


class Numbers(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return X[index].numpy(), int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


def read(source, batch_size=32, share=ALL):
    """(number, indices, inputs) of every block, put together from its pieces."""
    out, waiting = [], []
    for batch in source.batches(batch_size, share):
        inputs = batch_inputs(batch.samples)
        inputs = inputs["x"] if isinstance(inputs, dict) else inputs
        if isinstance(inputs, list):
            inputs = torch.stack(inputs, 1)
        inputs = torch.as_tensor(inputs)
        assert len(inputs) == len(batch.indices) <= max(batch_size, 1)
        parts = inputs.split([len(piece.indices) for piece in batch.pieces])
        for piece, part in zip(batch.pieces, parts, strict=True):
            assert piece.starts == (not waiting)
            waiting.append((piece, part))
            if piece.ends:
                pieces, rows = zip(*waiting, strict=True)
                assert len({piece.block for piece in pieces}) == 1
                indices = [int(i) for piece in pieces for i in piece.indices]
                out.append((piece.block, indices, torch.cat(rows)))
                waiting = []
    assert not waiting
    return out


def open_source(holder, seed=0, block=16):
    return make_source(holder, seed=seed, block=block)


HOLDERS = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "tuple": lambda: (X, Y),
    "dict": lambda: {"x": X, "labels": Y},
    "data set": lambda: TensorDataset(X, Y),
    "numbers": Numbers,
    "records": Records,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7),
    "shuffled loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=30, shuffle=True),
    "loader that drops the last": lambda: DataLoader(Numbers(), batch_size=64, drop_last=True),
    "loader of a list": lambda: DataLoader(list(X), batch_size=8),
    "loader of a tensor": lambda: DataLoader(X, batch_size=8),
    "loader with workers": lambda: DataLoader(Numbers(), batch_size=8, num_workers=2),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_same_samples_in_the_same_order_whatever_holds_them(holder):
    source = open_source(HOLDERS[holder]())
    expected = read(open_source(X))
    found = read(source)
    assert (source.total, source.expected(Share()), source.order) == (100, 100, "seeded")
    assert [(n, i) for n, i, _ in found] == [(n, i) for n, i, _ in expected]
    for (_, indices, inputs), (_, _, theirs) in zip(found, expected, strict=True):
        assert torch.equal(torch.as_tensor(inputs).float(), theirs)
        assert torch.equal(theirs, X[indices])


def test_collate_function_is_honoured():
    loader = DataLoader(
        TensorDataset(X, Y),
        batch_size=8,
        collate_fn=lambda rows: torch.stack([-r[0] for r in rows]),
    )
    for _, indices, inputs in read(open_source(loader)):
        assert torch.equal(inputs, -X[indices])


def test_a_collate_function_that_loses_samples_is_refused():
    loader = DataLoader(
        TensorDataset(X),
        batch_size=8,
        collate_fn=lambda rows: torch.stack([r[0] for r in rows[1:]]),
    )
    with pytest.raises(
        DataError, match=r"asked the data set for \d+ samples, it gave \d+; a collate"
    ):
        read(open_source(loader))


@settings(max_examples=40, deadline=None)
@given(
    total=st.integers(1, 90),
    block=st.integers(1, 40),
    sizes=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    seed=st.integers(0, 9),
)
def test_blocks_do_not_depend_on_the_batch_size_and_cover_all_samples_once(
    total, block, sizes, seed
):
    x = torch.arange(float(total))
    one, two = (read(open_source(x, seed=seed, block=block), size) for size in sizes)
    assert [(n, i) for n, i, _ in one] == [(n, i) for n, i, _ in two]
    assert sorted(i for _, indices, _ in one for i in indices) == list(range(total))
    assert max(len(indices) for _, indices, _ in one) <= block


@settings(max_examples=30, deadline=None)
@given(total=st.integers(20, 90), shards=st.integers(1, 4), seed=st.integers(0, 9))
def test_shards_deal_out_the_blocks_of_one_pass(total, shards, seed):
    x = torch.arange(float(total))
    whole = read(open_source(x, seed=seed, block=5))
    parts = [
        block
        for i in range(shards)
        for block in read(open_source(x, seed=seed, block=5), share=Share((i, shards)))
    ]
    assert sorted((n, i) for n, i, _ in parts) == [(n, i) for n, i, _ in whole]


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    block=st.integers(1, 25),
    batch_size=st.integers(1, 60),
)
def test_streams_are_regrouped_whatever_their_batches(cuts, block, batch_size):
    if not sum(cuts):
        cuts = [*cuts, 3]
    total = sum(cuts)
    x = torch.arange(float(total))
    source = open_source(list(x.split(cuts)), block=block)
    found = read(source, batch_size)
    assert [i for _, indices, _ in found for i in indices] == list(range(total))
    assert torch.equal(torch.cat([inputs for _, _, inputs in found]), x)
    assert {len(indices) for _, indices, _ in found[:-1]} <= {block}
    assert (source.total, source.order) == (None, "stream")


@pytest.mark.parametrize(
    "holder",
    [
        lambda: Stream(),
        lambda: DataLoader(Stream(), batch_size=6),
        lambda: (part for part in X.split(6)),
        lambda: list(X.split(6)),
        lambda: DataLoader(TensorDataset(X), sampler=SubsetRandomSampler(range(10)), batch_size=6),
        lambda: DataLoader(X, batch_sampler=[[0, 1], [2]]),
        lambda: DataLoader(X, batch_size=6, sampler=RandomSampler(X, replacement=True)),
    ],
    ids=["iterable", "loader", "generator", "list", "sampler", "batch sampler", "replacement"],
)
def test_what_has_an_order_of_its_own_is_a_stream(holder):
    source = open_source(holder())
    assert source.order == "stream"
    assert len(source.first[0] if isinstance(source.first, list) else source.first) == 2
    assert read(source)


def test_a_stream_is_tried_on_a_copy():
    batches = [torch.zeros(4, 2)]
    source = open_source(batches)
    source.first.add_(1)
    assert not batches[0].any()


def test_sequences_of_different_length_without_a_mask_go_one_batch_at_a_time():
    parts = [torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 5, dtype=torch.long)]
    shapes = [tuple(x.shape) for _, _, x in read(open_source(parts, block=4), 4)]
    assert shapes == [(4, 3), (4, 5)]


@pytest.mark.parametrize(
    ("total", "expected"), [(1, 1), (7, 7), (16, 8), (128, 8), (2048, 128), (10**6, 128)]
)
def test_small_data_are_cut_finer_unless_told_otherwise(total, expected):
    assert block_size(total, "auto") == expected
    assert block_size(total, 128) == min(total, 128)


@pytest.mark.parametrize(
    ("holder", "message"),
    [
        (torch.zeros(0, 3), "the data set is empty"),
        (TensorDataset(torch.zeros(0, 3)), "the data set is empty"),
        ([], "the data are empty"),
        (iter([torch.zeros(0, 3)]), "the data are empty"),
        (3, "expected a data set, a DataLoader, arrays or an iterable of batches; found int"),
        ((X, Y[:5]), r"lengths \[5, 100\]"),
    ],
)
def test_data_that_cannot_be(holder, message):
    with pytest.raises(DataError, match=message):
        open_source(holder)


def test_zero_sized_batches_in_a_stream_hold_nothing_to_lose():
    parts = [torch.zeros(0), torch.ones(3), torch.zeros(0), torch.ones(2)]
    assert [i for _, indices, _ in read(open_source(parts)) for i in indices] == [0, 1, 2, 3, 4]


def test_more_shards_than_blocks():
    # also those that hold blocks: with the others empty they could never be merged
    for i in (0, 1, 9):
        message = f"shard {i} of 10: 20 samples are 2 blocks of 10, too few for 10 shards; use at"
        share = Share((i, 10))
        with pytest.raises(DataError, match=message):
            open_source(np.zeros((20, 2)), block=10).check(share)
        stream = open_source([torch.zeros(20, 2)], block=10)
        with pytest.raises(DataError, match=message.replace("20 samples", "the stream's samples")):
            read(stream, share=share)
    for share in (Share((0, 2)), Share((1, 2))):
        for holder in (np.zeros((20, 2)), [torch.zeros(20, 2)]):
            source = open_source(holder, block=10)
            source.check(share)
            assert len(read(source, share=share)) == 1


class Long(Dataset):
    def __len__(self):
        return 2_000_000

    def __getitem__(self, i):
        return torch.zeros(1)


def test_of_many_samples_nothing_but_their_order_is_listed():
    """16 MB that were there before; a list of them all would take 64 more."""
    found = make_source(Long(), seed=0, block="auto")
    tracemalloc.start()
    batch = next(found.batches(128, Share()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(batch.indices) == 128
    assert most < 4e6


class Exhausted(Dataset):
    """Its samples come from an iterator that holds fewer of them than its length says."""

    def __init__(self, count):
        self.rows = iter(torch.zeros(count, 2))

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return next(self.rows)


@pytest.mark.parametrize("count", [0, 1, 2, 10])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_raises_stop_iteration_is_named(count, workers):
    loader = DataLoader(Exhausted(count), num_workers=workers)
    with pytest.raises(DataError, match=r"raised StopIteration at sample \d+.*__getitem__"):
        list(make_source(loader, seed=0, block=4).batches(4, ALL))


@pytest.mark.parametrize(
    ("change", "word"), [(torch.Tensor.to_sparse, "sparse"), (lambda x: x.to("meta"), "meta")]
)
def test_data_without_values_are_refused(change, word):
    with pytest.raises(DataError, match=f"dense tensors with values.*{word}"):
        make_source((change(X), Y), seed=0, block=4)
