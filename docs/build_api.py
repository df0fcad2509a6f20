"""Write docs/reference/api.md from the docstrings of the public names: python docs/build_api.py"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import resemblance as rs

ORDER = [
    "record",
    "stream",
    "record_arrays",
    "Representation",
    "Layer",
    "Outputs",
    "Embeddings",
    "load",
    "merge",
    "CountSketch",
    "compare",
    "Comparison",
    "FullComparison",
    "KernelComparison",
    "Note",
    "LayerDivergence",
    "compare_all",
    "ComparisonMatrix",
    "trajectory",
    "Trajectory",
    "coordinates",
    "Coordinates",
    "cka",
    "nbs",
    "register_index",
    "report",
    "copies",
    "Copies",
    "sensitivity",
    "Sensitivity",
    "check",
    "Verdict",
    "adaptation",
    "Adaptation",
    "behaviour",
    "Behaviour",
    "EmbeddingBehaviour",
    "flips",
    "Flips",
    "fisher_rao",
    "FisherRao",
    "task2vec",
    "TaskEmbedding",
    "KernelClassifier",
    "Zoo",
    "Entry",
    "SearchResult",
    "Descents",
    "FamilyTree",
    "recommend",
    "Recommendation",
    "ResemblanceError",
]
ELSEWHERE = [  # names that are imported from modules of their own
    "callbacks.Monitor",
    "callbacks.lightning_callback",
    "callbacks.transformers_callback",
    "testing.assert_same_network",
]


def entry(name: str, thing: object) -> str:
    """One name: its signature, its docstring, and for classes those of its public members."""
    parts = [f"## `{name}`", "", block(thing, name)]
    for key, member in inspect.getmembers(thing) if inspect.isclass(thing) else ():
        own = inspect.unwrap(member.fget) if isinstance(member, property) else member
        written = inspect.isfunction(own) or inspect.ismethod(own)  # not those of str, Exception
        if key.startswith("_") or not written or not inspect.getdoc(own):
            continue
        parts += ["", f"### `{name}.{key}`", "", block(own, key)]
    return "\n".join(parts)


def block(thing: object, name: str) -> str:
    """A signature, an argument a line, and the docstring below it."""
    return f"```text\n{name}{signature(thing)}\n\n{inspect.getdoc(thing) or ''}\n```"


def signature(thing: object) -> str:
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    arguments, starred = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        arguments.append(f"{parameter}".split(":")[0].split("=")[0].strip() + kind + default)
    back = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    if len(arguments) < 4:
        return f"({', '.join(arguments)}){back}"
    return "(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){back}"


def page() -> str:
    """The whole page."""
    missing = set(rs.__all__) ^ set(ORDER)
    if missing:
        raise SystemExit(f"docs/build_api.py does not list {sorted(missing)}")
    head = "# API reference\n\nMade from the docstrings by `python docs/build_api.py`.\n\n"
    things = {name: getattr(rs, name) for name in ORDER}
    for path in ELSEWHERE:
        module, name = path.split(".")
        things[path] = getattr(importlib.import_module(f"resemblance.{module}"), name)
    return head + "\n\n".join(entry(name, thing) for name, thing in things.items()) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "reference/api.md").write_text(page())
