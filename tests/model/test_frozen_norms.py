"""Batch norms in a pass give what torch's own give, there and back, and keep nothing for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance._model.evaluation_mode import untouched
from resemblance._model.frozen_norms import frozen_norms


def normed(kind=nn.BatchNorm2d, **options):
    """A norm whose statistics, weight and bias are no ones and zeros."""
    torch.manual_seed(0)
    norm = kind(5, **options).eval()
    with torch.no_grad():
        for value in norm.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2)
    return norm.requires_grad_(False)


def there_and_back(norm, x):
    x = x.detach().requires_grad_()
    y = norm(x)
    (gradient,) = torch.autograd.grad(y, x, torch.linspace(-1, 1, y.numel()).view_as(y).to(y.dtype))
    return y.detach(), gradient


CASES = {
    "images": (nn.BatchNorm2d, {}, (3, 5, 4, 6)),
    "vectors": (nn.BatchNorm1d, {}, (7, 5)),
    "sequences": (nn.BatchNorm1d, {}, (7, 5, 3)),
    "volumes": (nn.BatchNorm3d, {}, (2, 5, 2, 3, 4)),
    "without a weight": (nn.BatchNorm2d, {"affine": False}, (3, 5, 4, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_it_gives_what_torch_gives(case, dtype):
    kind, options, shape = CASES[case]
    norm, x = normed(kind, **options), torch.randn(shape, dtype=dtype)
    norm = norm.double() if dtype == torch.float64 else norm
    expected = there_and_back(norm, x)
    with frozen_norms(norm):
        found = there_and_back(norm, x)
    assert torch.equal(found[0], expected[0])
    # the same products in another order
    torch.testing.assert_close(found[1], expected[1], rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_gradients_of_images_lie_in_memory_as_they_came():
    x = torch.randn(3, 5, 4, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    norm = normed()
    with frozen_norms(norm):
        y = norm(x)
    coming = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, coming)
    assert coming.is_contiguous(memory_format=torch.channels_last)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_what_came_in_is_not_kept():
    kept = []
    x = torch.randn(3, 5, 40, 6, requires_grad=True)
    norm = normed()
    with (
        frozen_norms(norm),
        torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.numel()) or t, lambda t: t
        ),
    ):
        norm(x)
    assert kept
    assert set(kept) == {5}  # numbers, one for each channel


@pytest.mark.parametrize("place", ["weight", "bias"])
def test_a_norm_that_learns_gets_its_gradients(place):
    norm, x = normed(), torch.randn(3, 5, 4, 6)
    getattr(norm, place).requires_grad_()
    (expected,) = torch.autograd.grad(norm(x).square().sum(), getattr(norm, place))
    with frozen_norms(norm):
        (found,) = torch.autograd.grad(norm(x).square().sum(), getattr(norm, place))
    assert torch.equal(found, expected)
    norm.requires_grad_(False)
    weights = {name: p.detach() for name, p in norm.named_parameters()}

    def loss(weights):
        return torch.func.functional_call(norm, weights, x).square().sum()

    with frozen_norms(norm):
        found = torch.func.grad(loss)(weights)[place]
    torch.testing.assert_close(found, expected)


class Own(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 1


def test_others_run_as_they_are():
    others = [Own(5), nn.BatchNorm2d(5, track_running_stats=False), nn.GroupNorm(1, 5)]
    wrapped = nn.BatchNorm2d(5)
    wrapped.forward = lambda x: x  # as accelerate puts one there
    with frozen_norms(nn.ModuleList([*others, wrapped, nn.BatchNorm2d(5)])):
        assert not any("forward" in vars(module) for module in others)
        assert wrapped.forward(3) == 3
    with pytest.raises(ValueError, match="expected 4D input"), frozen_norms(norm := normed()):
        norm(torch.zeros(2, 5))


def test_a_model_comes_back_with_its_own_forward():
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(80, 3))
    with untouched(net):
        assert "forward" in vars(net[1])
    with untouched(net, frozen=False):
        assert "forward" not in vars(net[1])
    rs.record(net, torch.randn(20, 3, 6, 6))
    assert "forward" not in vars(net[1])
