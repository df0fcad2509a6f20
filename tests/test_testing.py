"""`assert_same_network`, in pytest as its users run it, and by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import resemblance as rs
from digit_copies import pruned, recorded, rounded, trained, unseen
from resemblance.errors import DataError
from resemblance.testing import assert_same_network

TESTS = """
import copy

import pytest
import torch
from torch import nn

from resemblance.testing import assert_same_network

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
X = torch.randn(500, 8)


def changed(size):
    other = copy.deepcopy(NET)
    with torch.no_grad():
        for weight in other.parameters():
            weight += size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return other


def test_close():
    assert_same_network(NET, changed(1e-4), X, max_kl=0.01, max_disagreement=0.02)


def test_far():
    assert_same_network(NET, changed(0.3), X, max_kl=0.01, min={"gradients": 0.8})


def test_unsure():
    assert_same_network(NET, changed(1e-4), X, max_disagreement=0.001, max_kl=0.02)
"""


@pytest.mark.slow
def test_in_pytest_a_failure_says_which_threshold_and_by_how_much(tmp_path):
    (tmp_path / "test_copy.py").write_text(TESTS)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_copy.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    out = done.stdout
    assert done.returncode == 1, out
    assert "2 failed, 1 passed" in out
    far, unsure = out.split("____ test_unsure ____")
    assert "copy fails as a copy of base, judged on 500 samples with one-sided 95 % bounds" in far
    assert "E       ✗ failed: max-kl 0.01 nats, measured 0." in far
    assert "E       ✗ failed: min gradients 0.8, measured 0." in far
    assert ", at layer " in far
    assert "copy is undecided as a copy of base" in unsure
    assert "? undecided: max-disagreement 0.1 %, measured 0 % (0 % to 0.6 %)" in unsure
    assert "; about 3,000 samples would decide" in unsure
    assert unsure.index("? undecided: max-dis") < unsure.index("✓ passed: max-kl 0.02 nats")
    assert "testing.py" not in out  # the trace ends at the test's own line
    assert "test_copy.py:3" in out


def test_recordings_are_kept_and_files_are_read(tmp_path):
    path = recorded("base").save(tmp_path / "base.rsm")
    limits = {"max_disagreement": 0.02, "min": {"gradients": 0.8}, "min_db": 20}
    verdict = assert_same_network(path, recorded("int8"), **limits)
    assert verdict == rs.check(path, recorded("int8"), **limits)
    assert assert_same_network(recorded("base"), rounded(8), unseen(), **limits).copy == "copy"
    with pytest.raises(AssertionError, match=r"^pruned fails as a copy of base(.|\n)*\n✗ failed: "):
        assert_same_network(str(path), recorded("pruned"), **limits)
    with pytest.raises(
        AssertionError, match=r"\? undecided: .*; about [\d,]+ samples would decide"
    ):
        assert_same_network(path, path, max_disagreement=0.0005)


def test_no_more_is_recorded_than_thresholds_need():
    seen = []

    def call(model, batch):
        seen.append(torch.is_grad_enabled())
        return model(batch)

    for limits in ({"max_kl": 0.05}, {"max_kl": 0.05, "min": {"gradients": 0.5}}):
        seen.clear()
        assert_same_network(trained(), rounded(8), unseen()[0], **limits, record={"call": call})
        assert any(seen) == ("min" in limits)


def test_a_copy_is_recorded_at_the_layers_of_its_base():
    base = rs.record(trained(), unseen(), layers=["1", "2"])
    verdict = assert_same_network(base, pruned(0.01), unseen(), min={"features": 0.5})
    assert verdict.findings[0].status == "passed"
    assert not verdict.notes


def test_embeddings_are_judged():
    torch.manual_seed(0)
    base, x = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16)), torch.randn(600, 8)
    limits = {"min_neighbours": 0.5, "min_cosine": "p05=0.9", "record": {"logits": "none"}}
    verdict = assert_same_network(base, base, x, **limits)
    assert [x.threshold.name for x in verdict.findings] == ["min-neighbours", "min-cosine p05"]


def test_what_is_missing_is_said():
    with pytest.raises(DataError, match="expected `data` to record the copy on, found none"):
        assert_same_network(recorded("base"), nn.Linear(4, 2), max_kl=0.1)
    with pytest.raises(DataError, match="no threshold was given"):
        assert_same_network(recorded("base"), recorded("int8"))
