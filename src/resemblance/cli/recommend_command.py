"""`resemblance recommend`: which network to start from for these data, and from which layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from typer import Argument, Option

import resemblance as rs

from ..errors import DataError, FormatError
from . import tables
from .commands import DataName, Json, Raw, Size, app
from .output_files import check_outputs

if TYPE_CHECKING:
    from ..recommending.recommendation import Recommendation

_Words = Optional[str]  # noqa: UP045 - typer reads it at run time on Python 3.10


@app.command()
def recommend(
    data: DataName,
    zoo: Annotated[
        _Words, Argument(help="Folder of a zoo, or lance: and one; none for --models alone.")
    ] = None,
    models: Annotated[
        _Words,
        Option(
            metavar="FILE",
            help="Networks by name: FILE.toml with a table [models], or FILE.py:FUNCTION that "
            "gives a dict.",
        ),
    ] = None,
    trust: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option(
            metavar="ADDRESS",
            help="An address in the zoo that may be loaded, as this command shows it; repeat for "
            "more.",
        ),
    ] = None,
    labels: Annotated[
        Optional[Path],  # noqa: UP045
        Option(metavar="FILE", help="A label a line, or .npy, where the data have none."),
    ] = None,
    no_labels: Annotated[bool, Option("--no-labels", help="Pass over those in the data.")] = False,
    reference: Annotated[
        _Words, Option(metavar="MODEL", help="For a first look: as --model of record, or an .rsm.")
    ] = None,
    budget: Annotated[
        _Words, Option(help="Candidates to run at most, such as 8; or a time, such as 90s or 10m.")
    ] = None,
    score: Annotated[
        str, Option(help="auto, ridge, log_me, h_score, shrunk_h_score, trans_rate, leep, nce, ...")
    ] = "auto",
    layer: Annotated[
        Optional[list[str]],  # noqa: UP045
        Option("--layer", help="As for record; repeat for more. Default: auto."),
    ] = None,
    samples: Annotated[int, Option(min=2, help="Draw at most so many, by class.")] = 5000,
    seed: Annotated[int, Option(help="Of the draw.")] = 0,
    size: Size = 224,
    raw: Raw = False,
    device: Annotated[str, Option(help="cpu, cuda, ...; default: cuda if there.")] = "",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        Option("--out", "-o", help="Keep the result here, as JSON."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Rank networks for a data set: one pass of each, the layer to start from, what to expect."""
    from .._data.named_data import load_data
    from ..recommending.model_files import networks_in

    check_outputs(out, json_file, read=[data, models, labels, reference])
    if zoo is None and models is None:
        raise DataError("expected a ZOO, --models FILE, or both; found neither")
    networks = None if models is None else networks_in(models, device=device)
    given = load_data(data, size=size, raw=raw)
    if no_labels:
        given = _inputs(given)
    found = rs.recommend(
        networks if zoo is None else zoo,  # type: ignore[arg-type]
        given,
        None if labels is None else _labels(labels),
        models=None if zoo is None else networks,
        trust=_trusted(trust or [], zoo, device),
        reference=_reference(reference, device),
        budget=budget,
        score=score,
        layers=layer or "auto",
        samples=samples,
        seed=seed,
    )
    if out is not None:
        found.save(out)
    if not tables.wrote_json(json_file, found.to_dict()):
        _show(found)


def _show(found: Recommendation) -> None:
    """The table, and what it says in words."""
    rows = [
        (
            one.name,
            str(one.rank),
            one.layer,
            "" if one.expected is None else str(one.expected),
            f"{one.value:.3g}",
            f"{one.seconds:.1f}",
        )
        for one in found
    ]
    tables.show(("candidate", "rank", "start at", "linear probe", found.score, "seconds"), rows)
    tables.say("")
    for line in found.summary().split("\n"):
        tables.tell(line)


def _trusted(trust: list[str], zoo: str | None, device: str) -> dict[str, Any]:
    from ..recommending.model_files import address_of, placed

    if trust and zoo is None:
        raise DataError("--trust names addresses of a zoo, and there is none; give the ZOO")
    return {address: placed(address_of(address), device) for address in trust}


def _labels(path: Path) -> Any:
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


def _inputs(data: Any) -> Any:
    """The data without their labels."""
    from .._data.batches import inputs_of
    from .._data.named_data import Mapped

    if isinstance(data, tuple | dict):
        return inputs_of(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Mapped(data, inputs_of)
    raise DataError("--no-labels needs data of known length; leave labels out of the data instead")


def _reference(name: str | None, device: str) -> Any:
    if name is None or name.endswith(".rsm"):
        return name
    from ..recommending.model_files import address_of, placed

    return placed(address_of(name), device)()
