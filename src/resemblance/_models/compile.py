"""Run batches of a recording pass in compiled code: the option `compile=True`.

Everything that `Capture` does to a batch, including the loss and the backward pass, is traced on
fake tensors into a single graph, and Inductor compiles it: weights and samples in, features and
gradients out. Weights are inputs of the graph and shapes are fixed, so one program serves batches
of one shape and every network that computes the same from its own weights.

A program is compiled when a shape comes for the second time, or reused at once if this process has
one for the same architecture. The first batch of a program also runs in eager mode. If the two
results differ, or the network cannot be compiled, the pass continues in eager mode and a warning
says why. A failed compilation is not tried again in the same process.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._data.batches import batch_leaves, tree_map
from ..errors import LayerError, first_line, warn
from .capture import Consume, EagerRunner, HeldBatch, Rows, See
from .hashes import NoKey, computation_key, tensor_signature
from .wrappers import is_offloaded, uses_gradient_checkpointing


def weights_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    """All that a network computes with, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def why_not_compilable(model: nn.Module) -> str | None:
    """Why a network is not even tried, if so."""
    if is_offloaded(model):
        return "its weights are offloaded"
    if uses_gradient_checkpointing(model):
        return "gradient checkpointing is enabled, and compiled code would not save its memory"
    if len({weight.device for weight in weights_and_buffers(model).values()}) > 1:
        return "its weights are on several devices"
    return None


class BatchInputs:
    """What a graph takes for one batch: weights, samples, and which tokens of them count."""

    def __init__(self, weights: dict[str, Tensor], samples: Any, rows: Rows, *, sees: bool) -> None:
        self.samples, self.rows = samples, rows
        self.sees = sees  # whether anybody sees the logits
        self._names = list(weights)
        leaves = [leaf for leaf in batch_leaves(samples) if isinstance(leaf, Tensor)]
        self.tensors = [*weights.values(), *leaves]
        drawn = rows.drawn
        if drawn is not None and self.tensors:
            self.tensors += rows.at(self.tensors[0].device)
        others = tree_map(lambda leaf: "tensor" if isinstance(leaf, Tensor) else leaf, samples)
        self.shape: Hashable | None = None  # None for what compiled code cannot be made for
        with contextlib.suppress(NoKey):
            like = tuple(map(tensor_signature, self.tensors))
            length = None if drawn is None else drawn.length
            self.shape = (computation_key(others), like, len(rows.sample), length, sees)

    def run(self, runner: EagerRunner, tensors: Sequence[Tensor]) -> HeldBatch:
        """What the layers hold where these tensors take the place of weights and samples."""
        rest = iter(tensors)
        weights = {f"model.{name}": next(rest) for name in self._names}
        samples = tree_map(
            lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf, self.samples
        )
        rows = self.rows if self.rows.drawn is None else self.rows.moved_to(*rest)
        held: HeldBatch = torch.func.functional_call(
            _OneBatchModule(runner, self.sees), weights, (samples, rows)
        )
        return held


class _OneBatchModule(nn.Module):
    """One batch through the model that it holds, whose weights can thereby be replaced."""

    def __init__(self, runner: EagerRunner, sees: bool) -> None:
        super().__init__()
        self.model, self._runner, self._sees = runner.capture.model, runner, sees

    def forward(self, samples: Any, rows: Rows) -> HeldBatch:
        held = HeldBatch()
        self._runner.run(samples, rows, held.consume, held.see if self._sees else None)
        return held


@dataclass(frozen=True)
class CompiledProgram:
    """Compiled code, and what its outputs are."""

    code: Callable[..., Sequence[Tensor]]
    taps: list[tuple[int, bool]]  # in the order in which they come; whether with gradients
    sees: bool  # the logits come last
    tolerance: float  # of its outputs, relative, by the coarsest dtype that it computes in

    def run(self, tensors: Sequence[Tensor]) -> HeldBatch:
        """What each tap gives for weights and inputs, and the logits if anybody sees them."""
        held = HeldBatch()
        with torch.inference_mode(False), torch.no_grad(), _autocast_off(tensors):
            rest = iter(self.code(*tensors))
        for i, gradients in self.taps:
            held.outputs.append((i, next(rest), next(rest) if gradients else None))
        held.logits = next(rest) if self.sees else None
        return held


def compile_batch(traced: EagerRunner, inputs: BatchInputs) -> CompiledProgram:
    """The program for batches like this one; whatever torch raises where there can be none."""
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    model = traced.capture.model
    if why := why_not_compilable(model):
        raise LayerError(why)
    taps: list[tuple[int, bool]] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        held = inputs.run(traced, tensors)
        taps[:] = [(i, gradients is not None) for i, _, gradients in held.outputs]
        every = [x for _, *pair in held.outputs for x in pair] + [held.logits]
        return [x for x in every if x is not None]

    # without threads, as what is traced is known to this one alone
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with warnings.catch_warnings(), one_thread, torch.inference_mode(False):
        warnings.simplefilter("ignore")  # what compilers have to say is of no use here
        with _restore_modules(model):
            trace = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
            graph = trace(*inputs.tensors)
        _raise_if_weights_are_constants(graph, weights_and_buffers(model))
        tolerance = _coarsest_eps(inputs.tensors) ** 0.25
        with torch.no_grad(), _autocast_off(inputs.tensors):
            options = {"triton.cudagraphs": False}
            code = torch._inductor.compile(graph, [*inputs.tensors], options=options)
    return CompiledProgram(code, taps, inputs.sees, tolerance)


@contextlib.contextmanager
def _restore_modules(model: nn.Module) -> Iterator[None]:
    """Take out of modules what they kept of tensors that hold no data."""
    parts = [x for module in model.modules() for x in (vars(module), module._buffers)]
    before = [dict(part) for part in parts]
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for part, old in zip(parts, before, strict=True):
            kept = all(part.get(key, part) is value for key, value in old.items())
            if not kept or part.keys() != old.keys():
                part.clear()
                part.update(old)


@contextlib.contextmanager
def _autocast_off(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Autocast off: its casts are in the trace."""
    with contextlib.ExitStack() as stack:
        for kind in {"cpu", *(tensor.device.type for tensor in tensors)}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _raise_if_weights_are_constants(
    graph: torch.fx.GraphModule, weights: dict[str, Tensor]
) -> None:
    """An error if the network reaches its weights on another way, so that they are constants."""
    own = {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}
    for node in graph.graph.nodes:
        held: Any = getattr(graph, node.target) if node.op == "get_attr" else None
        plain = type(held) is Tensor or isinstance(held, nn.Parameter)
        if plain and (name := own.get(held.untyped_storage().data_ptr())) is not None:
            raise LayerError(f"the network accesses its weight {name!r} outside of its parameters")


def _coarsest_eps(tensors: Sequence[Tensor]) -> float:
    """The relative rounding of the coarsest dtype that is computed in."""
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    for kind in {tensor.device.type for tensor in tensors}:
        if torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=1e-7)


def process_switches(tensors: Sequence[Tensor]) -> Hashable:
    """The process's switches that a trace depends on."""
    kinds = sorted({"cpu", *(tensor.device.type for tensor in tensors)})
    cuda = torch.backends.cuda
    return (
        *(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        ),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


_MAX_PROGRAMS = 8  # programs in a process, the latest
_FLOAT32_MARGIN = 1.5  # times as far from a run in float32 as the eager run is
# by layer, features and gradients; "": the logits
OutputsByLayer = dict[str, Sequence["Tensor | None"]]
_programs: OrderedDict[Hashable, CompiledProgram | str] = OrderedDict()  # or why there is none
_lock = threading.Lock()  # one thread compiles at a time
_MSG_OUT_OF_MEMORY = "the device ran out of memory"


class CompiledRunner:
    """Runs the batches of one pass in compiled code, or else as `EagerRunner` does.

    Made before hooks are on the model.
    """

    def __init__(
        self,
        eager: EagerRunner,
        outputs: Any,  # of the model in a trial, by which labels are checked
        say: Callable[[str], None],  # beside the progress bar
    ) -> None:
        self._eager, self._outputs, self._say = eager, outputs, say
        self._capture, objective = eager.capture, eager.objective
        self._traced = eager  # where no number can be looked at
        if objective is not None:
            self._traced = replace(eager, objective=replace(objective, compiled=True))
        what = self._capture.model, list(self._capture.taps), self._capture.gradients
        self._key = computation_key((*what, eager.run_model, objective, eager.logits))
        self._weights = weights_and_buffers(self._capture.model)
        self._program: CompiledProgram | None = None
        self._shape: Hashable | None = None  # of the batches that it is for
        self._came: set[Hashable] = set()
        self._given_up = False
        self._counts = {"compiled": 0, "eager": 0}

    def run(self, samples: Any, rows: Rows, consume: Consume, see: See | None) -> None:
        """One batch on the model's device, there and back."""
        if self._eager.objective is not None:
            self._eager.objective.check_labels(samples, self._outputs)
        inputs = BatchInputs(self._weights, samples, rows, sees=see is not None)
        if self._program is None and not self._given_up and inputs.shape is not None:
            self._begin(inputs)
        if self._program is not None and inputs.shape == self._shape:
            try:
                held = self._program.run(inputs.tensors)
            except torch.OutOfMemoryError:
                self._give_up(_MSG_OUT_OF_MEMORY)
            else:
                self._counts["compiled"] += 1
                held.hand_on(consume, see)
                return
        self._counts["eager"] += 1
        self._came.add(inputs.shape)
        self._eager.run(samples, rows, consume, see)

    def finish(self) -> None:
        """Say so if most batches had another shape than the one that was compiled."""
        rest, every = self._counts["eager"], sum(self._counts.values())
        if not self._given_up and every > 3 and rest > every / 2:
            warn(
                f"{rest} of {every} batches ran in eager mode, because `compile=True` compiles a "
                "single batch shape; give all samples one shape, or omit it"
            )

    def _begin(self, inputs: BatchInputs) -> None:
        key = (self._key, self._capture.learnt, inputs.shape, process_switches(inputs.tensors))
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
                program = known or compile_batch(self._traced, inputs)
                self._check(program, inputs)
                seconds = time.perf_counter() - begun
        except torch.OutOfMemoryError:
            self._give_up(_MSG_OUT_OF_MEMORY)
        except Exception as error:  # a compiler raises whatever it likes
            why = f"{type(error).__name__}: {first_line(error)}"
            self._give_up(why)
            if known is None:
                self._cache(key, why)
        else:
            self._say("compiled before" if known else f"compiled in {seconds:.0f} s")
            self._program, self._shape = program, inputs.shape
            self._cache(key, program)

    def _cache(self, key: Hashable, program: CompiledProgram | str) -> None:
        if self._key is None:
            return
        with _lock:
            _programs[key] = program
            _programs.move_to_end(key)
            while len(_programs) > _MAX_PROGRAMS:
                _programs.popitem(last=False)

    def _give_up(self, why: str) -> None:
        self._given_up, self._program = True, None
        self._say("as written")
        warn(f"`compile=True` has no effect here, and the network runs in eager mode: {why}")
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _check(self, program: CompiledProgram, inputs: BatchInputs) -> None:
        """An error unless a batch gives the same in both ways, as far as rounding lets it.

        In half precision a network may make much of little: another order of sums then gives other
        numbers. So what differs must be as near to a run in float32 as the eager run is.
        """
        found = self._by_name(program.run(inputs.tensors))
        apart = self._distances_from_eager(found, inputs)
        far = {name: share for name, share in apart.items() if not share <= program.tolerance}
        if far and _coarsest_eps(inputs.tensors) > torch.finfo(torch.float32).eps:
            with _autocast_off(inputs.tensors):
                wide = [
                    x.float() if x.is_floating_point() and x.element_size() < 4 else x
                    for x in inputs.tensors
                ]
                exact = self._by_name(inputs.run(self._eager, wide))
            eager = self._distances_from_eager(exact, inputs)
            limits = {name: _FLOAT32_MARGIN * share for name, share in eager.items()}
            off = {name: float(_largest_difference(found[name], exact[name])) for name in far}
            far = {name: share for name, share in far.items() if not off[name] <= limits[name]}
        for name, share in far.items():
            where = f"layer {name!r}" if name else "the logits"
            raise ArithmeticError(f"compiled code differs at {where} by {share:.1g}")

    def _by_name(self, held: HeldBatch) -> OutputsByLayer:
        layers = {self._capture.taps[i].name: pair for i, *pair in held.outputs}
        return {"": (held.logits,), **layers}

    def _distances_from_eager(self, found: OutputsByLayer, inputs: BatchInputs) -> dict[str, float]:
        """How far a batch in eager mode is from these outputs, by layer."""
        apart: dict[str, Tensor] = {}

        def compare(name: str, *eager: Tensor | None) -> None:
            apart[name] = _largest_difference(found[name], eager)

        names = [tap.name for tap in self._capture.taps]
        self._eager.run(
            inputs.samples,
            inputs.rows,
            lambda i, features, gradients: compare(names[i], features, gradients),
            (lambda logits: compare("", logits)) if inputs.sees else None,
        )
        return {name: float(share) for name, share in apart.items()}


def _largest_difference(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> Tensor:
    """Of features and gradients the larger norm of a difference, over that of what it should be.

    Infinite numbers must agree.
    """
    found = []
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None:
            wide = torch.promote_types(b.dtype, torch.float32)
            finite = a.isfinite() & b.isfinite()
            difference = torch.where(finite, a.to(wide) - b, 0).norm()
            size = torch.where(finite, b.to(wide), 0).norm().clamp_min(torch.finfo(wide).tiny)
            agree = (a.isfinite() == b.isfinite()).all()
            found.append(torch.where(agree, difference / size, torch.inf))
    return torch.stack(found).max()
