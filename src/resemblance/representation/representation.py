"""Representation: the frozen summary of one network on one data set, and where it came from.

Per layer it holds *blocks* (exact kernels of features and of gradients inside blocks of samples),
*buckets* (kernels of the CountSketch of all samples) and a few sums over all samples. Shared by all
layers are the settings, the provenance and the predictions. `record` makes it, everything else
reads it, and it is saved as one file (docs/reference/format.md).

`ModelInfo`, `DataInfo` and `Made` are the provenance: the network, the data, the circumstances.
`Settings` holds the options that the numbers depend on; two Representations are comparable only if
these settings agree. `as_representation` takes a Representation or the path of its file, as public
functions do for their arguments.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from .._ops.devices import require_cpu_default_device
from .._utils.equality import by_content
from .._utils.hashing import seeded_permutation
from .._utils.notebook import result_html
from .._utils.validation import is_integer
from ..errors import DataError, LayerError, close_matches
from .embeddings import Embeddings
from .file_header import missing_parts
from .layer import Layer
from .notes import MIN_SAMPLES, Note, make_note
from .outputs import Outputs

Order = Literal["seeded", "stream", "keyed"]


@dataclass(frozen=True)
class ModelInfo:
    """The network."""

    name: str
    fingerprint: str | None  # of some of each weight; None for arrays
    parameters: int | None
    weights: str | None = None  # hash of all weights
    address: str | None = None  # what loads it again, such as hf:NAME, and its weights' file
    tokenizer: str | None = None  # hash of what made tokens of its text
    classes: tuple[str, ...] | None = None  # their names, where its configuration has them


@dataclass(frozen=True)
class DataInfo:
    """The samples."""

    id: str | None  # the caller's name for them
    total: int | None  # in the whole data set; None for a stream
    order: Order  # ours, or the stream's, whose samples may have keys
    shards: tuple[tuple[int, int], ...]  # (i, n): which of n shares are in
    skipped: int = 0  # as not finite
    fingerprint: str = ""  # of samples and their order
    content: str | None = None  # of what they hold, in whatever order and under whatever name
    labels: str | None = None  # of their labels, if they have any
    first: str | None = None  # in a shard: of some of all samples, by which shards are alike

    @property
    def complete(self) -> bool:
        """Whether every shard is in."""
        return len(self.shards) == self.shards[0][1]


@dataclass(frozen=True)
class Made:
    """The circumstances."""

    dtype: str  # of the weights
    autocast: str | None
    device: str
    torch: str  # version
    resemblance: str  # version
    date: str  # in UTC
    logits: str | None = None  # how they were read off outputs, such as "softmax (assumed)"

    @classmethod
    def now(
        cls,
        *,
        dtype: str,
        autocast: str | None = None,
        device: str = "cpu",
        logits: str | None = None,
    ) -> Made:
        """With the versions and the date of this moment."""
        date = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        kind = dtype.removeprefix("torch.")
        return cls(kind, autocast, device, torch.__version__, __version__, date, logits)


@dataclass(frozen=True)
class Settings:
    """How a recording was made, as far as its numbers depend on it."""

    seed: int
    buckets: int  # 0 if none were kept
    per_sample: int
    block: int  # samples in a block, after fitting it to the data: of tokens, one a sequence
    blocks: int  # blocks kept at the most; 0 if none were
    max_dim: int | None  # wider layers were folded to this width before the buckets
    pool: str
    target: str  # "tempered", "labels", the name of a function, or "none" without gradients
    beta: float | None  # None unless target is "tempered"
    elementwise: bool
    unit: Literal["sample", "token"] = "sample"  # what a row of a kernel is
    tokens: int = 1  # rows of a sample: tokens drawn from a sequence

    @property
    def tokens_of_each(self) -> int | None:
        """Tokens drawn of each sequence; None where samples are no tokens."""
        return None if self.unit == "sample" else self.tokens

    @property
    def windows(self) -> int:
        """Runs of `block` samples whose blocks are kept: one block a run, or one for each token."""
        return max(1, self.blocks // self.tokens) if self.blocks else 0

    @property
    def gradients(self) -> bool:
        return self.target != "none"


@by_content
@dataclass(frozen=True, eq=False)
class TokenRows:
    """Which tokens the rows of blocks are, where samples are tokens; -1 beyond a block's size."""

    sequence: Tensor  # (k, B) int64: indices of the sequences in the data
    position: Tensor  # (k, B) int64: of the token, counted from the sequence's first real one


@by_content
@dataclass(frozen=True, eq=False)
class Representation:
    """The frozen summary of one network on one data set, as `record` returns it.

    It is a sequence of its layers, indexed by name or position. Two are equal if all their contents
    are, provenance and numbers, bit for bit; they cannot be hashed.

    Attributes:
        layers: the layers, in order of execution.
        settings: the options that recordings must agree on to be compared.
        samples: number of samples recorded, without those skipped; of tokens, where these are the
            samples.
        model: name, hashes and parameters of the network.
        data: name, size and hashes of the data.
        made: version, device and precision of the recording pass.
        block_sizes: number of samples in each block.
        block_numbers: position of each block in the seeded order.
        block_hashes: hash of each block's samples; None in old files.
        label_hashes: hash of each block's labels; None without labels.
        rows: which token each row of a block is; None where samples are not tokens.
        outputs: predictions for the samples of the blocks, or embeddings of the first of them; None
            if not recorded.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rep = rs.record(net, torch.randn(64, 4))
        >>> rep.samples, [layer.name for layer in rep.layers]
        (64, ['1'])
    """

    layers: tuple[Layer, ...]
    settings: Settings
    samples: int
    model: ModelInfo
    data: DataInfo
    made: Made
    block_sizes: tuple[int, ...]
    block_numbers: tuple[int, ...]
    block_hashes: tuple[str, ...] | None = None
    label_hashes: tuple[str, ...] | None = None
    rows: TokenRows | None = None
    outputs: Outputs | Embeddings | None = None

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, key: int | str) -> Layer:
        if is_integer(key) and -len(self) <= int(key) < len(self):
            return self.layers[int(key)]
        if not isinstance(key, str):
            raise LayerError(
                f"expected the name of a layer or an index below {len(self)}, found {key!r}; slice "
                "`layers` to get several"
            )
        for layer in self.layers:
            if layer.name == key:
                return layer
        raise LayerError(
            f"no layer {key!r} in this Representation; "
            f"nearest: {close_matches(key, (layer.name for layer in self.layers))}"
        )

    def __repr__(self) -> str:
        what = "samples" if self.settings.unit == "sample" else "tokens"
        return (
            f"Representation({self.name!r}, {len(self.layers)} layers, {self.samples} {what}, "
            f"{len(self.block_sizes)} blocks of {self.settings.block}, "
            f"{self.settings.buckets} buckets)"
        )

    def _repr_html_(self) -> str:
        columns = {
            "layer": self.layer_names,
            "shape": [" × ".join(map(str, layer.shape_in_network)) for layer in self.layers],
            "recorded": [layer.kinds for layer in self.layers],
            **{
                f"rms norm of {kind}": [
                    math.sqrt(max(layer.recorded(kind).trace, 0.0) / max(self.samples, 1))
                    for layer in self.layers
                ]
                for kind in self.layers[0].kinds
            },
        }
        return result_html(repr(self), (), columns, "\n".join(self._origin()))

    def _origin(self) -> Iterator[str]:
        """What it was recorded from, and how."""
        model, data, made = self.model, self.data, self.made
        if model.parameters is not None:
            yield f"The network has {model.parameters:,} parameters in {made.dtype}."
        if data.id:
            yield f"The data are {data.id!r}."
        target = f"target {self.settings.target!r}" if self.settings.gradients else "no gradients"
        yield f"Recorded with seed {self.settings.seed}, {target}, pooling {self.settings.pool!r}."
        if isinstance(self.outputs, Outputs):
            yield f"Predictions are stored (logits: {made.logits or 'not said'})."
        elif self.outputs is not None:
            yield "Embeddings are stored."
        yield f"{made.date}, {made.device}, torch {made.torch}, resemblance {made.resemblance}."

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def predictions(self) -> Outputs | None:
        """The outputs, if they are predictions."""
        return self.outputs if isinstance(self.outputs, Outputs) else None

    @property
    def embeddings(self) -> Embeddings | None:
        """The outputs, if they are embeddings."""
        return self.outputs if isinstance(self.outputs, Embeddings) else None

    @property
    def complete(self) -> bool:
        """Whether every shard of the data is in."""
        return self.data.complete

    @property
    def mergeable(self) -> bool:
        """Whether the accumulators were kept, which merging and classification need."""
        return self.layers[0].features.sums is not None

    @property
    def lacks(self) -> list[str]:
        """What a recording made today holds and this one, from an older file, does not."""
        features = self.layers[0].features
        return missing_parts(
            norms=features.norms is not None,
            sketch=features.sketch is not None,
            blocks=self.block_hashes is not None,
            content=self.data.content is not None,
            weights=bool(self.model.weights) or self.model.fingerprint is None,
            outputs=self.outputs is not None,
        )

    def sample_numbers(self) -> dict[str, np.ndarray]:
        """Which samples the blocks hold, row by row: those of which predictions are stored.

        Another engine that computes outputs for these, in this order, gives `record_arrays` what it
        reads with `like`.

        Returns:
            `index` (rows,), the number of each sample in the data (of each sequence, for tokens);
            of streams its place in the stream; −1 where it is not known, because samples were
            skipped or have keys. For tokens also `position` (rows,), in the sequence, counted from
            its first real token.
        """
        if self.rows is not None:
            there = self.rows.sequence >= 0
            found = {"index": self.rows.sequence[there], "position": self.rows.position[there]}
            return {name: numbers.numpy() for name, numbers in found.items()}
        if self.data.skipped or self.data.order == "keyed":
            return {"index": np.full(sum(self.block_sizes), -1)}
        blocks = zip(self.block_numbers, self.block_sizes, strict=True)
        places = [n * self.settings.block + np.arange(size) for n, size in blocks]
        index = np.concatenate([*places, np.zeros(0, np.int64)])
        if self.data.order == "seeded":
            index = seeded_permutation(int(self.data.total or 0), self.settings.seed)[index]
        return {"index": index}

    def without_sums(self) -> Representation:
        """The same without its accumulators: all that comparison needs.

        Returns:
            A new Representation, which can be compared but not merged.
        """
        return replace(self, layers=tuple(layer.without_sums() for layer in self.layers))

    def without_outputs(self) -> Representation:
        """The same without what the network predicted, or its embeddings.

        Returns:
            A new Representation, whose `outputs` is None.
        """
        return replace(self, outputs=None)

    def renamed(self, name: str) -> Representation:
        """A copy under a different model name.

        Args:
            name: the new name.

        Returns:
            The copy, which shares its tensors.
        """
        if not isinstance(name, str):
            raise DataError(f"name must be a string; found {name!r}")
        return replace(self, model=replace(self.model, name=name))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the recording to a file, which appears whole or not at all.

        Args:
            path: path of the file, by convention ending in .rsm.

        Returns:
            The path.
        """
        from .file_format import save

        return save(self, path)


def few_samples_note(rows: int, settings: Settings) -> Note | None:
    """The note on too few samples (of tokens, sequences), or None if there are enough."""
    units = rows // settings.tokens
    unit = "sample" if settings.tokens_of_each is None else "sequence"
    return make_note("few-samples", samples=units, unit=unit) if units < MIN_SAMPLES else None


def settings_difference(a: Representation, b: Representation, names: Sequence[str]) -> str | None:
    """The first of the named settings in which two Representations differ, in words."""
    for name in names:
        left, right = getattr(a.settings, name), getattr(b.settings, name)
        if not settings_agree(left, right):
            return f"{name} differs: {left!r} in {a.name!r}, {right!r} in {b.name!r}"
    return None


def settings_agree(one: Any, two: Any) -> bool:
    """Whether two values of a setting are the same.

    A function is stored as its name and a hash of what it computes. In older files there is only
    the name, which agrees with any hash.

    >>> (settings_agree("function f 01", "function f 02"),
    ...  settings_agree("function f", "function f 02"))
    (False, True)
    """
    if one == two or not (isinstance(one, str) and isinstance(two, str)):
        return bool(one == two)
    left, right = one.split(), two.split()
    return left[0] == "function" and len(left) != len(right) and left[1] == right[1]


RepresentationLike = Representation | str | os.PathLike[str]


def as_representation(given: RepresentationLike) -> Representation:
    """The Representation itself, or the one in the file at a path."""
    require_cpu_default_device()
    if isinstance(given, Representation):
        return given
    if isinstance(given, str | os.PathLike):
        from .file_format import load

        return load(given)
    raise DataError(
        f"expected a Representation or the path of one, found {_describe_type(given)}; make "
        "one with record"
    )


def as_representations(given: Iterable[RepresentationLike]) -> list[Representation]:
    """The same for several, in a list or any other iterable."""
    if isinstance(given, Representation | str | os.PathLike | Mapping) or not isinstance(
        given, Iterable
    ):
        raise DataError(
            f"expected a list of Representations or of paths, found {_describe_type(given)}; "
            "write [a, b]"
        )
    return [as_representation(each) for each in given]


def _describe_type(given: Any) -> str:
    if isinstance(given, str | os.PathLike):
        return f"the path {os.fspath(given)!r}"
    name = type(given).__name__
    return f"one {name}" if isinstance(given, Representation) else name
