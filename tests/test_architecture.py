"""The shape of the package: imports point one way, public names exist, examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import resemblance

SOURCE = Path(resemblance.__file__).parent
MODULES = sorted(path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__")

# From the bottom up: a module imports from lower layers, or from its own without a cycle.
LAYERS = [
    {"errors", "files", "progress", "loading"},
    {"batches", "blocks", "outputs", "indices", "order", "pooling"},
    {"sketch", "fused", "grams", "block_sums", "chance", "kernels", "layers", "container"},
    {"representation", "data", "capture", "batch_sizes", "targets", "fingerprint"},
    {"accumulate", "state"},
    {"record", "activations", "plot", "comparison", "ridge", "labels"},
    {"from_blocks", "from_buckets", "gather", "task2vec", "fisher_rao", "leave_one_out"},
    {"compare", "adaptation", "classify", "spectra"},
    {"many"},
    {"report"},
    {"demo"},
    {"cli"},
]


def imports(module: str, *, top: bool = False) -> set[str]:
    """The modules of this package that one imports, anywhere or when it is itself imported."""
    tree = ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [getattr(node, "module", None) or alias.name for alias in node.names]
            assert not any(str(name).startswith("resemblance") for name in names), module
    return found & set(MODULES)


def test_no_import_points_back():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    assert set(level) == set(MODULES)
    for module in MODULES:
        for other in imports(module):
            assert level[other] <= level[module], f"{module} imports {other}, a layer above it"


def test_imports_have_no_cycle():
    graph = {module: imports(module, top=True) for module in MODULES}
    done: set[str] = set()
    while graph:
        free = [module for module, needs in graph.items() if needs <= done]
        assert free, f"a cycle among {sorted(graph)}"
        for module in free:
            done.add(module)
            del graph[module]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_opens_with_a_paragraph(module):
    text = (SOURCE / f"{module}.py").read_text(encoding="utf-8")
    assert (ast.get_docstring(ast.parse(text)) or "").strip(), module


def test_public_names_exist_and_are_documented():
    assert len(set(resemblance.__all__)) == len(resemblance.__all__)
    for name in resemblance.__all__:
        assert getattr(resemblance, name).__doc__, name


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"resemblance.{module}"))
    assert found.failed == 0
