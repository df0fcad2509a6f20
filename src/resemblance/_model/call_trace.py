"""Which modules run in a forward pass, when, and what they give: a trace of one call of a model.

Of each call a trace notes where its samples are, of how many weight matrices it is made, and whose
output it was given, which is what `automatic_layers` chooses by.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from . import altered_layers
from .nested_outputs import sample_axes, tensors

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Place:
    """Where in what a module gives, or is given, the tensor is that can be recorded."""

    position: int  # among its floating-point tensors
    shape: tuple[int, ...]
    samples: bool = True  # has an axis of samples, as far as is known
    axis: int | None = 0  # which

    @property
    def of_a_sample(self) -> tuple[int, ...]:
        """The shape without its samples."""
        return tuple(n for i, n in enumerate(self.shape) if i != self.axis)


@dataclass(frozen=True)
class Call:
    """One call of one module in a forward pass."""

    name: str  # "layer1.0", or "layer1.0#2" the second time it runs
    module: str  # "layer1.0"
    number: int  # 1 the first time it runs
    kind: str  # class name
    build: tuple[type, ...]  # its class and, of a Sequential, those of its parts
    listed: bool  # in a Sequential, a ModuleList or a ModuleDict
    output: Place | None  # None if it gives no tensor
    input: Place | None
    given_by: frozenset[int]  # the calls, by when they ended, whose output an argument began with
    hands_on: frozenset[int]  # the calls inside it, likewise, whose output it gives as its own
    total: float  # Σ|x| of its output, which rearranging does not change
    varies: bool  # whether its output differs between samples
    matrices: int  # weight matrices of it and its parts (convolution, linear, embedding)
    weighted: bool  # has some of its own
    takes: int | None  # channels, of a layer that works on so many
    gives: int | None
    along_last: bool  # works along the last axis of what it is given
    recurrent: bool
    leaf: bool
    began: int  # event counters: a module begins before the modules inside it and ends after them
    ended: int

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of what it gives, with its samples."""
        return self.output.shape if self.output else None

    @property
    def is_list(self) -> bool:
        """Whether it is a Sequential, which does nothing but run its parts."""
        return self.build[0] in LISTS


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

    >>> bare_name("base_model.model.h.0.attn.base_layer"), bare_name("module.base_model.model.fc")
    ('h.0.attn', 'fc')
    """
    while prefix := next((x for x in _PREFIXES if name.startswith(x)), None):
        name = name.removeprefix(prefix)
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by name; for a compiled one, the module inside, which runs either way."""
    return {plain_name(name): module for name, module in model.named_modules() if name}


def place(value: Any, count: int | None) -> Place | None:
    """Where the tensor to record is: the first with an axis of `count` samples, else the first.

    >>> place((torch.zeros(8, 3), torch.zeros(2, 5)), 2)
    Place(position=1, shape=(2, 5), samples=True, axis=0)
    """
    first = None
    for position, tensor in enumerate(tensors(value)):
        shape = tuple(tensor.shape)
        axis = 0 if count is None else _sample_axis(tensor, count)
        if axis is not None:
            return Place(position, shape, axis=axis)
        first = first or Place(position, shape, samples=False, axis=None)
    return first


def _sample_axis(tensor: Tensor, count: int) -> int | None:
    """The axis of `count` samples: the first, or the second after one of time."""
    axes = sample_axes(tensor, count)
    return axes[0] if axes and (axes[0] == 0 or tensor.shape[0] != 1) else None


def trace(
    model: nn.Module,
    run: Callable[[], Any],
    look: Callable[[str, Any], None] = lambda name, output: None,  # as each call ends
    count: int | None = None,  # samples that it is run on, where that is known
) -> tuple[list[Call], Any]:
    """Every module call of a forward pass, in the order in which outputs appear, and its output."""
    modules = modules_of(model)
    matrices = altered_layers.matrices(modules)
    within = altered_layers.inside_altered(modules)
    makers, clock = _Makers(), itertools.count()
    calls: list[partial[Call]] = []  # but for what is read at the end
    places: list[Place | None] = []
    notes: list[Tensor] = []
    started: defaultdict[str, list[tuple[int, Place | None, frozenset[int]]]] = defaultdict(list)
    seen: Counter[str] = Counter()

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        found = place((args, kwargs), count)
        given_by = makers.of_first((*args, *kwargs.values()))
        started[name].append((next(clock), found, given_by))

    def after(name: str, module: nn.Module, _: Any, output: Any) -> None:
        seen[name] += 1
        recurrent = isinstance(module, nn.RNNBase)
        began, given, given_by = started[name].pop()
        ended = next(clock)
        hands_on = frozenset(moment for moment in makers.add(output, ended) if moment > began)
        given_out = place(output, count)
        call = name if seen[name] == 1 else f"{name}#{seen[name]}"
        calls.append(
            partial(
                Call,
                name=call,
                module=name,
                number=seen[name],
                kind=type(module).__name__,
                build=_build(module),
                listed=type(modules.get(name.rpartition(".")[0], model)) in LISTS,
                output=given_out,
                input=given,
                given_by=given_by,
                hands_on=hands_on,
                matrices=matrices[name],
                weighted=name not in within and altered_layers.has_matrices(module),
                takes=_channels(module, "in_features", "in_channels"),
                gives=_channels(module, "out_features", "out_channels"),
                along_last=_is_along_last(module),
                recurrent=recurrent,
                leaf=name not in within and (recurrent or _is_leaf(module)),
                began=began,
                ended=ended,
            )
        )
        places.append(given_out)
        notes.append(_totals(output, given_out))
        look(call, output)

    with contextlib.ExitStack() as hooks, torch.inference_mode(False), torch.no_grad():
        for name, module in modules.items():
            hook = module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
            hooks.callback(hook.remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        outputs = run()
        found = zip(calls, places, _read(notes), strict=True)
        return [call(total=sum(x), varies=_varies(at, x)) for call, at, x in found], outputs


def _totals(output: Any, place: Place | None) -> Tensor:  # (samples,), or (1,) without an axis
    """Σ|x| of each sample in an output; the same ones give the same."""
    if place is None:
        return torch.tensor([torch.nan])
    tensor = next(itertools.islice(tensors(output), place.position, None))
    if tensor.layout != torch.strided:
        return torch.tensor([torch.nan])
    if not tensor.is_floating_point() or tensor.element_size() == 1:  # 8 bits have no arithmetic
        tensor = tensor.abs().float() if tensor.is_complex() else tensor.float()
    others = [i for i in range(tensor.ndim) if i != place.axis]
    if not others:
        return tensor.abs().reshape(-1)
    wide = torch.promote_types(tensor.dtype, torch.float32)
    total = torch.linalg.vector_norm(tensor, 1, dim=others, dtype=wide)
    return total if total.ndim else total[None]


def _read(notes: list[Tensor]) -> list[list[float]]:
    """Numbers that lie on devices, with one wait for all of them."""
    if not notes:
        return []
    values = iter(torch.cat([note.to(notes[-1].device) for note in notes]).tolist())
    return [list(itertools.islice(values, len(note))) for note in notes]


def _varies(place: Place | None, totals: list[float]) -> bool:
    if place is None:
        return False
    return len(totals) < 2 or any(total != totals[0] for total in totals)


class _Makers:
    """Which calls gave a tensor: itself or a view of it, and not written into since.

    It is known for as long as the tensor lives, and no activation is kept for it.
    """

    def __init__(self) -> None:
        # by where a storage lies; no other comes to lie there while a weak reference is kept
        self._known: dict[int, list[tuple[int, int]]] = {}
        self._references: list[StorageWeakRef] = []

    def of_first(self, values: Iterable[Any]) -> frozenset[int]:
        """The calls, by when they ended, that gave the first tensor in each that any gave."""
        found: frozenset[int] = _NONE
        for value in values:
            for tensor in tensors(value):
                if moments := self._of_tensor(tensor):
                    found |= moments
                    break
        return found

    def add(self, value: Any, moment: int) -> frozenset[int]:
        """Note that a call gave a value; returns which gave any tensor of it before."""
        before: frozenset[int] = _NONE
        for tensor in tensors(value):
            if (storage := _storage(tensor)) is None:
                continue
            before |= self._of_tensor(tensor)
            if storage._cdata not in self._known:
                self._known[storage._cdata] = []
                self._references.append(StorageWeakRef(storage))
            self._known[storage._cdata].append((moment, _version(tensor)))
        return before

    def _of_tensor(self, tensor: Tensor) -> frozenset[int]:
        storage = _storage(tensor)
        if storage is None or storage._cdata not in self._known:
            return _NONE
        version = _version(tensor)
        return frozenset(moment for moment, was in self._known[storage._cdata] if was == version)


_NONE: frozenset[int] = frozenset()


def _storage(tensor: Tensor) -> Any:
    """Where a tensor lies; None if it has no memory of its own."""
    if tensor.layout != torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # as torch says of tensors without one
        return None


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_along_last(module: nn.Module) -> bool:
    over_axes = (
        _attribute(module, "normalized_shape") is not None
        and "2d" not in type(module).__name__.lower()
    )
    return isinstance(module, nn.Linear) or over_axes


def _channels(module: nn.Module, *names: str) -> int | None:
    """How many channels a linear layer, a convolution (by these names) or a norm works on."""
    shape = _attribute(module, "normalized_shape")
    if isinstance(shape, tuple) and shape:
        return shape[-1] if isinstance(shape[-1], int) else None
    found = (_attribute(module, name) for name in (*names, "num_features", "num_channels"))
    return next((number for number in found if isinstance(number, int)), None)


def _attribute(module: nn.Module, name: str) -> Any:
    """What a module has by a name, or None, which `getattr` takes long to find out."""
    known = name in module.__dict__ or hasattr(type(module), name)
    return getattr(module, name, None) if known else None


def _is_leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children()) or altered_layers.is_altered(module)


def _build(module: nn.Module) -> tuple[type, ...]:
    parts = module.children() if type(module) in LISTS else ()
    return (type(module), *map(type, parts))
