"""What is kept of a network's outputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._data.sources import Batch, Piece, SampledTokens
from resemblance._models.capture import Rows
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.recording.output_summary import OutputSummary, right_classes, right_labels
from resemblance.representation.outputs import CLASS_GROUPS, class_groups
from resemblance.representation.schema import MAX_LABELS

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))


def batch(n, start=0, **options):
    return Batch([Piece(0, np.arange(start, start + n))], torch.zeros(n, 2), **options)


def test_many_classes_leave_the_likeliest_and_groups():
    z = torch.randn(6, 3000, generator=torch.Generator().manual_seed(1)) * 3
    kept, b = OutputSummary(), batch(6)
    kept.see(z)
    kept.end(b, Rows(b), np.array([4, 1, 2]), np.array([30, 10, 20]))
    found, p = kept.result(), torch.softmax(z.double(), 1)
    order = [1, 2, 4]  # by place
    assert torch.equal(found.top, p[order].topk(64).indices)
    assert torch.allclose(found.top_log_p.double().exp(), p[order].topk(64).values, atol=1e-6)
    mass = torch.zeros(3, CLASS_GROUPS).double().index_add_(1, class_groups(3000), p[order])
    assert torch.allclose(found.groups.double().exp(), mass, atol=1e-6)


def test_nothing_seen_is_nothing_kept():
    kept, b = OutputSummary(), batch(3)
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
    drawn = SampledTokens(np.array([[0, 2], [1, 0]]), 3)
    found = right_classes(Batch([Piece(0, np.arange(2))], samples, drawn), causal=True)
    assert found.tolist() == [[6, -1], [-1, 9]]
    assert right_classes(Batch([Piece(0, np.arange(2))], samples, drawn), causal=False) is None


def test_outputs_that_are_no_predictions_are_not_kept():
    image = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
    images = torch.randn(20, 3, 6, 6)
    assert rs.record(image, images).outputs is None  # one prediction a pixel
    assert rs.record(networks.MLP(), X, logits="none", gradients=False).predictions is None
    wide = networks.MLP(classes=MAX_LABELS + 1)
    with pytest.warns(ResemblanceWarning, match="up to 16,384 labels, found 16,385"):
        assert rs.record(wide, X, logits="sigmoid", gradients=False).outputs is None


def test_features_alone_and_samples_left_out():
    net = networks.seeded(networks.MLP)
    bad = X.clone()
    bad[7] = torch.nan
    rep = rs.record(net, bad, on_bad="skip", gradients=False)
    assert rep.outputs.rows == sum(rep.block_sizes) == 59
    assert torch.isfinite(rep.outputs.every).all()


class Overflows(nn.Module):
    """A network whose head gives no prediction for samples 7 and 9: finite features, bad logits."""

    def __init__(self, value):
        super().__init__()
        self.net, self.value = networks.seeded(networks.MLP), value

    def forward(self, x):
        bad = (x[:, None] == X[[7, 9]]).all(2).any(1)
        return torch.where(bad[:, None], torch.tensor(self.value), self.net(x))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_prediction_that_is_not_finite_is_a_bad_sample(value, gradients):
    net, how = Overflows(value), {"layers": "net.act1", "gradients": gradients}
    with pytest.raises(DataError, match=r"NaN or Inf in the model's outputs at sample [79]"):
        rs.record(net, X, **how)
    rep = rs.record(net, X, on_bad="skip", **how)
    assert (rep.data.skipped, rep.outputs.rows) == (2, 58)
    assert rep.outputs.every.isfinite().all()


def test_a_class_that_is_masked_out_is_no_bad_sample():
    net = nn.Sequential(networks.seeded(networks.MLP), Masked())
    rep = rs.record(net, X, layers="0.act1", gradients=False)
    assert rep.outputs.every[:, 4].isneginf().all()
    assert rep.data.skipped == 0


class Masked(nn.Module):
    def forward(self, z):
        return z.masked_fill(torch.arange(5) == 4, -torch.inf)


def test_labels_that_are_no_class_of_the_network_are_not_known(tmp_path):
    y = torch.arange(60) % 9
    rep = rs.record(networks.seeded(networks.MLP), (X, y))  # of five classes
    assert set(rep.outputs.labels.tolist()) == {-1, 0, 1, 2, 3, 4}
    assert rs.load(rep.save(tmp_path / "a.rsm")) == rep


def test_without_blocks_there_are_no_outputs():
    assert rs.record(networks.seeded(networks.MLP), X, blocks=0).outputs is None


# -- multi-label networks -----------------------------------------------------------------------


def test_right_labels_are_multi_hot_rows():
    rows = torch.tensor([[1.0, 0.0], [0.0, -100.0], [0.3, 1.0]])
    pieces = [Piece(0, np.arange(3))]
    found = right_labels(Batch(pieces, (torch.zeros(3, 2), rows)), 2)
    assert found.tolist() == [[1, 0], [0, -1], [-1, 1]]
    assert found.dtype == torch.int16
    one = right_labels(Batch(pieces, (torch.zeros(3, 2), torch.tensor([1, 0, 1]))), 1)
    assert one.tolist() == [[1], [0], [1]]
    assert right_labels(Batch(pieces, (torch.zeros(3, 2), torch.tensor([1, 0, 1]))), 2) is None
    assert right_labels(batch(3), 2) is None


@torch.no_grad()
def exact(net, x):
    """Logits in float64, and the features before the head."""
    net = copy.deepcopy(net).double().eval()
    features = net.act2(net.fc2(net.act1(net.fc1(x.double()))))
    return net.head(features), features


@pytest.mark.parametrize("labels", [1, 6])
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_multi_label_network_from_data_to_behaviour(tmp_path, labels, how):
    one, two = (networks.seeded(networks.MLP, classes=labels, seed=seed) for seed in (0, 1))
    y = (torch.rand(60, labels, generator=torch.Generator().manual_seed(2)) < 0.4).float()
    reps = [
        rs.record(
            net, (X, y), logits="sigmoid", layers=["act2"], compile=how == "compiled", batch_size=20
        )
        for net in (one, two)
    ]
    assert rs.load(reps[0].save(tmp_path / "one.rsm")) == reps[0]
    (z, f), (w, _) = exact(one, X), exact(two, X)
    order = seeded_permutation(60, seed=0)
    assert torch.allclose(reps[0].outputs.label_logits.double(), z[order], atol=1e-5)
    assert torch.equal(reps[0].outputs.labels, y[order].to(torch.int16))
    # features and gradients at the last hidden layer
    leaf = f.detach().requires_grad_()
    p = torch.sigmoid(copy.deepcopy(one).double().head(leaf))
    q = (p**0.5 / (p**0.5 + (1 - p) ** 0.5)).detach()  # q ∝ p^β
    loss = -(q * p.log() + (1 - q) * (1 - p).log()).sum()
    g = torch.autograd.grad(loss, leaf)[0]
    products = reps[0]["act2"].products
    inner = (f * g).sum(1).detach()
    assert products.inner_squared == pytest.approx(float((inner**2).sum()), rel=1e-4)
    assert reps[0]["act2"].gradients.trace == pytest.approx(float((g**2).sum()), rel=1e-4)
    fr = rs.fisher_rao(reps[0], depth=1).network
    assert fr == pytest.approx(2 * float((inner**2).mean()) ** 0.5, rel=1e-4)
    # divergences of independent labels, summed
    p, q = torch.sigmoid(z), torch.sigmoid(w)
    kl = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(1).mean()
    found = rs.behaviour(*reps)
    assert found.kl == pytest.approx(float(kl), rel=1e-4)
    assert found.disagreement == pytest.approx(float(((z > 0) != (w > 0)).any(1).double().mean()))
    each = ((z > 0) != (w > 0)).double().mean(0).tolist()
    assert found.label_disagreement == pytest.approx(each)


def test_shards_and_tokens_of_multi_label_networks():
    y = (X[:, :5] > 0).float()
    how = {"logits": "sigmoid", "block": 8}
    net = networks.seeded(networks.MLP)
    whole = rs.record(net, (X, y), **how)
    found = rs.merge([rs.record(net, (X, y), shard=(i, 2), **how) for i in range(2)])
    assert torch.equal(found.outputs.label_logits, whole.outputs.label_logits)
    assert torch.equal(found.outputs.labels, whole.outputs.labels)
    texts = networks.seeded(networks.LittleForCausalLM)
    rep = rs.record(texts, networks.texts(), logits="sigmoid", tokens=3)
    assert rep.outputs.rows == rep.samples == 60
    assert rep.outputs.multi_label
    assert rep.outputs.labels is None  # the next token is one class


def test_gradients_of_labels_are_not_compared_with_those_of_a_class():
    net = networks.seeded(networks.MLP)
    one, two = rs.record(net, X), rs.record(net, X, logits="sigmoid")
    with pytest.raises(MismatchError, match=r"target differs.*tempered-sigmoid"):
        rs.compare(one, two, kernel="gradients")
    silent = rs.record(net, X, logits="none", gradients=False)
    with pytest.raises(MismatchError, match=r"predicts classes or labels.*`logits=.none.`"):
        rs.behaviour(one, silent)
    assert rs.record(net, X, outputs=False, gradients=False).made.logits is None
    with pytest.raises(MismatchError, match=r"multi-label network and .* predicts one class"):
        rs.behaviour(one, two)
