"""The state a model is run in, and put back from: model and process come back as they were.

Some switches are the whole process's (compiled code, fused attention): they are off while any
thread runs a pass, and the last to leave puts them back. A model can be in one pass at a time.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import ResemblanceError
from .altered_layers import refused_backward
from .frozen_norms import frozen_norms
from .offloaded_weights import fetched_again
from .recomputed_layers import recomputed

_lock = threading.Lock()
_running: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules in a pass
_switched = contextlib.ExitStack()  # closed after the last pass, which puts back
_passes = 0


def unwrap(model: nn.Module) -> nn.Module:
    """The module under DataParallel, DistributedDataParallel and torch.compile."""
    inner: Any = model
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    elif hasattr(model, "_orig_mod"):
        inner = model._orig_mod
    return model if inner is model else unwrap(inner)


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

    def put_back(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)


@contextlib.contextmanager
def untouched(model: nn.Module, *, frozen: bool = True) -> Iterator[None]:
    """Evaluation mode, parameters frozen, every module run as written; all undone at the end.

    Autocast keeps a weight that it has cast for the next batch, but only if the weight could take a
    gradient: a pass that makes none runs faster with `frozen=False`.

    Compiled code runs eagerly and transformer layers without their fused inference path, as neither
    shows what happens inside. Recurrent layers stay in training mode with dropout off, which
    computes the same and is the only mode in which cuDNN differentiates them.
    """
    with _alone(model), _run_as_written(), contextlib.ExitStack() as undo:
        torch.clear_autocast_cache()  # of weights as they may no longer be
        undo.callback(torch.clear_autocast_cache)  # of weights cast where no graph was made
        modules = list(model.modules())
        undo.callback(_set_modes, modules, [module.training for module in modules])
        model.eval()
        for module in modules:
            if isinstance(module, nn.RNNBase):
                undo.callback(setattr, module, "dropout", module.dropout)
                module.training, module.dropout = True, 0.0
        if frozen:
            undo.enter_context(_frozen(model))
            undo.enter_context(frozen_norms(model))
            undo.enter_context(fetched_again(model))
            undo.enter_context(refused_backward(model))
            undo.enter_context(recomputed(model))
        yield


def _set_modes(modules: list[nn.Module], modes: list[bool]) -> None:
    for module, training in zip(modules, modes, strict=True):
        module.training = training


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient, nor one that comes into its place, as offloaded ones do."""
    places = [(m, name) for m in model.modules() for name, p in m._parameters.items() if _learns(p)]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        parameters += [
            p for module, name in places if (p := module._parameters.get(name)) is not None
        ]
        for parameter in parameters:
            parameter.requires_grad_(True)


def _learns(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and parameter.requires_grad


@contextlib.contextmanager
def _alone(model: nn.Module) -> Iterator[None]:
    """Refuse a model of which any part is in another pass: neither could be put back rightly."""
    modules = list(model.modules())
    with _lock:
        if any(module in _running for module in modules):
            raise ResemblanceError(
                f"this {type(model).__name__}, or a part of it, is already in a pass, in another "
                "thread or around this one; wait until that is over, or run a copy.deepcopy of it"
            )
        _running.update(modules)
    try:
        yield
    finally:
        with _lock:
            _running.difference_update(modules)


@contextlib.contextmanager
def _run_as_written() -> Iterator[None]:
    """No compiled code and no fused attention in this process until the last pass is over."""
    global _passes
    with _lock:
        if not _passes:
            fused = torch.backends.mha.get_fastpath_enabled()
            _switched.callback(torch.backends.mha.set_fastpath_enabled, fused)
            _switched.enter_context(torch.compiler.set_stance("force_eager"))
            torch.backends.mha.set_fastpath_enabled(False)
        _passes += 1
    try:
        yield
    finally:
        with _lock:
            _passes -= 1
            if not _passes:
                _switched.close()
