"""Task2Vec: a task as the Fisher information of a network's filters on its data.

F_i = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ_i)², averaged over the weights of each filter (an output
channel of a convolution, a row of a linear layer) and without the head, whose size depends on the
task. Labels are the network's own, never the data's (Achille et al. 2019, arXiv 1902.03545).

As in that paper, tasks are comparable through one probe network whose head was fitted to each; the
embeddings of unrelated networks have no common axes, and say nothing about each other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from .._by_content import by_content
from .._data.batches import inputs_of, tree_map
from .._given_words import check_words
from .._model.altered_layers import layer_of
from .._model.call_trace import Call, bare_name, modules_of, plain_name
from .._model.losses import FindLogits, find_logits
from .._model.model_pass import opened, runnable
from .._model.spread_weights import is_spread
from .._whole_numbers import checked_seed, whole_number
from ..errors import DataError, FormatError, LayerError, MismatchError, TargetError
from ..representation import container, schema

_EXACT_UP_TO = 16  # classes for which the expectation over labels is taken whole
_DRAWS = 10  # labels drawn a sample beyond that
_FLOATS = 2**26  # of gradients held at once, unless chunk says otherwise


@by_content
@dataclass(frozen=True, eq=False)
class TaskEmbedding:
    """The Fisher information of each filter, by the name of its weight, in order of execution."""

    fisher: Mapping[str, Tensor]  # each (filters,), float64
    samples: int
    draws: int | None  # labels drawn a sample; None if the expectation was taken whole
    name: str

    def __repr__(self) -> str:
        return f"TaskEmbedding({self.name!r}, {len(self.vector)} filters, {self.samples} samples)"

    @property
    def vector(self) -> Tensor:  # (filters,)
        return torch.cat(list(self.fisher.values()))

    def cosine(self, other: TaskEmbedding) -> float:
        """The cosine between two embeddings, in [0, 1]: large filters outweigh all others."""
        return _cosine(self.vector, self._same(other))

    def distance(self, other: TaskEmbedding) -> float:
        """1 − cos(F_a / (F_a + F_b), F_b / (F_a + F_b)): symmetric, each filter counts alike.

        Filters dead in both are left out. Zero for proportional embeddings.

        >>> a = TaskEmbedding({"w": torch.tensor([1.0, 3.0])}, 1, None, "a")
        >>> b = TaskEmbedding({"w": torch.tensor([3.0, 1.0])}, 1, None, "b")
        >>> round(a.distance(b), 4)
        0.4
        """
        a, b = self.vector, self._same(other)
        total = a + b
        alive = total > 0
        return 1 - _cosine(a[alive] / total[alive], b[alive] / total[alive])

    def complexity(self) -> float:
        """The distance from the trivial task, for which every filter of a layer matters alike.

        The first code takes a constant for each layer, the prior of its variational estimate; here
        it is the layer's mean.
        """
        flat = {name: x.mean().expand(len(x)) for name, x in self.fisher.items()}
        return self.distance(TaskEmbedding(flat, self.samples, self.draws, "trivial"))

    def asymmetric(self, other: TaskEmbedding, *, weight: float = 0.15) -> float:
        """d(a → b) = d(a, b) − weight · d(a, trivial): a complex source transfers more widely."""
        return self.distance(other) - weight * self.complexity()

    def _same(self, other: TaskEmbedding) -> Tensor:
        for name in {**self.fisher, **other.fisher}:
            one, two = (len(x.fisher.get(name, ())) or "no" for x in (self, other))
            if one != two:
                raise MismatchError(
                    f"embeddings of different networks: {name!r} has {one} filters in one and "
                    f"{two} in the other; embed both tasks with one probe network"
                )
        return torch.cat([other.fisher[name] for name in self.fisher])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file; it appears whole or not at all."""
        own = {"samples": self.samples, "draws": self.draws, "name": self.name}
        tensors = {f"{i}": tensor for i, tensor in enumerate(self.fisher.values())}
        return container.write(path, {"task2vec": own, "parameters": list(self.fisher)}, tensors)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TaskEmbedding:
        """The TaskEmbedding in a file that `save` wrote."""
        header, tensors = container.read(path)
        if "task2vec" not in header:
            raise FormatError(
                f"{path} holds no TaskEmbedding; expected a file written by TaskEmbedding.save"
            )
        try:
            _check(header, tensors)
        except FormatError as error:
            raise FormatError(
                f"{path} is not a valid TaskEmbedding: {error}; embed the task again"
            ) from error
        fisher = {name: tensors[str(i)] for i, name in enumerate(header["parameters"])}
        return TaskEmbedding(fisher, **header["task2vec"])


_HEADER = {"task2vec": schema.MAPPING, "parameters": schema.list_of(schema.TEXT, 1)}
_OWN = {"samples": schema.ONE, "draws": schema.or_null(schema.ONE), "name": schema.TEXT}


def _check(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """An error that names what a file lacks of being a TaskEmbedding."""
    schema.check_part("", header, _HEADER)
    schema.check_part("task2vec", header["task2vec"], _OWN, closed=True)
    names = header["parameters"]
    if len(set(names)) < len(names) or set(tensors) != {str(i) for i in range(len(names))}:
        raise FormatError(
            f"expected one tensor for each of {len(names)} parameters of different names, found "
            f"{len(tensors)} for {len(set(names))}"
        )
    for i, name in enumerate(names):
        x = tensors[str(i)]
        vector = x.ndim == 1 and len(x) > 0 and x.dtype in (torch.float32, torch.float64)
        if not vector or not bool((x.isfinite() & (x >= 0)).all()):
            raise FormatError(
                f"the Fisher information of {name!r} must be a vector of finite numbers from 0 up, "
                f"found {x.dtype} of shape {list(x.shape)}, or values that are not"
            )


def task2vec(
    model: nn.Module,
    data: Any,
    *,
    draws: int | str | None = "auto",
    head: bool = False,
    chunk: int | None = None,
    seed: int = 0,
    logits: FindLogits | None = None,
    name: str | None = None,
) -> TaskEmbedding:
    """Embed a task: the diagonal Fisher information of a network's filters on the task's data.

    Args:
        model: a classifier; run in evaluation mode and left exactly as it was.
        data: as in `record`; labels in it are not read.
        draws: labels drawn from p(y|x) for each sample; None takes the expectation over all
            classes; `"auto"` takes it up to 16 classes and draws 10 labels beyond.
        head: also the last layer with weights, which differs between tasks.
        chunk: samples whose gradients, each as large as the model, are held at once; None holds
            up to 128 of them, in 256 MiB.
        seed: of the drawn labels, which do not depend on chunk.
        logits: finds the logits in the model's output where convention does not.

    Bias: none, for any number of draws. Cost: a forward pass, and one backward for each draw (or
    class) and sample, in vectorised chunks. The first code squares the gradient of a batch's
    mean, which is smaller by about the batch size and mixes in cross terms; here each sample's
    gradient is squared.

    >>> net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> task2vec(net, torch.randn(8, 4)).vector.shape
    torch.Size([5])
    """
    seed = checked_seed(seed)
    if name is not None:
        check_words(name=name)
    if draws not in ("auto", None):
        whole_number("draws", draws, 1, also=', or None or "auto"')
    if chunk is None:
        size = sum(p.numel() for p in runnable(model).parameters())
        chunk = max(1, min(128, _FLOATS // max(1, size)))
    whole_number("chunk", chunk, 1, also=", or None")
    find = logits or find_logits
    with opened(model, data, block=chunk) as run:
        classes = _classes(find(run.outputs))
        if draws == "auto":
            draws = _DRAWS if classes > _EXACT_UP_TO else None
        labels = int(draws or 0)
        weights = _filters(run.model, run.calls, head)
        every = (*run.model.named_parameters(), *run.model.named_buffers())
        fixed = {k: v.detach() for k, v in every if k not in weights}
        per_sample = functools.partial(_squares, run.model, fixed, find)
        generator = torch.Generator().manual_seed(seed - 2**64 if seed >= 2**63 else seed)
        totals = {k: torch.zeros(len(w), dtype=torch.float64) for k, w in weights.items()}
        count = 0
        for batch, samples in run.batches(chunk):
            n = len(batch.indices)
            count += n
            u = torch.rand(n, labels, generator=generator).to(run.device or "cpu")
            squares = vmap(per_sample, (None, 0, 0))(weights, inputs_of(samples), u)
            for key, square in squares.items():
                totals[key] += square.sum(0).double().cpu()
    fisher = {key: total / count for key, total in totals.items()}
    if not all(bool(torch.isfinite(x).all()) for x in fisher.values()):
        raise DataError("NaN or Inf in the gradients; repair the data or the model")
    return TaskEmbedding(fisher, count, labels or None, name or type(run.model).__name__)


def _squares(
    model: nn.Module,
    fixed: dict[str, Tensor],
    find: FindLogits,
    weights: dict[str, Tensor],
    sample: Any,
    u: Tensor,  # (draws,) uniforms; none for the expectation over all classes
) -> dict[str, Tensor]:  # each (filters,)
    """The expected squared gradients of one sample."""

    def log_p(w: dict[str, Tensor]) -> Tensor:  # (classes,)
        batch = tree_map(lambda x: x[None], sample)
        args, kwargs = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        out = functional_call(model, (w, fixed), args, kwargs)
        return F.log_softmax(find(out)[0].float(), -1)

    values, pull = vjp(log_p, weights)[:2]
    p = values.detach().exp()
    if len(u):
        drawn = torch.searchsorted(p.cumsum(0), u * p.sum()).clamp_max(len(p) - 1)
        at, shares = F.one_hot(drawn, len(p)).to(p), torch.full_like(u, 1 / len(u))
    else:
        at, shares = torch.eye(len(p), dtype=p.dtype, device=p.device), p
    total = {key: w.new_zeros(len(w)) for key, w in weights.items()}
    for cotangent, share in zip(at, shares, strict=True):  # faster than vmap over these as well
        for key, g in pull(cotangent)[0].items():
            # a norm, unlike a mean of squares, makes no second copy of the gradient
            norms = torch.linalg.vector_norm(g.flatten(1), dim=1)  # (filters,)
            total[key] = total[key] + share * norms**2 * (len(g) / g.numel())
    return total


def _classes(z: Tensor) -> int:
    if z.ndim != 2 or z.shape[1] < 2:
        raise TargetError(
            "expected logits (samples, classes) of two or more classes, found an output of shape "
            f"{tuple(z.shape)}; pass logits=<function of the output>"
        )
    return z.shape[1]


def _filters(model: nn.Module, calls: Sequence[Call], head: bool) -> dict[str, Tensor]:
    """Weights with filters, in order of execution, the last one's left out unless asked for."""
    modules = list(dict.fromkeys(bare_name(call.module) for call in calls if call.weighted))
    if not head:
        modules = modules[:-1]
    named = modules_of(model)
    own = [(layer_of(named, plain_name(k)), k, p.detach()) for k, p in model.named_parameters()]
    out = {k: p for m in modules for layer, k, p in own if bare_name(layer) == m and p.ndim > 1}
    if away := next((k for k, p in out.items() if p.is_meta or is_spread(p)), None):
        raise LayerError(
            f"expected all weights in one place, as gradients by them are needed, found {away!r} "
            "offloaded or spread over processes; load the model without"
        )
    if not out:
        raise LayerError(
            "found no layer with weights before the head; pass head=True to embed the head itself"
        )
    return out


def _cosine(a: Tensor, b: Tensor) -> float:
    norms = a.norm() * b.norm()
    if not norms > 0:
        raise MismatchError(
            "an embedding is zero: no gradient reached any filter; check the model's output"
        )
    return float((a @ b / norms).clamp(-1, 1))
