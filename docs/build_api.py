"""Write docs/reference/api.md and the pages in docs/reference/api/ from the docstrings of the
public names: python docs/build_api.py
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import resemblance as rs

REFERENCE = Path(__file__).parent / "reference"
# A page of each area: its title, and its names in the order in which a reader meets them. Names
# with a dot are imported from a module of their own.
AREAS = {
    "recording": (
        "Record networks",
        "record stream record_arrays load merge Representation Layer Outputs Embeddings "
        "CountSketch",
    ),
    "comparing": (
        "Compare networks",
        "compare Comparison FullComparison KernelComparison LayerDivergence Note compare_all "
        "ComparisonMatrix coordinates Coordinates report cka nbs register_index",
    ),
    "copies": (
        "Check copies",
        "check Verdict testing.assert_same_network copies Copies sensitivity Sensitivity "
        "behaviour Behaviour EmbeddingBehaviour flips Flips",
    ),
    "training": (
        "Follow training runs",
        "callbacks.Monitor callbacks.lightning_callback callbacks.transformers_callback "
        "trajectory Trajectory",
    ),
    "tasks": (
        "Networks and tasks",
        "recommend Recommendation adaptation Adaptation fisher_rao FisherRao task2vec "
        "TaskEmbedding KernelClassifier",
    ),
    "zoo": ("Zoos of networks", "Zoo Entry SearchResult Descents FamilyTree"),
    "errors": (
        "Errors",
        "ResemblanceError errors.LayerError errors.NoBackwardError errors.DataError "
        "errors.TargetError errors.MismatchError errors.FormatError errors.MissingExtra "
        "errors.ResemblanceWarning",
    ),
}
SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises"}


def entry(name: str, thing: object) -> str:
    """One name: its signature, its docstring, and for classes those of its public members."""
    short = name.rpartition(".")[2]
    parts = [heading(short, thing)]
    if short != name:
        module = name.rpartition(".")[0]
        parts.append(f"```python\nfrom resemblance.{module} import {short}\n```")
    parts.append(block(thing, short))
    for key, member in inspect.getmembers(thing) if inspect.isclass(thing) else ():
        own = inspect.unwrap(member.fget) if isinstance(member, property) else member
        written = inspect.isfunction(own) or inspect.ismethod(own)  # not those of str, Exception
        if key.startswith("_") or not written or not inspect.getdoc(own):
            continue
        call = "" if isinstance(member, property) else None
        parts += [f"### `{short}.{key}`", block(own, f"{short}.{key}", call)]
    return "\n\n".join(parts)


def heading(short: str, thing: object) -> str:
    """One that differs for a class and a function whose names differ in a capital alone."""
    return f"## class `{short}`" if inspect.isclass(thing) else f"## `{short}`"


def block(thing: object, name: str, call: str | None = None) -> str:
    """A signature, an argument a line, and the docstring as Markdown below it."""
    call = signature(thing) if call is None else call
    lines = inspect.getdoc(thing) or ""
    return f"```python\n{name}{call}\n```\n\n{markdown(lines)}"


def signature(thing: object) -> str:
    """The arguments and the result, on one line if they are few."""
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    arguments, starred = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        arguments.append(f"{parameter}".split(":")[0].split("=")[0].strip() + kind + default)
    back = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    line = f"({', '.join(arguments)}){back}"
    if len(arguments) < 4 and len(line) < 70:
        return line
    return "(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){back}"


def markdown(docstring: str) -> str:
    """A Google-style docstring as Markdown."""
    parts = []
    for title, text in sections(docstring):
        if title in SECTIONS:
            lines = [f"- `{name}`: {prose(what)}" for name, what in arguments(text)]
            parts.append(f"**{SECTIONS[title]}**\n\n" + "\n".join(lines))
        elif title == "Example":
            parts.append(f"**Example**\n\n```pycon\n{text}\n```")
        elif title:  # Returns, Yields
            parts.append(f"**{title}:** {prose(' '.join(text.split()))}")
        else:
            parts.append(prose(text))
    return "\n\n".join(parts)


def sections(docstring: str) -> Iterator[tuple[str, str]]:
    """(title, text) of each section; what precedes the first has no title."""
    head, *rest = re.split(
        r"^(Args|Attributes|Raises|Returns|Yields|Example):\n", docstring, flags=re.M
    )
    yield "", head.strip()
    for title, text in zip(rest[::2], rest[1::2], strict=True):
        indented = re.match(r"(?:    .*\n?|\n)*", text)[0]  # type: ignore[index]
        yield title, textwrap.dedent(indented).strip()
        if after := text[len(indented) :].strip():
            yield "", after


def arguments(text: str) -> Iterator[tuple[str, str]]:
    """(name, description) of each argument."""
    for item in re.split(r"\n(?=\S)", text):
        name, _, what = item.partition(":")
        yield name.strip(), " ".join(what.split())


def prose(text: str) -> str:
    """Text outside of code, with what Markdown would take for markup escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"[_<]", r"\\\g<0>", part) for part in parts[::2]]
    text = "".join(parts)
    return re.sub(r"(?m)^(?!- |  )(.+)\n(?=- )", r"\1\n\n", text)  # a list is a block of its own


def things(names: str) -> dict[str, object]:
    """What each name stands for."""
    found = {}
    for name in names.split():
        module, _, short = name.rpartition(".")
        owner = importlib.import_module(f"resemblance.{module}") if module else rs
        found[name] = getattr(owner, short)
    return found


def pages() -> dict[str, str]:
    """The text of each page, by its path in docs/reference."""
    listed = [name for _, names in AREAS.values() for name in names.split() if "." not in name]
    if missing := set(rs.__all__) ^ set(listed):
        raise SystemExit(f"docs/build_api.py does not list {sorted(missing)}")
    index = [
        "# Python API\n\nAll public names, by what they are for. Each is described from its "
        "docstring. The pages are written by `python docs/build_api.py`."
    ]
    made = {}
    for area, (title, names) in AREAS.items():
        found = things(names)
        entries = [entry(name, thing) for name, thing in found.items()]
        made[f"api/{area}.md"] = f"# {title}\n\n" + "\n\n".join(entries) + "\n"
        rows = ["| name | what it is |", "|---|---|"]
        for name, thing in found.items():
            short = name.rpartition(".")[2]
            first = prose((inspect.getdoc(thing) or "").splitlines()[0]).replace("|", "\\|")
            place = f"class-{short}" if inspect.isclass(thing) else short
            rows.append(f"| [`{name}`](api/{area}.md#{place.lower()}) | {first} |")
        index.append(f"## [{title}](api/{area}.md)\n\n" + "\n".join(rows))
    return {"api.md": "\n\n".join(index) + "\n", **made}


if __name__ == "__main__":
    (REFERENCE / "api").mkdir(exist_ok=True)
    for path, text in pages().items():
        (REFERENCE / path).write_text(text, encoding="utf-8")
