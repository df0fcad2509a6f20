"""A GPU gives what the CPU gives. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
import resemblance as rs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

G = torch.Generator().manual_seed(0)
CASES = {
    "mlp": (networks.MLP, {}, torch.randn(200, 6, generator=G)),
    "resnet": (networks.ResNet, {}, torch.randn(200, 3, 6, 6, generator=G)),
    "transformer": (networks.Transformer, {}, networks.tokens(200)),
    "rnn": (networks.Recurrent, {}, torch.randint(0, 9, (200, 4), generator=G)),
    "lstm": (networks.Recurrent, {"kind": nn.LSTM}, torch.randint(0, 9, (200, 4), generator=G)),
}


def differences(a, b):
    """The largest error of any kernel, relative to its Frobenius norm."""
    assert a.data["fingerprint"] == b.data["fingerprint"]
    for one, two in zip(a, b, strict=True):
        for kind in one.kinds:
            for x, y in (
                (one.buckets(kind), two.buckets(kind)),
                (one.blocks(kind), two.blocks(kind)),
                (one.buckets(kind, centre=True), two.buckets(kind, centre=True)),
            ):
                yield float((x - y).norm() / x.norm())


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_what_the_cpu_gives(case, on_bad):
    kind, options, data = CASES[case]
    model = networks.seeded(kind, **options)
    settings = {"pool": "mean", "elementwise": True, "block": 16, "on_bad": on_bad}
    if case == "rnn":
        settings["layers"] = ["embed", "rnn"]  # cuDNN must differentiate through the layer
    cpu = rs.record(model, data, **settings)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        gpu = rs.record(model.cuda(), data, **settings)
    assert gpu.made["device"] == "cuda:0"
    # float32 in both, summed in another order, and stored in steps of 3e-5 of √(K_ii K_jj)
    assert max(differences(cpu, gpu)) < 3e-4


def test_double_precision_on_a_gpu():
    kind, _, data = CASES["mlp"]
    cpu = rs.record(networks.seeded(kind).double(), data.double())
    gpu = rs.record(networks.seeded(kind).double().cuda(), data.double())
    assert max(differences(cpu, gpu)) < 3e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_on_a_gpu(dtype):
    kind, _, data = CASES["resnet"]
    exact = rs.record(networks.seeded(kind), data, block=16)
    half = rs.record(networks.seeded(kind).cuda().to(dtype), data.to(dtype), block=16, data_id="x")
    with torch.autocast("cuda", dtype=dtype):
        cast = rs.record(networks.seeded(kind).cuda(), data, block=16)
    for rep in (half, cast):
        for one, two in zip(exact, rep, strict=True):
            for part in ("features", "gradients"):
                x, y = one.blocks(part), two.blocks(part)
                assert float((x - y).norm() / x.norm()) < 0.05


def test_small_gradients_survive_float16_on_a_gpu():
    model = networks.seeded(networks.MLP, width=32)
    with torch.no_grad():
        model.head.weight *= 3e-5  # gradients around 1e-8, below the least of float16
    data = CASES["mlp"][2]
    exact = rs.record(model, data, block=16)["act1"]
    half = rs.record(model.cuda().half(), data.half(), block=16)["act1"]
    for read in (lambda layer: layer.blocks("gradients"), lambda layer: layer.buckets("gradients")):
        assert float((read(half) - read(exact)).norm() / read(exact).norm()) < 0.05
