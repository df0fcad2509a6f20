"""Labels of samples: found, checked, and turned into targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._data import batches
from resemblance.errors import DataError

INDICES = np.array([3, 0, 2])


def test_labels_given_apart_go_by_index_and_before_the_batches_own():
    given = np.array(["a", "b", "c", "d"])
    assert batches.labels_for_batch(INDICES, torch.zeros(3), given).tolist() == ["d", "a", "c"]


@pytest.mark.parametrize("own", [[5, 6, 7], np.array([5, 6, 7]), torch.tensor([5, 6, 7])])
def test_a_batchs_own_labels_come_in_its_order(own):
    assert batches.labels_for_batch(INDICES, own, None).tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        (None, np.array([1, 2]), r"labels of shape \(2,\) and a sample 3"),
        (None, None, "found no labels; pass y, or data whose batches are"),
        (torch.eye(3), None, r"labels of shape \(3, 3\); .*not one-hot"),
        ([1, 2], None, "found 2 labels for 3 samples"),
    ],
)
def test_labels_that_do_not_fit_are_refused(own, given, message):
    with pytest.raises(DataError, match=message):
        batches.labels_for_batch(INDICES, own, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.eye(4), r"labels of shape \(4, 4\); pass integers or names, not one-hot rows"),
        (3, r"labels of shape \(\)"),
        ([[1], [2, 3]], "found rows of different lengths"),
        ([0.0, float("nan")], "found NaN as a label; remove"),
        (["cat", 1], "all numbers or all names, found int, str"),
        (np.array(["cat", None], object), "found NoneType, str"),
        ([1, None], "found NoneType, int; remove samples without a label"),
        ([1j, 2j], "found complex"),
    ],
)
def test_what_cannot_be_labels_is_refused(given, message):
    with pytest.raises(DataError, match=message):
        batches.as_labels(given)


@pytest.mark.parametrize("given", [torch.tensor([1, 2]), np.array([1, 2], object), (1, 2)])
def test_labels_are_numbers_of_any_kind(given):
    assert batches.as_labels(given).tolist() == [1, 2]


def test_labels_are_names_of_any_kind():
    for given in (["b", "a"], np.array(["b", "a"]), np.array(["b", "a"], object)):
        assert batches.as_labels(given).tolist() == ["b", "a"]


def test_classes_are_sorted_whatever_the_order_of_labels():
    found = batches.check_classes(np.array(["b", "a", "c", "a"]))
    assert found.tolist() == ["a", "b", "c"]
    assert batches.check_classes(np.array([2, 0, 2]), classes=[2, 0]).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("found", "given", "message"),
    [
        ([1, 1], None, "two or more classes, found 1 alone"),
        ([0, 1], [0, 1, 2], "no sample of class 2, which `classes` lists"),
        ([0, 1, 2], [0, 1], "samples of class 2, which is missing from `classes`"),
    ],
)
def test_classes_that_cannot_be_learnt_are_refused(found, given, message):
    with pytest.raises(DataError, match=message):
        batches.check_classes(np.array(found), given)


def test_one_hot_rows_are_read_back_by_their_largest_entry():
    known, y = np.array([1, 4, 9]), np.array([9, 1, 1, 4])
    rows = batches.one_hot(y, known)
    assert rows.dtype == torch.float64
    assert torch.equal(rows.sum(1), torch.ones(4, dtype=torch.float64))
    assert (known[rows.argmax(1).numpy()] == y).all()


def test_an_unseen_label_is_named_with_some_of_the_known():
    batches.check_known_labels(np.array([1, 2]), np.arange(9))
    with pytest.raises(DataError, match=r"label 9 was not among .*\(0, 1, 2, 3, 4 and 4 more\)"):
        batches.check_known_labels(np.array([1, 9]), np.arange(9))
