"""Equality of results by what they hold, arrays and NaN among it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from resemblance._utils.equality import by_content, equal_content


@by_content
@dataclass(frozen=True, eq=False)
class Result:
    x: Any
    name: str = "a"


@by_content
@dataclass(frozen=True, eq=False)
class Other:
    x: Any
    name: str = "a"


@dataclass(frozen=True)
class WithDtype:
    """A record that is no array, though it has a dtype."""

    dtype: str = "float32"


VALUES = {
    "array": np.array([[1.0, 2.0]]),
    "tensor": torch.tensor([1, 2]),
    "half": torch.tensor([1.0, float("nan")], dtype=torch.float16),
    "nan array": np.array([1.0, np.nan]),
    "nan": float("nan"),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 3)),
    "words": np.array(["a", "b"]),
    "mapping": {"a": np.ones(2), "b": (1, torch.zeros(2))},
    "nested": Result(np.ones(2)),
    "record": WithDtype(),
    "none": None,
}


@pytest.mark.parametrize("value", VALUES)
def test_a_result_equals_its_copies(value):
    result = Result(VALUES[value])
    assert result == result
    assert result == copy.deepcopy(result)
    assert result == pickle.loads(pickle.dumps(result))
    assert result != Result(VALUES[value], name="b")
    assert result != Other(VALUES[value])
    assert (result == 3) is False


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("two", VALUES)
def test_different_contents_differ(one, two):
    assert (Result(VALUES[one]) == Result(VALUES[two])) is (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (np.ones(2), np.ones(2, np.float32)),
        (np.ones(2), np.ones((1, 2))),
        (np.ones(2), np.ones(3)),
        (np.ones(1), torch.ones(1).double()),
        (np.array([np.nan, 1.0]), np.array([2.0, 1.0])),
        (np.array([2.0, 1.0]), np.array([np.nan, 1.0])),
        (torch.tensor([float("nan")]), torch.tensor([0.0])),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),  # layers have an order
        ({"a": 1}, {"a": 1, "b": 2}),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        (1, 1.0),
        (float("nan"), 0.0),
    ],
    ids=repr,
)
def test_what_is_told_apart(one, two):
    assert not equal_content(one, two)
    assert not equal_content(two, one)
    assert Result(one) != Result(two)


def test_results_cannot_be_hashed():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Result(1))
