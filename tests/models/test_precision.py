"""A pass in another precision: it pairs with the base, and the model comes back bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance._models.eval_mode import as_dtype, cast_weights
from resemblance.errors import DataError

IMAGES = torch.rand(80, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def test_a_bfloat16_copy_pairs_with_its_base_without_a_name_for_the_samples():
    net = conv()
    base = rs.record(net, IMAGES)
    copied = rs.record(copy.deepcopy(net).bfloat16(), IMAGES, dtype="bfloat16")
    assert copied.data == base.data
    assert (base.made.dtype, copied.made.dtype) == ("float32", "bfloat16")
    assert rs.check(base, copied, min="features=0.9")
    assert float(rs.compare(base, copied, kernel="features").mean()[0]) > 0.99


def test_casting_for_the_pass_records_what_a_cast_model_records():
    net = conv()
    cast = rs.record(net, IMAGES, dtype=torch.bfloat16)
    own = rs.record(copy.deepcopy(net).bfloat16(), IMAGES, dtype="bfloat16")
    assert cast.model == own.model  # weights are hashed as they were cast
    assert float(rs.compare(cast, own, kernel="gradients").mean()[0]) == pytest.approx(1)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_comes_back_bit_for_bit(fails):
    net = conv().train()
    net[4].weight.grad = torch.ones(5, 144)
    tensors = [*net.parameters(), *net.buffers()]
    before = [(x.dtype, x.data_ptr(), x.clone(), x.requires_grad) for x in tensors]
    if fails:
        with pytest.raises(DataError):
            rs.record(net, IMAGES[:, :1], dtype="float16")
    else:
        rs.record(net, IMAGES, dtype="bfloat16")
    assert all(x is y for x, y in zip([*net.parameters(), *net.buffers()], tensors, strict=True))
    for x, (dtype, place, values, learns) in zip(tensors, before, strict=True):
        assert (x.dtype, x.data_ptr(), x.requires_grad) == (dtype, place, learns)
        assert torch.equal(x, values)
    assert net[4].weight.grad.dtype == torch.float32


def test_tied_weights_stay_tied_while_cast():
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    with cast_weights(nn.Sequential(one, two), torch.float16):
        assert one.weight is two.weight
        assert one.weight.dtype == torch.float16
    assert one.weight.dtype == torch.float32


def test_whole_numbers_are_not_cast():
    net = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3))
    rep = rs.record(net, torch.randint(7, (80, 3)), dtype="bfloat16")
    assert rep.made.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["int8", "bf16", torch.int64, torch.complex64, 16])
def test_what_is_no_floating_point_precision_is_refused(dtype):
    with pytest.raises(
        DataError, match=r"`dtype` must be float64, float32, bfloat16 or float16; f"
    ):
        as_dtype(dtype)


def test_weights_that_cannot_be_cast_are_refused():
    class Part(torch.Tensor):  # as sharded weights look
        def full_tensor(self):
            return self

    net = nn.Linear(2, 2)
    net.register_buffer("part", torch.ones(2).as_subclass(Part))
    with (
        pytest.raises(DataError, match=r"`dtype` cannot cast .* load the model in that precision"),
        cast_weights(net, torch.float16),
    ):
        pass
