"""Features and gradients at chosen layers of any PyTorch module, which is left as it was.

One forward and one backward per batch; each layer's features are handed on with the gradient of the
loss at them as soon as that arrives. Parameters take no gradient: the first tapped output becomes
the leaf of the graph, so nothing before it is differentiated.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import LayerError
from .call_trace import modules_of
from .layer_choice import Tap
from .losses import Start
from .nested_outputs import sample_axes, swap, tensor_at

Consume = Callable[[int, Tensor, "Tensor | None"], None]
Pick = Callable[[Tensor], "Tensor | None"]  # some rows of a layer's output; None if it has no such

# float16 ends at 6e-8, above many gradients; a power of two is taken off again without loss
_HALF_SCALE = 1024.0


_NO_POSITIONS = (
    "no layer chosen has one row for each position of a sequence; name some that do, or record "
    'with unit="sample"'
)


class Capture:
    """Hooks on a model for the length of a `with` block.

    A feature is the value at the tap: where the network later writes over that memory in place (an
    in-place ReLU), the batch is run again with a copy kept at that tap. Where only some rows of an
    output are asked for, as of tokens, only those are kept until their gradients come. A tap
    without such rows is an error, or, with `may_drop`, left out from the first batch on.
    """

    def __init__(
        self, model: nn.Module, taps: Sequence[Tap], *, gradients: bool, may_drop: bool = False
    ) -> None:
        self.model, self.taps, self.gradients = model, taps, gradients
        self._may_drop = may_drop
        self.copied: set[int] = set()  # taps whose memory the network writes over
        self.dropped: set[int] = set()  # taps that have no such rows as are asked for
        # of the samples, as learnt from unambiguous batches
        self._axes = {i: tap.axis for i, tap in enumerate(taps) if tap.axis is not None}
        self._where = {(tap.module, tap.is_input, tap.call): i for i, tap in enumerate(taps)}
        self._begin(0)

    def _begin(self, count: int) -> None:
        self._count = count
        self._scale = 1.0
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._leaves: list[Tensor] = []
        self._features: dict[int, tuple[Tensor, int]] = {}  # with the version of their memory
        self._done: set[int] = set()

    @property
    def learnt(self) -> Hashable:
        """What former batches have shown, by which the next is run."""
        return frozenset(self.copied), frozenset(self.dropped), frozenset(self._axes.items())

    def __enter__(self) -> Capture:
        modules = modules_of(self.model)
        self._hooks = contextlib.ExitStack()
        try:
            for name, is_input in {(tap.module, tap.is_input) for tap in self.taps}:
                module, hook = modules[name], partial(self._called, name, is_input)
                register: Callable[..., RemovableHandle] = module.register_forward_hook
                if is_input:
                    register = partial(module.register_forward_pre_hook, with_kwargs=True)
                self._hooks.callback(register(hook).remove)
            return self
        except BaseException:  # a module that refuses a hook, or Ctrl-C
            self._hooks.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        self._begin(0)

    def run(
        self,
        forward: Callable[[], Any],
        start: Callable[[Any, float], Start] | None,
        count: int,
        consume: Consume,
        pick: Pick = lambda x: x,
    ) -> None:
        """One batch of `count` samples through the model, there and back.

        `consume(i, features, gradients)` is called once for each tap i, with both batch first and
        in the shape of the layer, or the rows of it that `pick` takes. Without `start`, a function
        of outputs and a scale, there are features alone.
        """
        self._consume, self._pick = consume, pick
        with torch.inference_mode(False), torch.set_grad_enabled(self.gradients):
            while True:
                self._begin(count)
                outputs = forward()
                self._missing("never runs on this batch", set(self._features) | self._done)
                if len(self.dropped) == len(self.taps):
                    raise LayerError(_NO_POSITIONS)
                overwritten = {i for i, (f, v) in self._features.items() if f._version != v}
                if start is None or not overwritten:
                    break
                self.copied |= overwritten
            if start is not None:
                if any(f.dtype == torch.float16 for f, _ in self._features.values()):
                    self._scale = _HALF_SCALE
                self._backward(*start(outputs, self._scale))
            self._begin(0)
        self._may_drop = False

    def _backward(self, at: Tensor, gradient: Tensor) -> None:
        if not at.requires_grad:
            raise LayerError(
                "no tapped layer reaches the loss, so there is no gradient to record; tap layers "
                "that the output depends on, or record with gradients=False"
            )
        torch.autograd.grad(at, self._leaves, gradient, allow_unused=True)
        self._missing(
            "gets no gradient, as its output does not reach the loss; leave it out or record with "
            "gradients=False",
            self._done,
        )

    def _missing(self, what: str, found: set[int]) -> None:
        for i, tap in enumerate(self.taps):
            if i not in found | self.dropped:
                raise LayerError(f"layer {tap.name!r} {what}")

    def _called(
        self, name: str, is_input: bool, module: nn.Module, args: Any, kwargs_or_output: Any
    ) -> Any:
        if not self._count:  # somebody else runs the model
            return None
        self._calls[name, is_input] += 1
        i = self._where.get((name, is_input, self._calls[name, is_input]))
        if i is None or i in self.dropped:
            return None
        return self._tap(i, module, (args, kwargs_or_output) if is_input else kwargs_or_output)

    def _tap(self, i: int, module: nn.Module, value: Any) -> Any:
        tensor = tensor_at(value, self.taps[i].position)
        if tensor is None:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected a floating-point tensor, found "
                f"{type(value).__name__} without one; tap another layer"
            )
        axis = self._axis(i, module, tensor)
        features = self._pick(self._in_order(i, tensor.detach(), axis))
        if features is None:
            self._drop(i, tensor)
            return None
        if not self.gradients:
            self._done.add(i)
            self._consume(i, features, None)
            return None
        passed_on = None
        # Nothing before the first tap is recorded, so the graph begins there.
        if not self._leaves or not tensor.requires_grad:
            given, tensor = tensor, tensor.detach().requires_grad_()
            self._leaves.append(tensor)
            passed_on = swap(value, given, tensor.clone())  # the network may write into the clone
        if i in self.copied:
            features = features.clone()
        self._features[i] = features, features._version

        def arrived(gradient: Tensor) -> None:
            features, _ = self._features.pop(i)
            self._done.add(i)
            found = self._pick(self._in_order(i, gradient.detach(), axis))
            if found is not None and self._scale != 1:
                found = found.float() / self._scale
            self._consume(i, features, found)

        tensor.register_hook(arrived)
        return passed_on

    def _drop(self, i: int, tensor: Tensor) -> None:
        if not self._may_drop:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected one row for each position of a sequence, "
                f'found shape {tuple(tensor.shape)}; leave it out, or record with unit="sample"'
            )
        self.dropped.add(i)

    def _in_order(self, i: int, tensor: Tensor, axis: int) -> Tensor:
        """A view with the samples first and, of images, the channels second."""
        tensor = tensor.movedim(axis, 0)
        last = self.taps[i].channels_last and tensor.ndim > 3
        return tensor.movedim(-1, 1) if last else tensor

    def _axis(self, i: int, module: nn.Module, tensor: Tensor) -> int:
        """Where the samples are. If the number of samples equals another size, look back."""
        axes = sample_axes(tensor, self._count)
        if not axes:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected {self._count} samples along its first "
                f"axis, found shape {tuple(tensor.shape)}; tap a layer around it that keeps one "
                "row a sample"
            )
        if len(axes) == 1:
            self._axes[i] = axes[0]
        time_major = getattr(module, "batch_first", True) is False and tensor.ndim == 3
        return self._axes.get(i, int(time_major))
