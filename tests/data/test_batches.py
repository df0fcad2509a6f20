"""Batches as trees of tensors."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch

from resemblance._data import batches
from resemblance.errors import DataError

X, Y = torch.arange(12.0).reshape(4, 3), torch.tensor([1, 0, 2, 1])
Pair = namedtuple("Pair", "x y")

KINDS = {
    "tensor": X,
    "array": X.numpy(),
    "pair": (X, Y),
    "list": [X, Y],
    "named tuple": Pair(X, Y),
    "dict": {"x": X, "labels": Y, "scale": torch.tensor(2.0), "flag": True},
    "nested": ({"a": X, "b": [Y, X]}, Y),
    "text": {"text": ["a", "b", "c", "d"], "labels": Y},
}


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_the_common_length(kind):
    assert batches.num_samples(KINDS[kind]) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_taking_parts_and_joining_them_changes_nothing(kind):
    batch = KINDS[kind]
    whole = batches.concat_batches(
        [batches.take_samples(batch, slice(0, 1)), batches.take_samples(batch, np.array([1, 2, 3]))]
    )
    assert type(whole) is type(batches.take_samples(batch, slice(0, 4)))
    for ours, theirs in zip(batches.batch_leaves(whole), batches.batch_leaves(batch), strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_values_without_samples_travel_along():
    part = batches.take_samples(KINDS["dict"], slice(0, 2))
    assert float(part["scale"]) == 2.0
    assert part["flag"] is True
    joined = batches.concat_batches([part, part])
    assert float(joined["scale"]) == 2.0
    assert joined["flag"] is True


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X, Y[:2]), r"found lengths \[2, 4\] in a tuple"),
        ([], "found nothing with samples in it in a list"),
        (3.5, "nothing with samples in it in a float"),
        ({"scale": torch.tensor(1.0)}, "nothing with samples in it in a dict"),
    ],
)
def test_batches_without_a_common_length_are_refused(batch, message):
    with pytest.raises(DataError, match=message):
        batches.num_samples(batch)


def test_inputs_and_labels():
    for kind in ("pair", "list", "named tuple"):
        assert batches.batch_inputs(KINDS[kind]) is X
        assert batches.batch_labels(KINDS[kind]) is Y
    assert batches.batch_labels(X) is None
    assert batches.batch_labels((X,)) is None
    assert set(batches.batch_inputs(KINDS["text"])) == {"text"}
    assert batches.batch_labels(KINDS["text"]) is Y
    words = ["one", "two"]
    assert batches.batch_inputs(words) is words
    assert batches.batch_labels(words) is None


def masked(length):
    ids = torch.arange(1, 2 * length + 1).reshape(2, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def test_sequences_of_different_length_are_padded_where_a_mask_can_say_so():
    joined = batches.concat_batches([masked(2), masked(3)])
    assert joined["input_ids"].tolist() == [[1, 2, 0], [3, 4, 0], [1, 2, 3], [4, 5, 6]]
    assert joined["attention_mask"][:, 2].tolist() == [0, 0, 1, 1]
    assert joined["labels"][:, 2].tolist() == [-100, -100, 3, 6]
    assert batches.is_padded(joined)
    assert not batches.is_padded(masked(2))


@pytest.mark.parametrize(
    "parts",
    [
        [torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long)],
        [torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 9, 9)],
    ],
)
def test_samples_of_different_shape_are_refused(parts):
    with pytest.raises(DataError, match=r"expected samples of one shape, found .*attention_mask"):
        batches.concat_batches(parts)


def test_to_device_makes_ordinary_tensors():
    with torch.inference_mode():
        batch = {"x": X.clone(), "y": Y.numpy(), "text": ["a"] * 4}
        moved = batches.batch_to_device(batch, torch.device("cpu"))
    assert not moved["x"].is_inference()
    assert isinstance(moved["y"], torch.Tensor)
    assert moved["text"] == ["a"] * 4
    assert not batches.batch_to_device(X.clone().requires_grad_(), None).requires_grad
