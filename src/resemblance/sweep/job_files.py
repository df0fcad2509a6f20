"""The file that says what a sweep records: networks, data sets, and how.

It is YAML:

    out: results                         # a folder; `results` if left out
    models:
      - torchvision:resnet18
      - hf:runs/*/checkpoint-*           # every folder that matches
      - model: nets.py:small
        weights: epochs/*.safetensors    # every file that matches
        name: small
    data:
      digits: digits
      val: {data: images/val, limit: 5000}
    options: {seed: 0, buckets: 512}     # of `record`
    checkpoint: true                     # save progress on the way

Paths are relative to the folder that the file is in. A mistake is told with its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .._data.tokenized_text import TextOptions
from ..errors import DataError
from ..recording.by_name import Wanted
from . import yaml_lines
from .matching_paths import expanded
from .option_values import of_record
from .pairs import Pair, joined, name_of, safe
from .yaml_lines import Place, YamlFile

_KEYS = ("models", "data", "options", "out", "checkpoint")
_LIBRARIES = ("torchvision:", "timm:", "hf:")
_OF_A_MODEL: dict[str, Any] = {
    "model": str, "weights": str | Sequence[str], "pretrained": bool, "name": str, "options": None
}  # fmt: skip
_OF_DATA: dict[str, Any] = {
    "data": str, "name": str, "options": None, "size": int, "raw": bool, "limit": int,
    "buffer": int, "length": int, "packing": Literal["packed", "each"], "text_field": str,
}  # fmt: skip
_LEAST = {"size": 1, "limit": 0, "buffer": 1, "length": 1}
_NO_MODEL = (
    "no model is named {!r}; expected torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER, "
    "FILE.py:FUNCTION, or a pattern that folders match"
)


@dataclass(frozen=True)
class Jobs:
    """What a sweep is to do."""

    file: Path
    base: Path  # the folder that its paths are relative to
    out: Path  # the folder of results
    pairs: tuple[Pair, ...]  # those on the same data one after the other


def read(path: str | os.PathLike[str]) -> Jobs:
    """The jobs in a file, or an error that names the line that is wrong."""
    file = yaml_lines.read(path)
    file.check_keys((), file.tree, _KEYS)
    given = {"out": "results", "checkpoint": False, **file.tree}
    file.check(("out",), given["out"], str)
    file.check(("checkpoint",), given["checkpoint"], bool)
    base = file.path.absolute().parent
    shared = _options(file, (), file.tree)
    networks = list(_networks(file, base))
    pairs = [
        _pair(network, samples, shared, given["checkpoint"])
        for samples in _data_sets(file, base)
        for network in networks
    ]
    return Jobs(file.path, base, base / given["out"], tuple(_distinct(file, pairs)))


@dataclass(frozen=True)
class _Named:
    """A network or a data set, as the file has it."""

    name: str
    wanted: Mapping[str, Any]  # fields of Wanted
    options: Mapping[str, Any]  # of `record`, for it alone


def _networks(file: YamlFile, base: Path) -> Iterator[_Named]:
    for at, entry in _entries(file, "models", "model", _OF_A_MODEL):
        addresses = _expanded(file, at, entry["model"], base, "model")
        wrong = [x for x in addresses if not (x.startswith(_LIBRARIES) or ".py:" in x)]
        if wrong:
            file.refuse(at, _NO_MODEL.format(wrong[0]))
        given = entry.get("weights", [])
        patterns = [given] if isinstance(given, str) else given
        weights: list[str | None] = [
            x for each in patterns for x in _expanded(file, at, each, base, "weights")
        ]
        how: dict[str, Any] = {"pretrained": entry.get("pretrained", False)}
        for address in addresses:
            for each in weights or [None]:
                parts = ([address], len(addresses)), ([each] if each else [], len(weights))
                wanted = {"model": address, "weights": each, **how}
                yield _Named(_name(entry, *parts), wanted, _options(file, at, entry))


def _data_sets(file: YamlFile, base: Path) -> Iterator[_Named]:
    for at, entry in _entries(file, "data", "data", _OF_DATA):
        text = TextOptions(*(entry.get(key) for key in ("length", "packing", "text_field")))
        how: dict[str, Any] = {
            key: entry[key] for key in ("size", "raw", "limit", "buffer") if key in entry
        }
        addresses = _expanded(file, at, entry["data"], base, "data")
        for address in addresses:
            name = _name(entry, ([address], len(addresses)))
            wanted = {"data": address, "text": text, **how}
            yield _Named(name, wanted, _options(file, at, entry))


def _entries(
    file: YamlFile, key: str, main: str, hints: Mapping[str, Any]
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """What is listed under a key, as mappings: texts, mappings, or either with a name before it."""
    found = file.tree.get(key)
    if not found:
        file.refuse((key,), f"expected {key} to record, found none; list them under {key}:")
    named = isinstance(found, dict)
    listed = list(found.items()) if isinstance(found, dict) else []
    if not named:
        listed = list(enumerate(found if isinstance(found, list) else [found]))
    for place, entry in listed:
        at: Place = (key, place)
        if isinstance(entry, str):
            entry = {main: entry}
        if not isinstance(entry, Mapping):
            file.refuse(at, f"expected the address of {key}, or {main}: and more; found {entry!r}")
        file.check_keys(at, entry, [x for x in hints if not (named and x == "name")])
        if main not in entry:
            file.refuse(at, f"expected {main}: and its address; found {', '.join(entry)}")
        for name, value in entry.items():
            if name != "options":
                file.check((*at, name), value, hints[name], _LEAST.get(name))
        yield at, {**({"name": place} if named else {}), **entry}


def _options(file: YamlFile, at: Place, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `record` in an entry, checked by its signature."""
    found = entry.get("options", {})
    at = (*at, "options")
    if not isinstance(found, Mapping):
        file.refuse(at, f"options must be names with values, as seed: 0; found {found!r}")
    known = of_record()
    file.check_keys(at, found, known)
    for name, value in found.items():
        file.check((*at, name), value, known[name])
    return dict(found)


def _expanded(
    file: YamlFile, at: Place, address: str, base: Path, kind: Literal["model", "weights", "data"]
) -> list[str]:
    try:
        return expanded(address, base, kind)
    except DataError as error:
        file.refuse((*at, kind), str(error))


def _name(entry: Mapping[str, Any], *parts: tuple[list[str], int]) -> str:
    """The name that was given, and after it the addresses that there are several of; else all."""
    given = entry.get("name")
    words = [] if given is None else [given]
    for addresses, several in parts:
        if given is None or several > 1:
            words += map(name_of, addresses)
    return safe("-".join(words))


def _pair(network: _Named, samples: _Named, shared: Mapping[str, Any], checkpoint: bool) -> Pair:
    options = {**shared, **samples.options, **network.options, "name": network.name}
    skip_bad = options.get("on_bad") == "skip"
    wanted = Wanted(**network.wanted, **samples.wanted, skip_bad=skip_bad)
    name = joined(network.name, samples.name)
    return Pair(name, network.name, samples.name, wanted, options, checkpoint)


def _distinct(file: YamlFile, pairs: Sequence[Pair]) -> list[Pair]:
    """Each once; different ones of one name are refused, also where only capitals differ."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        other = found.setdefault(pair.name.casefold(), pair)
        if other != pair:
            two = (f"{each.wanted.address} on {each.wanted.data}" for each in (other, pair))
            file.refuse(
                ("models",),
                f"{pair.name!r} would be the name of {' and of '.join(two)}; give one a name: of "
                "its own",
            )
    return list(found.values())
