"""Which modules run in a forward pass, when, and what they give: a trace of one call of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by name; for a compiled one, the module inside, which runs either way."""
    return {plain_name(name): module for name, module in model.named_modules() if name}


def trace(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Call], Any]:
    """Every module call of a forward pass, in the order in which outputs appear, and its output."""
    calls: list[Call] = []
    started: dict[str, list[int]] = {}
    seen: Counter[str] = Counter()
    clock = iter(range(10**9))

    def before(name: str) -> Callable[..., None]:
        return lambda *_: started.setdefault(name, []).append(next(clock))

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
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

        return hook

    handles = []
    try:
        for name, module in modules_of(model).items():
            handles.append(module.register_forward_pre_hook(before(name)))
            handles.append(module.register_forward_hook(after(name)))
        with torch.inference_mode(False), torch.no_grad():
            outputs = run()
    finally:
        for handle in handles:
            handle.remove()
    return calls, outputs
