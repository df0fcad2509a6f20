"""Recordings that processes share and resume, from the command line, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import little_language
import resemblance as rs
from resemblance.cli import commands
from resemblance.errors import DataError

MODELS = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))


class Choosing(nn.Sequential):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else x + 0)


def choosing():
    return Choosing(*net())


def few():
    return torch.randn(500, 6, generator=torch.Generator().manual_seed(1))


def many():
    return torch.randn(3000, 6, generator=torch.Generator().manual_seed(1))
"""
WORDS = ("record", "--model", "models.py:net", "--name", "net")


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scores(a, b):
    return abs(
        rs.compare(a, b, kernel="product").scores - rs.compare(a, a, kernel="product").scores
    ).max()


@pytest.mark.usefixtures("models")
def test_a_file_that_tells_of_many_shards_is_told_of_in_short(run):
    run(*WORDS, "--data", "models.py:many", "--shard", "0/3", "-o", "0.rsm")
    rep = rs.load("0.rsm")
    replace(rep, data=replace(rep.data, shards=((1, 10**12),))).save("many.rsm")
    about = json.loads(run("info", "many.rsm", "--json", "-")[1])[0]
    assert about["shards"].startswith(f"1 of {10**12} shards, missing 0, 2, 3")
    assert about["shards"].endswith(" more")
    assert len(about["shards"]) < 200


@pytest.mark.usefixtures("models")
def test_shards_and_merge(run, refused):
    words = (*WORDS, "--data", "models.py:many")
    assert run(*words, "-o", "all.rsm")[0] == 0
    for i in range(3):
        status, out, err = run(*words, "--shard", f"{i}/3", "-o", f"{i}.rsm")
        assert (status, err) == (0, "")
        missing = ", ".join(str(j) for j in range(3) if j != i)
        assert f"1 of 3 shards, missing {missing}" in out
    assert "has 1 of 3 shards of a recording; record the missing ones and" in refused(
        "compare", "0.rsm", "all.rsm"
    )
    status, out, _ = run("merge", "2.rsm", "0.rsm", "-o", "some.rsm")
    assert status == 0
    assert out == "some.rsm: net, 2,000 samples; 2 of 3 shards, missing 1\n"
    about = json.loads(run("info", "some.rsm", "--json", "-")[1])
    assert about[0]["shards"] == "2 of 3 shards, missing 1"
    assert run("merge", "some.rsm", "1.rsm", "-o", "merged.rsm")[1] == (
        "merged.rsm: net, 3,000 samples\n"
    )
    assert scores(rs.load("all.rsm"), rs.load("merged.rsm")) < 1e-5
    assert "shards overlap" in refused("merge", "0.rsm", "0.rsm", "-o", "twice.rsm")
    assert not os.path.exists("twice.rsm")


@pytest.mark.usefixtures("models")
def test_few_samples_are_not_shared_out(refused):
    words = (*WORDS, "--data", "models.py:few", "--shard", "0/2", "-o", "x.rsm")
    assert refused(*words) == (
        "500 samples are too few for --shard: with up to 1,024 samples the full Gram matrix is "
        "stored, which takes a single recording; omit --shard"
    )
    assert not os.path.exists("x.rsm")


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("text", ["3/3", "1", "a/b", "-1/3", "0/0"])
def test_what_is_no_shard(refused, text):
    words = (*WORDS, "--data", "models.py:many", f"--shard={text}", "-o", "x.rsm")
    assert refused(*words) == (f"--shard must be I/N with 0 <= I < N, such as 0/8; found {text!r}")


@pytest.mark.usefixtures("models")
def test_a_checkpoint_is_gone_when_the_file_is_there(run):
    words = (*WORDS, "--data", "models.py:many", "--checkpoint", "c", "--every", "0")
    assert run(*words, "-o", "x.rsm")[0] == 0
    assert os.path.exists("x.rsm")
    assert not os.path.exists("c")


@pytest.mark.slow
def test_torchrun_records_what_one_process_does(models, run):
    words = [*WORDS, "--data", "models.py:many", "-o"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", "-m", "resemblance", *words, "ranks.rsm"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("ranks.rsm: net, 2 layers, 3,000 samples") == 1
    assert run(*words, "one.rsm")[0] == 0
    one, ranks = rs.load("one.rsm"), rs.load("ranks.rsm")
    assert one.block_hashes == ranks.block_hashes
    assert one.data == ranks.data
    assert scores(one, ranks) < 1e-5
    for a, b in zip(one, ranks, strict=True):
        torch.testing.assert_close(a.features.norms, b.features.norms, rtol=1e-5, atol=1e-9)


@pytest.mark.usefixtures("models")
def test_torchrun_s_processes_take_no_shards(refused, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = (*WORDS, "--data", "models.py:many", "--shard", "0/2", "-o", "x.rsm")
    assert "--shard cannot be used under torchrun" in refused(*words)


def test_tokens_of_few_sequences_are_shared_out():
    """Their kernels are never kept whole."""
    ids = torch.randint(1, 60, (96, 12), generator=torch.Generator().manual_seed(0))
    how = {"tokens": 2, "block": 8, "buckets": 16, "shard": (0, 2), "progress": False}
    part = rs.record(little_language.gpt2(), ids, **how)
    commands.refuse_small_shards(part, 64)
    with pytest.raises(DataError, match="96 samples are too few for --shard"):
        commands.refuse_small_shards(
            replace(part, settings=replace(part.settings, unit="sample")), 64
        )


@pytest.mark.usefixtures("models")
@pytest.mark.filterwarnings("default::resemblance.errors.ResemblanceWarning")
def test_compiling_is_asked_for_in_a_word(run):
    words = (*WORDS[:2], "models.py:choosing", *WORDS[3:], "--data", "models.py:many")
    status, _, err = run(*words, "--compile", "-o", "x.rsm")
    assert status == 0
    assert "the network runs in eager mode" in err


@pytest.mark.usefixtures("models")
def test_processes_that_do_not_find_each_other(refused, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    words = (*WORDS, "--data", "models.py:many", "-o", "x.rsm")
    assert "could not be initialised" in refused(*words)
