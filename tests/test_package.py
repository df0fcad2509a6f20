"""What is shipped: the wheel holds the package alone; the sdist what its tests need, in little."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
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
    assert not any(
        name.startswith(("docs/figures", "docs/notebooks/")) for name in names_in_sdist(sdist)
    )


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


INSTALLED = """
import resemblance
from resemblance.errors import install_command
print(resemblance.__file__)
print(install_command("demo"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["index", "wheel", "folder", "clone"])
def test_the_install_that_a_message_advises_works_for_every_kind_of_installation(
    source, wheel, tmp_path
):
    """The command is run as it stands, but for its dependencies, and nothing is installed."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps"]
    pip += [] if source == "clone" else ["--no-build-isolation"]  # needs more to be editable
    index = ["--pre", "--no-index", "--find-links", str(wheel.parent)]
    pip += index if source == "index" else []
    there = {"index": "resemblance", "wheel": str(wheel), "folder": str(ROOT)}
    installed = tmp_path / "there"
    if source == "clone":
        installed = ROOT / "src"
    else:
        target = ["--quiet", "--target", str(installed)]
        subprocess.run([*pip, *target, there[source]], check=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = [sys.executable, "-c", INSTALLED]
    out = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    place, advised = out.stdout.splitlines()
    assert Path(place).is_relative_to(installed)
    assert advised.startswith("pip install ")
    assert "resemblance[demo]" in advised or f"{ROOT}[demo]" in advised
    words = shlex.split(advised)[2:]
    tried = [*pip, "--dry-run", "--ignore-installed", *words]
    done = subprocess.run(tried, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"Would install resemblance-{resemblance.__version__}" in done.stdout
