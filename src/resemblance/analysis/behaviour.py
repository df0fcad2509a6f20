"""How differently two networks predict: `behaviour` of two recordings, or of two models at once.

Where both models are at hand, they run on the same batches, and every divergence is exact whatever
the number of classes: logits are compared row by row in float64 on their device, and none is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._data.batches import batch_to_device
from .._data.sources import Batch
from .._models.capture import Rows
from .._models.language_models import resolve_unit
from .._models.loading import to_module
from .._models.logits import LogitsReader
from .._models.run import ModelPass, open_pass
from ..errors import DataError, MismatchError, TargetError
from ..recording.config import RecordConfig
from ..recording.output_summary import find_logits_reader, right_classes, right_labels
from ..representation.outputs import Outputs
from ..representation.representation import RepresentationLike
from ..similarity import agreement
from ..similarity.agreement import (
    AnyBehaviour,
    Behaviour,
    PredictedRows,
    predicted_rows,
    unit_parts,
)

_LOGITS_AT_ONCE = 2**22  # compared in float64 at a time
_OPTIONS = (
    *("unit", "tokens", "tokenizer", "logits", "seed", "block", "batch_size", "call", "dtype"),
    "progress",
)


def behaviour(
    a: RepresentationLike | nn.Module,
    b: RepresentationLike | nn.Module,
    *,
    data: Any = None,
    **options: Any,
) -> AnyBehaviour:
    """How differently two networks predict, or embed, the same samples.

    `disagreement` is exact always. `kl` is KL(a‖b), `kl_reverse` is KL(b‖a) and `js` is symmetric.
    Of two recordings of more than 1,024 classes KL is estimated from the most likely classes and
    sketches of the others:

        KL ≈ Σ_T p (log p − log q) + ⟨S p, S log(p / q)⟩ over the classes outside of T,

    with T the classes that both files list and S a random projection to 512 buckets, whose signs
    depend on the seed and the sample's index. It has no bias, but for log-probabilities below −60,
    which count as −60, and its noise is part of the standard error. The noise is smaller if b was
    recorded with `outputs_of=a`. `js` is then a lower bound and `js_upper` an upper one. Of files
    from before there were sketches, all divergences are lower bounds. Recordings of embeddings are
    compared by nearest neighbours, cosines and ranks of similarities.

    With `data`, both are models and run side by side, batch by batch, and everything is exact.

    Args:
        a: a recording of the first network, or the path of its file; with `data`, a model.
        b: the same of the second network. Recordings must be of the same samples.
        data: a data set, as `record` takes it, to run both models on. None: a and b are recordings.
        **options: with `data`, options of `record` that say how both models run: `unit`, `tokens`,
            `tokenizer`, `logits`, `seed`, `block`, `batch_size`, `call`, `dtype`, `progress`.

    Returns:
        Disagreement and divergences with their standard errors; of recordings of embeddings, an
        `EmbeddingBehaviour`.

    Raises:
        DataError: if `data` is missing for models, or an option is not one of those above.
        MismatchError: if recordings hold no outputs, or predictions cannot be compared.
        TargetError: if a model's outputs are no predictions.

    Example:
        >>> import torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rep = rs.record(net, torch.randn(64, 4))
        >>> rs.behaviour(rep, rep).disagreement
        0.0
    """
    if data is None:
        if isinstance(a, nn.Module) or isinstance(b, nn.Module) or options:
            raise DataError(
                "`data` is required to compare two models: `behaviour(model_a, model_b, "
                "data=...)`; two recordings take no options"
            )
        return agreement.behaviour(a, b)
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise DataError(f"no option is named {unknown[0]!r}; there are {', '.join(_OPTIONS)}")
    models = [_as_model(each) for each in (a, b)]
    if models[0] is models[1]:
        raise DataError(
            "expected two models, found the same one twice; pass a `copy.deepcopy` of it"
        )
    return _run_both(models[0], models[1], data, RecordConfig(gradients=False, **options))


def _as_model(given: Any) -> nn.Module:
    found = to_module(given)
    if not isinstance(found, nn.Module):
        raise DataError(
            f"with `data`, expected two models, found one {type(given).__name__}; leave out `data` "
            "to compare recordings"
        )
    return found


def _run_both(a: nn.Module, b: nn.Module, data: Any, config: RecordConfig) -> Behaviour:
    unit = resolve_unit(a, config.unit, config.tokens, config.pool, config.seed, config.tokenizer)
    how: dict[str, Any] = {"call": config.call, "draw": unit.draw, "dtype": config.dtype}
    how |= {"seed": config.seed, "frozen": False}
    names = [type(model).__name__ for model in (a, b)]
    with ExitStack() as stack:
        one = stack.enter_context(open_pass(a, data, block=config.block, **how))
        two = stack.enter_context(open_pass(b, one.source.first, **how))
        readers = [
            _logits_reader(run, config, name) for run, name in zip((one, two), names, strict=True)
        ]
        both = _BothNetworks(two, readers[1], causal=unit.causal)
        one.feed(
            [],  # no layer's features are needed
            both,
            None,
            batch_size=config.batch_size,
            progress=config.progress,
            what=f"running {names[0]} and {names[1]}",
            logits=readers[0],
        )
    rows, units = both.result()
    parts = unit_parts(int(units.max()) + 1)[units]
    return agreement.behaviour_of_rows((names[0], names[1]), rows, parts, unit.tokens)


def _logits_reader(run: ModelPass, config: RecordConfig, name: str) -> LogitsReader:
    reader = find_logits_reader(run, LogitsReader(config.logits), needed=True)
    if reader is None:
        raise TargetError(
            f"{name!r} does not have one prediction per sample, so predictions are not compared"
        )
    return reader


class _BothNetworks:
    """A consumer of one network's pass that runs the other on the same batches."""

    def __init__(self, other: ModelPass, reader: LogitsReader, *, causal: bool) -> None:
        self._other, self._reader, self._causal = other, reader, causal
        self._found: list[PredictedRows] = []
        self._units: list[Tensor] = []
        self._count = 0  # of samples, or sequences

    def begin(self, batch: Batch, samples: Any) -> None:
        self._batch = batch

    def see(self, logits: Tensor) -> None:
        self._logits = logits

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        """No layer is tapped."""

    @torch.no_grad()
    def end(self) -> None:
        batch, other, z = self._batch, self._other, self._logits
        rows = Rows(batch)
        outputs = other.run(other.model, batch_to_device(batch.samples, other.device))
        w = rows.pick_logits(self._reader(outputs)).to(z.device)
        if z.shape != w.shape:
            raise MismatchError(
                f"the networks predict {z.shape[-1]:,} and {w.shape[-1]:,} classes, which cannot "
                "be compared"
            )
        labels = self._labels(rows, z.shape[-1])
        step = max(1, _LOGITS_AT_ONCE // z.shape[-1])
        for i in range(0, len(z), step):
            right = None if labels is None else labels[i : i + step].to(z.device)
            one, two = (self._outputs(x[i : i + step], right) for x in (z, w))
            found = predicted_rows(one, two)
            moved = found._replace(numbers=found.numbers.cpu(), predictions=found.predictions.cpu())
            self._found.append(moved)
        self._units.append(self._count + torch.from_numpy(rows.sample))
        self._count += rows.samples

    def _outputs(self, z: Tensor, labels: Tensor | None) -> Outputs:
        if self._reader.independent:
            labels = None if labels is None else labels.cpu()
            return Outputs(z.shape[-1], label_logits=z.float().cpu(), labels=labels)
        return Outputs(z.shape[-1], every=F.log_softmax(z.double(), -1), labels=labels)

    def _labels(self, rows: Rows, classes: int) -> Tensor | None:
        if self._reader.independent:
            return right_labels(self._batch, classes)
        labels = right_classes(self._batch, causal=self._causal)
        if labels is None:
            return None
        labels = labels[rows.sample] if rows.drawn is None else labels[rows.sample, rows.token]
        return torch.where(labels < classes, labels, -1)

    def result(self) -> tuple[PredictedRows, Tensor]:
        """All rows, and the sample or sequence that each belongs to."""
        first = self._found[0]
        joined: Mapping[str, Any] = {
            "numbers": torch.cat([x.numbers for x in self._found]),
            "predictions": torch.cat([x.predictions for x in self._found], 1),
            "labelled": any(x.labelled for x in self._found),
        }
        return first._replace(**joined), torch.cat(self._units)
