"""Benchmarks are run by hand and seldom; what they import is there all the same."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import warnings

import numpy as np
import pytest

from optional_libraries import usable_torchvision

benchmarks = pytest.importorskip("benchmarks", reason="the benchmarks are not in a source package")
NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name):
    if name == "grams_gpu":
        pytest.importorskip("triton")
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_the_coverage_benchmark_runs_and_adds_to_its_file(tmp_path, monkeypatch):
    out = tmp_path / "coverage.json"
    for cells in ("gaussian/300", "unrelated/300"):
        words = ["coverage", "--cells", cells, "--draws", "2", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", words)
        importlib.import_module("benchmarks.coverage").main()
    rows = json.loads(out.read_text())["rows"]
    assert [(r["regime"], r["draws"]) for r in rows] == [("gaussian", 2)] * 4 + [
        ("unrelated", 2)
    ] * 4
    assert all(r["after"]["stderr"] > 0 and r["warned"] == 0 for r in rows)


@pytest.mark.slow
def test_the_benchmark_of_indices_runs_each_kind_of_cell(tmp_path, monkeypatch):
    out = tmp_path / "indices.json"
    for pattern in ("errors/50/normal/cka", "errors/50/normal/jaccard", "best/50/rsa"):
        words = ["indices", "--cells", pattern, "--scale", "0.01", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", words)
        importlib.import_module("benchmarks.indices").main()
    found = json.loads(out.read_text())
    assert found["errors/50/normal/cka"]["draws"] == 20
    assert 0 <= found["errors/50/normal/cka"]["p_below_0.05"] <= 0.4
    assert "p_below_0.05" not in found["errors/50/normal/jaccard"]
    assert 0 <= found["best/50/rsa"]["best"][0] <= 1


def test_a_coverage_is_too_low_when_one_run_in_a_hundred_would_be_as_low():
    below = importlib.import_module("benchmarks.coverage").below
    assert not below(0.93, 1000)
    assert not below(0.912, 1000)
    assert below(0.909, 1000)  # 2.3 binomial errors of 0.008
    assert not below(0.85, 20)


def test_there_are_benchmarks():
    assert len(NAMES) > 8


@pytest.mark.slow
def test_the_kl_benchmark_runs_and_keeps_what_it_found(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    usable_torchvision()
    out = tmp_path / "kl.json"
    monkeypatch.setattr(sys, "argv", ["kl_sketch", "--tiny", "--out", str(out)])
    importlib.import_module("benchmarks.kl_sketch").main()
    found = json.loads(out.read_text())
    assert set(found["copies"]) > {"int8", "int3", "bf16", "pruned-50", "tuned", "twin"}
    for name, copied in found["copies"].items():
        error = abs(copied["estimate"] - copied["kl"])
        assert error < 5 * copied["stderr"], name  # the mean of three draws
        assert copied["check"]["exit_status"] == 3  # 64 sequences do not decide
    assert found["coverage"]["covered_of_drawn"] > 0.8  # of 66 estimates
    assert 3800 < found["bytes_a_row_in_all"] < 3900


def test_correlations_of_many_scores_at_once_are_those_of_scipy():
    judged = importlib.import_module("benchmarks.recommend_judged")
    rng = np.random.default_rng(0)
    for n in (2, 7, 25):  # with ties, as draws repeat sources
        truth = rng.integers(0, 9, n).astype(float)
        values = rng.integers(0, 9, (5, n)).astype(float)
        values[0, 0] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a score that is the same for all
            expected = [judged.tau(row, truth) for row in values]
        np.testing.assert_allclose(judged.taus(values, truth), expected, atol=1e-12)
