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
        Optional[str],
        Argument(
            metavar="[ZOO]",
            help="The zoo: a folder, or lance:FOLDER. Omit it to rank --models alone.",
        ),
    ] = None,
    models: Annotated[
        Optional[str],
        Option(
            metavar="FILE",
            help="Candidate networks: FILE.toml with a table [models], or FILE.py:FUNCTION that "
            "returns a dict of models by name.",
        ),
    ] = None,
    trust: Annotated[
        Optional[list[str]],
        Option(
            metavar="ADDRESS",
            help="Allow loading the model at this address of the zoo (the command lists the "
            "addresses); repeatable.",
        ),
    ] = None,
    labels: Annotated[
        Optional[Path],
        Option(
            metavar="FILE",
            help="Labels of the data, if it has none: one per line, or an .npy file.",
        ),
    ] = None,
    reference: Annotated[
        Optional[str],
        Option(
            metavar="MODEL",
            help="Reference model (see record --model) or recording (.rsm), to rank candidates by "
            "their training data before any is run.",
        ),
    ] = None,
    budget: Annotated[
        Optional[str],
        Option(
            metavar="N or TIME", help="Run at most N candidates, or stop after a time (90s, 10m)."
        ),
    ] = None,
    score: Annotated[
        str,
        Option(
            metavar="SCORE",
            help="Transferability score: auto (ridge+log_me), ridge, log_me, h_score, "
            "shrunk_h_score, trans_rate, leep or nce.",
        ),
    ] = "auto",
    layer: Layers = None,
    pool: Pool = None,
    samples: Annotated[
        int, Option(min=2, metavar="N", help="Use at most N samples, stratified by class.")
    ] = 5000,
    seed: Annotated[int, Option(metavar="N", help="Seed of the draw.")] = 0,
    size: Size = 224,
    raw: Raw = False,
    tokenizer: Tokenizer = None,
    batch_size: BatchSize = None,
    logits: Logits = "auto",
    device: Device = "",
    out: Annotated[
        Optional[Path],
        Option("--out", "-o", metavar="FILE", help="Save the result as JSON."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Rank pretrained networks for a data set.

    Runs each candidate once over the data, and reports the layer to start from and the accuracy
    to expect of a linear probe. The data need labels; a few hundred are enough.
    """
    from .._data.text import TextOptions
    from ..recording.record import NamedRecording, load_recording_data
    from ..transfer.candidates import loader_for_address, networks_from_file, on_device

    check_outputs(out, json_file, read=[data, models, labels, reference])
    if zoo is None and models is None:
        raise DataError("no candidates to rank: give a ZOO, --models FILE, or both")
    networks = None if models is None else networks_from_file(models, device=device)
    given = load_recording_data(
        NamedRecording("", data, size=size, raw=raw, text=TextOptions(tokenizer=tokenizer))
    )
    if trust and zoo is None:
        raise DataError("--trust requires a ZOO, whose addresses it allows; give both")

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
            f"cannot read labels from {path} ({error}); expected one label per line"
        ) from error
    return [line.strip() for line in lines if line.strip()]
