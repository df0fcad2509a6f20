"""The pass that hands on vectors: the same ones that `record` sums, and a model left alone."""

import numpy as np
import pytest
import torch
from torch import nn

from resemblance import record
from resemblance.analysis.layer_vectors import PassConfig, visit_batches
from resemblance.errors import DataError, TargetError


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 4)
    )


def gathered(model, data, how, layers="auto"):
    found, order = {}, []

    def consume(indices, labels, vectors):
        order.append(indices)
        for name, kinds in vectors.items():
            for kind, x in kinds.items():
                found.setdefault((name, kind), []).append(x)

    visit_batches(model, data, layers, how, consume)
    back = np.argsort(np.concatenate(order))
    return {key: torch.cat(parts)[back] for key, parts in found.items()}


def test_vectors_are_those_that_record_sums_whatever_the_batch_size():
    model, x = net(), torch.randn(50, 1, 6, 6)
    both = ("features", "gradients")
    found = gathered(model, x, PassConfig(both))
    small = gathered(model, x, PassConfig(both, batch_size=7))
    rep = record(model, x)
    for name in rep.layer_names:
        for kind in both:
            torch.testing.assert_close(found[name, kind], small[name, kind], atol=1e-5, rtol=1e-4)
            trace = rep[name].recorded(kind).trace
            assert float((found[name, kind] ** 2).sum()) == pytest.approx(trace, rel=1e-4)
    alone = gathered(model, x, PassConfig(("features",)))
    torch.testing.assert_close(alone["2", "features"], found["2", "features"])
    assert list(alone) == [("2", "features")]


def test_wide_layers_are_folded_alike_in_every_batch():
    model, x = net(), torch.randn(20, 1, 6, 6)
    found = gathered(model, x, PassConfig(max_dim=16))
    again = gathered(model, x, PassConfig(max_dim=16, batch_size=5))
    assert found["2", "features"].shape == (20, 15)  # five channels, three slots each
    torch.testing.assert_close(found["2", "features"], again["2", "features"])


def test_model_is_left_as_it_was_also_after_an_error():
    model = net().train()
    model[0].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(10, 1, 6, 6)
    gathered(model, x, PassConfig(("features", "gradients")))
    x[3] = torch.nan
    with pytest.raises(DataError, match="NaN or Inf in the features of layer '2' at sample 3"):
        gathered(model, x, PassConfig())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [False, *[True] * 5]
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_refusals():
    with pytest.raises(DataError, match=r"torch\.nn\.Module"):
        gathered(lambda x: x, torch.randn(4, 2), PassConfig())
    flat = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(flat[2].weight)
    with pytest.raises(TargetError, match="zero at"):
        gathered(flat, torch.randn(8, 2), PassConfig(("features", "gradients")))
