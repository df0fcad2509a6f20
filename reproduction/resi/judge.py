"""What the scores say: each variant in each test, and what a choice is worth on another family.

    python -m reproduction.resi.judge FOLDER... --to results/resi

A *variant* is a kernel, an index and a layer (one of six, or the mean of their scores). The best of
so many is good by luck as well, so a variant is chosen on all families but one and judged there.
Contrasts of two variants that were named beforehand need no choice. Intervals (95 %) are those of a
jackknife over networks (seeds) within their groups, and take the chosen variant and the families as
they are. Chance is what networks in random order score. Writes `resi.json` and
`resi.md`; `docs/build_benchmark.py` makes a page and a figure of the former.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .designs import DESIGNS
from .indices import INDICES
from .quality import (
    chance_of_correlation,
    chance_of_separation,
    correlation_with,
    group_separation,
    interval_of_mean,
    leave_one_out,
    monotonicity,
    violations,
)
from .saved import Design, read
from .scores import KERNELS

SEPARATIONS = ("labels", "labels-shared", "shortcuts", "augmentation")
CORRELATIONS = ("accuracy", "js", "disagreement")
TESTS = (*CORRELATIONS, *SEPARATIONS, "monotonicity")
LAYER_CHOICES = ("last", "mean", "any")
DEFAULT = ("features", "cka")
CONTRASTS = {  # kernel and index of either side
    "gradients above features": (("gradients, beta 0.5", "cka"), DEFAULT),
    "gradients of labels above features": (("gradients, labels", "cka"), DEFAULT),
    "spectral above cka, features": (("features", "spectral"), DEFAULT),
    "product above features": (("product, beta 0.5", "cka"), DEFAULT),
    "beta 0 above beta 0.5": (("gradients, beta 0", "cka"), ("gradients, beta 0.5", "cka")),
    "beta 0 above beta 0.5, linear-regression": (
        ("gradients, beta 0", "linear-regression"), ("gradients, beta 0.5", "linear-regression"),
    ),
    "beta 0 above beta 0.5, procrustes": (
        ("gradients, beta 0", "procrustes"), ("gradients, beta 0.5", "procrustes"),
    ),
    "labels above beta 0.5": (("gradients, labels", "cka"), ("gradients, beta 0.5", "cka")),
    "mutual-knn above cka, features": (("features", "mutual-knn"), DEFAULT),
    "mutual-knn above cka, gradients": (
        ("gradients, beta 0.5", "mutual-knn"), ("gradients, beta 0.5", "cka"),
    ),
    "procrustes above cka, features": (("features", "procrustes"), DEFAULT),
    "procrustes above cka, gradients": (
        ("gradients, beta 0.5", "procrustes"), ("gradients, beta 0.5", "cka"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One test of one family: values of every variant, with all networks and without each.

    Attributes:
        groups: (M) of the networks.
        values: (kernels, indices, places, 1 + M). Places are the layers and their mean;
            monotonicity has one place.
        ceiling: (1 + M) of the divergence of predictions, which needs logits; or None.
        chance: what the default scores with its networks in random order; or None.
    """

    groups: np.ndarray
    values: np.ndarray
    ceiling: np.ndarray | None
    chance: np.ndarray | None = None

    def interval(self, values: np.ndarray) -> list[float | None]:
        """The estimate and its 95 % interval."""
        return _interval([values], [self.groups])


def _interval(estimates: list[np.ndarray], groups: list[np.ndarray]) -> list[float | None]:
    return [_number(x) for x in interval_of_mean(estimates, groups)]


def gathered(folders: Sequence[Path]) -> dict[str, dict[str, Design]]:
    """Designs by family, of all folders; of two files for one design, that of more networks."""
    found: dict[str, dict[str, Design]] = {}
    names = [f"*-{design}.npz" for design in DESIGNS]
    for path in sorted(p for folder in folders for name in names for p in folder.rglob(name)):
        design = read(path)
        here = found.setdefault(design.about["family"], {})
        before = here.get(design.about["design"])
        if before is None or len(before.groups) < len(design.groups):
            here[design.about["design"]] = design
    if not found:
        raise SystemExit(
            f"no scores in {', '.join(map(str, folders))}; run reproduction.resi first"
        )
    return found


def all_scores(arrays: dict[str, np.ndarray], prefix: str = "") -> np.ndarray:
    """Scores (kernels, indices, ...), symmetric; NaN where an index failed."""
    shape = next(v.shape for k, v in arrays.items() if k.startswith(prefix + "features|"))
    missing = np.full(shape, np.nan)
    out = np.stack([[arrays.get(f"{prefix}{k}|{i}", missing) for i in INDICES] for k in KERNELS])
    return (out + out.swapaxes(-1, -2)) / 2


def with_mean(scores: np.ndarray) -> np.ndarray:  # (K, I, layers, M, M) -> (K, I, layers + 1, M, M)
    return np.concatenate([scores, scores.mean(2, keepdims=True)], 2)


def tested(design: Design, test: str, draws: int) -> Result:
    """All variants in one test."""
    groups = design.groups
    weights = leave_one_out(len(groups))
    if test == "monotonicity":
        each = monotonicity(all_scores(design.arrays, "layers|"))  # (K, I, M)
        share = weights / weights.sum(1, keepdims=True)
        return Result(groups, (each @ share.T)[:, :, None, :], None)
    scores = with_mean(all_scores(design.arrays))
    flat = scores.reshape(-1, *scores.shape[-2:])
    default = scores[KERNELS.index(DEFAULT[0]), list(INDICES).index(DEFAULT[1]), -2]
    js = design.arrays["predictions|js"]
    if test in SEPARATIONS:
        values = np.stack([group_separation(s, groups, weights) for s in flat])
        ceiling = group_separation(-js, groups, weights)
        chance = chance_of_separation(default, groups, draws)
    else:
        accuracy = np.array(design.about["accuracy"])
        differences = {
            "accuracy": np.abs(accuracy[:, None] - accuracy[None, :]),
            "js": js,
            "disagreement": design.arrays["predictions|disagreement"],
        }[test]
        values = correlation_with(flat, differences, weights)
        ceiling = correlation_with(-js[None], differences, weights)[0]
        chance = chance_of_correlation(default, differences, draws)
    return Result(groups, values.reshape(*scores.shape[:3], -1), ceiling, chance)


def allowed(result: Result, layers: str) -> slice:
    """The places that a choice is made from."""
    places = result.values.shape[2]
    if places == 1:
        return slice(0, 1)
    return {
        "last": slice(places - 2, places - 1),
        "mean": slice(places - 1, places),
        "any": slice(0, places),
    }[layers]


def chosen(
    results: Sequence[Result], kernels: Sequence[str], layers: str
) -> tuple[int, ...] | None:
    """The variant with the best mean over families, among some kernels; (kernel, index, place)."""
    where = allowed(results[0], layers)
    rows = [KERNELS.index(k) for k in kernels]
    mean = np.mean([r.values[rows][:, :, where, 0] for r in results], axis=0)
    if not np.isfinite(mean).any():
        return None
    k, i, p = np.unravel_index(np.nanargmax(mean), mean.shape)
    return rows[k], int(i), int(p) + where.start


def named(variant: tuple[int, ...], result: Result) -> dict[str, str]:
    k, i, place = variant
    places = result.values.shape[2]
    layer = "all pairs of layers" if places == 1 else "mean" if place == places - 1 else str(place)
    return {"kernel": KERNELS[k], "index": list(INDICES)[i], "layer": layer}


def held_out(results: dict[str, Result], layers: str) -> list[dict[str, Any]]:
    """Variants chosen on all other families and judged on each."""
    rows = []
    with_gradients = [k for k in KERNELS if k != "features"]
    for family, result in results.items():
        others = [r for name, r in results.items() if name != family]
        where = allowed(result, layers)
        last = where.start if layers != "any" else max(0, result.values.shape[2] - 2)
        default = (KERNELS.index(DEFAULT[0]), list(INDICES).index(DEFAULT[1]), last)
        row: dict[str, Any] = {
            "judged on": family,
            "variants": int(np.isfinite(result.values[:, :, where, 0]).sum()),
            "default": {**named(default, result), "value": result.interval(result.values[default])},
        }
        best = chosen([result], KERNELS, layers)
        if best is not None:
            row["best here (optimistic)"] = {
                **named(best, result),
                "value": result.interval(result.values[best]),
            }
        if result.ceiling is not None:
            row["ceiling"] = result.interval(result.ceiling)
        picks = {}
        for name, kernels in (
            ("all", KERNELS),
            ("features", ["features"]),
            ("gradients", with_gradients),
        ):
            variant = chosen(others, kernels, layers) if others else None
            if variant is None:
                continue
            picks[name] = variant
            value = result.values[variant]
            rank = int((result.values[:, :, where, 0] > value[0]).sum()) + 1
            row[name] = {
                **named(variant, result),
                "value": result.interval(value),
                "above default": result.interval(value - result.values[default]),
                "rank": rank,
            }
        if {"features", "gradients"} <= set(picks):
            row["gradients above features"] = result.interval(
                result.values[picks["gradients"]] - result.values[picks["features"]]
            )
        rows.append(row)
    return rows


def over_families(
    by_family: dict[str, Result], difference: Callable[[str, Result], np.ndarray | None]
) -> dict[str, list[float | None]]:
    """A difference of two variants in each family, and its mean over the families."""
    each = {family: difference(family, result) for family, result in by_family.items()}
    known = {family: x for family, x in each.items() if x is not None}
    groups = {family: by_family[family].groups for family in known}
    out = {family: _interval([x], [groups[family]]) for family, x in known.items()}
    if len(known) > 1:
        out["mean"] = _interval(list(known.values()), list(groups.values()))
    return out


def contrasts(by_family: dict[str, Result]) -> dict[str, Any]:
    """Differences of two variants that were named beforehand, at the last layer and in the mean."""
    places = {"last": -2, "mean": -1}
    if next(iter(by_family.values())).values.shape[2] == 1:
        places = {"any": 0}

    def contrast(one: Sequence[str], two: Sequence[str], at: int) -> dict[str, Any]:
        i, j = ((KERNELS.index(kernel), list(INDICES).index(index)) for kernel, index in (one, two))
        return over_families(by_family, lambda _, r: r.values[i][at] - r.values[j][at])

    return {
        name: {where: contrast(one, two, at) for where, at in places.items()}
        for name, (one, two) in CONTRASTS.items()
    }


def gradients_above(
    by_family: dict[str, Result], layers: str, *, default: bool = False
) -> dict[str, list[float | None]]:
    """The variant chosen with gradients above that chosen among features, or above the default.

    Both are chosen on the other families.
    """

    def difference(family: str, result: Result) -> np.ndarray | None:
        others = [r for name, r in by_family.items() if name != family]
        if not others:
            return None
        one = chosen(others, [k for k in KERNELS if k != "features"], layers)
        two = chosen(others, ["features"], layers)
        if default:
            places = result.values.shape[2]
            at = 0 if places == 1 else places - (1 if layers == "mean" else 2)
            two = (KERNELS.index(DEFAULT[0]), list(INDICES).index(DEFAULT[1]), at)
        return None if one is None or two is None else result.values[one] - result.values[two]

    return over_families(by_family, difference)


def chance(result: Result) -> dict[str, float | None] | None:
    """The mean of what networks in random order score, and its central 95 %."""
    if result.chance is None:
        return None
    low, high = np.percentile(result.chance, [2.5, 97.5])
    return {"mean": _number(result.chance.mean()), "low": _number(low), "high": _number(high)}


def table(result: Result) -> dict[str, Any]:
    """All variants of a test, by kernel and index."""
    out: dict[str, Any] = {}
    places = result.values.shape[2]
    for k, kernel in enumerate(KERNELS):
        out[kernel] = {}
        for i, index in enumerate(INDICES):
            values = result.values[k, i]
            if places == 1:
                out[kernel][index] = {"value": result.interval(values[0])}
                continue
            each = [_number(v) for v in values[:-1, 0]]
            out[kernel][index] = {
                "last": result.interval(values[-2]),
                "mean": result.interval(values[-1]),
                "layers": each,
            }
    return out


def judge(
    designs: dict[str, dict[str, Design]], draws: int
) -> tuple[dict[str, Any], dict[str, dict[str, Result]]]:
    """Everything, as JSON; and the results by test and family."""
    results: dict[str, dict[str, Result]] = {}
    for test in TESTS:
        design = test if test in SEPARATIONS else "base"
        results[test] = {
            family: tested(of[design], test, draws)
            for family, of in designs.items()
            if design in of
        }
    content: dict[str, Any] = {
        "random orders": draws,
        "networks": {
            family: {name: design.about for name, design in of.items()}
            for family, of in designs.items()
        },
        "tests": {
            test: {
                "tables": {family: table(r) for family, r in by_family.items()},
                "held out": {layers: held_out(by_family, layers) for layers in LAYER_CHOICES},
                "gradients above features": {
                    layers: gradients_above(by_family, layers) for layers in LAYER_CHOICES
                },
                "gradients above default": {
                    layers: gradients_above(by_family, layers, default=True)
                    for layers in LAYER_CHOICES
                },
                "contrasts": contrasts(by_family),
                "chance": {family: chance(r) for family, r in by_family.items()},
            }
            for test, by_family in results.items()
            if by_family
        },
    }
    content["layer violations"] = {
        family: {
            k: {i: _number(v) for i, v in zip(INDICES, row, strict=True)}
            for k, row in zip(
                KERNELS, violations(all_scores(of["base"].arrays, "layers|")).mean(2), strict=True
            )
        }
        for family, of in designs.items()
        if "base" in of
    }
    return content, {test: by_family for test, by_family in results.items() if by_family}


def _number(x: float) -> float | None:
    return round(float(x), 4) if np.isfinite(x) else None


# -- a page --


def _shown(value: list[float | None]) -> str:
    if value[0] is None:
        return "–"
    if value[1] is None or value[2] is None:
        return f"{value[0]:.2f}"
    return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})"


def _variant(entry: dict[str, Any]) -> str:
    return f"{entry['kernel']} · {entry['index']} · layer {entry['layer']}"


def page(content: dict[str, Any], results: dict[str, dict[str, Result]]) -> str:
    """Tables in Markdown."""
    lines = [
        "# ReSi, rebuilt: which kernel and which index",
        "",
        "Values are AUPRC, or Spearman's correlation; in brackets 95 % intervals of a jackknife "
        "over networks. The default is CKA of features.",
    ]
    lines += _in_short(content, results)
    for test, by_family in results.items():
        lines += ["", f"## {test}", ""]
        for layers in ("last", "mean", "any") if test != "monotonicity" else ("any",):
            rows = content["tests"][test]["held out"][layers]
            title = {"last": "Last layer", "mean": "Mean over layers", "any": "Any layer"}[layers]
            title = "All layers of a network" if test == "monotonicity" else title
            lines += [
                f"**{title}**, the variant chosen on the other families:",
                "",
                "| judged on | variants tried | default | chosen among features | chosen with "
                "gradients | gradients above features | chosen among all, above default | best "
                "there (optimistic) | predictions' JS |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for row in rows:
                cells = [row["judged on"], str(row["variants"]), _shown(row["default"]["value"])]
                for name in ("features", "gradients"):
                    entry = row.get(name)
                    cells.append(f"{_variant(entry)}: {_shown(entry['value'])}" if entry else "–")
                cells.append(_shown(row.get("gradients above features", [None] * 3)))
                entry = row.get("all")
                cells.append(
                    f"{_variant(entry)}: {_shown(entry['above default'])}" if entry else "–"
                )
                entry = row.get("best here (optimistic)")
                cells.append(f"{_variant(entry)}: {_shown(entry['value'])}" if entry else "–")
                cells.append(_shown(row.get("ceiling", [None] * 3)))
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
        lines += _matrix(by_family)
    lines += [
        "",
        "## Networks",
        "",
        "| family | design | group | test accuracy | training labels learnt |",
        "|---|---|---|---|---|",
    ]
    for family, of in content["networks"].items():
        for design, about in of.items():
            groups = np.array(about["groups"])
            for group in np.unique(groups):
                here = groups == group
                accuracy, learnt = (np.array(about[k])[here] for k in ("accuracy", "learnt"))
                lines.append(
                    f"| {family} | {design} | {about['strengths'][group]:.0%} | "
                    f"{accuracy.mean():.3f} ± {accuracy.std():.3f} | {learnt.mean():.3f} |"
                )
    errors = [
        f"{family}, {design}: {e['index']} at {e['at']}: {e['error']}"
        for family, of in content["networks"].items()
        for design, about in of.items()
        for e in about["errors"]
    ]
    if errors:
        lines += ["", "## What failed", "", *(f"- {e}" for e in errors[:50])]
    return "\n".join(lines) + "\n"


def _in_short(content: dict[str, Any], results: dict[str, dict[str, Result]]) -> list[str]:
    """By how much gradients are above features where each variant was chosen on other families."""
    families = sorted({family for by_family in results.values() for family in by_family})
    lines = [
        "",
        "## In short",
        "",
        "The variant chosen among those with gradients, above the one chosen among those of "
        "features alone, both chosen on the other families.",
        "",
        "| test | layer | " + " | ".join(families) + " | mean |",
        "|---|---|" + "---|" * (len(families) + 1),
    ]
    for test in results:
        for layers in LAYER_CHOICES if test != "monotonicity" else ("any",):
            row = content["tests"][test]["gradients above features"][layers]
            cells = [_shown(row.get(name, [None] * 3)) for name in (*families, "mean")]
            lines.append(f"| {test} | {layers} | " + " | ".join(cells) + " |")
    return lines


def _matrix(by_family: dict[str, Result]) -> list[str]:
    """Every kernel and index, mean over families: the last layer / the mean over layers."""
    lines = [
        f"Mean over {', '.join(by_family)}: last layer / mean over layers.",
        "",
        "| index | " + " | ".join(KERNELS) + " |",
        "|---|" + "---|" * len(KERNELS),
    ]
    mean = np.mean([r.values[..., 0] for r in by_family.values()], axis=0)
    for i, index in enumerate(INDICES):
        cells = []
        for k in range(len(KERNELS)):
            shown = mean[k, i, -2:] if mean.shape[2] > 1 else mean[k, i]
            cells.append(" / ".join(f"{v:.2f}" if np.isfinite(v) else "–" for v in shown))
        lines.append(f"| {index} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.resi.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", help="from reproduction.resi")
    parser.add_argument("--to", type=Path, required=True, help="the folder of results")
    parser.add_argument("--draws", type=int, default=1000, help="random orders, for chance")
    chosen_options = parser.parse_args()
    content, results = judge(gathered(chosen_options.folders), chosen_options.draws)
    chosen_options.to.mkdir(parents=True, exist_ok=True)
    (chosen_options.to / "resi.json").write_text(json.dumps(content, separators=(",", ":")))
    (chosen_options.to / "resi.md").write_text(page(content, results))
    print(f"{chosen_options.to}: {', '.join(results)} of {', '.join(content['networks'])}")


if __name__ == "__main__":
    main()
