"""Which batches of a pass run in compiled code: those of one shape, as soon as it is worth while.

A `compiled_program` is made when a shape comes for the second time, or at once where this process
has one for the same architecture. Nothing is taken on trust: the first batch that it runs is run as
written too, and where the two differ, or the network cannot be compiled, the pass goes on as
written and says why. What could not be compiled is not tried again in the process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import LayerError, first_line, warn
from .capture import Capture, Consume
from .compiled_program import (
    Inputs,
    OneBatch,
    Program,
    See,
    Tapped,
    compiled,
    in_float32,
    is_coarse,
    objection,
    surroundings,
    weights_of,
)
from .computation_key import key_of
from .picked_tokens import Rows

_KEPT = 8  # programs in a process, the latest
_AS_NEAR = 1.5  # times as far from a run in float32 as the one as written is
Outputs = dict[str, Sequence["Tensor | None"]]  # by layer, features and gradients; "": the logits
_programs: OrderedDict[Hashable, Program | str] = OrderedDict()  # or why there is none
_lock = threading.Lock()  # one thread compiles at a time


class CompiledCapture:
    """Runs the batches of one pass: in compiled code, or as written."""

    def __init__(
        self,
        capture: Capture,
        as_written: OneBatch,
        traced: OneBatch,  # the same, where no number can be looked at
        how: Any,  # all that decides what is computed, beside the network and its taps
        say: Callable[[str], None],  # what is going on
    ) -> None:
        """To be made before the capture's hooks are on the model: they are no part of it."""
        self._capture, self._as_written, self._traced, self._say = capture, as_written, traced, say
        self._key = key_of((capture.model, list(capture.taps), capture.gradients, how))
        self._weights = weights_of(capture.model)
        self._program: Program | None = None
        self._shape: Hashable | None = None  # of the batches that it is for
        self._came: set[Hashable] = set()
        self._given_up = False
        self._counts = {"compiled": 0, "as written": 0}

    def run(self, samples: Any, rows: Rows, consume: Consume, see: See | None) -> None:
        """One batch, there and back; see `Capture.run`."""
        device = next((weight.device for weight in self._weights.values()), None)
        inputs = Inputs(samples, rows, device)
        if self._program is None and not self._given_up and inputs.shape is not None:
            self._begin(inputs, sees=see is not None)
        found = None
        if self._program is not None and inputs.shape == self._shape:
            found = self._found(self._program, inputs)
        self._counts["as written" if found is None else "compiled"] += 1
        if found is None:
            self._came.add(inputs.shape)
            self._as_written(samples, rows, consume, see)
            return
        taps, logits = found
        if see is not None and logits is not None:
            see(logits)
        while taps:
            consume(*taps.pop(0))

    def finish(self) -> None:
        """Say so if most batches had another shape than the one that was compiled."""
        rest, every = self._counts["as written"], sum(self._counts.values())
        if not self._given_up and every > 3 and rest > every / 2:
            warn(
                f"{rest} of {every} batches were run as written, as compile=True serves batches of "
                "one shape; give all samples one shape, or leave it out"
            )

    def _found(self, program: Program, inputs: Inputs) -> tuple[list[Tapped], Tensor | None] | None:
        try:
            return program.run([*self._weights.values(), *inputs.tensors])
        except torch.OutOfMemoryError:
            self._give_up(_NO_MEMORY)
            return None

    def _begin(self, inputs: Inputs, *, sees: bool) -> None:
        every = [*self._weights.values(), *inputs.tensors]
        key = (self._key, self._capture.learnt, inputs.shape, sees, surroundings(every))
        known = None if self._key is None else _programs.get(key)
        if isinstance(known, str):
            self._give_up(known)
            return
        if known is None and inputs.shape not in self._came:
            return
        try:
            with _lock:
                self._say("compiling")
                begun = time.perf_counter()
                program = known or self._compiled(inputs, sees=sees)
                self._check(program, inputs)
                seconds = time.perf_counter() - begun
        except torch.OutOfMemoryError:
            self._give_up(_NO_MEMORY)
        except Exception as error:  # a compiler raises whatever it likes
            why = f"{type(error).__name__}: {first_line(error)}"
            self._give_up(why)
            if known is None and self._key is not None:
                _keep(key, why)
        else:
            self._say("compiled before" if known else f"compiled in {seconds:.0f} s")
            self._program, self._shape = program, inputs.shape
            if self._key is not None:
                _keep(key, program)

    def _compiled(self, inputs: Inputs, *, sees: bool) -> Program:
        why = objection(self._capture.model)
        if why is not None:
            raise LayerError(why)
        return compiled(self._capture.model, self._traced, self._weights, inputs, sees=sees)

    def _give_up(self, why: str) -> None:
        self._given_up, self._program = True, None
        self._say("as written")
        warn(f"compile=True has no effect here, and the network is run as written: {why}")
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _check(self, program: Program, inputs: Inputs) -> None:
        """An error unless a batch gives the same in both ways, as far as rounding lets it.

        In half precision a network may make much of little: another order of sums then gives other
        numbers. So what differs must be as near to a run in float32 as it is as written.
        """
        every = [*self._weights.values(), *inputs.tensors]
        found = self._by_name(program.run(every))
        apart = self._as_written_from(found, inputs, program)
        far = {name: share for name, share in apart.items() if not share <= program.tolerance}
        if far and is_coarse(every):
            model, weights, sees = self._capture.model, self._weights, program.sees
            exact = self._by_name(in_float32(model, self._as_written, weights, inputs, sees=sees))
            written = self._as_written_from(exact, inputs, program)
            far = {
                name: share
                for name, share in far.items()
                if not float(_most(found[name], exact[name])) <= _AS_NEAR * written[name]
            }
        for name, share in far.items():
            where = f"layer {name!r}" if name else "the logits"
            raise ArithmeticError(f"compiled code differs at {where} by {share:.1g}")

    def _by_name(self, found: tuple[list[Tapped], Tensor | None]) -> Outputs:
        taps, logits = found
        return {"": (logits,)} | {self._capture.taps[i].name: pair for i, *pair in taps}

    def _as_written_from(
        self, found: Outputs, inputs: Inputs, program: Program
    ) -> dict[str, float]:
        """How far a batch that is run as written is from what was found, by layer."""
        apart: dict[str, Tensor] = {}

        def compare(name: str, *written: Tensor | None) -> None:
            apart[name] = _most(found[name], written)

        names = [tap.name for tap in self._capture.taps]
        self._as_written(
            inputs.samples,
            inputs.rows,
            lambda i, features, gradients: compare(names[i], features, gradients),
            (lambda logits: compare("", logits)) if program.sees else None,
        )
        return {name: float(share) for name, share in apart.items()}


_NO_MEMORY = "the device's memory does not do for it"


def _keep(key: Hashable, program: Program | str) -> None:
    with _lock:
        _programs[key] = program
        _programs.move_to_end(key)
        while len(_programs) > _KEPT:
            _programs.popitem(last=False)


def _most(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> Tensor:
    """How far the one of a pair is from the other that is farther."""
    pairs = zip(one, other, strict=True)
    return torch.stack([_apart(a, b) for a, b in pairs if a is not None and b is not None]).max()


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The norm of a difference over the norm of what it should be; infinite numbers must agree."""
    finite = one.isfinite() & other.isfinite()
    wide = torch.promote_types(other.dtype, torch.float32)
    zero = torch.zeros((), dtype=wide, device=other.device)
    difference = torch.where(finite, one.to(wide) - other, zero).norm()
    size = torch.where(finite, other.to(wide), zero).norm()
    relative = difference / size.clamp_min(torch.finfo(wide).tiny)
    agree = (one.isfinite() == other.isfinite()).all()
    return torch.where(agree, relative, torch.inf)
