"""Processes that share a pass: real ones, on gloo, started and watched by torchrun's own launcher.

The launcher forks them from one process that has imported everything, which saves most of the time
that the command torchrun would take; tests/cli/test_sharing.py runs that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_checkpoints import assert_same
from torch import nn

import resemblance as rs
from resemblance.cli import commands
from resemblance.errors import DataError
from resemblance.recording import checkpoints

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and hasattr(os, "fork")), reason="needs torch.distributed and fork"
)

OPTIONS = {"block": 50, "blocks": 9, "buckets": 128, "name": "net", "progress": False}
CASES = {  # samples, and what is special about them
    "many": (1100, {}),
    "not divided": (1030, {}),
    "kept whole": (300, {"block": "auto"}),
    "less blocks than processes": (1100, {"block": 1000, "blocks": 2}),
    "stream": (1100, {}),
    "without buckets": (1100, {"buckets": 0}),
    "wrapped": (1100, {}),
    "embeddings": (1100, {"logits": "none", "gradients": False}),
}
COUNTS = (1, 2, 3)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 9), nn.Linear(9, 4))


def samples(case):
    total, options = CASES[case]
    x = torch.randn(total, 12, generator=torch.Generator().manual_seed(0))
    return (list(x.split(37)) if case == "stream" else x), {**OPTIONS, **options}


# -- what processes run --------------------------------------------------------------------------


def one_of_several(folder):
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(folder)
    for case in CASES:
        data, options = samples(case)
        model = nn.parallel.DistributedDataParallel(net()) if case == "wrapped" else net()
        found = rs.record(model, data, shard="ranks", **options)
        found.save(folder / f"{case}.{rank}.rsm")
    if dist.get_world_size() > 1:
        _and_what_goes_wrong(folder, rank)
    dist.destroy_process_group()


def _and_what_goes_wrong(folder, rank):
    """A bad sample in the share of one; other weights in one; a checkpoint of another pass."""
    data, options = samples("many")
    told = []
    bad = data.clone()
    bad[data.shape[0] // 2] = torch.nan
    other = net()
    other[0].weight.data += rank
    if rank == 1:
        (folder / "c.1").write_bytes(b"nonsense")
    dist.barrier()
    for model, some, more in (
        (net(), bad, {}),
        (other, data, {}),
        (net(), data, {"checkpoint": (folder / "c", 0)}),
    ):
        try:
            rs.record(model, some, shard="ranks", **options, **more)
        except rs.ResemblanceError as error:
            told.append(str(error))
    (folder / f"told.{rank}").write_text("\n".join(told))


class Deadly(nn.Module):
    """Kills the second process in the middle of its share, in the first life of the job."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = net(), 0

    def forward(self, x):
        self.calls += 1
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_life and dist.get_rank() == 1 and self.calls > 8:
            os.kill(os.getpid(), 9)
        return self.net(x)


def one_that_dies(folder):
    checkpoints._MIN_PASS_TO_WRITE_TIME = 0  # a checkpoint after every block, whatever it costs
    data, options = samples("many")
    model, folder = Deadly(), Path(folder)
    options |= {"shard": "ranks", "batch_size": 50, "checkpoint": (folder / "c", 0)}
    with commands.process_group("cpu") as (rank, _):
        rs.record(model, data, **options).save(folder / f"done.{rank}.rsm")
    (folder / f"calls.{rank}").write_text(str(model.calls))


def launched(count, work, folder, restarts=0):
    """So many forks of this process, as torchrun would start them."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    folder.mkdir()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=restarts,
        monitor_interval=0.1,
    )
    elastic_launch(config, work)(str(folder))


def all_jobs(folder):
    """One after the other, in a process of their own."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    torch.set_num_threads(1)
    folder = Path(folder)
    for count in COUNTS:
        launched(count, one_of_several, folder / str(count))
    try:
        launched(2, one_that_dies, folder / "dead")
    except ChildFailedError as error:
        (folder / "dead.txt").write_text(str(error))
    launched(2, one_that_dies, folder / "restarted", restarts=1)


# -- what comes of it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The folder in which all jobs have run."""
    folder = tmp_path_factory.mktemp("jobs")
    path = os.pathsep.join(p for p in sys.path if p)
    code = f"import {__name__} as t; t.all_jobs({str(folder)!r})"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def alone():
    """What one process records."""
    return {case: rs.record(net(), data, **how) for case in CASES for data, how in [samples(case)]}


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_all_processes_get_what_one_alone_records(jobs, alone, count):
    for case, one in alone.items():
        found = [rs.load(jobs / str(count) / f"{case}.{rank}.rsm") for rank in range(count)]
        assert all(each == found[0] for each in found)
        if one.settings.buckets:
            assert_same(one, found[0])
        else:
            assert (one.block_hashes, one.samples) == (found[0].block_hashes, found[0].samples)


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS[1:])
def test_what_goes_wrong_in_one_is_told_to_all(jobs, count):
    every = [(jobs / str(count) / f"told.{rank}").read_text() for rank in range(count)]
    told = [text.splitlines() for text in every]
    assert all(len(lines) == 3 for lines in told), told
    assert sum("NaN or Inf" in lines[0] and "failed" not in lines[0] for lines in told) == 1
    assert sum("failed, so nothing was recorded" in lines[0] for lines in told) == count - 1
    assert all("are inconsistent" in x[1] and "model weights differs" in x[1] for x in told)
    assert all("c.1 is damaged" in lines[2] for lines in told)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_job_without_a_result(jobs):
    told = (jobs / "dead.txt").read_text()  # of the first to end, by what torch's launcher saw
    assert "Signal 9" in told or "restart all processes" in told
    assert not list((jobs / "dead").glob("*.rsm"))
    assert (jobs / "dead/c.1").exists()  # from which it could have gone on


@pytest.mark.slow
def test_a_job_that_torchrun_restarts_goes_on_from_its_checkpoints(jobs, alone):
    folder = jobs / "restarted"
    for rank in range(2):
        found = rs.load(folder / f"done.{rank}.rsm")
        assert_same(alone["many"], replace(found, model=alone["many"].model))
    calls = sum(int((folder / f"calls.{rank}").read_text()) for rank in range(2))
    assert calls < 22  # blocks in all, though each process tries the network as well


def test_without_a_group_there_is_nobody_to_share_with():
    with pytest.raises(DataError, match="no process group is initialised; start with torchrun"):
        rs.record(net(), torch.zeros(8, 12), shard="ranks")
