"""What a network's outputs are, and how logits are read from them: the option `logits`.

Unless the caller says otherwise, outputs are taken as logits of one class per sample, if nothing
contradicts it. Most contradictions show in the values: rows in [0, 1] that sum to one are
probabilities, other values that all lie in [0, 1] are probabilities of independent labels, and
vectors of length one are embeddings. Labels, the model's configuration, the input's shape and a
final activation show the rest. A regression model cannot be distinguished from a classifier unless
its labels are real-valued or its configuration says so. Every caller asks `LogitsReader.objection`,
so the same outputs are refused everywhere with the same message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import batch_inputs, batch_labels, batch_leaves
from ..errors import TargetError, warn
from .layer_outputs import describe_function, tensor_at, why_unreadable
from .trace import Call

FindLogits = Callable[[Any], Tensor]
Mode = Literal["auto", "softmax", "probabilities", "sigmoid", "sigmoid-probabilities", "none"]
Logits = Mode | FindLogits
LOGITS_MODES = cast(tuple[Mode, ...], get_args(Mode))

PROBABILITY_FLOOR = 1e-7  # of a probability, so that its logarithm is finite
_MIN_SAMPLES = 32  # samples without a value outside [0, 1], after which outputs are no logits
_MIN_OUTPUTS = 20  # or so many outputs of a trial, whose signs would agree by chance in one of 2²⁰
UNIT_TOLERANCE = 1e-3  # of a sum of probabilities, or of a length, by rounding
# activations after which a last layer gives no logits
_FINAL_ACTIVATIONS = (
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "Hardsigmoid",
    "Tanh",
    "Hardtanh",
    "Softplus",
    "GELU",
    "SiLU",
)


class Objection(NamedTuple):
    """Why outputs cannot be read as the option `logits` says, and what to pass instead."""

    why: str
    remedy: str | None = None  # None if they are no predictions, which no other option reads

    @property
    def message(self) -> str:
        return f"the model's outputs do not look like {self.why}. {self.remedy or _MSG_REMEDY}"


_OBJECTION_INDEPENDENT = Objection(
    "logits: all values lie in [0, 1] and rows do not sum to one, as probabilities of independent "
    "labels",
    'Pass `logits="sigmoid-probabilities"`, or `logits="softmax"` if they are logits after all',
)
_OBJECTIONS_TO_PROBABILITIES = {  # by whether labels are independent
    True: Objection(
        "probabilities of labels: some values lie outside [0, 1]",
        'If they are logits, pass `logits="sigmoid"`',
    ),
    False: Objection(
        "probabilities of classes: some rows have values outside [0, 1] or do not sum to one",
        'If they are logits, pass `logits="softmax"`; for independent labels, '
        '`logits="sigmoid-probabilities"`',
    ),
}
_MSG_REMEDY = (
    "Record features only with `gradients=False`, or pass your own loss as `target=<function "
    '(outputs, batch) -> losses>`. If they are logits after all, pass `logits="softmax"`'
)


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """The names of the classes in a model's configuration, if it has any but LABEL_0 and so on."""
    named = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(named, Mapping) or set(named) != set(range(len(named))):
        return None
    names = tuple(str(named[i]) for i in range(len(named)))
    return None if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names


@dataclass(frozen=True)
class LogitsReader:
    """Reads logits off a model's outputs, as the option `logits` says.

    Args:
        option: a name from `LOGITS_MODES`, or a function from the model's output to logits.
    """

    option: Logits = "auto"

    def __post_init__(self) -> None:
        if not callable(self.option) and self.option not in LOGITS_MODES:
            raise TargetError(
                f"`logits` must be one of {', '.join(LOGITS_MODES)}, or a function of the model's "
                f"output; found {self.option!r}"
            )

    @property
    def independent(self) -> bool:
        """Whether labels are predicted independently of each other, instead of one class."""
        return self.option in ("sigmoid", "sigmoid-probabilities")

    @property
    def from_probabilities(self) -> bool:
        """Whether the outputs are probabilities."""
        return self.option in ("probabilities", "sigmoid-probabilities")

    @property
    def name(self) -> str:
        """The option as files keep it."""
        if callable(self.option):
            return describe_function(self.option)
        return "softmax (assumed)" if self.option == "auto" else self.option

    def __call__(self, outputs: Any) -> Tensor:  # (n, positions, classes)
        """The logits of each class, or of each label.

        Probabilities are floored at 1e-7, those of labels also capped at 1 - 1e-7, and widened to
        float32. Values that no probability can have become infinite.
        """
        z = logits_by_position(self._raw(outputs), independent=self.independent)
        return self.of_probabilities(z) if self.from_probabilities else z

    def _raw(self, outputs: Any) -> Tensor:
        z = self.option(outputs) if callable(self.option) else find_logits(outputs)
        if not isinstance(z, Tensor):
            raise TargetError(f"`logits` must give a tensor; found {type(z).__name__}")
        if (trouble := why_unreadable(z)) or z.element_size() == 1:
            raise TargetError(
                f"expected logits as a dense tensor of real numbers, found {trouble or z.dtype}. "
                "Pass `logits=<function of the output>` that converts them, or record features "
                "only with `gradients=False`"
            )
        return z

    def of_probabilities(self, p: Tensor) -> Tensor:
        """Logits of probabilities, in float32 or wider."""
        p = p.to(torch.promote_types(p.dtype, torch.float32))
        z = (
            torch.logit(p, PROBABILITY_FLOOR)
            if self.independent
            else p.clamp_min(PROBABILITY_FLOOR).log()
        )
        return torch.where((p < -UNIT_TOLERANCE) | (p > 1 + UNIT_TOLERANCE), torch.inf, z)

    def objection(
        self,
        model: nn.Module,
        batch: Any,
        outputs: Any,
        calls: Sequence[Call],
        *,
        final: bool = True,
    ) -> Objection | None:
        """What speaks against reading these outputs so, in a trial on a few samples.

        Args:
            model: the network.
            batch: the samples it was run on, with their labels if there are any.
            outputs: what it returned.
            calls: the trace of its modules in that run.
            final: no `LogitsCheck` follows, so a doubt counts as an objection.
        """
        z, raw = self(outputs).detach(), self._raw(outputs).detach()
        if self.from_probabilities:
            fits = not bool(z.isposinf().any())
            fits &= self.independent or _rows_sum_to_one(z.exp(), raw.dtype)
            return None if fits else _OBJECTIONS_TO_PROBABILITIES[self.independent]
        few = z[:, :8]
        if not self.independent and bool((few >= 0).all()) and _rows_sum_to_one(few, z.dtype):
            return Objection(
                "logits: values are positive and sum to one, as those of a softmax",
                'Pass `logits="probabilities"`',
            )
        if self.option != "auto":
            return None
        least = 1 if final else _MIN_OUTPUTS
        return next(_objections_to_logits(model, batch, raw, calls, least), None)

    def check(self, outputs: Any, calls: Sequence[Call]) -> LogitsCheck | None:
        """What must see the values of all batches; None where those of a trial settled all."""
        if callable(self.option) or self.option == "none":
            return None
        raw = find_logits(outputs)
        if self.from_probabilities or _lies_in_unit_interval(raw, calls, 1):
            return LogitsCheck(self, raw.dtype)
        return None


class LogitsCheck:
    """Checks the values of all batches against what the option `logits` says they are.

    `evidence` stays on the device, so that no batch is waited for; `judge` takes it on the host.

    Args:
        reader: how the logits are read.
        dtype: of the outputs, by whose rounding probabilities may miss a sum of one.
    """

    def __init__(self, reader: LogitsReader, dtype: torch.dtype) -> None:
        self._reader, self._dtype = reader, dtype
        self._samples = self._values = self._floored = 0
        self.settled = False

    def evidence(self, z: Tensor) -> Tensor:  # (rows, classes) -> (3,)
        """How many values contradict the option, how many were floored, and of how many."""
        floored = torch.zeros((), dtype=torch.long, device=z.device)
        if not self._reader.from_probabilities:
            wrong = ((z < 0) | (z > 1 + UNIT_TOLERANCE)).sum()
        else:
            wrong = z.isposinf().sum()
            low, high = self._reader.of_probabilities(torch.tensor([0, 1], dtype=z.dtype)).tolist()
            at_floor = z <= low + 1e-5  # by rounding
            if self._reader.independent:
                at_floor |= z >= high - 1e-5
            else:
                off = (z.exp().sum(-1) - 1).abs()
                wrong = wrong + (off > _sum_tolerance(self._dtype, z.shape[-1])).sum()
            floored = at_floor.sum()
        return torch.stack([wrong, floored, floored.new_full((), z.numel())])

    def judge(self, samples: int, evidence: Sequence[Tensor]) -> None:
        """Take in what a batch of so many samples showed."""
        wrong, floored, values = torch.stack(list(evidence)).sum(0).tolist()
        self._samples += samples
        self._floored, self._values = self._floored + floored, self._values + values
        if wrong and self._reader.from_probabilities:
            raise TargetError(_OBJECTIONS_TO_PROBABILITIES[self._reader.independent].message)
        self.settled = self.settled or wrong > 0
        if self._samples >= _MIN_SAMPLES:
            self._object_to_unit_interval()

    def end(self) -> None:
        """Judge what all batches showed together."""
        if self._floored:
            bound = f"{PROBABILITY_FLOOR:g}"
            few = f"within {bound} of 0 or 1" if self._reader.independent else f"below {bound}"
            warn(
                f"{self._floored:,} of {self._values:,} probabilities are {few} and were set to "
                f"that bound, which makes divergences between predictions inexact. A model that "
                "returns logits avoids this"
            )
        if self._samples:
            self._object_to_unit_interval()

    def _object_to_unit_interval(self) -> None:
        if self.settled or self._reader.from_probabilities:
            return
        self.settled = True
        if self._reader.option == "auto":
            raise TargetError(_OBJECTION_INDEPENDENT.message)
        warn(
            f'`logits="{self._reader.option}"` takes outputs as logits, but all values lie in '
            "[0, 1], as probabilities do. If the model ends in a sigmoid, pass "
            '`logits="sigmoid-probabilities"`'
        )


# -- what speaks against logits ------------------------------------------------------------------


def _rows_sum_to_one(p: Tensor, dtype: torch.dtype) -> bool:
    off = (p.double().sum(-1) - 1).abs()
    return bool((off < _sum_tolerance(dtype, p.shape[-1])).all())


def _sum_tolerance(dtype: torch.dtype, classes: int) -> float:
    """How far sums of probabilities may be from one, by rounding and by the floor."""
    return max(UNIT_TOLERANCE, torch.finfo(dtype).eps) + classes * PROBABILITY_FLOOR


def _objections_to_logits(
    model: nn.Module, batch: Any, z: Tensor, calls: Sequence[Call], least: int
) -> Iterator[Objection]:
    """What speaks against logits of one class: configuration, labels, shape, activation, values."""
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if kind == "regression":
        yield Objection("logits: the model's configuration says that it is for regression")
    if kind == "multi_label_classification":
        yield Objection(
            "logits of one class: the model's configuration says that it predicts several labels",
            'Pass `logits="sigmoid"`',
        )
    labels = batch_labels(batch)
    if isinstance(labels, Tensor | np.ndarray) and tuple(labels.shape) == tuple(z.shape):
        y = torch.as_tensor(labels)
        if bool(((y == 0) | (y == 1)).all()):
            yield Objection(
                "logits of one class: there is a label of 0 or 1 for each output",
                'Pass `logits="sigmoid"` for a multi-label network, or `logits="softmax"` if '
                "labels are one-hot",
            )
        if y.is_floating_point():
            yield Objection(
                "logits: the labels have their shape and are real numbers, as for regression"
            )
    inputs = [x for x in batch_leaves(batch_inputs(batch)) if isinstance(x, Tensor | np.ndarray)]
    if z.ndim > 2 and any(tuple(x.shape) == tuple(z.shape) for x in inputs):
        yield Objection("logits: they have the shape of the input, as a reconstruction has")
    lengths = torch.linalg.vector_norm(z.double().flatten(0, -2), dim=-1)
    if z.shape[-1] > 2 and bool(((lengths - 1).abs() < UNIT_TOLERANCE).all()):
        yield Objection("logits: all vectors have length one, as embeddings have")
    last = max((call for call in calls if call.leaf), key=lambda call: call.ended, default=None)
    if last is not None and last.kind in _FINAL_ACTIVATIONS and last.shape == tuple(z.shape):
        sigmoid = last.kind in ("Sigmoid", "Hardsigmoid")
        ends = Objection(f"logits: the model ends in {last.kind}")
        yield _OBJECTION_INDEPENDENT if sigmoid else ends
    if _lies_in_unit_interval(z, calls, least):
        yield _OBJECTION_INDEPENDENT


def _lies_in_unit_interval(z: Tensor, calls: Sequence[Call], least: int) -> bool:
    """Whether all values of so many outputs or more lie in [0, 1], and not by a linear layer alone.

    What a linear layer or convolution returns may lie there by chance, as in an untrained network
    of few classes, and is logits; any function after it changes the sum of absolute values.
    """
    z = z.detach()
    inside = bool(((z >= 0) & (z <= 1 + UNIT_TOLERANCE)).all()) and bool(z.any())
    outputs = z.shape[1] if z.ndim > 3 else z.shape[-1]
    if not inside or outputs < least:
        return False
    total = float(z.double().sum())
    linear = (call for call in calls if call.leaf and call.weighted and call.shape is not None)
    return not any(
        math.prod(call.shape or ()) == z.numel() and math.isclose(call.total, total, rel_tol=1e-5)
        for call in linear
    )


# -- where logits are ----------------------------------------------------------------------------


def find_logits(outputs: Any) -> Tensor:
    """A tensor itself, `.logits`, `["logits"]` or `["out"]`, or the first of a tuple or list."""
    match outputs:
        case Tensor() as z:
            return z
        case {"logits": Tensor() as z} | {"out": Tensor() as z}:  # "out" of a segmentation network
            return z
        case object(logits=Tensor() as z):
            return z
        case tuple() | list() if (first := tensor_at(outputs)) is not None:
            return first
    raise TargetError(
        f"found no logits in the model's output ({type(outputs).__name__}): expected a tensor, "
        "something with .logits, or a tuple that begins with them. Pass `logits=<function of "
        "the output>`, or record features only with `gradients=False`"
    )


def logits_by_position(
    z: Tensor, *, independent: bool = False
) -> Tensor:  # -> (n, positions, classes)
    """Logits (n, classes), (n, tokens, classes) or (n, classes, height, width) in one shape.

    Of independent labels one is enough, also as (n,).
    """
    shape = tuple(z.shape)
    if independent and z.ndim == 1:
        z = z[:, None]
    if z.ndim > 3:  # images of logits, as cross_entropy takes them
        z = z.movedim(1, -1)
    if z.ndim < 2 or z.shape[-1] < (1 if independent else 2):
        raise TargetError(
            f"expected logits over two or more classes, found an output of shape {shape}. If it is "
            'one binary logit, pass `logits="sigmoid"` (or `logits="sigmoid-probabilities"`). A '
            "regression head has no tempered gradient: pass `target=<function (outputs, batch) -> "
            "losses>`, or record features only with `gradients=False`"
        )
    return z.flatten(1, -2) if z.ndim > 2 else z[:, None]
