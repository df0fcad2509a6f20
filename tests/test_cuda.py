"""A GPU gives what the CPU gives. Skipped where there is none."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import networks
import resemblance as rs
import stored
from resemblance._data.sample_hashes import SampleHasher
from resemblance._models.hashes import begin_weight_hashes, hash_all_weights
from resemblance._ops import devices
from resemblance._ops import gram as grams
from resemblance._ops.devices import copy_all_to_host_async
from resemblance.errors import DataError, TargetError
from resemblance.recording import output_summary

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
    """The largest error of any kernel, relative to its Frobenius norm before any centring.

    Gradients may hardly vary around their mean: what centring leaves is then round-off.
    """
    assert a.data.fingerprint == b.data.fingerprint
    for one, two in zip(a, b, strict=True):
        for kind in one.kinds:
            blocks, buckets = one.blocks(kind), one.buckets(kind)
            centred = one.buckets(kind, centre=True) - two.buckets(kind, centre=True)
            yield float((blocks - two.blocks(kind)).norm() / blocks.norm())
            yield float((buckets - two.buckets(kind)).norm() / buckets.norm())
            yield float(centred.norm() / buckets.norm())


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
    assert gpu.made.device == "cuda:0"
    # float32 in both, summed in another order, and stored in steps of 3e-5 of √(K_ii K_jj)
    assert max(differences(cpu, gpu)) < 3e-4


@pytest.mark.parametrize("compile", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("logits", ["probabilities", "sigmoid", "sigmoid-probabilities"])
def test_outputs_of_every_kind_on_a_gpu(logits, compile):
    ends = {"probabilities": [nn.Softmax(1)], "sigmoid-probabilities": [nn.Sigmoid()]}
    model = nn.Sequential(networks.seeded(networks.MLP), *ends.get(logits, []))
    data = CASES["mlp"][2], (torch.rand(200, 5, generator=G) < 0.4).float()
    how = {"logits": logits, "block": 16, "layers": ["0.act1", "0.act2"], "batch_size": 50}
    cpu = rs.record(model, data, **how)
    gpu = rs.record(model.cuda(), data, compile=compile, **how)
    assert max(differences(cpu, gpu)) < 3e-4
    assert torch.allclose(cpu.outputs.first, gpu.outputs.first, atol=1e-4)
    if cpu.outputs.multi_label:
        assert torch.equal(cpu.outputs.labels, gpu.outputs.labels)
    assert rs.behaviour(cpu, gpu).kl < 1e-6
    wrong = nn.Sequential(networks.seeded(networks.MLP), nn.Sigmoid()).cuda()
    with pytest.raises(TargetError, match="do not look like"):
        rs.record(wrong, data[0], logits="probabilities")


def test_blocks_are_exchanged_between_devices():
    base, x = networks.seeded(networks.ResNet), torch.randn(200, 3, 6, 6, generator=G)
    copy = networks.seeded(networks.ResNet, seed=1)
    apart = rs.sensitivity(base, copy.cuda(), x)
    together = rs.sensitivity(base.cuda(), copy, x)
    here = rs.sensitivity(base.cpu(), copy.cpu(), x)
    for one in (apart, together):
        assert one.blocks == here.blocks
        assert np.allclose(one.own, here.own, rtol=1e-2, atol=1e-5)  # TF32
        assert np.allclose(one.gain, here.gain, rtol=1e-2, atol=1e-4)


def test_sketches_over_classes_of_a_gpu_pair_with_those_of_the_cpu():
    """A file made on either device has the same keys and, but for round-off, the same sketches."""
    net, other = (networks.seeded(networks.MLP, classes=3000, seed=seed) for seed in (0, 1))
    x = CASES["mlp"][2]
    cpu = rs.record(net, x, gradients=False)
    gpu = rs.record(net.cuda(), x, gradients=False)
    for name, found in gpu.outputs.tensors().items():
        expected = cpu.outputs.tensors()[name]
        if name in ("mean_log_p", "groups", "sketch_key") or name.startswith("sketch"):
            assert torch.allclose(found.double(), expected.double(), atol=2e-3), name
    assert abs(rs.behaviour(cpu, gpu).kl) < 1e-5
    live = rs.behaviour(net, other.cuda(), data=x)
    estimate = rs.behaviour(cpu, rs.record(other, x, gradients=False))
    assert estimate.kl == pytest.approx(live.kl, rel=0.05)


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


@pytest.mark.parametrize("cast", [True, False], ids=["bfloat16", "float32"])
def test_deterministic_runs_agree_bit_for_bit(cast):
    model = networks.seeded(networks.ResNet, channels=16).cuda()
    data = torch.randn(300, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    cudnn = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    with cudnn, torch.autocast("cuda", dtype=torch.bfloat16, enabled=cast):
        one, two = (
            rs.record(model, data, deterministic=True, elementwise=True, max_dim=1024)
            for _ in range(2)
        )
    stored.assert_same(one, two)


@pytest.mark.parametrize(
    ("dtype", "error"),
    # products of halves are exact, and summed in float32; factors of float32 are rounded by 2⁻¹²
    # of them at most, which moves no correlation by more than 2⁻¹¹
    [(torch.bfloat16, 1e-4), (torch.float16, 1e-4), (torch.float32, 5e-4)],
)
@pytest.mark.parametrize(
    ("samples", "size", "d"), [(1024, 128, 4096), (250, 100, 5003), (60, 60, 70000), (37, 5, 1024)]
)
def test_the_gram_kernel_is_exact(dtype, error, samples, size, d):
    generator = torch.Generator("cuda").manual_seed(0)
    f = torch.randn(samples, d, device="cuda", generator=generator).add(0.3).relu().to(dtype)
    g = f.flip(0) - 0.1
    spans = [(i, min(i + size, samples)) for i in range(0, samples, size)]
    found, _ = grams.launch_gram_kernel([f, g], spans, size, parts=7)
    assert torch.equal(found, grams.launch_gram_kernel([f, g], spans, size, parts=7)[0])
    assert torch.equal(found[0], grams.launch_gram_kernel([f], spans, size, parts=7)[0][0])
    for x, kernels in zip((f, g), found, strict=True):
        for (start, stop), kernel in zip(spans, kernels, strict=True):
            length = stop - start
            expected = x[start:stop].double() @ x[start:stop].double().T
            scale = expected.diagonal().sqrt()
            off = (kernel[:length, :length] - expected).abs() / torch.outer(scale, scale)
            assert float(off.max()) < error
            assert not kernel[length:].any()
            assert not kernel[:, length:].any()


@pytest.mark.parametrize(
    ("samples", "size", "d"), [(1024, 128, 4096), (250, 100, 5003), (60, 60, 70000)]
)
def test_the_gram_kernel_takes_means_off(samples, size, d):
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(samples, d, device="cuda", generator=generator) + 300
    spans = [(i, min(i + size, samples)) for i in range(0, samples, size)]
    kernels, offset = grams.block_grams_without_mean(x, spans, size)
    again = grams.block_grams_without_mean(x, spans, size)
    assert torch.equal(kernels, again[0])
    assert torch.equal(offset, again[1])
    for (start, stop), kernel, u in zip(spans, kernels, offset, strict=True):
        rows, length = x[start:stop].double(), stop - start
        apart = rows - rows.mean(0)
        expected = apart @ apart.T
        scale = expected.diagonal().sqrt()
        centring = torch.eye(length, device="cuda") - 1 / length
        found = centring.double() @ kernel[:length, :length].double() @ centring.double()
        assert float(((found - expected).abs() / torch.outer(scale, scale)).max()) < 5e-4
        whole = kernel[:length, :length] + u[:length, None] + u[None, :length]
        torch.testing.assert_close(whole.double(), rows @ rows.T, rtol=1e-6, atol=0)
        assert not kernel[length:].any()
        assert not u[length:].any()


def test_wide_float32_layers_on_a_gpu():
    """Wide enough for the Gram kernel to round its factors."""
    model = networks.seeded(networks.ResNet, channels=16)
    data = torch.randn(200, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    cpu = rs.record(model, data)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        gpu = rs.record(model.cuda(), data)
    assert max(differences(cpu, gpu)) < 3e-4


# gradients of an untrained network are dominated by a few samples, which is warned about
@pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")
def test_all_pairs_on_a_gpu():
    reps = [
        rs.record(networks.seeded(networks.MLP, width=width), CASES["mlp"][2], block=16)
        for width in (6, 7, 8, 9)
    ]
    for options in ({}, {"kernel": "features"}, {"kernel": "sum", "index": "cka-debiased"}):
        cpu, gpu = (
            rs.compare_all(reps, device=device, **{"kernel": "product", **options})
            for device in ("cpu", "cuda")
        )
        # float32 on one, float64 on the other
        assert float(abs(cpu.scores - gpu.scores).max()) < 1e-5
        assert float(abs(cpu.stderr - gpu.stderr).max()) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"index": "cka"},
        {"index": "cka-debiased", "kernel": "sum"},
        {"index": "rsa", "kernel": "gradients"},
        {"index": "nbs"},
        {"index": "spectral", "kernel": "transport"},
        {"estimator": "buckets", "kernel": "features"},
        {"estimator": "paper", "index": "nbs"},
    ],
    ids=str,
)
def test_a_pair_on_a_gpu(options):
    data = {"l0": torch.randn(300, 20, generator=G), "l1": torch.randn(300, 9, generator=G)}
    a, b = (
        rs.record_arrays(
            {key: (x + i).relu() for key, x in data.items()},
            {key: x.sin() + i for key, x in data.items()},
            data_id="x",
            block=32,
            buckets=64,
        )
        for i in range(2)
    )
    cpu, gpu = (
        rs.compare(a, b, device=device, **{"kernel": "product", **options})
        for device in ("cpu", "cuda")
    )
    for name in ("scores", "stderr", "chance", "chance_high"):
        one, two = getattr(cpu, name), getattr(gpu, name)
        assert (one is None) == (two is None)
        assert one is None or float(abs(one - two).max()) < 1e-6


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_alone_on_a_gpu(gradients, dtype):
    """More samples than the blocks hold: norms of the rest come from a read of their own."""
    data = torch.randn(400, 6, generator=G).to(dtype)
    options = {"gradients": gradients, "buckets": 0, "block": 16, "blocks": 9, "data_id": "x"}
    model = networks.seeded(networks.MLP, width=40).to(dtype)
    cpu = rs.record(model, data, **options)
    gpu = rs.record(model.cuda(), data, batch_size=64, **options)
    close = 1e-5 if dtype == torch.float32 else 0.02
    for one, two in zip(cpu, gpu, strict=True):
        assert stored.moments(two) == pytest.approx(stored.moments(one), rel=close)
        for kind in one.kinds:
            off = (one.blocks(kind) - two.blocks(kind)).norm() / one.blocks(kind).norm()
            assert float(off) < max(close, 3e-4)


@pytest.mark.parametrize("where", [5, 399])
def test_a_gpu_names_the_sample_that_is_not_finite(where):
    """Though nobody waits for a batch: the verdict on it is read later."""
    data = torch.randn(400, 6, generator=G)
    data[where, 3] = torch.nan
    with pytest.raises(DataError, match=rf"features of layer 'act1' at sample {where};"):
        rs.record(networks.seeded(networks.MLP).cuda(), data, layers=["act1"], batch_size=16)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_batches_below_a_block_on_a_gpu(gradients, on_bad):
    model, data = networks.seeded(networks.MLP).cuda(), CASES["mlp"][2]
    options = {"block": 16, "gradients": gradients, "on_bad": on_bad}
    whole = rs.record(model, data, **options)
    for batch_size in (1, 3, 8):
        parted = rs.record(model, data, batch_size=batch_size, **options)
        assert parted.block_sizes == whole.block_sizes
        assert max(differences(whole, parted)) < 3e-4


# -- whole kernels, norms, large means, sketches ---------------------------------------------------


def conv_net(channels=48):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
    )


@pytest.mark.parametrize("samples", [150, 1100], ids=["whole", "blocks"])
@pytest.mark.parametrize("side", [6, 16], ids=["narrow", "wide"])
@pytest.mark.parametrize("options", [{}, {"buckets": 0}, {"deterministic": True}], ids=str)
def test_sketches_and_norms_on_a_gpu_are_those_of_the_cpu(samples, side, options):
    torch.manual_seed(0)
    images = torch.randn(samples, 3, side, side)  # 1,728 and 12,288 features
    net = conv_net()
    net(images[:2])
    cpu = rs.record(net, images, layers=["1"], **options)["1"]
    net = net.cuda().to(memory_format=torch.channels_last)
    last = images.contiguous(memory_format=torch.channels_last)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        gpu = rs.record(net, last, layers=["1"], data_id="x", **options)["1"]
    assert gpu.shape == cpu.shape == (48, side, side)
    assert (cpu.features.whole is None) == (gpu.features.whole is None) == (samples == 1100)
    for kind in ("features", "gradients"):
        one, two = cpu.recorded(kind), gpu.recorded(kind)
        torch.testing.assert_close(two.norms, one.norms, rtol=1e-3, atol=1e-9)
        scale = float(one.sketch.table.abs().max())
        assert float((one.sketch.table - two.sketch.table).abs().max()) < 1e-3 * scale
        assert float((one.sketch.total - two.sketch.total).abs().max()) < 1e-3 * float(
            one.sketch.total.abs().max()
        )


@pytest.mark.parametrize("samples", [300, 1500], ids=["whole", "blocks"])
@pytest.mark.parametrize("ratio", [100, 10_000])
def test_a_large_mean_on_a_gpu(samples, ratio):
    class Shift(nn.Module):
        def __init__(self, by):
            super().__init__()
            self.layer, self.by = nn.Identity(), nn.Parameter(torch.tensor(by))

        def forward(self, x):
            return self.layer(x + self.by)

    x = torch.randn(samples, 2000, generator=G)
    options = {"gradients": False, "layers": ["layer"], "data_id": "x"}
    plain, shifted = (
        rs.record(Shift(by).cuda(), x.cuda(), **options) for by in (0.0, float(ratio))
    )
    score = rs.compare(plain, shifted, kernel="features", estimator="blocks").scores
    assert float(score[0, 0]) > 0.999


def test_many_tensors_come_from_a_gpu_in_few_copies():
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(3, 5, generator=g).t(), torch.zeros(0), torch.tensor(2.5)]
    tensors += [torch.randint(-9, 9, (n,), generator=g).to(torch.int16) for n in (1, 3, 2**22, 7)]
    tensors += [torch.randn(2**23, generator=g, dtype=torch.float64), torch.arange(5)]
    arrive = copy_all_to_host_async([x.cuda() for x in tensors[:-1]] + tensors[-1:])
    for found, x in zip(arrive(), tensors, strict=True):
        assert not found.is_cuda
        assert torch.equal(found, x)
        assert found.untyped_storage().nbytes() == x.nbytes or not x.nbytes  # no one else's


def test_predictions_are_the_same_however_many_wait_on_a_gpu(monkeypatch):
    def outputs():
        net = networks.seeded(networks.MLP).cuda()
        return rs.record(net, CASES["mlp"][2], block=16, batch_size=16).outputs

    whole = outputs()
    monkeypatch.setattr(
        output_summary, "_MAX_BYTES_ON_DEVICE", 4000
    )  # some batches': the last ones still wait
    parted = outputs()
    assert not whole.every.is_cuda
    torch.testing.assert_close(parted.every, whole.every)


def test_the_hash_of_all_weights_is_the_same_on_a_gpu():
    net = networks.seeded(networks.ResNet)
    before = begin_weight_hashes(net)()
    assert before == begin_weight_hashes(net.cuda())()
    half = networks.seeded(networks.ResNet).bfloat16()
    assert hash_all_weights(half) == hash_all_weights(half.cuda())


class OnAnyDeviceForCausalLM(networks.LittleForCausalLM):
    """The same with its positions counted on the device it is on."""

    def forward(self, input_ids, attention_mask=None):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("batch_size", [1, 5, 16, 100])
def test_tokens_on_a_gpu_are_those_of_the_cpu(batch_size, on_bad):
    net = networks.seeded(OnAnyDeviceForCausalLM)
    options = {"tokens": 4, "block": 16, "layers": ["blocks.0", "blocks.1"], "on_bad": on_bad}
    cpu = rs.record(net, networks.texts(60), **options)
    gpu = rs.record(net.cuda(), networks.texts(60), batch_size=batch_size, **options)
    assert gpu.rows == cpu.rows
    assert gpu.block_hashes == cpu.block_hashes
    assert max(differences(cpu, gpu)) < 3e-4


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("unit", ["token", "sample"])
def test_a_gpu_that_runs_out_of_memory_goes_on_with_halves(unit):
    """A tenth of what the batch would take is left to it."""

    class WideForCausalLM(OnAnyDeviceForCausalLM):
        def __init__(self):
            super().__init__()
            self.wide = nn.Linear(12, 2**20)

        def forward(self, input_ids, attention_mask=None):
            x = super().forward(input_ids, attention_mask)
            return x + self.wide(self.tokens(input_ids)).amax(-1, keepdim=True)

    net, data = networks.seeded(WideForCausalLM).cuda(), networks.texts(64)
    pool = {} if unit == "token" else {"pool": "mean"}
    options = {"layers": ["blocks.0", "blocks.1"], "block": 32, "unit": unit, **pool}
    expected = rs.record(net, data, batch_size=2, **options)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    # at 32 sequences of 14 tokens the wide layer alone makes 1.9 GB, three times
    torch.cuda.set_per_process_memory_fraction((total - free + 1.5 * 2**30) / total)
    try:
        found = rs.record(net, data, batch_size=32 if unit == "token" else "auto", **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    stored.assert_same(found, expected, tolerance=1e-3)


def test_layers_on_two_devices():
    """The embedding stays on the host, the rest is on the GPU."""
    net = networks.seeded(OnAnyDeviceForCausalLM)
    options = {"tokens": 4, "block": 16, "layers": ["tokens", "blocks.0", "blocks.1"]}
    expected = rs.record(net, networks.texts(56), **options)
    net.blocks.cuda()
    net.head.cuda()
    moved = net.blocks[0].register_forward_pre_hook(lambda _, x: (x[0].cuda(),))
    found = rs.record(net, networks.texts(56), **options)
    moved.remove()
    assert max(differences(expected, found)) < 3e-4


SHARED = """
import sys

import torch
import torch.distributed as dist

import networks
import resemblance as rs

backend, device = sys.argv[1:]
dist.init_process_group(backend)
net = networks.seeded(networks.ResNet).to(device)
data = torch.randn(3000, 3, 6, 6, generator=torch.Generator().manual_seed(0))
together = rs.record(net, data, shard="ranks", progress=False)
if dist.get_rank() == 0:
    alone = rs.record(net, data, progress=False)
    print(float(rs.compare(together, alone, kernel="gradients").scores.diagonal().min()))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("backend", "count"), [("nccl", 1), ("gloo", 2)])
def test_processes_that_share_a_gpu_record_what_one_does(backend, count, tmp_path):
    """Nccl takes one process a device; gloo sends what lies on a GPU by way of the host."""
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*launch, str(count), str(script), backend, "cuda"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert float(done.stdout.split()[-1]) > 1 - 1e-6, done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_samples_on_a_gpu_have_the_hashes_that_they_have_on_the_host(dtype):
    images = (10 * torch.randn(6, 3, 20, 20, generator=G)).clamp_min(0).to(dtype)
    batch = {"x": images, "some": images[:, 0, 0, :7], **networks.tokens(6, length=5)}
    there = {key: value.cuda() for key, value in batch.items()}
    last = {**there, "x": there["x"].contiguous(memory_format=torch.channels_last)}
    half = {**batch, "x": there["x"]}
    labels = torch.arange(6)
    reader = SampleHasher()
    here = reader.hashing([reader.read((batch, labels))])
    for other in ((there, labels.cuda()), (last, labels), (half, labels.cuda())):
        reader = SampleHasher()
        twice = reader.hashing([reader.read(other)] * 2)
        for what in ("known_by", "content", "labels"):
            assert (twice.hashes(what) == np.tile(here.hashes(what), 2)).all()


@pytest.mark.parametrize("batch_size", [16, "auto"])
def test_samples_from_the_host_have_their_hashes_wherever_the_model_runs(batch_size):
    """On a GPU they are hashed there, before the model writes into what it is given."""

    class Overwriting(networks.MLP):
        def forward(self, x):
            return super().forward(x.mul_(2))

    x, labels = torch.randn(100, 6, generator=G), torch.arange(100) % 3
    options = {"block": 16, "batch_size": batch_size}
    net = networks.seeded(Overwriting)
    cpu = rs.record(net, (x, labels), **options)
    net.cuda()
    for data in ((x, labels), (x.cuda(), labels), (x.cuda(), labels.cuda())):
        gpu = rs.record(net, data, **options)
        for name in ("fingerprint", "content", "labels"):
            assert getattr(gpu.data, name) == getattr(cpu.data, name) is not None
        assert gpu.block_hashes == cpu.block_hashes
        assert gpu.label_hashes == cpu.label_hashes


# -- data from the host ----------------------------------------------------------------------------

IMAGES = torch.randint(0, 256, (300, 3, 12, 12), generator=G, dtype=torch.uint8)
LABELS = torch.arange(300) % 5


class Images(Dataset):
    """Images of eight bits that a transform normalises, as whoever loads them sees fit."""

    def __init__(self, error=None):
        self.error, self.read = error, 0

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        self.read += 1
        if self.error is not None and self.read > 150:
            raise self.error("as it is")
        return IMAGES[i].float() / 255, LABELS[i]


def rows_of_images(samples):
    x, labels = zip(*samples, strict=True)
    return torch.stack(x), torch.stack(labels)


def refilled(batch=50, *, pinned):
    """Batches in one buffer, which the next is written into at once."""
    buffer = torch.empty(batch, *IMAGES.shape[1:], pin_memory=pinned)
    for part, labels in zip(IMAGES.split(batch), LABELS.split(batch), strict=True):
        yield buffer.copy_(part.float() / 255), labels
        buffer.fill_(float("nan"))


def from_the_host(kind, path):
    x = IMAGES.float() / 255
    np.save(path, x.numpy())
    return {
        "pageable": lambda: (x, LABELS),
        "channels last": lambda: (x.to(memory_format=torch.channels_last), LABELS),
        "pinned": lambda: (x.pin_memory(), LABELS.pin_memory()),
        "array": lambda: (x.numpy(), LABELS.numpy()),
        "memory-mapped": lambda: (np.load(path, mmap_mode="r+"), LABELS),
        "read-only": lambda: (np.load(path, mmap_mode="r"), LABELS),
        "dict": lambda: {"x": x, "labels": LABELS},
        "loader over tensors": lambda: DataLoader(TensorDataset(x, LABELS), batch_size=7),
        "loader": lambda: DataLoader(Images(), batch_size=7),
        "pinning loader": lambda: DataLoader(Images(), batch_size=7, pin_memory=True),
        "workers": lambda: DataLoader(Images(), batch_size=7, num_workers=2),
        "pinning workers": lambda: DataLoader(Images(), num_workers=2, pin_memory=True),
        "collating workers": lambda: DataLoader(Images(), num_workers=2, collate_fn=rows_of_images),
        "collating, pinning workers": lambda: DataLoader(
            Images(), num_workers=2, collate_fn=rows_of_images, pin_memory=True
        ),
    }[kind]()


def slowly(net, batch):
    """A device that is far behind the host, which would show what is written over too early."""
    torch.cuda._sleep(5_000_000)
    return net(**{"x": batch["x"]}) if isinstance(batch, dict) else net(batch[0])


SIDES = ["pageable", "channels last", "pinned", "array", "memory-mapped", "read-only", "dict"]
SIDES += ["loader over tensors", "loader", "pinning loader", "workers", "pinning workers"]
SIDES += ["collating workers", "collating, pinning workers"]
HOST = {"block": 16, "batch_size": 48, "call": slowly, "progress": False}


@pytest.mark.parametrize("pieces", [2**10, 2**26], ids=["pieces", "whole"])
@pytest.mark.parametrize("kind", SIDES)
def test_data_from_the_host_are_those_on_the_gpu(kind, pieces, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_PIECE_BYTES", pieces)
    if pieces < 2**26:
        monkeypatch.setattr(devices, "_PINNED_BYTES", 0)
    net = networks.seeded(networks.ResNet).cuda()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = rs.record(net, ((IMAGES.float() / 255).cuda(), LABELS.cuda()), **HOST)
        found = rs.record(net, from_the_host(kind, tmp_path / "x.npy"), **HOST)
    assert found.data.fingerprint == expected.data.fingerprint
    assert found.block_hashes == expected.block_hashes
    assert found.label_hashes == expected.label_hashes
    assert max(differences(expected, found)) < 3e-4


def test_images_of_eight_bits_are_sent_as_they_are():
    def call(net, x):
        assert x.dtype == torch.uint8
        return net(x.float() / 255)

    net, how = networks.seeded(networks.ResNet).cuda(), {**HOST, "call": call}
    expected = rs.record(net, IMAGES.cuda(), **how)
    assert max(differences(expected, rs.record(net, IMAGES, **how))) < 3e-4


@pytest.mark.parametrize("pinned", [True, False])
def test_a_buffer_that_a_stream_fills_again_was_sent_before(pinned):
    net = networks.seeded(networks.ResNet).cuda()
    parts = zip((IMAGES.float() / 255).cuda().split(50), LABELS.split(50), strict=True)
    how = {**HOST, "block": 50, "batch_size": 50}
    expected = rs.record(net, iter(list(parts)), **how)
    found = rs.record(net, refilled(pinned=pinned), **how)
    assert found.data.fingerprint == expected.data.fingerprint
    assert max(differences(expected, found)) < 3e-4


def test_data_from_the_host_take_a_few_batches_more_of_a_gpu():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
    x, size = torch.randn(4096, 3, 64, 64, generator=G), 128 * 3 * 64 * 64 * 4
    how = {"batch_size": 128, "data_id": "x", "buckets": 0, "progress": False}

    def peak(data):
        rs.record(net, data, call=lambda net, x: (torch.cuda._sleep(30_000_000), net(x))[1], **how)
        torch.cuda.synchronize()
        active = torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        return active["active_bytes.all.peak"] - active["active_bytes.all.current"]

    there = x.cuda()
    peak(there)
    held, before = torch.cuda.memory_reserved(), peak(there)
    more = peak(x) - before
    # two whose work waits and one that is sent, where data on the device are gathered in one
    assert more < 3.5 * size
    assert torch.cuda.memory_reserved() - held < 8 * size  # which is taken 20 MiB at a time


def other_threads():
    """How many threads there are, once those of queues that are closed have ended."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=10)
    return threading.active_count()


@pytest.mark.slow
def test_a_hundred_passes_leave_no_thread_and_no_memory():
    net = networks.seeded(networks.ResNet).cuda()
    sources = [(IMAGES.float(), LABELS), DataLoader(Images(), batch_size=7, pin_memory=True)]
    sources += [DataLoader(Images(), num_workers=2)]
    how = {"block": 16, "batch_size": 64, "progress": False}

    def held():
        torch.cuda.synchronize()
        lines = Path("/proc/self/status").read_text().splitlines()
        resident = next(line for line in lines if line.startswith("VmRSS")).split()[1]
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), int(resident)

    for i in range(110):
        if i == 10:
            threads, (allocated, reserved, resident) = other_threads(), held()
        rs.record(net, sources[i % 3], **how)
    assert other_threads() == threads
    after = held()
    assert after[0] == allocated
    assert after[1] - reserved <= 2**25  # a block or two more, as the host was further ahead
    assert after[2] - resident < 2**16  # kB


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("where", ["data", "network"])
def test_an_error_with_data_from_the_host_surfaces_and_leaves_no_thread(error, where):
    calls = []

    def call(net, batch):
        calls.append(1)
        if where == "network" and len(calls) == 5:
            raise error("as it is")
        return net(batch[0])

    data = DataLoader(Images(error if where == "data" else None), batch_size=7, pin_memory=True)
    net, before = networks.seeded(networks.ResNet).cuda(), threading.active_count()
    with pytest.raises(error, match="as it is"):
        rs.record(net, data, **{**HOST, "call": call})
    assert threading.active_count() == before
    assert rs.record(net, (IMAGES.float(), LABELS), **HOST).samples == 300


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_error_with_workers_ends_them_and_the_thread_that_pins_what_they_send(error):
    calls = []

    def call(net, batch):
        calls.append(threading.active_count())
        if len(calls) == 5:
            raise error("as it is")
        return net(batch[0])

    net, before = networks.seeded(networks.ResNet).cuda(), other_threads()
    children = len(multiprocessing.active_children())
    with pytest.raises(error, match="as it is"):
        rs.record(net, DataLoader(Images(), num_workers=2), **{**HOST, "call": call})
    assert other_threads() == before
    assert len(multiprocessing.active_children()) == children


def test_auto_takes_the_batches_that_memory_allows_and_gives_the_same():
    net, sizes = networks.seeded(networks.ResNet).cuda(), []

    def call(net, batch):
        sizes.append(len(batch[0]))
        return net(batch[0])

    data, how = (IMAGES.float().cuda(), LABELS), {"block": 16, "progress": False}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = rs.record(net, data, call=call, **how)
        expected = rs.record(net, data, batch_size=48, **how)
    assert max(sizes) == 300  # of a network as small as this
    assert max(differences(expected, found)) < 3e-4
