"""`resemblance demo --zoo`: a small zoo is filled, searched, and asked which network to start from.

The networks of `digit_networks` and one that learned from turned digits are recorded on the same
unseen images. Then there is a new task, turned digits with few labels: the first look goes by data
alone, the second runs every candidate once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .._data.named_data import digits
from .._progress_bar import progress
from ..errors import DataError, ResemblanceWarning
from ..recommending.for_data import recommend
from ..recommending.recommendation import Recommendation
from ..recording.from_model import record
from ..representation.representation import Representation
from ..zoo.collection import Zoo
from ..zoo.entry import Entry
from .digit_networks import COUNT, TRAINED_ON, DigitNet, Network, networks, train
from .story import one_thread, tell

LABELLED = 80  # images of the new task
SHOWN = 3  # candidates that are told
_REFERENCE = "twin-2"  # the network by which data are compared
_TURNED = "turned"
PAGE = "http://127.0.0.1:8642/"  # of `resemblance serve`, unless told otherwise


def run(out: Path, *, say: Callable[[str], None]) -> None:
    """Fill `out`/zoo and ask it; `say` is given each line of the story."""
    place = out / "zoo"
    if place.exists() and any(place.iterdir()):
        raise DataError(
            f"expected no zoo at {place} yet, found one; name another folder with --out"
        )
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # of layers that few samples carry
        say(f"Training {COUNT + 1} small networks on scikit-learn's handwritten digits ...")
        nets = _trained()
        say(f"Recording each on {len(_unseen()):,} unseen images, into {place} ...")
        with Zoo(place) as zoo:
            entries = _filled(zoo, nets)
            query = zoo.add(_seen_by(nets, turned(_unseen()), "new"), tags=["query"])
            for line in zoo.family_tree(group=entries[0].group).to_text().splitlines()[:-1]:
                say(f"  {line}")
            say(f"A new task: digits turned by a quarter, {LABELLED} of them with labels.")
            found = _recommended(zoo, nets, zoo.get(query.id))
    _tell_of(found, say)
    say("")
    say(f"To see all this in a browser: resemblance serve {place} --open")
    say(f"and, of the new data: {PAGE}#view=recommend&query={query.id}")


def _tell_of(found: Recommendation, say: Callable[[str], None]) -> None:
    """What is recommended, the best few, and what the reader should know."""
    first, *rest = found.summary().splitlines()
    best, notes = rest[:SHOWN], rest[len(found) :]
    tell(say, first)
    for line in best:
        tell(say, line, "  ")
    if len(found) > SHOWN:
        say(f"  and {len(found) - SHOWN} more.")
    for line in notes:
        tell(say, line)


def turned(images: Tensor) -> Tensor:  # (n, 1, 8, 8)
    """Images turned by a quarter."""
    return images.rot90(1, (2, 3)).contiguous()


def _unseen() -> Tensor:
    return digits()[0][TRAINED_ON:]


def _trained() -> list[Network]:
    images, labels = digits()
    with progress(None, COUNT + 1, "training", "networks") as advance:
        nets = list(networks(advance))
        model = train(turned(images[:TRAINED_ON]), labels[:TRAINED_ON], seed=7)
        advance(1)
    with torch.no_grad():
        right = (model(turned(_unseen())).argmax(1) == labels[TRAINED_ON:]).float().mean()
    return [*nets, Network(_TURNED, "trained on turned digits", model, float(right))]


def _filled(zoo: Zoo, nets: Sequence[Network]) -> list[Entry]:
    """Every network on the same images, linked to what a reference saw in its training data."""
    images = digits()[0][:TRAINED_ON]
    upright, turned_ = (
        zoo.add(_seen_by(nets, samples, what), tags=["training data"])
        for what, samples in (("training", images), ("turned training", turned(images)))
    )
    out = []
    for net in nets:
        rep = record(net.model, _unseen(), name=net.name, data_id="unseen digits")
        linked = None if net.name == "untrained" else (turned_ if net.name == _TURNED else upright)
        tags = [_kind(net.name)]
        out.append(zoo.add(rep, tags=tags, trained_on=None if linked is None else linked.id))
    return out


def _kind(name: str) -> str:
    if name == "twin-1":
        return "base"
    return "copy" if name.startswith("twin-1-") else "twin" if name.startswith("twin") else "other"


def _seen_by(nets: Sequence[Network], samples: Tensor, what: str) -> Representation:
    """Data as the reference sees them."""
    reference = next(net.model for net in nets if net.name == _REFERENCE)
    return record(
        reference, samples, name=f"{_REFERENCE} on {what} digits", data_id=f"{what} digits"
    )


def _recommended(zoo: Zoo, nets: Sequence[Network], query: Representation) -> Recommendation:
    images, labels = digits()
    few = slice(TRAINED_ON, TRAINED_ON + LABELLED)
    by_name: dict[str, DigitNet] = {net.name: net.model for net in nets}
    return recommend(
        zoo,
        turned(images[few]),
        labels[few],
        models=lambda entry: by_name.get(entry.name),
        reference=query,
    )
