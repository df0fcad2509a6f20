"""What a network computes, as a key: two with equal keys compute the same from their weights.

A key holds classes with the code of their methods, and every plain value that modules, functions
and the objects inside them carry. Registered weights count by shape, any other tensor by content,
and constants of a program's files by value where its functions name them. What cannot be looked
into has no key, so that it equals nothing.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import types
import weakref
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_NAMES = {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version"}  # of no effect
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_BY_NAME = (types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType)
_HEAP = 1 << 9  # the flag of a class that Python code made


class NoKey(Exception):  # noqa: N818 - it says what was found
    """Something was found that cannot be looked into."""


def key_of(value: Any) -> Hashable | None:
    """The key of a module, a function, or data that hold them; None if there can be none.

    >>> one, two, other = nn.ReLU(), nn.ReLU(), nn.ReLU(inplace=True)
    >>> key_of(one) == key_of(two), key_of(one) == key_of(other), key_of(object())
    (True, False, None)
    """
    try:
        return _Walk().of(value)
    except NoKey:
        return None


def shape_of(tensor: Tensor) -> Hashable:
    """What compiled code takes a tensor to be like."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        raise NoKey
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


class _Walk:
    """One walk through whatever is there; what comes again is told by its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no address is used twice

    def of(self, value: Any) -> Hashable:
        if isinstance(value, (enum.Enum, *_OF_TORCH)):
            return type(value), str(value)
        if type(value) in _PLAIN:
            return type(value), repr(value)
        if isinstance(value, types.CodeType):
            return value
        if isinstance(value, _BY_NAME):
            return type(value), value.__name__, getattr(value, "__module__", None)
        if id(value) in self._numbers:
            return "again", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        if isinstance(value, type):
            return self._class(value)
        return self._contents(value)

    def _contents(self, value: Any) -> Hashable:
        if isinstance(value, Tensor | np.ndarray):
            return self._constant(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return "method", self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, functools.partial):
            return "partial", self.all([value.func, value.args, value.keywords])
        if isinstance(value, weakref.ref):
            return "weak", self.of(value())
        if isinstance(value, set | frozenset):
            return self.of(type(value)), frozenset(map(self.of, value))
        if isinstance(value, dict):
            return self.of(type(value)), self._items(value), self._state(value)
        if isinstance(value, list | tuple):
            return self.of(type(value)), self.all(value), self._state(value)
        if _is_of_python(type(value)):
            return self.of(type(value)), self._state(value)
        raise NoKey

    def all(self, values: Iterable[Any]) -> Hashable:
        return tuple(map(self.of, values))

    def _items(self, mapping: dict[Any, Any]) -> Hashable:
        kept = {key: value for key, value in mapping.items() if key not in _NAMES}
        return self.all(kept), self.all(kept.values())

    def _state(self, value: Any) -> Hashable:
        return self._items(getattr(value, "__dict__", {}))

    def _module(self, module: nn.Module) -> Hashable:
        state: dict[str, Any] = {}
        for name, value in vars(module).items():
            # hooks are numbered by when they came, which says nothing of what they do
            hooks = name.endswith(("hooks", "_with_kwargs")) and isinstance(value, dict)
            state[name] = list(value.values()) if hooks else value
        named = [*state.pop("_parameters").items(), *state.pop("_buffers").items()]
        weights = tuple((name, self._weight(weight)) for name, weight in named)
        return self.of(type(module)), weights, self._items(state)

    def _weight(self, weight: Tensor | None) -> Hashable:
        if weight is None or id(weight) in self._numbers:
            return self.of(weight)
        self._numbers[id(weight)] = len(self._numbers)
        self._alive.append(weight)
        return shape_of(weight)

    def _constant(self, value: Tensor | np.ndarray) -> Hashable:
        if isinstance(value, Tensor):
            like: Hashable = shape_of(value)
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        elif value.dtype.hasobject:
            raise NoKey
        else:
            like = value.shape, value.dtype.str
        return like, hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()

    def _function(self, function: types.FunctionType) -> Hashable:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        around = function.__globals__
        named = {name: around[name] for name in function.__code__.co_names if name in around}
        constants = {name: value for name, value in named.items() if type(value) in _PLAIN}
        carried = [function.__defaults__, function.__kwdefaults__, cells, constants]
        return function.__code__, self.all(carried)

    def _class(self, cls: type) -> Hashable:
        """A class by its name and, of each in its line, the code and the plain values in it."""
        own: list[Hashable] = []
        for base in cls.__mro__:
            for name, value in vars(base).items():
                value = getattr(value, "__func__", value)  # of a static or class method
                value = getattr(value, "fget", value)  # of a property
                if isinstance(value, types.FunctionType):
                    own.append((name, value.__code__))
                elif type(value) in _PLAIN and not name.startswith("__"):
                    own.append((name, repr(value)))
        return cls.__module__, cls.__qualname__, tuple(own)


def _is_of_python(cls: type) -> bool:
    """Whether all that an object of it holds is in its `__dict__`."""
    line = [base for base in cls.__mro__ if base not in (object, types.SimpleNamespace)]
    return cls is not object and all(
        base.__flags__ & _HEAP and not vars(base).get("__slots__") for base in line
    )
