"""Trace one forward pass: which modules run, in which order, and what they take and return.

For each call of a module the trace notes where the sample axis is, how many weight matrices it
has, and which call's output it received. `auto_layers` chooses layers from this.
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

from . import wrappers
from .layer_outputs import floating_tensors, sample_axes, why_unreadable

MODULE_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


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
        return self.build[0] in MODULE_LISTS


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by name; for a compiled one, the module inside, which runs either way."""
    return {
        wrappers.strip_compile_prefix(name): module
        for name, module in model.named_modules()
        if name
    }


def locate_tensor(value: Any, count: int | None) -> Place | None:
    """Where the tensor to record is: the first with an axis of `count` samples, else the first.

    >>> locate_tensor((torch.zeros(8, 3), torch.zeros(2, 5)), 2)
    Place(position=1, shape=(2, 5), samples=True, axis=0)
    """
    first = None
    for position, tensor in enumerate(floating_tensors(value)):
        if why_unreadable(tensor):
            continue
        shape = tuple(tensor.shape)
        axes = [0] if count is None else sample_axes(tensor, count)
        if axes and (axes[0] == 0 or shape[0] != 1):  # the first, or the second after one of time
            return Place(position, shape, axis=axes[0])
        first = first or Place(position, shape, samples=False, axis=None)
    return first


def trace(
    model: nn.Module,
    run: Callable[[], Any],
    look: Callable[[str, Any], None] = lambda name, output: None,  # as each call ends
    count: int | None = None,  # samples that it is run on, where that is known
) -> tuple[list[Call], Any]:
    """Every module call of a forward pass, in the order in which outputs appear, and its output."""
    modules = modules_by_name(model)
    matrices = wrappers.count_weight_matrices(modules)
    within = wrappers.names_inside_wrapped_layers(modules)
    makers, clock = _TensorProducers(), itertools.count()
    # calls but for what is read at the end: the sums of their outputs' absolute values
    calls: list[partial[Call]] = []
    sums: list[Tensor] = []
    started: defaultdict[str, list[tuple[int, Place | None, frozenset[int]]]] = defaultdict(list)
    seen: Counter[str] = Counter()

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        place = locate_tensor((args, kwargs), count)
        given_by = makers.of_first((*args, *kwargs.values()))
        started[name].append((next(clock), place, given_by))

    def after(name: str, module: nn.Module, _: Any, output: Any) -> None:
        seen[name] += 1
        is_list = type(module) in MODULE_LISTS
        recurrent = isinstance(module, nn.RNNBase)
        began, input_place, given_by = started[name].pop()
        ended = next(clock)
        hands_on = frozenset(moment for moment in makers.add(output, ended) if moment > began)
        output_place = locate_tensor(output, count)
        call = name if seen[name] == 1 else f"{name}#{seen[name]}"
        calls.append(
            partial(
                Call,
                name=call,
                module=name,
                number=seen[name],
                kind=type(module).__name__,
                build=(type(module), *map(type, module.children() if is_list else ())),
                listed=type(modules.get(name.rpartition(".")[0], model)) in MODULE_LISTS,
                output=output_place,
                input=input_place,
                given_by=given_by,
                hands_on=hands_on,
                matrices=matrices[name],
                weighted=name not in within and wrappers.has_weight_matrices(module),
                takes=_channel_count(module, "in_features", "in_channels"),
                gives=_channel_count(module, "out_features", "out_channels"),
                along_last=_works_along_last_axis(module),
                recurrent=recurrent,
                leaf=name not in within and (recurrent or wrappers.is_leaf(module)),
                began=began,
                ended=ended,
            )
        )
        sums.append(_sums_of_absolute_values(output, output_place))
        look(call, output)

    with contextlib.ExitStack() as hooks, torch.inference_mode(False), torch.no_grad():
        for name, module in modules.items():
            hook = module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
            hooks.callback(hook.remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        outputs = run()
        return [
            call(total=sum(x), varies=len(x) < 2 or len(set(x)) > 1)
            for call, x in zip(calls, read_together(sums), strict=True)
        ], outputs


def _sums_of_absolute_values(
    output: Any, place: Place | None
) -> Tensor:  # (samples,), or (1,) without an axis
    """Σ|x| of each sample in an output; the same ones give the same."""
    if place is None:
        return torch.tensor([torch.nan], dtype=torch.float32)
    tensor = next(itertools.islice(floating_tensors(output), place.position, None))
    if not tensor.is_floating_point() or tensor.element_size() == 1:  # 8 bits have no arithmetic
        tensor = tensor.abs().float() if tensor.is_complex() else tensor.float()
    others = [i for i in range(tensor.ndim) if i != place.axis]
    if not others:
        return tensor.abs().reshape(-1)
    wide = torch.promote_types(tensor.dtype, torch.float32)
    total = torch.linalg.vector_norm(tensor, 1, dim=others, dtype=wide)
    return total if total.ndim else total[None]


def read_together(tensors: list[Tensor]) -> list[list[float]]:
    """The numbers of tensors that may lie on devices, with one wait for all of them."""
    if not tensors:
        return []
    values = iter(torch.cat([x.reshape(-1).to(tensors[-1].device) for x in tensors]).tolist())
    return [list(itertools.islice(values, x.numel())) for x in tensors]


class _TensorProducers:
    """Which calls gave a tensor: itself or a view of it, and not written into since.

    It is known for as long as the tensor lives, and no activation is kept for it.
    """

    def __init__(self) -> None:
        # by where a storage lies; no other comes to lie there while a weak reference is kept
        self._known: defaultdict[int | None, list[tuple[int, int]]] = defaultdict(list)
        self._references: list[StorageWeakRef] = []

    def of_first(self, values: Iterable[Any]) -> frozenset[int]:
        """The calls, by when they ended, that gave the first tensor in each that any gave."""
        found: frozenset[int] = frozenset()
        for value in values:
            moments = map(self._of_tensor, floating_tensors(value))
            found |= next(filter(None, moments), frozenset())
        return found

    def add(self, value: Any, moment: int) -> frozenset[int]:
        """Note that a call gave a value; returns which gave any tensor of it before."""
        before: frozenset[int] = frozenset()
        for tensor in floating_tensors(value):
            if (storage := wrappers.storage_id(tensor)) is None:
                continue
            before |= self._of_tensor(tensor)
            if storage not in self._known:
                self._references.append(StorageWeakRef(tensor.untyped_storage()))
            self._known[storage].append((moment, _tensor_version(tensor)))
        return before

    def _of_tensor(self, tensor: Tensor) -> frozenset[int]:
        version, producers = (
            _tensor_version(tensor),
            self._known.get(wrappers.storage_id(tensor), ()),
        )
        return frozenset(moment for moment, was in producers if was == version)


def _tensor_version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _works_along_last_axis(module: nn.Module) -> bool:
    over_axes = (
        _attribute_or_none(module, "normalized_shape") is not None
        and "2d" not in type(module).__name__.lower()
    )
    return isinstance(module, nn.Linear) or over_axes


def _channel_count(module: nn.Module, *names: str) -> int | None:
    """How many channels a linear layer, a convolution (by these names) or a norm works on."""
    shape = _attribute_or_none(module, "normalized_shape")
    if isinstance(shape, tuple) and shape:
        return shape[-1] if isinstance(shape[-1], int) else None
    found = (_attribute_or_none(module, name) for name in (*names, "num_features", "num_channels"))
    return next((number for number in found if isinstance(number, int)), None)


def _attribute_or_none(module: nn.Module, name: str) -> Any:
    """What a module has by a name, or None, which `getattr` takes long to find out."""
    known = name in module.__dict__ or hasattr(type(module), name)
    return getattr(module, name, None) if known else None
