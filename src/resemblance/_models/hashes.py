"""Hashes that identify a model: of its weights, and of what a function or network computes.

Weights have a quick hash of sampled values and one of every byte.

A key of a computation holds classes with the code of their methods, and every plain value stored in
modules, functions and the objects inside them: equal keys mean equal computations on equal weights.
Registered weights count by shape, all other tensors by content, and a module's constants by value
where its functions name them. An object that cannot be inspected has no key, so it equals nothing.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._ops.devices import copy_all_to_host_async
from .._ops.tensor_hash import hash_sum
from .wrappers import (
    ReadWeight,
    gathered_by_fsdp,
    is_sharded,
    offloaded_weight_readers,
    strip_compile_prefix,
    unwrap_model,
)

_HASHED_VALUES = 4096  # read of a parameter, or of a weight that `function_identity` meets
_ON_CPU, _ELSEWHERE = 2**19, 2**25  # bytes mixed at a time: a cache's worth, and a GPU's


def hash_sampled_weights(model: nn.Module) -> str:
    """A digest of names, shapes and evenly spaced values of the weights: cheap at any size."""
    return _begin_hashes(model, _SampledHash())[0]()


def hash_all_weights(model: nn.Module) -> str:
    """A digest of names, dtypes, shapes and every byte of the weights, alike on all devices.

    Eight bytes at a time are mixed with their place and added up modulo 2⁶⁴, where they lie: one
    changed word is always seen, and any other change missed once in 2⁶⁴. Weights without bytes (on
    the meta device, offloaded nowhere) count by name, dtype and shape; those that are offloaded or
    spread over processes are read whole, one at a time.
    """
    return _begin_hashes(unwrap_model(model), _FullHash())[0]()


def begin_weight_hashes(model: nn.Module) -> Callable[[], tuple[str, str]]:
    """Begin `hash_sampled_weights` and `hash_all_weights` of a model without wrappers.

    Each weight is read once. The function returned waits for a GPU, once.
    """
    sampled, full = _begin_hashes(model, _SampledHash(), _FullHash())
    return lambda: (sampled(), full())


def _begin_hashes(model: nn.Module, *hashes: _SampledHash | _FullHash) -> list[Callable[[], str]]:
    for part in _weight_parts(model):
        raw, width = part.bytes()
        for each in hashes:
            each.add(part, raw, width)
    return [each.sent() for each in hashes]


def begin_parameter_hash(model: nn.Module) -> Callable[[], str]:
    """Begin a digest of evenly spaced values of each parameter, cheap enough for every pass.

    Parameters that would have to be read from elsewhere (offloaded, sharded over processes) are
    excluded. So are those of FSDP modules, sharded before a pass and perhaps whole after it.

    Args:
        model: a model that nothing is wrapped around.

    Returns:
        A function that waits for a GPU and gives the digest.
    """
    sampled, gathered = _SampledHash(), gathered_by_fsdp(model)
    for name, weight in model.named_parameters():
        for inner, tensor in _inner_tensors(name, weight):
            if id(weight) not in gathered and not is_sharded(tensor):
                part = _WeightPart(name, inner, tensor, None)
                sampled.add(part, *part.bytes())
    return sampled.sent()


class _WeightPart(NamedTuple):
    """A weight, or one of the tensors that it is made of."""

    weight: str  # name and shape of the weight
    name: str  # of this tensor
    tensor: Tensor
    read: ReadWeight | None  # where its values are kept elsewhere

    def bytes(self) -> tuple[Tensor, int]:  # (n · width,) uint8, width
        """All of it and of one value, wherever the tensor or its parts lie; nothing if nowhere."""
        x: Any = self.tensor
        if x.is_meta:
            if self.read is None:
                return torch.empty(0, dtype=torch.uint8), 1
            x = self.read()
        elif is_sharded(x):
            x = x.full_tensor()  # every process that holds a part must ask for it
        if x.is_quantized:
            x = x.dequantize()
        if x.layout != torch.strided:
            x = x.to_dense()
        return _bytes(x.as_subclass(Tensor)), x.element_size()


def _bytes(x: Tensor) -> Tensor:  # (bytes,) uint8
    return x.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _weight_parts(model: nn.Module) -> Iterator[_WeightPart]:
    """All that a model's weights are made of, by name without what torch.compile adds to it."""
    elsewhere = {
        strip_compile_prefix(key): read for key, read in offloaded_weight_readers(model).items()
    }
    state: dict[str, object] = {}
    for key, value in model.state_dict().items():
        name = strip_compile_prefix(key)
        if isinstance(value, tuple):  # int8 layers keep weight and bias in one
            state |= {f"{name}.{i}": part for i, part in enumerate(value)}
        else:
            state[name] = value
    for name, weight in sorted(state.items(), key=lambda item: item[0]):
        if isinstance(weight, Tensor):
            shape = f"{name} {tuple(weight.shape)}"
            for inner, tensor in _inner_tensors(name, weight):
                yield _WeightPart(shape, inner, tensor, elsewhere.get(inner))


def _inner_tensors(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A weight, or the tensors inside one that is made of several."""
    if is_traceable_wrapper_subclass(weight) and not is_sharded(weight):
        for inner in weight.__tensor_flatten__()[0]:
            yield from _inner_tensors(f"{name}.{inner}", getattr(weight, inner))
    else:
        yield name, weight


class _SampledHash:
    """What `hash_sampled_weights` reads: `add` the parts of all weights, and have them `sent`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._values: list[Tensor] = []  # sampled bytes

    def add(self, part: _WeightPart, raw: Tensor, width: int) -> None:
        step = -(-raw.numel() // (_HASHED_VALUES * width))
        if step > 1:
            raw = raw.view(-1, width)[::step].flatten()
        self._names.append(part.weight)
        # on a GPU a copy is made in turn with its other work
        self._values.append(raw.clone() if raw.device.type == "cpu" else raw)

    def sent(self) -> Callable[[], str]:
        """Send it to the host; the function returned waits for it and gives the digest."""
        arrived = copy_all_to_host_async(self._values)

        def digest() -> str:
            out = hashlib.blake2b(digest_size=8)
            parts = zip(self._names, arrived(), strict=True)
            for name, values in itertools.groupby(parts, key=lambda part: part[0]):
                out.update(name.encode())
                for _, value in values:
                    out.update(value.numpy().data)
            return out.hexdigest()

        return digest


class _FullHash:
    """What `hash_all_weights` reads: `add` the parts of all weights, and have their sum `sent`."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._sums: dict[torch.device, Tensor | int] = {}
        self._place = 0  # of the next word
        self._waiting: list[Tensor] = []  # small ones, that are mixed at once
        self._size = 0  # in bytes

    def add(self, part: _WeightPart, raw: Tensor, _: int) -> None:
        self._digest.update(
            f"{part.name} {part.tensor.dtype} {tuple(part.tensor.shape)}\n".encode()
        )
        size, device = raw.numel(), raw.device
        most = _ON_CPU if device.type == "cpu" else _ELSEWHERE
        if self._size + size > most or (self._waiting and device != self._waiting[0].device):
            self._mix()
        for piece in raw.split(most) if size > most else [raw] if size else []:
            if short := -piece.numel() % 8:
                piece = F.pad(piece, (0, short))
            self._waiting.append(piece)
            self._size += piece.numel()
            if size > most:
                self._mix()

    def _mix(self) -> None:
        """Add up the words of all that waits; a lone piece is read where it lies, if it can be."""
        if not self._waiting:
            return
        alone = len(self._waiting) == 1 and self._waiting[0].storage_offset() % 8 == 0
        words = (self._waiting[0] if alone else torch.cat(self._waiting)).view(torch.int64)
        total = self._sums.get(words.device, 0)
        self._sums[words.device] = total + hash_sum(words, self._place)
        self._place += words.numel()
        self._waiting, self._size = [], 0

    def sent(self) -> Callable[[], str]:
        """Add up what waits; the function returned waits for the sum and gives the digest."""
        self._mix()

        def digest() -> str:
            total = sum(map(int, self._sums.values())) % 2**64  # one copy back from each device
            out = self._digest.copy()
            out.update(total.to_bytes(8, "little"))
            return out.hexdigest()

        return digest


# -- what is computed ------------------------------------------------------------------------------

# attributes without effect on what is computed
_IGNORED_ATTRIBUTES = {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version"}
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_HEAP_TYPE_FLAG = 1 << 9  # the flag of a class that Python code made
_CONTAINERS = (list, tuple, dict, set, frozenset)


class NoKey(Exception):  # noqa: N818 - it says what was found
    """Something was found that cannot be looked into."""


def computation_key(value: Any) -> Hashable | None:
    """The key of a module, a function, or data that hold them; None if there can be none.

    >>> one, two, other = nn.ReLU(), nn.ReLU(), nn.ReLU(inplace=True)
    >>> (computation_key(one) == computation_key(two),
    ...  computation_key(one) == computation_key(other), computation_key(object()))
    (True, False, None)
    """
    try:
        return _KeyWalk().of(value)
    except NoKey:
        return None


def function_identity(function: Callable[..., object]) -> str:
    """A hash of what a function computes: 16 hexadecimal digits, the same in every process.

    It covers the bytecode, constants, defaults and closure of the function, those of the functions
    in its own module that it calls, the module's constants, containers, networks and tensors that
    it reads, and the attributes of a callable object. Names of files, line numbers and local
    variables do not count, and of the weights of a network in a closure 4,096 values each do. The
    bytecode, and so the hash, depends on the minor version of Python. Objects that cannot be
    looked into, such as those of extensions written in C, count by their class and name.

    >>> function_identity(lambda x: x + 1) == function_identity(lambda y: y + 1)
    True
    >>> function_identity(lambda x: x + 1) == function_identity(lambda x: x + 2)
    False
    """
    return _digest(_ContentKeyWalk().of(function)).hex()


def tensor_signature(tensor: Tensor) -> Hashable:
    """What compiled code takes a tensor to be like."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        raise NoKey
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


class _KeyWalk:
    """A walk through nested values, in which repeated objects are identified by a number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no address is used twice

    def of(self, value: Any) -> Hashable:
        match value:
            case (
                enum.Enum()
                | torch.dtype()
                | torch.device()
                | torch.layout()
                | torch.memory_format()
            ):
                return type(value), str(value)
            case types.CodeType():
                return value
            case types.ModuleType() | types.BuiltinFunctionType() | types.MethodDescriptorType():
                return type(value), value.__name__, getattr(value, "__module__", None)
        if type(value) in _PLAIN_TYPES:
            return type(value), repr(value)
        if id(value) in self._numbers:
            return "again", self._numbers[id(value)]
        self._register(value)
        return self._class(value) if isinstance(value, type) else self._contents(value)

    def _register(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)

    def _contents(self, value: Any) -> Hashable:
        match value:
            case Tensor() | np.ndarray():
                return self._constant(value)
            case nn.Module():
                return self._module(value)
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return "method", self.of(value.__func__), self.of(value.__self__)
            case functools.partial():
                return "partial", self.all([value.func, value.args, value.keywords])
            case weakref.ref():
                return "weak", self.of(value())
            case set() | frozenset():
                return self.of(type(value)), frozenset(map(self.of, value))
            case dict():
                return self.of(type(value)), self._items(value), self._state(value)
            case list() | tuple():
                return self.of(type(value)), self.all(value), self._state(value)
        if not _is_python_class(type(value)):
            raise NoKey
        return self.of(type(value)), self._state(value)

    def all(self, values: Iterable[Any]) -> Hashable:
        return tuple(map(self.of, values))

    def _items(self, mapping: dict[Any, Any]) -> Hashable:
        kept = {key: value for key, value in mapping.items() if key not in _IGNORED_ATTRIBUTES}
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
        self._register(weight)
        return self._weight_key(weight)

    def _weight_key(self, weight: Tensor) -> Hashable:
        return tensor_signature(weight)

    def _constant(self, value: Tensor | np.ndarray) -> Hashable:
        if isinstance(value, Tensor):
            like: Hashable = tensor_signature(value)
            value = _bytes(value).cpu().numpy()
        elif value.dtype.hasobject:
            raise NoKey
        else:
            like = value.shape, value.dtype.str
        return like, hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()

    def _function(self, function: types.FunctionType) -> Hashable:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        around, names = function.__globals__, function.__code__.co_names
        constants = {x: around[x] for x in names if type(around.get(x, around)) in _PLAIN_TYPES}
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
                elif type(value) in _PLAIN_TYPES and not name.startswith("__"):
                    own.append((name, repr(value)))
        return cls.__module__, cls.__qualname__, tuple(own)


class _ContentKeyWalk(_KeyWalk):
    """A walk whose key has the same `_update_digest` in every process, with weights by content.

    What cannot be looked into counts by its class and name.
    """

    def of(self, value: Any) -> Hashable:
        try:
            return super().of(value)
        except NoKey:
            name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
            return "unknown", type(value).__module__, type(value).__qualname__, str(name)

    def _weight_key(self, weight: Tensor) -> Hashable:
        step = -(-weight.numel() // _HASHED_VALUES)
        return tuple(weight.shape), self._constant(weight.detach().reshape(-1)[:: max(1, step)])

    def _function(self, function: types.FunctionType) -> Hashable:
        around, module = function.__globals__, function.__module__
        read = [around.get(name) for name in sorted(_global_names(function.__code__))]
        helpers = [
            value
            for value in read
            if isinstance(value, (Tensor, np.ndarray, nn.Module, functools.partial, *_CONTAINERS))
            or (isinstance(value, types.FunctionType) and value.__module__ == module)
        ]
        return super()._function(function), self.all(helpers)


def _global_names(code: types.CodeType) -> set[str]:
    """The global names that a function reads, and those that functions inside it read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    loads = (x for x in dis.get_instructions(code) if x.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return {x.argval for x in loads}.union(*map(_global_names, inner))


def _digest(key: Hashable) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    _update_digest(digest, key)
    return digest.digest()


def _update_digest(digest: hashlib.blake2b, key: Any) -> None:
    """Add a key to a hash, whatever the order of sets and the addresses of classes."""
    digest.update(type(key).__name__.encode() + b"(")
    match key:
        case types.CodeType():
            table = getattr(key, "co_exceptiontable", b"")  # since Python 3.11
            run = (key.co_code, table, key.co_consts, key.co_names, key.co_freevars)
            _update_digest(digest, run)
            _update_digest(digest, (key.co_argcount, key.co_kwonlyargcount, key.co_flags))
        case type():
            digest.update(f"{key.__module__}.{key.__qualname__}".encode())
        case tuple():
            for part in key:
                _update_digest(digest, part)
        case frozenset():
            digest.update(b"".join(sorted(map(_digest, key))))
        case _:  # numbers, text, bytes, dtypes and devices
            digest.update(repr(key).encode(errors="surrogatepass"))
    digest.update(b")")


def _is_python_class(cls: type) -> bool:
    """Whether all that an object of it holds is in its `__dict__`."""
    line = [base for base in cls.__mro__ if base not in (object, types.SimpleNamespace)]
    return cls is not object and all(
        base.__flags__ & _HEAP_TYPE_FLAG and not vars(base).get("__slots__") for base in line
    )
