"""Features and gradients at chosen layers of any PyTorch module, which is left as it was.

`trace` runs a model once to see which modules run, in what order. `select` turns names, globs or
`"auto"` into taps in order of execution. `Capture` runs one forward and one backward per batch and
hands each layer's features, with the gradient of the loss at them, to a callback as soon as the
gradient arrives. Parameters take no gradient: the first tapped output becomes the leaf of
the graph, so nothing before it is differentiated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .errors import LayerError, nearest

INPUT = ":in"  # the suffix of a layer name that taps a module's input, not its output

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Call:
    """One call of one module in a forward pass."""

    name: str  # "layer1.0", or "layer1.0#2" the second time it runs
    module: str  # "layer1.0"
    kind: str  # class name
    shape: tuple[int, ...] | None  # of the tensor tapped, batch first; None if there is none
    weighted: bool  # has weight matrices of its own (convolution, linear, recurrent, embedding)
    leaf: bool
    began: int  # event counters: a module begins before the modules inside it and ends after them
    ended: int


@dataclass(frozen=True)
class Tap:
    """Where to record: one call of a module, its output or its input."""

    name: str
    module: str
    call: int
    is_input: bool


def unwrap(model: nn.Module) -> nn.Module:
    """The module under DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, parameters frozen, compiled code run eagerly; all undone at the end."""
    modes = [(module, module.training) for module in model.modules()]
    thawed = [p for p in model.parameters() if p.requires_grad]
    stance = getattr(torch.compiler, "set_stance", None)  # torch >= 2.6
    with stance("force_eager") if stance else contextlib.nullcontext():
        try:
            model.eval()
            for parameter in thawed:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in thawed:
                parameter.requires_grad_(True)
            for module, training in modes:
                module.training = training


# -- tensors inside outputs ---------------------------------------------------------------------


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor in a tensor, tuple, list, dict or dataclass."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    for value in _children(output):
        found = first_tensor(value)
        if found is not None:
            return found
    return None


def _children(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(output.values())
    if isinstance(output, tuple | list):
        return list(output)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in dataclasses.fields(output)]
    return []


def _swap_first(output: Any, new: Tensor) -> Any:
    """A copy of `output` in which its first floating-point tensor is `new`."""
    old = first_tensor(output)

    def swap(value: Any) -> Any:
        if value is old:
            return new
        if isinstance(value, Mapping):
            pairs = {key: swap(item) for key, item in value.items()}
            return type(value)(**pairs) if dataclasses.is_dataclass(value) else type(value)(pairs)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(swap, value))
        if isinstance(value, tuple | list):
            return type(value)(map(swap, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return dataclasses.replace(
                value, **{f.name: swap(getattr(value, f.name)) for f in fields}
            )
        return value

    return swap(output)


def _batch_first(tensor: Tensor, module: nn.Module, count: int, name: str) -> Tensor:
    """The tensor with samples along its first axis, also for time-major recurrent layers."""
    time_major = getattr(module, "batch_first", True) is False and tensor.ndim == 3
    if not time_major and tensor.ndim and tensor.shape[0] == count:
        return tensor
    if tensor.ndim > 1 and tensor.shape[1] == count:
        return tensor.transpose(0, 1)
    raise LayerError(
        f"layer {name!r}: expected {count} samples along the first axis of its output, found shape "
        f"{tuple(tensor.shape)}; tap a layer around it that keeps one row a sample"
    )


# -- which layers -------------------------------------------------------------------------------


def trace(model: nn.Module, run: Callable[[], Any]) -> list[Call]:
    """Every module call of one forward pass, in the order in which outputs appear."""
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
            own = [p for p in module.parameters(recurse=False) if p.ndim > 1]
            calls.append(
                Call(
                    name=name if seen[name] == 1 else f"{name}#{seen[name]}",
                    module=name,
                    kind=type(module).__name__,
                    shape=None if tensor is None else tuple(tensor.shape),
                    weighted=bool(own),
                    leaf=not any(True for _ in module.children()) or isinstance(module, nn.RNNBase),
                    began=started[name].pop(),
                    ended=next(clock),
                )
            )

        return hook

    handles = []
    try:
        for name, module in model.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(before(name)))
                handles.append(module.register_forward_hook(after(name)))
        with torch.inference_mode(False), torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def select(model: nn.Module, layers: str | Sequence[str], calls: Sequence[Call]) -> list[Tap]:
    """Taps in order of execution for `"auto"`, a name, a glob, or a list of names and globs."""
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not patterns:
        raise LayerError('no layers were asked for; pass layers="auto" or at least one name')
    if patterns == ["auto"]:
        patterns = automatic(model, calls)
    known = [name for name, _ in model.named_modules() if name]
    chosen: dict[str, tuple[int, Tap]] = {}
    for pattern in patterns:
        is_input = pattern.endswith(INPUT)
        wanted = pattern.removesuffix(INPUT)
        hits = [c for c in calls if wanted in (c.name, c.module)]
        hits = hits or [c for c in calls if fnmatch.fnmatchcase(c.name, wanted)]
        if not hits:
            if any(name == wanted or fnmatch.fnmatchcase(name, wanted) for name in known):
                raise LayerError(
                    f"layer {pattern!r} exists but never runs in the forward pass; "
                    f"these do: {nearest(wanted, (c.name for c in calls))}"
                )
            raise LayerError(
                f"no layer is named {pattern!r} and no name matches it as a glob; "
                f"nearest: {nearest(wanted, (c.name for c in calls))}"
            )
        for c in hits:
            name = c.name + (INPUT if is_input else "")
            number = int(c.name.removeprefix(c.module).removeprefix("#") or 1)
            moment = c.began if is_input else c.ended
            chosen[name] = (moment, Tap(name, c.module, number, is_input))
    return [tap for _, tap in sorted(chosen.values(), key=lambda item: item[0])]


def automatic(model: nn.Module, calls: Sequence[Call]) -> list[str]:
    """The layers a person would pick: stem, repeated blocks, and the vector before the head.

    A block is a module with parts of its own whose class occurs at least twice and which lies in
    no larger such module: residual blocks, transformer layers, inverted residuals. A network
    without blocks is a chain: there, every weighted layer's activation is taken, which is the
    activation module that follows it, if one does before the next weighted layer.
    """
    leaves = sorted((c for c in calls if c.leaf), key=lambda c: c.ended)
    weighted = [c for c in leaves if c.weighted]
    if not weighted:
        raise LayerError(
            'layers="auto" looks for layers with weights and found none that run; name the layers'
        )
    head = weighted[-1]
    blocks = _repeated(model, calls)
    if blocks:
        first = min(c.began for c in blocks)
        before = [c for c in leaves if c.ended < first and c.shape is not None]
        names = [before[-1].name] if before else []
        names += [c.name for c in blocks]
        if head.began > max(c.ended for c in blocks):
            names.append(head.name + INPUT)
        return names
    names = []
    for here, following in zip(weighted, [*weighted[1:], None], strict=True):
        if following is None and len(weighted) > 1:
            break  # the head: its input was recorded with the layer before
        until = following.began if following else float("inf")
        between = [c for c in leaves if here.ended < c.ended < until]
        active = [c for c in between if hasattr(nn.modules.activation, c.kind)]
        names.append((active or [here])[-1].name)
    return names


def _repeated(model: nn.Module, calls: Sequence[Call]) -> list[Call]:
    """Calls of the outermost modules with parts whose class occurs at least twice."""
    ran = {c.module: c for c in calls}
    parts = {
        name: type(module)
        for name, module in model.named_modules()
        if name in ran
        and type(module) not in _CONTAINERS
        and not ran[name].leaf
        and any(True for _ in module.parameters())
    }
    often = {kind for kind, count in Counter(parts.values()).items() if count > 1}
    blocks = {name for name, kind in parts.items() if kind in often}
    outermost = {
        name for name in blocks if not any(name.startswith(other + ".") for other in blocks)
    }
    return [c for c in calls if c.module in outermost and c.shape is not None]


# -- the pass -----------------------------------------------------------------------------------

Consume = Callable[[int, Tensor, "Tensor | None"], None]


class Capture:
    """Hooks on a model for the length of a `with` block.

    `run(forward, losses, count)` calls `forward()`, then differentiates `losses(outputs)`, and
    `consume(i, features, gradients)` is called once for each tap i with both batch first, in the
    shape of the layer. A feature is the value at the tap: where the network later writes over
    that memory in place (an in-place ReLU), the batch is run again with a copy kept at that tap.
    """

    def __init__(
        self, model: nn.Module, taps: Sequence[Tap], consume: Consume, *, gradients: bool
    ) -> None:
        self.model, self.taps, self.consume, self.gradients = model, taps, consume, gradients
        self.copied: set[int] = set()  # taps whose memory the network writes over
        self._where: dict[tuple[str, bool], dict[int, int]] = {}
        for i, tap in enumerate(taps):
            self._where.setdefault((tap.module, tap.is_input), {})[tap.call] = i
        self._begin(0)

    def _begin(self, count: int) -> None:
        self._count = count
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._leaves: list[Tensor] = []
        self._features: dict[int, Tensor] = {}
        self._versions: dict[int, int] = {}
        self._done: set[int] = set()

    def __enter__(self) -> Capture:
        self._handles = []
        modules = dict(self.model.named_modules())
        for module_name, is_input in self._where:
            module, hook = modules[module_name], self._hook(module_name, is_input)
            if is_input:
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(hook))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._begin(0)

    def run(self, forward: Callable[[], Any], losses: Callable[[Any], Tensor], count: int) -> None:
        """One batch of `count` samples through the model, there and back."""
        with torch.inference_mode(False), torch.set_grad_enabled(self.gradients):
            while True:
                self._begin(count)
                outputs = forward()
                self._missing("never runs on this batch", self._seen)
                if not self.gradients:
                    break
                overwritten = {
                    i for i, f in self._features.items() if f._version != self._versions[i]
                }
                if not overwritten:
                    self._backward(losses(outputs).sum())
                    break
                self.copied |= overwritten
            self._begin(0)

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise LayerError(
                "no tapped layer reaches the loss, so there is no gradient to record; tap layers "
                "that the output depends on, or record with gradients=False"
            )
        torch.autograd.grad(loss, self._leaves, allow_unused=True)
        self._missing(
            "gets no gradient, as its output does not reach the loss; leave it out or record with "
            "gradients=False",
            self._done,
        )

    @property
    def _seen(self) -> set[int]:
        return self._done if not self.gradients else set(self._features)

    def _missing(self, what: str, found: set[int]) -> None:
        for i, tap in enumerate(self.taps):
            if i not in found:
                raise LayerError(f"layer {tap.name!r} {what}")

    def _hook(self, name: str, is_input: bool) -> Callable[..., Any]:
        slots = self._where[name, is_input]

        def on_output(module: nn.Module, _: Any, output: Any) -> Any:
            self._calls[name, is_input] += 1
            i = slots.get(self._calls[name, is_input])
            return None if i is None else self._tap(i, module, output)

        def on_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
            self._calls[name, is_input] += 1
            i = slots.get(self._calls[name, is_input])
            return None if i is None else self._tap(i, module, (args, kwargs))

        return on_input if is_input else on_output

    def _tap(self, i: int, module: nn.Module, output: Any) -> Any:
        name, tensor = self.taps[i].name, first_tensor(output)
        if tensor is None:
            raise LayerError(
                f"layer {name!r}: expected a floating-point tensor in its output, found "
                f"{type(output).__name__} without one; tap another layer"
            )
        if not self.gradients:
            self._done.add(i)
            self.consume(i, _batch_first(tensor.detach(), module, self._count, name), None)
            return None
        passed_on = None
        if not tensor.requires_grad:  # nothing before this is recorded: the graph begins here
            tensor = tensor.detach().requires_grad_()
            self._leaves.append(tensor)
            passed_on = _swap_first(output, tensor.clone())  # the network may write into the clone
        features = tensor.detach()
        if i in self.copied:
            features = features.clone()
        self._features[i], self._versions[i] = features, features._version

        def arrived(gradient: Tensor) -> None:
            features = self._features.pop(i)
            self._done.add(i)
            self.consume(
                i,
                _batch_first(features, module, self._count, name),
                _batch_first(gradient.detach(), module, self._count, name),
            )

        tensor.register_hook(arrived)
        return passed_on
