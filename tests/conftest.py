"""The command run in a folder of its own, the order of tests, and their random numbers.

What takes minutes begins first, so that the rest runs beside it. Networks and data that a test does
not seed are the same each time and in any order of tests.
"""

from __future__ import annotations

import pytest
import torch

from resemblance.cli.main import main
from resemblance.similarity.indices import registry

SLOW = "test_the_quick_chain_runs_from_data_to_figures"

NETWORK = """
import torch
from torch import nn


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def other():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))


def regression():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def nothing():
    return 3


def double():
    return torch.rand(60, 1, 8, 8).double()
"""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name != SLOW)


def pytest_collectstart(collector):
    torch.manual_seed(0)  # for what a module draws when it is imported


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _as_wide_as_a_pipe(monkeypatch):
    """Whatever width the caller's terminal, or a library, has put into the environment."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _registers_no_index_for_others(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Runs the command in a folder of its own: (exit status, standard output, standard error)."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


@pytest.fixture
def refused(run):
    """Runs a command that must fail with one line and exit status 2: what that line says."""

    def call(*words):
        status, out, err = run(*words)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").strip()

    return call
