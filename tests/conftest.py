"""The order of tests: what takes minutes begins first, so that the rest runs beside it."""

from __future__ import annotations

SLOW = "test_the_quick_chain_runs_from_data_to_figures"


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name != SLOW)
