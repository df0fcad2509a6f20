"""A YAML file as a tree that knows its lines, so that a mistake in it is told with its place."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import FormatError, first_line, nearest, optional
from .option_values import fits, in_words

Place = tuple[str | int, ...]  # keys and positions that lead to a value


@dataclass(frozen=True)
class YamlFile:
    """Its content, a mapping, and where each part of it stands."""

    path: Path
    tree: Mapping[str, Any]
    lines: Mapping[Place, int]  # from 1

    def refuse(self, at: Place, text: str) -> NoReturn:
        """An error that names the line of a value, or of what it would stand in."""
        while at not in self.lines and at:
            at = at[:-1]
        raise FormatError(f"{self.path}, line {self.lines.get(at, 1)}: {text}")

    def check_keys(self, at: Place, mapping: Mapping[str, Any], known: Collection[str]) -> None:
        """Refuse a key that nothing is called."""
        for key in mapping:
            if key not in known:
                self.refuse(
                    (*at, key), f"nothing is called {key!r}; nearest: {nearest(key, known)}"
                )

    def check(self, at: Place, value: Any, hint: Any, least: float | None = None) -> None:
        """Refuse a value that is not what an annotation asks for, or too small a number."""
        if not fits(value, hint):
            self.refuse(at, f"{at[-1]} must be {in_words(hint)}; found {value!r}")
        if least is not None and value < least:
            self.refuse(at, f"{at[-1]} must be {least} or more; found {value!r}")


def read(path: str | os.PathLike[str]) -> YamlFile:
    """The content of a YAML file whose top is a mapping; nothing in it is ever executed."""
    yaml = optional("yaml", "PyYAML", "sweep")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FormatError(f"no file at {os.fspath(path)}; expected jobs in YAML") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)} cannot be read ({error}); expected YAML") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = yaml.safe_load(text)
        lines = {} if node is None else dict(_lines(node, ()))
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
    file = YamlFile(Path(path), tree, lines)
    _refuse_odd_keys(file, node, ())
    return file


def _lines(node: Any, at: Place) -> Iterator[tuple[Place, int]]:
    """Where each value begins, or its key if it has one."""
    if not at:
        yield at, node.start_mark.line + 1
    if node.id == "mapping":
        for key, value in node.value:
            yield (*at, key.value), key.start_mark.line + 1
            yield from _lines(value, (*at, key.value))
    if node.id == "sequence":
        for i, value in enumerate(node.value):
            yield (*at, i), value.start_mark.line + 1
            yield from _lines(value, (*at, i))


def _refuse_odd_keys(file: YamlFile, node: Any, at: Place) -> None:
    """Keys that are no texts, or that come twice, of which YAML would keep the last."""
    if node.id == "sequence":
        for i, value in enumerate(node.value):
            _refuse_odd_keys(file, value, (*at, i))
    if node.id != "mapping":
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.id != "scalar" or key.tag not in _TEXT:
            file.refuse((*at, key.value), f"expected a text as a key; write {str(key.value)!r}")
        if key.value in seen:
            at_line = f"{file.path}, line {key.start_mark.line + 1}"
            raise FormatError(f"{at_line}: {key.value!r} was given before; give it once")
        seen.add(key.value)
        _refuse_odd_keys(file, value, (*at, key.value))


_TEXT = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
