"""The command `resemblance recommend`: which network to start from, and from which layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

from typer import Argument, Option

import resemblance as rs

from ..errors import DataError, FormatError
from . import output
from .commands import app
from .options import BatchSize, DataName, Device, Json, Layers, Logits, Pool, Raw, Size, Tokenizer
from .output import check_outputs

if TYPE_CHECKING:
    from ..transfer.recommendation import Recommendation


@app.command()
def recommend(
    data: DataName,
    zoo: Annotated[
        Optional[str], Argument(help="Folder of a zoo, or lance: and one; none for --models alone.")
    ] = None,
    models: Annotated[
        Optional[str],
        Option(
            metavar="FILE",
            help="Networks by name: FILE.toml with a table [models], or FILE.py:FUNCTION that "
            "gives a dict.",
        ),
    ] = None,
    trust: Annotated[
        Optional[list[str]],
        Option(
            metavar="ADDRESS",
            help="An address in the zoo that may be loaded, as this command shows it; repeat for "
            "more.",
        ),
    ] = None,
    labels: Annotated[
        Optional[Path],
        Option(metavar="FILE", help="A label a line, or .npy, where the data have none."),
    ] = None,
    reference: Annotated[
        Optional[str],
        Option(metavar="MODEL", help="For a first look: as --model of record, or an .rsm."),
    ] = None,
    budget: Annotated[
        Optional[str],
        Option(help="Candidates to run at most, such as 8; or a time, such as 90s or 10m."),
    ] = None,
    score: Annotated[
        str,
        Option(
            help="auto (which is ridge+log_me), ridge, log_me, h_score, shrunk_h_score, "
            "trans_rate, leep or nce."
        ),
    ] = "auto",
    layer: Layers = None,
    pool: Pool = None,
    samples: Annotated[int, Option(min=2, help="Draw at most so many, by class.")] = 5000,
    seed: Annotated[int, Option(help="Of the draw.")] = 0,
    size: Size = 224,
    raw: Raw = False,
    tokenizer: Tokenizer = None,
    batch_size: BatchSize = None,
    logits: Logits = "auto",
    device: Device = "",
    out: Annotated[
        Optional[Path],
        Option("--out", "-o", help="Keep the result here, as JSON."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Rank networks for a data set: one pass of each, the layer to start from, what to expect.

    Data need labels; a few hundred are enough.
    """
    from .._data.text import TextOptions
    from ..recording.record import NamedRecording, load_recording_data
    from ..transfer.candidates import loader_for_address, networks_from_file, on_device

    check_outputs(out, json_file, read=[data, models, labels, reference])
    if zoo is None and models is None:
        raise DataError("expected a ZOO, --models FILE, or both; found neither")
    networks = None if models is None else networks_from_file(models, device=device)
    given = load_recording_data(
        NamedRecording("", data, size=size, raw=raw, text=TextOptions(tokenizer=tokenizer))
    )
    if trust and zoo is None:
        raise DataError("--trust names addresses of a zoo, and there is none; give the ZOO")

    def loader(address: str) -> Any:
        return on_device(loader_for_address(address), device)

    notes: list[str] = []
    with output.warnings_once(notes):
        found = rs.recommend(
            networks if zoo is None else zoo,  # type: ignore[arg-type]
            given,
            None if labels is None else _read_labels(labels),
            models=None if zoo is None else networks,
            trust={address: loader(address) for address in trust or []},
            reference=(
                reference
                if reference is None or reference.endswith(".rsm")
                else loader(reference)()
            ),
            budget=budget,
            score=score,
            layers=layer or "auto",
            pool=cast(Any, pool or "flatten"),
            logits=cast(Any, logits),
            batch_size=128 if batch_size is None else batch_size,
            samples=samples,
            seed=seed,
        )
        notes += found.notes
    if out is not None:
        found.save(out)
    if not output.write_json(json_file, found):
        _show_recommendation(found)


def _show_recommendation(found: Recommendation) -> None:
    """The table, and what it says in words."""
    rows = [
        (x.name, str(x.rank), x.layer, str(x.expected or ""), f"{x.value:.3g}", f"{x.seconds:.1f}")
        for x in found
    ]
    output.print_table(
        ("candidate", "rank", "start at", "linear probe", found.score, "seconds"), rows
    )
    output.print_line("")
    output.print_wrapped(*found.summary().split("\n"))


def _read_labels(path: Path) -> Any:
    """Labels in the order of the data: an array, or a text with one a line."""
    import numpy as np

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise FormatError(
            f"no labels can be read from {path} ({error}); expected one a line"
        ) from error
    return [line.strip() for line in lines if line.strip()]
