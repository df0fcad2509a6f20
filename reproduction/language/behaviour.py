"""How differently two language models predict: what a score is to follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models import MASK
from .training import MASKED

_AT_ONCE = 64  # sequences
Predicted = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]  # rows -> logits, true bytes


def held_out(text: np.ndarray, count: int, length: int, seed: int = 0) -> Tensor:
    """Rows (count, length) of held-out bytes that do not overlap, drawn at random."""
    rows = torch.from_numpy(text[: len(text) // length * length].copy()).view(-1, length).long()
    if len(rows) < count:
        raise ValueError(
            f"expected {count} held-out sequences of {length} bytes, found {len(rows)}; gather "
            "more text"
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:count]]


def next_bytes(net: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions at every position of a causal model."""
    return net(input_ids=rows[:, :-1]).logits, rows[:, 1:]


def filled_in(seed: int = 0) -> Predicted:
    """Predictions of a masked model at a share of the positions, all of them masked at once.

    Which positions is a function of the seed and of the rows' number alone.
    """

    def predict(net: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows[:, :-1]
        count = max(1, round(MASKED * rows.shape[1]))
        order = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
        at = order[:, :count].to(rows.device)
        logits = net(input_ids=rows.scatter(1, at, MASK)).logits
        return logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1])), rows.gather(1, at)

    return predict


@torch.no_grad()
def differences(
    base: nn.Module, other: nn.Module, rows: Tensor, predict: Predicted
) -> dict[str, Any]:
    """KL(base‖other) in nats and the share of top bytes that differ, over all predictions.

    Standard errors are over sequences. `loss` is the other's own, in nats a byte.
    """
    parts: dict[str, list[Tensor]] = {"kl": [], "disagreement": [], "loss": []}
    for some in rows.split(_AT_ONCE):
        p, truth = predict(base, some)
        q, _ = predict(other, some)
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        parts["kl"].append((p.exp() * (p - q)).sum(-1).mean(1))
        parts["disagreement"].append((p.argmax(-1) != q.argmax(-1)).double().mean(1))
        parts["loss"].append(F.nll_loss(q.transpose(1, 2), truth, reduction="none").mean(1))
    out: dict[str, Any] = {}
    for name, found in parts.items():
        each = torch.cat(found)  # (sequences,)
        out[name] = float(each.mean())
        out[f"{name} stderr"] = float(each.std() / len(each) ** 0.5)
    return out
