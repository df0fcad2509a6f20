"""What `resemblance compare` answers: do two networks see alike, do they want the same, where do
they part, how far did a copy move, and do they predict the same?

`both` asks the package's own functions, each once; `compared_layers` makes a table of the answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import resemblance as rs

from .._shown_text import shown
from ..errors import DataError, MismatchError, ResemblanceWarning
from . import digits

if TYPE_CHECKING:
    from ..representation.representation import Representation
    from ..similarity.comparison import Comparison
    from ..similarity.coordinates_by_layer import Coordinates
    from ..similarity.parting_layer import Parting


@dataclass(frozen=True)
class Compared:
    """Comparisons of two networks by one kernel or more, and what goes with them."""

    found: tuple[Comparison, ...]  # of features and, where both have them, of gradients
    coordinates: Coordinates | None = None  # None if the two cannot be taken from each other
    no_gradients: str | None = None  # why those are not compared
    no_predictions: str | None = None
    warned: frozenset[str] = frozenset()  # notes that went to standard error

    @property
    def shared(self) -> Coordinates | None:
        """How far layers moved, if coordinates are shared, so that it means something."""
        return self.coordinates if self.coordinates and self.coordinates.shared else None

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON holds them, always under the same keys; null where there is none."""
        content: dict[str, Any] = {"features": None, "gradients": None}
        content |= {one.kernel: one.to_dict() for one in self.found}
        partings = {"features": None, "gradients": None}
        content["parting"] = partings | {one.kernel: _plain(_parting(one)) for one in self.found}
        content["behaviour"] = content["features"]["behaviour"]
        content["coordinates"] = None if self.coordinates is None else self.coordinates.to_dict()
        return content

    def heading(self) -> str:
        """Which networks, and what was computed from how many samples."""
        one, two = self.found[0].models
        kinds = [f"{'centred ' if x.centre else ''}{x.kernel}" for x in self.found]
        starts = [f"{x.index} of {kind}" for x, kind in zip(self.found, kinds, strict=True)]
        ends = {x.heading.removeprefix(y) for x, y in zip(self.found, starts, strict=True)}
        if len(ends) == 1:
            return f"{one} and {two}: {starts[0]}{' and '.join(['', *kinds[1:]])}{ends.pop()}"
        return f"{one} and {two}: {'; '.join(x.heading for x in self.found)}"

    def sentences(self) -> Iterator[str]:
        """What the table says in all."""
        yield self._means()
        for one in self.found:
            if parting := _parting(one):
                yield parting.sentence
        if self.no_gradients:
            yield f"Gradients are not compared: {self.no_gradients}."
        if predicted := self.found[0].behaviour:
            yield predicted.summary()
        elif self.no_predictions:
            yield f"What they predict cannot be compared: {self.no_predictions}."
        for model, names in zip(
            self.found[0].models, self.found[0].without_counterpart(), strict=True
        ):
            if names:
                yield f"Without a counterpart, of {shown(model)}: {listed(names)}."
        notes = dict.fromkeys(note for one in self.found for note in one.notes)
        if self.shared and not self.no_gradients:  # which is all that they can say
            notes |= dict.fromkeys(self.shared.notes)
        yield from (f"Note: {note}." for note in notes if note not in self.warned)

    def _means(self) -> str:
        rules = {one.matched_by for one in self.found}
        means = []
        for one in self.found:
            scores = one.by_layer()[0]
            count = int((scores == scores).sum())
            some = "" if count == len(scores) else f" (of {count} layers)"
            mean = digits.joined(digits.score(*one.mean()))
            means.append(f"{one.kernel} {mean}{some}" if count else f"{one.kernel} none")
        by = f"matched by {rules.pop()}" if len(rules) == 1 else "matched"
        layers = "1 layer" if len(self.found[0].rows) == 1 else f"{len(self.found[0].rows)} layers"
        return f"Mean over {layers} {by}: {', '.join(means)}."


def both(a: Representation, b: Representation, **how: Any) -> Compared:
    """Features, gradients where they can be compared, and coordinates where they can be taken from
    each other; what the package warns of is warned of once, with the kernel if it is of one."""
    from ..similarity.same_predictions import obstacle

    found: list[Comparison] = []
    told: dict[str, list[str]] = {}
    no_gradients, coordinates = _without_gradients(a, b), None
    for kernel in ("features", *(() if no_gradients else ("gradients",))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResemblanceWarning)
            try:
                found.append(rs.compare(a, b, kernel=kernel, **how))
            except MismatchError as error:
                if kernel == "features":
                    raise
                no_gradients = str(error)
        for each in caught:
            told.setdefault(str(each.message), []).append(kernel)
    for message, kernels in told.items():
        of = "" if len(kernels) == len(found) else f"{kernels[0]}: "
        warnings.warn(f"{of}{message}", ResemblanceWarning, stacklevel=2)
    try:
        coordinates = rs.coordinates(a, b)
    except MismatchError:
        coordinates = None
    why = obstacle(a, b)
    no_predictions = None if why is None else why.partition(": ")[0]
    return Compared(tuple(found), coordinates, no_gradients, no_predictions, frozenset(told))


def listed(names: tuple[str, ...], most: int = 8) -> str:
    """Names, and of very many the number of those left out."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more


def _without_gradients(a: Representation, b: Representation) -> str | None:
    lacking = [rep.name for rep in (a, b) if any(layer.gradients is None for layer in rep)]
    were = "was" if len(lacking) == 1 else "were"
    return f"{' and '.join(lacking)} {were} recorded without them" if lacking else None


def _parting(one: Comparison) -> Parting | None:
    try:
        return one.parting()
    except DataError:
        return None


def _plain(parting: Parting | None) -> dict[str, Any] | None:
    if parting is None:
        return None
    return {key: value for key, value in asdict(parting).items() if key != "tested"}
