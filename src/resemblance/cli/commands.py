"""The subcommands of `resemblance`: each is a thin shell around one function of the package.

`--json FILE` (`-` for standard output) gives the numbers of a table to machines. What is slow to
load is imported by the command that needs it (`rs` imports a name when it is first used), so that
`--help` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional, cast

import typer
from typer import Argument, Option

import resemblance as rs

from ..similarity.combinations import ESTIMATORS, INDICES, KERNELS
from . import sharing, tables
from .output_files import check_outputs

app = typer.Typer(
    name="resemblance",
    help="How alike are two neural networks, where do they part, and which one fits my data?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}."


Json = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time on Python 3.10
    Option("--json", metavar="FILE", help="Write the numbers as JSON; - for standard output."),
]
ModelName = Annotated[
    str,
    Option("--model", help="torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER or FILE.py:FUNCTION."),
]
DataName = Annotated[
    str,
    Option(
        "--data",
        help="digits, a folder of images, an .npz, a .txt, .jsonl or .parquet of text, tar shards, "
        "a folder of .parquet, hf:NAME-OR-FOLDER, hf-stream:NAME, probe:images, probe:noise, "
        "probe:text or FILE.py:FUNCTION.",
    ),
]
Weights = Annotated[
    Optional[str],  # noqa: UP045
    Option("--weights", help="A .safetensors file or a state dict for the model."),
]
Size = Annotated[int, Option("--size", min=1, help="Side of the square that images are cut to.")]
Raw = Annotated[bool, Option("--raw", help="Pixels in [0, 1], not normalised as ImageNet's.")]
Files = Annotated[list[Path], Argument(help="Files written by `resemblance record`.")]
Kernel = Annotated[str, Option(help=_one_of(KERNELS))]


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
        from ..demo.zoo_story import run
    else:
        from ..demo.story import run

    run(out, say=tables.say)


@app.command()
def layers(
    model: ModelName,
    data: DataName,
    weights: Weights = None,
    size: Size = 224,
    raw: Raw = False,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option("--filter", help="Only what --layer would take; repeat for more. Default: all."),
    ] = None,
    json_file: Json = None,
) -> None:
    """List what can be recorded: the modules that run, their shapes, and what `auto` picks."""
    from .._data.named_data import load_data
    from .._model.automatic_layers import INPUT, automatic
    from .._model.layer_choice import select
    from .._model.model_pass import opened
    from .._model.named_models import load_model

    check_outputs(json_file, read=[model, data, weights])
    net = load_model(model, weights=weights)
    few = 0 if ".py:" in data else 2  # what a trial needs; a function may give what has no length
    samples = load_data(data, size=size, raw=raw, model=model, limit=few, buffer=1)
    with opened(net, samples) as run:
        calls, choice = run.calls, automatic(run.calls)
        taps = select(run.model, only, calls) if only else None
    chosen = choice.names()
    asked = None if taps is None else {tap.name.removesuffix(INPUT) for tap in taps}
    rows: list[dict[str, Any]] = [
        {
            "layer": call.name,
            "kind": call.kind,
            "shape": None if call.output is None else list(call.output.of_a_sample),
            "auto": [c for c in chosen if c.removesuffix(INPUT) == call.name],
        }
        for call in calls
        if asked is None or call.name in asked
    ]
    if not tables.wrote_json(json_file, rows):
        tables.show_layers(rows, chosen, len(calls))
        if choice.left_out:
            tables.tell(f"without an axis of samples, so left out: {', '.join(choice.left_out)}")


@app.command()
def record(
    model: ModelName,
    data: DataName,
    out: Annotated[Path, Option("--out", "-o", help="File to write (.rsm).")],
    weights: Weights = None,
    pretrained: Annotated[
        bool, Option("--pretrained", help="The library's own weights (downloads them).")
    ] = False,
    layer: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option("--layer", help="Name, pattern or !pattern; repeat for more. Default: auto."),
    ] = None,
    pool: Annotated[str, Option(help="flatten, mean, first or last.")] = "flatten",
    target: Annotated[str, Option(help="tempered or labels.")] = "tempered",
    beta: Annotated[float, Option(help="Temperature of the tempered prediction.")] = 0.5,
    features_only: Annotated[bool, Option("--features-only", help="No gradients.")] = False,
    seed: Annotated[int, Option(help="Of order and sketch; compare equal seeds.")] = 0,
    buckets: Annotated[int, Option(help="Buckets of the sketch; 0 for none.")] = 512,
    block: Annotated[
        Optional[int],  # noqa: UP045
        Option(help="Samples in a block; default: 128, or fewer of small data."),
    ] = None,
    blocks: Annotated[int, Option(help="Blocks kept; 0 for none.")] = 64,
    outputs: Annotated[
        bool, Option("--outputs/--no-outputs", help="Keep what the network predicts as well.")
    ] = True,
    outputs_of: Annotated[
        Optional[Path],  # noqa: UP045
        Option("--outputs-of", help="A base's file: keep what this one gives its likely classes."),
    ] = None,
    limit: Annotated[int, Option(min=0, help="Use only the first so many samples.")] = 0,
    buffer: Annotated[
        int, Option(min=1, help="Samples of a stream that wait to be shuffled.")
    ] = 10_000,
    batch_size: Annotated[
        Optional[int],  # noqa: UP045
        Option("--batch-size", help="Samples in a forward pass; default: 128, on a GPU what fits."),
    ] = None,
    unit: Annotated[
        str, Option(help="auto, sample or token: whole sequences, or tokens of them.")
    ] = "auto",
    tokens: Annotated[int, Option(help="Drawn of each sequence, where they are the unit.")] = 16,
    length: Annotated[
        Optional[int],  # noqa: UP045
        Option(min=1, help="Tokens in a sequence of text; default: 512, or what the model takes."),
    ] = None,
    packing: Annotated[
        Optional[str],  # noqa: UP045
        Option(help="packed or each: texts joined and cut, or one a sequence; default: what fits."),
    ] = None,
    text_field: Annotated[
        Optional[str],  # noqa: UP045
        Option("--text-field", help="Field of a row that holds its text; default: text."),
    ] = None,
    size: Size = 224,
    raw: Raw = False,
    on_bad: Annotated[str, Option(help="raise or skip: NaN, Inf and unreadable images.")] = "raise",
    device: Annotated[str, Option(help="cpu, cuda, ...; default: cuda if there.")] = "",
    name: Annotated[str, Option(help="Of the network, in tables and figures.")] = "",
    data_id: Annotated[
        str, Option(help="Name of the samples, where preprocessing differs by model.")
    ] = "",
    shard: Annotated[
        str, Option(metavar="I/N", help="Only the I-th of N shares of the data, for `merge`.")
    ] = "",
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        Option(help="File to save progress in; a pass that finds it goes on from there."),
    ] = None,
    every: Annotated[float, Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    compiled: Annotated[
        bool, Option("--compile", help="Run as one compiled graph, which takes a while to make.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Record a network on a data set: one pass, no labels, one file."""
    from .._data.tokenized_text import TextOptions, sequences_in
    from ..recording import checkpoint_files
    from ..recording.by_name import Wanted, opened_data, record_named

    check_outputs(out, json_file, checkpoint, read=[model, data, weights, outputs_of])
    text = TextOptions(length, cast(Any, packing), text_field)
    wanted = Wanted(
        model, data, weights, pretrained, size, raw, on_bad == "skip", limit, text, buffer=buffer
    )
    options: dict[str, Any] = {"pool": pool, "target": target, "beta": beta, "on_bad": on_bad}
    options |= {"seed": seed, "buckets": buckets, "blocks": blocks}
    options |= {"block": "auto" if block is None else block, "unit": unit, "tokens": tokens}
    options |= {"batch_size": "auto" if batch_size is None else batch_size}
    options |= {"layers": layer or "auto", "gradients": not features_only}
    options |= {"outputs": outputs, "outputs_of": outputs_of}
    options |= {"name": name or out.stem, "data_id": data_id or None, "compile": compiled}
    options |= {"shard": sharing.shard(shard), "checkpoint": sharing.checkpoint(checkpoint, every)}
    with sharing.together(device) as (rank, own):
        wanted = replace(wanted, device=own)
        samples = opened_data(wanted)
        sequences = sequences_in(samples)
        if sequences is not None and not rank:
            tables.say(sequences.summary, err=True)
        rep = record_named(wanted, samples, **options, progress=False if rank else None)
        sharing.refuse_few(rep, blocks)
        if rank:
            return
        rep.save(out)
        if checkpoint is not None:
            checkpoint_files.remove(checkpoint)
    if not tables.wrote_json(json_file, tables.about(rep, out)):
        skipped = f" ({rep.data.skipped} skipped)" if rep.data.skipped else ""
        part = "" if rep.complete else f", {tables.shards(rep)}"
        tables.say(
            f"{out}: {rep.name}, {len(rep)} layers, {rep.samples:,} {rep.settings.unit}s{skipped}"
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
    if not tables.wrote_json(json_file, tables.about(rep, out)):
        part = "" if rep.complete else f"; {tables.shards(rep)}"
        tables.say(f"{out}: {rep.name}, {rep.samples:,} {rep.settings.unit}s{part}")


@app.command()
def compare(
    a: Annotated[Path, Argument(help="Rows.")],
    b: Annotated[Path, Argument(help="Columns.")],
    kernel: Annotated[
        Optional[str],  # noqa: UP045
        Option(help=f"{_one_of(KERNELS)} Default: features and gradients."),
    ] = None,
    index: Annotated[str, Option(help=_one_of(INDICES))] = "cka",
    centre: Annotated[
        Optional[bool],  # noqa: UP045
        Option("--centre/--no-centre", help="Take the mean off; default: for features."),
    ] = None,
    estimator: Annotated[str, Option(help=_one_of(("auto", *ESTIMATORS)))] = "auto",
    pairs: Annotated[bool, Option("--map", help="Show all pairs of layers as well.")] = False,
    json_file: Json = None,
    png: Annotated[
        Optional[Path],  # noqa: UP045
        Option(help="Draw the map and the curve over layers."),
    ] = None,
) -> None:
    """Compare two recorded networks, layer by layer."""
    from ..views import figures, two_kernels_drawn
    from . import two_kernels
    from .compared_layers import show_compared

    if png is not None:
        png = figures.picture(png)
    check_outputs(json_file, png, read=[a, b])
    one, two = rs.load(a), rs.load(b)
    how: dict[str, Any] = {"index": index, "estimator": estimator, "centre": centre}
    if kernel is None:
        result = two_kernels.both(one, two, **how)
        content, found = result.to_dict(), result.found
    else:
        single = rs.compare(one, two, kernel=cast(Any, kernel), **how)
        result = two_kernels.Compared((single,))
        content, found = single.to_dict(), (single,)
    if png is not None:
        drawn = found[0].plot() if len(found) == 1 else two_kernels_drawn.drawn(found)
        figures.save(drawn, png)
    if not tables.wrote_json(json_file, content):
        show_compared(result, summary=kernel is not None, pairs=pairs)


@app.command()
def adaptation(
    files: Files,
    kernel: Kernel = "product",
    json_file: Json = None,
    png: Annotated[Optional[Path], Option(help="Draw the curves over layers.")] = None,  # noqa: UP045
) -> None:
    """How much must a network change for the data it was recorded on?"""
    from ..views import figures

    if png is not None:
        png = figures.picture(png)
    check_outputs(json_file, png, read=files)
    results = [rs.adaptation(rs.load(file), kernel=cast(Any, kernel)) for file in files]
    if png is not None:
        figures.save(results[0].plot(*results[1:]), png)
    contents = [result.to_dict() for result in results]
    if not tables.wrote_json(json_file, contents):
        for i, content in enumerate(contents):
            tables.show_adaptation(content, after=i > 0)


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
    many = "1 network" if len(files) == 1 else f"{len(files)} networks"
    tables.say(f"{out}: {many}, {out.stat().st_size / 1e6:.2f} MB")


@app.command()
def info(files: Files, json_file: Json = None) -> None:
    """Say what recorded files hold and where it came from."""
    check_outputs(json_file, read=files)
    found = [tables.about(rs.load(file), file) for file in files]
    if not tables.wrote_json(json_file, found):
        for i, about in enumerate(found):
            tables.show_file(about, after=i > 0)
