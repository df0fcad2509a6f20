"""Which modules run in a forward pass, when, and what they give: a trace of one call of a model.

Of each call a trace notes where its samples are, of how many weight matrices it is made, and whose
output it was given, which is what `automatic_layers` chooses by.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    calls: list[Call] = []
    notes: list[Tensor] = []
    started: defaultdict[str, list[tuple[int, Place | None, frozenset[int]]]] = defaultdict(list)
    seen: Counter[str] = Counter()
    clock = itertools.count()
    makers = _Makers()

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        found = place((args, kwargs), count)
        given_by = frozenset[int]().union(*map(makers.of_first, (*args, *kwargs.values())))
        started[name].append((next(clock), found, given_by))

    def after(name: str, module: nn.Module, _: Any, output: Any) -> None:
        seen[name] += 1
        recurrent = isinstance(module, nn.RNNBase)
        began, given, given_by = started[name].pop()
        ended = next(clock)
        hands_on = frozenset(moment for moment in makers.of_any(output) if moment > began)
        makers.add(output, ended)
        calls.append(
            Call(
                name=name if seen[name] == 1 else f"{name}#{seen[name]}",
                module=name,
                number=seen[name],
                kind=type(module).__name__,
                build=_build(module),
                listed=type(modules.get(name.rpartition(".")[0], model)) in LISTS,
                output=place(output, count),
                input=given,
                given_by=given_by,
                hands_on=hands_on,
                total=0.0,  # both are read at the end
                varies=True,
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
        notes.append(_totals(output, calls[-1].output))
        look(calls[-1].name, output)

    with contextlib.ExitStack() as hooks, torch.inference_mode(False), torch.no_grad():
        for name, module in modules.items():
            hook = module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
            hooks.callback(hook.remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        outputs = run()
        found = zip(calls, _read(notes), strict=True)
        return [replace(c, total=sum(each), varies=_varies(c, each)) for c, each in found], outputs


def _totals(output: Any, place: Place | None) -> Tensor:  # (samples,), or (1,) without an axis
    """Σ|x| of each sample in an output; the same ones give the same."""
    if place is None:
        return torch.tensor([torch.nan])
    tensor = next(itertools.islice(tensors(output), place.position, None)).detach()
    if tensor.layout != torch.strided:
        return torch.tensor([torch.nan])
    if not tensor.is_floating_point() or tensor.element_size() == 1:  # 8 bits have no arithmetic
        tensor = tensor.abs().float() if tensor.is_complex() else tensor.float()
    others = [i for i in range(tensor.ndim) if i != place.axis]
    if not others:
        return tensor.abs().reshape(-1)
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return torch.linalg.vector_norm(tensor, 1, dim=others, dtype=wide).reshape(-1)


def _read(notes: list[Tensor]) -> list[list[float]]:
    """Numbers that lie on devices, with one wait for all of them."""
    if not notes:
        return []
    together = torch.cat([note.to(notes[-1].device) for note in notes])
    return [part.tolist() for part in together.cpu().split([len(note) for note in notes])]


def _varies(call: Call, totals: list[float]) -> bool:
    if call.output is None:
        return False
    return len(totals) < 2 or any(total != totals[0] for total in totals)


class _Makers:
    """Which calls gave a tensor: itself or a view of it, and not written into since.

    It is known for as long as the tensor lives, and no activation is kept for it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, list[tuple[int, int]]]] = {}

    def of_first(self, value: Any) -> frozenset[int]:
        """The calls, by when they ended, that gave the first tensor here that any gave."""
        return next(filter(None, map(self._of_tensor, tensors(value))), frozenset())

    def of_any(self, value: Any) -> frozenset[int]:
        """The calls that gave any tensor here."""
        return frozenset[int]().union(*map(self._of_tensor, tensors(value)))

    def add(self, value: Any, moment: int) -> None:
        for tensor in tensors(value):
            if (memory := _memory(tensor)) is not None:
                _, moments = self._known.setdefault(memory.cdata, (memory, []))
                moments.append((moment, _version(tensor)))

    def _of_tensor(self, tensor: Tensor) -> frozenset[int]:
        memory = _memory(tensor)
        _, moments = self._known.get(memory.cdata, (memory, [])) if memory else (None, [])
        return frozenset(moment for moment, version in moments if version == _version(tensor))


def _memory(tensor: Tensor) -> StorageWeakRef | None:
    """A weak reference to where a tensor lies, whose address is not used again while it is kept."""
    if tensor.layout != torch.strided:
        return None
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_along_last(module: nn.Module) -> bool:
    over_axes = hasattr(module, "normalized_shape") and "2d" not in type(module).__name__.lower()
    return isinstance(module, nn.Linear) or over_axes


def _channels(module: nn.Module, *names: str) -> int | None:
    """How many channels a linear layer, a convolution (by these names) or a norm works on."""
    shape = getattr(module, "normalized_shape", None)
    if isinstance(shape, tuple) and shape:
        return shape[-1] if isinstance(shape[-1], int) else None
    found = (getattr(module, name, None) for name in (*names, "num_features", "num_channels"))
    return next((number for number in found if isinstance(number, int)), None)


def _is_leaf(module: nn.Module) -> bool:
    return altered_layers.is_altered(module) or not any(True for _ in module.children())


def _build(module: nn.Module) -> tuple[type, ...]:
    parts = module.children() if type(module) in LISTS else ()
    return (type(module), *map(type, parts))
