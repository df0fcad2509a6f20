"""Running statistics over samples: squared norms, inner products, and variance between blocks.

`Moments` sums ‖f‖², ‖g‖², ‖f‖²‖g‖² and powers of ⟨f, g⟩ in float64, and keeps the squared norms of
the first samples. All layers of a batch are summed together, because on a GPU one launch per layer
costs more than the sums.

`OrderCheck` detects sorted streams by an analysis of variance over blocks. Estimates from blocks
are good only if samples come in random order. Then means of blocks of n samples have a variance of
1/n of that among samples; in a sorted stream it is larger. Blocks after those that are stored are
examined too, because a stream may begin in random order and change later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops.devices import copy_all_to_host_async, copy_to_device_async
from ..errors import warn
from ..representation.layer import NORMS_KEPT, Kind, Products
from .gram_blocks import GrowingRows

# Batches that are summed up together, by device. On a CPU nothing small waits, as with `Rows`.
_BATCHES_PER_SUM = {"cuda": 32}

NormsByLayer = dict[tuple[Kind, int], Tensor]  # of each kind and layer, one of each sample (n,)


@dataclass(frozen=True)
class LayerMoments:
    """What came together for one layer."""

    traces: dict[Kind, float]
    norms: dict[Kind, Tensor]  # by place in the order, as far as they are kept
    products: Products | None


class Moments:
    """Sums in float64 over the samples that come, and the first of the norms themselves."""

    def __init__(self) -> None:
        self._keys: list[tuple[Kind, int]] = []  # of the rows of norms, kind after kind
        self._held: list[tuple[Tensor, Tensor | None]] = []  # of late batches
        self._sums: dict[str, Tensor] = {}
        self._norms = GrowingRows()

    def add(self, keys: list[tuple[Kind, int]], norms: Tensor, inner: Tensor | None) -> None:
        """Take in a batch: ‖x‖² (keys, n), sorted by kind and layer, and ⟨f, g⟩ (layers, n)."""
        self._keys = keys
        self._held.append((norms, inner))
        if len(self._held) >= _BATCHES_PER_SUM.get(norms.device.type, 1):
            self.settle()

    def settle(self) -> None:
        """Add up the batches held, where they lie."""
        if not self._held:
            return
        norms = torch.cat([norms for norms, _ in self._held], 1).double()
        inners = [inner for _, inner in self._held if inner is not None]
        self._held = []
        found = {"traces": norms.sum(1)}
        if inners:
            inner = torch.cat(inners, 1).double()
            found["norms"] = (norms[self._at("features")] * norms[self._at("gradients")]).sum(1)
            found |= {"inner": inner.sum(1), "inner_squared": (inner**2).sum(1)}
            found["inner_fourth"] = (inner**4).sum(1)
        for name, value in found.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        if len(self._norms) < NORMS_KEPT:
            self._norms.append(norms.float().T.contiguous())

    def _at(self, kind: Kind) -> slice:
        """The rows of a kind, which follow each other."""
        rows = [row for row, key in enumerate(self._keys) if key[0] == kind]
        return slice(rows[0], rows[-1] + 1)

    def send(self, places: np.ndarray) -> Callable[[], dict[int, LayerMoments]]:
        """Have all that came sent to the host; the function returned waits for it, by layer.

        `places` are those in the order of the samples that came.
        """
        self.settle()
        names = list(self._sums)
        norms = _norms_by_place(self._norms.whole(), places)
        # on the host each in memory of its own, as it is once it has come there from a GPU
        apart = norms if norms.is_cuda else [row.clone() for row in norms]
        arrived = copy_all_to_host_async([*self._sums.values(), *apart])

        def result() -> dict[int, LayerMoments]:
            here = arrived()
            sums = {name: x.tolist() for name, x in zip(names, here, strict=False)}
            traces, norms = sums.pop("traces"), here[len(names) :]
            out: dict[int, LayerMoments] = {}
            for row, (kind, i) in enumerate(self._keys):
                if i not in out:
                    each = {name: values[len(out)] for name, values in sums.items()}
                    out[i] = LayerMoments({}, {}, Products(**each) if each else None)
                out[i].traces[kind], out[i].norms[kind] = traces[row], norms[row]
            return out

        return result


def _norms_by_place(
    norms: Tensor, places: np.ndarray
) -> Tensor:  # (n, keys), (n,) -> (keys, places)
    """Norms by place in the order, as far as they are kept; NaN where none came."""
    norms, places = norms[: len(places)], places[: len(norms)]
    near = np.flatnonzero(places < NORMS_KEPT)
    count = int(places[near].max()) + 1 if len(near) else 0
    to, of = (copy_to_device_async(torch.from_numpy(x), norms.device) for x in (places[near], near))
    out = norms.new_full((norms.shape[1], count), torch.nan)
    return out.index_copy_(1, to, norms.index_select(0, of).T)


_MAX_SHARE_BETWEEN = 0.02  # of the variance between blocks: a stream above this is warned about
_MAX_SHARE_APART = 0.01  # of the variance between the blocks that are kept and later ones: as well
_MSG_SORTED_STREAM = (
    "the stream looks sorted: {:.0%} of the variance at {!r} lies between blocks of successive "
    "samples, where random order gives none. Scores from blocks will be biased; shuffle it in a "
    "larger `buffer`, or pass a data set, which is visited in random "
    "order"
)
_MSG_FIRST_BLOCKS_DIFFER = (
    "the stream changes as it goes on: {:.0%} of the variance at {!r} lies between the samples of "
    "the blocks that are kept, which came first, and later ones, where random order gives none. "
    "Scores from blocks will be biased, those from buckets not; shuffle it in a larger buffer "
    "(`buffer`), or pass a data set, which is visited in random order"
)
_MAX_COLUMNS = 4096  # of the features, read
_MAX_BLOCKS = 256  # read at most, evenly spaced


class _BlockStatistics(NamedTuple):
    number: int  # in the stream
    mean: Tensor
    samples: int
    within: float  # their squared distances to the mean, added up


class OrderCheck:
    """The variance between and within blocks of one layer's features, as they stream by."""

    def __init__(self) -> None:
        self._blocks: list[_BlockStatistics] = []  # that were read
        self._number, self._every = 0, 1  # blocks that came, and of how many one is read
        self._begun = False  # whether there is a block that is not whole yet
        self._waiting: list[Tensor] = []  # its parts, if it is read

    def add(
        self, features: Tensor, blocks: Sequence[tuple[int, int]], *, ends: bool = True
    ) -> None:
        """Take in a batch (n, d) whose rows [start, stop) form blocks, or a part, if not `ends`."""
        for start, stop in blocks:
            self._begun = True
            if self._number % self._every == 0:
                rows = features[start:stop, :_MAX_COLUMNS].float()
                # the network may write over what waits
                self._waiting.append(rows if ends else rows.clone())
            if ends:
                self.end_block()

    def end_block(self) -> None:
        """The parts that wait are a whole block."""
        number, self._number = self._number, self._number + self._begun
        self._begun = False
        if not self._waiting:
            return
        rows, self._waiting = torch.cat(self._waiting), []
        if len(rows) > 1:
            mean = rows.mean(0)
            within = float((rows - mean).square().sum())
            self._blocks.append(_BlockStatistics(number, mean.cpu(), len(rows), within))
        if len(self._blocks) == _MAX_BLOCKS:  # from now on, half as many
            self._blocks, self._every = self._blocks[::2], 2 * self._every

    def share_between(self) -> float:
        """The share of variance between blocks, or 0 where random order could give as much.

        With k blocks and F the ratio of the mean squares between and within, random order gives
        F = 1 with a standard deviation of at most √(2/(k−1)); five of them are allowed for.
        """
        k = len(self._blocks)
        counts, means, variance = self._pooled()
        if k < 4 or not variance:
            return 0.0
        spread = (means - counts @ means / counts.sum()).square().sum(1)
        excess = float(counts @ spread) / (k - 1) / variance - 1
        if excess < 5 * math.sqrt(2 / (k - 1)):
            return 0.0
        return excess / (excess + float(counts.mean()))

    def share_apart(self, kept: int) -> float:
        """The share of variance between the first blocks, which are `kept`, and all later ones.

        Random order gives a squared distance of their means of the variance times 1/n₁ + 1/n₂, and
        0 is said up to five standard deviations more, as it has with a single direction.
        """
        counts, means, variance = self._pooled()
        first = sum(block.number < kept for block in self._blocks)
        if min(first, len(counts) - first) < 2 or not variance:
            return 0.0
        parts = [slice(None, first), slice(first, None)]
        one, two = (counts[part] @ means[part] / counts[part].sum() for part in parts)
        apart = float((one - two).square().sum()) / variance
        by_chance = sum(1 / float(counts[part].sum()) for part in parts)
        if apart < by_chance * (1 + 5 * math.sqrt(2)):
            return 0.0
        return apart / (1 + apart)

    def _pooled(self) -> tuple[Tensor, Tensor, float]:
        """Samples (k,) and means (k, d) of blocks in float64, and the variance within them."""
        counts = torch.tensor([block.samples for block in self._blocks], dtype=torch.float64)
        means = [block.mean.double() for block in self._blocks]
        within = sum(block.within for block in self._blocks)
        freedom = max(float(counts.sum()) - len(counts), 1.0)
        return counts, torch.stack(means) if means else counts[:, None], within / freedom

    def warn_if_sorted(self, layer: str, kept: int) -> None:
        """Warn if blocks differ, or the first ones, which are `kept`, from later ones."""
        if (share := self.share_between()) > _MAX_SHARE_BETWEEN:
            warn(_MSG_SORTED_STREAM.format(share, layer))
        elif (share := self.share_apart(kept)) > _MAX_SHARE_APART:
            warn(_MSG_FIRST_BLOCKS_DIFFER.format(share, layer))
