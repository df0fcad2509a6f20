"""Execute the notebooks in docs/notebooks and store their outputs, which the site shows.

Run `python docs/build_notebooks.py` after changing one. `tests/test_notebooks.py` runs them too.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"
CELL_FILE = re.compile(r"^\S*ipykernel\S*\.py:\d+: ", re.M)  # in front of a warning


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in a new kernel.

    Args:
        path: the notebook.
        folder: the kernel's working folder.

    Raises:
        CellExecutionError: if a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = CELL_FILE.sub("", output.text)
    kernel = notebook.metadata["kernelspec"]  # versions differ from machine to machine
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(executed(path, path.parent), path)
        print(path.name)


if __name__ == "__main__":
    main()
