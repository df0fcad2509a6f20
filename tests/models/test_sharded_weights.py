"""Models whose weights are sharded over processes: two real ones, on this machine."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

import networks
import resemblance as rs
import stored
from resemblance._models.wrappers import find_tensor_parallel_weight, is_sharded, sharding_of
from resemblance.callbacks import Monitor
from resemblance.errors import DataError

SECONDS = 120  # after which something hangs
OPTIONS = {"data_id": "x", "progress": False}
LAYERS = ["act1", "act2"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
]


def mlp():
    return networks.seeded(networks.MLP, width=8)


def vectors():
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


def images():
    return torch.randn(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def fully_sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    inner = model.layer1 if isinstance(model, networks.ResNet) else (model.fc1, model.fc2)
    for part in inner:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrapped(model, *, original):
    from torch.distributed.fsdp import FullyShardedDataParallel

    options = {"use_orig_params": original, "device_id": torch.device("cpu")}
    model.fc2 = FullyShardedDataParallel(model.fc2, **options)
    return FullyShardedDataParallel(model, **options)


def split(model, mesh):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    return parallelize_module(model, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})


def one_of_two(rank, folder):
    """What each process does: record, and note what went wrong."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=SECONDS / 2),
    )
    mesh, said = init_device_mesh("cpu", (2,)), {}

    def keep(name, model, data, **options):
        try:
            rs.record(model, data, **OPTIONS, **options).save(f"{folder}/{name}.{rank}.rsm")
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"

    def watch(name, model):
        """A Monitor in the first process alone, as the callbacks have it."""
        if rank == 0:
            try:
                found = Monitor(vectors(), f"{folder}/{name}").step(model, 0)
            except DataError as error:
                found = str(error)
            said[name] = found

    model = fully_sharded(mlp(), mesh)
    keep("sharded", model, vectors())
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    model(vectors()).sum().backward()
    said["trains"] = all(frozen) and all(p.grad is not None for p in model.parameters())
    keep("trained", model, vectors())
    keep("features", model, vectors(), gradients=False)
    keep("misfit", model, vectors()[:, :3])
    keep("after", model, vectors())
    keep("images", fully_sharded(networks.seeded(networks.ResNet), mesh), images())
    for original in (False, True):
        names = [f"_fsdp_wrapped_module.{name}" for name in LAYERS]
        name, older = f"wrapped-{original}", wrapped(mlp(), original=original)
        keep(name, older, vectors(), layers=names)
        for part, inside in (("whole", older), ("inner", older.module)):
            watch(f"watched-{original}-{part}", inside)
    watch("watched-new", fully_sharded(mlp(), mesh))
    watch("watched-replicas", nn.parallel.DistributedDataParallel(mlp()).module)
    keep("split", split(mlp(), mesh), vectors())
    keep("split and sharded", fully_sharded_and_split(), vectors())
    Path(folder, f"said.{rank}").write_text(json.dumps(said))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def fully_sharded_and_split():
    """Both at once, on a mesh of one by two."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    return fully_sharded(split(mlp(), mesh["tensor"]), mesh["data"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("two")
    running = torch.multiprocessing.spawn(one_of_two, (str(path),), nprocs=2, join=False)
    end = time.monotonic() + SECONDS
    try:
        while not running.join(timeout=1):
            if time.monotonic() > end:
                pytest.fail("two processes did not end")
        return path
    finally:
        for process in running.processes:
            process.kill()


def said(folder, rank):
    return json.loads((folder / f"said.{rank}").read_text())


CASES = {
    "sharded": (mlp, vectors, {}),
    "trained": (mlp, vectors, {}),
    "features": (mlp, vectors, {"gradients": False}),
    "after": (mlp, vectors, {}),
    "images": (lambda: networks.seeded(networks.ResNet), images, {}),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_what_fsdp_shards_is_recorded_whole_in_every_process(case, rank, folder):
    build, data, options = CASES[case]
    expected = rs.record(build(), data(), **OPTIONS, **options)
    found = rs.load(folder / f"{case}.{rank}.rsm")
    stored.assert_same(found, expected)
    assert found.model.fingerprint == expected.model.fingerprint
    assert found.model.weights == expected.model.weights
    assert found.model.parameters == expected.model.parameters


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("original", [False, True])
def test_so_is_what_the_older_fsdp_wraps(original, rank, folder):
    expected = rs.record(mlp(), vectors(), **OPTIONS, layers=LAYERS)
    found = rs.load(folder / f"wrapped-{original}.{rank}.rsm")
    assert [layer.bare_name for layer in found] == LAYERS
    same = rs.compare(found, expected, kernel="product", index="cka")
    assert same.scores.diagonal() == pytest.approx([1, 1], abs=1e-6)  # as kernels are stored
    assert found.model.weights == expected.model.weights


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sharded_model_still_trains(rank, folder):
    assert said(folder, rank)["trains"]


@pytest.mark.parametrize("rank", [0, 1])
def test_errors_come_in_every_process(rank, folder):
    found = {k: text for k, text in said(folder, rank).items() if not k.startswith("watched")}
    assert "fails on the first samples" in found["misfit"]
    for name in ("split", "split and sharded"):
        assert found[name] == (
            "DataError: the model uses tensor parallelism ('fc1.weight' is split over processes), "
            "so outputs of its layers are partial; record it unsharded, or with FSDP"
        )
    assert set(found) == {"trains", "misfit", "split", "split and sharded"}


@pytest.mark.parametrize("part", ["whole", "inner"])
@pytest.mark.parametrize("original", [False, True])
def test_a_monitor_refuses_what_the_older_fsdp_wraps(original, part, folder):
    """Also the network inside, which a trainer's callback may be given."""
    found = said(folder, 0)[f"watched-{original}-{part}"]
    assert found.startswith("FullyShardedDataParallel (FSDP 1) splits the weights")


def test_a_monitor_refuses_what_fsdp_shards_and_takes_replicas(folder):
    found = said(folder, 0)
    assert found["watched-new"].startswith("FSDP or tensor parallelism splits the weights")
    assert any(name.startswith("features_vs_start/") for name in found["watched-replicas"])


def test_a_monitor_refuses_weights_marked_as_zero_3_has_them(tmp_path):
    """DeepSpeed is no dependency: its marks are set by hand, on a weight that is elsewhere."""
    model = mlp()
    model.fc1.weight.data = torch.empty(0)
    model.fc1.weight.ds_id = 0
    model.fc1.weight.ds_shape = torch.Size([8, 6])
    with pytest.raises(DataError, match=r"DeepSpeed's ZeRO 3 splits .* Save checkpoints"):
        Monitor(vectors(), tmp_path).step(model, 0)


def test_ordinary_weights_are_not_spread():
    model = mlp()
    assert sharding_of(model) is None
    assert find_tensor_parallel_weight(model) is None
    assert not is_sharded(model.fc1.weight)
    assert not is_sharded("weight")
    assert not is_sharded(nn.Parameter(torch.zeros(2)))
