"""A recording in parts that can be kept, and read, one at a time: a file of each layer, and the
tensors that all layers share."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..representation.file_format import content, load
from ..representation.outputs import Outputs
from ..representation.representation import Representation, TokenRows


@dataclass(frozen=True)
class Parts:
    """All parts of a recording, or those of some layers."""

    layers: tuple[bytes, ...]  # a file each, in the format of files
    shared: bytes  # what was predicted, and which tokens are rows; empty if neither is known

    @property
    def size(self) -> int:
        return sum(map(len, self.layers)) + len(self.shared)


def taken_apart(rep: Representation) -> Parts:
    """The parts of a recording."""
    bare = replace(rep, outputs=None, rows=None)
    files = tuple(content(replace(bare, layers=(layer,))) for layer in rep)
    tensors: dict[str, Tensor] = {}
    if rep.rows is not None:
        tensors |= {"rows.sequence": rep.rows.sequence, "rows.position": rep.rows.position}
    if rep.outputs is not None:
        tensors |= {f"outputs.{name}": x for name, x in rep.outputs.tensors().items()}
    made = {name: x.contiguous() for name, x in tensors.items()}
    return Parts(files, to_safetensors(made) if made else b"")


def put_together(parts: Parts, classes: int | None) -> Representation:
    """The recording that parts are of, with the layers that are among them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reps = [_loaded(Path(folder, f"{i}.rsm"), text) for i, text in enumerate(parts.layers)]
    found: dict[str, dict[str, Any]] = {"outputs": {}, "rows": {}}
    for key, value in (from_safetensors(parts.shared) if parts.shared else {}).items():
        kind, _, name = key.partition(".")
        found[kind][name] = value
    return replace(
        reps[0],
        layers=_in_common([rep.layers for rep in reps]),
        outputs=None if classes is None else Outputs(classes, **found["outputs"]),
        rows=TokenRows(**found["rows"]) if found["rows"] else None,
    )


def _loaded(path: Path, text: bytes) -> Representation:
    path.write_bytes(text)
    return load(path)


def _in_common(layers: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The layers of several recordings, with what they share held once."""
    first = layers[0][0]
    return tuple(
        replace(layer, signs=first.signs, sketch_signs=first.sketch_signs)
        for several in layers
        for layer in several
    )
