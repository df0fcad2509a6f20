"""`report`: what one or more Representations show, as one HTML page that needs nothing else.

Every comparison that the page can switch to is computed here, for all pairs of networks at once
(`similarity.every_pair`), rounded and packed (`packed_scores`) into the page beside its style sheet
and script. `contents` is the data of the page, `report` writes the file.
"""

from __future__ import annotations

import base64
import datetime
import html
import itertools
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._atomic_files import check_writable, write_atomically
from .._given_words import check_words
from .._progress_bar import progress as progress_bar
from .._shown_text import shown
from ..analysis.mean_embedding import adaptation
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recordings
from ..representation.representation import Representation
from ..similarity.clustering import average_linkage, leaf_order
from ..similarity.combinations import Index, Kernel
from ..similarity.comparison import Comparison, plain
from ..similarity.doubtful_errors import are_doubtful
from ..similarity.every_pair import Pair, every_pair
from ..similarity.moved_copies import moved_copies
from ..similarity.same_predictions import Behaviour, behaviour, obstacle
from ..similarity.two_networks import same_samples
from . import packed_scores

KERNELS: tuple[Kernel, ...] = ("features", "gradients", "product")
INDICES: tuple[Index, ...] = ("cka", "cka-debiased")
_FEW = 12  # networks of which debiased CKA is held as well
_PREDICTIONS = 10**9  # probabilities to be read: beyond, of predictions only the classes are
_UNTRUSTED = ("error bars cannot be trusted", "error bars are too narrow to be trusted")
_ADAPTATION = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
FRAGMENTS = ("card", "layers", "reading", "provenance")  # which pages of a zoo have as well
_WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def report(
    reps: Iterable[Given],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    in_order: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write a page that shows how alike networks are: self-contained, no request leaves it.

    Args:
        reps: one or more from `record`, or paths of their files; one alone is compared with itself,
            layer by layer. Those that share a name get `#2`, `#3` and so on.
        path: of the page; it appears whole or not at all.
        title: of the page. None names the networks.
        in_order: whether these are checkpoints of one run in the order of training: the page then
            shows its course, layer by time.
        progress: True or False; None shows a bar on a terminal.

    A pair that cannot be compared in some way is left blank and the page says why; if no pair can
    be, the reason is raised. Scores are those of `compare`, of features and gradients side by side,
    and of their product, by CKA, and for up to twelve networks by debiased CKA. The page holds them
    to three decimals and their standard errors to 3 %. The 95 % level of chance is known from its
    moments instead of being drawn. Thirty networks of twenty layers take under a minute of one core
    and 1.5 MB.
    """
    check_writable(path)
    if title is not None:
        check_words(title=title)
    content, numbers = contents(reps, title=title, in_order=in_order, progress=progress)
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    parts = {
        "title": html.escape(shown(content["title"])),
        "style": page_asset("report.css"),
        "charts": page_asset("charts.js"),
        "pairs": page_asset("pair.js"),
        "script": page_asset("report.js"),
        **{name: page_asset(f"{name}.html").rstrip() for name in FRAGMENTS},
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
        "numbers": numbers,
    }
    # one pass, so that braces in a name are never taken for a part
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page_asset("report.html"))
    return write_atomically(path, page.encode(errors="backslashreplace"))


def contents(
    reps: Iterable[Given],
    *,
    title: str | None = None,
    in_order: bool = False,
    progress: bool | None = None,
) -> tuple[dict[str, Any], str]:
    """Everything the page shows: plain lists, numbers and strings, and the packed numbers."""
    reps = _distinct(recordings(reps))
    if not reps:
        raise DataError("expected at least one Representation to report on, found none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResemblanceWarning)
        predicted = _predictions(reps)
        compared, missing = _compare_all(reps, predicted, progress)
        tables = [_adaptation(rep) for rep in reps]
    _warn_once(caught, len(compared))
    written, numbers = _written(reps, compared, missing)
    used = {key[2:] for key in compared}
    offered = {name for combination in used for name in combination}
    paired = all(same_samples(reps[0], rep) for rep in reps)
    own_title, summary = _title_and_summary(reps, paired, in_order)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "title": title or own_title,
        "summary": summary,
        "unpaired": not paired,
        "in_order": bool(in_order) and len(reps) > 1,
        "made": {"version": __version__, "date": f"{now.day} {now:%B %Y, %H:%M} UTC"},
        "models": [
            {"name": rep.name, "layers": rep.layer_names, "provenance": _provenance(rep)}
            for rep in reps
        ],
        "kernels": [kernel for kernel in KERNELS if kernel in offered],
        "indices": [index for index in INDICES if index in offered],
        **written,
        "overview": [_overview(compared, len(reps), *both) for both in sorted(used)],
        "order": {index: _clusters(compared, len(reps), index) for index in offered & {*INDICES}},
        "behaviour": _behaviour(reps, predicted),
        "moved": _moved(reps),
        "adaptation": tables,
    }, numbers


Key = tuple[int, int, Kernel, Index]  # row model, column model, kernel, index


def _compare_all(
    reps: Sequence[Representation], predicted: dict[Pair, Behaviour], progress: bool | None
) -> tuple[dict[Key, Comparison], dict[Key, str]]:
    """Each pair under each kernel and index, or why it cannot be compared."""
    compared: dict[Key, Comparison] = {}
    missing: dict[Key, str] = {}
    indices = INDICES if len(reps) <= _FEW else INDICES[:1]
    number = len(reps) * (len(reps) + 1) // 2 * len(KERNELS) * len(indices)
    with progress_bar(progress, number, "comparing", "pairs") as advance:
        for kernel in KERNELS:
            found, why = every_pair(reps, kernel, indices, predicted, advance)
            compared |= {(a, b, kernel, index): x for (a, b, index), x in sorted(found.items())}
            missing |= {(a, b, kernel, index): x for (a, b, index), x in sorted(why.items())}
    # a kernel is offered if it compares networks, not only one of them with itself
    used = {key[2:] for key in compared if key[0] != key[1] or len(reps) == 1}
    if not used:
        raise MismatchError(next(iter(missing.values())))
    return (
        {key: found for key, found in compared.items() if key[2:] in used},
        {key: why for key, why in missing.items() if key[2:] in used},
    )


def _warn_once(caught: Iterable[warnings.WarningMessage], comparisons: int) -> None:
    """What was warned of, each thing once; of error bars, how many comparisons it concerns."""
    every = [(str(w.message), w.category) for w in caught]
    untrusted, of_adaptation = (sum(what in text for text, _ in every) for what in _UNTRUSTED)
    told = dict.fromkeys(x for x in every if not any(what in x[0] for what in _UNTRUSTED))
    if untrusted or of_adaptation:
        text = (
            f"in {untrusted} of {comparisons} comparisons and {of_adaptation} curves of adaptation "
            f"some {_UNTRUSTED[0]}: too few samples carry a layer's kernel (n_eff). The page marks "
            "those of comparisons; record more samples"
        )
        told[text, ResemblanceWarning] = None
    for message, category in told:
        warnings.warn(message, category, stacklevel=4)


# -- numbers ------------------------------------------------------------------------------------


class _Once(list[Any]):
    """A list in which each thing stands once; `at` says where."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, int] = {}

    def at(self, thing: Any) -> int | None:
        if thing is None:
            return None
        key = json.dumps(thing)
        if key not in self._places:
            self._places[key] = len(self)
            self.append(thing)
        return self._places[key]


def _written(
    reps: Sequence[Representation], compared: dict[Key, Comparison], missing: dict[Key, str]
) -> tuple[dict[str, Any], str]:
    """Comparisons as descriptions, with what they have in common written once, and numbers."""
    texts, how, matchings = _Once(), _Once(), _Once()
    entries, tables = [], []
    names = ("kernel", "index", "centre", "estimator", "paired", "samples", "tokens")
    for (a, b, _, _), found in compared.items():
        facts = {name: plain(getattr(found, name)) for name in names}
        facts["chance"] = found.chance is not None
        # the counterpart of each row, and of each column
        both = (found.matching, found.matching.turned(found.scores))
        matched = {"by": found.matched_by, "matched": [plain(one.columns) for one in both]}
        doubtful = found.of_counterparts(are_doubtful(reps[a], found).astype(float))
        entry: dict[str, Any] = {"a": a, "b": b, "how": how.at(facts)}
        entry |= {"match": matchings.at(matched), "carried": texts.at(found.carried_by())}
        # of each row with its counterpart: a table of layers with themselves has no such mean
        entry |= {"mean": plain([round(x, 5) for x in found.mean()])}
        entry |= {"notes": [texts.at(note) for note in found.notes]}
        entry |= {"doubtful": np.flatnonzero(doubtful == 1).tolist(), **_parting(found, texts)}
        entry |= {"n_eff": _n_eff(found)}
        entries.append(entry)
        tables += _numbers(found)
    return {
        "comparisons": entries,
        "missing": [
            dict(zip(("a", "b", "kernel", "index", "why"), (*key, texts.at(why)), strict=True))
            for key, why in missing.items()
        ],
        "texts": texts,
        "how": how,
        "matchings": matchings,
    }, packed_scores.packed(tables)


def _numbers(found: Comparison) -> list[np.ndarray]:
    """Scores, the mean and the 95 % level of chance where they are known, and standard errors."""
    levels = (x for x in (found.chance, found.chance_high) if x is not None)
    return [
        *(packed_scores.thousandths(x) for x in (found.scores, *levels)),
        packed_scores.logarithmic(found.stderr),
    ]


def _n_eff(found: Comparison) -> list[int | None] | None:
    """How many samples carry each row with its counterpart."""
    if found.n_eff is None:
        return None
    both = np.minimum(found.n_eff[0][:, None], found.n_eff[1][None, :])
    return [None if np.isnan(x) else round(x) for x in found.of_counterparts(both).tolist()]


def _parting(found: Comparison, texts: _Once) -> dict[str, Any]:
    """Where two networks part: the row, if any, and the sentence."""
    if found.models[0] == found.models[1]:
        return {}
    try:
        parting = found.parting()
    except DataError:
        return {}
    return {"parting": [parting.position, texts.at(parting.sentence)]}


def _overview(
    compared: dict[Key, Comparison], count: int, kernel: str, index: str
) -> dict[str, Any]:
    """Models × models: the mean over counterpart layers."""
    scores, errors = np.full((2, count, count), np.nan)
    for (a, b, *combination), comparison in compared.items():
        if combination == [kernel, index]:
            scores[a, b], errors[a, b] = scores[b, a], errors[b, a] = comparison.mean()
    values = {"scores": plain(np.round(scores, 4)), "stderr": plain(np.round(errors, 4))}
    return {"kernel": kernel, "index": index, **values}


def _clusters(compared: dict[Key, Comparison], count: int, index: str) -> dict[str, Any]:
    """The tree that orders the networks, by the mean of what features and gradients say."""
    kernels = {key[2] for key in compared if key[3] == index}
    chosen = kernels & {"features", "gradients"} or kernels
    total, number = np.zeros((2, count, count))
    for (a, b, kernel, other), comparison in compared.items():
        value = comparison.mean()[0]
        if kernel in chosen and other == index and np.isfinite(value):
            for at in {(a, b), (b, a)}:
                total[at] += value
                number[at] += 1
    links = average_linkage(np.clip(1 - total / np.maximum(number, 1), 0, None))
    written = [[int(left), int(right), round(height, 5)] for left, right, height, _ in links]
    return {"order": leaf_order(links), "links": written}


# -- beside the kernels --------------------------------------------------------------------------


def _predictions(reps: Sequence[Representation]) -> dict[Pair, Behaviour]:
    """How differently each pair of networks predicts, where that can be said in a few seconds."""
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(reps)), 2)
        if obstacle(reps[i], reps[j]) is None
    ]
    sizes = [rep.outputs.rows * min(rep.outputs.classes, 1024) for rep in reps if rep.outputs]
    if len(pairs) * max(sizes, default=0) > _PREDICTIONS:
        return {}
    return {(i, j): behaviour(reps[i], reps[j]) for i, j in pairs}


def _behaviour(
    reps: Sequence[Representation], predicted: dict[Pair, Behaviour]
) -> list[dict[str, Any]]:
    """Of each pair of networks what differs in their predictions, or why it is not known."""
    out = []
    for i, j in itertools.combinations(range(len(reps)), 2):
        entry: dict[str, Any] = {"a": i, "b": j}
        if (found := predicted.get((i, j))) is not None:
            entry |= {"words": found.summary(), "value": round(found.disagreement, 5)}
            entry |= {"error": plain(round(found.disagreement_stderr, 5))}
        elif (why := obstacle(reps[i], reps[j])) is not None:
            entry["why"] = why
        else:
            one, two = reps[i].outputs, reps[j].outputs
            assert one is not None
            assert two is not None
            share = float((one.prediction != two.prediction).double().mean())
            entry |= {"value": round(share, 5), "error": None}
        out.append(entry)
    return out


def _moved(reps: Sequence[Representation]) -> list[dict[str, Any]]:
    """How far layers moved, of each pair of networks that share coordinates."""
    out = []
    for (i, j), found in moved_copies(reps):
        decibels = [[None if np.isnan(x) else min(x, 999.0) for x in row] for row in found.decibels]
        out.append(
            {
                "a": i,
                "b": j,
                "rows": list(found.rows),
                "kinds": list(found.kinds),
                "decibels": [[x and round(x, 1) for x in row] for row in decibels],
                "cosine": plain(np.round(found.cosine, 3)),
            }
        )
    return out


def _adaptation(rep: Representation) -> dict[str, list[float | None]] | None:
    """‖μ‖ and the log ratio of each layer, or None where they were not recorded."""
    try:
        table = adaptation(rep)
    except MismatchError:
        return None
    return {  # significant digits rather than decimals: ‖μ‖ has any scale
        name: [float(f"{x:.4g}") if np.isfinite(x) else None for x in table[name].tolist()]
        for name in _ADAPTATION
    }


# -- words --------------------------------------------------------------------------------------


def _distinct(reps: Sequence[Representation]) -> list[Representation]:
    """The same under names of which no two agree."""
    names: list[str] = []
    for rep in reps:
        tries = itertools.chain([rep.name], (f"{rep.name} #{i}" for i in itertools.count(2)))
        names.append(next(name for name in tries if name not in names))
    return [rep.renamed(name) for rep, name in zip(reps, names, strict=True)]


def _title_and_summary(
    reps: Sequence[Representation], paired: bool, in_order: bool
) -> tuple[str, str]:
    names, samples = [rep.name for rep in reps], [rep.samples for rep in reps]
    n = " to ".join(f"{count:,}" for count in sorted({min(samples), max(samples)}))
    what = "tokens" if all(rep.settings.unit == "token" for rep in reps) else "samples"
    if len(reps) == 1:
        summary = f"One network, its layers compared with each other on {n} {what}."
        return f"The layers of {names[0]}", summary
    things = "checkpoints, in the order of training," if in_order else "networks"
    many = f"{_WORDS[len(reps)] if len(reps) < len(_WORDS) else len(reps)} {things}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    title = f"How alike are {listed if len(reps) <= 3 else f'these {many.lower()}'}?"
    if in_order:
        title = f"From {names[0]} to {names[-1]}"
    if paired:
        return title, f"{many} compared on the same {n} {what}, paired one to one."
    return title, f"{many} compared, not all on the same samples ({n} each)."


def _provenance(rep: Representation) -> dict[str, str]:
    """Where a file came from, as words in the order in which they are shown."""
    sizes = rep.block_sizes
    values: dict[str, Any] = {
        "weights": rep.model.fingerprint,
        "parameters": rep.model.parameters,
        "layers": len(rep),
        "data": rep.data.id,
        "data fingerprint": rep.data.fingerprint,
        "samples": rep.samples,
        "samples skipped": rep.data.skipped or None,
        "order": rep.data.order,
        "blocks": f"{len(sizes)} of {max(sizes)} samples" if sizes else "none",
        **{name: v for name, v in asdict(rep.settings).items() if name not in ("block", "blocks")},
        **asdict(rep.made),
    }
    return {
        name.replace("_", " "): f"{value:,}" if type(value) is int else str(value)
        for name, value in values.items()
        if value is not None
    }


def page_asset(name: str) -> str:
    """A file that pages are made of."""
    return resources.files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")
