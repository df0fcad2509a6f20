"""The HTML report: one or more Representations as a single self-contained page.

Every comparison that the page can switch to is computed here, for all pairs of networks at once,
rounded and encoded (`score_encoding`) into the page beside its style sheet and script.
`report_contents` is the data of the page, `report` writes the file.
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
from .._utils.atomic_files import check_writable, write_atomically
from .._utils.formatting import printable
from .._utils.progress import progress_bar
from .._utils.validation import check_nonempty_strings
from ..analysis.adaptation import adaptation
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.representation import Representation, RepresentationLike, as_representations
from ..similarity.agreement import AnyBehaviour, Behaviour, behaviour, outputs_obstacle
from ..similarity.all_pairs import NetworkPair, compare_every_pair
from ..similarity.comparison import KernelComparison
from ..similarity.comparison_matrix import average_linkage, leaf_order
from ..similarity.divergence import divergence_if_tested
from ..similarity.drift_of_copies import drift_of_copies
from ..similarity.jackknife import are_unreliable
from ..similarity.kernels import Index, Kernel
from ..similarity.neighbours import EmbeddingBehaviour
from ..similarity.pairing import Matching, same_samples
from ..similarity.results import plain
from . import score_encoding

KERNELS: tuple[Kernel, ...] = ("features", "gradients", "product")
INDICES: tuple[Index, ...] = ("cka", "cka-debiased")
_MAX_DEBIASED_NETWORKS = 12  # networks of which debiased CKA is held as well
_MAX_PROBABILITIES = (
    2 * 10**9
)  # probabilities to be read: beyond, of predictions only the classes are
_EMBEDDING_COST = 4  # probabilities that are read in the time of comparing two embeddings
_UNRELIABLE = ("unreliable-errors", "unreliable-adaptation")  # codes of notes
_ADAPTATION_COLUMNS = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
_FRAGMENTS = ("card", "layers", "reading", "provenance")  # which pages of a zoo have as well
_NUMBER_WORDS = (
    "No",
    "One",
    "Two",
    "Three",
    "Four",
    "Five",
    "Six",
    "Seven",
    "Eight",
    "Nine",
    "Ten",
)


def report(
    reps: Iterable[RepresentationLike],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    in_order: bool = False,
    progress: bool | None = None,
) -> Path:
    """Write an HTML page that compares networks. It is self-contained and makes no request.

    Scores are those of `compare`: CKA of features, gradients and their product, and debiased CKA
    for up to twelve networks. A pair that cannot be compared is left blank and the page says why;
    if no pair can be compared, the reason is raised. Thirty networks of twenty layers take under a
    minute on one core and 1.5 MB.

    Args:
        reps: one or more recordings, or paths of their files; a single one is compared with itself,
            layer by layer. Those that share a name get `#2`, `#3` and so on.
        path: path of the page, which appears whole or not at all.
        title: title of the page; None names the networks.
        in_order: whether these are checkpoints of one training run in order; the page then shows
            the training trajectory, layer by time.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        The path.
    """
    check_writable(path)
    if title is not None:
        check_nonempty_strings(title=title)
    content, numbers = report_contents(reps, title=title, in_order=in_order, progress=progress)
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    parts = {
        "title": html.escape(printable(content["title"])),
        "style": page_asset("report.css"),
        "charts": page_asset("charts.js"),
        "pairs": page_asset("pair.js"),
        "script": page_asset("report.js"),
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
        "numbers": numbers,
    }
    page = fill_page(page_asset("report.html"), parts)
    return write_atomically(path, page.encode(errors="backslashreplace"))


def report_contents(
    reps: Iterable[RepresentationLike],
    *,
    title: str | None = None,
    in_order: bool = False,
    progress: bool | None = None,
) -> tuple[dict[str, Any], str]:
    """Everything the page shows: plain lists, numbers and strings, and the packed numbers."""
    reps = _with_unique_names(as_representations(reps))
    if not reps:
        raise DataError("nothing to report: expected at least one recording, found none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResemblanceWarning)
        predicted = _compare_predictions(reps)
        compared, missing = _compare_pairs(reps, predicted, progress)
        tables = [_adaptation_table(rep) for rep in reps]
    _warn_once(caught, len(compared))
    comparisons, numbers = _encode_comparisons(reps, compared)
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
        "comparisons": comparisons,
        "missing": [
            {"a": a, "b": b, "kernel": kernel, "index": index, "why": why}
            for (a, b, kernel, index), why in missing.items()
        ],
        "overview": [_overview_table(compared, len(reps), *both) for both in sorted(used)],
        "order": {
            index: _cluster_order(compared, len(reps), index) for index in offered & {*INDICES}
        },
        "behaviour": _prediction_table(reps, predicted),
        "moved": _drift_tables(reps),
        "adaptation": tables,
    }, numbers


ComparisonKey = tuple[int, int, Kernel, Index]  # row model, column model, kernel, index


def _compare_pairs(
    reps: Sequence[Representation],
    predicted: dict[NetworkPair, AnyBehaviour],
    progress: bool | None,
) -> tuple[dict[ComparisonKey, KernelComparison], dict[ComparisonKey, str]]:
    """Each pair under each kernel and index, or why it cannot be compared."""
    compared: dict[ComparisonKey, KernelComparison] = {}
    missing: dict[ComparisonKey, str] = {}
    matchings: dict[tuple[int, int, Index], Matching] = {}  # the same for all kernels
    indices = INDICES if len(reps) <= _MAX_DEBIASED_NETWORKS else INDICES[:1]
    number = len(reps) * (len(reps) + 1) // 2 * len(KERNELS) * len(indices)
    with progress_bar(progress, number, "comparing", "pairs") as advance:
        for kernel in KERNELS:
            found, why = compare_every_pair(reps, kernel, indices, predicted, advance, matchings)
            matchings = {key: x.matching for key, x in found.items()} | matchings
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
    codes = [getattr(w.message, "code", None) for w in caught]
    number = [codes.count(code) for code in _UNRELIABLE]
    told = {
        (str(w.message), w.category): None
        for w, code in zip(caught, codes, strict=True)
        if code not in _UNRELIABLE
    }
    if any(number):
        text = (
            f"in {number[0]} of {comparisons} comparisons and {number[1]} curves of adaptation "
            "some standard errors may be too small: a few samples dominate a layer (n_eff). The "
            "page marks those of comparisons; record more samples"
        )
        told[text, ResemblanceWarning] = None
    for message, category in told:
        warnings.warn(message, category, stacklevel=4)


# -- numbers ------------------------------------------------------------------------------------


def _encode_comparisons(
    reps: Sequence[Representation], compared: dict[ComparisonKey, KernelComparison]
) -> tuple[list[dict[str, Any]], str]:
    """Comparisons as descriptions, and the numbers of all of them packed one after the other."""
    entries, tables = [], []
    names = ("kernel", "index", "centre", "estimator", "paired", "samples", "tokens")
    for (a, b, _, index), found in compared.items():
        matched = compared.get((a, b, "features", index), found)  # its scores matched layers
        unreliable = found.of_counterparts(are_unreliable(reps[a], found).astype(float))
        entry = {
            "a": a,
            "b": b,
            **{name: plain(getattr(found, name)) for name in names},
            "chance": found.chance is not None,
            "by": found.matched_by,
            # the counterpart of each row, and of each column
            "matched": plain([found.matched, found.matching.turned(matched.scores).columns]),
            "carried": found.carried_by(),
            # of each row with its counterpart: a table of layers with themselves has no such mean
            "mean": plain([round(x, 5) for x in found.mean()]),
            "notes": [str(note) for note in found.notes],
            "doubtful": np.flatnonzero(unreliable == 1).tolist(),
            "n_eff": found.n_eff
            and plain(np.rint(found.of_counterparts(np.minimum.outer(*found.n_eff)))),
        }
        divergence = None if found.models[0] == found.models[1] else divergence_if_tested(found)
        if divergence:
            entry["parting"] = [divergence.position, divergence.sentence]
        entries.append(entry)
        levels = (x for x in (found.chance, found.chance_high) if x is not None)
        tables += [score_encoding.encode_scores(x) for x in (found.scores, *levels)]
        tables.append(score_encoding.encode_errors(found.stderr))
    return entries, score_encoding.pack_tables(tables)


def _overview_table(
    compared: dict[ComparisonKey, KernelComparison], count: int, kernel: str, index: str
) -> dict[str, Any]:
    """Models × models: the mean over counterpart layers."""
    scores, errors = _model_means(compared, count, kernel, index)
    scores = np.where(scores < 0.999, np.round(scores, 4), np.round(scores, 10))  # near 1, not 1
    values = {"scores": plain(scores), "stderr": plain(np.round(errors, 4))}
    return {"kernel": kernel, "index": index, **values}


def _cluster_order(
    compared: dict[ComparisonKey, KernelComparison], count: int, index: str
) -> dict[str, Any]:
    """The tree that orders the networks, by the mean of what features and gradients say."""
    kernels = {key[2] for key in compared if key[3] == index}
    chosen = kernels & {"features", "gradients"} or kernels
    means = np.stack([_model_means(compared, count, kernel, index)[0] for kernel in chosen])
    known = np.isfinite(means).sum(0)
    links = average_linkage(np.clip(1 - np.nansum(means, 0) / np.maximum(known, 1), 0, None))
    written = [[int(left), int(right), round(height, 5)] for left, right, height, _ in links]
    return {"order": leaf_order(links), "links": written}


def _model_means(
    compared: dict[ComparisonKey, KernelComparison], count: int, kernel: str, index: str
) -> np.ndarray:  # (2, models, models)
    """Means over counterpart layers and their errors, NaN where there is none."""
    found = np.full((2, count, count), np.nan)
    for (a, b, *combination), comparison in compared.items():
        if combination == [kernel, index]:
            found[:, a, b] = found[:, b, a] = comparison.mean()
    return found


# -- beside the kernels --------------------------------------------------------------------------


def _compare_predictions(reps: Sequence[Representation]) -> dict[NetworkPair, AnyBehaviour]:
    """How differently each ordered pair predicts, where that can be said in a few seconds."""
    pairs = [
        (i, j)
        for i, j in itertools.permutations(range(len(reps)), 2)
        if outputs_obstacle(reps[i], reps[j]) is None
    ]
    known = [rep.predictions for rep in reps if rep.predictions is not None]
    sizes = [x.rows * min(x.classes, 1024) for x in known]
    sizes += [_EMBEDDING_COST * x.rows**2 for rep in reps if (x := rep.embeddings) is not None]
    if len(pairs) * max(sizes, default=0) > _MAX_PROBABILITIES:
        return {}
    found: dict[NetworkPair, AnyBehaviour] = {}
    for i, j in pairs:
        back = found.get((j, i))
        if isinstance(back, EmbeddingBehaviour):  # which is the same in both directions
            found[i, j] = back.turned()
        else:
            found[i, j] = behaviour(reps[i], reps[j])
    return found


def _prediction_table(
    reps: Sequence[Representation], predicted: dict[NetworkPair, AnyBehaviour]
) -> list[dict[str, Any]]:
    """Of each pair of networks what differs in their predictions, or why it is not known."""
    out = []
    for i, j in itertools.combinations(range(len(reps)), 2):
        entry: dict[str, Any] = {"a": i, "b": j}
        if (found := predicted.get((i, j))) is not None:
            both = found.summary(), predicted[j, i].summary()  # KL depends on the order
            entry["words"] = both
            if isinstance(found, Behaviour):  # what embeddings do is said in words alone
                entry |= {"value": round(found.disagreement, 5)}
                entry |= {"error": plain(round(found.disagreement_stderr, 5))}
        elif (why := outputs_obstacle(reps[i], reps[j])) is not None:
            entry["why"] = why
        elif (one := reps[i].predictions) is None or (two := reps[j].predictions) is None:
            entry["why"] = "there are too many embeddings; use `behaviour` for two networks"
        else:
            share = float((one.prediction != two.prediction).double().mean())
            entry |= {"value": round(share, 5), "error": None}
        out.append(entry)
    return out


def _drift_tables(reps: Sequence[Representation]) -> list[dict[str, Any]]:
    """Change of each layer, of each pair of networks in one unit order, in both directions."""
    out = []
    for (i, j), found in drift_of_copies(reps):
        shared = {"kinds": list(found.kinds), "cosine": plain(np.round(found.cosine, 3))}
        for a, b, rows, values in (
            (i, j, found.rows, found.decibels),
            (j, i, found.columns, found.decibels_back),
        ):
            decibels = [
                [None if np.isnan(x) else round(min(x, 999.0), 1) for x in row] for row in values
            ]
            out.append({"a": a, "b": b, "rows": list(rows), "decibels": decibels, **shared})
    return out


def _adaptation_table(rep: Representation) -> dict[str, list[float | None]] | None:
    """‖μ‖ and the log ratio of each layer, or None where they were not recorded."""
    try:
        table = adaptation(rep.without_outputs())  # layers alone
    except MismatchError:
        return None
    return {  # significant digits rather than decimals: ‖μ‖ has any scale
        name: [float(f"{x:.4g}") if np.isfinite(x) else None for x in table[name].tolist()]
        for name in _ADAPTATION_COLUMNS
    }


# -- words --------------------------------------------------------------------------------------


def _with_unique_names(reps: Sequence[Representation]) -> list[Representation]:
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
        return f"Layers of {names[0]}", summary
    things = "checkpoints, in training order," if in_order else "networks"
    many = f"{_NUMBER_WORDS[len(reps)] if len(reps) < len(_NUMBER_WORDS) else len(reps)} {things}"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    title = f"How similar are {listed if len(reps) <= 3 else f'these {many.lower()}'}?"
    if in_order:
        title = f"From {names[0]} to {names[-1]}"
    if paired:
        return title, f"{many} compared on the same {n} {what}."
    return title, f"{many} compared, recorded on different samples ({n} each)."


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


def fill_page(page: str, parts: dict[str, str]) -> str:
    """A page with its parts, and those that all pages share, in place of {{name}}."""
    every = {name: page_asset(f"{name}.html").rstrip() for name in _FRAGMENTS} | parts
    # one pass, so that braces in a name are never taken for a part
    return re.sub(r"\{\{(\w+)\}\}", lambda match: every[match[1]], page)


def page_asset(name: str, package: str = __package__) -> str:
    """A file that pages are made of, in the folder `page` of a package."""
    return resources.files(package).joinpath(f"page/{name}").read_text(encoding="utf-8")
