"""The Fisher-Rao norm of a network, layer by layer, from the moments that `record` keeps.

‖θ‖_fr = (L + 1) · √E⟨f, ∇_f ℓ⟩², with f the features of a layer and L the number of layers (Liang,
Poggio, Rakhlin, Stokes 2019, there at the logits). In a network of rectifiers without biases
⟨f, ∇_f ℓ⟩ is the same at every layer; where it differs, biases and normalisation are the reason.
`FisherRao.distance` is the rival measure of Tang et al. 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .._whole_numbers import whole_number
from ..errors import MismatchError
from ..representation.as_given import Given, recording


@dataclass(frozen=True)
class FisherRao:
    """Norms by layer, in order of execution; the network's is that of the last layer recorded."""

    model: str
    depth: int
    norms: Mapping[str, float]
    stderr: Mapping[str, float]

    @property
    def network(self) -> float:
        """The norm at the last recorded layer; record the head too for it to be at the logits."""
        return list(self.norms.values())[-1]

    @property
    def network_stderr(self) -> float:
        return list(self.stderr.values())[-1]

    def distance(self, other: FisherRao) -> float:
        """|a − b| / √(ab) between the norms of two networks: 0 if equal, unbounded above.

        >>> a, b = (FisherRao("m", 1, {"f": x}, {"f": 0.0}) for x in (1.0, 4.0))
        >>> a.distance(b)
        1.5
        """
        return _distance(self.network, other.network)

    def distances(self, other: FisherRao) -> dict[str, float]:
        """The same for each layer, where both have the same layers."""
        if list(self.norms) != list(other.norms):
            raise MismatchError(
                f"expected the same layers, found {list(self.norms)} and {list(other.norms)}; "
                "use distance, which needs only the last, or record layers of the same names"
            )
        return {name: _distance(a, other.norms[name]) for name, a in self.norms.items()}


def fisher_rao(rep: Given, *, depth: int | None = None) -> FisherRao:
    """The Fisher-Rao norm at each layer of a Representation, with standard errors.

    Args:
        rep: recorded with gradients, or the path of its file; its target is the ℓ of the formula.
        depth: L, by default the number of recorded layers. It cancels in distances between
            networks of the same depth.

    The mean of ⟨f, g⟩² over all samples is exact for these samples; the standard error is for
    other samples of the same source, by the delta method from the fourth moment. Cost: none.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> fisher_rao(rs.record(net, torch.randn(64, 4))).network > 0
    True
    """
    rep = recording(rep)
    if not rep.settings.gradients:
        raise MismatchError(
            f"the Fisher-Rao norm needs gradients and {rep.name!r} was recorded without; "
            "record it again with gradients=True"
        )
    depth, n = len(rep) if depth is None else whole_number("depth", depth), rep.samples
    norms, errors = {}, {}
    for layer in rep:
        assert layer.products is not None  # as there are gradients
        second, fourth = layer.products.inner_squared / n, layer.products.inner_fourth / n
        norms[layer.name] = (depth + 1) * second**0.5
        spread = (max(fourth - second * second, 0.0) / n) ** 0.5  # of the mean of ⟨f, g⟩²
        errors[layer.name] = (depth + 1) * spread / (2 * second**0.5) if second else float("nan")
    return FisherRao(rep.name, depth, norms, errors)


def _distance(a: float, b: float) -> float:
    if not (a > 0 and b > 0):
        raise MismatchError(
            f"the Fisher-Rao distance is undefined for norms {a:g} and {b:g}: a norm of zero means "
            "that no gradient reached that layer"
        )
    return abs(a - b) / (a * b) ** 0.5
