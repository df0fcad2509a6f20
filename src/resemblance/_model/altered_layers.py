"""Layers that were altered and are one layer still: adapted, reparametrised or quantised.

Each has modules inside it that are no layers of the network, or weights that are no parameters: a
low-rank adapter beside its `base_layer`, the `parametrizations` that a weight is computed from, the
`_packed_params` of an int8 layer. What chooses layers should see one layer with one weight matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import LayerError
from .nested_outputs import tensors
from .spread_weights import is_spread

_WEIGHTS = {"parametrizations", "_packed_params"}  # modules that hold a layer's weights
_BASE = "base_layer"  # what an adapter stands around


def is_altered(module: nn.Module) -> bool:
    """Whether it is a layer with weights, though it has modules inside it or no parameters.

    >>> is_altered(nn.Linear(2, 3))
    False
    >>> is_altered(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)))
    True
    """
    parts = {name: part for name, part in module._modules.items() if part is not None}
    if _BASE in parts:
        base = parts[_BASE]
        return is_altered(base) or not any(True for _ in base.children())
    if parts.keys() - _WEIGHTS:
        return False
    return "parametrizations" in parts or _is_packed(module)


def inside_altered(modules: dict[str, nn.Module]) -> set[str]:
    """The names of modules that are parts of a layer that was altered."""
    altered = tuple(f"{name}." for name, module in modules.items() if is_altered(module))
    return {name for name in modules if name.startswith(altered)} if altered else set()


def layer_of(modules: dict[str, nn.Module], parameter: str) -> str:
    """The name of the layer that a parameter is of: one that was altered, or its module.

    >>> layer_of({"0": nn.Linear(2, 3)}, "0.weight")
    '0'
    """
    names = [parameter[:i] for i, letter in enumerate(parameter) if letter == "."]
    around = (name for name in names if name in modules and is_altered(modules[name]))
    return next(around, names[-1] if names else "")


def matrices(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """How many weight matrices each and its parts are made of; a layer that was altered has one."""
    known: dict[int, set[int]] = {}

    def of(module: nn.Module) -> set[int]:
        if id(module) not in known:
            own = {id(p) for p in _own_parameters(module) if p.ndim > 1}
            parts = map(of, module.children())
            known[id(module)] = {id(module)} if is_altered(module) else own.union(*parts)
        return known[id(module)]

    return {name: len(of(module)) for name, module in modules.items()}


def has_matrices(module: nn.Module) -> bool:
    """Whether it has weight matrices of its own."""
    return any(p.ndim > 1 for p in _own_parameters(module)) or is_altered(module)


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those of `parameters(recurse=False)`, which takes long to begin: each module asks often."""
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _is_packed(module: nn.Module) -> bool:
    """Whether it is a linear layer or a convolution whose weights are no parameters, as in int8."""
    if _own_parameters(module):
        return False
    names = ("in_features", "out_features"), ("in_channels", "out_channels")
    return any(all(isinstance(getattr(module, n, None), int) for n in pair) for pair in names)


# -- layers without a backward pass --------------------------------------------------------------


@contextlib.contextmanager
def refused_backward(model: nn.Module) -> Iterator[None]:
    """In the block, a quantised layer that ends the gradient's way is an error that names it."""
    with contextlib.ExitStack() as undo:
        for name, module in model.named_modules():
            if is_quantised(module):
                hook = module.register_forward_hook(partial(_refuse, name), with_kwargs=True)
                undo.callback(hook.remove)
        yield


def is_quantised(module: nn.Module) -> bool:
    """Whether its weights are stored in fewer bits than they stand for."""
    return _is_packed(module) or any(
        not weight.is_floating_point()
        or (is_traceable_wrapper_subclass(weight) and not is_spread(weight))
        for weight in _own_parameters(module)
    )


def _refuse(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors((args, kwargs))):
        return
    if not all(map(_leads_back, tensors(output))):
        raise LayerError(
            f"layer {name!r} ({type(module).__name__}) is quantised in a way that has no backward "
            "pass: no gradient comes from the loss to the layers before it; record with "
            "gradients=False"
        )


def _leads_back(x: Tensor) -> bool:
    """Whether a gradient at it comes to what it was made from."""
    made_by = x.grad_fn.name() if x.grad_fn is not None else ""
    return x.requires_grad and not made_by.endswith("NotImplemented")
