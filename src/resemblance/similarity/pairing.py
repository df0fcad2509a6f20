"""Pairing: whether two recordings hold the same samples, and which of their layers correspond.

Samples. The `check_…` functions raise where recordings cannot be compared; the `…_obstacle`
functions return the reason, or None.

Layers are matched by the first of three rules that applies.

*By name*: layers with equal bare names, which leave out wrappers (adapters, data parallel, compiled
and sharded networks), also where one side has a prefix (`model.`, `backbone.`). It applies if at
least half of the layers of the network with fewer layers have a namesake; the rest have no
counterpart. Shapes may differ, as in a narrower copy. A name that is only a number is a place in a
Sequential: unless all names agree, such layers match only if their shapes agree too.

*By position*: networks with the same number of layers and the same shapes, under different names.

*By similarity*: otherwise, the alignment of scores that keeps the order of layers. It picks the
best scores, so it is biased upwards; copies should be matched by name. Where features and other
kernels are compared together, features are aligned and the others take their counterparts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import numpy as np

from ..errors import MismatchError
from ..representation.layer import Layer
from ..representation.notes import Note, make_note
from ..representation.representation import Representation, settings_difference
from .kernels import Kernel, required_kinds

_MSG_DIFFERENT = "{!r} and {!r} were recorded on different samples: {} and {}. {}"
_MSG_UNPAIRED = ", or {}, which pairs them by position; such scores have little meaning"
_MSG_SHARE_SAMPLES = "Record both on the same samples (no labels are needed)"
_MSG_SHARE_NAME = "Both hold the same samples: record both under one `data_id`, or under none"
_MSG_REORDERED = (
    "they have the same samples under the same name, but in a different order, so samples would be "
    "paired wrongly"
)
_MSG_REDRAWN = (
    "different tokens of the same sequences were drawn, because the networks have different "
    "special tokens"
)
MSG_OTHER_ORDER = (
    "they have the same samples by their keys, but in a different order, so their blocks contain "
    "different samples"
)
_MSG_OTHER_TOKENS = (
    "{!r} and {!r} were recorded token by token with different tokenizers, so their tokens are not "
    "the same samples; record whole texts with `unit='sample'`, a `pool` such as 'mean' and one "
    "`data_id`"
)


def check_same_samples(a: Representation, b: Representation, permission: str | None = None) -> None:
    """An error if two recordings were made on different samples.

    Args:
        a: one recording, whose data the message names.
        b: the other, likewise.
        permission: what to do to compare them all the same; None where there is no such way.
    """
    if same_samples(a, b):
        return
    data = [
        f"{rep.samples:,} {'samples' if rep.data.id is None else f'of {rep.data.id!r}'}"
        for rep in (a, b)
    ]
    if data[0] == data[1]:
        data = [
            f"{x} (fingerprint {r.data.fingerprint[:8]})" for x, r in zip(data, (a, b), strict=True)
        ]
    remedy = _MSG_SHARE_NAME if _same_content(a, b) else _MSG_SHARE_SAMPLES
    message = _MSG_DIFFERENT.format(a.name, b.name, *data, remedy)
    raise MismatchError(message + (_MSG_UNPAIRED.format(permission) if permission else ""))


def unpaired_note(a: Representation, b: Representation) -> Note:
    """What to say of different samples, or of the same under other names."""
    if _same_content(a, b):
        return make_note("unpaired-names", a=a.data.id, b=b.data.id)
    return make_note("unpaired")


def _same_content(a: Representation, b: Representation) -> bool:
    """Whether both are known to hold the same samples, whatever the names of these."""
    # of arrays nothing but their names is known
    known = a.model.fingerprint and b.model.fingerprint and a.block_hashes and a.data.content
    return bool(known) and (a.samples, a.data.content, a.block_hashes) == (
        b.samples,
        b.data.content,
        b.block_hashes,
    )


def same_samples(a: Representation, b: Representation) -> bool:
    """Whether both were recorded on the same samples, by fingerprint."""
    return a.samples == b.samples and a.data.fingerprint == b.data.fingerprint


def blocks_obstacle(a: Representation, b: Representation, *, paired: bool = True) -> str | None:
    """Why the blocks of two Representations cannot be compared, or None if they can."""
    if not a.block_sizes or not b.block_sizes:
        return "no blocks were recorded"
    one, two = max(a.block_sizes), max(b.block_sizes)
    if min(one, two) < 2:
        return "a single sample has no pairs"
    if not paired:
        return None if one == two else f"block differs: {one} and {two} samples"
    if not same_samples(a, b):
        return "they were recorded on different samples"
    trouble = settings_difference(a, b, ("seed", "block"))
    if trouble is None and _any_keyed(a, b) and a.block_hashes != b.block_hashes:
        return MSG_OTHER_ORDER
    if trouble is None and not _same_blocks(a, b):
        return "their blocks contain different samples"
    return trouble or pairing_obstacle(a, b)


def _same_blocks(a: Representation, b: Representation) -> bool:
    """Whether blocks have the same places and sizes."""
    return (a.block_sizes, a.block_numbers) == (b.block_sizes, b.block_numbers)


def _any_keyed(a: Representation, b: Representation) -> bool:
    """Whether samples of one are known by keys, and came in an order of their own."""
    return "keyed" in (a.data.order, b.data.order)


def pairing_obstacle(a: Representation, b: Representation) -> str | None:
    """Why samples of one index are different ones in two recordings, or None if they are not.

    Where data go by no name, a fingerprint has each sample's content with its index, but not which
    tokens of it were drawn; where samples have keys, the index is the sample's own.
    """
    untold = a.data.id is not None or a.settings.unit == "token"
    by_index = same_samples(a, b) and untold and not _any_keyed(a, b)
    known = _same_blocks(a, b) and settings_difference(a, b, ("seed", "block")) is None
    if not (by_index and known and _reordered(a, b)):
        return None
    return _MSG_REDRAWN if a.data.id is None else _MSG_REORDERED


def _reordered(a: Representation, b: Representation) -> bool:
    """Whether samples that go by one name are the same ones in another order.

    Where preprocessing made their content differ, their labels tell, if both have them.
    """
    same_content = a.data.content == b.data.content
    known = a.block_hashes is not None and b.block_hashes is not None
    if known and a.data.content is not None and same_content:
        return a.block_hashes != b.block_hashes
    labelled = a.label_hashes is not None and b.label_hashes is not None
    return labelled and a.data.labels == b.data.labels and a.label_hashes != b.label_hashes


def buckets_obstacle(a: Representation, b: Representation, *, paired: bool = True) -> str | None:
    """Why the buckets of two Representations cannot be compared, or None if they can."""
    if not a.settings.buckets or not b.settings.buckets:
        return "none were recorded"
    trouble = settings_difference(a, b, ("seed", "buckets", "per_sample", "max_dim"))
    return trouble or (pairing_obstacle(a, b) if paired else None)


def incomplete_message(rep: Representation) -> str:
    """What to do with some of the shards of a recording."""
    there, count = len(rep.data.shards), rep.data.shards[0][1]
    return (
        f"{rep.name!r} has {there} of {count} shards of a recording; record the missing ones and "
        "merge all of them"
    )


def recorded_without(reps: Sequence[Representation], part: str) -> str | None:
    """Which recordings lack gradients, or outputs, as a reason; None if none does."""
    parts = {"gradients": lambda rep: rep.layers[0].gradients, "outputs": lambda rep: rep.outputs}
    names = dict.fromkeys(rep.name for rep in reps if parts[part](rep) is None)
    were = "was" if len(names) == 1 else "were"
    return f"{' and '.join(names)} {were} recorded without them" if names else None


def check_recorded(a: Representation, b: Representation, kernel: Kernel) -> None:
    """An error if a kernel was not recorded, or not in the same way, by both."""
    for rep in (a, b):
        if not rep.complete:
            raise MismatchError(incomplete_message(rep))
        for kind in set(required_kinds(kernel)).difference(rep.layers[0].kinds):
            remedy = "use `kernel='features'`, or record it again with gradients"
            if kind == "elementwise":
                remedy = "record it again with `elementwise=True`"
            raise MismatchError(
                f"kernel {kernel!r} needs {kind}, which {rep.name!r} lacks; {remedy}"
            )
    of_gradients = () if kernel == "features" else ("target", "beta")
    trouble = settings_difference(a, b, ("unit", "tokens", "pool", *of_gradients))
    if trouble:
        raise MismatchError(f"{trouble}; record both with the same setting")
    made_by = {rep.model.tokenizer for rep in (a, b)} - {None}
    if a.settings.unit == "token" and len(made_by) > 1:
        raise MismatchError(_MSG_OTHER_TOKENS.format(a.name, b.name))


# -- layers --

MatchedBy = Literal["name", "position", "similarity"]
MATCHING_RULES: tuple[MatchedBy, ...] = get_args(MatchedBy)


class LayerKey(NamedTuple):
    """What a layer is matched by."""

    name: str  # without the names of wrappers
    shape: tuple[int, ...] | None = None  # None: not known

    @property
    def numbered(self) -> bool:
        """Whether its name is a number alone, or numbers: `3`, `0.1`, `3:in`, `3#2`."""
        module = self.name.partition(":")[0].partition("#")[0]
        return module.replace(".", "").isdecimal()


@dataclass(frozen=True)
class Matching:
    """The counterpart of each row among the columns."""

    by: MatchedBy
    columns: tuple[int | None, ...]  # of each row, the place of its counterpart; None: it has none

    def turned(self, scores: np.ndarray) -> Matching:  # (rows, columns)
        """The counterpart of each column among the rows."""
        if self.by == "similarity":
            return Matching(self.by, align_layers(scores.T))
        rows = {column: row for row, column in enumerate(self.columns)}
        return Matching(self.by, tuple(map(rows.get, range(scores.shape[1]))))


def layer_keys(layers: Iterable[Layer]) -> list[LayerKey]:
    """What recorded layers are matched by."""
    return [LayerKey(layer.bare_name or layer.name, layer.shape) for layer in layers]


def match_layers(
    rows: Sequence[LayerKey], columns: Sequence[LayerKey], scores: np.ndarray
) -> Matching:
    """The counterpart of each row, by the first of the three rules that applies.

    >>> rows = [LayerKey("h.0"), LayerKey("h.1"), LayerKey("h.2")]
    >>> match_layers(rows, [LayerKey("model.h.0"), LayerKey("model.h.2")], np.zeros((3, 2)))
    Matching(by='name', columns=(0, None, 1))
    """
    if named := match_by_name(rows, columns):
        return named
    if _same_shapes(rows, columns):
        return Matching("position", tuple(range(len(rows))))
    return Matching("similarity", align_layers(scores))


def match_by_name(rows: Sequence[LayerKey], columns: Sequence[LayerKey]) -> Matching | None:
    """Namesakes, if at least half of the shorter network's layers have one."""
    if [layer.name for layer in rows] == [layer.name for layer in columns]:
        return Matching("name", tuple(range(len(rows))))
    tried = [
        _same_name_pairs(rows, columns),
        *(
            _same_name_pairs(_without_prefix(prefix, rows), columns)
            for prefix in _common_prefixes(rows, columns)
        ),
        *(
            _same_name_pairs(rows, _without_prefix(prefix, columns))
            for prefix in _common_prefixes(columns, rows)
        ),
    ]
    best = max(tried, key=len)  # the first of equals
    if 2 * len(best) < min(len(rows), len(columns)):
        return None
    return Matching("name", tuple(map(best.get, range(len(rows)))))


def layers_in_all(
    reps: Sequence[Representation],
) -> tuple[list[list[Layer]], Literal["name", "position"]] | None:
    """Of each of many networks, the layers that all of them have, one by one.

    By name where at least half of the first network's have namesakes in all, else by position in
    networks of equal depth, and otherwise None.
    """
    shared = match_in_all([layer_keys(rep) for rep in reps])
    if shared is not None:
        return [[rep[i] for i in at] for rep, at in zip(reps, shared, strict=True)], "name"
    if len({len(rep) for rep in reps}) == 1:
        return [list(rep) for rep in reps], "position"
    return None


def match_in_all(networks: Sequence[Sequence[LayerKey]]) -> list[list[int]] | None:
    """Of each of many networks, the places of the layers that have namesakes in all of them.

    None where those are fewer than half of the first network's.
    """
    found = [match_by_name(networks[0], other) for other in networks]
    columns = [matching.columns for matching in found if matching is not None]
    shared = [places for places in zip(*columns, strict=True) if None not in places]
    if len(columns) < len(networks) or 2 * len(shared) < len(networks[0]):
        return None
    return [list(places) for places in zip(*shared, strict=True)]


def align_layers(scores: np.ndarray) -> tuple[int, ...]:  # (rows, columns) -> (rows,)
    """A column for each row such that later rows never get earlier ones, of the largest sum.

    By dynamic programming, O(rows · columns). An undefined score is never chosen if there is
    another.

    >>> align_layers(np.array([[0.1, 0.9, 0.2], [0.8, 0.3, 0.2]]))
    (1, 1)
    """
    scores = np.nan_to_num(scores, nan=-1.0)
    total, came_from = scores[0].copy(), []
    for row in scores[1:]:
        upto = np.maximum.accumulate(total)
        # the first column that reaches the running maximum
        where = np.maximum.accumulate(np.where(total == upto, np.arange(len(total)), 0))
        came_from.append(where)
        total = row + upto
    path = [int(total.argmax())]
    for where in reversed(came_from):
        path.append(int(where[path[-1]]))
    return tuple(reversed(path))


def _same_name_pairs(rows: Sequence[LayerKey], columns: Sequence[LayerKey]) -> dict[int, int]:
    """Rows and columns of equal names. Of layers that share one, the last is taken: it is the
    wrapper of the others, and gives what the layer in it gave before it was wrapped."""
    at = {layer.name: j for j, layer in enumerate(columns)}
    last = {layer.name: i for i, layer in enumerate(rows)}
    pairs = sorted((i, at[name]) for name, i in last.items() if name in at)
    return {i: j for i, j in pairs if not rows[i].numbered or _same_shapes([rows[i]], [columns[j]])}


def _common_prefixes(layers: Sequence[LayerKey], others: Sequence[LayerKey]) -> list[str]:
    """Dotted prefixes, shortest first, of so many layers that they can decide."""
    every: Counter[str] = Counter()
    for layer in layers:
        parts = layer.name.partition(":")[0].split(".")[:-1]
        every.update(f"{prefix}." for prefix in accumulate(parts, "{}.{}".format))
    enough = min(len(layers), len(others)) / 2
    return sorted((prefix for prefix, n in every.items() if n >= enough), key=len)


def _without_prefix(prefix: str, layers: Sequence[LayerKey]) -> list[LayerKey]:
    return [layer._replace(name=layer.name.removeprefix(prefix)) for layer in layers]


def _same_shapes(rows: Sequence[LayerKey], columns: Sequence[LayerKey]) -> bool:
    shapes = [layer.shape for layer in rows]
    return None not in shapes and shapes == [layer.shape for layer in columns]
