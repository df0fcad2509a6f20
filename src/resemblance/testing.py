"""`assert_same_network`: a test that a copy of a network is still close enough to its base.

It records both networks on the same data, with what the thresholds need and no more, and asks
`check`. Undecided is a failure, too, which says how many samples would decide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .errors import DataError
from .gate.check import check
from .gate.thresholds import CosineLimits, DivergenceLimits, ScoreLimits, collect_thresholds
from .gate.verdict import Verdict
from .recording.record import record as record_network
from .representation.representation import Representation, as_representation
from .similarity.kernels import required_kinds

__all__ = ["assert_same_network"]

Network = nn.Module | Representation | str | os.PathLike[str]


def assert_same_network(
    base: Network,
    copy: Network,
    data: Any = None,
    *,
    max_disagreement: float | None = None,
    max_kl: DivergenceLimits | None = None,
    max_js: DivergenceLimits | None = None,
    min_kappa: float | None = None,
    min_neighbours: float | None = None,
    min_cosine: CosineLimits | None = None,
    min: ScoreLimits | None = None,
    min_db: float | None = None,
    kl_cap: float | None = None,
    ignore_unmatched: bool = False,
    thresholds: str | os.PathLike[str] | None = None,
    record: Mapping[str, Any] | None = None,
) -> Verdict:
    """Assert that a copy of a network keeps to thresholds, which are those of `check`.

    For tests with pytest or unittest. The assertion fails if any threshold fails, and also if one
    is undecided: the samples do not show that the copy is close enough.

    Args:
        base: the original network, a recording of it, or the path of one (`.rsm`). Its recording is
            worth keeping where several copies are tested.
        copy: the copy, in any of these forms.
        data: samples that networks are recorded on, as `record` takes them; not needed for two
            recordings.
        max_disagreement: largest share of samples that may be predicted differently.
        max_kl: largest mean KL(base‖copy) in nats; with percentiles `{"mean": 0.01, "p99": 0.05}`.
        max_js: largest mean Jensen-Shannon divergence in nats, in the same forms.
        min_kappa: least Cohen's kappa of the predictions.
        min_neighbours: least share of nearest neighbours that both networks' embeddings have in
            common.
        min_cosine: least cosine similarity of a sample's two embeddings, as a percentile:
            `{"p01": 0.98}`.
        min: least CKA by kernel at the worst layer, `{"gradients": 0.8}`, or on average over
            layers, `{"mean:features": 0.95}`.
        min_db: least decibels of features at the worst layer.
        kl_cap: largest KL that one sample adds to the mean, in nats. Default: 1.
        ignore_unmatched: judge scores and decibels though layers of the base have no counterpart.
        thresholds: path of a TOML file with thresholds; arguments take precedence over it.
        record: options of `record` for both networks, such as `{"pool": "mean"}`.

    Returns:
        The verdict, with what was measured.

    Raises:
        AssertionError: if a threshold fails or is undecided; the message has a line for each.
        DataError: if a network is to be recorded and `data` is missing, or a threshold is wrong.

    Example:
        >>> import copy, torch
        >>> from resemblance.testing import assert_same_network
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> half = copy.deepcopy(net).bfloat16().float()
        >>> x = torch.randn(400, 4)
        >>> verdict = assert_same_network(net, half, x, max_disagreement=0.05, max_kl=0.01)
        >>> [finding.status for finding in verdict.findings]
        ['passed', 'passed']
    """
    __tracebackhide__ = True  # pytest points to the test's own line
    limits: dict[str, Any] = {
        "max_disagreement": max_disagreement,
        "max_kl": max_kl,
        "max_js": max_js,
        "min_kappa": min_kappa,
        "min_neighbours": min_neighbours,
        "min_cosine": min_cosine,
        "min": min,
        "min_db": min_db,
        "kl_cap": kl_cap,
        "thresholds": thresholds,
    }
    kernels = {x.kernel for x in collect_thresholds(**limits) if x.kernel}
    kinds = {kind for kernel in kernels for kind in required_kinds(kernel)}
    options: dict[str, Any] = {
        "gradients": not kinds.isdisjoint(("gradients", "elementwise")),
        "elementwise": "elementwise" in kinds,
        "progress": False,
        **(record or {}),
    }
    one = _recording(base, "base", data, options)
    options = {"layers": one.layer_names, "outputs_of": one if one.outputs else None, **options}
    verdict = check(
        one, _recording(copy, "copy", data, options), **limits, ignore_unmatched=ignore_unmatched
    )
    if not verdict:
        raise AssertionError("\n".join(verdict.lines()))
    return verdict


def _recording(
    network: Network, role: str, data: Any, options: Mapping[str, Any]
) -> Representation:
    """A recording as it is, or one made of a network."""
    path = isinstance(network, str | os.PathLike) and Path(network).suffix == ".rsm"
    if path or isinstance(network, Representation):
        return as_representation(network)  # type: ignore[arg-type]
    if data is None:
        raise DataError(
            f"expected `data` to record the {role} on, found none; pass samples, or a recording "
            f"in place of the {role}"
        )
    return record_network(network, data, **{"name": role, **options})  # type: ignore[arg-type]
