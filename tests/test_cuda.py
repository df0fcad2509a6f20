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
    gpu = rs.record(model.cuda(), data, **settings)
    assert gpu.made["device"] == "cuda:0"
    assert max(differences(cpu, gpu)) < 1e-3  # float32, other sums; cuDNN may use TF32 inside


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
