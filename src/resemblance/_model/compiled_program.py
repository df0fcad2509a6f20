"""One batch as a single compiled graph: weights and samples in, features and gradients out.

What `Capture` does to a batch, the loss and the way back among it, is traced on tensors without
data, and Inductor compiles the trace. Weights are inputs of it and shapes are fixed, so a program
serves batches of one shape and every network that computes the same from its own weights.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._data.batches import leaves, tree_map
from ..errors import LayerError
from .capture import Consume
from .computation_key import NoKey, key_of, shape_of
from .offloaded_weights import is_offloaded
from .picked_tokens import Rows
from .recomputed_layers import is_recomputed

See = Callable[[Tensor], None]  # the logits of the rows that are recorded
OneBatch = Callable[
    [Any, Rows, Consume, "See | None"], None
]  # samples, and who takes what is found
Tapped = tuple[int, Tensor, "Tensor | None"]  # a tap, its features and gradients


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a network computes with, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def objection(model: nn.Module) -> str | None:
    """Why a network is not even tried, if so."""
    weights = list(weights_of(model).values())
    if is_offloaded(model):
        return "its weights are brought when they are needed"
    if is_recomputed(model):
        return "gradient checkpointing is on, whose memory compiled code would not save"
    if len({weight.device for weight in weights}) > 1:
        return "its weights are on several devices"
    return None


class Inputs:
    """The tensors of one batch, samples and which tokens of them count, and what they are like."""

    def __init__(self, samples: Any, rows: Rows, device: torch.device | None) -> None:
        self.samples, self.rows = samples, rows
        given = [leaf for leaf in leaves(samples) if isinstance(leaf, Tensor)]
        device = device or next((tensor.device for tensor in given), None)
        drawn = rows.drawn
        at = rows.at(device) if drawn is not None and device is not None else ()
        self.tensors = [*given, *at]
        others = tree_map(lambda leaf: "tensor" if isinstance(leaf, Tensor) else leaf, samples)
        self.shape: Hashable | None  # None for what compiled code cannot be made for
        try:
            like = tuple(map(shape_of, self.tensors))
            self.shape = (key_of(others), like, len(rows.sample), drawn and drawn.length)
        except NoKey:
            self.shape = None

    def of(self, tensors: Sequence[Tensor]) -> tuple[Any, Rows]:
        """Samples and rows like these, of other tensors."""
        rest = iter(tensors)
        samples = tree_map(
            lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf, self.samples
        )
        return samples, self.rows if self.rows.drawn is None else self.rows.found_at(*rest)


@dataclass(frozen=True)
class Program:
    """Compiled code, and what its outputs are."""

    code: Callable[..., Sequence[Tensor]]
    taps: list[tuple[int, bool]]  # in the order in which they come; whether with gradients
    sees: bool  # the logits come last
    tolerance: float  # of its outputs, relative, by the coarsest dtype that it computes in

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Tapped], Tensor | None]:
        """What each tap gives for weights and inputs, and the logits if anybody sees them."""
        with torch.inference_mode(False), torch.no_grad(), _as_traced(tensors):
            rest = iter(self.code(*tensors))
        found: list[Tapped] = [
            (i, next(rest), next(rest) if gradients else None) for i, gradients in self.taps
        ]
        return found, next(rest) if self.sees else None


def compiled(
    model: nn.Module, one_batch: OneBatch, weights: dict[str, Tensor], inputs: Inputs, *, sees: bool
) -> Program:
    """The program for batches like this one; whatever torch raises where there can be none."""
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    taps: list[tuple[int, bool]] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        taps.clear()
        given = {f"model.{name}": x for name, x in zip(weights, tensors, strict=False)}
        around = _Around(model, one_batch, sees)
        batch = inputs.of(tensors[len(given) :])
        found, logits = torch.func.functional_call(around, given, batch)
        taps.extend((i, gradients is not None) for i, _, gradients in found)
        return [x for _, *pair in found for x in pair if x is not None] + logits

    every = [*weights.values(), *inputs.tensors]
    # without threads, as what is traced is known to this one alone
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with warnings.catch_warnings(), one_thread, torch.inference_mode(False):
        warnings.simplefilter("ignore")  # what compilers have to say is of no use here
        with _put_back(model):
            graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*every)
        _refuse_weights_inside(graph, weights)
        tolerance = _coarsest(every) ** 0.25
        with torch.no_grad(), _as_traced(every):
            options = {"triton.cudagraphs": False}
            code = torch._inductor.compile(graph, every, options=options)
    return Program(code, taps, sees, tolerance)


def in_float32(
    model: nn.Module, one_batch: OneBatch, weights: dict[str, Tensor], inputs: Inputs, *, sees: bool
) -> tuple[list[Tapped], Tensor | None]:
    """What a batch gives as written, with weights and samples in no less than float32."""
    given = {f"model.{name}": _widened(weight) for name, weight in weights.items()}
    every = [*weights.values(), *inputs.tensors]
    batch = inputs.of([_widened(x) for x in inputs.tensors])
    with _as_traced(every):
        found, logits = torch.func.functional_call(_Around(model, one_batch, sees), given, batch)
    return found, logits[0] if sees else None


def is_coarse(tensors: Sequence[Tensor]) -> bool:
    """Whether anything is computed in less than float32."""
    return _coarsest(tensors) > torch.finfo(torch.float32).eps


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() and x.element_size() < 4 else x


class _Around(nn.Module):
    """One batch through the model that it holds, whose weights can thereby be replaced."""

    def __init__(self, model: nn.Module, one_batch: OneBatch, sees: bool) -> None:
        super().__init__()
        self.model, self._one_batch, self._sees = model, one_batch, sees

    def forward(self, samples: Any, rows: Rows) -> tuple[list[Tapped], list[Tensor]]:
        found: list[Tapped] = []
        logits: list[Tensor] = []

        def consume(i: int, features: Tensor, gradients: Tensor | None) -> None:
            # without gradients the forward pass is under way, and may write over these
            found.append((i, features.clone() if gradients is None else features, gradients))

        self._one_batch(samples, rows, consume, logits.append if self._sees else None)
        return found, logits[-1:]


@contextlib.contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Take out of modules what they kept of tensors that hold no data."""
    parts = [x for module in model.modules() for x in (vars(module), module._buffers)]
    before = [dict(part) for part in parts]
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for part, old in zip(parts, before, strict=True):
            if (
                any(part.get(key, part) is not value for key, value in old.items())
                or part.keys() != old.keys()
            ):
                part.clear()
                part.update(old)


@contextlib.contextmanager
def _as_traced(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Autocast off: its casts are in the trace."""
    with contextlib.ExitStack() as stack:
        for kind in {"cpu", *(tensor.device.type for tensor in tensors)}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _refuse_weights_inside(graph: torch.fx.GraphModule, weights: dict[str, Tensor]) -> None:
    """An error if the network reaches its weights on another way, so that they are constants."""
    own = {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            held = getattr(graph, node.target)
            name = (
                own.get(held.untyped_storage().data_ptr())
                if type(held) is Tensor or isinstance(held, nn.Parameter)
                else None
            )
            if name is not None:
                raise LayerError(f"the network reaches its weight {name!r} around its parameters")


def _coarsest(tensors: Sequence[Tensor]) -> float:
    """The relative rounding of the coarsest dtype that is computed in."""
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    for kind in {tensor.device.type for tensor in tensors}:
        if torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=1e-7)


def surroundings(tensors: Sequence[Tensor]) -> Hashable:
    """The process's switches that a trace depends on."""
    kinds = sorted({"cpu", *(tensor.device.type for tensor in tensors)})
    cuda = torch.backends.cuda
    return (
        *(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        ),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
