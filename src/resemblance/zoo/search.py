"""Search a zoo for the networks most similar to a query: by signature, then by exact scores.

A search stays inside one group, whose networks saw the same samples. Signatures select candidates
(`signature`); CKA with standard errors ranks them, from the layers at four relative depths or from
one layer. Candidates are read in order of their signatures' cosines until no other is likely to be
nearer.

Scores, standard errors and the flag for doubtful ones are those of `compare`. The query's kernels
are read once for all candidates. A candidate that shares no sums with the others, such as one with
full kernels at some layers and blocks at others, is compared separately.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._utils.formatting import count_noun, left_out_sentence, printable
from ..errors import (
    DataError,
    FormatError,
    LayerError,
    MismatchError,
    ResemblanceWarning,
    close_matches,
)
from ..representation.file_format import layer_positions
from ..representation.layer import Layer
from ..representation.representation import Representation, RepresentationLike, as_representation
from ..similarity.all_pairs import row_estimates
from ..similarity.compare import compare, resolve_config
from ..similarity.comparison import KernelComparison, mean_over_layers
from ..similarity.jackknife import Estimate, are_unreliable
from ..similarity.kernels import CompareConfig, required_kinds
from ..similarity.pairing import LayerKey, check_recorded, match_by_name
from ..similarity.results import Result
from ..similarity.stored_kernels import has_full_gram
from .entry import Entry, entry_columns, gradients_of, group_of, probe_of
from .signature import DEPTHS, SEARCH_KERNELS, WIDTH, SearchKernel, depth_indices, signature

if TYPE_CHECKING:
    from .zoo import Zoo


@dataclass(frozen=True)
class MeanScore:
    """CKA of two networks, the mean over layers that stand at the same place."""

    score: float
    stderr: float
    chance_high: float  # the mean over layers of what chance exceeds in one of twenty cases
    doubtful: bool  # too few samples carry the score to trust its standard error


def score_many(
    query: Representation, others: Sequence[Representation], kernel: SearchKernel
) -> list[MeanScore | None]:
    """A network with each of others, which have as many layers; None: samples do not match.

    Bias and standard errors: those of `compare`. Cost: L² N² / 4 multiplications for L layers of
    all networks together and the kernels of N samples; less where those are in blocks.
    """
    reps, out = [query, *others], list[MeanScore | None]([None] * len(others))
    alike: dict[tuple[CompareConfig, bool], list[int]] = {}
    for place, other in enumerate(others, 1):
        try:
            check_recorded(query, other, kernel)
            asked = resolve_config(query, other, kernel, "cka", None, "auto")
        except MismatchError:
            continue
        whole = {has_full_gram(layer, kernel) for rep in (query, other) for layer in rep}
        if asked.estimator in ("blocks", "ratio") and len(whole) == 1:
            alike.setdefault((asked, whole.pop()), []).append(place)
        else:
            out[place - 1] = _score_separately(query, other, kernel)
    for (asked, _), places in alike.items():
        pairs = {(0, place, asked.index): asked for place in places}
        for (_, place, _), found in row_estimates(reps, [0, *places], pairs):
            left_out = found.replicates
            if left_out is not None:
                left_out = left_out.diagonal(axis1=1, axis2=2)
            out[place - 1] = _mean_score(query, found, left_out)
    return out


def _score_separately(
    query: Representation, other: Representation, kernel: SearchKernel
) -> MeanScore:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # `doubtful` says it
        found = compare(_with_numbered_layers(query), _with_numbered_layers(other), kernel=kernel)
    return _mean_score(query, found, found.replicates)


def _with_numbered_layers(rep: Representation) -> Representation:
    """Layers that are compared one by one, whatever their names, and nothing of behaviour."""
    named = (replace(x, name=f"place {i}", bare_name="") for i, x in enumerate(rep))
    return replace(rep, layers=tuple(named), outputs=None)


def _mean_score(
    query: Representation,
    found: Estimate | KernelComparison,
    left_out: np.ndarray | None,  # (groups, layers): scores with a group of samples left out
) -> MeanScore:
    score, error = mean_over_layers(found.scores.diagonal(), left_out)
    high = np.nan
    if found.chance_high is not None:
        high = float(mean_over_layers(found.chance_high.diagonal())[0])
    doubtful = bool(are_unreliable(query, found).diagonal().any())
    return MeanScore(float(score), float(error), high, doubtful)


MatchedBy = Literal["depth", "name"]
_CANDIDATES_PER_RESULT = 4  # for each network wanted
_MIN_CANDIDATES = 16  # candidates at least
_BATCH_SIZE = 10  # that are in memory, and compared, at a time
_MARGIN = 4 / (DEPTHS * WIDTH) ** 0.5  # how far a signature's cosine may lie from the score
_MARGIN_ONE_DEPTH = 4 / WIDTH**0.5  # and where it is of one depth
REASON_OTHER_GROUP = "recorded on different samples or with different settings"
_REASON_NO_GRADIENTS = "recorded without gradients"
_REASON_OTHER_TARGET = "with gradients of a different target or beta"
REASON_DAMAGED = "damaged"
_REASON_QUERY = "the query itself"


@dataclass(frozen=True)
class Neighbour(MeanScore):
    """An entry that is similar to the query, with its score."""

    entry: Entry
    layers: tuple[tuple[str, str], ...]  # the layers compared: of the network, of the entry
    matched_by: MatchedBy  # how they were found
    signature: float  # the score by signatures, which made it a candidate

    @property
    def above_chance(self) -> bool:
        return self.score > self.chance_high


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(Result):
    """The networks of a zoo that are most similar to a query, the most similar first.

    `to_frame` has one row for each network found: name, id, score, stderr, chance_high,
    above_chance, doubtful, signature, matched_by, tags and probe.

    Attributes:
        query: name of the query.
        kernel: features or gradients.
        layer: layer of the query that was compared; None for the mean over four depths.
        matches: the networks found, each with its entry and its score.
        looked_at: number of entries whose signatures were compared.
        compared: number of these whose scores were computed.
        left_out: why entries were skipped, and how many.
        probe: the samples that the query was recorded on, in words.
        tag: the tag that entries had to have; None for any.
    """

    query: str
    kernel: SearchKernel
    layer: str | None
    matches: tuple[Neighbour, ...]
    looked_at: int
    compared: int
    left_out: dict[str, int]
    probe: str
    tag: str | None = None

    _kind = "search"
    _also = ("heading",)

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def _text(self) -> str:
        best = f"; {self.matches[0].score:.3f} at most" if self.matches else ""
        return f"{len(self)} nearest to {self.query!r}, of {self.looked_at:,}{best}"

    @property
    def heading(self) -> str:
        """What scores are."""
        centred = "centred " if self.kernel == "features" else ""
        where = "mean over four depths" if self.layer is None else f"at {printable(self.layer)}"
        return f"cka of {centred}{self.kernel}, {where}"

    def _sentences(self) -> list[str]:
        tagged = "" if self.tag is None else f" tagged {printable(self.tag)}"
        looked = count_noun(self.looked_at, f"network{tagged}", f"networks{tagged}")
        lines = [
            f"Most similar to {printable(self.query)} ({self.heading}): {looked} on "
            f"{printable(self.probe)} examined, {self.compared:,} compared exactly."
        ]
        lines += [
            f"{place}. {printable(x.entry.name)} ({x.entry.id[:12]}) {x.score:.3f} ± {x.stderr:.3f}"
            + ("" if x.above_chance else ", not above chance")
            + (", dominated by a few samples" if x.doubtful else "")
            for place, x in enumerate(self.matches, 1)
        ]
        if not self.matches:
            lines.append("No matches.")
        if self.left_out:
            sentence = left_out_sentence(self.left_out).replace(f"1 {_REASON_QUERY}", _REASON_QUERY)
            if REASON_OTHER_GROUP in self.left_out:
                remedy = f"; to search those, record {printable(self.query)} the same way."
                sentence = sentence.removesuffix(".") + remedy
            lines.append(sentence)
        return lines

    def _columns(self) -> Mapping[str, Any]:
        scores = ("score", "stderr", "chance_high", "above_chance", "doubtful", "signature")
        return {
            **entry_columns([x.entry for x in self.matches], "name", "id"),
            **{key: [getattr(x, key) for x in self.matches] for key in (*scores, "matched_by")},
            **entry_columns([x.entry for x in self.matches], "tags", "probe"),
        }


def search(
    zoo: Zoo,
    query: RepresentationLike,
    *,
    kernel: SearchKernel = "features",
    layer: str | int | None = None,
    tag: str | None = None,
    limit: int = 10,
) -> SearchResult:
    """The networks most like a given one, among those recorded on the same samples.

    Scores are those of `compare`: CKA with its standard error, the mean over the layers at four
    relative depths (the first, those at a third and two thirds, the last) or, with `layer`, of
    that layer and its namesake, or else the one at its relative depth. Entries are taken in the
    order of their signatures' cosines, until what is left lies four standard errors of a cosine
    below the `limit` best, at most four times `limit` of them: a network that is missed was
    misjudged by more, or stands behind so many. A group is of samples and of how features were
    recorded; gradients are compared only if they are of the same target. Cost: one product with all
    signatures of the group, then the layers needed of each candidate, ten at a time.
    """
    if kernel not in SEARCH_KERNELS:
        raise DataError(f"`kernel` must be one of {', '.join(SEARCH_KERNELS)}; found {kernel!r}")
    asked = _Query.of(zoo, query, kernel, layer)
    group, unreadable = zoo.store.listed(group=group_of(asked.rep), tag=tag)
    others = [x for x in group if x.id != asked.id]
    every = len(zoo) if tag is None else sum(len(x) for x in zoo.store.listed(tag=tag))
    left_out = Counter(
        {
            _REASON_QUERY: len(group) - len(others),
            REASON_OTHER_GROUP: every - len(group) - len(unreadable),
            REASON_DAMAGED: len(unreadable),
        }
    )
    there = {x.id: x for x in others if asked.lacks(x) is None}
    left_out.update(why for x in others if (why := asked.lacks(x)) is not None)
    several = {x.gradients for x in group if x.gradients is not None}
    among = None if tag is None and (kernel == "features" or len(several) == 1) else list(there)
    most = max(_CANDIDATES_PER_RESULT * limit, _MIN_CANDIDATES)
    vector, scale, margin = asked.signature()
    found = zoo.store.nearest(group_of(asked.rep), kernel, vector, most + 1, among=among)
    known = [(there[id], scale * cosine) for id, cosine in found if id in there]
    waiting = [x for x in known if not np.isnan(x[1])][:most]
    without = sum(bool(np.isnan(cosine)) for _, cosine in known)
    left_out[REASON_DAMAGED] += without
    near: list[Neighbour] = []
    while waiting:
        together = min(_BATCH_SIZE, limit - len(near)) if len(near) < limit else _BATCH_SIZE
        near += asked.neighbours(zoo, waiting[:together], left_out)
        near.sort(key=lambda x: -np.nan_to_num(x.score, nan=-1.0))
        least = near[limit - 1].score - margin if len(near) >= limit else -np.inf
        waiting = [x for x in waiting[together:] if not x[1] < least]
    return SearchResult(
        query=asked.rep.name,
        kernel=kernel,
        layer=None if asked.place is None else asked.names[asked.place],
        matches=tuple(near[:limit]),
        looked_at=len(there) - without,
        compared=len(near),
        left_out=dict(+left_out),
        probe=probe_of(asked.rep),
        tag=tag,
    )


@dataclass(frozen=True)
class _Query:
    """A network asked about, and which of its layers are compared."""

    id: str | None  # of an entry
    rep: Representation  # with the layers that are compared: at four depths, or one
    names: tuple[str, ...]  # of all layers
    place: int | None  # of the one layer that is compared
    kernel: SearchKernel

    @classmethod
    def of(
        cls, zoo: Zoo, query: RepresentationLike, kernel: SearchKernel, layer: str | int | None
    ) -> _Query:
        id, names, read = open_query(zoo, query)
        if isinstance(layer, str) and layer not in names:
            raise LayerError(f"no layer {layer!r}; nearest: {close_matches(layer, names)}")
        place = None if layer is None else layer_positions(names, [layer])[0]
        places = depth_indices(len(names)) if place is None else [place]
        rep = _with_layers_at(read(sorted(set(places))), places)
        if not rep.block_sizes:
            raise DataError(
                f"{rep.name!r} has no blocks, which search needs; record it again with blocks "
                "above 0"
            )
        if not set(required_kinds(kernel)) <= set(rep[0].kinds):
            raise MismatchError(
                f"kernel {kernel!r} needs gradients, and {rep.name!r} was recorded without; search "
                "by features, or record it again with gradients"
            )
        return cls(id, rep, names, place, kernel)

    def signature(self) -> tuple[np.ndarray, float, float]:
        """The signature, what makes a score of its cosines, and how far scores may lie above."""
        if self.place is None:
            return signature(self.rep, self.kernel, self.rep.layers), 1.0, _MARGIN
        layers: list[Layer | None] = [None] * DEPTHS
        layers[self._at_its_depth(DEPTHS)] = self.rep[0]
        at_depth = self.place in depth_indices(len(self.names))  # else signatures say nothing
        margin = _MARGIN_ONE_DEPTH if at_depth else np.inf
        return signature(self.rep, self.kernel, layers), DEPTHS**0.5, margin

    def _at_its_depth(self, count: int) -> int:
        """Which of so many layers is at the relative depth of the one layer."""
        return round((self.place or 0) * (count - 1) / max(1, len(self.names) - 1))

    def lacks(self, entry: Entry) -> str | None:
        """Why an entry of the group has nothing to compare with, or None."""
        if self.kernel == "features" or entry.gradients == gradients_of(self.rep):
            return None
        return _REASON_NO_GRADIENTS if entry.gradients is None else _REASON_OTHER_TARGET

    def neighbours(
        self, zoo: Zoo, candidates: Sequence[tuple[Entry, float]], left_out: Counter[str]
    ) -> list[Neighbour]:
        """Entries with their scores; why others have none is counted."""
        cosines = {entry.id: cosine for entry, cosine in candidates}
        matched = {entry.id: self._counterparts(entry) for entry, _ in candidates}
        entries = (entry for entry, _ in candidates)
        found = list(read_entries(zoo, entries, lambda x: matched[x.id][0], left_out))
        reps = [_with_layers_at(rep, matched[entry.id][0]) for entry, rep in found]
        out = []
        scores = score_many(self.rep, reps, self.kernel)
        for (entry, _), rep, score in zip(found, reps, scores, strict=True):
            if score is None:
                left_out[REASON_OTHER_GROUP] += 1
                continue
            pairs = tuple(zip(self.rep.layer_names, rep.layer_names, strict=True))
            by, cosine = matched[entry.id][1], cosines[entry.id]
            out.append(
                Neighbour(**vars(score), entry=entry, layers=pairs, matched_by=by, signature=cosine)
            )
        return out

    def _counterparts(self, entry: Entry) -> tuple[Sequence[int], MatchedBy]:
        """The places of the layers of an entry that are compared, and how they were found."""
        count = len(entry.layers)
        if self.place is None:
            return depth_indices(count), "depth"
        own, theirs = ([LayerKey(x) for x in names] for names in (self.names, entry.layers))
        named = match_by_name(own, theirs)
        namesake = None if named is None else named.columns[self.place]
        if namesake is not None:
            return [namesake], "name"
        return [self._at_its_depth(count)], "depth"


def open_query(
    zoo: Zoo, query: RepresentationLike
) -> tuple[str | None, tuple[str, ...], Callable[[Sequence[int]], Representation]]:
    """The id of a network, if it is an entry; the names of its layers; and how to read some.

    A text names an entry before it is taken for the path of a file.
    """
    if isinstance(query, str) and (query in zoo or not Path(query).exists()):
        entry = zoo.entry(query)  # or an error that names similar entries
        return entry.id, entry.layers, lambda places: zoo.get(entry.id, layers=places)
    rep = as_representation(query)
    return (
        None,
        tuple(rep.layer_names),
        lambda places: replace(rep, layers=tuple(rep[i] for i in places)),
    )


def _with_layers_at(rep: Representation, places: Sequence[int]) -> Representation:
    """A recording that holds the layers at some places alone, with one layer for each of these."""
    held = sorted(set(places))
    return replace(rep, layers=tuple(rep[held.index(place)] for place in places))


def read_entries(
    zoo: Zoo,
    entries: Iterable[Entry],
    places: Callable[[Entry], Sequence[int] | None],
    left_out: Counter[str],
) -> Iterator[tuple[Entry, Representation]]:
    """Entries, each with its layers at some places, or all.

    Those that are damaged are counted in `left_out`; those that were just removed are passed over.
    """
    for entry in entries:
        wanted = places(entry)
        try:
            rep = zoo.store.read(entry.id, None if wanted is None else sorted(set(wanted)))
        except FormatError:
            left_out[REASON_DAMAGED] += 1
            continue
        if rep is not None:
            yield entry, rep
