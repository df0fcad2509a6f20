"""What one pass of a candidate shows."""

import numpy as np
import torch
from candidate_networks import network, task
from torch import nn

from resemblance.recommending.candidate_pass import Look, seen
from resemblance.recommending.query_samples import Query


def query(x):
    return Query(x, None, len(x), len(x))


def test_vectors_and_logits_are_in_one_order():
    net, (x, _) = network(), task()
    shown = seen(net, query(x), Look(gradients=True, batch_size=50))
    assert list(shown.layers) == ["1", "3"]
    assert sorted(shown.positions.tolist()) == list(range(len(x)))
    with torch.no_grad():
        expected = net(x)[shown.positions]
        features = net[1](net[0](x))[shown.positions]
    assert torch.allclose(shown.logits, expected, atol=1e-6)
    assert torch.allclose(shown.layers["1"]["features"], features, atol=1e-6)
    assert torch.allclose(shown.probabilities().sum(1), torch.ones(len(x)).double())
    assert shown.layers["1"]["gradients"].shape == (len(x), 24)
    assert shown.parameters == sum(p.numel() for p in net.parameters())


def test_gradients_are_there_if_asked_for_and_wide_layers_are_folded():
    net, (x, _) = network(), task()
    shown = seen(net, query(x), Look(layers=["1"], width=8))
    assert set(shown.layers["1"]) == {"features"}
    assert shown.layers["1"]["features"].shape == (len(x), 8)


def test_outputs_that_are_no_logits_are_not_taken_for_some():
    x, _ = task()
    for end in (
        nn.Linear(24, 1),
        nn.Sequential(nn.Linear(24, 3), nn.ReLU()),
        nn.Unflatten(1, (4, 6)),
    ):
        net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), end)
        assert seen(net, query(x), Look(layers=["1"])).logits is None
    sure = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3), nn.Softmax(1))
    p = seen(sure, query(x), Look(layers=["1"]))
    with torch.no_grad():
        expected = sure(x).numpy()[p.positions]
    assert np.allclose(p.probabilities().numpy(), expected, atol=1e-6)
