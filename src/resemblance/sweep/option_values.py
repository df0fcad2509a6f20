"""Values that a file gives for options, checked by the annotations of the function they go to.

A file holds texts, numbers, truth values, lists and nothing else: what only Python can give, such
as a function, fits no annotation here.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .._model.pooling import NAMES
from ..recording.from_model import record

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
}
# what a sweep sets itself for each pair, or what has no form in a file
_NOT_IN_A_FILE = (
    "call", "checkpoint", "logits", "model", "data", "name", "progress", "shard", "tokenizer"
)  # fmt: skip


def of_record() -> dict[str, Any]:
    """The options of `record` that a file can give, with what each may be."""
    hints = get_type_hints(record)
    hints["pool"] = Literal[NAMES]  # a file names no function
    names = inspect.signature(record).parameters
    return {name: hints[name] for name in names if name not in _NOT_IN_A_FILE}


def defaults_of_record() -> dict[str, Any]:
    """What `record` takes where an option is not given."""
    parameters = inspect.signature(record).parameters
    return {name: parameters[name].default for name in of_record()}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is what an annotation asks for.

    >>> fits(3, int), fits(True, int), fits("auto", Literal["auto"]), fits("b", Literal["auto"])
    (True, False, True, False)
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    if origin is collections.abc.Sequence:
        (each,) = get_args(hint)
        return isinstance(value, list) and bool(value) and all(fits(x, each) for x in value)
    if hint is float:
        return type(value) in (int, float)
    return hint in _WORDS and type(value) is hint


def in_words(hint: Any) -> str:
    """What an annotation asks for, as far as a file can give it.

    >>> in_words(int | Literal["auto"]), in_words(Literal["packed", "each"])
    ('a whole number or auto', 'packed or each')
    """
    words = _words(hint)
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _words(hint: Any) -> list[str]:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return [word for each in get_args(hint) for word in _words(each)]
    if origin is Literal:
        return [str(each) for each in get_args(hint)]
    if origin is collections.abc.Sequence:
        return ["a list of texts"]
    return [_WORDS[hint]] if hint in _WORDS else []
