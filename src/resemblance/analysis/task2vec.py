"""Task2Vec: a task as the Fisher information of a network's filters on its data.

F_i = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ_i)², averaged over the weights of each filter (an output
channel of a convolution, a row of a linear layer) and without the head, whose size depends on the
task. Labels are drawn from the network's own predictions and never read from the data (Achille et
al. 2019, arXiv 1902.03545).

As in that paper, tasks are comparable through one probe network whose head was fitted to each. The
embeddings of unrelated networks have no axes in common and cannot be compared.
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

from .._data.batches import batch_inputs, tree_map
from .._models.logits import Logits, LogitsReader
from .._models.run import open_pass, require_gradients, unwrap_runnable
from .._models.trace import Call, modules_by_name
from .._models.wrappers import (
    is_sharded,
    layer_of_parameter,
    strip_compile_prefix,
    strip_wrapper_prefixes,
)
from .._utils.formatting import printable
from .._utils.validation import check_integer, check_nonempty_strings, check_seed
from ..errors import DataError, FormatError, LayerError, MismatchError, TargetError
from ..representation import schema, tensor_file
from ..similarity.results import Result

_MAX_EXACT_CLASSES = 16  # classes for which the expectation over labels is taken whole
_DEFAULT_DRAWS = 10  # labels drawn a sample beyond that
_MAX_GRADIENT_FLOATS = 2**26  # of gradients held at once, unless chunk says otherwise


@dataclass(frozen=True, eq=False, repr=False)
class TaskEmbedding(Result):
    """The embedding of a task: the Fisher information of each filter of a probe network.

    `to_frame` has one row for each filter: parameter, filter (its index) and fisher.

    Attributes:
        fisher: information of each filter, by the name of its weight, in order of execution.
        samples: number of samples.
        draws: labels drawn for each sample; None if the expectation over all classes was taken.
        name: name of the task.
    """

    fisher: Mapping[str, Tensor]  # each (filters,), float64
    samples: int
    draws: int | None
    name: str

    def _text(self) -> str:
        return f"{self.name!r}, {len(self.vector)} filters, {self.samples} samples"

    def _sentences(self) -> list[str]:
        mean = f"Fisher information {self.vector.mean():.3g} on average over"
        filters = f"{len(self.vector):,} filters, from {self.samples:,} samples"
        return [f"{printable(self.name)}: {mean} {filters}."]

    def _columns(self) -> Mapping[str, Any]:
        return {
            "parameter": [name for name, x in self.fisher.items() for _ in x],
            "filter": [i for x in self.fisher.values() for i in range(len(x))],
            "fisher": self.vector.numpy(),
        }

    @property
    def vector(self) -> Tensor:  # (filters,)
        return torch.cat(list(self.fisher.values()))

    def cosine(self, other: TaskEmbedding) -> float:
        """The cosine between two embeddings; filters with much information outweigh all others.

        Args:
            other: an embedding with the same probe network.

        Returns:
            A number in [0, 1].

        Raises:
            MismatchError: if the embeddings are of different networks.
        """
        return _cosine(self.vector, self._same(other))

    def distance(self, other: TaskEmbedding) -> float:
        """The symmetric distance 1 − cos(F_a / (F_a + F_b), F_b / (F_a + F_b)).

        Each filter has the same weight; filters dead in both embeddings are skipped.

        Args:
            other: an embedding with the same probe network.

        Returns:
            A number in [0, 1]; 0 for proportional embeddings.

        Raises:
            MismatchError: if the embeddings are of different networks.

        Example:
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

        Returns:
            A distance between 0 and 1.
        """
        flat = {name: x.mean().expand(len(x)) for name, x in self.fisher.items()}
        return self.distance(TaskEmbedding(flat, self.samples, self.draws, "trivial"))

    def asymmetric(self, other: TaskEmbedding, *, weight: float = 0.15) -> float:
        """The distance d(a → b) = d(a, b) − weight · d(a, trivial).

        A complex source task transfers more widely.

        Args:
            other: the embedding of the target task, with the same probe network.
            weight: weight of the source's complexity.

        Returns:
            The distance, which can be negative.
        """
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
        """Write the embedding to a file, which appears whole or not at all.

        Args:
            path: path of the file.

        Returns:
            The path.
        """
        own = {"samples": self.samples, "draws": self.draws, "name": self.name}
        tensors = {f"{i}": tensor for i, tensor in enumerate(self.fisher.values())}
        return tensor_file.write_tensors(
            path, {"task2vec": own, "parameters": list(self.fisher)}, tensors
        )

    @staticmethod
    def load(path: str | os.PathLike[str]) -> TaskEmbedding:
        """Read an embedding from a file that `save` wrote.

        Args:
            path: path of the file.

        Returns:
            The embedding.

        Raises:
            FormatError: if the file is missing, damaged, or holds anything else.
        """
        header, tensors = tensor_file.read_tensors(path)
        if "task2vec" not in header:
            raise FormatError(
                f"{path} holds no TaskEmbedding; expected a file written by TaskEmbedding.save"
            )
        try:
            _validate_header(header, tensors)
        except FormatError as error:
            raise FormatError(
                f"{path} is not a valid TaskEmbedding: {error}; embed the task again"
            ) from error
        fisher = {name: tensors[str(i)] for i, name in enumerate(header["parameters"])}
        return TaskEmbedding(fisher, **header["task2vec"])


def _validate_header(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """An error that names what a file lacks of being a TaskEmbedding."""
    schema.check_part(
        "", header, {"task2vec": schema.MAPPING, "parameters": schema.list_of(schema.TEXT, 1)}
    )
    schema.check_part(
        "task2vec",
        header["task2vec"],
        {"samples": schema.ONE, "draws": schema.or_null(schema.ONE), "name": schema.TEXT},
        closed=True,
    )
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
    logits: Logits = "auto",
    name: str | None = None,
) -> TaskEmbedding:
    """Embed a task: the diagonal Fisher information of a network's filters on the task's data.

    Bias: none, for any number of draws. Cost: a forward pass, and one backward pass for each draw
    (or class) and sample, in vectorised chunks. The first published code squares the gradient of a
    batch's mean, which is smaller by about the batch size and mixes in cross terms; here each
    sample's gradient is squared.

    Args:
        model: a classifier, run in evaluation mode and left exactly as it was.
        data: anything that `record` takes; labels in it are not read.
        draws: labels drawn from p(y|x) for each sample. None takes the expectation over all
            classes; `"auto"` takes it up to 16 classes and draws 10 labels beyond.
        head: whether to include the last layer with weights, which differs between tasks.
        chunk: number of samples whose gradients, each as large as the model, are held at once; None
            holds up to 128, in 256 MiB.
        seed: seed of the drawn labels, which do not depend on `chunk`.
        logits: what the model's outputs are, as in `record`. Labels of a multi-label network are
            drawn independently of each other.
        name: name of the task; None takes the name of the model's class.

    Returns:
        The Fisher information of each filter.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> task2vec(net, torch.randn(8, 4)).vector.shape
        torch.Size([5])
    """
    seed = check_seed(seed)
    if name is not None:
        check_nonempty_strings(name=name)
    if draws not in ("auto", None):
        check_integer("draws", draws, 1, also=', or None or "auto"')
    if chunk is None:
        size = sum(p.numel() for p in unwrap_runnable(model).parameters())
        chunk = max(1, min(128, _MAX_GRADIENT_FLOATS // max(1, size)))
    check_integer("chunk", chunk, 1, also=", or None")
    reader = LogitsReader(logits)
    with open_pass(model, data, block=chunk) as run:
        require_gradients(run.model)
        run.predictions(reader, needed=True, watched=False)
        _, positions, classes = reader(run.outputs).shape
        if positions > 1:
            raise TargetError(
                f"expected logits (samples, classes), found predictions for {positions} tokens or "
                "pixels of each sample; pass `logits=<function of the output>` that selects one"
            )
        if draws == "auto":
            draws = _DEFAULT_DRAWS if classes > _MAX_EXACT_CLASSES else None
        labels = int(draws or 0)
        uniforms = (labels, classes) if reader.independent else (labels,)  # of each sample
        weights = _filter_weights(run.model, run.calls, head)
        every = (*run.model.named_parameters(), *run.model.named_buffers())
        fixed = {k: v.detach() for k, v in every if k not in weights}
        per_sample = functools.partial(_squared_gradients, run.model, fixed, reader)
        generator = torch.Generator().manual_seed(seed - 2**64 if seed >= 2**63 else seed)
        totals = {k: torch.zeros(len(w), dtype=torch.float64) for k, w in weights.items()}
        count = 0
        for batch, samples in run.batches(chunk):
            n = len(batch.indices)
            count += n
            u = torch.rand(n, *uniforms, generator=generator, dtype=torch.float32).to(
                run.device or "cpu"
            )
            squares = vmap(per_sample, (None, 0, 0))(weights, batch_inputs(samples), u)
            for key, square in squares.items():
                totals[key] += square.sum(0).double().cpu()
    fisher = {key: total / count for key, total in totals.items()}
    if not all(bool(torch.isfinite(x).all()) for x in fisher.values()):
        raise DataError("NaN or Inf in the gradients; repair the data or the model")
    return TaskEmbedding(fisher, count, labels or None, name or type(run.model).__name__)


def _squared_gradients(
    model: nn.Module,
    fixed: dict[str, Tensor],
    reader: LogitsReader,
    weights: dict[str, Tensor],
    sample: Any,
    u: Tensor,  # (draws,) uniforms, or (draws, labels); none for the expectation over all
) -> dict[str, Tensor]:  # each (filters,)
    """The expected squared gradients of one sample."""

    def scores(w: dict[str, Tensor]) -> Tensor:  # (classes,) log p, or (labels,) logits
        batch = tree_map(lambda x: x[None], sample)
        args, kwargs = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        out = functional_call(model, (w, fixed), args, kwargs)
        z = reader(out)[0, 0].float()
        return z if reader.independent else F.log_softmax(z, -1)

    values, pull = vjp(scores, weights)[:2]
    p = values.detach().sigmoid() if reader.independent else values.detach().exp()
    if reader.independent and len(u):  # at the logits, log p(y) has the gradient y − p
        at, shares = (u < p).to(p) - p, torch.full_like(u[:, 0], 1 / len(u))
    elif reader.independent:  # gradients of the labels' terms are independent, with mean zero
        at, shares = torch.eye(len(p), dtype=p.dtype, device=p.device), p * (1 - p)
    elif len(u):
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


def _filter_weights(model: nn.Module, calls: Sequence[Call], head: bool) -> dict[str, Tensor]:
    """Weights with filters, in order of execution, the last one's left out unless asked for."""
    modules = list(
        dict.fromkeys(strip_wrapper_prefixes(call.module) for call in calls if call.weighted)
    )
    if not head:
        modules = modules[:-1]
    named = modules_by_name(model)
    own = [
        (layer_of_parameter(named, strip_compile_prefix(k)), k, p.detach())
        for k, p in model.named_parameters()
    ]
    out = {
        k: p
        for m in modules
        for layer, k, p in own
        if strip_wrapper_prefixes(layer) == m and p.ndim > 1
    }
    if away := next((k for k, p in out.items() if p.is_meta or is_sharded(p)), None):
        raise LayerError(
            f"expected all weights in one place, as gradients by them are needed, found {away!r} "
            "offloaded or spread over processes; load the model without"
        )
    if not out:
        raise LayerError(
            "found no layer with weights before the head; pass `head=True` to embed the head itself"
        )
    return out


def _cosine(a: Tensor, b: Tensor) -> float:
    norms = a.norm() * b.norm()
    if not norms > 0:
        raise MismatchError(
            "an embedding is zero: no gradient reached any filter; check the model's output"
        )
    return float((a @ b / norms).clamp(-1, 1))
