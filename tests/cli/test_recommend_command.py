"""`resemblance recommend`: a table and words, JSON, a zoo, and every mistake."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs

NETS = """
import torch
from torch import nn


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def other():
    return small(1)


def both():
    return {"small": small, "other": other}
"""
NOTING = """
from torch import nn


class Noting(nn.Sequential):
    def to(self, device):
        with open("seen.txt", "a") as file:
            file.write(f"{device} ")
        return super().to(device)
"""
FEW = ("--data", "digits", "--samples", "200")


def small(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@pytest.fixture
def nets(folder):
    (folder / "nets.py").write_text(NETS)
    (folder / "models.toml").write_text('[models]\nsmall = "nets.py:small"\n')
    return folder


@pytest.fixture
def zoo(nets):
    from dataclasses import replace

    x = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with rs.Zoo(nets / "zoo") as opened:
        for name, seed in (("small", 0), ("other", 1)):
            rep = rs.record(small(seed), x, name=name, progress=False)
            own = replace(rep.model, address=f"nets.py:{name}")
            opened.add(replace(rep, model=own))
    return nets


def test_networks_of_a_file_are_ranked_without_a_zoo(nets, run):
    status, out, _ = run("recommend", *FEW, "--models", "nets.py:both")
    assert status == 0
    assert "candidate" in out
    assert "Start from" in out
    assert "200 labelled samples drawn of 1,797" in out


def test_a_zoo_shows_addresses_and_runs_what_is_trusted(zoo, run):
    status, out, _ = run("recommend", "zoo", *FEW, "--models", "models.toml")
    assert status == 0
    assert "'nets.py:other'" in " ".join(out.split())
    status, out, _ = run(
        "recommend",
        "zoo",
        *FEW,
        "--models",
        "models.toml",
        "--trust",
        "nets.py:other",
        "--json",
        "-",
    )
    content = json.loads(out)
    assert status == 0
    assert {one["name"] for one in content["ranked"]} == {"small", "other"}
    assert content["left_out"] == []


def test_every_network_is_brought_to_the_device(zoo, run):
    (zoo / "nets.py").write_text(NOTING + NETS.replace("nn.Sequential(", "Noting("))
    words = ("--models", "models.toml", "--trust", "nets.py:other", "--reference", "nets.py:small")
    status, _, err = run("recommend", "zoo", *FEW, *words, "--device", "cpu")
    assert status == 0, err
    assert (zoo / "seen.txt").read_text().split() == ["cpu"] * 3  # two candidates, and that


def test_numbers_as_json_and_as_a_file(nets, run):
    words = ("recommend", *FEW, "--models", "nets.py:both", "--budget", "1", "--score", "log_me")
    status, out, _ = run(*words, "--out", "found.json", "--json", "-")
    assert status == 0
    content = json.loads(out)
    assert content["score"] == "log_me"
    assert content["budget"] == "1 candidate"
    assert len(content["ranked"]) == 1
    assert json.loads((nets / "found.json").read_text())["ranked"][0]["layer"] == "2"


def test_labels_may_be_apart_and_must_be_there(nets, run):
    rng = np.random.default_rng(0)
    np.savez(nets / "x.npz", x=rng.normal(size=(80, 1, 8, 8)).astype("float32"))
    (nets / "y.txt").write_text("cat\ndog\n" * 40)
    np.save(nets / "y.npy", np.arange(80) % 4)
    words = ("recommend", "--data", "x.npz", "--models", "models.toml", "--json", "-")
    found = [json.loads(run(*words, "--labels", f"y.{end}")[1]) for end in ("txt", "npy")]
    assert [one["classes"] for one in found] == [2, 4]
    status, _, err = run("recommend", "--data", "x.npz", "--models", "models.toml")
    assert status == 2
    assert "the data have no labels" in " ".join(err.split())


def test_a_reference_is_a_network_or_a_recording(zoo, run):
    for reference in ("nets.py:small", "small.rsm"):
        if reference.endswith("rsm"):
            x = torch.rand(64, 1, 8, 8)
            rs.record(small(), x, progress=False).save(zoo / reference)
        words = ("recommend", "zoo", *FEW, "--models", "models.toml", "--reference", reference)
        status, out, _ = run(*words)
        assert status == 0
        assert "No candidate is linked" in out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), "give a ZOO, --models FILE, or both"),
        (("--models", "gone.toml"), "no file at gone.toml"),
        (("--models", "models.toml", "--trust", "x"), "--trust requires a ZOO"),
        (("--models", "models.toml", "--budget", "soon"), "budget must be"),
        (("--models", "models.toml", "--labels", "gone.txt"), "cannot read labels from gone.txt"),
        (("--models", "models.toml", "--score", "best"), "no score is named 'best'"),
        (("gone", "--models", "models.toml"), "gone"),
    ],
)
def test_mistakes_are_one_line(nets, run, words, match):
    status, _, err = run("recommend", *FEW, *words)
    assert status == 2
    assert match in err
    assert "Traceback" not in err
