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
    with_shared_options,
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
        raise DataError(f"--shard must be I/N with 0 <= I < N, such as 0/8; found {text!r}")
    if launched_by_torchrun():
        raise DataError(
            "--shard cannot be used under torchrun, whose processes already share the data; omit "
            "--shard, or start a single process"
        )
    return i, n


def refuse_small_shards(rep: Representation, blocks: int) -> None:
    """An error if a shard is of so few samples that their kernels are kept whole, in one pass."""
    total, kept = rep.data.total, blocks * rep.settings.block
    sharded = rep.data.shards[0][1] > 1 and rep.settings.unit == "sample"
    if sharded and total is not None and total <= min(MAX_FULL_GRAM_SAMPLES, kept):
        raise DataError(
            f"{total:,} samples are too few for --shard: with up to {MAX_FULL_GRAM_SAMPLES:,} "
            "samples the full Gram matrix is stored, which takes a single recording; omit --shard"
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
            "the environment variables RANK and WORLD_SIZE are set, but torch.distributed could "
            f"not be initialised ({error}); start the processes with torchrun, or unset both "
            "variables"
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
    help="How similar are two neural networks, where do they diverge, and which one fits my data?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    if version:
        typer.echo(rs.__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[
        Path, Option("--out", "-o", metavar="FOLDER", help="Folder to write to.")
    ] = Path("resemblance-demo"),
    zoo: Annotated[
        bool,
        Option("--zoo", help="Build a zoo instead, and find the network that fits new data."),
    ] = False,
) -> None:
    """Train small networks on digits, compare them, write a report.

    Takes one to two minutes on a CPU, and downloads nothing.
    """
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
        Option(
            "--filter",
            metavar="NAME",
            help="List only these layers, given as for record --layer; repeatable. Default: all.",
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """List the layers of a model that can be recorded.

    Shows every module that runs, the shape of its output, and the layers that are recorded by
    default (`auto`).
    """
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
                f"Skipped by auto (no sample dimension): {', '.join(choice.left_out)}."
            )


@app.command()
def record(
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.rsm", help="File to write.")],
    model: Annotated[Optional[str], MODEL] = None,
    data: Annotated[Optional[str], DATA] = None,
    arrays: Annotated[
        Optional[Path],
        Option(
            metavar="FILE",
            help="Activations and outputs computed elsewhere (.npz or .safetensors), instead of "
            "--model and --data; requires --data-id or --like.",
        ),
    ] = None,
    like: Annotated[
        Optional[Path],
        Option(
            metavar="FILE.rsm",
            help="Recording whose samples --arrays contains: one row for each sample that "
            "`resemblance samples` lists.",
        ),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    layer: Layers = None,
    pool: Pool = None,
    target: Annotated[str, Option(metavar="TARGET", help=HELP["target"])] = "tempered",
    beta: Annotated[float, Option(metavar="BETA", help=HELP["beta"])] = 0.5,
    features_only: FeaturesOnly = False,
    elementwise: Annotated[bool, Option("--elementwise", help=HELP["elementwise"])] = False,
    seed: Annotated[int, Option(metavar="N", help=HELP["seed"])] = 0,
    buckets: Annotated[int, Option(metavar="N", help=HELP["buckets"])] = 512,
    block: Annotated[
        Optional[int],
        Option(metavar="N", help=HELP["block"]),
    ] = None,
    blocks: Annotated[int, Option(metavar="N", help=HELP["blocks"])] = 64,
    outputs: Annotated[bool, Option("--outputs/--no-outputs", help=HELP["outputs"])] = True,
    outputs_of: Annotated[
        Optional[Path],
        Option("--outputs-of", metavar="BASE.rsm", help=HELP["outputs_of"]),
    ] = None,
    limit: Limit = 0,
    buffer: Annotated[
        int, Option(min=1, metavar="N", help="Size of the shuffle buffer for streamed data.")
    ] = 10_000,
    batch_size: BatchSize = None,
    unit: Annotated[str, Option(metavar="UNIT", help=HELP["unit"])] = "auto",
    tokens: Annotated[int, Option(metavar="N", help=HELP["tokens"])] = 16,
    length: Length = None,
    packing: Annotated[
        Optional[str],
        Option(
            metavar="HOW",
            help="How texts become sequences: packed (concatenated and cut) or each (one sequence "
            "per text). Default: chosen from the model and the data.",
        ),
    ] = None,
    text_field: Annotated[
        Optional[str],
        Option(
            "--text-field",
            metavar="NAME",
            help="Field of each row that contains the text. Default: text.",
        ),
    ] = None,
    size: Size = 224,
    raw: Raw = False,
    on_bad: Annotated[str, Option(metavar="HOW", help=HELP["on_bad"])] = "raise",
    device: Device = "",
    name: Annotated[str, Option(metavar="NAME", help=HELP["name"])] = "",
    data_id: Annotated[str, Option(metavar="NAME", help=HELP["data_id"])] = "",
    shard: Annotated[str, Option(metavar="I/N", help=HELP["shard"])] = "",
    checkpoint: Annotated[
        Optional[Path],
        Option(metavar="FILE", help=HELP["checkpoint"]),
    ] = None,
    every: Annotated[
        float, Option(min=0, metavar="SECONDS", help="Seconds between checkpoints.")
    ] = 60.0,
    compiled: Annotated[bool, Option("--compile", help=HELP["compile"])] = False,
    tokenizer: Tokenizer = None,
    logits: Logits = "auto",
    dtype: Dtype = None,
    json_file: Json = None,
) -> None:
    """Record a network on a data set, into one file.

    Takes one forward and one backward pass over the data. No labels are needed.
    """
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
        raise DataError(
            "--like requires --arrays, whose samples it identifies; give both, or omit it"
        )
    if model is None or data is None:
        raise DataError("nothing to record: give --model and --data, or --arrays")
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
                f"--{option.replace('_', '-')} has no effect with --arrays, which reads stored "
                "outputs and runs no model; omit it"
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
            f"note: the rows of {arrays} are assumed to be in the order of `resemblance samples "
            f"{like}`; add labels to the arrays to verify this",
            err=True,
        )
    return rep


@app.command()
def samples(
    file: Annotated[Path, Argument(metavar="FILE", help="A recording (.rsm).")],
    out: Annotated[
        str, Option("--out", "-o", metavar="FILE.csv", help="File to write; - to print.")
    ] = "-",
) -> None:
    """List the samples of a recording, in its order.

    To compare with a different inference engine: run it on these samples (or tokens), in this
    order, and read its outputs with `record --arrays OUTPUTS --like RECORDING`.
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
    from .._models.runtimes.runtime import OUTPUTS

    rep.save(out)
    if not output.write_json(json_file, output.file_facts(out)):
        skipped = f" ({rep.data.skipped} skipped)" if rep.data.skipped else ""
        part = "" if rep.complete else f", {output.describe_shards(rep.data.shards)}"
        only = rep.layer_names == [OUTPUTS]
        held = "outputs only" if only else count_noun(len(rep), "layer", "layers")
        output.print_line(
            f"{out}: {rep.name}, {held}, {rep.samples:,} "
            f"{rep.settings.unit}s{skipped}"
            f"{part}, {out.stat().st_size / 1e6:.1f} MB"
        )


@app.command()
def merge(
    files: Annotated[
        list[Path],
        Argument(metavar="FILE...", help="Shards written by `resemblance record --shard`."),
    ],
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.rsm", help="File to write.")],
    json_file: Json = None,
) -> None:
    """Merge the shards of a recording into one file."""
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
        raise DataError("--classes requires --flips, whose classes it names; give both")
    try:
        return classes.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{classes} is not UTF-8 text; expected one class name per line") from error


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
@with_shared_options
def compare(
    a: Annotated[str, Argument(metavar="A", help=f"The first network (rows). {FILE_OR_MODEL}")],
    b: Annotated[
        str, Argument(metavar="B", help="The second network (columns): a recording or a model.")
    ],
    kernel: Annotated[
        Optional[str],
        Option(
            metavar="KERNEL",
            help=f"Kernel: {one_of_help(KERNELS)} Default: features and gradients.",
        ),
    ] = None,
    index: Annotated[
        str, Option(metavar="INDEX", help=f"Similarity index: {one_of_help(index_names())}")
    ] = "cka",
    centre: Annotated[
        Optional[bool],
        Option(
            "--centre/--no-centre",
            help="Subtract the mean before comparing. Default: for features only.",
        ),
    ] = None,
    estimator: Annotated[
        str,
        Option(metavar="ESTIMATOR", help=f"Estimator: {one_of_help(('auto', *ESTIMATORS))}"),
    ] = "auto",
    unpaired: Annotated[
        bool,
        Option(
            "--unpaired",
            help="Allow recordings of different samples, paired by position (of little meaning).",
        ),
    ] = False,
    permutations: Annotated[
        Optional[int],
        Option(
            metavar="N", help="Compute chance levels and p-values from N permutations of samples."
        ),
    ] = None,
    pairs: Annotated[
        bool, Option("--map", help="Also show the scores of all layer pairs.")
    ] = False,
    a_weights: Annotated[
        Optional[str],
        Option(metavar="FILE", help="Weights for A, if it is a model."),
    ] = None,
    b_weights: Annotated[
        Optional[str],
        Option(metavar="FILE", help="Weights for B, if it is a model."),
    ] = None,
    b_dtype: Annotated[
        Optional[str],
        Option(metavar="DTYPE", help="Precision to run B in, such as bfloat16, if it is a model."),
    ] = None,
    models: RecordingOptions = DEFAULT_RECORDING,
    flips: FlipsFile = None,
    classes: ClassNames = None,
    json_file: Json = None,
    png: Annotated[
        Optional[Path],
        Option(metavar="FILE", help="Save a figure: scores of all layer pairs and by depth."),
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
    png: Annotated[
        Optional[Path], Option(metavar="FILE", help="Save a figure of both measures by depth.")
    ] = None,
) -> None:
    """Measure how much a network has to adapt to its data.

    Record one network on several data sets, and pass the files. The norm ‖μ‖ of the mean
    embedding is near zero on data the network was trained on, and grows on data that it would
    have to be fine-tuned for.
    """
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
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.html", help="File to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, Option(metavar="TEXT", help="Title of the report.")] = "",
    in_order: Annotated[
        bool,
        Option("--in-order", help="The files are checkpoints of one run, in training order."),
    ] = False,
) -> None:
    """Write an HTML report that compares recorded networks.

    The report is one self-contained file for any number of networks.
    """
    check_outputs(out, read=files)
    rs.report([rs.load(file) for file in files], out, title=title or None, in_order=in_order)
    many = count_noun(len(files), "network", "networks")
    output.print_line(f"{out}: {many}, {out.stat().st_size / 1e6:.2f} MB")


@app.command()
def info(files: Files, json_file: Json = None) -> None:
    """Show what recordings contain and how they were made."""
    check_outputs(json_file, read=files)
    found = [output.file_facts(file) for file in files]
    if not output.write_json(json_file, found):
        for i, about in enumerate(found):
            output.show_file(about, after=i > 0)
