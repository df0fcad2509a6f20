"""The YAML job file of a sweep: networks, data sets and options, as a list of pairs to record.

    out: results                         # a folder; default `results`
    models:
      - torchvision:resnet18
      - hf:runs/*/checkpoint-*           # every folder that matches
      - model: nets.py:small
        weights: epochs/*.safetensors    # every file that matches
        name: small
        tokenizer: gpt2                  # for models that come without one
    data:
      digits: digits
      val: {data: images/val, limit: 5000}
    options: {seed: 0, buckets: 512}     # of `record`
    checkpoint: true                     # save progress during a pass

Paths are relative to the folder of the file, and patterns stand for all files or folders that match
them. Errors name the line they are on.

A `Pair` is a network and a data set that are recorded into one file. Its name is the name of that
file. It depends only on the two addresses, so it stays the same whatever else the sweep contains,
and a later start finds what an earlier one recorded.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .._data.text import TextOptions
from .._models.loading import MODEL_PREFIXES
from ..errors import DataError
from ..recording.config import FILE_OPTIONS, Kind
from ..recording.record import NamedRecording
from . import yaml_file
from .yaml_file import KeyPath, YamlFile

_REGISTRY_PREFIXES = ("torchvision:", "timm:")  # in which a star would be a character
_EXPECTED_MATCH = {
    "model": "folder of Hugging Face's, with config.json in it",
    "weights": "file",
    "data": "file or folder",
}
_MSG_WEIGHTS_ALONE = (
    "; files of weights need a network around them: write model: FILE.py:FUNCTION and weights: {}"
)


def expand_pattern(
    address: str, base: Path, kind: Literal["model", "weights", "data"]
) -> list[str]:
    """The addresses that an address with a pattern stands for, numbers in them in order.

    Paths are relative to a folder. Of models, those of folders that match begin with `hf:`.
    """
    path = address.removeprefix("hf:")
    plain = not glob.has_magic(path) or ".py:" in path or path.startswith(_REGISTRY_PREFIXES)
    if plain or (base / path).exists():  # a name may have brackets
        return [address]
    there = sorted(glob.glob(path, root_dir=base, recursive=True), key=_natural_sort_key)
    files = {each for each in there if (base / each).is_file()}
    models = {each for each in there if (base / each / "config.json").is_file()}
    fitting = {"model": models, "weights": files, "data": set(there)}[kind]
    if not fitting:
        raise DataError(
            f"{address!r} matches no {_EXPECTED_MATCH[kind]} below {base}"
            + (
                _MSG_WEIGHTS_ALONE.format(path)
                if kind == "model" and files
                else "; correct it, or leave it out"
            )
        )
    prefix = "hf:" if kind == "model" or address != path else ""
    return [f"{prefix}{each}" for each in there if each in fitting]


def _natural_sort_key(path: str) -> list[tuple[int, int, str]]:
    """Numbers by their size: epoch 9 before epoch 10.

    >>> sorted(["b/10", "b/9", "a"], key=_natural_sort_key)
    ['a', 'b/9', 'b/10']
    """
    parts = re.split(r"(\d+)", path)
    return [(0, int(x), x) if x.isdecimal() else (1, 0, x) for x in parts]


NAME_SEPARATOR = "--"  # of a network's name and that of its data, which have single dashes alone
_MAX_NAME_BYTES = 90  # bytes of either: file systems take 255 for both, with what comes after them
_HASH_DIGITS = 8  # of the hash that ends what was cut
_FILE_ENDINGS = r"\.(pt|pth|bin|ckpt|safetensors|npz|txt|jsonl|parquet)"


@dataclass(frozen=True)
class Pair:
    """One recording to be made."""

    name: str  # of its file, without an ending
    data: str  # the data's name
    wanted: NamedRecording
    options: Mapping[str, Any] = field(default_factory=dict)  # of `record`
    checkpoint: bool = False  # whether to save progress on the way

    @functools.cached_property
    def opens(self) -> NamedRecording:
        """What is read for it: pairs for which this is equal may share their data."""
        text = replace(self.wanted.text, tokenizer=None)
        return replace(self.wanted, model="", weights=None, pretrained=False, text=text, device="")

    @property
    def asked(self) -> dict[str, Any]:
        """All that its recording depends on, as JSON can hold it."""
        wanted = {key: x for key, x in asdict(self.wanted).items() if key != "device"}
        if wanted["text"]["tokenizer"] is None:  # as sweeps wrote it that knew no other
            del wanted["text"]["tokenizer"]
        return wanted | {"options": dict(self.options)}


def safe_file_name(name: str) -> str:
    """A name as any file system takes it: letters, digits, dots, single dashes, underscores.

    >>> safe_file_name("runs/seed 1/epoch=3"), safe_file_name("../up"), safe_file_name("a--b")
    ('runs-seed-1-epoch-3', 'up', 'a-b')
    """
    words = (word.strip(".") for word in re.split(r"[^\w.]+", unicodedata.normalize("NFC", name)))
    kept = "-".join(word for word in words if word) or "unnamed"
    if len(kept.encode()) <= _MAX_NAME_BYTES:
        return kept
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    cut = kept.encode()[: _MAX_NAME_BYTES - _HASH_DIGITS - 1].decode("utf-8", "ignore")
    return f"{cut.rstrip('-.')}-{digest}"


def name_from_address(address: str) -> str:
    """What a model or data are called where nobody named them.

    >>> (name_from_address("hf:runs/a/checkpoint-10"),
    ...  name_from_address("nets.py:small"), name_from_address("epochs/3.pt"))
    ('runs-a-checkpoint-10', 'nets-small', 'epochs-3')
    >>> name_from_address("timm:resnet18")
    'timm-resnet18'
    """
    path = address.removeprefix("hf:").replace(".py:", "-")
    return safe_file_name(re.sub(f"{_FILE_ENDINGS}$", "", path))


_TOP_LEVEL_KEYS: dict[str, tuple[Kind, ...]] = {
    "models": (), "data": (), "options": (), "out": (str,), "checkpoint": (bool,),
}  # fmt: skip
_OPTIONS = {name: each.metadata["kinds"] for name, each in FILE_OPTIONS.items()}
_MODEL_KEYS: dict[str, tuple[Kind, ...]] = {
    "model": (str,), "weights": (str, list), "pretrained": (bool,), "name": (str,), "options": (),
    "tokenizer": (str,),
}  # fmt: skip
_DATA_KEYS: dict[str, tuple[Kind, ...]] = {
    "data": (str,), "name": (str,), "options": (), "size": (int,), "raw": (bool,), "limit": (int,),
    "buffer": (int,), "length": (int,), "packing": ("packed", "each"), "text_field": (str,),
}  # fmt: skip
_MIN_VALUES = {"size": 1, "limit": 0, "buffer": 1, "length": 1}
_MSG_NO_MODEL = (
    "no model is named {!r}; expected torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER, onnx:FILE, "
    "torchscript:FILE, gguf:FILE, FILE.py:FUNCTION, or a pattern that folders match"
)


@dataclass(frozen=True)
class Jobs:
    """What a sweep is to do."""

    file: Path
    base: Path  # the folder that its paths are relative to
    out: Path  # the folder of results
    pairs: tuple[Pair, ...]  # those on the same data one after the other


def read_jobs(path: str | os.PathLike[str]) -> Jobs:
    """The jobs in a file, or an error that names the line that is wrong."""
    file = yaml_file.read_yaml(path)
    file.check((), file.tree, _TOP_LEVEL_KEYS)
    given = {"out": "results", "checkpoint": False, **file.tree}
    base = file.path.absolute().parent
    shared = _checked_options(file, (), file.tree)
    networks = list(_network_sources(file, base))
    pairs = [
        _make_pair(network, samples, shared, given["checkpoint"])
        for samples in _data_sources(file, base)
        for network in networks
    ]
    return Jobs(file.path, base, base / given["out"], tuple(_check_unique_names(file, pairs)))


@dataclass(frozen=True)
class _NamedSource:
    """A network or a data set, as the file has it."""

    name: str
    wanted: Mapping[str, Any]  # fields of Wanted
    options: Mapping[str, Any]  # of `record`, for it alone


def _network_sources(file: YamlFile, base: Path) -> Iterator[_NamedSource]:
    for at, entry in _listed_entries(file, "models", "model", _MODEL_KEYS):
        addresses = _expand_or_refuse(file, at, entry["model"], base, "model")
        wrong = [x for x in addresses if not (x.startswith(MODEL_PREFIXES) or ".py:" in x)]
        if wrong:
            file.refuse(at, _MSG_NO_MODEL.format(wrong[0]))
        given = entry.get("weights", [])
        weights: list[str | None] = [
            x
            for pattern in ([given] if isinstance(given, str) else given)
            for x in _expand_or_refuse(file, at, pattern, base, "weights")
        ]
        how = {"pretrained": entry.get("pretrained", False), "tokenizer": entry.get("tokenizer")}
        for address, each in itertools.product(addresses, weights or [None]):
            name = _source_name(entry, (address, len(addresses)), (each, len(weights)))
            wanted = {"model": address, "weights": each, **how}
            yield _NamedSource(name, wanted, entry["options"])


def _data_sources(file: YamlFile, base: Path) -> Iterator[_NamedSource]:
    for at, entry in _listed_entries(file, "data", "data", _DATA_KEYS):
        text = TextOptions(*(entry.get(key) for key in ("length", "packing", "text_field")))
        how: dict[str, Any] = {
            key: entry[key] for key in ("size", "raw", "limit", "buffer") if key in entry
        }
        addresses = _expand_or_refuse(file, at, entry["data"], base, "data")
        for address in addresses:
            name = _source_name(entry, (address, len(addresses)))
            wanted = {"data": address, "text": text, **how}
            yield _NamedSource(name, wanted, entry["options"])


def _listed_entries(
    file: YamlFile, key: str, main: str, keys: Mapping[str, tuple[Kind, ...]]
) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """What is listed under a key, as mappings: texts, mappings, or either with a name before it."""
    listed = file.tree.get(key)
    if not listed:
        file.refuse((key,), f"expected {key} to record, found none; list them under {key}:")
    named = isinstance(listed, dict)
    several: Any = listed if isinstance(listed, dict | list) else [listed]
    for place, entry in several.items() if named else enumerate(several):
        at: KeyPath = (key, place)
        if isinstance(entry, str):
            entry = {main: entry}
        if not isinstance(entry, Mapping):
            file.refuse(at, f"expected the address of {key}, or {main}: and more; found {entry!r}")
        known = {name: kinds for name, kinds in keys.items() if not (named and name == "name")}
        file.check(at, entry, known, _MIN_VALUES)
        if main not in entry:
            file.refuse(at, f"expected {main}: and its address; found {', '.join(entry)}")
        own = {"options": _checked_options(file, at, entry), **({"name": place} if named else {})}
        yield at, {**entry, **own}


def _checked_options(file: YamlFile, at: KeyPath, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `record` in an entry, checked by type."""
    found, at = entry.get("options", {}), (*at, "options")
    if not isinstance(found, Mapping):
        file.refuse(at, f"options must be names with values, as seed: 0; found {found!r}")
    file.check(at, found, _OPTIONS)
    return dict(found)


def _expand_or_refuse(
    file: YamlFile, at: KeyPath, address: str, base: Path, kind: Literal["model", "weights", "data"]
) -> list[str]:
    try:
        return expand_pattern(address, base, kind)
    except DataError as error:
        file.refuse((*at, kind), str(error))


def _source_name(entry: Mapping[str, Any], *parts: tuple[str | None, int]) -> str:
    """The name that was given, and after it the addresses that there are several of; else all."""
    given = entry.get("name")
    words = [name_from_address(x) for x, several in parts if x and (given is None or several > 1)]
    return safe_file_name("-".join(words if given is None else [given, *words]))


def _make_pair(
    network: _NamedSource, samples: _NamedSource, shared: Mapping[str, Any], checkpoint: bool
) -> Pair:
    options = {**shared, **samples.options, **network.options, "name": network.name}
    wanted = {**network.wanted, **samples.wanted, "skip_bad": options.get("on_bad") == "skip"}
    wanted["text"] = replace(wanted["text"], tokenizer=wanted.pop("tokenizer"))
    name = f"{network.name}{NAME_SEPARATOR}{samples.name}"
    return Pair(name, samples.name, NamedRecording(**wanted), options, checkpoint)


def _check_unique_names(file: YamlFile, pairs: Sequence[Pair]) -> list[Pair]:
    """Each once; different ones of one name are refused, also where only capitals differ."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        other = found.setdefault(pair.name.casefold(), pair)
        if other != pair:
            two = (f"{each.wanted.address} on {each.wanted.data}" for each in (other, pair))
            file.refuse(
                ("models",),
                f"{pair.name!r} would be the name of {' and of '.join(two)}; give one of them a "
                "different name:",
            )
    return list(found.values())
