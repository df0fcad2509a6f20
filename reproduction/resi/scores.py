"""The scores of all pairs of networks of a design, by kernel, index and layer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .indices import INDICES, Kernels, features_like, product, total
from .vectors import TARGETS, Vectors

KERNELS = (
    "features",
    *(
        f"{kernel}, {t}"
        for kernel in ("gradients", "product", "sum", "elementwise")
        for t in TARGETS
    ),
)


@dataclass
class Scores:
    """What was computed, how long each index took, and what failed.

    Attributes:
        arrays: by `kernel|index`, scores (layers, M, M); by `layers|kernel|index`, scores between
            the layers of each network (M, layers, layers); `predictions|js` and
            `predictions|disagreement`, (M, M).
        seconds: by index, and `kernels`.
        errors: one for each kernel, layer and index that failed, with its message.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    errors: list[dict[str, Any]] = field(default_factory=list)


def kernels_of(f: Tensor, g: dict[str, Tensor]) -> Iterator[tuple[str, Callable[[], Kernels]]]:
    """All kernels of stacked vectors (M, N, d), each made when it is asked for."""
    yield "features", lambda: features_like(f, centred=True)
    for t in TARGETS:
        yield f"gradients, {t}", lambda t=t: features_like(g[t], centred=False)
        yield f"product, {t}", lambda t=t: product(f, g[t])
        yield f"sum, {t}", lambda t=t: total(f, g[t])
        yield f"elementwise, {t}", lambda t=t: features_like(f * g[t], centred=False)


def between_networks(networks: Sequence[Vectors], indices: Sequence[str] | None = None) -> Scores:
    """Scores of every two networks, at each layer."""
    out, m = Scores(), len(networks)
    layers = len(networks[0].features)
    for layer in range(layers):
        f = torch.stack([x.features[layer] for x in networks])
        g = {t: torch.stack([x.gradients[t][layer] for x in networks]) for t in TARGETS}
        for name, make in kernels_of(f, g):
            for index, found in _all_indices(make, out, f"{name}, layer {layer}", indices):
                whole = out.arrays.setdefault(
                    f"{name}|{index}", np.full((layers, m, m), np.nan, np.float32)
                )
                whole[layer] = found
    log_p = torch.stack([x.log_p for x in networks])
    out.arrays["predictions|js"] = js(log_p).cpu().numpy()
    out.arrays["predictions|disagreement"] = disagreement(log_p).cpu().numpy()
    return out


def between_layers(
    networks: Sequence[Vectors], out: Scores, indices: Sequence[str] | None = None
) -> None:
    """Scores of every two layers, of each network; they are added to `out`."""
    layers = len(networks[0].features)
    for i, x in enumerate(networks):
        f = _of_one_width(x.features)
        g = {t: _of_one_width(x.gradients[t]) for t in TARGETS}
        for name, make in kernels_of(f, g):
            for index, found in _all_indices(make, out, f"{name}, layers of network {i}", indices):
                whole = out.arrays.setdefault(
                    f"layers|{name}|{index}",
                    np.full((len(networks), layers, layers), np.nan, np.float32),
                )
                whole[i] = found


def _of_one_width(layers: Sequence[Tensor]) -> Tensor:
    """Vectors of all layers, (layers, N, d), where zeros fill those that are less wide."""
    width = max(x.shape[1] for x in layers)
    return torch.stack([F.pad(x, (0, width - x.shape[1])) for x in layers])


def _all_indices(
    make: Callable[[], Kernels], out: Scores, what: str, indices: Sequence[str] | None
) -> Iterator[tuple[str, np.ndarray]]:
    start = time.perf_counter()
    try:
        kernels = make()
        _wait(kernels.square)
    except Exception as error:  # one kernel must not cost the others
        _note(out, "kernels", what, error)
        return
    out.seconds["kernels"] += time.perf_counter() - start
    for index in indices or INDICES:
        start = time.perf_counter()
        try:
            found = INDICES[index](kernels).cpu().numpy()
        except Exception as error:
            _note(out, index, what, error)
        else:
            yield index, found
        out.seconds[index] += time.perf_counter() - start


def _note(out: Scores, index: str, what: str, error: Exception) -> None:
    message = f"{type(error).__name__}: {error}"[:300]
    if not any(e["index"] == index for e in out.errors):
        print(f"!! {index} failed at {what}: {message}", flush=True)
    out.errors.append({"index": index, "at": what, "error": message})


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def js(log_p: Tensor) -> Tensor:  # (M, N, C) -> (M, M)
    """The mean Jensen–Shannon divergence of predictions, in nats."""
    p = log_p.double().exp()

    def entropy(q: Tensor) -> Tensor:
        return -torch.special.xlogy(q, q).sum(-1)

    own = entropy(p)
    rows = [(entropy((x + p) / 2) - (h + own) / 2).mean(1) for x, h in zip(p, own, strict=True)]
    return torch.stack(rows).clamp_min(0)


def disagreement(log_p: Tensor) -> Tensor:  # (M, N, C) -> (M, M)
    """The share of samples for which two networks predict different classes."""
    classes = log_p.argmax(2)
    return (classes[:, None] != classes[None, :]).double().mean(2)
