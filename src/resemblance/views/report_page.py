"""`report`: what one or more Representations show, as one HTML page that needs nothing else.

Every comparison that the page can switch to is computed here, for each pair of networks, kernel and
index, and packed as 16-bit numbers into the page beside its style sheet and script. `contents` is
the data of the page, `unpack` reads a comparison back, `report` writes the file.
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
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .._atomic_files import write_atomically
from .._progress_bar import progress as progress_bar
from ..analysis.mean_embedding import adaptation
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.representation import Representation
from ..similarity.comparison import Comparison
from ..similarity.many_networks import average_linkage, leaf_order
from ..similarity.two_networks import compare, same_samples

KERNELS = ("features", "gradients", "product")
INDICES = ("cka", "cka-debiased")
_PARTS = ("scores", "stderr", "chance", "chance_high")
_MISSING = 65535  # stands for NaN; the other 65535 values divide a part's range evenly
_ADAPTATION = ("mean_embedding", "log_ratio")
_WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def report(
    reps: Sequence[Representation],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a page that shows how alike networks are: self-contained, no request leaves it.

    Args:
        reps: one or more from `record`; one alone is compared with itself, layer by layer. Those
            that share a name get `#2`, `#3` and so on.
        path: of the page; it appears whole or not at all.
        title: of the page. None names the networks.
        progress: True or False; None shows a bar on a terminal.

    A pair that cannot be compared in some way is left blank and the page says why; if no pair can
    be, the reason is raised. Cost: one `compare` for each pair, kernel and index; about 11 bytes
    for each of their pairs of layers.
    """
    content = contents(reps, title=title, progress=progress)
    # JSON inside <script>: no < may start a tag there, and these escapes are JSON's own
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(content["title"]),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        "data": data,
    }
    # one pass, so that braces in a name are never taken for a part
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))
    return write_atomically(path, page.encode())


def contents(
    reps: Sequence[Representation], *, title: str | None = None, progress: bool | None = None
) -> dict[str, Any]:
    """Everything the page shows, as plain lists, numbers and strings."""
    if not reps:
        raise DataError("expected at least one Representation to report on, found none")
    reps = _distinct(reps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResemblanceWarning)
        compared, missing = _compare_all(reps, progress)
        tables = _adaptation(reps)
    for message, category in dict.fromkeys((str(w.message), w.category) for w in caught):
        warnings.warn(message, category, stacklevel=3)
    packed: list[dict[str, Any]] = []
    numbers = np.empty(0, "<u2")
    for (a, b, _, _), comparison in compared.items():
        entry, values = _pack(comparison)
        packed.append({"a": a, "b": b, **entry, "at": len(numbers)})
        numbers = np.concatenate([numbers, values])
    used = {(kernel, index) for _, _, kernel, index in compared}
    return {
        "title": title or _title(reps),
        "summary": _summary(reps),
        "unpaired": not _paired(reps),
        "made": _made(),
        "models": [
            {"name": rep.name, "layers": rep.layer_names, "provenance": _provenance(rep)}
            for rep in reps
        ],
        "kernels": [kernel for kernel in KERNELS if any(kernel == k for k, _ in used)],
        "indices": [index for index in INDICES if any(index == i for _, i in used)],
        "comparisons": packed,
        "missing": [
            {"a": a, "b": b, "kernel": kernel, "index": index, "why": why}
            for (a, b, kernel, index), why in missing.items()
            if (kernel, index) in used
        ],
        "overview": [_overview(compared, len(reps), *combination) for combination in sorted(used)],
        "adaptation": tables,
        "numbers": base64.b64encode(numbers.tobytes()).decode(),
    }


Key = tuple[int, int, str, str]  # row model, column model, kernel, index


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
            try:
                found = compare(reps[a], reps[b], kernel=kernel, index=index)
                compared[a, b, kernel, index] = found
            except MismatchError as error:
                missing[a, b, kernel, index] = str(error)
            advance(1)
    # a kernel is offered if it compares networks, not only one of them with itself
    used = {key[2:] for key in compared if key[0] != key[1] or len(reps) == 1}
    if not used:
        raise MismatchError(next(iter(missing.values())))
    return {key: found for key, found in compared.items() if key[2:] in used}, missing


# -- numbers ------------------------------------------------------------------------------------


def _pack(comparison: Comparison) -> tuple[dict[str, Any], np.ndarray]:
    """A comparison as its description and its 16-bit numbers."""
    ranges, values = [], []
    for array in (getattr(comparison, name) for name in _PARTS):
        if array is None:
            continue
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        step = (high - low) / (_MISSING - 1)
        steps = np.rint((array.ravel() - low) / (step or 1.0))
        values.append(np.where(np.isfinite(steps), steps, _MISSING).astype("<u2"))
        ranges.append([float(f"{low:.9g}"), float(f"{step:.9g}")])
    names = ("kernel", "index", "centre", "estimator", "paired", "samples", "notes")
    entry: dict[str, Any] = {name: getattr(comparison, name) for name in names}
    if not comparison.same_layers:  # the counterpart of each row, and of each column
        turned = replace(
            comparison,
            rows=comparison.columns,
            columns=comparison.rows,
            scores=comparison.scores.T,
        )
        entry["aligned"] = [_aligned(comparison), _aligned(turned)]
    return {**entry, "ranges": ranges}, np.concatenate(values)


def _aligned(comparison: Comparison) -> list[int]:
    return [comparison.columns.index(name) for name in comparison.match().aligned]


def unpack(content: dict[str, Any], position: int) -> dict[str, np.ndarray | None]:
    """Scores, standard errors and chance levels of the comparison at a position in `contents`.

    They are off what `compare` gave by at most half of 1/65534 of each part's range.
    """
    entry = content["comparisons"][position]
    numbers = np.frombuffer(base64.b64decode(content["numbers"]), "<u2")
    shape = tuple(len(content["models"][entry[side]]["layers"]) for side in "ab")
    out: dict[str, np.ndarray | None] = dict.fromkeys(_PARTS)
    for i, (name, (low, step)) in enumerate(zip(_PARTS, entry["ranges"], strict=False)):
        part = numbers[entry["at"] + i * shape[0] * shape[1] :][: shape[0] * shape[1]]
        out[name] = np.where(part == _MISSING, np.nan, low + step * part.astype(float)).reshape(
            shape
        )
    return out


def _overview(
    compared: dict[Key, Comparison], count: int, kernel: str, index: str
) -> dict[str, Any]:
    """Models × models: the mean over counterpart layers, and the tree that orders it."""
    scores, errors = np.full((2, count, count), np.nan)
    for (a, b, k, i), comparison in compared.items():
        if (k, i) == (kernel, index):
            value, error, _ = comparison.by_layer()
            if np.isfinite(value).any():
                scores[a, b] = scores[b, a] = np.nanmean(value)
                # layers' errors go together, and the mean of them bounds the error of the mean
                errors[a, b] = errors[b, a] = (
                    np.nanmean(error) if np.isfinite(error).any() else np.nan
                )
    links = average_linkage(np.clip(1 - np.nan_to_num(scores), 0, None))
    return {
        "kernel": kernel,
        "index": index,
        "scores": _plain(scores),
        "stderr": _plain(errors),
        "order": leaf_order(links),
        "links": [[int(left), int(right), round(height, 5)] for left, right, height, _ in links],
    }


def _plain(array: np.ndarray) -> Any:
    """Nested lists with five digits after the point; NaN becomes None."""
    if array.ndim:
        return [_plain(item) for item in array]
    return round(float(array), 5) if np.isfinite(array) else None


def _adaptation(reps: Sequence[Representation]) -> list[dict[str, Any] | None]:
    """‖μ‖ and the log ratio of each layer, or None where they were not recorded."""
    out: list[dict[str, Any] | None] = []
    for rep in reps:
        try:
            table = adaptation(rep)
        except MismatchError:
            out.append(None)
            continue
        columns = [f"{name}{end}" for name in _ADAPTATION for end in ("", "_stderr")]
        # significant digits rather than decimals: ‖μ‖ has any scale
        out.append(
            {
                name: [float(f"{x:.6g}") if np.isfinite(x) else None for x in table[name].tolist()]
                for name in columns
            }
        )
    return out


# -- words --------------------------------------------------------------------------------------


def _distinct(reps: Sequence[Representation]) -> list[Representation]:
    taken: set[str] = set()
    out = []
    for rep in reps:
        tries = itertools.chain([rep.name], (f"{rep.name} #{i}" for i in itertools.count(2)))
        name = next(name for name in tries if name not in taken)
        taken.add(name)
        out.append(rep.renamed(name))
    return out


def _title(reps: Sequence[Representation]) -> str:
    names = [rep.name for rep in reps]
    if len(names) == 1:
        return f"The layers of {names[0]}"
    if len(names) > 3:
        return f"How alike are these {_count(len(names)).lower()} networks?"
    return f"How alike are {', '.join(names[:-1])} and {names[-1]}?"


def _paired(reps: Sequence[Representation]) -> bool:
    return all(same_samples(reps[0], rep) for rep in reps)


def _summary(reps: Sequence[Representation]) -> str:
    n = f"{reps[0].samples:,} samples"
    if len(reps) == 1:
        return f"One network, its layers compared with each other on {n}."
    many = f"{_count(len(reps))} networks"
    if _paired(reps):
        return f"{many} compared on the same {n}, paired one to one."
    counts = sorted({rep.samples for rep in reps})
    n = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    return f"{many} compared, not all on the same samples ({n} each)."


def _count(n: int) -> str:
    return _WORDS[n] if n < len(_WORDS) else str(n)


def _made() -> dict[str, str]:
    from .. import __version__

    now = datetime.datetime.now(datetime.timezone.utc)
    return {"version": __version__, "date": f"{now.day} {now:%B %Y, %H:%M} UTC"}


def _provenance(rep: Representation) -> dict[str, str]:
    """Where a file came from, as words in the order in which they are shown."""
    skipped = rep.data.get("skipped")
    sizes = rep.block_sizes
    values: dict[str, Any] = {
        "weights": rep.model.get("fingerprint"),
        "parameters": rep.model.get("parameters"),
        "layers": len(rep),
        "data": rep.data.get("id"),
        "data fingerprint": rep.data.get("fingerprint"),
        "samples": rep.samples,
        "samples skipped": skipped or None,
        "order": rep.data.get("order"),
        "blocks": f"{len(sizes)} of {max(sizes)} samples" if sizes else "none",
        **{name: v for name, v in asdict(rep.settings).items() if name not in ("block", "blocks")},
        **rep.made,
    }
    return {
        name.replace("_", " "): f"{value:,}" if type(value) is int else str(value)
        for name, value in values.items()
        if value is not None
    }


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")
