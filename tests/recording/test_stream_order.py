"""Whether a stream looks sorted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import ResemblanceWarning
from resemblance.recording.stream_order import OrderCheck


def share(features, block=32):
    check = OrderCheck()
    n = len(features)
    check.add(features, [(i, min(i + block, n)) for i in range(0, n, block)])
    return check.share_between()


@pytest.mark.parametrize("rank", [1, 3, 50])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_random_order_is_never_called_sorted(rank, offset):
    """Whatever the rank, and with a mean far larger than the spread; 100 streams each."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        x = torch.randn(320, rank, generator=generator) @ torch.randn(rank, 60, generator=generator)
        assert share(x + offset) < 0.02


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_sorted_classes_are_seen(offset):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(320, 60, generator=generator)
    shift = torch.randn(10, 60, generator=generator) * 0.5  # a fifth of the variance
    found = share(x + offset + shift.repeat_interleave(32, 0))
    assert found == pytest.approx(0.2, abs=0.05)


def test_few_blocks_or_no_spread_say_nothing():
    assert share(torch.arange(96.0)[:, None]) == 0.0
    assert share(torch.ones(320, 4)) == 0.0


def stream(order):
    x = torch.randn(1024, 6, generator=torch.Generator().manual_seed(0))
    x[:512] += 1.0  # two classes, one after the other
    return list(x[order].split(100))


def test_record_warns_of_a_sorted_stream_at_the_callers_line():
    net = networks.seeded(networks.MLP)
    with pytest.warns(ResemblanceWarning, match="the stream looks sorted: .* at 'act2'") as caught:
        rs.record(net, stream(torch.arange(1024)), block=64)
    assert caught[0].filename == __file__


def test_record_does_not_warn_of_a_shuffled_stream_or_a_data_set():
    net = networks.seeded(networks.MLP)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(1))
    rs.record(net, stream(order), block=64)  # warnings are errors here
    rs.record(net, torch.cat(stream(torch.arange(1024))), block=64)


def test_a_block_that_comes_in_parts_is_one_block():
    x = torch.randn(320, 60, generator=torch.Generator().manual_seed(0))
    x += torch.arange(10.0).repeat_interleave(32)[:, None] / 5
    whole, parted = OrderCheck(), OrderCheck()
    for start in range(0, 320, 32):
        whole.add(x[start : start + 32], [(0, 32)])
        for part in (0, 12, 24):
            rows = x[start + part : start + min(part + 12, 32)]
            parted.add(rows, [(0, len(rows))], ends=part == 24)
    assert parted.share_between() == pytest.approx(whole.share_between(), rel=1e-6)
    assert whole.share_between() > 0.02


@pytest.mark.parametrize("batch_size", [64, 16])
def test_a_layer_that_the_network_writes_over_is_checked_as_it_was(batch_size):
    """The ReLU makes every feature zero, in place: what is sorted shows before it alone."""
    net = networks.seeded(networks.MLP)
    with torch.no_grad():
        net.fc1.bias -= 100
    with pytest.warns(ResemblanceWarning, match="the stream looks sorted"):
        rs.record(
            net,
            stream(torch.arange(1024)),
            layers="fc1",
            gradients=False,
            block=64,
            batch_size=batch_size,
        )


def test_blocks_at_the_beginning_that_are_unlike_the_rest_are_seen():
    """No two successive blocks differ much, and yet the first are no sample of all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40 * 600, 20, generator=generator)
    drifting, steady = OrderCheck(), OrderCheck()
    for i, rows in enumerate(x.split(40)):
        steady.add(rows, [(0, 40)])
        drifting.add(rows + 0.6 * min(i / 300, 1), [(0, 40)])
    assert len(drifting._blocks) < 256  # evenly spaced over all 600
    assert drifting._blocks[-1].number > 590
    assert steady.share_apart(64) == 0.0
    # the means of the first and of the later ones, by which they were moved
    later = np.minimum(np.arange(64, 600) / 300, 1).mean()
    apart = 0.36 * (later - np.arange(64).mean() / 300) ** 2
    assert drifting.share_apart(64) == pytest.approx(apart / (1 + apart), rel=0.1)
    assert drifting.share_apart(600) == 0.0  # all are kept
    assert OrderCheck().share_apart(3) == 0.0
