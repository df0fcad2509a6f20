"""`record`: one streaming pass over a model makes a Representation.

The pass draws samples in a seeded random order, runs one forward and one activation-only backward
for each batch, and adds every layer's features and gradients to blocks, buckets and moments.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from .._data.batches import is_padded, leaves
from .._data.tokenizer_facts import facts
from .._model import pooling
from .._model.evaluation_mode import unwrap
from .._model.layer_choice import select
from .._model.losses import FindLogits, Target
from .._model.model_pass import RunModel, Watch, opened
from .._model.pooling import Pool
from .._model.weight_hash import of_all_weights, of_weights
from ..errors import ResemblanceWarning
from ..representation.as_given import Given, recording
from ..representation.provenance import DataInfo, Made, ModelInfo, Order
from ..representation.representation import Representation
from .kept_outputs import KeptOutputs, logits_of
from .options import Keep, check_batch_size, check_words
from .pass_sums import Handling, PassSums
from .sampling_unit import predicts_tokens, sampled

_SORTED = 0.02  # of the variance between blocks: a stream above this is warned about


def record(
    model: nn.Module,
    data: Any,
    *,
    layers: str | Sequence[str] = "auto",
    unit: Literal["auto", "sample", "token"] = "auto",
    tokens: int = 16,
    tokenizer: Any = None,
    pool: Pool = "flatten",
    target: Target = "tempered",
    beta: float = 0.5,
    logits: FindLogits | None = None,
    gradients: bool = True,
    elementwise: bool = False,
    seed: int = 0,
    buckets: int = 512,
    per_sample: int = 1,
    block: int | Literal["auto"] = "auto",
    blocks: int = 64,
    max_dim: int | Literal["auto"] | None = "auto",
    batch_size: int | Literal["auto"] = "auto",
    shard: tuple[int, int] | None = None,
    keep_sums: bool = False,
    outputs: bool = True,
    outputs_of: Given | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
    call: RunModel | None = None,
    name: str | None = None,
    data_id: str | None = None,
    progress: bool | None = None,
    deterministic: bool = False,
) -> Representation:
    """Represent a network on a data set by its features and gradients, layer by layer.

    Per layer, with f the features of a sample and g the gradient of the loss at them, the result
    holds exact kernels [f_i·f_j] and [g_i·g_j] inside blocks of samples in seeded random order,
    CountSketch kernels of all samples, a sketch in the layer's own coordinates, squared norms and
    moments. The model is run in evaluation mode and comes back exactly as it was.

    Args:
        model: any `nn.Module`; run as it stands, on its own device, under the caller's autocast.
        data: a data set, a DataLoader, arrays, or an iterable of batches. A batch is a tensor,
            `(inputs, labels)` or a dict of the model's keyword arguments. An iterable is taken in
            its own order; everything else is visited in a seeded random order, whatever the
            loader's batch size or shuffling.
        layers: `"auto"`, names, patterns, or a list of them: `*` stands for anything but a dot,
            `**` for anything, and a `!` before a pattern takes out what it matches. `name:in` is a
            module's input, `name#1` and `name#2` what it gives the first and the second time.
        unit: what a sample is: all of an item of the data (`"sample"`), or single tokens of its
            sequences (`"token"`). `"auto"` takes tokens for causal and masked language models of
            the transformers library, else samples.
        tokens: how many are drawn of each sequence with `unit="token"`, at seeded random positions
            that are neither padding nor special tokens.
        tokenizer: what made the tokens, of the libraries transformers or tokenizers. A hash of how
            it makes them is kept, and recordings of tokens compare only if it agrees, where both
            have one. Its special tokens are never drawn, and a masked model is shown its mask token
            in place of those that are.
        pool: how a layer's output becomes a vector: flatten, mean, first, last, or a function.
        target: `"tempered"` (no labels), `"labels"`, or a function (outputs, batch) -> losses (n,).
        beta: the temperature of the tempered prediction, q ∝ p^beta.
        logits: finds the logits in the model's output where convention does not.
        gradients: False records features alone: half the cost, any model.
        elementwise: also the kernel of f ∘ g.
        seed: of the order, the sketch and the fold: Representations compare only if it agrees.
        buckets, per_sample: the CountSketch; buckets=0 leaves it out.
        block, blocks: samples in a block, and blocks kept; blocks=0 leaves them out. `"auto"` is
            128, and less for small data, so that there are sixteen blocks. So many sequences make
            as many blocks as tokens are drawn, each of one token of every sequence. Of up to 1,024
            samples that are no tokens the kernel of all is kept, block by block and between them,
            at every layer whose vectors take 1 GiB or less.
        max_dim: layers wider than this are folded to it before the buckets; `"auto"` keeps a
            layer's accumulators under 64 MiB, None folds nothing. Blocks are always exact.
        batch_size: samples in a forward pass: whole blocks where that is room for one, else equal
            parts of a block. `"auto"` is 128, and on a GPU as many as fit into half of its free
            memory, up to 4,096. Results do not depend on it but for the model's own round-off.
        shard: (i, n): only every n-th block, from the i-th on, for `merge`.
        keep_sums: keep the accumulators, as a shard does.
        outputs: also what the network predicts for the samples of its blocks, for `behaviour`: up
            to 1,024 classes every probability, beyond that of the likeliest and of groups.
        outputs_of: the recording of a base: beyond 1,024 classes, what this network gives the
            classes that were likeliest to the base is kept as well.
        on_bad: `"raise"` names the first NaN or Inf; `"skip"` leaves such samples out and counts.
        call: how to run the model on a batch, instead of `model(inputs)`.
        name: of the model, in files and figures.
        data_id: names the samples: recordings with equal names count as made on the same samples,
            though preprocessing made their inputs differ.
        progress: True or False; None shows a bar on a terminal.
        deterministic: recording adds in a fixed order, so that runs on one device agree bit for
            bit as far as the network itself does; on a GPU it is slower.

    Cost: one forward and one activation-only backward, plus about 2·block·d multiplications a
    sample and layer. Memory does not grow with the data (but for 8 bytes a sample for its order,
    and the vectors of up to 1,024 samples).

    Reference: Tang, Maddox, Dickens, Diethe, Damianou 2020, arXiv 2003.11498.
    """
    check_batch_size(batch_size)
    given = {"name": name or None, "data_id": data_id}
    check_words(**{option: text for option, text in given.items() if text is not None})
    known = None if tokenizer is None else facts(tokenizer)
    how_sampled = sampled(unwrap(model), unit, tokens, pool, seed, known)
    keep = Keep(
        seed, buckets, per_sample, block, blocks, max_dim, elementwise, shard, keep_sums,
        how_sampled.tokens,
    )  # fmt: skip
    objective = how_sampled.objective(target, beta, logits) if gradients else None
    pooled, aim = pooling.check(pool), objective.name if objective else "none"
    keep.settings(block, pooled, aim, beta)  # refuses what does not fit, before anything runs
    called = name or type(unwrap(model)).__name__
    with opened(
        model,
        data,
        seed=seed,
        block=block,
        shard=keep.share,
        call=call,
        frozen=gradients,
        draw=how_sampled.draw,
    ) as run:
        taps, unseen = how_sampled.seen(run.model, select(run.model, layers, run.calls))
        whole = keep.tokens is None and pool == "flatten"
        if whole and unit == "auto" and predicts_tokens(run.trial.samples, run.outputs):
            warnings.warn(_POSITIONS, ResemblanceWarning, stacklevel=2)
        elif whole and is_padded(run.trial.samples):
            warnings.warn(_PADDED, ResemblanceWarning, stacklevel=2)
        settings = keep.settings(run.source.block, pooled, aim, beta)
        watch = not run.source.ordered
        how = Handling(pool, on_bad, data_id, deterministic, watch_order=watch)
        few = keep.few(run.source.total, run.source.block)
        device = run.device or _device_of(run.trial.samples)
        find = logits_of(run, logits) if outputs and not callable(target) else None
        base = None if outputs_of is None else recording(outputs_of)
        kept = KeptOutputs(base, causal=how_sampled.causal) if find else None
        sums = PassSums(settings, [tap.name for tap in taps], how, device, few=few, outputs=kept)
        dropped = run.feed(
            taps,
            sums,
            objective,
            batch_size=batch_size,
            deterministic=deterministic,
            progress=progress,
            what=f"recording {called}",
            may_drop=layers == "auto",
            watch=Watch(find, kept.see) if find and kept else None,
        )
        sums.finish()
    unseen += [taps[i].name for i in sorted(dropped)]
    if unseen:
        told = _WITHOUT_POSITIONS.format(", ".join(unseen))
        warnings.warn(told, ResemblanceWarning, stacklevel=2)
    share = sums.order.share_between() if sums.order else 0.0
    if share > _SORTED:
        warnings.warn(_SORTED_STREAM.format(share, taps[-1].name), ResemblanceWarning, stacklevel=2)
    weights = list(run.model.parameters())
    order: Order = "seeded" if run.source.ordered else "stream"
    return sums.result(
        model=ModelInfo(
            called,
            of_weights(run.model),
            sum(p.numel() for p in weights),
            weights=of_all_weights(run.model),
            tokenizer=None if known is None else known.hash,
        ),
        data=DataInfo(data_id, run.source.total, order, (keep.share,)),
        made=Made.now(
            dtype=str(weights[0].dtype) if weights else "none",
            autocast=_autocast(run.device),
            device=str(run.device or "cpu"),
        ),
        keep_sums=keep.sums,
    )


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
    "samples, where random order gives none. Scores from blocks will be biased; shuffle the "
    "stream, or pass a data set, which is visited in random order"
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
