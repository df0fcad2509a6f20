"""Samples known by keys: an index that stays a sample's own whatever the order it comes in.

A stream's running number is another sample's as soon as the order changes. A key (a name in a tar
file, a file and a row, a row's `__key__`) is not, and its hash of 63 bits serves as the index from
which buckets, signs and drawn tokens follow.
"""

from __future__ import annotations

import hashlib

from .._shown_text import shown
from ..errors import DataError

KEY = "__key__"  # under which rows and batches have their keys
_REMEMBERED = 2**17  # keys that are looked for again


def index_of(key: str) -> int:
    """The index of the sample with this key, below 2⁶³.

    >>> index_of("cats/0001") == index_of("cats/0001") != index_of("cats/0002")
    True
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Distinct:
    """Refuses a sample whose key came before, among the first 131,072 keys of a pass.

    Shards that number their samples anew are found out at the second of them.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def check(self, index: int, name: str) -> None:
        if index in self._seen:
            raise DataError(
                f"the key of {shown(name)} came twice, and keys tell samples apart; give every "
                "sample a key of its own, such as a name that has the shard's in it"
            )
        if len(self._seen) < _REMEMBERED:
            self._seen.add(index)
