"""What is shipped: the wheel holds the package alone; the sdist what its tests need, in little."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

import resemblance

builders = {
    "sdist": pytest.importorskip("hatchling.builders.sdist").SdistBuilder,
    "wheel": pytest.importorskip("hatchling.builders.wheel").WheelBuilder,
}
ROOT = Path(__file__).parent.parent
WHEEL_LIMIT = 2e6  # bytes
SDIST_LIMIT = 2.5e6  # bytes: a clone without the figures and the reproduction's results
ASSETS = {f"resemblance/views/page/report.{kind}" for kind in ("html", "css", "js")}


def build(kind: str, folder: Path) -> Path:
    (made,) = builders[kind](str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(made)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def names_in_sdist(path: Path) -> set[str]:
    """Paths below the one folder that an sdist unpacks to."""
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_sdist_is_small(sdist):
    assert sdist.stat().st_size < SDIST_LIMIT


def test_the_sdist_holds_what_its_tests_need(sdist):
    names = names_in_sdist(sdist)
    here = {
        str(path.relative_to(ROOT))
        for folder in ("src", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".rsm", ".npz", ".html", ".css", ".js", ".typed")
    }
    here.remove("tests/golden/published.npz")  # values of recordings that are left out
    assert here <= names
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} | {
        "docs/build_api.py"
    }
    assert pages | {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff",
                    "Makefile", "constraints.txt", "pyproject.toml"} <= names  # fmt: skip


def test_the_sdist_leaves_out_what_is_large(sdist):
    parts = {name.split("/")[0] for name in names_in_sdist(sdist)}
    assert parts.isdisjoint({"reproduction", "benchmarks", ".venv"})
    assert not any(name.startswith("docs/figures") for name in names_in_sdist(sdist))


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size < WHEEL_LIMIT


def test_the_wheel_holds_the_package_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    roots = {name.split("/")[0] for name in names}
    assert roots == {"resemblance", f"resemblance-{resemblance.__version__}.dist-info"}
    assert ASSETS | {"resemblance/py.typed", "resemblance/__init__.py"} <= names
    modules = {name for name in names if name.endswith(".py")}
    source = ROOT / "src"
    assert modules == {str(path.relative_to(source)) for path in source.rglob("*.py")}
