"""Zoos of both kinds, which the same tests are run on."""

from __future__ import annotations

import pytest

import resemblance as rs
from zoo_workers import STORES


@pytest.fixture(params=STORES)
def place(request, tmp_path):
    """Where a zoo may be, of each kind."""
    if request.param == "lance":
        pytest.importorskip("lancedb")
        return f"lance:{tmp_path / 'tables'}"
    return str(tmp_path / "zoo")


@pytest.fixture
def zoo(place):
    with rs.Zoo(place) as found:
        yield found
