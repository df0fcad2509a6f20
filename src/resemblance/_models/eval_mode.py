"""Evaluation mode for a recording pass: weights frozen, everything restored afterwards.

`run_in_eval_mode` is the context manager around a pass. Some of its switches belong to the whole
process (compiled code, fused attention): they are off while any thread runs a pass, and the last
pass to end restores them. A model can be in one pass at a time.

- Precision (`dtype=`): `cast_weights` casts the weights and restores them at the end.
  `run_on_cast_inputs` casts inputs inside the call, so that samples are fingerprinted as they came
  and pair with those of recordings in other precisions.
- Buffers: counters, caches and running statistics that a forward pass writes into are found in a
  trial run and restored after the pass. Otherwise they would change, and the fingerprint of the
  weights with them. Small buffers are copied and compared. Large ones are copied just before an
  operation first writes into them, so a model that writes into none costs no memory.
- Frozen batch norm: in evaluation mode a batch norm computes y = a·x + b with a = γ / √(σ² + ε)
  fixed, so the gradient at x is a·g, which is what the same norm returns for g with mean and shift
  zero. Torch's own backward keeps x for gradients of γ, which are not needed here, and on a GPU it
  writes images in a different memory layout, which the convolution before it then undoes: more than
  half of the backward pass of a ResNet. The forward pass is torch's own.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from .._data.batches import tree_map
from .._ops.devices import concat_bytes, copy_all_to_host
from ..errors import DataError, ResemblanceError
from .wrappers import (
    is_offloaded,
    is_sharded,
    keep_gradient_checkpointing,
    raise_without_backward,
    refetch_offloaded_weights,
    storage_id,
)


@contextlib.contextmanager
def frozen_batch_norms(model: nn.Module) -> Iterator[None]:
    """In the block, plain batch norms in evaluation mode go back in one multiplication.

    For a model whose parameters take no gradients: none would reach those of its norms.
    """
    with contextlib.ExitStack() as undo:
        for module in filter(_is_standard_batch_norm, model.modules()):
            undo.callback(module.__dict__.pop, "forward")
            module.forward = partial(_run_batch_norm, module)
        yield


def _is_standard_batch_norm(module: nn.Module) -> bool:
    """Whether it runs torch's own code, with statistics that are known."""
    own = isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward
    return own and "forward" not in module.__dict__ and module.running_var is not None


def _run_batch_norm(norm: Any, x: Tensor) -> Tensor:
    weight, bias = norm.weight, norm.bias
    learns = any(p is not None and p.requires_grad for p in (weight, bias))
    if (
        learns or norm.training or torch._C._are_functorch_transforms_active()
    ):  # which may differentiate them
        return _BatchNorm.forward(norm, x)
    norm._check_input_dim(x)
    statistics = norm.running_mean, norm.running_var
    return _FrozenBatchNorm.apply(x, *statistics, weight, bias, norm.eps)  # type: ignore[no-untyped-call]


class _FrozenBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(variance, weight)
        ctx.eps = eps
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        variance, weight = ctx.saved_tensors
        nothing = torch.zeros_like(variance)
        back = F.batch_norm(gradient, nothing, variance, weight, None, False, 0.0, ctx.eps)
        return back, None, None, None, None, None


Precision = Literal["float64", "float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = ("float64", "float32", "bfloat16", "float16")


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The torch dtype that `dtype=` names, or None for the model's own.

    >>> as_dtype("bfloat16"), as_dtype(torch.float16), as_dtype(None)
    (torch.bfloat16, torch.float16, None)
    """
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, torch.dtype | str) or name not in PRECISIONS:
        raise DataError(
            f"`dtype` must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}; found {dtype!r}"
        )
    return getattr(torch, name)


def run_on_cast_inputs(
    run: Callable[[nn.Module, Any], Any], dtype: torch.dtype, model: nn.Module, batch: Any
) -> Any:
    """Run a model on a batch whose floating-point tensors are cast to `dtype`."""

    def cast(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    return run(model, tree_map(cast, batch))


@contextlib.contextmanager
def cast_weights(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Floating-point parameters and buffers in `dtype`; restored bit for bit at the end.

    The tensors stay the same objects and only their data are exchanged, so that tied weights stay
    tied. Memory: a second copy of the weights that are cast, in `dtype`.
    """
    weights = [] if dtype is None else [*model.parameters(), *model.buffers()]
    weights = [x for x in weights if x.is_floating_point() and x.dtype != dtype]
    if weights and (is_offloaded(model) or any(map(is_sharded, weights))):
        raise DataError(
            "`dtype` cannot cast weights that are offloaded or sharded over processes; load the "
            "model in that precision instead"
        )
    originals = [x.data for x in weights]
    try:
        for weight in weights:
            weight.data = weight.data.to(dtype)
        yield
    finally:
        for weight, original in zip(weights, originals, strict=True):
            weight.data = original


_COPIED = 2**24  # bytes of buffers, of a model: more are watched


class ChangedBuffers:
    """In a `with` block, notes what is changed; `put_back` then undoes it, now or later."""

    def __init__(self, model: nn.Module) -> None:
        self._homes = [(module, dict(module._buffers)) for module in model.modules()]
        every = [buffer for _, buffers in self._homes for buffer in buffers.values()]
        self._buffers = [*{id(x): x for x in every if _is_plain_tensor(x)}.values()]
        self._watch: _WriteWatch | None = None
        self._changed: list[tuple[Tensor, Tensor]] = []  # buffers, and what they held

    def __enter__(self) -> ChangedBuffers:
        if sum(buffer.nbytes for buffer in self._buffers) > _COPIED:
            self._watch = _WriteWatch(self._buffers)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        else:  # a GPU is waited for, once
            self._before = copy_all_to_host([x if x.is_cuda else x.clone() for x in self._buffers])
        return self

    def __exit__(self, *error: Any) -> None:
        if self._watch is not None:
            self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
            self._changed = self._watch.copies
            return
        after = copy_all_to_host(self._buffers)
        for buffer, old, new in zip(self._buffers, self._before, after, strict=True):
            if not torch.equal(concat_bytes([old]), concat_bytes([new])):
                self._changed.append((buffer, old))

    def put_back(self) -> None:
        """Give every buffer its place and what it held; those that were not there go."""
        for module, buffers in self._homes:
            present = module._buffers
            kept = all(map(operator.is_, present.values(), buffers.values()))
            if list(present) != list(buffers) or not kept:
                present.clear()
                present.update(buffers)
        with torch.no_grad():
            for buffer, old in self._changed:
                buffer.copy_(old)


class _WriteWatch(TorchDispatchMode):
    """Copies a buffer when an operation is about to write into it for the first time."""

    supports_higher_order_operators = True

    def __init__(self, buffers: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._watched: defaultdict[int | None, list[Tensor]] = defaultdict(list)  # by storage
        for buffer in buffers:
            self._watched[storage_id(buffer)].append(buffer)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._watched and (names := _written_arguments(function)):
            schema = function._schema
            given = {**{a.name: x for a, x in zip(schema.arguments, args, strict=False)}, **kwargs}
            training = given.get("training", given.get("train"))
            for name in names:
                if training or name not in _RUNNING_STATISTICS:
                    self._keep(given.get(name))
        return function(*args, **kwargs)

    def _keep(self, value: Any) -> None:
        for each in value if isinstance(value, tuple | list) else [value]:
            if _is_plain_tensor(each):
                written = self._watched.pop(storage_id(each), [])
                self.copies += [(buffer, buffer.detach().clone()) for buffer in written]


# what batch norms write into in training, undeclared
_RUNNING_STATISTICS = ("running_mean", "running_var")


@functools.cache
def _written_arguments(function: Any) -> tuple[str, ...]:
    """The arguments that an operation may write into; most write into none."""
    return tuple(
        argument.name
        for argument in getattr(getattr(function, "_schema", None), "arguments", ())
        if argument.name in _RUNNING_STATISTICS
        or (argument.alias_info and argument.alias_info.is_write)
    )


def _is_plain_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether it has a storage to speak of, unlike a sparse one or a subclass with insides."""
    ordinary = type(value) in (Tensor, nn.Parameter, nn.Buffer) and value.layout == torch.strided
    return ordinary and not (value.is_meta or value.is_quantized)


_lock = threading.Lock()
_modules_in_pass: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules in a pass
_process_switches = contextlib.ExitStack()  # closed after the last pass, which puts back


class RandomState:
    """Where torch's global generators are, that of a GPU among them."""

    def __init__(self, device: torch.device | None) -> None:
        generators = [torch.default_generator]
        if device is not None and device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        self._states = [(generator, generator.get_state()) for generator in generators]

    def moved(self) -> bool:
        """Whether anything has drawn from them since."""
        return any(not torch.equal(generator.get_state(), x) for generator, x in self._states)

    def now(self) -> RandomState:
        """Where the same generators are now."""
        current = RandomState(None)
        current._states = [(generator, generator.get_state()) for generator, _ in self._states]
        return current

    def put_back(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)


@contextlib.contextmanager
def run_in_eval_mode(
    model: nn.Module, *, frozen: bool = True, dtype: torch.dtype | None = None
) -> Iterator[None]:
    """Evaluation mode, parameters frozen, every module run eagerly; all undone at the end.

    With `dtype`, floating-point weights are cast to it until then.

    Autocast keeps a weight that it has cast for the next batch, but only if the weight could take a
    gradient: a pass that makes none runs faster with `frozen=False`.

    Compiled code runs eagerly and transformer layers without their fused inference path, as neither
    shows what happens inside. Recurrent layers stay in training mode with dropout off, which
    computes the same and is the only mode in which cuDNN differentiates them.
    """
    with _begin_pass(model), contextlib.ExitStack() as undo:
        torch.clear_autocast_cache()  # of weights as they may no longer be
        undo.callback(torch.clear_autocast_cache)  # of weights cast where no graph was made
        undo.enter_context(cast_weights(model, dtype))
        modules = list(model.modules())
        for module in modules:
            undo.callback(setattr, module, "training", module.training)
        model.eval()
        for module in modules:
            if isinstance(module, nn.RNNBase):
                undo.callback(setattr, module, "dropout", module.dropout)
                module.training, module.dropout = True, 0.0
        if frozen:
            undo.enter_context(_freeze_parameters(model))
            undo.enter_context(frozen_batch_norms(model))
            undo.enter_context(refetch_offloaded_weights(model))
            undo.enter_context(raise_without_backward(model))
            undo.enter_context(keep_gradient_checkpointing(model))
        yield


@contextlib.contextmanager
def _freeze_parameters(model: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient, nor one that comes into its place, as offloaded ones do."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    places = [
        (module, name)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        parameters += [
            p for module, name in places if (p := module._parameters.get(name)) is not None
        ]
        for parameter in parameters:
            with torch.inference_mode(parameter.is_inference()):  # else it cannot be set
                parameter.requires_grad_(True)


@contextlib.contextmanager
def _begin_pass(model: nn.Module) -> Iterator[None]:
    """Refuse a model of which any part is in another pass: neither could be put back rightly.

    No compiled code and no fused attention in this process until the last pass is over.
    """
    modules = list(model.modules())
    with _lock:
        if any(module in _modules_in_pass for module in modules):
            raise ResemblanceError(
                f"this {type(model).__name__}, or a part of it, is already being recorded, in a "
                "different thread or by an enclosing call; wait until that has finished, or record "
                "a copy.deepcopy of it"
            )
        if not _modules_in_pass:
            fused = torch.backends.mha.get_fastpath_enabled()
            _process_switches.callback(torch.backends.mha.set_fastpath_enabled, fused)
            _process_switches.enter_context(torch.compiler.set_stance("force_eager"))
            torch.backends.mha.set_fastpath_enabled(False)
        _modules_in_pass.update(modules)
    try:
        yield
    finally:
        with _lock:
            _modules_in_pass.difference_update(modules)
            if not _modules_in_pass:
                _process_switches.close()
