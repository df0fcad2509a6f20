"""Recording: `record` makes a Representation in one streaming pass over a model and its data.

The pass visits samples in a seeded random order, runs one forward and one activation-only backward
per batch, and adds every layer's features and gradients to blocks, buckets and moments. It also
collects the provenance, and the key by which a checkpoint recognises the pass that it belongs to.
`record_named` records a model on data that are both given by name, as the command line and sweeps
do.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from .._data.batches import batch_leaves, is_padded
from .._data.hugging_face import load_tokenizer
from .._data.load_data import load_data, samples_name
from .._data.sample_hashes import SampleHasher, hash_texts
from .._data.sources import Share
from .._data.streams import DEFAULT_BUFFER
from .._data.text import TextOptions, tokenized_text_of
from .._models.embeddings import EmbeddingsReader
from .._models.eval_mode import Precision
from .._models.hashes import (
    begin_parameter_hash,
    begin_weight_hashes,
    function_identity,
    hash_sampled_weights,
)
from .._models.language_models import SampleUnit, predicts_tokens, resolve_unit
from .._models.layer_outputs import Pool
from .._models.layer_patterns import Tap, select_layers
from .._models.loading import load_model, refuse_exported_model, to_module
from .._models.logits import Logits, LogitsReader, class_names
from .._models.losses import Objective, Target
from .._models.run import ModelPass, RunModel, open_pass
from .._models.runtimes.runtime import Runtime
from .._ops.devices import available_host_memory, check_device
from ..errors import DataError, ResemblanceError, warn
from ..representation.representation import (
    DataInfo,
    Made,
    ModelInfo,
    Representation,
    RepresentationLike,
    Settings,
    few_samples_note,
)
from .accumulators import Accumulators, Origin
from .checkpoints import CheckpointedPass, CheckpointFiles, with_verification
from .config import Checkpoint, RecordConfig, Shard
from .distributed import (
    raise_if_any_failed,
    rank_and_count,
    record_in_all_ranks,
    refuse_sharded_weights,
)
from .layer_accumulator import estimate_layer_bytes
from .output_summary import (
    EmbeddingSummary,
    OutputSummary,
    find_embeddings,
    find_logits_reader,
)


def record(
    model: nn.Module | str,
    data: Any,
    *,
    layers: str | Sequence[str] = "auto",
    unit: Literal["auto", "sample", "token"] = "auto",
    tokens: int = 16,
    tokenizer: Any = None,
    pool: Pool = "flatten",
    target: Target = "tempered",
    beta: float = 0.5,
    logits: Logits = "auto",
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
    outputs_of: RepresentationLike | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
    call: RunModel | None = None,
    compile: bool = False,
    dtype: torch.dtype | Precision | None = None,
    name: str | None = None,
    data_id: str | None = None,
    progress: bool | None = None,
    deterministic: bool = False,
) -> Representation:
    """Represent a network on a data set by its features and gradients, layer by layer.

    Per layer, with f the features of a sample and g the gradient of the loss at them, the result
    holds exact kernels [f_i·f_j] and [g_i·g_j] inside blocks of samples in seeded random order,
    CountSketch kernels of all samples, a sketch in the layer's own coordinates, squared norms and
    moments. The model is run in evaluation mode and comes back exactly as it was. During the pass
    no other thread may run or train it, since mode and `requires_grad` are those of the pass:
    record a `copy.deepcopy` instead.

    Cost: one forward pass and one activation-only backward pass, plus about 2 · block · d
    multiplications per sample and layer. Memory does not grow with the data (but for 8 bytes a
    sample for its order, and the vectors of up to 1,024 samples).

    Reference: Tang, Maddox, Dickens, Diethe, Damianou 2020, arXiv 2003.11498.

    Args:
        model: any `nn.Module`, run on its own device and under the caller's autocast; or the
            address of a model, such as `"onnx:copy.onnx"`. Networks that PyTorch does not run
            (ONNX, TorchScript) have no gradients.
        data: a data set, a DataLoader, arrays, or an iterable of batches. A batch is a tensor,
            `(inputs, labels)` or a dict of the model's keyword arguments. An iterable is read in
            its own order; everything else is visited in a seeded random order, whatever the
            loader's batch size or shuffling.
        layers: `"auto"`, a name, a pattern, or a list of them. In a pattern `*` matches anything
            but a dot, `**` matches anything, and a leading `!` excludes what the rest matches.
            `name:in` is a module's input, `name#1` and `name#2` its first and second output where
            it is called twice.
        unit: what a sample is: an item of the data (`"sample"`) or a token of its sequences
            (`"token"`). `"auto"` takes tokens for causal and masked language models of the
            transformers library, else samples.
        tokens: with `unit="token"`, number of tokens drawn from each sequence, at seeded random
            positions that are neither padding nor special tokens.
        tokenizer: the tokenizer that made the tokens, of the libraries transformers or tokenizers.
            Its special tokens are never drawn, and a masked language model sees its mask token at
            the drawn positions. Its hash is stored: recordings whose tokenizers differ are not
            compared.
        pool: how a layer's output becomes a vector: `"flatten"`, `"mean"`, `"first"`, `"last"`, or
            a function.
        target: the loss that gradients are of: `"tempered"` (no labels needed), `"labels"`
            (classes, or multi-hot rows for a multi-label network), or a function
            (outputs, batch) -> losses (n,).
        beta: temperature of the tempered prediction, q ∝ p^beta.
        logits: what the model's outputs are. `"softmax"`: logits of one class per sample (log
            probabilities are logits too). `"probabilities"`: the output of a softmax. `"sigmoid"`:
            logits of independent labels, of which there may be one. `"sigmoid-probabilities"`:
            probabilities of independent labels. `"none"`: no predictions but embeddings, one vector
            a sample (of a sequence's hidden states, what `pool` makes of them). A function of the
            output returns the logits of a softmax. `"auto"` takes vectors of length one as
            embeddings, all else as `"softmax"`, and refuses what looks like anything else.
            Probabilities are floored at 1e-7.
        gradients: whether to record gradients; features alone take half the time.
        elementwise: whether to record the kernel of f ∘ g as well.
        seed: seed of the order, the sketch and the fold; only recordings of one seed are compared.
        buckets: number of buckets of the CountSketch; 0 records none.
        per_sample: number of buckets that each sample is added to.
        block: samples per block. `"auto"` is 128, and less for small data, so that there are
            sixteen blocks. With tokens, a block holds one token of each of `block` sequences. With
            up to 1,024 samples (`unit="sample"`), the full Gram matrix is stored as well, for every
            layer whose activations fit in 1 GiB.
        blocks: largest number of blocks; 0 records none.
        max_dim: layers wider than this are folded to this width before they are sketched; blocks
            are always exact. `"auto"` keeps a layer's accumulators under 64 MiB, None folds
            nothing.
        batch_size: samples per forward pass. `"auto"` picks the largest that fits in half of the
            free GPU memory (at most 4,096, whose inputs take at most 256 MiB), or 128 on a CPU,
            fewer where outputs for these take more than 256 MiB. Results do not depend on it
            beyond floating-point round-off.
        shard: `(i, n)` records every n-th block from the i-th on, for `merge`. `"ranks"` shares the
            blocks among the processes of torch.distributed's default group: all must call `record`,
            and all return the whole recording.
        checkpoint: path of a file, or (path, seconds), to save progress in: once a minute or every
            so many seconds, for at most 2 % of the time. A pass that finds the file resumes from
            it. The file is left when the pass is over, to be deleted once the result is safe.
        keep_sums: whether to keep the accumulators, as a shard does.
        outputs: whether to store predictions for the samples of the blocks, for `behaviour`: every
            probability of up to 1,024 classes, beyond that those of the most likely classes and of
            groups, and sketches of all others. Of a network that returns embeddings, those of up to
            4,096 samples.
        outputs_of: the recording of a base network. Beyond 1,024 classes, this network's
            probabilities for the base's most likely classes are stored as well, which lowers the
            standard error of KL.
        on_bad: `"raise"` stops at the first sample with NaN or Inf; `"skip"` skips and counts such
            samples.
        call: a function (model, batch) that runs the model, instead of `model(inputs)`.
        compile: whether to run the pass as one compiled graph. Compiling takes seconds to minutes,
            which pays for many samples, or for many networks of one architecture recorded by one
            process. Batches of other shapes, and networks that cannot be compiled, run eagerly,
            with a warning.
        dtype: precision of the pass: `"float64"`, `"float32"`, `"bfloat16"`, `"float16"`, or the
            torch dtype. Weights and floating-point inputs are cast for the pass, and the weights
            are restored bit for bit afterwards. Samples are fingerprinted before the cast, so a
            bfloat16 recording pairs with a float32 one. None keeps the model's own precision.
            Takes memory for a second copy of the weights.
        name: name of the model, in files and figures; None takes the name of its class.
        data_id: name of the samples: recordings with equal names count as made on the same samples,
            though preprocessing made their inputs differ.
        progress: whether to show a progress bar; None shows it on a terminal.
        deterministic: whether to add in a fixed order, so that runs on one device agree bit for bit
            as far as the network itself does; slower on a GPU.

    Returns:
        The recording.

    Raises:
        DataError: if the data or an option is not as described above.
        LayerError: if layers cannot be found or recorded.
        TargetError: if no loss or no logits can be read off the outputs.
    """
    config = RecordConfig(
        layers=layers, unit=unit, tokens=tokens, tokenizer=tokenizer, pool=pool, target=target,
        beta=beta, logits=logits, gradients=gradients, elementwise=elementwise, seed=seed,
        buckets=buckets, per_sample=per_sample, block=block, blocks=blocks, max_dim=max_dim,
        batch_size=batch_size, shard=shard, checkpoint=checkpoint, keep_sums=keep_sums,
        outputs=outputs, outputs_of=outputs_of, on_bad=on_bad, call=call, compile=compile,
        dtype=dtype, name=name, data_id=data_id, progress=progress, deterministic=deterministic,
    )  # fmt: skip
    return record_with(model, data, config)


def _without_what_is_lacking(model: Runtime, config: RecordConfig) -> RecordConfig:
    """The options that a network can be recorded with that runs outside of PyTorch."""
    for name in ("dtype", "compile"):
        if getattr(config, name):
            raise DataError(
                f"`{name}` applies to PyTorch models only, and {model.source} runs outside of "
                "PyTorch; omit it"
            )
    if config.gradients:
        warn(_MSG_NO_GRADIENTS.format(model.source))
    if model.mixes_samples and config.batch_size == "auto":
        warn(_MSG_MIXES_SAMPLES.format(model.source, model.mixes_samples))
    return replace(config, gradients=False, elementwise=False)


def record_with(
    model: nn.Module | str, data: Any, config: RecordConfig, *, full_outputs: bool = False
) -> Representation:
    """Record a network on a data set with the options in a `RecordConfig`.

    Args:
        model: the network, or its address.
        data: the data set.
        config: the options.
        full_outputs: whether to keep every probability of any number of classes, if they fit in
            memory, for a recording that is not saved.
    """
    model = to_module(model)
    own_name = None
    if isinstance(model, Runtime):
        own_name, config = model.name, _without_what_is_lacking(model, config)
    config = replace(config, name=config.name or own_name or type(model).__name__)
    unit = resolve_unit(
        model, config.unit, config.tokens, config.pool, config.seed, config.tokenizer
    )
    process = rank_and_count() if config.ranks else (0, 1)
    recorder = _Recorder(model, data, config, unit, process, full_outputs)
    if config.ranks:
        rep = record_in_all_ranks(recorder.recorded, keep_sums=config.sums)
    elif (part := recorder.recorded()) is not None:
        rep = part if config.sums else part.without_sums()
    else:
        raise DataError("nothing was recorded: the data contain no samples")
    if rep.complete and (few := few_samples_note(rep.samples, rep.settings)):
        warn(few)
    return rep


@dataclass(frozen=True)
class NamedRecording:
    """A model and the data to record it on, by name, as the command line and sweeps have them."""

    model: str  # torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER or FILE.py:FUNCTION
    data: str  # as `load_data` has them: digits, a folder, shards, hf:NAME, FILE.py:FUNCTION, ...
    weights: str | None = None  # a file of them
    pretrained: bool = False  # the library's own weights, which it downloads
    size: int = 224  # of images
    raw: bool = False  # pixels in [0, 1], not normalised as ImageNet's
    skip_bad: bool = False  # unreadable images are bad samples
    limit: int = 0  # samples; 0 for all
    text: TextOptions = field(default_factory=TextOptions)
    device: str = ""  # the GPU if there is one
    buffer: int = DEFAULT_BUFFER  # samples of a stream that wait to be shuffled

    @property
    def address(self) -> str:
        """What loads the model again."""
        return f"{self.model} --weights {self.weights}" if self.weights else self.model


def load_recording_data(wanted: NamedRecording) -> Any:
    """The data as `record` takes them; text is cut and tokenised."""
    refuse_exported_model(wanted.data)
    return load_data(
        wanted.data,
        size=wanted.size,
        raw=wanted.raw,
        skip_bad=wanted.skip_bad,
        model=wanted.model,
        text=wanted.text,
        limit=wanted.limit,
        buffer=wanted.buffer,
    )


def record_named(
    wanted: NamedRecording, data: Any, config: RecordConfig, *, full_outputs: bool = False
) -> Representation:
    """A model recorded on data that were opened for it; `full_outputs` as in `record_with`."""
    net = load_model(wanted.model, weights=wanted.weights, pretrained=wanted.pretrained)
    tokenizer, data_id = config.tokenizer, config.data_id
    if tokenizer is None and (sequences := tokenized_text_of(data)) is not None:
        tokenizer = sequences.tokenizer
    elif tokenizer is None and wanted.text.tokenizer is not None:
        tokenizer = load_tokenizer(wanted.text.tokenizer)
    if data_id is None:
        data_id = samples_name(wanted.data, wanted.text)
    net = net.to(check_device(wanted.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    config = replace(config, tokenizer=tokenizer, data_id=data_id)
    rep = record_with(net, data, config, full_outputs=full_outputs)
    return replace(rep, model=replace(rep.model, address=wanted.address))


@dataclass(frozen=True)
class _Recorder:
    """One recording pass: prepare the model, choose layers, feed all batches, and warn."""

    model: nn.Module
    data: Any
    config: RecordConfig
    unit: SampleUnit
    process: tuple[int, int]  # the rank of this process, and how many share the pass
    full_outputs: bool  # every probability, in memory

    def recorded(self) -> Representation | None:
        """What this process recorded; None if there was no block for it."""
        config, unit = self.config, self.unit
        reader, objective = LogitsReader(config.logits), None
        if config.gradients:
            summed = unit.draw is not None
            objective = Objective(config.target, config.beta, reader, summed, shifted=unit.causal)
        with open_pass(
            self.model,
            self.data,
            seed=config.seed,
            block=config.block,
            call=config.call,
            frozen=config.gradients,
            draw=unit.draw,
            dtype=config.dtype,
        ) as run:
            if config.ranks:
                refuse_sharded_weights(run.model)
            taps, unseen = unit.seen(run.model, select_layers(run.model, config.layers, run.calls))
            if unit.draw is None and config.pool == "flatten":
                if config.unit == "auto" and predicts_tokens(run.trial.samples, run.outputs):
                    warn(_MSG_POSITIONS)
                elif is_padded(run.trial.samples):
                    warn(_MSG_PADDED)
            target = "none" if objective is None else objective.name
            consumer, run, find = self._begin(run, taps, reader, target)
            before = begin_parameter_hash(run.model)
            dropped = run.feed(
                taps,
                consumer,
                objective,
                batch_size=config.batch_size,
                deterministic=config.deterministic,
                progress=config.progress,
                what=f"recording {config.name}",
                may_drop=config.layers == "auto",
                logits=find,
                compile=config.compile,
            )
            consumer.finish()
            if begin_parameter_hash(run.model)() != before():
                raise ResemblanceError(
                    f"the weights of {config.name!r} changed during the recording, for example "
                    "because a different thread trains the model. Pause training while recording, "
                    "or record a copy.deepcopy of the model"
                )
        unseen += [taps[i].name for i in sorted(dropped)]
        if unseen:
            some = ", ".join(unseen)
            warn(f"layers skipped, because they have no row for each recorded position: {some}")
        if consumer.order is not None:
            shared = config.share[1] * self.process[1]
            consumer.order.warn_if_sorted(taps[-1].name, kept=config.blocks // shared)
        return consumer.result()

    def _begin(
        self, run: ModelPass, taps: Sequence[Tap], reader: LogitsReader, target: str
    ) -> tuple[Accumulators, ModelPass, LogitsReader | EmbeddingsReader | None]:
        """The accumulators, this process's share of the pass, and what reads its outputs."""
        config, source, names = self.config, run.source, [tap.name for tap in taps]
        settings = config.settings(source.block, target, self.unit.tokens)
        few = config.full_gram_samples(source.total, settings)
        self._refuse_too_many(run, taps, settings, few=few > 0)
        needed = config.gradients and not callable(config.target)
        wanted = config.outputs and (not callable(config.target) or config.logits != "auto")
        find: LogitsReader | EmbeddingsReader | None = None
        find = find_logits_reader(run, reader, needed=needed) if wanted else None
        how_read = reader.name if needed or find is not None else "none"
        if config.outputs and find is None and not needed:
            find = find_embeddings(run, reader, config.pool)
        origin = self._origin(run, how_read if needed or wanted else None)
        inputs = [x for x in batch_leaves(run.trial.samples) if isinstance(x, torch.Tensor)]
        outputs: Callable[[], OutputSummary | EmbeddingSummary] | None = None
        if isinstance(find, EmbeddingsReader):
            outputs = functools.partial(EmbeddingSummary, settings.block)
        elif find is not None:
            flags: dict[str, Any] = {"causal": self.unit.causal, "independent": find.independent}
            flags |= {"seed": config.seed, "full_rows": None}
            if self.full_outputs:
                kept = settings.windows * settings.block
                flags["full_rows"] = min(source.total or kept, kept) * settings.tokens
            outputs = functools.partial(OutputSummary, config.outputs_of, **flags)
        sums: dict[str, Any] = {
            "config": config,
            "settings": settings,
            "names": names,
            "origin": origin,
            # a network without weights runs where its inputs are
            "device": run.device or (inputs[0].device if inputs else None),
            "keep_sums": config.sums or config.checkpoint is not None or self.process[1] > 1,
            "channels_last": frozenset(tap.name for tap in taps if tap.channels_last),
            "outputs": outputs,
        }

        files, before, hashes = None, None, np.zeros(0, np.uint32)
        if config.checkpoint is not None:  # it must be this pass's, whether it is used or not
            path, every = config.checkpoint
            key = _pass_key(config, run, settings, names, origin, outputs=wanted)
            files = CheckpointFiles(path, json.loads(json.dumps(key)), self.process)
            before, hashes = files.take_over()
        done = hashes != 0
        share = Share(config.share, self.process, done)
        if few:  # one process records small data, whose full Gram matrix is stored, in one go
            nothing = np.ones(source.count or 0, bool) if self.process[0] else None
            share = Share(config.share, done=nothing)
        source.check(share)
        if files is None or few:
            return Accumulators(**sums), replace(run, share=share), find
        if config.ranks:
            raise_if_any_failed()  # before anyone writes, so that all read the same
        if done.any() and source.order != "seeded":
            warn(
                "a stream cannot be resumed in the middle: it is read again from the start, and "
                f"the {int(done.sum()):,} blocks in the checkpoint are skipped"
            )
        again = with_verification(source, hashes, run.prepare, config.seed)
        consumer = CheckpointedPass(files, before, every, **sums)
        return consumer, replace(run, source=again, share=share), find

    def _origin(self, run: ModelPass, logits: str | None) -> Origin:
        """Where the recording comes from; `logits` says how they were read, if they were."""
        config, source = self.config, run.source
        # weights that were cast go with the pass; others are hashed once buffers are back
        cast = begin_weight_hashes(run.model) if config.dtype is not None else None
        parameters = list(run.model.parameters())
        device = run.device or torch.device("cpu")
        autocast = None
        if torch.is_autocast_enabled(device.type):
            autocast = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")

        @functools.cache
        def model() -> ModelInfo:
            sampled, full = (cast or begin_weight_hashes(run.model))()
            return ModelInfo(
                str(config.name),
                sampled,
                sum(weight.numel() for weight in parameters),
                weights=full,
                tokenizer=None if config.tokenizer is None else config.tokenizer.hash,
                classes=class_names(run.model),
            )

        first = None
        if config.data_id is None and source.some is not None and config.share[1] > 1:
            first = hash_texts([text for each in source.some() for text in _hash_samples(each)])
        made = Made.now(
            dtype=str(parameters[0].dtype) if parameters else "none",
            autocast=autocast,
            device=str(device),
            logits=logits,
        )
        data = DataInfo(config.data_id, source.total, source.order, (config.share,), first=first)
        return Origin(model, data, made)

    def _refuse_too_many(
        self, run: ModelPass, taps: Sequence[Tap], settings: Settings, *, few: bool
    ) -> None:
        """An error if the layers together need more memory than there is."""
        shapes = {(call.module, call.number): (call.input, call.output) for call in run.calls}
        expected = run.source.expected(Share(self.config.share))
        pooled = self.unit.draw is not None or self.config.pool != "flatten"
        total = 0
        for tap in taps:
            place = shapes[tap.module, tap.call][0 if tap.is_input else 1]
            shape = (1,) if place is None else place.of_a_sample
            dim = min(shape, default=1) if pooled else math.prod(shape)  # at least
            total += estimate_layer_bytes(settings, dim, expected, few=few)
        free = available_host_memory()
        needed = _MEMORY_OVERHEAD * total
        if free is not None and needed > free:
            raise DataError(
                f"recording {len(taps)} layers takes about {needed / 1e9:.0f} GB of memory, and "
                f"{free / 1e9:.0f} GB are available. Record fewer layers, or less of each: "
                "`gradients=False`, fewer `buckets` or a smaller `max_dim`"
            )


def _pass_key(
    config: RecordConfig,
    run: ModelPass,
    settings: Settings,
    layers: Sequence[str],
    origin: Origin,
    *,
    outputs: bool,  # whether predictions are kept
) -> dict[str, Any]:
    """What a pass must have in common with the one that wrote a checkpoint, to resume it."""
    base, data, functions = config.outputs_of, origin.data, {}
    for name, option in (("call", config.call), ("logits", config.logits)):
        functions[name] = f"function {function_identity(option)}" if callable(option) else option
    return {
        **{f"setting {name}": value for name, value in asdict(settings).items()},
        "layers": list(layers),
        "model weights": hash_sampled_weights(run.model),
        "dtype": origin.made.dtype,
        "autocast": origin.made.autocast,
        "data_id": data.id,
        "samples in all": data.total,
        "order": data.order,
        "shard": list(config.share),
        "first samples": _hash_samples(run.source.first),
        **functions,
        "tokenizer": None if config.tokenizer is None else config.tokenizer.hash,
        "outputs": outputs,
        "outputs_of": None if base is None else [base.model.weights, base.data.fingerprint],
    }


_MEMORY_OVERHEAD = 1.5  # memory that was measured, over what `estimate_layer_bytes` counts
_MSG_NO_GRADIENTS = (
    "{} has no gradients, because it runs outside of PyTorch; pass `gradients=False` to silence "
    "this note"
)
_MSG_MIXES_SAMPLES = "{}: {}. Pass the `batch_size` that it will be used with"
_MSG_POSITIONS = (
    "the network predicts at every position of a sequence, but whole sequences are recorded as "
    'samples, with the loss averaged over positions. Pass `unit="token"` to record single tokens, '
    'or `unit="sample"` to silence this warning'
)
_MSG_PADDED = (
    'sequences are padded and `pool="flatten"` records the padding too; use `pool="mean"`, '
    '"first" or "last", which respect the attention mask'
)


def _hash_samples(samples: Any) -> list[str]:
    """Hashes of what samples hold and of their labels."""
    reader = SampleHasher()
    pending = reader.hashing([reader.read(samples, known=False)])
    hashes = [pending.hashes("content"), pending.hashes("labels")]
    return [f"{int(value):016x}" for part in hashes if part is not None for value in part]
