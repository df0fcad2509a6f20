"""Benchmarks are run by hand and seldom; what they import is there all the same."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

benchmarks = pytest.importorskip("benchmarks", reason="the benchmarks are not in a source package")
NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name):
    if name == "grams_gpu":
        pytest.importorskip("triton")
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_there_are_benchmarks():
    assert len(NAMES) > 8
