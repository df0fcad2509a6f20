"""Whether error bars hold: how often an interval covers what it says it does, and how wide it is.

Two made-up networks are drawn anew many times, in regimes from Gaussian to a hundredth of the
samples carrying nine tenths of a kernel. Each draw is recorded, compared as version 0.1.0 did
(blocks, two standard errors either side) and as the package does now (`estimator="auto"` and
`Comparison.interval()`), and set against plain float64 of all N samples: above 1,024 samples
against the score of all N of the draw, at or below against the mean of that over draws.

    OMP_NUM_THREADS=1 python -m benchmarks.coverage --workers 16 \
        --out benchmarks/results/coverage.json
    OMP_NUM_THREADS=1 python -m benchmarks.coverage --cells "gaussian*/300" --draws 100

A cell is regime/samples, with all kernels. Results join those of other cells in the file, which is
written every half minute; with `--go-on` those of its own cells too, whose draws are not repeated
(quantiles are then those of most draws, and the target at or below 1,024 samples the held mean).
A cell fails if its coverage lies below 93 % at the 1 % binomial level while
fewer than 95 % of its draws were warned about, if the mean standard error is more than twice the
true spread, or, where nothing is wrong, if more than 5 % of its draws were warned about.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import os
import platform
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import resemblance as rs
from resemblance.representation.representation import Representation
from resemblance.similarity import jackknife

SAMPLES = (300, 1000, 10_000, 50_000)
DRAWS = {300: 1000, 1000: 1000, 10_000: 1000, 50_000: 200}
KERNELS = ("features", "gradients", "product", "sum")
REGIMES = (
    "gaussian", "classes", "imbalanced", "duplicates", "lognormal-1", "lognormal-2", "lognormal-3",
    "one-per-cent", "large-mean", "unrelated", "identical", "alike",
)  # fmt: skip
HEAVY = ("lognormal-2", "lognormal-3", "one-per-cent")
QUIET = ("gaussian", "classes", "unrelated")  # in which nothing is to be warned about
CAUSES, WIDTH = 8, 12
AT_ONCE = {300: 20, 1000: 10, 10_000: 4, 50_000: 1}  # draws in a task
BEFORE = 200  # draws that are also compared as version 0.1.0 did
SMALLEST = 1e-4  # a spread below this is none
NUMBERS = ("truth", "before", "before_stderr", "after", "stderr", "low", "high", "warned",
           "n_eff", "blocks", "df")  # fmt: skip
Nets = list[tuple[np.ndarray, np.ndarray]]  # features and gradients of two networks
Row = dict[str, Any]  # of a cell and kernel
Held = dict[tuple[str, int, str], Row]  # by regime, samples and kernel


def drawn(regime: str, samples: int, rng: np.random.Generator) -> tuple[Nets, Nets]:
    """Networks for the gradient kernels, and for features, where the regime is that of features."""
    fixed = np.random.default_rng(7)  # what all draws of all regimes share
    maps = fixed.normal(size=(4, CAUSES, WIDTH)) / math.sqrt(CAUSES)
    centres = 1.5 * fixed.normal(size=(2, 60, CAUSES))
    causes = rng.normal(size=(2, samples, CAUSES))
    if regime in ("classes", "imbalanced", "duplicates"):
        kinds = {"classes": 10, "imbalanced": 10, "duplicates": 60}[regime]
        share = 0.5 ** np.arange(kinds) if regime == "imbalanced" else np.ones(kinds)
        of = rng.choice(kinds, samples, p=share / share.sum())
        causes *= 0.01 if regime == "duplicates" else 0.5
        causes += centres[:, of]
    noise = 0.02 if regime == "duplicates" else 0.5

    def vectors(at: int) -> np.ndarray:
        return causes[at % 2] @ maps[at] + noise * rng.normal(size=(samples, WIDTH))

    nets = [(vectors(0), vectors(1)), (vectors(2), vectors(3))]
    if regime == "unrelated":
        causes = rng.normal(size=causes.shape)
        nets[1] = (vectors(2), vectors(3))
    if regime == "identical":
        nets[1] = nets[0]
    if regime == "alike":  # CKA about 1 − 1e-4
        nets[1] = tuple(x + 0.012 * rng.normal(size=x.shape) for x in nets[0])  # type: ignore[assignment]
    if regime == "large-mean":
        nets = [(100 + f, 3 + g) for f, g in nets]
    scales = [np.ones((samples, 1))] * 2  # of the vectors; their squares are the diagonal
    if regime.startswith("lognormal"):
        sigma = float(regime[-1])
        common, own = rng.normal(size=(samples, 1)), rng.normal(size=(2, samples, 1))
        scales = [np.exp(sigma / 2 * (0.95 * common + math.sqrt(1 - 0.95**2) * x)) for x in own]
    if regime == "one-per-cent":
        heavy = (rng.permutation(samples) < samples // 100)[:, None]
        scales = [np.where(heavy, math.sqrt(0.9 / 0.01), math.sqrt(0.1 / 0.99))] * 2
    of_gradients = [(f, g * s) for (f, g), s in zip(nets, scales, strict=True)]
    return of_gradients, [(f * s, g) for (f, g), s in zip(nets, scales, strict=True)]


def exact(kernel: str, nets: Nets) -> float:
    """CKA of all samples in float64, from the cross-moments of vectors whose kernel it is."""

    def of(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        if kernel == "features":
            return f - f.mean(0)
        if kernel == "product":
            return (f[:, :, None] * g[:, None, :]).reshape(len(f), -1)
        if kernel == "sum":
            return np.hstack([x / np.linalg.norm(x) for x in (f, g)])
        return g

    one, two = (of(*net) for net in nets)
    own = math.sqrt(((one.T @ one) ** 2).sum() * ((two.T @ two) ** 2).sum())
    return float(((one.T @ two) ** 2).sum() / own)


def as_before(rep: Representation) -> Representation:
    """A recording as version 0.1.0 would have made it: blocks alone."""
    layers = []
    for layer in rep:
        parts = {}
        for kind in layer.kinds:
            blocks = layer.packed_blocks(kind)
            parts[kind] = replace(layer.recorded(kind), blocks=blocks, whole=None, norms=None)
        layers.append(replace(layer, **parts))
    return replace(rep, layers=tuple(layers))


def numbers(kernel: str, nets: Nets, reps: list[Representation], *, both: bool) -> list[float]:
    now = rs.compare(*reps, kernel=kernel)
    before = (math.nan, math.nan)
    if both:
        few, jackknife.FULL_GRAM_SAMPLES = (
            jackknife.FULL_GRAM_SAMPLES,
            10**9,
        )  # errors are those of other samples
        old = rs.compare(*map(as_before, reps), kernel=kernel, estimator="blocks")
        before = (old.scores[0, 0], old.stderr[0, 0])
        jackknife.FULL_GRAM_SAMPLES = few
    low, high = now.interval()
    blocks = math.nan if now.effective_blocks is None else now.effective_blocks[0, 0]
    warned = any(note.code == "unreliable-errors" for note in now.notes)
    n_eff = math.nan if now.n_eff is None else min(x[0] for x in now.n_eff)
    found = [exact(kernel, nets), *before, now.scores[0, 0]]
    found += [now.stderr[0, 0], low[0, 0], high[0, 0], warned, n_eff, blocks, now.df[0, 0]]
    return [float(x) for x in found]


def task(what: tuple[str, int, tuple[int, ...]]) -> tuple[str, int, np.ndarray]:
    """Some draws of a cell: (draws, kernels, numbers)."""
    regime, samples, draws = what
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = []
    for draw in draws:
        rng = np.random.default_rng([REGIMES.index(regime), samples, draw])
        plain, scaled = drawn(regime, samples, rng)
        record = {"data_id": "draw", "buckets": 0, "batch_size": 1024}
        if regime in HEAVY and samples > jackknife.FULL_GRAM_SAMPLES:
            record["buckets"] = 512  # which `auto` may choose
        both = [rs.record_arrays(f, g, **record) for f, g in plain]
        alone = both if plain[0][0] is scaled[0][0] else [
            rs.record_arrays(f, **record) for f, _ in scaled
        ]  # fmt: skip
        of = {"features": (scaled, alone)}
        before = draw < BEFORE
        out.append([numbers(k, *of.get(k, (plain, both)), both=before) for k in KERNELS])
    return regime, samples, np.array(out)


def row(regime: str, samples: int, kernel: str, found: np.ndarray, held: Row | None = None) -> Row:
    """What draws of a cell and kernel came to, with those that are held already."""
    x = dict(zip(NUMBERS, found.T, strict=True))
    mean = held["score"] if held else x["truth"].mean()
    target = x["truth"] if samples > jackknife.FULL_GRAM_SAMPLES else mean
    result: Row = {
        "regime": regime, "samples": samples, "kernel": kernel, "draws": len(found),
        "score": round(float(x["truth"].mean()), 4),
    }  # fmt: skip
    ends = {
        "before": (x["before"] - 2 * x["before_stderr"], x["before"] + 2 * x["before_stderr"]),
        "after": (x["low"], x["high"]),
    }
    for when, (low, high) in ends.items():
        error = x[when] - target
        there = np.isfinite(error)
        stderr = x["stderr" if when == "after" else "before_stderr"]
        within = (low - 1e-9 <= target) & (target <= high + 1e-9)
        near = np.abs(error) < SMALLEST  # beyond what 16-bit correlations hold
        if there.any():
            result[when] = {
                "rmse": float(f"{np.sqrt((error[there] ** 2).mean()):.3g}"),
                "bias": float(f"{error[there].mean():.3g}"),
                "stderr": float(f"{stderr[there].mean():.3g}"),
                "coverage": round(float((within | near)[there].mean()), 4),
            }
    result["warned"] = round(float(x["warned"].mean()), 4)
    quantiles = {name: np.nanquantile(x[name], [0.05, 0.5, 0.95]) if np.isfinite(x[name]).any()
                 else [] for name in ("n_eff", "blocks", "df")}  # fmt: skip
    result |= {name: [round(float(v), 1) for v in values] for name, values in quantiles.items()}
    if held:
        result = joined(held, result)
    return result | {"fails": fails(result)}


def joined(held: Row, fresh: Row) -> Row:
    """Two rows of one cell as one: means weighted by draws, quantiles those of the larger."""

    def mean(one: float, other: float, weights: tuple[int, int], power: int = 1) -> float:
        both = np.average([one**power, other**power], weights=weights) ** (1 / power)
        return float(f"{both:.4g}")

    draws = held["draws"], fresh["draws"]
    out = dict(max(held, fresh, key=lambda r: r["draws"]), draws=sum(draws))
    for name in ("score", "warned"):
        out[name] = mean(held[name], fresh[name], draws)
    for when in ("before", "after"):
        if when not in fresh:
            out[when] = held[when]
            continue
        some = BEFORE if when == "before" else sum(draws)
        known = min(held["draws"], some)
        weights = known, min(sum(draws), some) - known
        out[when] = {
            name: mean(value, fresh[when][name], weights, 2 if name == "rmse" else 1)
            for name, value in held[when].items()
        }
    return out


def fails(result: Row) -> list[str]:
    """What is wrong with a cell, in a word each."""
    after, warned, wrong = result["after"], result["warned"], []
    if below(after["coverage"], result["draws"]) and warned < 0.95:
        wrong.append("coverage")
    if after["stderr"] > 2 * max(after["rmse"], SMALLEST):
        wrong.append("width")
    if result["regime"] in QUIET and warned > 0.05:
        wrong.append("warned")
    return wrong


def below(coverage: float, draws: int, least: float = 0.93) -> bool:
    """Whether so low a coverage would come up in less than 1 % of runs if it were `least`."""
    hits = round(coverage * draws)
    logs = [
        math.lgamma(draws + 1) - math.lgamma(i + 1) - math.lgamma(draws - i + 1)
        + i * math.log(least) + (draws - i) * math.log(1 - least)
        for i in range(hits + 1)
    ]  # fmt: skip
    return sum(map(math.exp, logs)) < 0.01


def tasks(cells: str, draws: int | None, held: Held) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Runs of draws that are not held, the slow ones first, cell after cell in turn."""
    for samples in sorted(SAMPLES, reverse=True):
        number = min(draws or DRAWS[samples], DRAWS[samples])
        for start in range(0, number, AT_ONCE[samples]):
            for regime in REGIMES:
                if fnmatch.fnmatch(f"{regime}/{samples}", cells):
                    row = held.get((regime, samples, KERNELS[0]))
                    first = max(start, row["draws"] if row else 0)
                    some = tuple(range(first, min(start + AT_ONCE[samples], number)))
                    if some:
                        yield regime, samples, some


def held_rows(out: Path | None) -> list[Row]:
    return json.loads(out.read_text())["rows"] if out is not None and out.exists() else []


def written(rows: list[Row], out: Path | None) -> list[Row]:
    """Rows in the order of the regimes, with those of other cells that the file holds."""
    if out is None:
        return rows

    def key(r: dict) -> tuple:
        return REGIMES.index(r["regime"]), r["samples"], KERNELS.index(r["kernel"])

    fresh = {key(r) for r in rows}
    rows = sorted([*rows, *(r for r in held_rows(out) if key(r) not in fresh)], key=key)
    environment = {
        "resemblance": rs.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    what = (
        "how often intervals cover the score, before (0.1.0) and after, over draws of made-up data"
    )
    content = {"what": what, "environment": environment, "rows": rows}
    out.write_text(json.dumps(content, indent=1) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, help="at most so many a cell")
    parser.add_argument("--cells", default="*", help='a pattern of regime/samples, as "class*/300"')
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--go-on", action="store_true", help="after the draws that the file holds")
    parser.add_argument("--raw", type=Path, help="every number of every draw, as .npz")
    options = parser.parse_args()
    began = last = time.monotonic()
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    of_file = held_rows(options.out) if options.go_on else []
    held: Held = {(r["regime"], r["samples"], r["kernel"]): r for r in of_file}
    work = tasks(options.cells, options.draws, held)

    def rows() -> list[Row]:
        return [
            row(regime, samples, k, np.concatenate(parts)[:, i], held.get((regime, samples, k)))
            for (regime, samples), parts in sorted(found.items())
            for i, k in enumerate(KERNELS)
        ]

    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for regime, samples, part in pool.imap(task, work):
            found.setdefault((regime, samples), []).append(part)
            now = time.monotonic()
            if now - last > 30:
                last = now
                written(rows(), options.out)
                done = sum(len(part) for parts in found.values() for part in parts)
                print(f"{now - began:.0f} s, {done} draws", flush=True)
            if now - began > options.seconds:
                pool.terminate()
                break
    for r in rows():
        print(json.dumps(r), flush=True)
    written(rows(), options.out)
    if options.raw:
        arrays = {f"{r}/{n}": np.concatenate(parts) for (r, n), parts in found.items()}
        np.savez_compressed(options.raw, **arrays)


if __name__ == "__main__":
    main()
