"""Weights that are kept elsewhere between calls, as accelerate's offloading to CPU or disk does.

Such a weight is on the meta device but while its module runs. It is known by the hook that brings
it (`module._hf_hook`), so nothing is imported. The hook says where the module runs, and its
`weights_map` has the values. A graph would hold every weight that it saw until the backward pass;
`fetched_again` makes it hold the name of an offloaded weight instead, and fetch it when it is
needed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Read = Callable[[], Tensor]


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model wants its inputs: as its hooks say, else where its first real weight is."""
    for module in model.modules():
        for hook in _hooks(module):
            device = getattr(hook, "execution_device", None)
            if device is not None:
                return torch.device(device)
    weights = itertools.chain(model.parameters(), model.buffers())
    return next((weight.device for weight in weights if not weight.is_meta), None)


def missing(model: nn.Module) -> str | None:
    """The name of a weight that is on the meta device and that nothing brings back."""
    kept: set[str] | None = None
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight.is_meta:
            kept = set(readers(model)) if kept is None else kept
            if name not in kept:
                return name
    return None


def readers(model: nn.Module) -> dict[str, Read]:
    """How to read each weight that is kept elsewhere, by its name in the model."""
    return {
        f"{place}.{name}" if place else name: kept.read
        for place, module in model.named_modules(remove_duplicate=False)
        for name, kept in _kept(module).items()
    }


def is_offloaded(model: nn.Module) -> bool:
    """Whether any weight is kept elsewhere and brought when it is needed."""
    return any(_offloads(hook) for module in model.modules() for hook in _hooks(module))


@contextlib.contextmanager
def fetched_again(model: nn.Module) -> Iterator[None]:
    """In the block, a graph fetches offloaded weights for its backward and does not hold them."""
    modules = [module for module in model.modules() if any(map(_offloads, _hooks(module)))]
    if not modules:
        yield
        return
    running: list[nn.Module] = []

    def begins(module: nn.Module, _: Any) -> None:
        running.append(module)

    def ends(module: nn.Module, *_: Any) -> None:
        running.remove(module)

    def pack(tensor: Tensor) -> _View | _Held:
        for module in reversed(running):
            for kept in _kept(module).values():
                weight = kept.present
                if not weight.is_meta and _shares(weight, tensor):
                    offset = int(tensor.storage_offset() - weight.storage_offset())
                    return _View(kept.read, weight.device, tensor.size(), tensor.stride(), offset)
        return _Held(tensor.detach(), tensor._version)

    with contextlib.ExitStack() as undo:
        for module in modules:
            undo.callback(module.register_forward_pre_hook(begins, prepend=True).remove)
            undo.callback(module.register_forward_hook(ends, always_call=True).remove)
        undo.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _unpack))
        yield


class _Kept(NamedTuple):
    """A weight as it is in its module now, and how to read its values wherever they are."""

    present: Tensor
    read: Read


class _View(NamedTuple):
    """What a graph needs of a weight that can be read again."""

    read: Read
    device: torch.device
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        weight = self.read().to(self.device)
        return weight.as_strided(self.size, self.stride, weight.storage_offset() + self.offset)


class _Held(NamedTuple):
    """Any other tensor that a graph needs, as it was."""

    tensor: Tensor
    version: int


def _unpack(packed: _View | _Held) -> Tensor:
    if isinstance(packed, _View):
        return packed.tensor()
    tensor, version = packed
    if tensor._version != version:  # which torch does not look at where hooks are
        raise RuntimeError(
            "a tensor needed for gradient computation has been modified by an inplace operation: "
            f"of shape {tuple(tensor.shape)}, at version {tensor._version}, expected {version}"
        )
    return tensor


def _hooks(module: nn.Module) -> list[Any]:
    """accelerate's hooks on a module, one by one."""
    hook = module.__dict__.get("_hf_hook")
    several = getattr(hook, "hooks", None)
    if several is not None:
        return list(several)
    return [] if hook is None else [hook]


def _offloads(hook: Any) -> bool:
    return bool(getattr(hook, "offload", False)) and getattr(hook, "weights_map", None) is not None


def _kept(module: nn.Module) -> dict[str, _Kept]:
    """The parameters and buffers that a module's hooks bring, by their names in it."""
    found = {}
    for hook in filter(_offloads, _hooks(module)):
        deep = bool(getattr(hook, "place_submodules", False))
        tensors: list[tuple[str, Tensor]] = []
        tensors += module.named_parameters(recurse=deep, remove_duplicate=False)
        if getattr(hook, "offload_buffers", False):
            tensors += module.named_buffers(recurse=deep, remove_duplicate=False)
        for name, weight in tensors:
            found[name] = _Kept(weight, partial(_read, hook.weights_map, name, weight.dtype))
    return found


def _read(weights: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
    return weights[name].detach().to(dtype)  # as the hook brings it


def _shares(one: Tensor, two: Tensor) -> bool:
    if one.device != two.device or one.dtype != two.dtype or two.layout != torch.strided:
        return False
    return one.untyped_storage()._cdata == two.untyped_storage()._cdata
