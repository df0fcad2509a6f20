"""The networks of the demo: training leaves nothing behind, and copies are changed as they say."""

from __future__ import annotations

import torch

from resemblance._data.load_data import load_digits_data
from resemblance.demo.digit_networks import DigitNet, pruned_copy, quantised_copy, train_digit_net


def weights(net):
    return [p for p in net.parameters() if p.ndim > 1]


def test_training_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    train_digit_net(*(x[:64] for x in load_digits_data()), classes=10, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_quantised_weights_take_few_values_and_stay_within_half_a_step():
    net = DigitNet(10)
    for old, new in zip(weights(net), weights(quantised_copy(net, 4)), strict=True):
        step = old.abs().max() / 7  # 2^(4-1) - 1 steps to either side of zero
        assert len(new.unique()) <= 15
        assert ((old - new).abs() <= step / 2 * 1.0001).all()  # but for round-off


def test_pruning_removes_the_smallest_weights_and_keeps_the_others():
    net = DigitNet(10)
    for old, new in zip(weights(net), weights(pruned_copy(net, 0.5)), strict=True):
        gone = new == 0
        assert int(gone.sum()) == old.numel() // 2
        assert old[gone].abs().max() < old[~gone].abs().min()
        assert torch.equal(new[~gone], old[~gone])
