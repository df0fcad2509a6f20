"""The shape of the package: rooms whose imports point one way, public names, tests beside modules.

What may import what is DESIGN in one table, `ROOMS`; which modules are in a room is read from the
folders. A module is as free as its room.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import resemblance

SOURCE = Path(resemblance.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)

# What each room may import, beside itself, what those may, and the modules outside of any room.
ROOMS = {
    "_ops": set(),
    "_data": {"_ops"},
    "_model": {"_data"},
    "representation": {"_ops"},
    "recording": {"_model", "representation"},
    "similarity": {"representation"},
    "analysis": {"recording", "similarity"},
    "gate": {"similarity"},
    "sweep": {"recording"},
    "zoo": {"similarity"},
    "recommending": {"analysis", "zoo"},
    "views": {"analysis", "zoo"},
    "web": {"views", "recommending"},
    "demo": {"views", "gate", "recommending"},
    "cli": {"demo", "gate", "sweep", "web"},
}
# Who may import what is slow to load and of use to people alone, wherever in a file that is.
FOR_PEOPLE = {"matplotlib", "rich", "typer", "fastapi"}
ALLOWED = {"views", "web", "cli", "demo", "_progress_bar"}


def reachable(room: str) -> set[str]:
    return {room}.union(*(reachable(other) for other in ROOMS[room]))


def room_of(module: str) -> str:
    """The room of a module, or the module itself outside of any."""
    return module.split(".")[0]


def imports(module: str, *, top: bool = False) -> set[str]:
    """Full names of what a module imports, anywhere or when it is itself imported.

    `plot` methods are left out: a result may hand itself to the figures, which are loaded then.
    """
    tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    drawing = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "plot"]
    left_out = {id(node) for function in drawing for node in ast.walk(function)}
    found: set[str] = set()
    for node in tree.body if top else ast.walk(tree):
        if id(node) in left_out or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            package = f"resemblance.{module}".split(".")[: -node.level] if node.level else []
            home = ".".join([*package, *([node.module] if node.module else [])])
            found |= {f"{home}.{alias.name}" for alias in node.names}
    return found


def own_imports(module: str, *, top: bool = False) -> set[str]:
    """The modules of this package among them."""
    names = {n.removeprefix("resemblance.") for n in imports(module, top=top) if "resembl" in n}
    known = {name for name in MODULES if name in names}
    return known | {n.rpartition(".")[0] for n in names if n.rpartition(".")[0] in MODULES}


def test_every_folder_is_a_room_of_the_table():
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way_through_the_rooms(module):
    here = room_of(module)
    for other in own_imports(module):
        there = room_of(other)
        if here in ROOMS:
            assert there not in ROOMS or there in reachable(here), f"{module} imports {other}"
        else:
            assert there not in ROOMS, f"{module}, outside of the rooms, imports {other}"


@pytest.mark.parametrize("module", MODULES)
def test_what_people_look_at_is_imported_in_the_last_rooms_alone(module):
    typed = {f"matplotlib.{name}" for name in ("figure.Figure", "axes.Axes")}  # for type checkers
    heavy = {name for name in imports(module) - typed if name.split(".")[0] in FOR_PEOPLE}
    assert not heavy or room_of(module) in ALLOWED, f"{module} imports {heavy}"


def test_imports_have_no_cycle():
    graph = {module: own_imports(module, top=True) - {module} for module in MODULES}
    done: set[str] = set()
    while graph:
        free = [module for module, needs in graph.items() if needs <= done]
        assert free, f"a cycle among {sorted(graph)}"
        for module in free:
            done.add(module)
            del graph[module]


def test_no_module_shares_its_name_with_a_public_function():
    named = {name for name in resemblance.__all__ if name.islower()}
    assert named.isdisjoint(module.rpartition(".")[2] for module in MODULES)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_a_module_opens_with_a_paragraph(path):
    text = path.read_text(encoding="utf-8")
    assert (ast.get_docstring(ast.parse(text)) or "").strip(), path


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file_in_the_same_place(module):
    *room, name = (part.removeprefix("_") for part in module.split("."))
    assert TESTS.joinpath(*room, f"test_{name}.py").exists()


def test_public_names_exist_and_are_documented():
    assert len(set(resemblance.__all__)) == len(resemblance.__all__)
    for name in resemblance.__all__:
        assert getattr(resemblance, name).__doc__, name
        assert name in dir(resemblance)
    with pytest.raises(AttributeError, match="no attribute 'compere'"):
        _ = resemblance.compere


def test_the_package_is_loaded_without_torch():
    code = "import sys, resemblance; resemblance.errors; sys.exit('torch' in sys.modules)"
    code = f"import resemblance.errors; {code}"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"resemblance.{module}"))
    assert found.failed == 0
