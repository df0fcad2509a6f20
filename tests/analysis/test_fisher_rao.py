"""The Fisher-Rao norm and distance against their formula."""

import numpy as np
import pytest
import torch
from torch import nn

import reference_analysis as reference
from resemblance import record, record_arrays
from resemblance.analysis.fisher_rao import FisherRao, fisher_rao
from resemblance.errors import MismatchError, ResemblanceWarning


def arrays(seed, n=200):
    rng = np.random.default_rng(seed)
    return rng.normal(0.5, 1, (n, 4)), rng.normal(0.5, 1, (n, 4))


def test_norm_is_the_formula_at_every_layer_and_the_last_is_the_network():
    (f, g), (f2, g2) = arrays(0), arrays(1)
    rep = record_arrays({"a": f, "b": f2}, {"a": g, "b": g2}, data_id="x")
    found = fisher_rao(rep)
    assert found.norms["a"] == pytest.approx(reference.fisher_rao(f, g, depth=2), rel=1e-5)
    assert found.network == pytest.approx(reference.fisher_rao(f2, g2, depth=2), rel=1e-5)
    assert found.network_stderr == found.stderr["b"]
    deeper = fisher_rao(rep, depth=5)
    assert deeper.network == pytest.approx(found.network * 2)


def test_standard_error_covers_the_source():
    """⟨f, g⟩² of large samples, against that of a sample of a million."""
    rng = np.random.default_rng(7)
    f, g = rng.normal(0.5, 1, (2, 10**6, 4))
    truth = reference.fisher_rao(f, g, depth=1)
    inside = []
    for seed in range(60):
        found = fisher_rao(record_arrays(*arrays(seed, n=400), data_id="x", buckets=0))
        inside.append(abs(found.network - truth) <= 2 * found.network_stderr)
    assert np.mean(inside) >= 0.85  # 0.95 less three binomial errors of 60


def test_norm_is_the_same_at_all_layers_of_a_rectifier_network_without_biases():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 9, bias=False),
        nn.ReLU(),
        nn.Linear(9, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, 3, bias=False),
    )
    norms = list(fisher_rao(record(net, torch.randn(64, 5), layers=["1", "3", "4"])).norms.values())
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


def test_distance_is_symmetric_zero_on_itself_and_needs_the_same_layers_by_layer():
    a, b = (fisher_rao(record_arrays(*arrays(s), data_id="x")) for s in (0, 1))
    x, y = a.network, b.network
    assert a.distance(b) == pytest.approx(abs(x - y) / (x * y) ** 0.5) == b.distance(a)
    assert a.distance(a) == 0
    assert a.distances(b) == {"features": a.distance(b)}
    with pytest.raises(MismatchError, match="same layers"):
        a.distances(FisherRao("m", 1, {"other": 1.0}, {"other": 0.0}))


def test_refusals():
    f, g = arrays(0)
    with pytest.raises(MismatchError, match="gradients=True"):
        fisher_rao(record_arrays(f, data_id="x"))
    with pytest.warns(ResemblanceWarning, match="underflow"):
        zero = record_arrays(f, g * 0, data_id="x")
    dead = fisher_rao(zero)
    assert np.isnan(dead.network_stderr)
    with pytest.raises(MismatchError, match="undefined"):
        dead.distance(fisher_rao(record_arrays(f, g, data_id="x")))
