"""What a network predicts, kept while a pass runs: a bounded summary of each row of its blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._data.batches import labels_of, size
from .._data.drawn_tokens import token_ids
from .._data.sources import Batch
from .._model.losses import FindLogits, are_probabilities, by_position, find_logits
from .._model.model_pass import ModelPass
from .._model.not_logits import objection
from .._model.picked_tokens import Rows
from .._ops.device_copies import on_the_host, without_waiting
from ..errors import TargetError
from ..representation.outputs import ALL_UP_TO, GROUPS, TOP, Outputs, group_of, joined
from ..representation.representation import Representation

_WAITING = 2**26  # bytes of summaries that stay on a device, so that nobody waits for them
_AT_ONCE = {"cpu": 2**20, "cuda": 2**25}  # logits that are widened to float32 at a time


class KeptOutputs:
    """Summaries of logits: `see` those of a batch, `end` it, and take the `result`."""

    def __init__(self, base: Representation | None = None, *, causal: bool = False) -> None:
        self._causal = causal  # the right class of a token is the next one
        self._base = base.outputs if base is not None else None
        self._base_places = _places(base)  # whose likely classes are noted as well
        self._parts: list[tuple[np.ndarray, Outputs]] = []
        self._there = 0  # parts that are on the host
        self._waiting = 0  # bytes of the others
        self._seen: Tensor | None = None
        self._groups: dict[torch.device, Tensor] = {}

    def see(self, logits: Tensor | None) -> None:  # (rows, classes)
        """The logits of every row of the present batch; None where they are not to be kept."""
        self._seen = logits

    def end(self, batch: Batch, rows: Rows, which: np.ndarray, places: np.ndarray) -> None:
        """Keep the rows `which` of the batch, which lie at these places of the order."""
        logits, self._seen = self._seen, None
        if logits is None or not len(which):
            return
        every = len(which) == len(logits)
        some = logits if every else logits[without_waiting(torch.from_numpy(which), logits.device)]
        labels = right_classes(batch, causal=self._causal)
        if labels is not None:
            at = rows.sample[which] if labels.ndim == 1 else (rows.sample[which], rows.token[which])
            labels = labels[at]
            labels = torch.where(labels < some.shape[-1], labels, -1)  # others are no class of it
        others = self._asked_for(places, some.device)
        part = self._summary(some, labels, others)
        self._parts.append((places, part))
        self._waiting += sum(x.nbytes for x in part.tensors().values())
        if self._waiting > _WAITING:
            self._fetch()

    def _asked_for(self, places: np.ndarray, device: torch.device) -> Tensor | None:
        """The classes that the base had at its top, in the rows at these places."""
        if self._base is None or self._base.top is None or self._base_places is None:
            return None
        at = np.searchsorted(self._base_places, places).clip(max=len(self._base_places) - 1)
        if not np.array_equal(self._base_places[at], places):
            return None
        return without_waiting(self._base.top[torch.from_numpy(at)], device)

    def _summary(self, z: Tensor, labels: Tensor | None, others: Tensor | None) -> Outputs:
        step = max(1, _AT_ONCE.get(z.device.type, _AT_ONCE["cpu"]) // z.shape[-1])
        kept: list[dict[str, Tensor]] = []
        for i, some in enumerate(z.split(step)):
            log_p = F.log_softmax(some.float(), -1)
            if z.shape[-1] <= ALL_UP_TO:
                kept.append({"every": log_p})
                continue
            top_log_p, top = log_p.topk(TOP)
            groups = log_p.new_zeros(len(some), GROUPS).index_add_(
                1, self._group_of(z), log_p.exp()
            )
            one = {"top": top, "top_log_p": top_log_p, "groups": groups.log()}
            if others is not None:
                asked = others[i * step : i * step + len(some)]
                one |= {"others": asked, "others_log_p": log_p.gather(1, asked)}
            kept.append(one)
        found = {name: torch.cat([one[name] for one in kept]) for name in kept[0]}
        return Outputs(z.shape[-1], **found, labels=labels)

    def _fetch(self) -> None:
        """Copy to the host what waits on a device: seldom, as the host then waits for it."""
        for i in range(self._there, len(self._parts)):
            places, part = self._parts[i]
            self._parts[i] = places, _on_the_host(part)
        self._there, self._waiting = len(self._parts), 0

    def _group_of(self, z: Tensor) -> Tensor:
        if z.device not in self._groups:
            self._groups[z.device] = without_waiting(group_of(z.shape[-1]), z.device)
        return self._groups[z.device]

    def result(self) -> Outputs | None:
        """Of all rows that were kept, in their order; None if none were."""
        if not self._parts:
            return None
        if self._there:  # else all are still on a device, and are put in order there
            self._fetch()
        places = np.concatenate([at for at, _ in self._parts])
        found = joined([part for _, part in self._parts], torch.from_numpy(np.argsort(places)))
        return None if found is None else _on_the_host(found)


def _on_the_host(part: Outputs) -> Outputs:
    tensors = part.tensors()
    here = on_the_host([*tensors.values()])
    return Outputs(part.classes, **dict(zip(tensors, here, strict=True)))


def logits_of(run: ModelPass, logits: FindLogits | None) -> Callable[[Any], Tensor] | None:
    """How to find one prediction for each row in a model's outputs; None where there is none."""
    find = logits or find_logits
    try:
        found = find(run.outputs)
        z = by_position(found) if isinstance(found, Tensor) else None
    except TargetError:
        return None
    if z is None:  # the objective says what is wrong with it
        return None
    drawn, trial = run.trial.drawn, run.trial.samples
    if z.shape[:2] != (size(trial), 1 if drawn is None else drawn.length) or z.is_complex():
        return None
    if logits is None and objection(run.model, trial, found, run.calls) is not None:
        return None
    return None if are_probabilities(z) else lambda outputs: by_position(find(outputs))


def _places(rep: Representation | None) -> np.ndarray | None:
    """Where in the order the rows of a recording's blocks lie; None if some were skipped."""
    if rep is None or rep.outputs is None or rep.data.skipped:
        return None
    starts = (number * rep.settings.block for number in rep.block_numbers)
    both = zip(starts, rep.block_sizes, strict=True)
    return np.concatenate([start + np.arange(size) for start, size in both])


def right_classes(batch: Batch, *, causal: bool) -> Tensor | None:  # (n,) or (n, tokens)
    """The class that is right for each sample, or token, -1 where that is not known; or None.

    Of a causal model it is the token that comes next in the text.
    """
    if batch.drawn is not None:
        return _next_tokens(batch) if causal else None
    labels: Any = labels_of(batch.samples)
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    if found.is_floating_point() or found.ndim != 1 or len(found) != len(batch.indices):
        return None
    found = found.cpu().long()
    return torch.where(found >= 0, found, -1)


def _next_tokens(batch: Batch) -> Tensor:
    assert batch.drawn is not None
    _, ids = token_ids(batch.samples)
    mask = batch.samples.get("attention_mask") if isinstance(batch.samples, dict) else None
    real = np.ones_like(ids) if mask is None else np.asarray(torch.as_tensor(mask).cpu())
    after = np.pad(np.where(real != 0, ids, -1)[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    return torch.from_numpy(np.take_along_axis(after, batch.drawn.positions, 1)).long()
