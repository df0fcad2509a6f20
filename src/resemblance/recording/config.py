"""The options of a recording: one `RecordConfig` from every entrance to the accumulators.

`record`, `record_arrays`, the command line and the jobs of a sweep build the same `RecordConfig`.
It checks its values, knows the defaults, and maps onto the stored `Settings`. A field also holds
its help on the command line, and what a YAML file may give for it. Importing this module does not
load torch, so that `--help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from .._utils.validation import check_integer, check_nonempty_strings, check_seed, is_integer
from ..errors import DataError

if TYPE_CHECKING:
    from .._models.layer_outputs import Pool
    from .._models.logits import Logits
    from .._models.losses import Target
    from .._models.run import RunModel
    from ..representation.representation import Settings

MAX_FULL_GRAM_SAMPLES = 1024  # samples whose full Gram matrix is stored
TEMPERED_TARGETS = ("tempered", "tempered-sigmoid")  # targets that beta belongs to
_MAX_BUCKET_BYTES = 64 * 2**20  # of a layer's accumulators, unless max_dim says otherwise
_CHECKPOINT_SECONDS = 60.0  # between checkpoints, unless the caller says otherwise

Shard = tuple[int, int] | Literal["ranks"]
Checkpoint = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]
Kind = type | str | None  # a type of YAML's, or a value


def _option(default: Any, text: str, *kinds: Kind, least: int | None = None) -> Any:
    """A field.

    Args:
        default: its default value.
        text: its help, one line.
        kinds: the types and values that a YAML file may give; none if only Python can give one.
        least: the smallest integer allowed, for an option that is an integer.
    """
    return field(default=default, metadata={"help": text, "kinds": kinds, "least": least})


@dataclass(frozen=True)
class RecordConfig:
    """The options of `record`, checked; see `record` for what each means."""

    layers: str | Sequence[str] = _option(
        "auto",
        "Layer to record: a name, a pattern such as 'block*', or !pattern to exclude; "
        "repeatable. Default: chosen automatically.",
        str,
        list,
    )
    unit: Literal["auto", "sample", "token"] = _option(
        "auto", "What counts as a sample of a sequence model: sample (the whole sequence), token "
        "(tokens drawn from it) or auto.",
        "auto", "sample", "token",
    )  # fmt: skip
    tokens: int = _option(
        16, "Tokens drawn from each sequence if tokens are the samples.", int, least=1
    )
    tokenizer: Any = _option(  # resolved to a TokenizerInfo, or None
        None, "The tokenizer that produced the tokens."
    )
    pool: Pool = _option(
        "flatten", "How a layer's output becomes one vector per sample: flatten, or the mean, "
        "first or last position. Default: flatten.",
        "flatten", "mean", "first", "last",
    )  # fmt: skip
    target: Target = _option(
        "tempered", "Loss target: tempered (the model's own predictions, no labels needed) or "
        "labels.",
        "tempered", "labels",
    )  # fmt: skip
    beta: float = _option(
        0.5, "Exponent of the tempered target q ∝ p^beta; smaller weights samples more equally.",
        float,
    )  # fmt: skip
    logits: Logits = _option(
        "auto",
        "What the outputs are: softmax or sigmoid logits (softmax, sigmoid), probabilities, "
        "sigmoid-probabilities, or none (embeddings); auto detects it from the values.",
        "auto", "softmax", "probabilities", "sigmoid", "sigmoid-probabilities", "none",
    )  # fmt: skip
    gradients: bool = _option(True, "Record gradients as well as features.", bool)
    elementwise: bool = _option(
        False, "Also record the elementwise product of features and gradients.", bool
    )
    seed: int = _option(
        0, "Seed of the sample order and the sketch; only recordings with equal seeds compare.", int
    )
    buckets: int = _option(512, "Buckets of the count sketch; 0 for no sketch.", int, least=0)
    per_sample: int = _option(1, "Buckets that each sample is added to.", int, least=1)
    block: int | Literal["auto"] = _option(
        "auto", "Samples per block. Default: 128, or fewer for small data sets.",
        int, "auto", least=1,
    )  # fmt: skip
    blocks: int = _option(
        64, "Blocks of samples whose Gram matrices are stored; 0 for none.", int, least=0
    )
    max_dim: int | Literal["auto"] | None = _option(
        "auto", "Width that wider layers are folded to for the buckets.", int, "auto", None, least=1
    )
    batch_size: int | Literal["auto"] = _option(
        "auto", "Samples per forward pass. Default: 128 on a CPU, as many as fit on a GPU.",
        int, "auto", least=1,
    )  # fmt: skip
    shard: Shard | None = _option(
        None, "Record only shard I of N of the data (0 <= I < N), for `merge`."
    )
    checkpoint: Any = _option(  # resolved to (path, seconds), or None
        None, "File to save progress in; an interrupted recording resumes from it."
    )
    keep_sums: bool = _option(False, "Store the accumulators.", bool)
    outputs: bool = _option(True, "Also store the network's predictions, or its embeddings.", bool)
    outputs_of: Any = _option(  # resolved to a Representation, or None
        None, "Recording of the base: store the probabilities of the base's most likely classes.",
        str, None,
    )  # fmt: skip
    on_bad: Literal["raise", "skip"] = _option(
        "raise", "What to do with samples that are NaN or Inf, and unreadable images: raise or "
        "skip.",
        "raise", "skip",
    )  # fmt: skip
    call: RunModel | None = _option(None, "A function that runs the model on a batch.")
    compile: bool = _option(
        False, "Compile the pass into one graph (slower to start, faster to run).", bool
    )
    dtype: Any = _option(  # resolved to a torch.dtype, or None
        None, "Precision to run in: float64, float32, bfloat16 or float16. Default: the model's.",
        "float64", "float32", "bfloat16", "float16", None,
    )  # fmt: skip
    name: str | None = _option(None, "Name of the network in tables and figures.")
    data_id: str | None = _option(
        None, "Name of the samples, for models that preprocess the same samples differently.",
        str, None,
    )  # fmt: skip
    progress: bool | None = _option(None, "Show a progress bar; by default on a terminal.")
    deterministic: bool = _option(False, "Sum in a fixed order: bit-identical recordings.", bool)

    def __post_init__(self) -> None:
        from .._data.hugging_face import TokenizerInfo, tokenizer_info
        from .._models.eval_mode import as_dtype
        from .._models.layer_outputs import validate_pool
        from .._models.logits import LogitsReader
        from .._models.losses import Objective
        from .._ops.count_sketch import CountSketch
        from ..representation.representation import as_representation

        plain: dict[str, Any] = {"seed": check_seed(self.seed), "dtype": as_dtype(self.dtype)}
        for name, option in OPTIONS.items():  # integers as Python's own, whatever their kind
            value, kinds = getattr(self, name), option.metadata["kinds"]
            least = option.metadata["least"]
            if least is not None and value not in kinds:
                also = f", or {_quoted(*kinds[1:])}" if kinds[1:] else ""
                plain[name] = check_integer(name, value, least, also=also)
            elif name in ("unit", "on_bad") and value not in kinds:
                raise DataError(f"`{name}` must be {_quoted(*kinds)}; found {value!r}")
        if self.compile and self.deterministic:
            raise DataError(
                "`deterministic=True` requires bit-identical runs, which compiled code does not "
                "guarantee; omit `deterministic` or `compile`"
            )
        given = {"name": self.name or None, "data_id": self.data_id}
        check_nonempty_strings(**{key: text for key, text in given.items() if text is not None})
        if self.tokenizer is not None and not isinstance(self.tokenizer, TokenizerInfo):
            plain["tokenizer"] = tokenizer_info(self.tokenizer)
        if self.outputs_of is not None:
            plain["outputs_of"] = as_representation(self.outputs_of)
        shard: Any = (0, 1) if self.shard in (None, "ranks") else self.shard
        pair = isinstance(shard, tuple | list) and len(shard) == 2 and all(map(is_integer, shard))
        if not pair or not 0 <= shard[0] < shard[1]:
            raise DataError(f"`shard` must be (i, n) with 0 <= i < n; found {self.shard!r}")
        if self.checkpoint is not None:
            plain["checkpoint"] = _checked_checkpoint(self.checkpoint)
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        reader = LogitsReader(self.logits)
        if self.gradients:
            Objective(self.target, self.beta, reader)
        elif self.elementwise:
            raise DataError("`elementwise=True` needs gradients; record with both or with neither")
        if validate_pool(self.pool) != "flatten" and self.unit == "token":
            raise DataError(
                f'`pool={self.pool!r}` reduces a sequence to one vector, and `unit="token"` '
                "records single tokens; omit one of them"
            )
        if self.buckets:
            CountSketch(self.buckets, self.seed, self.per_sample)

    @property
    def ranks(self) -> bool:
        """Whether the processes of torch.distributed share the pass."""
        return self.shard == "ranks"

    @property
    def share(self) -> tuple[int, int]:
        """The shard, (0, 1) for all."""
        i, n = (0, 1) if self.shard is None or isinstance(self.shard, str) else self.shard
        return int(i), int(n)

    @property
    def sums(self) -> bool:
        """Whether accumulators are kept: a shard needs them to be merged."""
        return self.keep_sums or self.share != (0, 1)

    def full_gram_samples(self, total: int | None, settings: Settings) -> int:
        """How many samples there are, if their full Gram matrix can be stored; else 0.

        Never that of tokens, as those of one sequence are not independent samples.
        """
        most = min(settings.blocks * settings.block, MAX_FULL_GRAM_SAMPLES)
        whole = self.share == (0, 1) and settings.unit == "sample"
        return total if total is not None and total <= most and whole else 0

    def settings(self, block: int, target: str, tokens: int | None = None) -> Settings:
        """The settings that a recording stores.

        Args:
            block: samples in a block, fitted to the data.
            target: the name of the loss, "none" without gradients.
            tokens: tokens drawn from each sequence; None if samples are not tokens.
        """
        from .._models.layer_outputs import validate_pool
        from ..representation.representation import Settings

        width = self.max_dim
        if width == "auto":  # room for features, gradients and elementwise: it never varies
            room = _MAX_BUCKET_BYTES // (3 * 4 * max(self.buckets, 1))
            width = 1 << (max(room, 1).bit_length() - 1)
        return Settings(
            seed=self.seed,
            buckets=self.buckets,
            per_sample=self.per_sample if self.buckets else 1,
            block=int(block),
            blocks=self.blocks,
            max_dim=width if self.buckets else None,
            pool=validate_pool(self.pool),
            target=target,
            beta=float(self.beta) if target in TEMPERED_TARGETS else None,
            elementwise=bool(self.elementwise),
            unit="sample" if tokens is None else "token",
            tokens=tokens or 1,
        )


def _quoted(*values: Kind) -> str:
    """Values as messages have them.

    >>> _quoted("auto", "sample", None)
    '"auto", "sample" or None'
    """
    *most, last = ("None" if value is None else f'"{value}"' for value in values)
    return " or ".join([", ".join(most), last] if most else [last])


def _checked_checkpoint(given: Any) -> tuple[str | os.PathLike[str], float]:
    """The path of a checkpoint, and how many seconds lie between two."""
    path, every = given, _CHECKPOINT_SECONDS
    if isinstance(given, tuple) and len(given) == 2:
        path, every = given
    if not isinstance(path, str | os.PathLike):
        raise DataError(
            f"`checkpoint` must be the path of a file, or (path, seconds); found {given!r}"
        )
    if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
        raise DataError(f"seconds between checkpoints must be 0 or more; found {every!r}")
    return path, float(every)


OPTIONS = {each.name: each for each in fields(RecordConfig)}
FILE_OPTIONS = {name: each for name, each in OPTIONS.items() if each.metadata["kinds"]}
