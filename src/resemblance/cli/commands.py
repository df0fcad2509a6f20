"""The command `resemblance`: each subcommand is a thin shell around one function of the package.

Tables go to standard output, progress and errors to standard error; `--json FILE` (`-` for standard
output) gives the same numbers to machines. A mistake is one line and exit status 2.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from .. import __version__
from ..errors import DataError, ResemblanceError, ResemblanceWarning

if TYPE_CHECKING:
    from rich.table import Table

    from ..representation.representation import Representation

app = typer.Typer(
    name="resemblance",
    help="How alike are two neural networks, where do they part, and which one fits my data?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time on Python 3.10
    typer.Option(
        "--json", metavar="FILE", help="Write the numbers as JSON; - for standard output."
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model", help="torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER or FILE.py:FUNCTION."
    ),
]
DataName = Annotated[
    str,
    typer.Option(
        "--data", help="digits, a folder of images, an .npz, hf:NAME-OR-FOLDER or FILE.py:FUNCTION."
    ),
]
Weights = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--weights", help="A .safetensors file or a state dict for the model."),
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained", help="The library's own weights (downloads them).")
]
Size = Annotated[int, typer.Option("--size", help="Side of the square that images are cut to.")]
Raw = Annotated[bool, typer.Option("--raw", help="Pixels in [0, 1], not normalised as ImageNet's.")]
Files = Annotated[list[Path], typer.Argument(help="Files written by `resemblance record`.")]
Kernel = Annotated[
    str, typer.Option(help="features, gradients, product, sum, elementwise or transport.")
]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


# -- commands -----------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path(
        "resemblance-demo"
    ),
) -> None:
    """Train small networks on handwritten digits, compare them, and write a report."""
    from ..demo.story import run

    run(out, say=typer.echo)


@app.command()
def layers(
    model: ModelName,
    data: DataName,
    weights: Weights = None,
    size: Size = 224,
    raw: Raw = False,
    json_file: Json = None,
) -> None:
    """List what can be recorded: the modules that run, their shapes, and what `auto` picks."""
    from .._data.batches import run_by_convention
    from .._data.named_data import load_data
    from .._data.sources import source
    from .._model.call_trace import trace
    from .._model.layer_choice import INPUT, automatic
    from .._model.named_models import load_model

    net = load_model(model, weights=weights).eval()
    samples = load_data(data, size=size, raw=raw, model=model)
    batch = source(samples, seed=0, block=2, shard=(0, 1)).first
    calls = trace(net, lambda: run_by_convention(net, batch))
    chosen = automatic(net, calls)
    rows: list[dict[str, Any]] = [
        {
            "layer": call.name,
            "kind": call.kind,
            "shape": None if call.shape is None else list(call.shape[1:]),
            "auto": [c for c in chosen if c.removesuffix(INPUT) == call.name],
        }
        for call in calls
    ]
    if not _wrote_json(json_file, rows):
        table = _table("layer", "kind", "shape of a sample", "auto")
        for row in rows:
            shape = "" if row["shape"] is None else " × ".join(map(str, row["shape"])) or "scalar"
            table.add_row(row["layer"], row["kind"], shape, ", ".join(row["auto"]))
        _print(table)
        typer.echo(f"{len(rows)} modules run; auto records {len(chosen)}: {', '.join(chosen)}")


@app.command()
def record(
    model: ModelName,
    data: DataName,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (.rsm).")],
    weights: Weights = None,
    pretrained: Pretrained = False,
    layer: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--layer", help="Name or glob; repeat for more. Default: auto."),
    ] = None,
    pool: Annotated[str, typer.Option(help="flatten, mean, first or last.")] = "flatten",
    target: Annotated[str, typer.Option(help="tempered or labels.")] = "tempered",
    beta: Annotated[float, typer.Option(help="Temperature of the tempered prediction.")] = 0.5,
    features_only: Annotated[bool, typer.Option("--features-only", help="No gradients.")] = False,
    seed: Annotated[int, typer.Option(help="Of order and sketch; compare equal seeds.")] = 0,
    buckets: Annotated[int, typer.Option(help="Buckets of the sketch; 0 for none.")] = 512,
    block: Annotated[int, typer.Option(help="Samples in a block.")] = 128,
    blocks: Annotated[int, typer.Option(help="Blocks kept; 0 for none.")] = 64,
    limit: Annotated[int, typer.Option(help="Use only the first so many samples.")] = 0,
    size: Size = 224,
    raw: Raw = False,
    on_bad: Annotated[
        str, typer.Option(help="raise or skip: NaN, Inf and unreadable images.")
    ] = "raise",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; default: cuda if there.")] = "",
    name: Annotated[str, typer.Option(help="Of the network, in tables and figures.")] = "",
    data_id: Annotated[
        str, typer.Option(help="Name of the samples, where preprocessing differs by model.")
    ] = "",
    json_file: Json = None,
) -> None:
    """Record a network on a data set: one pass, no labels, one file."""
    import torch

    from .._data.named_data import load_data
    from .._model.named_models import load_model
    from ..recording.from_model import record as run

    net = load_model(model, weights=weights, pretrained=pretrained)
    samples = load_data(data, size=size, raw=raw, skip_bad=on_bad == "skip", model=model)
    if limit:
        samples = _first(samples, limit)
    rep = run(
        net.to(device or ("cuda" if torch.cuda.is_available() else "cpu")),
        samples,
        layers=layer or "auto",
        pool=pool,
        target=target,
        beta=beta,
        gradients=not features_only,
        seed=seed,
        buckets=buckets,
        block=block,
        blocks=blocks,
        on_bad=on_bad,
        name=name or out.stem,
        data_id=data_id or None,
    )
    rep.save(out)
    if not _wrote_json(json_file, _about(rep, out)):
        skipped = f" ({rep.data['skipped']} skipped)" if rep.data["skipped"] else ""
        typer.echo(
            f"{out}: {rep.name}, {len(rep)} layers, {rep.samples:,} samples{skipped}, "
            f"{out.stat().st_size / 1e6:.1f} MB"
        )


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Rows.")],
    b: Annotated[Path, typer.Argument(help="Columns.")],
    kernel: Kernel = "product",
    index: Annotated[str, typer.Option(help="cka, cka-debiased, nbs, spectral or rsa.")] = "cka",
    centre: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--centre/--no-centre", help="Take the mean off; default: for features."),
    ] = None,
    estimator: Annotated[str, typer.Option(help="auto, blocks, buckets or paper.")] = "auto",
    json_file: Json = None,
    png: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Draw the map and the curve over layers."),
    ] = None,
) -> None:
    """Compare two recorded networks, layer by layer."""
    from ..representation.representation import load
    from ..similarity.two_networks import compare as run

    one, two = load(a), load(b)
    result = run(one, two, kernel=kernel, index=index, centre=centre, estimator=estimator)
    if png is not None:
        result.plot().savefig(png, dpi=150)
    if _wrote_json(json_file, result.to_dict()):
        return
    _print(_map_table(result.rows, result.columns, result.scores))
    typer.echo(result.summary())


@app.command()
def adaptation(
    files: Files,
    kernel: Kernel = "product",
    json_file: Json = None,
    png: Annotated[Optional[Path], typer.Option(help="Draw the curves over layers.")] = None,  # noqa: UP045
) -> None:
    """How much must a network change for the data it was recorded on?"""
    from ..analysis.mean_embedding import adaptation as run
    from ..representation.representation import load

    results = [run(load(file), kernel=kernel) for file in files]
    if png is not None:
        results[0].plot(*results[1:]).savefig(png, dpi=150)
    if _wrote_json(json_file, [result.to_dict() for result in results]):
        return
    for result in results:
        content = result.to_dict()
        table = _table("layer", "‖μ‖", "±", "log ratio", "±", title=content["model"])
        for i, layer in enumerate(content["layers"]):
            cells = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
            table.add_row(layer, *(_number(content[key][i]) for key in cells))
        _print(table)


@app.command()
def report(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "",
) -> None:
    """Write one self-contained page that compares any number of recorded networks."""
    from ..representation.representation import load
    from ..views.report_page import report as run

    run([load(file) for file in files], out, title=title or None)
    many = "1 network" if len(files) == 1 else f"{len(files)} networks"
    typer.echo(f"{out}: {many}, {out.stat().st_size / 1e6:.2f} MB")


@app.command()
def info(files: Files, json_file: Json = None) -> None:
    """Say what recorded files hold and where it came from."""
    from ..representation.representation import load

    found = [_about(load(file), file) for file in files]
    if _wrote_json(json_file, found):
        return
    for about in found:
        table = _table("", "", title=about["file"])
        for key, value in about.items():
            if key not in ("file", "layers"):
                table.add_row(key, str(value))
        _print(table)
        table = _table("layer", "shape", "width", "holds")
        for layer in about["layers"]:
            shape = " × ".join(map(str, layer["shape"]))
            width = f"{layer['dim']:,}" + (" (folded)" if layer["folded"] else "")
            table.add_row(layer["name"], shape, width, ", ".join(layer["kinds"]))
        _print(table)


# -- output -------------------------------------------------------------------------------------


def _about(rep: Representation, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 3),
        "model": rep.name,
        "model fingerprint": rep.model["fingerprint"],
        "parameters": rep.model["parameters"],
        "samples": rep.samples,
        "skipped": rep.data["skipped"],
        "data fingerprint": rep.data["fingerprint"],
        "order": rep.data["order"],
        "blocks": f"{len(rep.block_sizes)} of {rep.settings.block}",
        "buckets": rep.settings.buckets,
        "seed": rep.settings.seed,
        "pool": rep.settings.pool,
        "target": rep.settings.target,
        "beta": rep.settings.beta,
        **{str(key): value for key, value in rep.made.items()},
        "layers": [
            {
                "name": layer.name,
                "shape": list(layer.shape),
                "dim": layer.dim,
                "folded": layer.folded,
                "kinds": list(layer.kinds),
            }
            for layer in rep
        ],
    }


def _wrote_json(file: str | None, content: Any) -> bool:
    """Whether JSON went to standard output, so that nothing else should."""
    if file is None:
        return False
    text = json.dumps(content, indent=1, default=str)
    if file == "-":
        typer.echo(text)
        return True
    Path(file).write_text(text + "\n")
    return False


def _table(*columns: str, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=any(columns))
    for column in columns:
        number = column.isdigit() or column in ("‖μ‖", "±", "log ratio", "width")
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    Console(width=width, highlight=False).print(table)


def _map_table(rows: Sequence[str], columns: Sequence[str], scores: Any) -> Table:
    """Scores with rows and columns numbered alike, narrow enough for a terminal."""
    table = _table("", *(str(j + 1) for j in range(len(columns))))
    for i, name in enumerate(rows):
        table.add_row(f"{i + 1} {name}", *(_number(score) for score in scores[i]))
    if list(rows) != list(columns):
        table.caption = "columns: " + ", ".join(f"{j + 1} {c}" for j, c in enumerate(columns))
        table.caption_justify = "left"
    return table


def _number(value: float | None) -> str:
    return (
        "" if value is None or value != value else f"{value:.3g}" if value > 10 else f"{value:.2f}"
    )


def _first(samples: Any, limit: int) -> Any:
    import itertools

    from torch.utils.data import Subset

    from .._data.batches import take

    if isinstance(samples, tuple | dict):
        return take(samples, slice(0, limit))
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
        return Subset(samples, range(min(limit, len(samples))))
    if hasattr(samples, "__iter__"):
        return itertools.islice(samples, limit)
    raise DataError(f"--limit cannot cut {type(samples).__name__}; expected data of known length")


# -- errors -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: one line and exit status 2 for a mistake, 130 when interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _quiet(warnings.showwarning)
    try:
        status = app(words, standalone_mode=False)
    except typer.Exit as done:
        status = done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        status = 130
    except BrokenPipeError:  # the reader, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except Exception as error:
        expected = isinstance(error, ResemblanceError | OSError) or hasattr(error, "format_message")
        if "--debug" in words or not expected:
            raise
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        typer.echo(f"error: {' '.join(text.split())}", err=True)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


def _quiet(show: Callable[..., None]) -> Callable[..., None]:
    """This package's warnings as one line on standard error; others as Python shows them."""

    def showwarning(message: Any, category: Any, *rest: Any, **more: Any) -> None:
        if issubclass(category, ResemblanceWarning):
            typer.echo(f"warning: {message}", err=True)
        else:
            show(message, category, *rest, **more)

    return showwarning


if __name__ == "__main__":
    main()
