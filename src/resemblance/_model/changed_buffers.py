"""Buffers that a forward pass writes into, seen in a trial and put back after the pass.

Counters, caches and running statistics would otherwise stay changed, and the fingerprint of the
weights with them. Copying every buffer beforehand could double a model; here a buffer is copied
just before an operation first writes into it, so a model that writes into none costs nothing.
"""

from __future__ import annotations

import functools
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class ChangedBuffers(TorchDispatchMode):
    """In a `with` block, watches what is written; `put_back` then undoes it, now or later."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._homes = [(module, dict(module._buffers)) for module in model.modules()]
        self._watched: dict[int, list[Tensor]] = {}  # by storage, which views share
        for _, buffers in self._homes:
            for buffer in filter(_plain, buffers.values()):
                self._watched.setdefault(_storage(buffer), []).append(buffer)
        self._copies: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._watched and (names := _written(function)):
            schema = function._schema
            given = {**{a.name: x for a, x in zip(schema.arguments, args, strict=False)}, **kwargs}
            training = given.get("training", given.get("train"))
            for name in names:
                if training or name not in _STATISTICS:
                    self._keep(given.get(name))
        return function(*args, **kwargs)

    def _keep(self, value: Any) -> None:
        for each in value if isinstance(value, tuple | list) else [value]:
            if _plain(each):
                written = self._watched.pop(_storage(each), [])
                self._copies += [(buffer, buffer.detach().clone()) for buffer in written]

    def put_back(self) -> None:
        """Give every buffer its place and what it held; those that were not there go."""
        for module, buffers in self._homes:
            if _places(module._buffers) != _places(buffers):
                module._buffers.clear()
                module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, copy in self._copies:
                buffer.copy_(copy)


_STATISTICS = ("running_mean", "running_var")  # that batch norms write in training, undeclared


@functools.cache
def _written(function: Any) -> tuple[str, ...]:
    """The arguments that an operation may write into; most write into none."""
    schema = getattr(function, "_schema", None)
    return tuple(
        argument.name
        for argument in (() if schema is None else schema.arguments)
        if argument.name in _STATISTICS or (argument.alias_info and argument.alias_info.is_write)
    )


def _places(buffers: dict[str, Tensor | None]) -> list[tuple[str, int]]:
    return [(name, id(buffer)) for name, buffer in buffers.items()]


def _plain(value: Any) -> TypeGuard[Tensor]:
    """Whether it has a storage to speak of, unlike a sparse one or a subclass with insides."""
    return type(value) in (Tensor, nn.Parameter, nn.Buffer) and value.layout == torch.strided


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)
