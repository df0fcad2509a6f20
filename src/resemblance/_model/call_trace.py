"""Which modules run in a forward pass, when, and what they give: a trace of one call of a model."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .nested_outputs import first_tensor


@dataclass(frozen=True)
class Call:
    """One call of one module in a forward pass."""

    name: str  # "layer1.0", or "layer1.0#2" the second time it runs
    module: str  # "layer1.0"
    kind: str  # class name
    shape: tuple[int, ...] | None  # of the tensor tapped; None if there is none
    weighted: bool  # has weight matrices of its own (convolution, linear, recurrent, embedding)
    recurrent: bool
    leaf: bool
    began: int  # event counters: a module begins before the modules inside it and ends after them
    ended: int


def plain_name(name: str) -> str:
    """A module's or parameter's name without the marks that torch.compile leaves in it.

    >>> plain_name("layer1._orig_mod.0.weight")
    'layer1.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
_PREFIXES = ("base_model.model.", "module.")  # of adapters, and of data parallel networks


def bare_name(name: str) -> str:
    """A module's name as it would be without wrappers around the network or its parts.

    >>> bare_name("base_model.model.h.0.attn.base_layer"), bare_name("module.layer1.0")
    ('h.0.attn', 'layer1.0')
    """
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by name; for a compiled one, the module inside, which runs either way."""
    return {plain_name(name): module for name, module in model.named_modules() if name}


def trace(
    model: nn.Module,
    run: Callable[[], Any],
    look: Callable[[str, Any], None] = lambda name, output: None,  # as each call ends
) -> tuple[list[Call], Any]:
    """Every module call of a forward pass, in the order in which outputs appear, and its output."""
    calls: list[Call] = []
    started: defaultdict[str, list[int]] = defaultdict(list)
    seen: Counter[str] = Counter()
    clock = itertools.count()

    def before(name: str, *_: Any) -> None:
        started[name].append(next(clock))

    def after(name: str, module: nn.Module, _: Any, output: Any) -> None:
        seen[name] += 1
        tensor = first_tensor(output)
        recurrent = isinstance(module, nn.RNNBase)
        calls.append(
            Call(
                name=name if seen[name] == 1 else f"{name}#{seen[name]}",
                module=name,
                kind=type(module).__name__,
                shape=None if tensor is None else tuple(tensor.shape),
                weighted=any(p.ndim > 1 for p in module.parameters(recurse=False)),
                recurrent=recurrent,
                leaf=recurrent or not any(True for _ in module.children()),
                began=started[name].pop(),
                ended=next(clock),
            )
        )
        look(calls[-1].name, output)

    with contextlib.ExitStack() as hooks, torch.inference_mode(False), torch.no_grad():
        for name, module in modules_of(model).items():
            hooks.callback(module.register_forward_pre_hook(partial(before, name)).remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        return calls, run()
