"""`record`: one streaming pass over a model makes a Representation.

The pass draws samples in a seeded random order, runs one forward and one activation-only backward
for each batch, and adds every layer's features and gradients to blocks, buckets and moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from .._data.tokenizer_facts import facts
from .._given_words import check_words
from .._model.evaluation_mode import unwrap
from .._model.losses import FindLogits, Target
from .._model.model_pass import RunModel
from .._model.pooling import Pool
from ..errors import DataError
from ..representation.as_given import Given, recording
from ..representation.representation import Representation
from .jobs import Checkpoint, Job, Shard
from .one_pass import OnePass
from .options import Keep, checked_batch_size
from .pass_sums import Handling
from .sampling_unit import sampled


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
    shard: Shard | None = None,
    checkpoint: Checkpoint | None = None,
    keep_sums: bool = False,
    outputs: bool = True,
    outputs_of: Given | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
    call: RunModel | None = None,
    compile: bool = False,
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
        shard: (i, n): only every n-th block, from the i-th on, for `merge`. `"ranks"` shares the
            blocks out among the processes of torch.distributed's default group, all of which must
            call this and all of which return the whole.
        checkpoint: the path of a file, or (path, seconds): what was recorded is saved there after
            a block, once a minute or every so many seconds, and at most for a fiftieth of the
            time. A pass that finds such a file goes on from it. It is left when the pass is over,
            to be deleted once the result is safe.
        keep_sums: keep the accumulators, as a shard does.
        outputs: also what the network predicts for the samples of its blocks, for `behaviour`: up
            to 1,024 classes every probability, beyond that of the likeliest and of groups.
        outputs_of: the recording of a base: beyond 1,024 classes, what this network gives the
            classes that were likeliest to the base is kept as well.
        on_bad: `"raise"` names the first NaN or Inf; `"skip"` leaves such samples out and counts.
        call: how to run the model on a batch, instead of `model(inputs)`.
        compile: run the pass as one compiled graph. Making it takes seconds to minutes, which pays
            for many samples, or for many networks of one architecture, as those that a process
            records share it. It serves batches of one shape, the first of which is run as written
            too, and compared; what cannot be compiled whole is run as written, with a warning.
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
    batch_size = checked_batch_size(batch_size)
    if compile and deterministic:
        raise DataError(
            "deterministic=True asks for runs that agree bit for bit, which compiled code does not "
            "promise; leave out one of deterministic and compile"
        )
    given = {"name": name or None, "data_id": data_id}
    check_words(**{option: text for option, text in given.items() if text is not None})
    known = None if tokenizer is None else facts(tokenizer)
    how_sampled = sampled(unwrap(model), unit, tokens, pool, seed, known)
    ranks, own = (True, None) if shard == "ranks" else (False, shard)
    keep = Keep(
        seed, buckets, per_sample, block, blocks, max_dim, elementwise, own, keep_sums,
        how_sampled.tokens,
    )  # fmt: skip
    asked = OnePass(
        model=model,
        data=data,
        layers=layers,
        sampled=how_sampled,
        unit_named=unit != "auto",
        tokenizer=known,
        objective=how_sampled.objective(target, beta, logits) if gradients else None,
        beta=beta,
        keep=keep,
        how=Handling(pool, on_bad, data_id, deterministic),
        logits=logits,
        outputs=outputs and not callable(target),
        outputs_of=None if outputs_of is None else recording(outputs_of),
        batch_size=batch_size,
        call=call,
        compile=compile,
        name=name or type(unwrap(model)).__name__,
        progress=progress,
        job=Job.of(keep.share, ranks, checkpoint),
    )
    asked.settings(keep.block)  # refuses what does not fit, before anything runs
    return asked.job.result(asked.recorded, keep_sums=keep.sums)
