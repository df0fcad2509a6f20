"""Capture features and gradients at chosen layers with hooks, one forward and backward per batch.

Each layer's features are handed on together with the gradient of the loss at them as soon as that
gradient arrives. No gradients of parameters are computed: the first tapped output becomes the leaf
of the graph, so nothing before it is differentiated.

`Rows` says which rows of a layer's output are recorded, and in which order: all samples, or sampled
tokens. A window of sequences yields as many blocks as tokens are drawn from each sequence. Block b
holds the b-th token of every sequence, so that no block holds two tokens of one sequence. Rows come
window by window, and within a window block by block. Where whole samples are recorded, this is
their own order.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._data.sources import Batch
from .._ops.devices import copy_to_device_async
from ..errors import LayerError
from .embeddings import EmbeddingsReader
from .layer_outputs import replace_tensor, sample_axes, tensor_at, why_unreadable
from .layer_patterns import Tap
from .logits import LogitsReader
from .losses import BackwardStart, Objective
from .trace import modules_by_name


class Rows:
    """The rows of one batch: which sample each is of, and which of its tokens."""

    def __init__(self, batch: Batch) -> None:
        self.drawn = batch.drawn
        tokens = 1 if batch.drawn is None else batch.drawn.positions.shape[1]
        counts = [len(piece.indices) for piece in batch.pieces]
        self.samples = sum(counts)
        samples = np.split(np.arange(self.samples), np.cumsum(counts[:-1]))
        # (rows,) the position of its sample in the batch, and which token drawn from it this is
        self.sample = np.concatenate([np.tile(block, tokens) for block in samples])
        self.token = np.concatenate([np.repeat(np.arange(tokens), n) for n in counts])
        self._at: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def pick(self, x: Tensor) -> Tensor | None:  # (n, length, ...) -> (rows, ...)
        """The rows of an output; None if it has no axis of such positions."""
        if self.drawn is None:
            return x
        if x.ndim < 3 or tuple(x.shape[:2]) != (len(self.drawn.positions), self.drawn.length):
            return None
        return x[self.at(x.device)]

    def pick_logits(self, z: Tensor) -> Tensor:  # (n, positions, classes) -> (rows, classes)
        """Logits of the rows: those at the tokens drawn, else of all positions."""
        return z.flatten(0, 1) if self.drawn is None else z[self.at(z.device)]

    def at(self, device: torch.device) -> tuple[Tensor, Tensor]:  # (rows,), (rows,)
        """The sample and the position of each token drawn, on a device."""
        assert self.drawn is not None
        if device not in self._at:
            position = torch.from_numpy(self.drawn.positions[self.sample, self.token])
            sample = copy_to_device_async(torch.from_numpy(self.sample), device)
            self._at[device] = sample, copy_to_device_async(position, device)
        return self._at[device]

    def moved_to(self, sample: Tensor, position: Tensor) -> Rows:
        """As many rows, at the samples and positions that these tensors hold."""
        rows = copy.copy(self)
        rows._at = {sample.device: (sample, position)}
        return rows


Consume = Callable[[int, Tensor, "Tensor | None"], None]  # a tap, its features and gradients
See = Callable[[Tensor], None]  # the logits or embeddings of the rows that are recorded
Pick = Callable[[Tensor], "Tensor | None"]  # some rows of a layer's output; None if it has no such

# float16 ends at 6e-8, above many gradients; a power of two is taken off again without loss
_HALF_SCALE = 1024.0
_MSG_NO_POSITIONS = (
    "no layer chosen has one row for each position of a sequence; name some that do, or record "
    'with `unit="sample"`'
)


class HeldBatch:
    """Keeps what one batch yields, until it is handed on."""

    def __init__(self) -> None:
        self.outputs: list[tuple[int, Tensor, Tensor | None]] = []
        self.logits: Tensor | None = None

    def see(self, logits: Tensor) -> None:
        self.logits = logits

    def consume(self, i: int, features: Tensor, gradients: Tensor | None) -> None:
        if gradients is None:  # the forward pass is under way, and may write over these
            features = features.clone()
        self.outputs.append((i, features, gradients))

    def hand_on(self, consume: Consume, see: See | None) -> None:
        if see is not None and self.logits is not None:
            see(self.logits)
        while self.outputs:
            consume(*self.outputs.pop(0))


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
        modules = modules_by_name(self.model)
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
        start: Callable[[Any, float], BackwardStart] | None,
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
                if self.taps and len(self.dropped) == len(self.taps):
                    raise LayerError(_MSG_NO_POSITIONS)
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
                "that the output depends on, or record with `gradients=False`"
            )
        torch.autograd.grad(at, self._leaves, gradient, allow_unused=True)
        self._missing(
            "gets no gradient, because its output does not reach the loss; exclude it, or record "
            "with "
            "`gradients=False`",
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
        found = tensor if tensor is not None or not isinstance(value, Tensor) else value
        trouble = f"{type(value).__name__} without one" if found is None else why_unreadable(found)
        if tensor is None or trouble:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected a dense floating-point tensor, found "
                f"{trouble}; exclude it, or choose a different layer"
            )
        if tensor.element_size() == 1 and self.gradients:
            raise LayerError(
                f"layer {self.taps[i].name!r} returns {tensor.dtype}, in which gradients "
                "underflow; exclude it, or record features only with `gradients=False`"
            )
        axis = self._axis(i, module, tensor)
        wide = tensor.float() if tensor.element_size() == 1 else tensor  # 8 bits: no arithmetic
        features = self._pick(self._in_order(i, wide.detach(), axis))
        if features is None and not self._may_drop:
            raise LayerError(
                f"layer {self.taps[i].name!r}: expected one row for each position of a sequence, "
                f'found shape {tuple(tensor.shape)}; exclude it, or record with `unit="sample"`'
            )
        if features is None:
            self.dropped.add(i)
            return None
        if not self.gradients:
            self._done.add(i)
            self._consume(i, features, None)
            return None
        replaced_value = None
        # Nothing before the first tap is recorded, so the graph begins there.
        if not self._leaves or not tensor.requires_grad:
            leaf = tensor.detach().requires_grad_()
            self._leaves.append(leaf)
            # the network may write into the clone
            replaced_value = replace_tensor(value, tensor, leaf.clone())
            tensor = leaf
        if i in self.copied:
            features = features.clone()
        self._features[i] = features, features._version

        def arrived(gradient: Tensor) -> None:
            features, _ = self._features.pop(i)
            self._done.add(i)
            rows = self._pick(self._in_order(i, gradient.detach(), axis))
            if rows is not None and self._scale != 1:
                rows = rows.float() / self._scale
            self._consume(i, features, rows)

        tensor.register_hook(arrived)
        return replaced_value

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
                f"axis, found shape {tuple(tensor.shape)}; choose an enclosing layer that keeps "
                "one row per sample"
            )
        if len(axes) == 1:
            self._axes[i] = axes[0]
        time_major = getattr(module, "batch_first", True) is False and tensor.ndim == 3
        return self._axes.get(i, int(time_major))


@dataclass(frozen=True)
class EagerRunner:
    """Runs batches as PyTorch does: forward with hooks at the taps, and backward from the loss."""

    capture: Capture
    run_model: Callable[[nn.Module, Any], Any]
    objective: Objective | None  # None: features alone
    logits: LogitsReader | EmbeddingsReader | None  # None: nobody sees outputs

    def run(self, samples: Any, rows: Rows, consume: Consume, see: See | None) -> None:
        """One batch on the model's device, there and back."""

        def forward() -> Any:
            outputs = self.run_model(self.capture.model, samples)
            if self.logits is not None and see is not None:
                see(rows.pick_logits(self.logits(outputs).detach()))
            return outputs

        start = None if self.objective is None else partial(self.objective.start, samples)
        self.capture.run(forward, start, rows.samples, consume, rows.pick)
