"""A pair: a network and a data set, by name, that are recorded into one file.

Its name is the name of that file. It is made of both addresses alone, so that it stays the same
whatever else a sweep has, and a later start finds what an earlier one left.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..recording.by_name import Wanted

BETWEEN = "--"  # a network's name and that of its data, neither of which has two dashes in a row
_LONGEST = 90  # bytes of either: file systems take 255 for both, with what comes after them
_DIGITS = 8  # of the hash that ends what was cut
_ENDINGS = r"\.(pt|pth|bin|ckpt|safetensors|npz|txt|jsonl|parquet)"


@dataclass(frozen=True)
class Pair:
    """One recording to be made."""

    name: str  # of its file, without an ending
    model: str  # the network's name, in tables and figures
    data: str  # the data's name
    wanted: Wanted
    options: Mapping[str, Any] = field(default_factory=dict)  # of `record`
    checkpoint: bool = False  # whether to save progress on the way

    @property
    def opens(self) -> tuple[Any, ...]:
        """What is read for it: pairs for which this is equal may share their data."""
        wanted = self.wanted
        return (
            wanted.data, wanted.size, wanted.raw, wanted.skip_bad, wanted.limit, wanted.text,
            wanted.buffer,
        )  # fmt: skip

    @property
    def asked(self) -> dict[str, Any]:
        """All that its recording depends on, as JSON can hold it."""
        return {key: x for key, x in asdict(self.wanted).items() if key != "device"} | {
            "options": dict(self.options)
        }


def joined(model: str, data: str) -> str:
    """The name of a pair.

    >>> joined("small", "digits")
    'small--digits'
    """
    return f"{model}{BETWEEN}{data}"


def safe(name: str) -> str:
    """A name as any file system takes it: letters, digits, dots, single dashes, underscores.

    >>> safe("runs/seed 1/epoch=3"), safe("../up"), safe("a--b")
    ('runs-seed-1-epoch-3', 'up', 'a-b')
    """
    words = (word.strip(".") for word in re.split(r"[^\w.]+", unicodedata.normalize("NFC", name)))
    kept = "-".join(word for word in words if word) or "unnamed"
    if len(kept.encode()) <= _LONGEST:
        return kept
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    cut = kept.encode()[: _LONGEST - _DIGITS - 1].decode("utf-8", "ignore")
    return f"{cut.rstrip('-.')}-{digest}"


def name_of(address: str) -> str:
    """What a model or data are called where nobody named them.

    >>> name_of("hf:runs/a/checkpoint-10"), name_of("nets.py:small"), name_of("epochs/3.pt")
    ('runs-a-checkpoint-10', 'nets-small', 'epochs-3')
    >>> name_of("timm:resnet18")
    'timm-resnet18'
    """
    path = address.removeprefix("hf:").replace(".py:", "-")
    return safe(re.sub(f"{_ENDINGS}$", "", path))
