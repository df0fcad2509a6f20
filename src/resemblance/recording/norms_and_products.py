"""What a pass keeps of each sample as numbers: squared norms and inner products, and their sums.

All layers of a batch are added together, as a GPU takes longer to be told of each than to do it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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

    def result(self, places: Tensor) -> dict[int, OfLayer]:
        """By layer; `places` are those in the order of the samples that came."""
        self.settle()
        sums = {name: value.tolist() for name, value in self._sums.items()}
        traces, norms = sums.pop("traces"), _in_places(self._norms.whole().cpu(), places)
        out: dict[int, OfLayer] = {}
        for at, i in enumerate(sorted({i for _, i in self._keys})):
            rows = {kind: row for row, (kind, of) in enumerate(self._keys) if of == i}
            products = Products(**{name: each[at] for name, each in sums.items()}) if sums else None
            out[i] = OfLayer(
                {kind: traces[row] for kind, row in rows.items()},
                {kind: norms[row].clone() for kind, row in rows.items()},
                products,
            )
        return out


def _in_places(norms: Tensor, places: Tensor) -> Tensor:  # (n, keys), (n,) -> (keys, places)
    """Norms by place in the order, as far as they are kept; NaN where none came."""
    norms, places = norms[: len(places)], places[: len(norms)]
    near = places < NORMS_KEPT
    count = int(places[near].max()) + 1 if near.any() else 0
    out = torch.full((norms.shape[1], count), torch.nan)
    out[:, places[near]] = norms[near].T
    return out
