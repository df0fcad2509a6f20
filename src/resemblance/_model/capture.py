"""Features and gradients at chosen layers of any PyTorch module, which is left as it was.

One forward and one backward per batch; each layer's features are handed on with the gradient of the
loss at them as soon as that arrives. Parameters take no gradient: the first tapped output becomes
the leaf of the graph, so nothing before it is differentiated.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import LayerError
from .call_trace import modules_of
from .layer_choice import Tap
from .nested_outputs import first_tensor, sample_axes, swap_first

Consume = Callable[[int, Tensor, "Tensor | None"], None]

# float16 ends at 6e-8, above many gradients; a power of two is taken off again without loss
_HALF_SCALE = 1024.0


class Capture:
    """Hooks on a model for the length of a `with` block.

    A feature is the value at the tap: where the network later writes over that memory in place (an
    in-place ReLU), the batch is run again with a copy kept at that tap.
    """

    def __init__(self, model: nn.Module, taps: Sequence[Tap], *, gradients: bool) -> None:
        self.model, self.taps, self.gradients = model, taps, gradients
        self.copied: set[int] = set()  # taps whose memory the network writes over
        self._axes: dict[int, int] = {}  # of the samples, as learnt from unambiguous batches
        self._where = {(tap.module, tap.is_input, tap.call): i for i, tap in enumerate(taps)}
        self._begin(0)

    def _begin(self, count: int) -> None:
        self._count = count
        self._scale = 1.0
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._leaves: list[Tensor] = []
        self._features: dict[int, tuple[Tensor, int]] = {}  # with the version of their memory
        self._done: set[int] = set()

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
        losses: Callable[[Any], Tensor] | None,
        count: int,
        consume: Consume,
    ) -> None:
        """One batch of `count` samples through the model, there and back.

        `consume(i, features, gradients)` is called once for each tap i, with both batch first and
        in the shape of the layer. Without `losses` there are features alone.
        """
        self._consume = consume
        with torch.inference_mode(False), torch.set_grad_enabled(self.gradients):
            while True:
                self._begin(count)
                outputs = forward()
                self._missing("never runs on this batch", set(self._features) | self._done)
                overwritten = {i for i, (f, v) in self._features.items() if f._version != v}
                if losses is None or not overwritten:
                    break
                self.copied |= overwritten
            if losses is not None:
                self._backward(losses(outputs).sum())
            self._begin(0)

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise LayerError(
                "no tapped layer reaches the loss, so there is no gradient to record; tap layers "
                "that the output depends on, or record with gradients=False"
            )
        if any(f.dtype == torch.float16 for f, _ in self._features.values()):
            self._scale = _HALF_SCALE
        torch.autograd.grad(loss * self._scale, self._leaves, allow_unused=True)
        self._missing(
            "gets no gradient, as its output does not reach the loss; leave it out or record with "
            "gradients=False",
            self._done,
        )

    def _missing(self, what: str, found: set[int]) -> None:
        for i, tap in enumerate(self.taps):
            if i not in found:
                raise LayerError(f"layer {tap.name!r} {what}")

    def _called(
        self, name: str, is_input: bool, module: nn.Module, args: Any, kwargs_or_output: Any
    ) -> Any:
        self._calls[name, is_input] += 1
        i = self._where.get((name, is_input, self._calls[name, is_input]))
        if i is None:
            return None
        return self._tap(i, module, (args, kwargs_or_output) if is_input else kwargs_or_output)

    def _tap(self, i: int, module: nn.Module, value: Any) -> Any:
        tensor = first_tensor(value)
        if tensor is None:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected a floating-point tensor, found "
                f"{type(value).__name__} without one; tap another layer"
            )
        axis = self._axis(i, module, tensor)
        if not self.gradients:
            self._done.add(i)
            self._consume(i, tensor.detach().movedim(axis, 0), None)
            return None
        passed_on = None
        # Nothing before the first tap is recorded, so the graph begins there.
        if not self._leaves or not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
            self._leaves.append(tensor)
            passed_on = swap_first(value, tensor.clone())  # the network may write into the clone
        features = tensor.detach()
        if i in self.copied:
            features = features.clone()
        self._features[i] = features, features._version

        def arrived(gradient: Tensor) -> None:
            features, _ = self._features.pop(i)
            self._done.add(i)
            gradient = gradient.detach()
            if self._scale != 1:
                gradient = gradient.float() / self._scale
            self._consume(i, features.movedim(axis, 0), gradient.movedim(axis, 0))

        tensor.register_hook(arrived)
        return passed_on

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
