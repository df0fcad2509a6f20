"""The header of a recording's file: what it says of itself, read without its numbers or torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError
from . import schema, tensor_file


@dataclass(frozen=True)
class FileHeader:
    """What a file says of the recording in it, and which tensors it has."""

    content: Mapping[str, Any]
    tensors: frozenset[str]

    @property
    def lacks(self) -> list[str]:
        """What a recording made today holds and this one, from an older file, does not."""
        model, data = self.content["model"], self.content["data"]
        has = {
            "norms": "0.features.norms" in self.tensors,
            "sketch": "0.features.sketch.table" in self.tensors,
            "blocks": self.content.get("block_hashes") is not None,
            "content": data.get("content") is not None,
            "weights": bool(model.get("weights")) or model["fingerprint"] is None,
            "outputs": any(name.startswith("outputs.") for name in self.tensors),
        }
        return missing_parts(**has)


def missing_parts(
    *, norms: bool, sketch: bool, blocks: bool, content: bool, weights: bool, outputs: bool
) -> list[str]:
    """Those parts of a recording that it does not have, in words."""
    parts = {
        "squared norms of samples": norms,
        "sketches in coordinates": sketch,
        "hashes of blocks": blocks,
        "a hash of what samples hold": content,
        "a hash of all weights": weights,
        "what the network predicted": outputs or norms,  # which may be left out today, too
    }
    return [name for name, there in parts.items() if not there]


def read_file_header(path: str | os.PathLike[str]) -> FileHeader:
    """The header of a file whose checksums hold, all of them.

    Raises:
        FormatError: if the file is missing, damaged, from a newer version, or no whole recording.
    """

    def groups(header: Mapping[str, Any], present: Collection[str]) -> Collection[str]:
        check_header(path, header, present)
        return present

    header, arrays = tensor_file.read_arrays(path, groups)
    refuse_checkpoint(path, header.get("checkpoint"))
    return FileHeader(header, frozenset(arrays))


def check_header(path: object, header: Mapping[str, Any], present: Collection[str]) -> None:
    """An error that says what in a header, or among the groups of tensors, must be different."""
    try:
        schema.check_header(header)
        schema.check_groups(header, present)
    except FormatError as error:
        raise invalid_file_error(path, header, error) from error


def invalid_file_error(path: object, header: Mapping[str, Any], error: FormatError) -> FormatError:
    """The error for a file that holds something else than a Representation."""
    if "task2vec" in header:
        return FormatError(f"{path} holds a TaskEmbedding; read it with TaskEmbedding.load")
    return FormatError(f"{path} is not a valid Representation: {error}; record it again")


def refuse_checkpoint(path: object, checkpoint: Any) -> None:
    """An error for a file that a pass is still to go on with."""
    if checkpoint is not None:
        raise FormatError(
            f"{path} is the checkpoint of an unfinished recording; run the same recording with the "
            "same checkpoint again to resume it"
        )
