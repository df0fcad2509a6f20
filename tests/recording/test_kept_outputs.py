"""What is kept of a network's outputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._data.sources import Batch, Drawn, Piece
from resemblance._model.picked_tokens import Rows
from resemblance.recording.kept_outputs import KeptOutputs, right_classes
from resemblance.representation.outputs import GROUPS, group_of

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))


def batch(n, start=0, **options):
    return Batch([Piece(0, np.arange(start, start + n))], torch.zeros(n, 2), **options)


def test_many_classes_leave_the_likeliest_and_groups():
    z = torch.randn(6, 3000, generator=torch.Generator().manual_seed(1)) * 3
    kept, b = KeptOutputs(), batch(6)
    kept.see(z)
    kept.end(b, Rows(b), np.array([4, 1, 2]), np.array([30, 10, 20]))
    found, p = kept.result(), torch.softmax(z.double(), 1)
    order = [1, 2, 4]  # by place
    assert torch.equal(found.top, p[order].topk(32).indices)
    assert torch.allclose(found.top_log_p.double().exp(), p[order].topk(32).values, atol=1e-6)
    mass = torch.zeros(3, GROUPS).double().index_add_(1, group_of(3000), p[order])
    assert torch.allclose(found.groups.double().exp(), mass, atol=1e-6)


def test_nothing_seen_is_nothing_kept():
    kept, b = KeptOutputs(), batch(3)
    kept.end(b, Rows(b), np.arange(3), np.arange(3))
    assert kept.result() is None


def test_right_classes_are_labels_or_the_next_tokens():
    labels = torch.tensor([3, -100, 1])
    assert right_classes(
        Batch([Piece(0, np.arange(3))], (torch.zeros(3, 2), labels)), causal=False
    ).tolist() == [3, -1, 1]
    assert right_classes(batch(3), causal=False) is None
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    samples = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    drawn = Drawn(np.array([[0, 2], [1, 0]]), 3)
    found = right_classes(Batch([Piece(0, np.arange(2))], samples, drawn), causal=True)
    assert found.tolist() == [[6, -1], [-1, 9]]
    assert right_classes(Batch([Piece(0, np.arange(2))], samples, drawn), causal=False) is None


def test_outputs_that_are_no_predictions_are_not_kept():
    image = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
    images = torch.randn(20, 3, 6, 6)
    assert rs.record(image, images).outputs is None  # one prediction a pixel
    squashed = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Sigmoid())
    assert rs.record(squashed, X, gradients=False).outputs is None
    odds = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Softmax(1))
    assert rs.record(odds, X, gradients=False).outputs is None
    assert rs.record(odds, X, logits=lambda p: p.log()).outputs is not None


def test_features_alone_and_samples_left_out():
    net = networks.seeded(networks.MLP)
    bad = X.clone()
    bad[7] = torch.nan
    rep = rs.record(net, bad, on_bad="skip", gradients=False)
    assert rep.outputs.rows == sum(rep.block_sizes) == 59
    assert torch.isfinite(rep.outputs.every).all()


def test_labels_that_are_no_class_of_the_network_are_not_known(tmp_path):
    y = torch.arange(60) % 9
    rep = rs.record(networks.seeded(networks.MLP), (X, y))  # of five classes
    assert set(rep.outputs.labels.tolist()) == {-1, 0, 1, 2, 3, 4}
    assert rs.load(rep.save(tmp_path / "a.rsm")) == rep


def test_without_blocks_there_are_no_outputs():
    assert rs.record(networks.seeded(networks.MLP), X, blocks=0).outputs is None
