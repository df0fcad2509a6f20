"""Gradient checkpointing that holds in a pass: layers that are computed again in the backward pass.

Whoever switched it on wants the memory that it saves. But libraries leave it out in evaluation
mode, or have it begin around the hooks of a layer. Here the layers that were marked are known by
what transformers, timm and torch call them; for the length of a pass each is run inside torch's own
checkpoint, in any mode, and from its first input that takes a gradient on. A layer before that
keeps nothing anyway, and may be the one in which the graph begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from ..errors import LayerError
from .nested_outputs import tensors

_OF_TIMM, _OF_TRANSFORMERS = "grad_checkpointing", "gradient_checkpointing"  # switches
_LAYER = "GradientCheckpointingLayer"  # of transformers, since version 4.53
_WRAPPER = "CheckpointWrapper"  # of torch.distributed
_CACHES = ("past_key_values", "past_key_value", "layer_past")  # which a second run would add to


@contextlib.contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """In the block, layers for which checkpointing is switched on are checkpointed in any mode."""
    layers = list(_marked(model))
    own = [m for m in model.modules() if m.__dict__.get(_OF_TIMM) is True and _blocks(m)]
    with contextlib.ExitStack() as undo:
        for module in own:  # which checkpoints in any mode: not twice
            undo.callback(setattr, module, _OF_TIMM, True)
            setattr(module, _OF_TIMM, False)
        for layer in layers:
            _replace_forward(layer, undo)
        try:
            yield
        except CheckpointError as error:
            raise LayerError(_TAPPED_INSIDE) from error
        except RuntimeError as error:
            if "use_reentrant=True" in str(error):
                raise LayerError(_REENTRANT) from error
            raise


def is_recomputed(model: nn.Module) -> bool:
    """Whether any layer is, here and now."""
    own = (module.__dict__.get("forward") for module in model.modules())
    return any(isinstance(forward, partial) and forward.func is _run for forward in own)


_TAPPED_INSIDE = (
    "a layer inside a part of the network that uses gradient checkpointing cannot be recorded with "
    "gradients; switch checkpointing off, or record the part's own output"
)
_REENTRANT = (
    "the network calls torch's checkpoint with use_reentrant=True, which cannot give gradients at "
    "activations; switch checkpointing off, or use use_reentrant=False"
)


def _marked(model: nn.Module) -> Iterator[nn.Module]:
    """The layers for which checkpointing is switched on, each once."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        if _is_a(module, _WRAPPER):
            found[id(module)] = module
        elif module.__dict__.get(_OF_TIMM) is True:
            found |= {id(block): block for block in _blocks(module)}
        elif getattr(module, _OF_TRANSFORMERS, False) is True:
            if _is_a(module, _LAYER):
                found[id(module)] = module
            elif not any(_is_a(part, _LAYER) for part in module.modules()):  # before 4.53
                found |= {id(block): block for block in _blocks(module)}
    return iter(found.values())


def _is_a(module: nn.Module, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(module).__mro__)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The parts of it that stand in lists, but for those that checkpoint their own."""
    lists = (nn.Sequential, nn.ModuleList)
    todo = [part for part in module.children() if isinstance(part, lists)]
    found: list[nn.Module] = []
    while todo:
        for part in todo.pop(0):
            if isinstance(part, lists):
                todo.append(part)
            elif any(True for _ in part.children()) and not _has_marks(part):
                found.append(part)
    return found


def _has_marks(module: nn.Module) -> bool:
    marks = (_OF_TIMM, _OF_TRANSFORMERS)
    return any(getattr(part, mark, False) is True for part in module.modules() for mark in marks)


def _replace_forward(layer: nn.Module, undo: contextlib.ExitStack) -> None:
    forward = layer.forward
    if _is_a(layer, _WRAPPER):
        forward = layer.get_submodule("_checkpoint_wrapped_module")
    if "forward" in layer.__dict__:  # as accelerate puts one there
        undo.callback(setattr, layer, "forward", layer.__dict__["forward"])
    else:
        undo.callback(layer.__dict__.pop, "forward")
    # what is left half-way would keep an offloaded weight in its place
    whole = any("_hf_hook" in part.__dict__ for part in layer.modules())
    layer.forward = partial(_run, forward, not whole)


def _run(forward: Callable[..., Any], may_stop: bool, *args: Any, **kwargs: Any) -> Any:
    begun = torch.is_grad_enabled() and any(x.requires_grad for x in tensors((args, kwargs)))
    if torch._C._are_functorch_transforms_active():  # which cannot
        return forward(*args, **kwargs)
    if not begun or any(kwargs.get(name) is not None for name in _CACHES):
        return forward(*args, **kwargs)
    with set_checkpoint_early_stop(may_stop):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
