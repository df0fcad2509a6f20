"""Buffers that a forward pass writes into, seen in a trial and put back after the pass.

Counters, caches and running statistics would otherwise stay changed, and the fingerprint of the
weights with them. Small buffers are copied and compared. Copying large ones could double a model:
those are copied just before an operation first writes into them, so that a model which writes into
none costs no memory, though every operation of the trial is looked at.
"""

from __future__ import annotations

import functools
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_COPIED = 2**24  # bytes of buffers, of a model: more are watched


class ChangedBuffers:
    """In a `with` block, notes what is changed; `put_back` then undoes it, now or later."""

    def __init__(self, model: nn.Module) -> None:
        self._homes = [(module, dict(module._buffers)) for module in model.modules()]
        found = (buffer for _, buffers in self._homes for buffer in buffers.values())
        self._buffers = list({id(buffer): buffer for buffer in found if _plain(buffer)}.values())
        self._watch: _Watch | None = None
        self._changed: list[tuple[Tensor, Tensor]] = []  # buffers, and what they held

    def __enter__(self) -> ChangedBuffers:
        if sum(buffer.nbytes for buffer in self._buffers) > _COPIED:
            self._watch = _Watch(self._buffers)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        else:
            self._before = _by_device(self._buffers)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._watch is not None:
            self._watch.__exit__(*error)  # type: ignore[no-untyped-call]
            self._changed = self._watch.copies
            return
        after = _by_device(self._buffers)
        for device, (buffers, held) in self._before.items():
            if torch.equal(held, after[device][1]):  # a GPU is waited for, once
                continue
            for buffer, old in zip(buffers, held.split([x.nbytes for x in buffers]), strict=True):
                if not torch.equal(old, _bytes(buffer)):
                    old = old.clone().view(buffer.dtype).view(buffer.shape)
                    self._changed.append((buffer, old))

    def put_back(self) -> None:
        """Give every buffer its place and what it held; those that were not there go."""
        for module, buffers in self._homes:
            if _places(module._buffers) != _places(buffers):
                module._buffers.clear()
                module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, old in self._changed:
                buffer.copy_(old)


class _Watch(TorchDispatchMode):
    """Copies a buffer when an operation is about to write into it for the first time."""

    supports_higher_order_operators = True

    def __init__(self, buffers: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._watched: dict[int, list[Tensor]] = {}  # by storage, which views share
        for buffer in buffers:
            self._watched.setdefault(_storage(buffer), []).append(buffer)

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
                self.copies += [(buffer, buffer.detach().clone()) for buffer in written]


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


def _by_device(buffers: list[Tensor]) -> dict[torch.device, tuple[list[Tensor], Tensor]]:
    """Buffers on each device, and a copy of all their bytes in a row."""
    found: dict[torch.device, list[Tensor]] = {}
    for buffer in buffers:
        found.setdefault(buffer.device, []).append(buffer)
    return {device: (each, torch.cat(list(map(_bytes, each)))) for device, each in found.items()}


def _bytes(buffer: Tensor) -> Tensor:  # (n,) uint8
    return buffer.detach().contiguous().view(-1).view(torch.uint8)


def _places(buffers: dict[str, Tensor | None]) -> list[tuple[str, int]]:
    return [(name, id(buffer)) for name, buffer in buffers.items()]


def _plain(value: Any) -> TypeGuard[Tensor]:
    """Whether it has a storage to speak of, unlike a sparse one or a subclass with insides."""
    ordinary = type(value) in (Tensor, nn.Parameter, nn.Buffer) and value.layout == torch.strided
    return ordinary and not (value.is_meta or value.is_quantized)


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)
