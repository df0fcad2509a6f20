"""`report`: what one or more Representations show, as one HTML page that needs nothing else.

Every comparison that the page can switch to is computed here, for each pair of networks, kernel and
index, and packed as 16-bit numbers into the page beside its style sheet and script. `contents` is
the data of the page, `report` writes the file.
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
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._atomic_files import check_writable, write_atomically
from .._progress_bar import progress as progress_bar
from .._shown_text import shown
from ..analysis.mean_embedding import adaptation
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recordings
from ..representation.representation import Representation
from ..similarity.clustering import average_linkage, leaf_order
from ..similarity.combinations import Index, Kernel
from ..similarity.comparison import Comparison, plain
from ..similarity.two_networks import compare, same_samples

KERNELS: tuple[Kernel, ...] = ("features", "gradients", "product")
INDICES: tuple[Index, ...] = ("cka", "cka-debiased")
_PARTS = ("scores", "stderr", "chance", "chance_high")
_MISSING = 65535  # stands for NaN; the other 65535 values divide a part's range evenly
_ADAPTATION = ("mean_embedding", "mean_embedding_stderr", "log_ratio", "log_ratio_stderr")
_WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def report(
    reps: Iterable[Given],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a page that shows how alike networks are: self-contained, no request leaves it.

    Args:
        reps: one or more from `record`, or paths of their files; one alone is compared with itself,
            layer by layer. Those that share a name get `#2`, `#3` and so on.
        path: of the page; it appears whole or not at all.
        title: of the page. None names the networks.
        progress: True or False; None shows a bar on a terminal.

    A pair that cannot be compared in some way is left blank and the page says why; if no pair can
    be, the reason is raised. Cost: one `compare` for each pair, kernel and index; about 11 bytes
    for each of their pairs of layers.
    """
    check_writable(path)
    content = contents(reps, title=title, progress=progress)
    # JSON inside <script>: no < may start a tag there, and these escapes are JSON's own
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(shown(content["title"])),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        "data": data,
    }
    # one pass, so that braces in a name are never taken for a part
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))
    return write_atomically(path, page.encode(errors="backslashreplace"))


def contents(
    reps: Iterable[Given], *, title: str | None = None, progress: bool | None = None
) -> dict[str, Any]:
    """Everything the page shows, as plain lists, numbers and strings."""
    reps = _distinct(recordings(reps))
    if not reps:
        raise DataError("expected at least one Representation to report on, found none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResemblanceWarning)
        compared, missing = _compare_all(reps, progress)
        tables = [_adaptation(rep) for rep in reps]
    for message, category in dict.fromkeys((str(w.message), w.category) for w in caught):
        warnings.warn(message, category, stacklevel=3)
    packed: list[dict[str, Any]] = []
    numbers = bytearray()
    for (a, b, _, _), comparison in compared.items():
        entry, values = _pack(comparison)
        packed.append({"a": a, "b": b, **entry, "at": len(numbers) // 2})
        numbers += values
    used = {(kernel, index) for _, _, kernel, index in compared}
    offered = {name for combination in used for name in combination}
    paired = all(same_samples(reps[0], rep) for rep in reps)
    own_title, summary = _title_and_summary(reps, paired)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "title": title or own_title,
        "summary": summary,
        "unpaired": not paired,
        "made": {"version": __version__, "date": f"{now.day} {now:%B %Y, %H:%M} UTC"},
        "models": [
            {"name": rep.name, "layers": rep.layer_names, "provenance": _provenance(rep)}
            for rep in reps
        ],
        "kernels": [kernel for kernel in KERNELS if kernel in offered],
        "indices": [index for index in INDICES if index in offered],
        "comparisons": packed,
        "missing": [
            dict(zip(("a", "b", "kernel", "index", "why"), (*key, why), strict=True))
            for key, why in missing.items()
        ],
        "overview": [_overview(compared, len(reps), *combination) for combination in sorted(used)],
        "adaptation": tables,
        "numbers": base64.b64encode(numbers).decode(),
    }


Key = tuple[int, int, Kernel, Index]  # row model, column model, kernel, index


def _compare_all(
    reps: Sequence[Representation], progress: bool | None
) -> tuple[dict[Key, Comparison], dict[Key, str]]:
    """Each pair under each kernel and index, or why it cannot be compared."""
    compared: dict[Key, Comparison] = {}
    missing: dict[Key, str] = {}
    pairs = itertools.combinations_with_replacement(range(len(reps)), 2)
    jobs = list(itertools.product(pairs, KERNELS, INDICES))
    with progress_bar(progress, len(jobs), "comparing", "pairs") as advance:
        for (a, b), kernel, index in jobs:
            key = (a, b, kernel, index)
            try:
                compared[key] = compare(reps[a], reps[b], kernel=kernel, index=index)
            except MismatchError as error:
                missing[key] = str(error)
            advance(1)
    # a kernel is offered if it compares networks, not only one of them with itself
    used = {key[2:] for key in compared if key[0] != key[1] or len(reps) == 1}
    if not used:
        raise MismatchError(next(iter(missing.values())))
    return (
        {key: found for key, found in compared.items() if key[2:] in used},
        {key: why for key, why in missing.items() if key[2:] in used},
    )


# -- numbers ------------------------------------------------------------------------------------


def _pack(found: Comparison) -> tuple[dict[str, Any], bytes]:
    """A comparison as its description and its 16-bit numbers."""
    ranges, values = [], b""
    for array in (getattr(found, name) for name in _PARTS):
        if array is None:
            continue
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        step = (high - low) / (_MISSING - 1)
        steps = np.rint((array.ravel() - low) / (step or 1.0))
        values += np.where(np.isfinite(steps), steps, _MISSING).astype("<u2").tobytes()
        ranges.append([float(f"{low:.9g}"), float(f"{step:.9g}")])
    names = ("kernel", "index", "centre", "estimator", "paired", "samples", "notes", "tokens")
    entry: dict[str, Any] = {name: getattr(found, name) for name in names}
    # of each row with its counterpart: a table of layers with themselves has no such mean
    entry |= {"mean": plain([round(x, 5) for x in found.mean()]), "carried": found.carried_by()}
    # the counterpart of each row, and of each column
    both = (found.matching, found.matching.turned(found.scores))
    entry |= {"matched_by": found.matched_by, "matched": [one.columns for one in both]}
    return {**entry, "ranges": ranges}, values


def _overview(
    compared: dict[Key, Comparison], count: int, kernel: str, index: str
) -> dict[str, Any]:
    """Models × models: the mean over counterpart layers, and the tree that orders it."""
    scores, errors = np.full((2, count, count), np.nan)
    for (a, b, *combination), comparison in compared.items():
        if combination == [kernel, index]:
            scores[a, b], errors[a, b] = scores[b, a], errors[b, a] = comparison.mean()
    links = average_linkage(np.clip(1 - np.nan_to_num(scores), 0, None))
    return {
        "kernel": kernel,
        "index": index,
        "scores": plain(np.round(scores, 5)),
        "stderr": plain(np.round(errors, 5)),
        "order": leaf_order(links),
        "links": [[int(left), int(right), round(height, 5)] for left, right, height, _ in links],
    }


def _adaptation(rep: Representation) -> dict[str, list[float | None]] | None:
    """‖μ‖ and the log ratio of each layer, or None where they were not recorded."""
    try:
        table = adaptation(rep)
    except MismatchError:
        return None
    return {  # significant digits rather than decimals: ‖μ‖ has any scale
        name: [float(f"{x:.6g}") if np.isfinite(x) else None for x in table[name].tolist()]
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


def _title_and_summary(reps: Sequence[Representation], paired: bool) -> tuple[str, str]:
    names, samples = [rep.name for rep in reps], [rep.samples for rep in reps]
    n = " to ".join(f"{count:,}" for count in sorted({min(samples), max(samples)}))
    what = "tokens" if all(rep.settings.unit == "token" for rep in reps) else "samples"
    if len(reps) == 1:
        summary = f"One network, its layers compared with each other on {n} {what}."
        return f"The layers of {names[0]}", summary
    many = f"{_WORDS[len(reps)] if len(reps) < len(_WORDS) else len(reps)} networks"
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    title = f"How alike are {listed if len(reps) <= 3 else f'these {many.lower()}'}?"
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


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")
