"""The notebooks of the documentation: executed by a real kernel, and as the site shows them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
PAGES = ROOT / "docs/notebook_pages.py"
SAID = {  # what the text around the cells relies on
    "quantised-copy": (
        "int8 passes as a copy of base", "int3 fails as a copy of base", "in full precision",
    ),
    "two-architectures": ("matched by similarity", "p = 0.0", "ComparisonMatrix: 3 networks"),
    "training-run": ("step 250: layer 10", "7 checkpoints", "&#x27;step 300&#x27;"),
}  # fmt: skip

if not NOTEBOOKS:
    pytest.skip("the notebooks are not in a source package", allow_module_level=True)


def module(name):
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def outputs(notebook):
    """Of each cell of code, the kinds of its outputs."""
    return [
        [sorted(one.get("data", [one.get("name")])) for one in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def texts(notebook):
    found = []
    for cell in notebook.cells:
        for one in cell.get("outputs", ()):
            found += [one.text] if one.output_type == "stream" else [one.data.get("text/html", "")]
    return "\n".join(found)


def test_there_are_three():
    assert {path.stem for path in NOTEBOOKS} == SAID.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_outputs_are_of_one_run_from_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(said in texts(notebook) for said in SAID[path.stem])
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(tmp|home|root|work)/", text)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_in_a_new_kernel_and_gives_what_is_stored(path, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("sklearn")
    again = module("build_notebooks").executed(path, tmp_path)
    stored = nbformat.read(path, as_version=4)
    assert outputs(again) == outputs(stored)
    missing = [said for said in SAID[path.stem] if said not in texts(again)]
    assert not missing


@pytest.mark.slow
def test_an_error_in_a_cell_is_raised(tmp_path):
    build = pytest.importorskip("nbclient").exceptions
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    notebook.cells = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    with pytest.raises(build.CellExecutionError, match="ZeroDivisionError"):
        module("build_notebooks").executed(tmp_path / "wrong.ipynb", tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_page_has_every_cell_and_output(path):
    page, pictures = module("notebook_pages").converted(path)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert cell.source in page
    kinds = [kind for cell in outputs(notebook) for kind in cell]
    assert len(pictures) == sum("image/png" in kind for kind in kinds) > 0
    assert page.count('class="notebook-output"') == sum("text/html" in kind for kind in kinds) > 0
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert all(f"]({name})" in page for name in pictures)
    assert "<script" not in page
    assert f"({path.name})" in page


def test_an_output_that_a_page_cannot_show_is_refused(tmp_path):
    cell = {"cell_type": "code", "source": "x", "outputs": [{"output_type": "error"}]}
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(ValueError, match="not shown"):
        module("notebook_pages").converted(path)
