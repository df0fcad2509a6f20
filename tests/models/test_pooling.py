"""From a layer's output to one vector a sample."""

from __future__ import annotations

import functools

import pytest
import torch

from resemblance._models import layer_outputs
from resemblance.errors import DataError

TOKENS = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])


def pool(name, x, mask=None, gradient=False):
    return layer_outputs.pool_values(name, x, mask, gradient=gradient)


def test_flatten_keeps_everything():
    assert torch.equal(pool("flatten", TOKENS), TOKENS.reshape(3, 20))
    assert torch.equal(pool("flatten", TOKENS[:, 0]), TOKENS[:, 0])
    assert pool("flatten", torch.zeros(3)).shape == (3, 1)


def test_mean_over_tokens_leaves_padding_out():
    expected = torch.stack([TOKENS[0].mean(0), TOKENS[1, :2].mean(0), TOKENS[2, 2:].mean(0)])
    assert torch.allclose(pool("mean", TOKENS, MASK), expected, atol=1e-6)
    assert torch.allclose(pool("mean", TOKENS), TOKENS.mean(1), atol=1e-6)


def test_gradient_of_a_mean_is_the_sum_over_tokens():
    """Shift the feature by δ at all tokens: the loss moves by Σ g · δ."""
    expected = torch.stack([TOKENS[0].sum(0), TOKENS[1, :2].sum(0), TOKENS[2, 2:].sum(0)])
    assert torch.allclose(pool("mean", TOKENS, MASK, gradient=True), expected, atol=1e-6)


@pytest.mark.parametrize("gradient", [False, True])
def test_first_and_last_token_that_is_not_padding(gradient):
    first = torch.stack([TOKENS[0, 0], TOKENS[1, 0], TOKENS[2, 2]])
    last = torch.stack([TOKENS[0, 4], TOKENS[1, 1], TOKENS[2, 4]])
    assert torch.equal(pool("first", TOKENS, MASK, gradient), first)
    assert torch.equal(pool("last", TOKENS, MASK, gradient), last)
    assert torch.equal(pool("first", TOKENS), TOKENS[:, 0])
    assert torch.equal(pool("last", TOKENS), TOKENS[:, -1])


def test_positions_of_an_image_are_its_pixels():
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(pool("mean", images), images.mean((2, 3)), atol=1e-6)
    assert torch.equal(pool("first", images), images[:, :, 0, 0])
    assert torch.equal(pool("last", images), images[:, :, -1, -1])


def test_vectors_need_no_pooling():
    for name in layer_outputs.POOLINGS:
        assert torch.equal(pool(name, TOKENS[:, 0], MASK), TOKENS[:, 0])


def test_a_mask_of_another_shape_is_not_for_this_layer():
    assert torch.allclose(pool("mean", TOKENS[:, :3], MASK), TOKENS[:, :3].mean(1), atol=1e-6)


def test_a_fully_padded_sequence_is_zero_not_nan():
    mask = torch.zeros_like(MASK)
    assert torch.equal(pool("mean", TOKENS, mask), torch.zeros(3, 4))
    assert torch.isfinite(pool("first", TOKENS, mask)).all()


def test_low_precision_means_are_summed_in_float32():
    x = torch.ones(1, 5000, 2, dtype=torch.float16)
    assert pool("mean", x, gradient=True).tolist() == [[5000.0, 5000.0]]


def test_a_function_sees_features_and_gradients_alike():
    def most(x):
        return x.amax(1)

    assert torch.equal(pool(most, TOKENS), TOKENS.amax(1))
    assert torch.equal(pool(most, TOKENS, gradient=True), TOKENS.amax(1))


def test_names():
    assert layer_outputs.validate_pool("mean") == "mean"
    one, two = (layer_outputs.validate_pool(functools.partial(torch.amax, dim=i)) for i in (1, 2))
    assert one.startswith("function partial ")
    assert one != two
    with pytest.raises(DataError, match="must be one of flatten, mean, first, last or a function"):
        layer_outputs.validate_pool("max")
