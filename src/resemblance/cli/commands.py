"""The app of `resemblance` and its smaller subcommands, each a thin shell around one function.

demo, layers, record, samples, merge, compare, adaptation, report and info are here; `check`,
`recommend`, `sensitivity`, `serve`, `sweep` and `zoo` have modules of their own. `--json FILE` (`-`
for standard output) writes the numbers of a table for machines. Slow imports are deferred to the
command that needs them (`rs` imports a name when it is first used), so that `--help` does not wait
for torch.

Also here, for `record`: passes shared among torchrun's processes, or split with `--shard I/N`.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import typer
from typer import Argument, Option

import resemblance as rs

from .._utils.atomic_files import write_atomically
from .._utils.formatting import count_noun
from ..errors import DataError
from ..recording.config import MAX_FULL_GRAM_SAMPLES, RecordConfig
from ..similarity.indices.registry import index_names
from ..similarity.kernels import ESTIMATORS, KERNELS, check_names
from . import output
from .load_or_record import NetworkArgument, RecordingNeeds, load_or_record
from .options import (
    DATA,
    DEFAULT_RECORDING,
    FILE_OR_MODEL,
    HELP,
    MODEL,
    BatchSize,
    ClassNames,
    DataName,
    Device,
    Dtype,
    FeaturesOnly,
    Files,
    FlipsFile,
    Json,
    Kernel,
    Layers,
    Length,
    Limit,
    Logits,
    ModelName,
    Pool,
    Pretrained,
    Raw,
    RecordingOptions,
    Size,
    Tokenizer,
    Weights,
    one_of_help,
    record_options,
    with_recording_options,
)
from .output import check_outputs

if TYPE_CHECKING:
    from ..representation.representation import Representation
    from ..similarity.flips import Flips


_GROUP_TIMEOUT = datetime.timedelta(
    days=7
)  # that one may be ahead of another; torchrun ends the dead


def launched_by_torchrun() -> bool:
    """Whether torchrun, or what sets the same variables, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def parse_shard(text: str) -> tuple[int, int] | Literal["ranks"] | None:
    """What `--shard` says, or that torchrun's processes share the data; None for all of them.

    >>> parse_shard("2/8")
    (2, 8)
    """
    if not text:
        return "ranks" if launched_by_torchrun() else None
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    if not i < n:
        raise DataError(f"--shard takes I/N with I from 0 to N - 1, as 0/8; found {text!r}")
    if launched_by_torchrun():
        raise DataError(
            "torchrun's processes share all of the data; leave --shard out, or start one process"
        )
    return i, n


def refuse_small_shards(rep: Representation, blocks: int) -> None:
    """An error if a shard is of so few samples that their kernels are kept whole, in one pass."""
    total, kept = rep.data.total, blocks * rep.settings.block
    sharded = rep.data.shards[0][1] > 1 and rep.settings.unit == "sample"
    if sharded and total is not None and total <= min(MAX_FULL_GRAM_SAMPLES, kept):
        raise DataError(
            f"{total:,} samples are too few to be recorded in shards: up to "
            f"{MAX_FULL_GRAM_SAMPLES:,} their kernels are kept whole, which takes one "
            "pass; leave --shard out"
        )


@contextlib.contextmanager
def process_group(device: str) -> Iterator[tuple[int, str]]:
    """This process's rank and device, with a group of all of them in the block."""
    import torch
    import torch.distributed as dist

    if not launched_by_torchrun():
        yield 0, device
        return
    cuda = device.startswith("cuda") if device else torch.cuda.is_available()
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda and ":" not in device else device
    if cuda:
        torch.cuda.set_device(own)
    try:
        _init_process_group("nccl" if cuda else "gloo")
    except (RuntimeError, ValueError) as error:
        raise DataError(
            "the variables RANK and WORLD_SIZE say that this is one of several processes, but they "
            f"do not find each other ({error}); start them with torchrun, or unset the variables"
        ) from error
    try:
        yield dist.get_rank(), own or "cpu"
    finally:
        dist.destroy_process_group()


def _init_process_group(backend: str) -> None:
    """The group of all processes, under a name for each start of torchrun's."""
    import torch._dynamo  # noqa: F401 - if it came after the group, the group's threads would outlive its end
    from torch.distributed.distributed_c10d import PrefixStore, init_process_group
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://"))
    # where torchrun restarts them, its store still has the addresses of the dead
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = PrefixStore(f"start {start}", store)
    init_process_group(backend, store=own, rank=rank, world_size=count, timeout=_GROUP_TIMEOUT)


app = typer.Typer(
    name="resemblance",
    help="How alike are two neural networks, where do they part, and which one fits my data?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    if version:
        typer.echo(rs.__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, Option("--out", "-o", help="Folder to write.")] = Path("resemblance-demo"),
    zoo: Annotated[
        bool, Option("--zoo", help="Fill a zoo instead, and ask it which network fits new data.")
    ] = False,
) -> None:
    """Train small networks on handwritten digits, compare them, and write a report."""
    if zoo:
        from ..demo.zoo_demo import run
    else:
        from ..demo.digits_demo import run

    run(out, say=output.print_line)


@app.command()
def layers(
    model: ModelName,
    data: DataName,
    weights: Weights = None,
    size: Size = 224,
    raw: Raw = False,
    tokenizer: Tokenizer = None,
    only: Annotated[
        Optional[list[str]],
        Option("--filter", help="Only what --layer would take; repeat for more. Default: all."),
    ] = None,
    json_file: Json = None,
) -> None:
    """List what can be recorded: the modules that run, their shapes, and what `auto` picks."""
    from .._data.text import TextOptions
    from .._models.auto_layers import INPUT_SUFFIX, choose_auto_layers
    from .._models.layer_patterns import select_layers
    from .._models.loading import load_model
    from .._models.run import open_pass
    from ..recording.record import NamedRecording, load_recording_data

    check_outputs(json_file, read=[model, data, weights])
    net = load_model(model, weights=weights, trained=False)
    few = 0 if ".py:" in data else 2  # what a trial needs; a function may give what has no length
    text = TextOptions(tokenizer=tokenizer)
    wanted = NamedRecording(model, data, size=size, raw=raw, limit=few, text=text, buffer=1)
    samples = load_recording_data(wanted)
    with open_pass(net, samples) as run:
        calls, choice = run.calls, choose_auto_layers(run.calls)
        taps = select_layers(run.model, only, calls) if only else None
    chosen = choice.names()
    asked = None if taps is None else {tap.name.removesuffix(INPUT_SUFFIX) for tap in taps}
    rows: list[dict[str, Any]] = [
        {
            "layer": call.name,
            "kind": call.kind,
            "shape": None if call.output is None else list(call.output.of_a_sample),
            "auto": [c for c in chosen if c.removesuffix(INPUT_SUFFIX) == call.name],
        }
        for call in calls
        if asked is None or call.name in asked
    ]
    if not output.write_json(json_file, rows):
        output.show_layers(rows, chosen, len(calls))
        if choice.left_out:
            output.print_wrapped(
                f"without an axis of samples, so left out: {', '.join(choice.left_out)}"
            )


@app.command()
def record(
    out: Annotated[Path, Option("--out", "-o", help="File to write (.rsm).")],
    model: Annotated[Optional[str], MODEL] = None,
    data: Annotated[Optional[str], DATA] = None,
    arrays: Annotated[
        Optional[Path],
        Option(
            metavar="FILE",
            help="An .npz or .safetensors of outputs that another engine computed, instead of "
            "--model and --data; needs --data-id or --like.",
        ),
    ] = None,
    like: Annotated[
        Optional[Path],
        Option(
            metavar="FILE.rsm",
            help="The recording whose samples --arrays holds, a row for each that `resemblance "
            "samples` lists.",
        ),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    layer: Layers = None,
    pool: Pool = None,
    target: Annotated[str, Option(help=HELP["target"])] = "tempered",
    beta: Annotated[float, Option(help=HELP["beta"])] = 0.5,
    features_only: FeaturesOnly = False,
    seed: Annotated[int, Option(help=HELP["seed"])] = 0,
    buckets: Annotated[int, Option(help=HELP["buckets"])] = 512,
    block: Annotated[
        Optional[int],
        Option(help=HELP["block"]),
    ] = None,
    blocks: Annotated[int, Option(help=HELP["blocks"])] = 64,
    outputs: Annotated[bool, Option("--outputs/--no-outputs", help=HELP["outputs"])] = True,
    outputs_of: Annotated[
        Optional[Path],
        Option("--outputs-of", help=HELP["outputs_of"]),
    ] = None,
    limit: Limit = 0,
    buffer: Annotated[
        int, Option(min=1, help="Samples of a stream that wait to be shuffled.")
    ] = 10_000,
    batch_size: BatchSize = None,
    unit: Annotated[str, Option(help=HELP["unit"])] = "auto",
    tokens: Annotated[int, Option(help=HELP["tokens"])] = 16,
    length: Length = None,
    packing: Annotated[
        Optional[str],
        Option(help="packed or each: texts joined and cut, or one a sequence; default: what fits."),
    ] = None,
    text_field: Annotated[
        Optional[str],
        Option("--text-field", help="Field of a row that holds its text; default: text."),
    ] = None,
    size: Size = 224,
    raw: Raw = False,
    on_bad: Annotated[str, Option(help=HELP["on_bad"])] = "raise",
    device: Device = "",
    name: Annotated[str, Option(help=HELP["name"])] = "",
    data_id: Annotated[str, Option(help=HELP["data_id"])] = "",
    shard: Annotated[str, Option(metavar="I/N", help=HELP["shard"])] = "",
    checkpoint: Annotated[
        Optional[Path],
        Option(help=HELP["checkpoint"]),
    ] = None,
    every: Annotated[float, Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    compiled: Annotated[bool, Option("--compile", help=HELP["compile"])] = False,
    tokenizer: Tokenizer = None,
    logits: Logits = "auto",
    dtype: Dtype = None,
    json_file: Json = None,
) -> None:
    """Record a network on a data set: one pass, no labels, one file."""
    options = dict(locals())
    given = record_options(options)
    from .._data.text import TextOptions, tokenized_text_of
    from ..recording import checkpoints
    from ..recording.record import NamedRecording, load_recording_data, record_named

    read = [model, data, weights, outputs_of, arrays, like]
    check_outputs(out, json_file, checkpoint, read=read)
    if arrays is not None:
        _refuse_beside_arrays(options)
        _report_recording(_recorded_arrays(arrays, like, given, name or out.stem), out, json_file)
        return
    if like is not None:
        raise DataError("--like says which samples --arrays holds; give both, or leave it out")
    if model is None or data is None:
        raise DataError("expected --model and --data, or --arrays")
    text = TextOptions(length, cast(Any, packing), text_field, tokenizer)
    wanted = NamedRecording(
        model, data, weights, pretrained, size, raw, on_bad == "skip", limit, text, buffer=buffer
    )
    config = RecordConfig(
        **given | {"name": name or out.stem},
        shard=parse_shard(shard),
        checkpoint=checkpoint and (checkpoint, every),
    )
    with process_group(device) as (rank, own):
        wanted = replace(wanted, device=own)
        samples = load_recording_data(wanted)
        sequences = tokenized_text_of(samples)
        if sequences is not None and not rank:
            output.print_line(sequences.summary, err=True)
        config = replace(config, progress=False if rank else None)
        rep = record_named(wanted, samples, config)
        refuse_small_shards(rep, blocks)
        if rank:
            return
        _report_recording(rep, out, json_file)
        if checkpoint is not None:
            checkpoints.remove_checkpoints(checkpoint)


_ARRAY_OPTIONS = ("logits", "seed", "buckets", "block", "blocks", "on_bad", "data_id")
_FILE_OPTIONS = ("arrays", "like", "out", "name", "json_file")


def _refuse_beside_arrays(options: dict[str, Any]) -> None:
    """Refuse options about a pass, which there is none of where arrays are read."""
    defaults = inspect.signature(record).parameters
    for option, value in options.items():
        if option not in (*_ARRAY_OPTIONS, *_FILE_OPTIONS) and value != defaults[option].default:
            raise DataError(
                f"--{option.replace('_', '-')} is for a network that is run, and --arrays reads "
                "what one returned; leave it out"
            )


def _recorded_arrays(
    arrays: Path, like: Path | None, given: dict[str, Any], name: str
) -> Representation:
    from ..recording.record_arrays import arrays_in_file

    defaults = RecordConfig()
    how = {
        key: value
        for key, value in given.items()
        if key in _ARRAY_OPTIONS and value != getattr(defaults, key)
    }
    read = arrays_in_file(arrays)
    rep = rs.record_arrays(**read, **how, like=like, name=name)
    if like is not None and "labels" not in read:
        output.print_line(
            f"the rows of {arrays} are taken to be in the order that `resemblance samples` lists "
            f"of {like}; labels beside them would show it",
            err=True,
        )
    return rep


@app.command()
def samples(
    file: Annotated[Path, Argument(help="A file that `resemblance record` wrote.")],
    out: Annotated[
        str, Option("--out", "-o", metavar="FILE.csv", help="File to write; default: - (print).")
    ] = "-",
) -> None:
    """List the samples, or tokens, that a recording has predictions of, in its order.

    Run another engine on these, and read its outputs with `record --arrays FILE --like`.
    """
    from ..recording.record_arrays import check_known_samples

    check_outputs(out, read=[file])
    rep = rs.load(file)
    check_known_samples(rep)
    numbers = rep.sample_numbers()
    rows = zip(*(column.tolist() for column in numbers.values()), strict=True)
    lines = [",".join(map(str, row)) for row in ([*numbers], *rows)]
    if out in output.STANDARD_OUTPUT:
        typer.echo("\n".join(lines))
    else:
        write_atomically(out, ("\n".join(lines) + "\n").encode())


def _report_recording(rep: Representation, out: Path, json_file: str | None) -> None:
    """Save a recording and say so."""
    rep.save(out)
    if not output.write_json(json_file, output.file_facts(out)):
        skipped = f" ({rep.data.skipped} skipped)" if rep.data.skipped else ""
        part = "" if rep.complete else f", {output.describe_shards(rep.data.shards)}"
        output.print_line(
            f"{out}: {rep.name}, {count_noun(len(rep), 'layer', 'layers')}, {rep.samples:,} "
            f"{rep.settings.unit}s{skipped}"
            f"{part}, {out.stat().st_size / 1e6:.1f} MB"
        )


@app.command()
def merge(
    files: Annotated[list[Path], Argument(help="Shards, from `resemblance record --shard`.")],
    out: Annotated[Path, Option("--out", "-o", help="File to write (.rsm).")],
    json_file: Json = None,
) -> None:
    """Put shards that were recorded apart together into one file."""
    check_outputs(out, json_file, read=files)
    rep = rs.merge(rs.load(file) for file in files)
    rep.save(out)
    if not output.write_json(json_file, output.file_facts(out)):
        part = "" if rep.complete else f"; {output.describe_shards(rep.data.shards)}"
        output.print_line(f"{out}: {rep.name}, {rep.samples:,} {rep.settings.unit}s{part}")


def read_class_names(classes: Path | None, flips: Path | None) -> list[str] | None:
    """The names in the file of `--classes`, a line each; None if there is none."""
    if classes is None:
        return None
    if flips is None:
        raise DataError("--classes names the classes in the file of --flips; give both")
    try:
        return classes.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{classes} is not text in UTF-8; write a name a line") from error


def write_flips(
    flips: Path | None, a: Representation, b: Representation, classes: list[str] | None
) -> Flips | None:
    """The samples whose class differs, once they are written; None if they are not asked for."""
    if flips is None:
        return None
    found = rs.flips(a, b, classes=classes)
    found.save_csv(flips)
    return found


@app.command()
@with_recording_options
def compare(
    a: Annotated[str, Argument(help=f"Rows. {FILE_OR_MODEL}")],
    b: Annotated[str, Argument(help="Columns. Likewise.")],
    kernel: Annotated[
        Optional[str],
        Option(help=f"{one_of_help(KERNELS)} Default: features and gradients."),
    ] = None,
    index: Annotated[str, Option(help=one_of_help(index_names()))] = "cka",
    centre: Annotated[
        Optional[bool],
        Option("--centre/--no-centre", help="Take the mean off; default: for features."),
    ] = None,
    estimator: Annotated[str, Option(help=one_of_help(("auto", *ESTIMATORS)))] = "auto",
    unpaired: Annotated[
        bool,
        Option("--unpaired", help="Allow different samples, paired by position: this says little."),
    ] = False,
    permutations: Annotated[
        Optional[int],
        Option(help="Chance levels and p-values from so many random orders of samples."),
    ] = None,
    pairs: Annotated[bool, Option("--map", help="Show all pairs of layers as well.")] = False,
    a_weights: Annotated[
        Optional[str],
        Option(help="Weights for A, if a model."),
    ] = None,
    b_weights: Annotated[
        Optional[str],
        Option(help="Weights for B, if a model."),
    ] = None,
    b_dtype: Annotated[
        Optional[str],
        Option(help="Precision of B alone, such as bfloat16, if a model."),
    ] = None,
    models: RecordingOptions = DEFAULT_RECORDING,
    flips: FlipsFile = None,
    classes: ClassNames = None,
    json_file: Json = None,
    png: Annotated[
        Optional[Path],
        Option(help="Draw the map and the curve over layers."),
    ] = None,
) -> None:
    """Compare two networks, layer by layer."""
    from ..views import plots
    from .compare_table import show_comparison

    if png is not None:
        png = plots.picture_path(png)
    check_outputs(json_file, png, flips, read=[a, b, a_weights, b_weights, models.data, classes])
    names = read_class_names(classes, flips)
    check_names(kernel or "features", index, "blocks" if estimator == "auto" else estimator)
    needs = RecordingNeeds(
        (cast(Any, kernel or "features"),),
        gradients=kernel is None,
        buckets=True,
        same_layers=False,
    )
    networks = NetworkArgument("a", a, a_weights), NetworkArgument("b", b, b_weights, b_dtype)
    one, two = load_or_record(*networks, models, needs)
    how: dict[str, Any] = {"index": index, "estimator": estimator, "centre": centre}
    how |= {"unpaired": unpaired, "permutations": permutations}
    found = rs.compare(one, two, kernel=cast(Any, kernel), **how)
    if png is not None:
        plots.save_figure(found.plot(), png)
    changed = write_flips(flips, one, two, names)
    if not output.write_json(json_file, found.to_dict()):
        show_comparison(found, pairs=pairs)
        if changed is not None:
            output.print_wrapped(*changed.summary().split("\n"))


@app.command()
def adaptation(
    files: Files,
    kernel: Kernel = "product",
    json_file: Json = None,
    png: Annotated[Optional[Path], Option(help="Draw the curves over layers.")] = None,
) -> None:
    """How much must a network change for the data it was recorded on?"""
    from ..views import plots

    if png is not None:
        png = plots.picture_path(png)
    check_outputs(json_file, png, read=files)
    results = [rs.adaptation(rs.load(file), kernel=cast(Any, kernel)) for file in files]
    if png is not None:
        plots.save_figure(results[0].plot(*results[1:]), png)
    contents = [result.to_dict() for result in results]
    if not output.write_json(json_file, contents):
        for i, (content, result) in enumerate(zip(contents, results, strict=True)):
            output.show_adaptation(content, result.outputs.sentence(), after=i > 0)


@app.command()
def report(
    files: Files,
    out: Annotated[Path, Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    title: Annotated[str, Option(help="Of the page.")] = "",
    in_order: Annotated[
        bool, Option("--in-order", help="Files are checkpoints of one run, in order of training.")
    ] = False,
) -> None:
    """Write one self-contained page that compares any number of recorded networks."""
    check_outputs(out, read=files)
    rs.report([rs.load(file) for file in files], out, title=title or None, in_order=in_order)
    many = count_noun(len(files), "network", "networks")
    output.print_line(f"{out}: {many}, {out.stat().st_size / 1e6:.2f} MB")


@app.command()
def info(files: Files, json_file: Json = None) -> None:
    """Say what recorded files hold and where it came from."""
    check_outputs(json_file, read=files)
    found = [output.file_facts(file) for file in files]
    if not output.write_json(json_file, found):
        for i, about in enumerate(found):
            output.show_file(about, after=i > 0)
