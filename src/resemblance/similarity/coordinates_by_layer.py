"""Coordinates: how far each layer of a copy moved from its origin, as a result to read and keep.

Made by `coordinates`; nothing here computes a change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._by_content import by_content
from .._shown_text import shown
from ..errors import DataError, optional
from ..representation.layer import Kind
from .comparison import plain
from .layer_matching import MatchedBy

if TYPE_CHECKING:
    import pandas

    from .parting_layer import Parting

COLUMNS = ("decibels", "cosine", "mean_share")  # each with its `_stderr`


@by_content
@dataclass(frozen=True, eq=False)
class Coordinates:
    """The change of each layer from a network `a` to its copy `b`, in the layer's own coordinates.

    `decibels` is −10 log₁₀ ‖X_a − X_b‖² / ‖X_a‖², the ratio of signal to noise: 20 for a change of
    a tenth, 0 for one as large as what it changes. `mean_share` is how much of ‖X_a − X_b‖² is a
    change of the mean over samples, and `cosine` the cosine of X_a and X_b, of features with their
    means taken off. Standard errors say how far a value may lie from that of the vectors
    themselves on the samples recorded; they do not cover other samples.

    Whether the networks share coordinates at all is told by the cosine of features: `chance` is
    what a network with units in another order would have on average, and one that was trained
    apart exceeds `chance_high` at any layer with the probability `alarms`.
    """

    models: tuple[str, str]
    layers: tuple[str, ...]  # of a
    counterparts: tuple[str, ...]  # of b
    matched_by: MatchedBy
    kinds: tuple[Kind, ...]  # features, and gradients where both have them
    decibels: np.ndarray  # (kinds, layers); infinite where nothing changed
    decibels_stderr: np.ndarray
    cosine: np.ndarray
    cosine_stderr: np.ndarray
    mean_share: np.ndarray
    mean_share_stderr: np.ndarray
    chance: np.ndarray  # (layers,)
    chance_high: np.ndarray  # NaN where a layer has too few units to tell, or is constant
    alarms: float  # the rate of false alarms of `shared`
    floor: float  # decibels: a change beyond it cannot be told from rounding
    samples: int
    tokens: int | None = None  # of each sequence, where these are the samples
    left_out: tuple[str, ...] = ()  # layers of a without a counterpart of their shape
    notes: tuple[str, ...] = ()

    def __getitem__(self, column: str) -> np.ndarray:  # (kinds, layers)
        known = [name + end for name in COLUMNS for end in ("", "_stderr")]
        if column not in known:
            raise DataError(f"no column {column!r}; there are {', '.join(known)}")
        found: np.ndarray = getattr(self, column)
        return found

    def __repr__(self) -> str:
        share = "shared" if self.shared else "none shared"
        what = f"{len(self.layers)} layers, {share}"
        return f"Coordinates({self.models[0]!r}, {self.models[1]!r}, {what})"

    @property
    def shared_layers(self) -> np.ndarray:  # (layers,) bool
        """At which layers the cosine of features is above what units in any order would give."""
        with np.errstate(invalid="ignore"):
            above: np.ndarray = self.cosine[0] > self.chance_high
        return above

    @property
    def shared(self) -> bool:
        """Whether the two share coordinates at any layer: one descends from the other, or both
        from a third. Units whose meaning is given, as those of logits are, are shared by all."""
        return bool(self.shared_layers.any())

    def parting(self, *, least: float = 6.0) -> Parting:
        """Where the copy begins to move: the first layer whose features changed beyond doubt.

        Layers are read from the input on, each against the one before it, the first against what
        rounding leaves of a network; the chance of any false finding is 5 %. See
        `first_moved_layer`.

        Args:
            least: falls of no more decibels than that do not count.
        """
        from .first_moved_layer import first_moved

        return first_moved(self, least)

    def to_frame(self, *, always: bool = False) -> pandas.DataFrame:
        """One row for each layer and kind: layer, counterpart, kind, decibels, cosine and
        mean_share, each with its `_stderr`, and for features chance, chance_high and shared.

        Where the networks share no coordinates, these mean nothing and are NaN unless `always`.
        """
        kinds, layers = len(self.kinds), len(self.layers)
        hidden = not (always or self.shared)
        table: dict[str, Any] = {
            "layer": np.tile(self.layers, kinds),
            "counterpart": np.tile(self.counterparts, kinds),
            "kind": np.repeat(self.kinds, layers),
        }
        for name in (column + end for column in COLUMNS for end in ("", "_stderr")):
            values = self[name].ravel()
            table[name] = np.full(values.shape, np.nan) if hidden else values
        blank = np.full((kinds - 1) * layers, np.nan)
        table["chance"] = np.concatenate([self.chance, blank])
        table["chance_high"] = np.concatenate([self.chance_high, blank])
        table["shared"] = np.tile(self.shared_layers, kinds)
        return optional("pandas", "pandas", "frames").DataFrame(table)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None, and so does what is infinite."""
        out = {name: plain(value) for name, value in asdict(self).items()}
        out["decibels"] = [[x if x != np.inf else None for x in row] for row in out["decibels"]]
        return {**out, "shared": self.shared, "shared_layers": self.shared_layers.tolist()}

    def summary(self) -> str:
        """The change in a few plain sentences."""
        a, b = (shown(model) for model in self.models)
        n, what = self.samples, "samples" if self.tokens is None else "tokens"
        lines = [
            f"{a} and {b}: {len(self.layers)} layers matched by {self.matched_by}, {n:,} {what}."
        ]
        at = np.flatnonzero(self.shared_layers)
        if self.shared:
            lines.append(
                f"They share coordinates, as {len(at)} of {len(self.layers)} layers show "
                f"(false alarms: {self.alarms:g})."
            )
            lines += [self._changed(i) for i in range(len(self.kinds))]
            if (found := self.parting()).found:
                lines.append(found.sentence)
        else:
            lines.append(
                "They share no coordinates that could be seen: no layer's cosine is above that of "
                f"units in another order (false alarms: {self.alarms:g}). Changes by decibels "
                "mean nothing; use compare, which does not depend on coordinates."
            )
        if self.left_out:
            lines.append(
                f"Without a counterpart of their shape: {', '.join(map(shown, self.left_out))}."
            )
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def _changed(self, kind: int) -> str:
        """The least and the most changed layer."""
        values, errors = self.decibels[kind], self.decibels_stderr[kind]
        name = self.kinds[kind].capitalize()
        if np.isnan(values).all():
            return f"{name}: no layer has any to compare."

        def told(i: int) -> str:
            layer = shown(self.layers[i])
            if np.isinf(values[i]):
                return f"not at all at {layer}"
            beyond = ", beyond what rounding leaves" if values[i] > self.floor else ""
            return f"by {values[i]:.1f} ± {errors[i]:.1f} dB at {layer}{beyond}"

        least, most = int(np.nanargmax(values)), int(np.nanargmin(values))
        return f"{name} changed least: {told(least)}; most: {told(most)}."
