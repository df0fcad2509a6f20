"""One pass as `record` was asked for it: the model opened, its layers chosen, all batches fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import nn

from .._data.batches import is_padded, leaves
from .._data.sample_hashes import SampleReader, What, of_texts
from .._data.tokenizer_facts import TokenizerFacts
from .._model import pooling
from .._model.layer_choice import Tap, select
from .._model.losses import FindLogits, Objective
from .._model.model_pass import ModelPass, RunModel, Watch, opened
from .._model.weight_hash import both, of_weights
from ..errors import warn
from ..representation.provenance import DataInfo, Made, ModelInfo, Order
from ..representation.representation import Representation
from ..representation.settings import Settings
from .jobs import Job
from .kept_outputs import KeptOutputs, logits_of
from .options import Keep
from .pass_sums import Handling, PassSums
from .sampling_unit import Sampled, predicts_tokens
from .segments import Segments

_SORTED = 0.02  # of the variance between blocks: a stream above this is warned about
_APART = 0.01  # of the variance between the blocks that are kept and later ones: as well


@dataclass(frozen=True)
class OnePass:
    """What to record; see `record` for what each option means."""

    model: nn.Module
    data: Any
    layers: str | Sequence[str]
    sampled: Sampled
    unit_named: bool  # whether the caller said what a sample is
    tokenizer: TokenizerFacts | None
    objective: Objective | None  # None: features alone
    beta: float
    keep: Keep
    how: Handling
    logits: FindLogits | None
    outputs: bool
    outputs_of: Representation | None
    batch_size: int | Literal["auto"]
    call: RunModel | None
    compile: bool
    name: str
    progress: bool | None
    job: Job

    def settings(self, block: int | Literal["auto"]) -> Settings:
        """With so many samples in a block; an error where options do not fit together."""
        aim = "none" if self.objective is None else self.objective.name
        return self.keep.settings(block, pooling.check(self.how.pool), aim, self.beta)

    def recorded(self) -> Representation | None:
        """What this process recorded; None if there was no block for it."""
        with opened(
            self.model,
            self.data,
            seed=self.keep.seed,
            block=self.keep.block,
            call=self.call,
            frozen=self.objective is not None,
            draw=self.sampled.draw,
        ) as run:
            self.job.check(run.model)
            taps, unseen = self.sampled.seen(run.model, select(run.model, self.layers, run.calls))
            if self.keep.tokens is None and self.how.pool == "flatten":
                self._warn_of_sequences(run)
            segments, run, find = self._begun(run, taps)
            dropped = run.feed(
                taps,
                segments,
                self.objective,
                batch_size=self.batch_size,
                deterministic=self.how.deterministic,
                progress=self.progress,
                what=f"recording {self.name}",
                may_drop=self.layers == "auto",
                watch=None if find is None else Watch(find, segments.see),
                compile=self.compile,
            )
            segments.finish()
        unseen += [taps[i].name for i in sorted(dropped)]
        if unseen:
            warn(_WITHOUT_POSITIONS.format(", ".join(unseen)))
        order, shared = segments.sums.order, self.keep.share[1] * self.job.process[1]
        if order is not None and (share := order.share_between()) > _SORTED:
            warn(_SORTED_STREAM.format(share, taps[-1].name))
        elif (
            order is not None and (share := order.share_apart(self.keep.blocks // shared)) > _APART
        ):
            warn(_FIRST_APART.format(share, taps[-1].name))
        return segments.result()

    def _begun(
        self, run: ModelPass, taps: Sequence[Tap]
    ) -> tuple[Segments, ModelPass, FindLogits | None]:
        """What is to see the pass, the pass over this process's share, and how to find logits."""
        settings, names = self.settings(run.source.block), [tap.name for tap in taps]
        last = frozenset(tap.name for tap in taps if tap.channels_last)
        how = replace(
            self.how,
            watch_order=not run.source.ordered,
            keyed=run.source.keyed,
            channels_last=last,
        )
        few = self.keep.few(run.source.total, run.source.block)
        device = run.device or _device_of(run.trial.samples)
        find = logits_of(run, self.logits) if self.outputs else None
        facts = _Facts(self, run)

        def begun() -> PassSums:
            kept = KeptOutputs(self.outputs_of, causal=self.sampled.causal) if find else None
            return PassSums(settings, names, how, device, few=few, outputs=kept)

        key = partial(facts.key, settings, names)
        share, files, before = self.job.share(run.source, key, whole=few > 0)
        segments = Segments(begun, facts.of, files, before, self.job.every)
        return segments, replace(run, share=share), find

    def _warn_of_sequences(self, run: ModelPass) -> None:
        if not self.unit_named and predicts_tokens(run.trial.samples, run.outputs):
            warn(_POSITIONS)
        elif is_padded(run.trial.samples):
            warn(_PADDED)


@dataclass(frozen=True)
class _Facts:
    """Where what a pass records comes from."""

    asked: OnePass
    run: ModelPass

    @cached_property
    def weights(self) -> Callable[[], tuple[str, str]]:
        """Hashes of some and of all, which a GPU may still be at."""
        return both(self.run.model)

    @cached_property
    def model(self) -> ModelInfo:
        known = self.asked.tokenizer
        of_some, of_all = self.weights()
        return ModelInfo(
            self.asked.name,
            of_some,
            sum(p.numel() for p in self.run.model.parameters()),
            weights=of_all,
            tokenizer=None if known is None else known.hash,
        )

    @property
    def data(self) -> DataInfo:
        source, keep = self.run.source, self.asked.keep
        order: Order = "seeded" if source.ordered else "keyed" if source.keyed else "stream"
        named, first = self.asked.how.data_id, None
        if named is None and source.ordered and keep.share[1] > 1:
            first = of_texts(self._first("content", "labels"))
        return DataInfo(named, source.total, order, (keep.share,), first=first)

    def _first(self, *whats: What) -> list[str]:
        """Hashes of the first samples of the data, which every process and shard looks at."""
        reader = SampleReader()
        read = reader.hashing([reader.read(self.run.source.first, known=False)])
        found = [read.hashes(what) for what in whats]
        return [f"{int(value):016x}" for of in found if of is not None for value in of]

    @property
    def made(self) -> Made:
        weight = next(self.run.model.parameters(), None)
        return Made.now(
            dtype="none" if weight is None else str(weight.dtype),
            autocast=_autocast(self.run.device),
            device=str(self.run.device or "cpu"),
        )

    def of(self, sums: PassSums) -> Representation:
        keep_sums = self.asked.keep.sums or self.asked.job.joins
        _ = self.weights  # begun before a GPU is waited for
        sums.settle()
        return sums.result(model=self.model, data=self.data, made=self.made, keep_sums=keep_sums)

    def key(self, settings: Settings, layers: Sequence[str]) -> dict[str, Any]:
        """What passes must have in common for one to go on where the other ended."""
        return {
            **{f"setting {name}": value for name, value in asdict(settings).items()},
            "layers": list(layers),
            "model weights": of_weights(self.run.model),
            "dtype": self.made.dtype,
            "autocast": self.made.autocast,
            "data_id": self.data.id,
            "samples in all": self.data.total,
            "order": self.data.order,
            "shard": list(self.asked.keep.share),
            "first samples": self._first("content"),
            "outputs": self.asked.outputs,
        }


_WITHOUT_POSITIONS = "left out, as they have no row for each position that is recorded: {}"
_POSITIONS = (
    "the network predicts something at every position of a sequence, and a sample is a whole "
    'sequence here, its loss the mean over positions; unit="token" records single tokens, and '
    'unit="sample" says that this is meant'
)
_PADDED = (
    'sequences are padded and pool="flatten" records the padding as well; use pool="mean", "first" '
    'or "last", which honour the attention mask'
)
_SORTED_STREAM = (
    "the stream looks sorted: {:.0%} of the variance at {!r} lies between blocks of successive "
    "samples, where random order gives none. Scores from blocks will be biased; shuffle it in a "
    "larger buffer (resemblance.stream, --buffer), or pass a data set, which is visited in random "
    "order"
)
_FIRST_APART = (
    "the stream changes as it goes on: {:.0%} of the variance at {!r} lies between the samples of "
    "the blocks that are kept, which came first, and later ones, where random order gives none. "
    "Scores from blocks will be biased, those from buckets not; shuffle it in a larger buffer "
    "(resemblance.stream, --buffer), or pass a data set, which is visited in random order"
)


def _device_of(batch: Any) -> torch.device | None:
    """Where a network without weights runs: where its inputs lie."""
    tensors = (leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
    return next((leaf.device for leaf in tensors), None)


def _autocast(device: torch.device | None) -> str | None:
    """The dtype that the caller's autocast computes in, if one is on."""
    kind = device.type if device else "cpu"
    if not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
