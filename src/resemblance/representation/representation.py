"""Representation: the frozen summary of one network on one data set.

Per layer it holds *blocks* (exact kernels of features and of gradients inside blocks of samples),
*buckets* (kernels of the CountSketch of all samples) and *moments* (a few sums over all samples);
once for all layers, the settings and where everything came from. It is made by `record`, read by
everything else, saved as one file (docs/format.md), and merged from shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..errors import LayerError, MismatchError, nearest
from . import container

KINDS = ("features", "gradients", "elementwise")


@dataclass(frozen=True)
class Settings:
    """What must agree for two Representations to be comparable."""

    seed: int
    buckets: int  # 0 if none were kept
    per_sample: int
    block: int  # samples in a block, after fitting it to the data
    blocks: int  # blocks kept at the most; 0 if none were
    max_dim: int | None  # wider layers were folded to this width before the buckets
    pool: str
    target: str  # "tempered", "labels", the name of a function, or "none" without gradients
    beta: float | None  # None unless target is "tempered"
    elementwise: bool

    @property
    def gradients(self) -> bool:
        return self.target != "none"


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's share of a Representation. Kernels come out in float64."""

    name: str
    shape: tuple[int, ...]  # of one sample's features before pooling, as they lie in memory
    dim: int  # width of the recorded vector
    folded: bool  # whether max_dim acted on the buckets
    moments: Mapping[str, float]  # sums over all samples, see docs/format.md
    tensors: Mapping[str, Tensor]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of features, gradients, elementwise were recorded."""
        return tuple(kind for kind in KINDS if f"trace_{kind}" in self.moments)

    def triangles(self, kind: str) -> tuple[Tensor, Tensor]:
        """Block kernels as strict lower triangles (k, B(B-1)/2) and diagonals (k, B)."""
        diagonal = self.tensor(f"{kind}.blocks.diagonal")
        return packing.unpack16(self.tensor(f"{kind}.blocks.triangle"), diagonal), diagonal.double()

    def blocks(self, kind: str) -> Tensor:
        """Block kernels as full matrices (k, B, B); a short block is padded with zeros."""
        return packing.squares(*self.triangles(kind))

    def buckets(self, kind: str, *, centre: bool = False) -> Tensor:
        """The kernel (M, M) of the sketched samples, K̃ = F̃F̃ᵀ.

        With `centre`, that of the samples with their mean taken off before sketching:
        (F̃ − c f̄ᵀ)(F̃ − c f̄ᵀ)ᵀ with c the sum of signs in each bucket. That is exact,
        which centring the M × M matrix itself is not.
        """
        kernel = packing.unpack24(
            self.tensor(f"{kind}.buckets.triangle"), self.tensor(f"{kind}.buckets.diagonal")
        )
        if centre:
            c = self.tensor("signs").double()
            row = self.tensor(f"{kind}.buckets.mean").double()  # F̃ f̄
            kernel = kernel - torch.outer(row, c) - torch.outer(c, row)
            kernel = kernel + self.moments[f"mean_{kind}"] * torch.outer(c, c)
        return kernel

    def tensor(self, name: str) -> Tensor:
        """A stored tensor by its name in the file, or an error that says how to record it."""
        if name in self.tensors:
            return self.tensors[name]
        part = name.split(".")[0]
        if part in KINDS and part not in self.kinds:
            option = "elementwise=True" if part == "elementwise" else "gradients on (the default)"
            raise MismatchError(
                f"layer {self.name!r} holds no {part}: it was recorded without; record again with "
                f"{option}"
            )
        raise MismatchError(
            f"layer {self.name!r} holds no {name!r}; it was recorded without; record again with "
            f"{'blocks' if 'blocks' in name else 'buckets'} above 0"
        )


@dataclass(frozen=True, eq=False)
class Representation:
    """The frozen summary of one network on one data set.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rep = rs.record(net, torch.randn(64, 4))
    >>> rep.samples, [layer.name for layer in rep.layers]
    (64, ['1'])
    """

    layers: tuple[Layer, ...]  # in order of execution
    settings: Settings
    samples: int  # recorded, without those skipped
    model: Mapping[str, Any]  # name, fingerprint, number of parameters
    data: Mapping[str, Any]  # fingerprint, order, shards, skipped
    made: Mapping[str, Any]  # versions, dtype, device, date, notes
    block_sizes: tuple[int, ...]
    block_numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, key: int | str) -> Layer:
        if isinstance(key, int):
            return self.layers[key]
        for layer in self.layers:
            if layer.name == key:
                return layer
        raise LayerError(
            f"no layer {key!r} in this Representation; "
            f"nearest: {nearest(key, (layer.name for layer in self.layers))}"
        )

    def __repr__(self) -> str:
        return (
            f"Representation({self.name!r}, {len(self.layers)} layers, {self.samples} samples, "
            f"{len(self.block_sizes)} blocks of {self.settings.block}, "
            f"{self.settings.buckets} buckets)"
        )

    @property
    def name(self) -> str:
        return str(self.model["name"])

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def complete(self) -> bool:
        """Whether every shard of the data is in."""
        shards = self.data["shards"]
        return len(shards) == shards[0][1]

    @property
    def mergeable(self) -> bool:
        """Whether the accumulators were kept, which merging and classification need."""
        return "features.sums" in self.layers[0].tensors

    def without_sums(self) -> Representation:
        """The same without its accumulators: all that comparison needs."""
        return replace(
            self,
            layers=tuple(
                replace(layer, tensors=MappingProxyType(without_sums(layer.tensors)))
                for layer in self.layers
            ),
        )

    def renamed(self, name: str) -> Representation:
        """The same under another model name."""
        return replace(self, model=MappingProxyType({**self.model, "name": name}))

    # -- the file -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file (by convention .rsm); it appears whole or not at all."""
        tensors = {
            f"{i}.{key}": value
            for i, layer in enumerate(self.layers)
            for key, value in layer.tensors.items()
            if key != "signs"
        }
        if "signs" in self.layers[0].tensors:
            tensors["signs"] = self.layers[0].tensors["signs"]
        header = {
            "settings": asdict(self.settings),
            "samples": self.samples,
            "model": dict(self.model),
            "data": dict(self.data),
            "made": dict(self.made),
            "block_sizes": list(self.block_sizes),
            "block_numbers": list(self.block_numbers),
            "layers": [
                {
                    "name": layer.name,
                    "shape": list(layer.shape),
                    "dim": layer.dim,
                    "folded": layer.folded,
                    "moments": dict(layer.moments),
                }
                for layer in self.layers
            ],
        }
        return container.write(path, header, tensors)


def load(path: str | os.PathLike[str]) -> Representation:
    """The Representation in a file that `save` wrote; nothing in it is ever executed."""
    header, tensors = container.read(path)
    shared = {"signs": tensors.pop("signs")} if "signs" in tensors else {}
    parts: list[dict[str, Tensor]] = [dict(shared) for _ in header["layers"]]
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        parts[int(index)][name] = value
    layers = tuple(
        Layer(
            name=entry["name"],
            shape=tuple(entry["shape"]),
            dim=entry["dim"],
            folded=entry["folded"],
            moments=MappingProxyType(entry["moments"]),
            tensors=MappingProxyType(part),
        )
        for entry, part in zip(header["layers"], parts, strict=True)
    )
    return Representation(
        layers=layers,
        settings=Settings(**header["settings"]),
        samples=header["samples"],
        model=MappingProxyType(header["model"]),
        data=MappingProxyType(header["data"]),
        made=MappingProxyType(header["made"]),
        block_sizes=tuple(header["block_sizes"]),
        block_numbers=tuple(header["block_numbers"]),
    )


# -- accumulators to kernels, and merging -------------------------------------------------------


def finish(
    tensors: Mapping[str, Tensor], count: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Bucket kernels and mean norms from the accumulators F̃ (M, D) and Σf (D,), where they lie."""
    tensors, moments = dict(tensors), {}
    for kind in KINDS:
        if f"{kind}.sums" not in tensors:
            continue
        sums, mean = tensors[f"{kind}.sums"].float(), tensors[f"{kind}.total"].double() / count
        wide = sums.double() if sums.is_cuda else sums  # a GPU may be set to round float32 products
        triangle, diagonal = packing.pack24(wide @ wide.T)
        tensors[f"{kind}.buckets.triangle"] = triangle
        tensors[f"{kind}.buckets.diagonal"] = diagonal
        tensors[f"{kind}.buckets.mean"] = sums @ mean.float()
        moments[f"mean_{kind}"] = mean @ mean
    return tensors, moments


def without_sums(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's tensors but for its accumulators."""
    return {k: v for k, v in tensors.items() if not k.endswith((".sums", ".total"))}


def merge(parts: Iterable[Representation], *, keep_sums: bool = False) -> Representation:
    """One Representation from shards recorded apart, in any order.

    Accumulators add and blocks concatenate, so the result is what one pass over all of the data
    gives, to float round-off. It keeps the accumulators while shards are missing.
    """
    shards = sorted(parts, key=lambda part: part.data["shards"])
    if not shards:
        raise MismatchError("nothing to merge: expected at least one shard")
    first = shards[0]
    if len(shards) == 1:
        return first if keep_sums or not first.complete else first.without_sums()
    for other in shards[1:]:
        _refuse_unmergeable(first, other)
    taken = [tuple(shard) for part in shards for shard in part.data["shards"]]
    twice = {shard for shard in taken if taken.count(shard) > 1}
    if twice:
        raise MismatchError(f"shards overlap: {sorted(twice)} came more than once; drop the copies")
    numbers = [number for part in shards for number in part.block_numbers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    sizes = [size for part in shards for size in part.block_sizes]
    samples = sum(part.samples for part in shards)
    layers = []
    for same in zip(*shards, strict=True):
        tensors: dict[str, Tensor] = {}
        for key in same[0].tensors:
            values = [layer.tensors[key] for layer in same]
            if ".blocks." in key:
                tensors[key] = torch.cat(values)[order]
            elif key.endswith((".sums", ".total")) or key == "signs":
                tensors[key] = torch.stack(values).sum(0)
        moments = {k: sum(layer.moments[k] for layer in same) for k in same[0].moments}
        tensors, means = finish(tensors, samples)
        moments |= {key: float(value) for key, value in means.items()}
        layers.append(
            replace(same[0], moments=MappingProxyType(moments), tensors=MappingProxyType(tensors))
        )
    fingerprint = sum(int(part.data["fingerprint"], 16) for part in shards) % 2**64
    data = {
        **first.data,
        "fingerprint": f"{fingerprint:016x}",
        "skipped": sum(part.data["skipped"] for part in shards),
        "shards": [list(shard) for shard in sorted(taken)],
    }
    whole = replace(
        first,
        layers=tuple(layers),
        samples=samples,
        data=MappingProxyType(data),
        block_sizes=tuple(sizes[i] for i in order),
        block_numbers=tuple(numbers[i] for i in order),
    )
    return whole if keep_sums or not whole.complete else whole.without_sums()


def _refuse_unmergeable(a: Representation, b: Representation) -> None:
    """An error that names the first difference between two would-be shards of one pass."""
    for part in (a, b):
        if part.settings.buckets and not part.mergeable:
            raise MismatchError(
                f"{part.name!r} dropped its accumulators; record it with shard=(i, n) or "
                "keep_sums=True"
            )
    pairs: list[tuple[str, Any, Any]] = [
        (f"setting {f.name}", getattr(a.settings, f.name), getattr(b.settings, f.name))
        for f in fields(Settings)
    ]
    pairs += [
        ("model weights", a.model["fingerprint"], b.model["fingerprint"]),
        ("layers", a.layer_names, b.layer_names),
        ("shapes of layers", [layer.shape for layer in a], [layer.shape for layer in b]),
        ("number of shards", a.data["shards"][0][1], b.data["shards"][0][1]),
        ("samples in all", a.data["total"], b.data["total"]),
        ("data_id", a.data["id"], b.data["id"]),
        ("order", a.data["order"], b.data["order"]),
    ]
    for what, left, right in pairs:
        if left != right:
            raise MismatchError(
                f"these are not shards of one pass: {what} differs, {left!r} and {right!r}; "
                "record them again with the same model, data and settings"
            )


def difference(a: Representation, b: Representation, names: Sequence[str]) -> str | None:
    """The first of the named settings in which two Representations differ, in words."""
    for name in names:
        left, right = getattr(a.settings, name), getattr(b.settings, name)
        if left != right:
            return f"{name} differs: {left!r} in {a.name!r}, {right!r} in {b.name!r}"
    return None
