"""From scores of each network to answers: which unit, which kernel, which layer.

    python -m reproduction.language.analysis --from FOLDER --to FILE [--add]

- *Ranking*: Spearman's ρ of 1 − mean score with KL(base‖network), over copies (which have the
  base's weights to begin with) and over all networks.
- *Separation*: how many standard errors lie between two networks' mean scores. Both were measured
  on the same sequences, so the error is that of the difference: a jackknife of it.
- *Range*: the span of copies' mean scores in units of their root mean square standard error.
- *Where*: the first layer from the input whose score is below 1 by more than five standard errors
  and by more than a thousandth, and the layer with the largest step down from the one before it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .networks import BASE
from .scale import FULL, QUICK, STAGES, Scale
from .scores import KERNELS

ERRORS, LEAST = 5, 1e-3  # standard errors and a score's distance from 1 that count as a change
PAIRS = (("int8", "int4"), ("int4", "twin"), ("int8", "twin"))
Row = dict[str, Any]


def write(
    folder: Path, path: Path, scale: Scale, text: Mapping[str, Any], *, add: bool = False
) -> None:
    """Results of all that a folder holds, as one file.

    With `add`, sizes that the folder holds nothing of stay as the file has them.
    """
    content = results(folder, scale, text)
    if content is None:
        print("nothing is measured yet", flush=True)
        return
    if add and path.exists():
        content = together(json.loads(path.read_text()), content)
    draft = path.with_suffix(f".{os.getpid()}.tmp")  # another run may end at the same time
    draft.write_text(json.dumps(content, separators=(",", ":")))
    draft.rename(path)
    print(f"wrote {path}", flush=True)


def results(folder: Path, scale: Scale, text: Mapping[str, Any]) -> dict[str, Any] | None:
    found = {
        (row := json.loads(path.read_text()))["name"]: row
        for path in sorted((folder / "scores").glob("*.json"))
    }
    if not found:
        return None
    facts = {
        path.stem.replace("_", "/"): json.loads(path.read_text())
        for path in sorted((folder / "facts").glob("*.json"))
    }
    sizes = {size: _of_size(size, found) for size in STAGES}
    places = {
        json.dumps(row["environment"], sort_keys=True): row["environment"] for row in found.values()
    }
    return {
        "environment": next(iter(places.values())),
        "environments": list(places.values()),
        "scale": asdict(scale),
        "training": facts,
        "sizes": {size: {**part, "text": dict(text)} for size, part in sizes.items() if part},
    }


def together(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New results, and old ones of sizes that these do not have."""
    kept = [size for size in old["sizes"] if size not in new["sizes"]]
    sizes = {**{size: old["sizes"][size] for size in kept}, **new["sizes"]}
    facts = {k: v for k, v in old["training"].items() if k.partition("/")[0] in kept}
    others = [place for place in old["environments"] if place not in new["environments"]]
    return {
        **new,
        "environments": [*new["environments"], *(others if kept else [])],
        "training": {**facts, **new["training"]},
        "sizes": {size: sizes[size] for size in STAGES if size in sizes},
    }


def _of_size(size: str, found: Mapping[str, Row]) -> dict[str, Any] | None:
    base = found.get(f"{size}/{BASE}")
    if base is None:
        return None
    rows = [
        {"kind": kind_of(name), "descends": descends(name), **row}
        for name, row in found.items()
        if name.startswith(f"{size}/") and name != base["name"] and row["base"] == base["base"]
    ]
    rows.sort(key=lambda row: row["behaviour"]["kl"])
    units = list(base["scores"])
    each = [(unit, kernel) for unit in units for kernel in KERNELS]
    return {
        "loss": base["behaviour"]["loss"],
        "concentration": base["concentration"],
        "layers": base["scores"][units[0]][KERNELS[0]]["layers"],
        "networks": [_in_short(row) for row in rows],
        "ranking": [_ranking(rows, *one) for one in each],
        "separation": [row for one in each for row in _separations(rows, *one)],
        "range": [_range(rows, *one) for one in each],
        "where": [_where(row, units[0], kernel) for row in rows for kernel in KERNELS],
    }


def kind_of(name: str) -> str:
    """What a network is to its base.

    >>> kind_of("small/0/int4"), kind_of("small/1"), kind_of("small/c")
    ('int4', 'twin', 'other text')
    """
    _, which, *kind = name.split("/")
    return kind[0] if kind else {"1": "twin", "c": "other text"}.get(which, which)


def descends(name: str) -> bool:
    """Whether it began with the base's weights."""
    _, which, *kind = name.split("/")
    return which == BASE and kind != ["distilled"]


def _in_short(row: Row) -> Row:
    """A network without what only this module needs."""
    scores = {
        unit: {
            kernel: {k: v for k, v in one.items() if k not in ("layers", "replicates")}
            for kernel, one in kernels.items()
        }
        for unit, kernels in row["scores"].items()
    }
    kept = ("name", "kind", "descends", "behaviour", "concentration")
    return {**{key: row[key] for key in kept}, "scores": scores}


def _ranking(rows: Sequence[Row], unit: str, kernel: str) -> Row:
    def rho(belongs: Callable[[Row], bool]) -> tuple[float | None, int]:
        some = [row for row in rows if belongs(row)]
        change = np.array([row["behaviour"]["kl"] for row in some])
        lost = 1 - np.array([row["scores"][unit][kernel]["mean"] for row in some], float)
        there = np.isfinite(lost)
        return spearman(lost[there], change[there]), int(there.sum())

    copies, everyone = rho(lambda row: row["descends"]), rho(lambda row: True)
    return {
        "unit": unit, "kernel": kernel, "copies": copies[0], "all": everyone[0],
        "numbers": [copies[1], everyone[1]],
    }  # fmt: skip


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """The correlation of ranks; equal values share theirs. None if nothing varies."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    ranks = [np.array([(x < v).sum() + (x == v).sum() / 2 for v in x]) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def _separations(rows: Sequence[Row], unit: str, kernel: str) -> list[Row]:
    by_kind = {row["kind"]: row["scores"][unit][kernel] for row in rows}
    out = []
    for one, two in PAIRS:
        near, far = by_kind.get(one), by_kind.get(two)
        if not near or not far or near["mean"] is None or far["mean"] is None:
            continue
        error = difference_error(near["replicates"], far["replicates"])
        gap = near["mean"] - far["mean"]
        out.append({
            "unit": unit, "kernel": kernel, "pair": [one, two], "difference": gap,
            "stderr": error, "errors": None if not error else gap / error,
        })  # fmt: skip
    return out


def difference_error(one: Sequence[float] | None, two: Sequence[float] | None) -> float | None:
    """The jackknife error of a difference of two scores with the same parts left out."""
    if one is None or two is None or len(one) != len(two) or len(one) < 2:
        return None
    d = np.array(one, float) - np.array(two, float)
    return float(np.sqrt(((d - d.mean()) ** 2).sum() * (len(d) - 1) / len(d)))


def _range(rows: Sequence[Row], unit: str, kernel: str) -> Row:
    of_copies = [row["scores"][unit][kernel] for row in rows if row["descends"]]
    means = np.array([one["mean"] for one in of_copies], float)
    errors = np.array([one["mean stderr"] for one in of_copies], float)
    typical = float(np.sqrt(np.nanmean(errors**2))) if len(errors) else 0.0
    span = float(np.nanmax(means) - np.nanmin(means)) if len(means) else 0.0
    seen = (1 - means > ERRORS * errors) & (1 - means > LEAST)
    return {
        "unit": unit, "kernel": kernel, "span": span, "typical stderr": typical,
        "errors": span / typical if typical else None, "copies": len(means),
        "copies seen to differ": int(seen.sum()),
    }  # fmt: skip


def _where(row: Row, unit: str, kernel: str) -> Row:
    one = row["scores"][unit][kernel]
    score, error = (np.array(one[key], float) for key in ("score", "stderr"))
    lost = 1 - score
    changed = np.flatnonzero((lost > ERRORS * error) & (lost > LEAST))
    steps = np.diff(np.concatenate([[0.0], np.nan_to_num(lost)]))
    return {
        "kind": row["kind"], "kernel": kernel,
        "first": one["layers"][changed[0]] if len(changed) else None,
        "last": one["layers"][changed[-1]] if len(changed) else None,
        "largest step": one["layers"][int(steps.argmax())] if len(changed) else None,
        "lost there": float(steps.max()),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", type=Path, required=True, dest="folder", help="facts and scores")
    parser.add_argument("--to", type=Path, required=True, help="the .json file to write")
    parser.add_argument("--text", type=Path, help="its facts are kept beside the results")
    parser.add_argument("--quick", action="store_true", help="the folder is of a quick run")
    parser.add_argument("--add", action="store_true", help="keep sizes that the file alone has")
    chosen = parser.parse_args(words)
    facts: Mapping[str, Any] = {}
    if chosen.text:
        from .text import Text

        facts = Text.load(chosen.text).described()
    scale = QUICK if chosen.quick else FULL
    write(chosen.folder, chosen.to, scale, facts, add=chosen.add)


if __name__ == "__main__":
    main()
