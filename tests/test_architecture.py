"""The shape of the package: folders ("rooms") whose imports point one way, and public names.

Which room may import which is the table `ROOMS`; the modules of a room are those in its folder.
"""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import resemblance

SOURCE = Path(resemblance.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)

# What each room may import, beside itself, what those may, and the modules outside of any room.
ROOMS = {
    "_utils": set(),
    "_ops": {"_utils"},
    "_data": {"_ops"},
    "_models": {"_data"},
    "representation": {"_ops"},
    "recording": {"_models", "representation"},
    "similarity": {"representation"},
    "analysis": {"recording", "similarity"},
    "gate": {"similarity"},
    "callbacks": {"recording", "similarity"},
    "testing": {"recording", "gate"},
    "sweep": {"recording"},
    "zoo": {"similarity"},
    "transfer": {"analysis", "zoo"},
    "views": {"analysis", "gate", "zoo"},
    "web": {"views", "transfer"},
    "demo": {"views", "gate", "transfer"},
    "cli": {"demo", "gate", "sweep", "web"},
}
ELSEWHERE = ("callbacks", "testing")  # modules whose names are public as well
# Who may import what is slow to load and of use to people alone, wherever in a file that is.
FOR_PEOPLE = {"matplotlib", "rich", "typer", "fastapi"}
ALLOWED = {"views", "web", "cli", "demo", "_utils.progress"}


def reachable(room: str) -> set[str]:
    return {room}.union(*(reachable(other) for other in ROOMS[room]))


def room_of(module: str) -> str:
    """The room of a module, or the module itself outside of any."""
    return module.split(".")[0]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(module: str, *, top: bool = False) -> set[str]:
    """Full names of what a module imports, anywhere or when it is itself imported.

    `plot` methods are left out: a result may hand itself to the figures, which are loaded then.
    """
    tree = parsed(SOURCE / f"{module.replace('.', '/')}.py")
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
    assert folders | {"testing"} == set(ROOMS)  # a room of one module


def test_imports_run_one_way_through_the_rooms():
    for module in MODULES:
        here = room_of(module)
        allowed = reachable(here) if here in ROOMS else set()
        for other in own_imports(module):
            there = room_of(other)
            assert there not in ROOMS or there in allowed, f"{module} imports {other}"


def test_what_people_look_at_is_imported_in_the_last_rooms_alone():
    typed = {f"matplotlib.{name}" for name in ("figure.Figure", "axes.Axes")}  # for type checkers
    for module in MODULES:
        heavy = {name for name in imports(module) - typed if name.split(".")[0] in FOR_PEOPLE}
        assert not heavy or {module, room_of(module)} & ALLOWED, f"{module} imports {heavy}"


def test_imports_have_no_cycle():
    graph = {module: own_imports(module, top=True) - {module} for module in MODULES}
    done: set[str] = set()
    while graph:
        free = [module for module, needs in graph.items() if needs <= done]
        assert free, f"a cycle among {sorted(graph)}"
        for module in free:
            done.add(module)
            del graph[module]


def test_no_room_shares_its_name_with_a_public_name():
    assert set(ROOMS).isdisjoint(resemblance.__all__)


def test_every_module_opens_with_a_docstring():
    for path in sorted(SOURCE.rglob("*.py")):
        assert (ast.get_docstring(parsed(path)) or "").strip(), path


def test_public_names_exist_and_are_documented():
    assert len(set(resemblance.__all__)) == len(resemblance.__all__)
    for name in resemblance.__all__:
        assert getattr(resemblance, name).__doc__, name
        assert name in dir(resemblance)
    with pytest.raises(AttributeError, match="no attribute 'compere'"):
        _ = resemblance.compere


def public_functions() -> dict[str, Callable[..., object]]:
    """Public functions and the public methods of public classes that are our own, by name."""
    found, things = {}, {name: getattr(resemblance, name) for name in resemblance.__all__}
    for module in ELSEWHERE:
        names = importlib.import_module(f"resemblance.{module}")
        things |= {f"{module}.{name}": getattr(names, name) for name in names.__all__}
    for name, thing in things.items():
        for key, member in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            own = (getattr(member, "__module__", None) or "").startswith("resemblance.")
            if own and inspect.isroutine(member) and not key.startswith("_"):
                found[f"{name}.{key}"] = member
        if not inspect.isclass(thing):
            found[name] = thing
    return found


def test_public_functions_document_their_arguments_and_what_they_return():
    """Under `Args:` and `Returns:`, as Google has it, so that an editor can show a line alone."""
    functions = public_functions()
    assert {"record", "Zoo.search", "Verdict.save", "callbacks.Monitor.step"} <= functions.keys()
    for name, function in functions.items():
        doc, signature = f"{inspect.getdoc(function)}\n", inspect.signature(function)
        section = re.search(r"^Args:\n((?: +.*\n|\n)*)", doc, re.M)
        lines = re.findall(r"^ {4}(\S.*?):", section[1] if section else "", re.M)
        documented = {word.strip("* ") for line in lines for word in line.split(",")}
        missing = signature.parameters.keys() - documented - {"self"}
        assert not missing, f"{name} says nothing of {', '.join(missing)}"
        returned = signature.return_annotation not in (None, "None")
        assert not returned or re.search(r"^(Returns|Yields):", doc, re.M), f"{name}: Returns"


def test_scipy_is_imported_where_it_is_used():
    for module in MODULES:
        assert not any(name.startswith("scipy") for name in imports(module, top=True)), module


def test_the_package_is_loaded_without_torch_or_scipy():
    code = "import sys, resemblance; resemblance.errors"
    code += "; sys.exit(not {'torch', 'scipy'}.isdisjoint(sys.modules))"
    code = f"import resemblance.errors; {code}"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("room", sorted({room_of(module) for module in MODULES}))
def test_examples_in_docstrings_run(room):
    for module in MODULES:
        if room_of(module) == room:
            found = doctest.testmod(importlib.import_module(f"resemblance.{module}"))
            assert found.failed == 0, module


_FACTORIES = {
    f"torch.{name}"
    for name in ("zeros", "ones", "empty", "full", "rand", "randn", "linspace", "eye", "tensor")
}


def test_tensors_are_made_with_a_dtype():
    """Else they would have torch's default dtype, which the caller may have changed."""
    nodes = (node for path in sorted(SOURCE.rglob("*.py")) for node in ast.walk(parsed(path)))
    calls = [x for x in nodes if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute)]
    made = [call for call in calls if ast.unparse(call.func) in _FACTORIES]
    without = [call for call in made if "dtype" not in {word.arg for word in call.keywords}]
    assert len(made) > 50  # the rule looks at something
    assert not without, [ast.unparse(call) for call in without]
