"""A zoo of a few small networks, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from little_zoo import Filled, filled


@pytest.fixture(scope="session")
def little(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """One that no test may change."""
    place = tmp_path_factory.mktemp("web") / "little"
    return Filled(place, filled(place))


@pytest.fixture
def own(little: Filled, tmp_path: Path) -> Filled:
    """A copy that a test may change."""
    place = tmp_path / "own"
    shutil.copytree(little.place, place)
    return Filled(place, little.entries)


@pytest.fixture(scope="module")  # while it is there, no other event loop can run
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    quiet = ("background-networking", "component-update", "sync", "gpu")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *(f"--disable-{x}" for x in quiet)]
        )
        yield browser
        browser.close()
