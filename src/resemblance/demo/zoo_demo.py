"""Zoo demo (`resemblance demo --zoo`): fill a small zoo, search it, and ask for a recommendation.

The networks of `digit_networks` and one trained on rotated digits are recorded on the same unseen
images. The new task is rotated digits with few labels: the first look sorts candidates by their
training data alone, the second step runs every candidate once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from .._data.load_data import load_digits_data
from .._utils.progress import progress_bar
from ..errors import DataError
from ..recording.record import record
from ..representation.representation import Representation
from ..transfer.recommend import recommend
from ..transfer.recommendation import Recommendation
from ..zoo.entry import Entry
from ..zoo.zoo import Zoo
from .digit_networks import (
    NETWORK_COUNT,
    TRAIN_COUNT,
    DigitNet,
    Network,
    accuracy,
    demo_networks,
    train_digit_net,
)
from .digits_demo import quietly_on_one_thread, say_wrapped

LABELLED_COUNT = 80  # images of the new task
MAX_SHOWN = 3  # candidates that are told
_REFERENCE = "twin-2"  # the network by which data are compared
_ROTATED = "turned"
_TAGS = {"twin-1-": "copy", "twin-1": "base", "twin": "twin"}  # by the beginnings of names
PAGE_URL = "http://127.0.0.1:8642/"  # of `resemblance serve`, unless told otherwise


def run(out: Path, *, say: Callable[[str], None]) -> None:
    """Fill `out`/zoo and ask it; `say` is given each line of the story."""
    place = out / "zoo"
    if place.exists() and any(place.iterdir()):
        raise DataError(
            f"expected no zoo at {place} yet, found one; name another folder with --out"
        )
    with quietly_on_one_thread():  # some layers' kernels rest on few samples
        say(f"Training {NETWORK_COUNT + 1} small networks on scikit-learn's handwritten digits ...")
        nets = _train_networks()
        say(f"Recording each on {len(_unseen_images()):,} unseen images, into {place} ...")
        with Zoo(place) as zoo:
            entries = _fill_zoo(zoo, nets)
            query = zoo.add(
                _record_reference(nets, rotated(_unseen_images()), "new"), tags=["query"]
            )
            for line in zoo.family_tree(group=entries[0].group).to_text().splitlines()[:-1]:
                say(f"  {line}")
            say(f"A new task: digits turned by a quarter, {LABELLED_COUNT} of them with labels.")
            found = _recommend_for(zoo, nets, zoo.get(query.id))
    _say_recommendation(found, say)
    say("")
    say(f"To see all this in a browser: resemblance serve {place} --open")
    say(f"and, of the new data: {PAGE_URL}#view=recommend&query={query.id}")


def _say_recommendation(found: Recommendation, say: Callable[[str], None]) -> None:
    """What is recommended, the best few, and what the reader should know."""
    first, *rest = found.summary().splitlines()
    best, notes = rest[:MAX_SHOWN], rest[len(found) :]
    say_wrapped(say, first)
    for line in best:
        say_wrapped(say, line, "  ")
    if len(found) > MAX_SHOWN:
        say(f"  and {len(found) - MAX_SHOWN} more.")
    for line in notes:
        say_wrapped(say, line)


def rotated(images: Tensor) -> Tensor:  # (n, 1, 8, 8)
    """Images turned by a quarter."""
    return images.rot90(1, (2, 3)).contiguous()


def _unseen_images() -> Tensor:
    return load_digits_data()[0][TRAIN_COUNT:]


def _train_networks() -> list[Network]:
    images, labels = load_digits_data()
    with progress_bar(None, NETWORK_COUNT + 1, "training", "networks") as advance:
        nets = list(demo_networks(advance))
        model = train_digit_net(rotated(images[:TRAIN_COUNT]), labels[:TRAIN_COUNT], seed=7)
        advance(1)
    right = accuracy(model, rotated(_unseen_images()), labels[TRAIN_COUNT:])
    return [*nets, Network(_ROTATED, "trained on turned digits", model, right)]


def _fill_zoo(zoo: Zoo, nets: Sequence[Network]) -> list[Entry]:
    """Every network on the same images, linked to what a reference saw in its training data."""
    images = load_digits_data()[0][:TRAIN_COUNT]
    upright, turned_ = (
        zoo.add(_record_reference(nets, samples, what), tags=["training data"])
        for what, samples in (("training", images), ("turned training", rotated(images)))
    )
    out = []
    for net in nets:
        rep = record(net.model, _unseen_images(), name=net.name, data_id="unseen digits")
        linked = None if net.name == "untrained" else (turned_ if net.name == _ROTATED else upright)
        tag = next((tag for start, tag in _TAGS.items() if net.name.startswith(start)), "other")
        out.append(zoo.add(rep, tags=[tag], trained_on=None if linked is None else linked.id))
    return out


def _record_reference(nets: Sequence[Network], samples: Tensor, what: str) -> Representation:
    """Data as the reference sees them."""
    reference = next(net.model for net in nets if net.name == _REFERENCE)
    return record(
        reference, samples, name=f"{_REFERENCE} on {what} digits", data_id=f"{what} digits"
    )


def _recommend_for(zoo: Zoo, nets: Sequence[Network], query: Representation) -> Recommendation:
    images, labels = load_digits_data()
    few = slice(TRAIN_COUNT, TRAIN_COUNT + LABELLED_COUNT)
    by_name: dict[str, DigitNet] = {net.name: net.model for net in nets}
    return recommend(
        zoo,
        rotated(images[few]),
        labels[few],
        models=lambda entry: by_name.get(entry.name),
        reference=query,
    )
