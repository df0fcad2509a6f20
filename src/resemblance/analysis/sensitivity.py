"""Which blocks of a copy cost its accuracy, and which to keep in full precision (`sensitivity`).

For each block l two networks are run: the base with the copy's block l, and the copy with the
base's block l. With v(S) the divergence of the base's outputs from those of the base with the
copy's blocks S, the *own effect* is v({l}) and the *gain* of restoring it is v(all) − v(all − {l}).
Their mean is the block's contribution; if blocks interact in pairs at most, it is the block's
Shapley value, and contributions add up to v(all) exactly. Blocks are ranked by it, and a network
that keeps the first of them in full precision is run to verify what that brings.

Outputs are compared batch by batch and not stored, so memory does not grow with the number of
samples or blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._data.batches import (
    attention_mask,
    batch_to_device,
    num_samples,
    real_token_mask,
    take_samples,
)
from .._models.checks import copy_batch
from .._models.exchange import BlockExchange, Groups, choose_blocks
from .._models.layer_outputs import floating_tensors
from .._models.logits import Logits, LogitsReader
from .._models.run import ModelPass, open_pass, require_gradients
from .._utils.formatting import format_quantity, join_error, join_names, printable
from .._utils.progress import progress_bar
from .._utils.validation import check_integer, check_nonempty_strings, check_seed
from ..errors import DataError, LayerError, MismatchError
from ..representation.notes import MIN_SAMPLES, Note, make_note
from ..representation.schema import COUNT, NOTES, ONE, REAL, TEXT, list_of, one_of, or_null
from ..similarity.agreement import js_of_rows, kl_of_rows
from ..similarity.results import Plotted, Shape, StoredResult, count_samples

Measure = Literal["kl", "js", "disagreement", "distance"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
_ROWS = {"cpu": 2**20, "cuda": 2**25}  # outputs that are widened to float32 at a time
_KEPT = 3  # blocks of the list, unless the caller says otherwise
_MIN_ERRORS = 3.0  # standard errors beyond which an effect is not noise
_ALONE = 2.0  # times the whole effect, beyond which a block cannot be judged alone
_WORDS = {
    "kl": "KL(base‖copy), in nats",
    "js": "Jensen-Shannon divergence, in nats",
    "disagreement": "share of predictions that differ",
    "distance": "squared distance of outputs, relative to the base's",
}
_COLUMNS = ("own", "own_stderr", "gain", "gain_stderr")


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Plotted, StoredResult):
    """What each block of a copy contributes to the change of its outputs.

    Standard errors are those of other samples of the same source; where a sample is a sequence,
    those of other sequences. `to_frame` has one row for each block, in order of execution: own and
    gain with their `_stderr`, contribution, and whether the block is among the spared.

    Attributes:
        models: names of the base and of the copy.
        measure: how outputs are compared: kl, js, disagreement, or distance, which is
            ‖a − b‖² / ‖a‖² of outputs that are not logits.
        samples: number of samples, or of sequences.
        predictions: number of predictions compared: more than samples where each token has one.
        blocks: the blocks that were exchanged, in order of execution.
        own: effect of each block alone: the base with this block of the copy.
        own_stderr: standard errors of the own effects.
        gain: what restoring each block gains: the copy less the copy with this block of the base.
        gain_stderr: standard errors of the gains.
        whole: effect of the whole copy.
        whole_stderr: standard error of the whole effect.
        spared: blocks to keep in full precision, the one that contributes most first.
        remaining: effect of the copy with the spared blocks restored, measured by running it.
        remaining_stderr: standard error of the remaining effect.
        target: the effect asked for; None if a number of blocks was.
        unchanged: blocks that are the same in both, bit for bit, and were not run.
        excluded: blocks that could not be exchanged, each with the reason.
        passes: forward passes over the samples, of all networks together.
        notes: remarks that the summary repeats.
    """

    models: tuple[str, str]
    measure: Measure
    samples: int
    predictions: int
    blocks: tuple[str, ...]
    own: np.ndarray  # (blocks,)
    own_stderr: np.ndarray
    gain: np.ndarray
    gain_stderr: np.ndarray
    whole: float
    whole_stderr: float
    spared: tuple[str, ...]
    remaining: float
    remaining_stderr: float
    target: float | None
    unchanged: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    passes: int
    notes: tuple[Note, ...] = ()

    _kind = "sensitivity"
    _index = "block"
    _also = ("contribution", "lists")
    _rules: ClassVar = {
        "models": list_of(TEXT, 2, 2),
        "measure": one_of(*MEASURES),
        "samples": COUNT,
        "predictions": COUNT,
        "blocks": list_of(TEXT, 1),
        **dict.fromkeys(_COLUMNS, list_of(or_null(REAL))),
        **dict.fromkeys(("whole", "remaining"), REAL),
        **dict.fromkeys(("whole_stderr", "remaining_stderr"), or_null(REAL)),
        "spared": list_of(TEXT),
        "target": or_null(REAL),
        "unchanged": list_of(TEXT),
        "excluded": list_of(list_of(TEXT, 2, 2)),
        "passes": ONE,
        "notes": NOTES,
    }

    @classmethod
    def _shapes(cls, content: Mapping[str, Any]) -> Mapping[str, Shape]:
        return dict.fromkeys(_COLUMNS, (len(content["blocks"]),))

    @property
    def contribution(self) -> np.ndarray:  # (blocks,)
        """The mean of own effect and gain, by which blocks are ranked."""
        mean: np.ndarray = (self.own + self.gain) / 2
        return mean

    @property
    def words(self) -> str:
        """What is measured, in words."""
        return _WORDS[self.measure]

    @property
    def lists(self) -> Mapping[str, Any]:
        """The spared blocks as other tools take them.

        `names` are those of modules. `regex` matches these names and those of all modules inside.
        `llm-compressor` is the `ignore` of a recipe. `onnxruntime` is an expression for
        `nodes_to_exclude`, given the graph of the loaded ONNX model as `graph`. Nodes are named for
        modules by `torch.onnx.export(..., dynamo=False)`, and not by its other exporter nor inside
        of a ModuleDict.
        """
        names = [re.escape(name) for name in self.spared]
        paths = tuple(path for name in self.spared for path in onnx_paths(name))
        return {
            "names": list(self.spared),
            "regex": f"^({'|'.join(names)})(\\.|$)" if names else "",
            "llm-compressor": [f"re:^{name}(\\.|$)" for name in names],
            "onnxruntime": f"[n.name for n in graph.node if n.name.startswith({paths!r})]",
        }

    def _text(self) -> str:
        whole = join_error(format_quantity(self.whole, self.whole_stderr))
        return f"{self.models[1]!r}, {len(self.blocks)} blocks, {self.measure} {whole}"

    def _sentences(self) -> Iterator[str]:
        base, copy = map(printable, self.models)
        count = count_samples(self.samples, None)
        if self.predictions != self.samples:
            count = count_samples(self.predictions, self.samples)
        yield (
            f"{copy} as a copy of {base}: {self.words}, is "
            f"{_number(self.whole, self.whole_stderr)} on {count}. Summed over {len(self.blocks)} "
            f"blocks: effect alone {np.nansum(self.own):.3g}, gain if restored "
            f"{np.nansum(self.gain):.3g}, contribution {np.nansum(self.contribution):.3g}."
        )
        if self.spared:
            yield (
                f"Keep {join_names(self.spared, len(self.spared))} in full precision: the copy "
                f"with {'this block' if len(self.spared) == 1 else 'these blocks'} restored was "
                "run on the same samples; the remaining effect is "
                f"{_number(self.remaining, self.remaining_stderr)}."
            )
        if self.target is not None:
            reached = self.remaining <= self.target
            yield f"The target of {self.target:g} is {'reached' if reached else 'not reached'}."
        if self.unchanged:
            yield f"Identical in both: {join_names(self.unchanged)}."
        for name, why in self.excluded:
            yield f"Not exchanged: {printable(name)} ({printable(why)})."

    def _columns(self) -> Mapping[str, Any]:
        return {
            "block": self.blocks,
            **{name: getattr(self, name) for name in _COLUMNS},
            "contribution": self.contribution,
            "spared": [name in self.spared for name in self.blocks],
        }


def _number(value: float, error: float) -> str:
    return join_error(format_quantity(value, error))


def onnx_paths(name: str) -> list[str]:
    """How the nodes of a module may begin in a graph that torch exported by tracing.

    A Sequential is a scope of its own, a ModuleList is not; names do not show which it is.

    >>> onnx_paths("fc"), onnx_paths("layer1.0.conv1")
    (['/fc/'], ['/layer1/layer1.0/conv1/', '/layer1.0/conv1/'])
    """
    scopes: list[list[str]] = [[]]
    for part in name.split("."):
        if part.isdigit() and scopes[0]:
            inside = [(each, f"{each[-1]}.{part}") for each in scopes]
            scopes = [[*each, scope] for each, scope in inside]
            scopes += [[*each[:-1], scope] for each, scope in inside]
        else:
            scopes = [[*each, part] for each in scopes]
    return [f"/{'/'.join(each)}/" for each in scopes]


def sensitivity(
    base: nn.Module,
    copy: nn.Module,
    data: Any,
    *,
    groups: Groups = "auto",
    measure: Measure | Literal["auto"] = "auto",
    samples: int = 256,
    keep: int | None = None,
    target: float | None = None,
    logits: Logits = "auto",
    batch_size: int = 32,
    seed: int = 0,
    names: tuple[str, str] = ("base", "copy"),
    progress: bool | None = False,
) -> Sensitivity:
    """Which blocks of a copy change its outputs most, and which to keep in full precision.

    The copy may be quantised, pruned, tuned, merged, or have adapters: all that is needed is that
    its blocks go by the base's names and can stand in their place. Both models are left as they
    were, and may be on different devices. Blocks whose weights are equal are not run.

    Cost: 2 L + 2 forward passes over the samples for L blocks that differ, and two more for each
    list that is verified: one list for `keep`, about log₂ L for `target`. Memory: both models and
    the outputs of two networks on one batch.

    Args:
        base: the original network.
        copy: the copy of it, with blocks of the same names.
        data: anything that `record` takes; labels in it are not read.
        groups: the blocks: `"auto"` for the repeated blocks and what stands beside them (for a
            network without, its layers), or names and patterns of modules as `layers` of `record`
            takes them.
        measure: `"kl"` (of base and copy), `"js"`, `"disagreement"` (the share of predictions that
            differ) or `"distance"` (of outputs that are not logits); `"auto"` takes kl where the
            outputs are logits and distance where not.
        samples: number of samples to run, drawn from the data with the seed.
        keep: number of blocks to keep in full precision; default: 3, unless there is a target.
        target: largest effect that may remain; the shortest list in order of contribution that
            reaches it is searched for.
        logits: what the models' outputs are, as in `record`.
        batch_size: samples per forward pass; results do not depend on it beyond round-off.
        seed: seed of the order in which samples are drawn.
        names: names of base and copy in the result.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        Effects and gains of all blocks with their standard errors, and the list with what it was
        measured to bring.

    Raises:
        LayerError: if no block can be exchanged.
        MismatchError: if the outputs of the two differ in shape.
        DataError: if an option is out of its range, or outputs are not finite.

    Example:
        >>> import copy, torch, resemblance as rs
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> rough = copy.deepcopy(net)
        >>> rough[0].weight.data = rough[0].weight.data.round(decimals=1)
        >>> found = rs.sensitivity(net, rough, torch.randn(64, 4), keep=1)
        >>> found.spared, found.remaining, found.unchanged
        (('0',), 0.0, ('2',))
    """
    check_seed(seed)
    for name, value in (("samples", samples), ("batch_size", batch_size)):
        check_integer(name, value, 1)
    check_nonempty_strings(base=names[0], copy=names[1])
    if measure != "auto" and measure not in MEASURES:
        raise DataError(f"`measure` must be auto, {', '.join(MEASURES)}; found {measure!r}")
    if keep is not None and target is not None:
        raise DataError("pass either `keep` or `target`, not both")
    if keep is not None:
        check_integer("keep", keep)
    if target is not None and not 0 <= target < np.inf:
        raise DataError(f"`target` must be a number, 0 or more; found {target!r}")
    with open_pass(base, data, seed=seed, frozen=False, dtype=_weight_dtype(base)) as one:
        require_gradients(one.model)  # a network that PyTorch runs
        batches = _first_batches(one, samples, batch_size)
        part = [batches[0]]
        with open_pass(copy, part, frozen=False, dtype=_weight_dtype(copy)) as two:
            require_gradients(two.model)
            reader = LogitsReader(logits)
            wanted = measure != "distance" and one.predictions(
                reader, needed=measure != "auto", watched=False
            )
            if measure == "auto":
                measure = "kl" if wanted else "distance"
            blocks = choose_blocks(one.model, groups, one.calls)
            exchange = BlockExchange(one.model, two.model, blocks)
            runs = _Runs(
                one, two, exchange, OutputComparison(reader if wanted else None, measure), batches
            )
            with torch.inference_mode(False), torch.no_grad():
                return _measured(runs, keep, target, names, progress)


def _weight_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype to cast inputs to, where that is narrower than float32; None to leave them."""
    dtypes = {p.dtype for p in getattr(model, "parameters", list)() if p.is_floating_point()}
    narrow = dtypes & {torch.bfloat16, torch.float16}
    return narrow.pop() if len(dtypes) == 1 and narrow else None


def _first_batches(run: ModelPass, samples: int, batch_size: int) -> list[Any]:
    """So many samples in their seeded order, in batches on the host or where the data are."""
    found: list[Any] = []
    for batch in run.source.batches(batch_size, run.share):
        some = run.prepare(batch).samples
        found.append(take_samples(some, slice(0, samples)))
        samples -= num_samples(found[-1])
        if samples <= 0:
            break
    return found


@dataclass
class _Runs:
    """Networks with exchanged blocks, run on all batches beside the base."""

    one: ModelPass
    two: ModelPass
    exchange: BlockExchange
    outputs: OutputComparison
    batches: Sequence[Any]
    passes: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0))  # predictions of each sample

    def forward(self, of: ModelPass, samples: Any) -> Any:
        return of.run(of.model, batch_to_device(copy_batch(samples), of.device))

    def run(self, of: ModelPass, samples: Any) -> Tensor:
        try:
            return self.outputs.read(samples, self.forward(of, samples))
        except torch.OutOfMemoryError as error:
            raise DataError("the device ran out of memory; pass a smaller `batch_size`") from error

    def effects(
        self, networks: Sequence[tuple[ModelPass, Iterable[str]]], advance: Callable[[int], None]
    ) -> np.ndarray:  # (networks, samples)
        """The sum over each sample's predictions, of networks given as one model and the blocks
        of the other that are put into it."""
        found, counts = [], []
        for samples in self.batches:
            base, rows = self.run(self.one, samples), []
            for of, names in networks:
                with self.exchange.inserted(names, of.model):
                    sums, count = self.outputs.sums(samples, base, self.run(of, samples))
                rows.append(sums)
                advance(num_samples(samples))
            found.append(torch.stack(rows))
            counts.append(count)
        self.passes += 1 + len(networks)
        self.counts = torch.cat(counts).numpy()
        return torch.cat(found, 1).numpy()

    def mean(self, sums: np.ndarray) -> tuple[float, float]:
        return mean_of_predictions(sums, self.counts)


def _measured(
    runs: _Runs,
    keep: int | None,
    target: float | None,
    names: tuple[str, str],
    progress: bool | None,
) -> Sensitivity:
    """Effects of all blocks, and a list that was verified."""
    exchange, one, two = runs.exchange, runs.one, runs.two
    for run in (one, two):
        run.determinism.check()
    unchanged = tuple(name for name in exchange.names if exchange.unchanged(name))
    tied = exchange.shared_weights()
    few = take_samples(runs.batches[0], slice(0, 2))
    exchange.try_each(lambda model: runs.forward(one if model is one.model else two, few))
    blocks = [name for name in exchange.names if name not in unchanged]
    if not blocks:
        reasons = "".join(f"; {name}: {why}" for name, why in exchange.excluded.items())
        raise LayerError(
            f"found no blocks that differ between base and copy and can be exchanged{reasons}. "
            "Pass blocks that differ as `groups`"
        )
    networks: list[tuple[ModelPass, Iterable[str]]] = [(two, ())]
    networks += [(one, [name]) for name in blocks] + [(two, [name]) for name in blocks]
    total = sum(map(num_samples, runs.batches)) * len(networks)
    with progress_bar(progress, total, "sensitivity") as advance:
        sums = runs.effects(networks, advance)
    if not np.isfinite(sums[0]).all():
        raise DataError(
            "outputs of the base or of the copy are NaN, or infinitely far apart; repair the model "
            'or the samples, or pass `measure="disagreement"`'
        )
    own, restored = sums[1 : len(blocks) + 1], sums[len(blocks) + 1 :]
    table = np.array(
        [(*runs.mean(x), *runs.mean(sums[0] - y)) for x, y in zip(own, restored, strict=True)]
    )
    whole, whole_error = runs.mean(sums[0])
    order = np.argsort(-np.nan_to_num(table[:, 0] + table[:, 2], nan=-np.inf), kind="stable")
    ranked = [blocks[i] for i in order]

    def verified(count: int) -> tuple[float, float]:
        if not count:
            return whole, whole_error
        return runs.mean(runs.effects([(two, ranked[:count])], lambda _: None)[0])

    count, remaining = _chosen(len(ranked), keep, target, verified)
    notes = _notes(runs, blocks, table, whole, whole_error, tied)
    return Sensitivity(
        models=names,
        measure=runs.outputs.measure,
        samples=len(runs.counts),
        predictions=int(runs.counts.sum()),
        blocks=tuple(blocks),
        **dict(zip(_COLUMNS, table.T, strict=True)),
        whole=whole,
        whole_stderr=whole_error,
        spared=tuple(ranked[:count]),
        remaining=remaining[0],
        remaining_stderr=remaining[1],
        target=target,
        unchanged=unchanged,
        excluded=tuple(exchange.excluded.items()),
        passes=runs.passes,
        notes=tuple(notes),
    )


def _chosen(
    blocks: int,
    keep: int | None,
    target: float | None,
    verified: Callable[[int], tuple[float, float]],
) -> tuple[int, tuple[float, float]]:
    """How many blocks to spare, in order of contribution, and the effect that was measured then."""
    if target is None:
        count = min(_KEPT if keep is None else keep, blocks)
        return count, verified(count)
    low, high = 0, blocks  # the shortest list that reaches the target is longer than `low`
    best = verified(0)
    if best[0] <= target:
        return 0, best
    best = verified(blocks)
    while high - low > 1 and best[0] <= target:
        middle = (low + high) // 2
        if (found := verified(middle))[0] <= target:
            high, best = middle, found
        else:
            low = middle
    return high, best


def _notes(
    runs: _Runs,
    blocks: Sequence[str],
    table: np.ndarray,
    whole: float,
    whole_error: float,
    tied: Sequence[str],
) -> Iterator[Note]:
    count = len(runs.counts)
    if count < MIN_SAMPLES:
        yield make_note("few-samples", samples=count, unit="sample")
    if outside := runs.exchange.weights_outside():
        yield make_note("weights-outside", weights=join_names(outside))
    if tied:
        yield make_note("shared-weights", weights=join_names(tied))
    limit = _ALONE * (whole + _MIN_ERRORS * whole_error)
    alone = [name for name, row in zip(blocks, table, strict=True) if not row[0] <= limit]
    if alone:
        yield make_note("not-alone", blocks=join_names(alone), times=_ALONE)


# -- what two networks return --


@dataclass(frozen=True)
class OutputComparison:
    """How outputs of two networks are read and compared."""

    reader: LogitsReader | None  # None: they are no logits
    measure: Measure

    def read(self, samples: Any, outputs: Any) -> Tensor:  # (n, positions, classes or width)
        if self.reader is not None:
            return self.reader(outputs)
        n, mask = num_samples(samples), attention_mask(samples)
        found = next((x for x in floating_tensors(outputs) if x.shape[:1] == (n,)), None)
        if found is None:
            raise LayerError(
                "expected outputs with one row for each sample; found none. Pass `logits=<function "
                "of the output>` if there are predictions among them"
            )
        tokens = mask is not None and found.ndim == 3 and mask.shape == found.shape[:2]
        return found if tokens else found.reshape(n, 1, -1)

    def sums(self, samples: Any, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        """The measure of each sample, summed over its predictions, and how many those are."""
        if one.shape != two.shape:
            raise MismatchError(
                f"expected outputs of one shape, found {tuple(one.shape)} of the base and "
                f"{tuple(two.shape)} with blocks of the copy; compare networks of the same classes"
            )
        counted = real_token_mask(samples, one.shape[:2], one.device)
        step = max(1, _ROWS.get(one.device.type, _ROWS["cpu"]) // one.shape[-1])
        rows = zip(
            one.flatten(0, 1).split(step), two.to(one.device).flatten(0, 1).split(step), strict=True
        )
        independent = self.reader is not None and self.reader.independent
        each = torch.cat([divergence_of_rows(a, b, self.measure, independent) for a, b in rows])
        each = torch.where(counted, each.view(counted.shape), 0)
        return each.double().sum(1).cpu(), counted.sum(1).double().cpu()


def divergence_of_rows(a: Tensor, b: Tensor, measure: Measure, independent: bool) -> Tensor:
    """The measure of each row of logits (rows, classes), or of outputs for `"distance"`.

    Args:
        a: outputs of the base.
        b: outputs of the network that is compared with it.
        measure: kl, js, disagreement or distance.
        independent: whether logits are those of labels that are predicted independently.
    """
    a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a, b))
    if measure == "distance":
        return (a - b).square().sum(-1) / a.square().sum(-1)
    if measure == "disagreement":
        if independent:
            return ((a > 0) != (b > 0)).any(-1).to(a.dtype)
        nan = a.isnan().any(-1) | b.isnan().any(-1)
        return torch.where(nan, torch.nan, (a.argmax(-1) != b.argmax(-1)).to(a.dtype))
    if independent:
        log_p, log_q = (F.logsigmoid(torch.cat([x, -x], -1)) for x in (a, b))
    else:
        log_p, log_q = (F.log_softmax(x, -1) for x in (a, b))
    return (kl_of_rows if measure == "kl" else js_of_rows)(log_p, log_q)


def mean_of_predictions(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The mean over all predictions, and its standard error over samples.

    The mean is the ratio of two sums over samples, and the error that of the ratio, to first order.

    Args:
        sums: the sum over each sample's predictions.
        counts: the number of predictions of each sample.
    """
    total, n = counts.sum(), len(sums)
    value = sums.sum() / total
    off = sums - value * counts
    error = np.sqrt(n / (n - 1) * (off**2).sum()) / total if n > 1 else np.nan
    return float(value), float(error)
