"""Options that several commands share, and messages that name options as the command line does.

The package's messages name an option in backticks, as Python takes it: `gradients=False`.
`cli_options_in` rewrites them as typed on the command line, `yaml_options_in` as in a jobs file.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer import Argument, Option

from ..recording.config import OPTIONS
from ..similarity.kernels import KERNELS

if TYPE_CHECKING:
    from ..gate.thresholds import Threshold


def one_of_help(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}."


HELP = {name: option.metadata["help"] for name, option in OPTIONS.items()}
FILE_OR_MODEL = "A recording (.rsm), or a model to record (see record --model) on --data."
Json = Annotated[
    Optional[str],
    Option("--json", metavar="FILE", help="Write the results as JSON; - for standard output."),
]
FlipsFile = Annotated[
    Optional[Path],
    Option("--flips", metavar="FILE.csv", help="List the samples whose predicted class differs."),
]
ClassNames = Annotated[
    Optional[Path],
    Option("--classes", metavar="FILE", help="Class names for --flips, one per line."),
]
MODEL = Option(
    "--model",
    metavar="MODEL",
    help="The model: torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER, onnx:FILE, "
    "torchscript:FILE, gguf:FILE, or FILE.py:FUNCTION (a function that returns it).",
)
ModelName = Annotated[str, MODEL]
DATA = Option(
    "--data",
    metavar="DATA",
    help="The data set: digits, a folder of images, arrays (.npz, .npy), text (.txt, .jsonl, "
    ".parquet), tar shards, a folder of .parquet, hf:NAME-OR-FOLDER, hf-stream:NAME, "
    "probe:images, probe:noise, probe:text, or FILE.py:FUNCTION (a function that returns it).",
)
DataName = Annotated[str, DATA]
Weights = Annotated[
    Optional[str],
    Option(
        "--weights",
        metavar="FILE",
        help="Weights to load into the model: .safetensors, or a state dict saved by torch.save.",
    ),
]
Size = Annotated[
    int,
    Option("--size", min=1, metavar="N", help="Resize and crop images to N × N pixels."),
]
Raw = Annotated[
    bool,
    Option("--raw", help="Keep pixels in [0, 1] instead of normalising them as for ImageNet."),
]
Files = Annotated[
    list[Path], Argument(metavar="FILE...", help="Files written by `resemblance record`.")
]
Kernel = Annotated[str, Option(metavar="KERNEL", help=f"Kernel: {one_of_help(KERNELS)}")]
Pretrained = Annotated[
    bool,
    Option("--pretrained", help="Load the library's pretrained weights (downloads them)."),
]
Layers = Annotated[
    Optional[list[str]],
    Option("--layer", metavar="NAME", help=HELP["layers"]),
]
Pool = Annotated[
    Optional[str],
    Option("--pool", metavar="HOW", help=HELP["pool"]),
]
FeaturesOnly = Annotated[
    bool, Option("--features-only", help="Record features without gradients (no backward pass).")
]
Limit = Annotated[
    int,
    Option(
        "--limit",
        min=0,
        metavar="N",
        help="Use only the first N samples.",
        show_default="all",
    ),
]
BatchSize = Annotated[
    Optional[int],
    Option("--batch-size", metavar="N", help=HELP["batch_size"]),
]
Logits = Annotated[str, Option("--logits", metavar="HOW", help=HELP["logits"])]
Dtype = Annotated[
    Optional[str],
    Option("--dtype", metavar="DTYPE", help=HELP["dtype"]),
]
Length = Annotated[
    Optional[int],
    Option(
        "--length",
        min=1,
        metavar="N",
        help="Tokens per sequence of text. Default: 512, or the model's context if shorter.",
    ),
]
Tokenizer = Annotated[
    Optional[str],
    Option(
        "--tokenizer",
        metavar="NAME",
        help="Tokenizer: a folder or a Hugging Face name. Default: the model's own.",
    ),
]
Device = Annotated[
    str,
    Option(
        "--device",
        metavar="DEVICE",
        help="Device, such as cpu or cuda:1. Default: cuda if available, else cpu.",
    ),
]


@dataclass(frozen=True)
class RecordingOptions:
    """How `check` and `compare` record the models that they are given: a field for each option."""

    data: Annotated[
        Optional[str],
        Option("--data", metavar="DATA", help="Data set to record models on (see record --data)."),
    ] = None
    pretrained: Pretrained = False
    layer: Layers = None
    pool: Pool = None
    features_only: FeaturesOnly = False
    limit: Limit = 0
    size: Size = 224
    raw: Raw = False
    length: Length = None
    tokenizer: Tokenizer = None
    batch_size: BatchSize = None
    logits: Logits = "auto"
    dtype: Dtype = None
    device: Device = ""


DEFAULT_RECORDING = RecordingOptions()


@dataclass(frozen=True)
class ThresholdOptions:
    """What `check` and `copies` judge copies by: a field for each threshold of `rs.check`."""

    max_disagreement: Annotated[
        Optional[float],
        Option(metavar="x", help="Maximum share of samples with a different predicted class."),
    ] = None
    max_kl: Annotated[
        Optional[list[str]],
        Option(
            metavar="x or pNN=x",
            help="Maximum mean KL(base‖copy) in nats, or of a percentile (p99=0.05); repeatable.",
        ),
    ] = None
    max_js: Annotated[
        Optional[list[str]],
        Option(
            metavar="x or pNN=x",
            help="Maximum mean Jensen-Shannon divergence in nats, or of a percentile; repeatable.",
        ),
    ] = None
    min_kappa: Annotated[
        Optional[float], Option(metavar="x", help="Minimum Cohen's kappa of the predictions.")
    ] = None
    kl_cap: Annotated[
        Optional[float],
        Option(
            metavar="x", help="Cap on the KL of a single sample in the mean, in nats. Default: 1."
        ),
    ] = None
    min: Annotated[
        Optional[list[str]],
        Option(
            "--min",
            metavar="KERNEL=x",
            help="Minimum CKA of a kernel at the worst layer, or averaged over layers with "
            "mean:KERNEL=x; repeatable.",
        ),
    ] = None
    min_db: Annotated[
        Optional[float],
        Option(
            metavar="x",
            help="Minimum signal-to-noise ratio (SQNR) of features in dB, at the worst layer.",
        ),
    ] = None
    min_neighbours: Annotated[
        Optional[float],
        Option(metavar="x", help="Minimum share of nearest neighbours in common (embeddings)."),
    ] = None
    min_cosine: Annotated[
        Optional[list[str]],
        Option(
            metavar="pNN=x",
            help="Minimum cosine similarity of a sample's two embeddings, at a percentile "
            "(p01=0.98); repeatable.",
        ),
    ] = None
    ignore_unmatched: Annotated[
        bool,
        Option(
            "--ignore-unmatched",
            help="Ignore layers of the base that have no counterpart in the copy.",
        ),
    ] = False
    thresholds: Annotated[
        Optional[Path],
        Option(metavar="FILE.toml", help="Read thresholds from a file; options override it."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The arguments of `rs.check` that were given."""
        return {name: value for name, value in vars(self).items() if value not in (None, [], False)}

    def collected(self) -> tuple[Threshold, ...]:
        """The thresholds, each once, or an error if one is out of its range."""
        from ..gate.thresholds import collect_thresholds

        given = self.given()
        given.pop("ignore_unmatched", None)
        return collect_thresholds(**given)


NO_THRESHOLDS = ThresholdOptions()
_OPTION_GROUPS: dict[str, type[Any]] = {"models": RecordingOptions, "limits": ThresholdOptions}


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose arguments `models` and `limits` are options on the command line.

    A field of `RecordingOptions` or `ThresholdOptions` becomes an option.
    """
    groups: dict[str, list[inspect.Parameter]] = {}
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        if own.name in _OPTION_GROUPS:
            fields = inspect.signature(_OPTION_GROUPS[own.name], eval_str=True).parameters.values()
            groups[own.name] = list(fields)
        parameters += groups.get(own.name, [own])

    def run(**given: Any) -> None:
        for group, options in groups.items():
            values = {option.name: given.pop(option.name) for option in options}
            given[group] = _OPTION_GROUPS[group](**values)
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keyword_only = [each.replace(kind=each.KEYWORD_ONLY) for each in parameters]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run


_PYTHON_NAMES = {"layer": "layers", "compiled": "compile"}  # a parameter's name, and Python's
_NOT_AS_TYPED = ("tokenizer", "shard", "checkpoint")  # fields that a command fills in otherwise


def record_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `RecordConfig` from a command's parameters; those not given keep their default."""
    found = {_PYTHON_NAMES.get(name, name): value for name, value in given.items()}
    found["gradients"] = not found["features_only"]
    return {
        name: value
        for name, value in found.items()
        if name in OPTIONS and name not in _NOT_AS_TYPED and value not in (None, "", "auto", [])
    }


_OPTION_PATTERN = re.compile(r"`([a-z][a-z_]*)(?:=([^`]*))?`")
_QUOTES = "\"'"
_CALLABLE_STARTS = (
    "<",
    "lambda",
    "function",
)  # how the value of an option that is a function begins
_CLI_NAMES = {"layers": "layer"}  # Python's name, and the command's
_CLI_SPELLINGS = {
    "gradients=False": "--features-only",
    "gradients=True": "gradients (no --features-only)",
    'shard="ranks"': "torchrun",
    "shard=(i, n)": "--shard I/N",
}
_FUNCTION_OPTIONS = {  # what these options are where their value is a function
    "call": "a function that runs the model (Python only)",
    "logits": "a function that returns the logits (Python only)",
    "pool": "a pooling function (Python only)",
    "sample": "resemblance.stream in a FILE.py:FUNCTION, with a function that reads a row",
    "target": "your own loss function (Python only)",
}
_PYTHON_ONLY = {  # options of no command
    "deterministic": "deterministic recording",
    "keep_sums": "stored accumulators",
    "max_dim": "a different width of the fold",
    "per_sample": "buckets per sample",
}


def cli_options_in(message: str) -> str:
    """A message with the options in it as they are typed on the command line.

    >>> cli_options_in("record with `gradients=False`, or `batch_size=8`")
    'record with --features-only, or --batch-size 8'
    """
    return _rewrite_options(message, _cli_option)


def yaml_options_in(message: str) -> str:
    """A message with the options in it as the file of a sweep has them.

    >>> yaml_options_in("record with `gradients=False`")
    'record with gradients: false'
    """
    return _rewrite_options(message, _yaml_option)


def _rewrite_options(message: str, form: Callable[[str, str | None], str | None]) -> str:
    def render(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name in _FUNCTION_OPTIONS and (value or "").startswith(_CALLABLE_STARTS):
            return _FUNCTION_OPTIONS[name]
        return form(name, value) or found[0]

    return _OPTION_PATTERN.sub(render, message)


def _cli_option(name: str, value: str | None) -> str | None:
    """`--name value`; None for a word in backticks that is no option."""
    whole = name if value is None else f"{name}={value}"
    if whole in _CLI_SPELLINGS:
        return _CLI_SPELLINGS[whole]
    option = _long_options().get(_CLI_NAMES.get(name, name))
    if name in _PYTHON_ONLY or option is None:
        if value is None:
            return f"{name} (Python only)" if name in _PYTHON_ONLY else None
        return f"{_PYTHON_ONLY.get(name, whole)} (Python only)"
    on, *_ = option.opts
    if value is None:
        return str(on)
    if option.is_flag:
        off = option.secondary_opts[0] if option.secondary_opts else f"no {on}"
        return str(on if value == "True" else off)
    return f"{on} {value.strip(_QUOTES)}"


def _yaml_option(name: str, value: str | None) -> str | None:
    if value is None:
        return name
    plain = {"True": "true", "False": "false", "None": "null"}
    return f"{name}: {plain.get(value, value.strip(_QUOTES))}"


@functools.cache
def _long_options() -> dict[str, Any]:
    """The long options of all commands, by their names in Python."""
    from .main import app  # once it has all commands, which import this module

    found: dict[str, Any] = {}
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            for word in parameter.opts:
                if word.startswith("--"):
                    found.setdefault(word[2:].replace("-", "_"), parameter)
    return found
