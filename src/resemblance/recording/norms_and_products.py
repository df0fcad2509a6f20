"""What a pass keeps of each sample as numbers: squared norms and inner products, and their sums.

All layers of a batch are added together, as a GPU takes longer to be told of each than to do it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._ops.device_copies import sent_home, without_waiting
from ..representation.layer import NORMS_KEPT, Kind, Products
from .growing_rows import Rows

# Batches that are summed up together, by device. On a CPU nothing small waits, as with `Rows`.
_BATCHES_HELD = {"cuda": 32}

Norms = dict[tuple[Kind, int], Tensor]  # of each kind and layer, one of each sample (n,)


@dataclass(frozen=True)
class OfLayer:
    """What came together for one layer."""

    traces: dict[Kind, float]
    norms: dict[Kind, Tensor]  # by place in the order, as far as they are kept
    products: Products | None


class NormsAndProducts:
    """Sums in float64 over the samples that come, and the first of the norms themselves."""

    def __init__(self) -> None:
        self._keys: list[tuple[Kind, int]] = []  # of the rows of norms, kind after kind
        self._held: list[tuple[Tensor, Tensor | None]] = []  # of late batches
        self._sums: dict[str, Tensor] = {}
        self._norms = Rows()

    def add(self, keys: list[tuple[Kind, int]], norms: Tensor, inner: Tensor | None) -> None:
        """Take in a batch: ‖x‖² (keys, n), sorted by kind and layer, and ⟨f, g⟩ (layers, n)."""
        self._keys = keys
        self._held.append((norms, inner))
        if len(self._held) >= _BATCHES_HELD.get(norms.device.type, 1):
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

    def send(self, places: np.ndarray) -> Callable[[], dict[int, OfLayer]]:
        """Have all that came sent to the host; the function returned waits for it, by layer.

        `places` are those in the order of the samples that came.
        """
        self.settle()
        names = list(self._sums)
        norms = _in_places(self._norms.whole(), places)
        # on the host each in memory of its own, as it is once it has come there from a GPU
        apart = norms if norms.is_cuda else [row.clone() for row in norms]
        arrived = sent_home([*self._sums.values(), *apart])

        def result() -> dict[int, OfLayer]:
            here = arrived()
            sums = {name: x.tolist() for name, x in zip(names, here, strict=False)}
            traces, norms = sums.pop("traces"), here[len(names) :]
            out: dict[int, OfLayer] = {}
            for at, i in enumerate(sorted({i for _, i in self._keys})):
                rows = {kind: row for row, (kind, of) in enumerate(self._keys) if of == i}
                each = {name: values[at] for name, values in sums.items()}
                out[i] = OfLayer(
                    {kind: traces[row] for kind, row in rows.items()},
                    {kind: norms[row] for kind, row in rows.items()},
                    Products(**each) if each else None,
                )
            return out

        return result


def _in_places(norms: Tensor, places: np.ndarray) -> Tensor:  # (n, keys), (n,) -> (keys, places)
    """Norms by place in the order, as far as they are kept; NaN where none came."""
    norms, places = norms[: len(places)], places[: len(norms)]
    near = np.flatnonzero(places < NORMS_KEPT)
    count = int(places[near].max()) + 1 if len(near) else 0
    to, of = (without_waiting(torch.from_numpy(x), norms.device) for x in (places[near], near))
    out = norms.new_full((norms.shape[1], count), torch.nan)
    return out.index_copy_(1, to, norms.index_select(0, of).T)
