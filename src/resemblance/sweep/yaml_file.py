"""YAML files with line numbers, and checks of the types of their values.

`YamlFile` knows the line of each value, so that an error names the line it is on. A file holds
text, numbers, booleans and lists only: what only Python can express, such as a function, is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import FormatError, close_matches, first_line, import_optional
from ..recording.config import Kind

_TYPE_NAMES: dict[Kind, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list of texts",
    None: "null",
}


def is_of_kind(value: Any, kind: Kind) -> bool:
    """Whether a value from a file is of a type, or equals a text or None.

    >>> is_of_kind(3, int), is_of_kind(True, int), is_of_kind("auto", "auto"), is_of_kind([], list)
    (True, False, True, False)
    """
    if kind is list:
        return isinstance(value, list) and bool(value) and all(type(x) is str for x in value)
    if isinstance(kind, type):
        return type(value) is kind or (kind is float and type(value) is int)
    return type(value) is type(kind) and value == kind


def describe_kinds(kinds: Sequence[Kind]) -> str:
    """The types and values that a file may give for a key.

    >>> describe_kinds((int, "auto")), describe_kinds(("flatten", "mean", "first"))
    ('a whole number or auto', 'flatten, mean or first')
    """
    *most, last = (_TYPE_NAMES.get(kind, str(kind)) for kind in kinds)
    return f"{', '.join(most)} or {last}" if most else last


KeyPath = tuple[str | int, ...]  # keys and positions that lead to a value
MAX_VALUES = 100_000  # of a file, each alias replaced by its value
_MAX_DEPTH = 100  # of values in values: an alias inside itself has no end
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


@dataclass(frozen=True)
class YamlFile:
    """Its content, a mapping, and where each part of it stands."""

    path: Path
    tree: Mapping[str, Any]
    lines: Mapping[KeyPath, int]  # from 1

    def refuse(self, at: KeyPath, text: str) -> NoReturn:
        """An error that names the line of a value, or of what it would stand in."""
        while at not in self.lines and at:
            at = at[:-1]
        raise FormatError(f"{self.path}, line {self.lines.get(at, 1)}: {text}")

    def check(
        self,
        at: KeyPath,
        mapping: Mapping[str, Any],
        known: Mapping[str, Sequence[Kind]],
        least: Mapping[str, int] | None = None,
    ) -> None:
        """Refuse a key that nothing is called, and a value that does not fit its key.

        Args:
            at: what leads to the mapping.
            mapping: what to check.
            known: the types and values that may be given for each key; none if any may.
            least: the smallest number that some keys take.
        """
        for key, value in mapping.items():
            if key not in known:
                near = close_matches(key, known)
                self.refuse((*at, key), f"unknown key {key!r}; nearest: {near}")
            kinds = known[key]
            if kinds and not any(is_of_kind(value, kind) for kind in kinds):
                self.refuse((*at, key), f"{key} must be {describe_kinds(kinds)}; found {value!r}")
            if least and key in least and value < least[key]:
                self.refuse((*at, key), f"{key} must be {least[key]} or more; found {value!r}")


def read_yaml(path: str | os.PathLike[str]) -> YamlFile:
    """The content of a YAML file whose top is a mapping; nothing in it is ever executed."""
    yaml = import_optional("yaml", "PyYAML", "sweep")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FormatError(f"no file at {os.fspath(path)}; expected jobs in YAML") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)} cannot be read ({error}); expected YAML") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[KeyPath, int] = {}
        if node is not None:
            _locate_values(node, (), Path(path), lines)
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or first_line(error)
        raise FormatError(f"{os.fspath(path)}{line}: this is not YAML ({why})") from None
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else type(tree).__name__
        raise FormatError(
            f"{os.fspath(path)}: expected keys such as models: and data:; it holds {found}"
        )
    return YamlFile(Path(path), tree, lines)


def _locate_values(node: Any, at: KeyPath, path: Path, lines: dict[KeyPath, int]) -> None:
    """Note the line of each value, or of its key, in `lines`.

    Keys that are no texts are refused, and those that come twice, of which YAML would keep the
    last. So are aliases that expand to more values than anybody writes.
    """
    if len(lines) > MAX_VALUES or len(at) > _MAX_DEPTH:
        raise FormatError(
            f"{path}: it has too many values, or its aliases (*name) expand to too many; at most "
            f"{MAX_VALUES:,} are read"
        )
    lines.setdefault(at, node.start_mark.line + 1)
    if node.id == "sequence":
        for i, value in enumerate(node.value):
            _locate_values(value, (*at, i), path, lines)
    elif node.id == "mapping":
        for key, value in node.value:
            line, place = key.start_mark.line + 1, (*at, key.value)
            if key.id != "scalar" or key.tag not in _KEY_TAGS:
                raise FormatError(
                    f"{path}, line {line}: expected a text as a key; write {str(key.value)!r}"
                )
            if place in lines:
                raise FormatError(f"{path}, line {line}: {key.value!r} is given twice; remove one")
            lines[place] = line
            _locate_values(value, place, path, lines)
