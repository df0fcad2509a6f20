"""Whether what is said of every index holds: standard errors, p-values, and what blocks estimate.

    OMP_NUM_THREADS=1 python -m benchmarks.indices --out benchmarks/results/indices.json
    OMP_NUM_THREADS=1 python -m benchmarks.indices --cells "errors/50/*" --scale 0.1

Three kinds of cells, of made-up networks that are drawn anew, recorded and compared:

- errors/N/tails/index: two layers that share eight causes, of N samples. The standard error over
  the spread of scores, and how often the 95 % interval holds the mean score. For sums over pairs,
  which have a p-value from moments, also how often it is below 5, 1 and 0.1 % for layers that share
  nothing; a comparison holds ten draws of them. Tails are normal, or a lognormal scale for each
  sample (σ = 1).
- best/N/index: three layers that share nothing with three others, with 39 random orders of samples:
  how often a single pair, and the best of all nine, is significant at 5 % (2 of 40).
- blocks/N/index: what blocks of 128 samples estimate, against the plain formula on all N.

Results join those of other cells in the file, which is written after each. All of it takes about
half an hour of one core.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest, kendalltau, spearmanr

import resemblance as rs
from resemblance.similarity.indices.registry import get_index, index_names

CAUSES, WIDTH, PERMUTATIONS = 8, 20, 39
AT_ONCE = 10  # draws in a comparison of sums over pairs
SUMS = tuple(x for x in index_names() if get_index(x).pair_sums)
OTHERS = tuple(x for x in index_names() if x not in SUMS)
DRAWS = {50: (2000, 200), 200: (2000, 200), 1000: (500, 100)}  # of sums, of the others
SLOW = ("rsa-kendall", "rsa-spearman", "nbs")  # at 1,000 samples; NBS comes from buckets there
FROM_BLOCKS = ("distance-correlation", "rsa-spearman", "rsa-kendall")
MAPS = np.random.default_rng(99).normal(size=(2, CAUSES, WIDTH))
NOISE = np.linspace(0.3, 1.5, WIDTH)


def related(rng: np.random.Generator, samples: int, tails: str) -> list[np.ndarray]:
    cause = rng.normal(size=(samples, CAUSES))
    scale = np.exp(rng.normal(size=(samples, 1))) if tails == "lognormal" else 1.0
    return [scale * (cause @ m + rng.normal(size=(samples, WIDTH)) * NOISE) for m in MAPS]


def record(layers: dict[str, np.ndarray], **options: Any) -> rs.Representation:
    return rs.record_arrays(layers, data_id="made up", buckets=0, **options)


def errors(index: str, samples: int, tails: str, draws: int) -> dict[str, Any]:
    scores, stderrs, ends, ps = [], [], [], []
    at_once = AT_ONCE if index in SUMS else 1
    for seed in range(-(-draws // at_once)):
        rng = np.random.default_rng([samples, seed])
        sides: list[dict[str, np.ndarray]] = [{}, {}]
        for i in range(at_once):
            for side, x in zip(sides, related(rng, samples, tails), strict=True):
                side[f"related {i}"] = x
                if index in SUMS:
                    side[f"alone {i}"] = rng.normal(size=(samples, WIDTH)) * NOISE
        found = rs.compare(*(record(side) for side in sides), kernel="features", index=index)
        for i, name in enumerate(found.rows):
            if name.startswith("alone"):
                assert found.p_value is not None
                ps.append(found.p_value[i, i])
            else:
                scores.append(found.scores[i, i])
                stderrs.append(found.stderr[i, i])
                ends.append([x[i, i] for x in found.interval()])
    mean, spread = np.mean(scores), np.std(scores, ddof=1)
    low, high = np.array(ends).T
    out = {"draws": len(scores), "score": mean, "spread": spread}
    if np.isfinite(stderrs).any():
        out["stderr_over_spread"] = np.mean(stderrs) / spread
        out["coverage"] = ((low <= mean) & (mean <= high)).mean()
    for level in (0.05, 0.01, 0.001) if ps else ():
        out[f"p_below_{level}"] = (np.array(ps) <= level).mean()
    return {key: float(value) for key, value in out.items()}


def best(index: str, samples: int, draws: int) -> dict[str, Any]:
    single, corrected, uncorrected = [], [], []
    for seed in range(draws):
        rng = np.random.default_rng([samples, seed, 1])
        names = ("a", "b", "c")
        reps = [record({x: rng.normal(size=(samples, WIDTH)) for x in names}) for _ in range(2)]
        found = rs.compare(*reps, kernel="features", index=index, permutations=PERMUTATIONS)
        assert found.p_value is not None
        single.append(found.p_value[0, 0])
        corrected.append(found.best().p_value)
        uncorrected.append(found.p_value.min())
    out: dict[str, Any] = {"draws": draws}
    for name, ps in (("single", single), ("best", corrected), ("best_uncorrected", uncorrected)):
        hits = int((np.array(ps) <= 0.05 + 1e-9).sum())
        ends = binomtest(hits, draws).proportion_ci()
        out[name] = [hits / draws, float(ends.low), float(ends.high)]
    return out


def plain_distances(x: np.ndarray) -> np.ndarray:
    k = x @ x.T
    return np.diag(k)[:, None] + np.diag(k) - 2 * k


def plain_score(index: str, x: np.ndarray, y: np.ndarray) -> float:
    one, two = plain_distances(x), plain_distances(y)
    if index == "distance-correlation":
        centred = []
        for d in (np.sqrt(one.clip(0)), np.sqrt(two.clip(0))):
            centred.append(d - d.mean(0) - d.mean(1)[:, None] + d.mean())
        a, b = centred
        return math.sqrt((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))
    below = np.tril_indices(len(x), -1)
    form = spearmanr if index == "rsa-spearman" else kendalltau
    return float(form(one[below], two[below]).statistic)


def blocks(index: str, samples: int, draws: int) -> dict[str, Any]:
    off, stderrs = [], []
    for seed in range(draws):
        pair = related(np.random.default_rng([samples, seed, 2]), samples, "normal")
        reps = [record({"l": x}) for x in pair]
        found = rs.compare(*reps, kernel="features", index=index)
        off.append(found.scores[0, 0] - plain_score(index, *pair))
        stderrs.append(found.stderr[0, 0])
    return {
        "draws": draws,
        "mean_error": float(np.mean(off)),
        "rms_error": float(np.sqrt(np.mean(np.square(off)))),
        "stderr": float(np.mean(stderrs)),
    }


def cells(scale: float) -> dict[str, Any]:
    """Each cell by its name, as a function, the cheap ones first."""
    out: dict[str, Any] = {}

    def many(draws: int) -> int:
        return max(3, round(draws * scale))

    for samples, index in itertools.product(DRAWS, (*SUMS, *OTHERS)):
        if samples == 1000 and index in SLOW:
            continue
        draws = many(DRAWS[samples][index not in SUMS])
        name = f"errors/{samples}/normal/{index}"
        out[name] = lambda i=index, n=samples, d=draws: errors(i, n, "normal", d)
        if samples == 200:
            name, draws = f"errors/{samples}/lognormal/{index}", many(200)
            out[name] = lambda i=index, n=samples, d=draws: errors(i, n, "lognormal", d)
    for samples, index in itertools.product((50, 200), (*SUMS, *OTHERS)):
        if index != "spectral" and (samples == 50 or index not in SLOW):
            name, draws = f"best/{samples}/{index}", many(200)
            out[name] = lambda i=index, n=samples, d=draws: best(i, n, d)
    for index in FROM_BLOCKS:
        out[f"blocks/2000/{index}"] = lambda i=index: blocks(i, 2000, many(10))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", default="*", help="pattern of the cells to compute")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the draws")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", rs.errors.ResemblanceWarning)
    for name, cell in cells(options.scale).items():
        if not fnmatch.fnmatch(name, options.cells):
            continue
        start = time.process_time()
        result = {**cell(), "cpu_seconds": round(time.process_time() - start, 1)}
        print(name, {k: round(x, 4) if isinstance(x, float) else x for k, x in result.items()})
        if options.out is not None:
            content = json.loads(options.out.read_text()) if options.out.exists() else {}
            content |= {"machine": platform.processor() or platform.machine(), name: result}
            options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
