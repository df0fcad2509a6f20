"""The tensor inside whatever a module returns."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch

from resemblance._models.layer_outputs import (
    floating_tensors,
    replace_tensor,
    sample_axes,
    tensor_at,
)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor | None
    hidden: torch.Tensor
    again: tuple = ()
    computed: int = dataclasses.field(default=3, init=False)


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """As in the transformers library: a dataclass that is also a dict of its fields."""

    logits: torch.Tensor | None = None
    states: tuple | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))


Pair = namedtuple("Pair", "ids hidden")
X = torch.tensor([1.0, 2.0])
IDS = torch.tensor([1, 2])

HOLDERS = {
    "tensor": X,
    "tuple": (IDS, X),
    "list": [X, IDS],
    "named tuple": Pair(IDS, X),
    "dict": {"ids": IDS, "x": X},
    "default dict": defaultdict(list, {"ids": IDS, "x": X}),
    "ordered dict": OrderedDict(ids=IDS, x=X),
    "dataclass": Output(None, X, (X,)),
    "model output": ModelOutput(logits=X, states=(X, X)),
    "nested": ({"a": [IDS]}, [Output(None, X)]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_first_floating_point_tensor_is_found(name):
    assert tensor_at(HOLDERS[name]) is X


@pytest.mark.parametrize("name", HOLDERS)
def test_swapping_keeps_the_type_and_leaves_the_original_alone(name):
    new = torch.tensor([7.0])
    swapped = replace_tensor(HOLDERS[name], tensor_at(HOLDERS[name]), new)
    assert type(swapped) is type(HOLDERS[name])
    assert tensor_at(swapped) is new
    assert tensor_at(HOLDERS[name]) is X


def test_swapping_replaces_the_tensor_wherever_it_stands():
    new = torch.tensor([7.0])
    swapped = replace_tensor(ModelOutput(logits=X, states=(IDS, X)), X, new)
    assert swapped.logits is new
    assert swapped["logits"] is new
    assert swapped.states[1] is new
    assert swapped.states[0] is IDS


def test_no_floating_point_tensor_is_none():
    assert tensor_at((IDS, "text", None, Output)) is None


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4, 7), [0]), ((7, 4, 2), [1]), ((4, 4), [0, 1]), ((7, 2, 4), []), ((4,), [0]), ((), [])],
)
def test_axes_that_may_hold_four_samples(shape, axes):
    assert sample_axes(torch.zeros(shape), 4) == axes


def test_all_tensors_come_in_order_and_integers_do_not():
    one, two, three = (torch.zeros(i) for i in (1, 2, 3))
    found = list(floating_tensors((one, torch.arange(4), {"a": [two, None], "b": "text"}, three)))
    assert [x is y for x, y in zip(found, (one, two, three), strict=True)] == [True] * 3
    assert list(floating_tensors("nothing")) == []


def test_a_tensor_at_a_position_and_the_first_where_there_is_none():
    first, second = torch.tensor([0.5]), torch.tensor([1.5])
    holder = (IDS, first, {"more": second})
    assert tensor_at(holder, 0) is first
    assert tensor_at(holder, 1) is second
    assert tensor_at(holder, 2) is first
    assert tensor_at(IDS, 0) is None
