"""The Fisher-Rao norm of a network, layer by layer, from recorded moments.

‖θ‖_fr = (L + 1) · √E⟨f, ∇_f ℓ⟩², with f the features of a layer and L the number of layers (Liang,
Poggio, Rakhlin, Stokes 2019, who evaluate it at the logits). In a ReLU network without biases
⟨f, ∇_f ℓ⟩ is the same at every layer; where it differs, biases and normalisation are the cause.
`FisherRao.distance` is the baseline measure of Tang et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._utils.formatting import format_quantity, join_error, printable
from .._utils.validation import check_integer
from ..errors import MismatchError
from ..representation.representation import RepresentationLike, as_representation
from ..similarity.results import Result


@dataclass(frozen=True, eq=False, repr=False)
class FisherRao(Result):
    """The Fisher-Rao norm of a network at each layer.

    `to_frame` has one row for each layer, with its norm and stderr.

    Attributes:
        model: name of the network.
        depth: number of layers L in the formula.
        norms: norm at each layer, in order of execution.
        stderr: standard error of each norm.
    """

    model: str
    depth: int
    norms: Mapping[str, float]
    stderr: Mapping[str, float]

    _kind = "fisher_rao"
    _index = "layer"

    def _text(self) -> str:
        norm = join_error(format_quantity(self.network, self.network_stderr))
        return f"{self.model!r}, {norm} at the last of {len(self.norms)} layers"

    def _sentences(self) -> Iterator[str]:
        for name, norm in self.norms.items():
            number = join_error(format_quantity(norm, self.stderr[name]))
            yield f"{printable(self.model)} at {printable(name)}: Fisher-Rao norm {number}."

    def _columns(self) -> Mapping[str, Any]:
        return {
            "layer": [*self.norms],
            "norm": [*self.norms.values()],
            "stderr": [*self.stderr.values()],
        }

    @property
    def network(self) -> float:
        """The norm at the last recorded layer; record the head too for it to be at the logits."""
        return list(self.norms.values())[-1]

    @property
    def network_stderr(self) -> float:
        return list(self.stderr.values())[-1]

    def distance(self, other: FisherRao) -> float:
        """The distance |a − b| / √(ab) between the norms of two networks.

        Args:
            other: the norms of the other network.

        Returns:
            0 if the norms are equal; unbounded above.

        Raises:
            MismatchError: if a norm is zero.

        Example:
            >>> a, b = (FisherRao("m", 1, {"f": x}, {"f": 0.0}) for x in (1.0, 4.0))
            >>> a.distance(b)
            1.5
        """
        return _relative_difference(self.network, other.network)

    def distances(self, other: FisherRao) -> dict[str, float]:
        """The same distance at each layer.

        Args:
            other: the norms of the other network, at layers of the same names.

        Returns:
            The distance by layer.

        Raises:
            MismatchError: if the layers differ, or a norm is zero.
        """
        if list(self.norms) != list(other.norms):
            raise MismatchError(
                f"expected the same layers, found {list(self.norms)} and {list(other.norms)}; "
                "use distance, which needs only the last, or record layers of the same names"
            )
        return {name: _relative_difference(a, other.norms[name]) for name, a in self.norms.items()}


def fisher_rao(rep: RepresentationLike, *, depth: int | None = None) -> FisherRao:
    """The Fisher-Rao norm at each layer of a Representation, with standard errors.

    The mean of ⟨f, g⟩² over all samples is exact for these samples; the standard error is that of
    new samples from the same source, by the delta method from the fourth moment. Cost: none.

    Args:
        rep: a recording with gradients, or the path of its file; its target is ℓ in the formula.
        depth: number of layers L; None takes the number of recorded layers. It cancels in distances
            between networks of the same depth.

    Returns:
        The norm at each layer, with its standard error.

    Raises:
        MismatchError: if the recording has no gradients.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> fisher_rao(rs.record(net, torch.randn(64, 4))).network > 0
        True
    """
    rep = as_representation(rep)
    if not rep.settings.gradients:
        raise MismatchError(
            f"the Fisher-Rao norm needs gradients and {rep.name!r} was recorded without; "
            "record it again with `gradients=True`"
        )
    depth, n = len(rep) if depth is None else check_integer("depth", depth), rep.samples
    norms, errors = {}, {}
    for layer in rep:
        assert layer.products is not None  # as there are gradients
        second, fourth = layer.products.inner_squared / n, layer.products.inner_fourth / n
        norms[layer.name] = (depth + 1) * second**0.5
        spread = (max(fourth - second * second, 0.0) / n) ** 0.5  # of the mean of ⟨f, g⟩²
        errors[layer.name] = (depth + 1) * spread / (2 * second**0.5) if second else float("nan")
    return FisherRao(rep.name, depth, norms, errors)


def _relative_difference(a: float, b: float) -> float:
    if not (a > 0 and b > 0):
        raise MismatchError(
            f"the Fisher-Rao distance is undefined for norms {a:g} and {b:g}: a norm of zero means "
            "that no gradient reached that layer"
        )
    return abs(a - b) / (a * b) ** 0.5
