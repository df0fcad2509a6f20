"""How often intervals over networks hold the true value of what the benchmark measures.

    python -m reproduction.resi.coverage --out reproduction/results/resi/coverage.json

Networks are made-up points, and a measure of similarity is their distance with noise. Their number
and groups are those of the benchmark: five groups of five for AUPRC, ten for Spearman's
correlation. The true value is the mean over all draws. Two kinds of intervals are compared, the
jackknife that `judge` takes and percentiles of a bootstrap over networks, for one measure and for
the difference of two that see the same networks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from .quality import correlation_with, group_separation, interval_of_mean, leave_one_out

DIMENSIONS = 4
NOISE = {"weak": (1.6, 3.0), "strong": (0.7, 1.6)}  # of either measure


def alike(points: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    x = points + noise * rng.normal(size=points.shape)
    return -np.square(x[:, None] - x[None]).sum(-1)


def resampled(groups: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Weights of networks, drawn with replacement within each group; the first row is of ones."""
    out = np.ones((draws + 1, len(groups)))
    for group in np.unique(groups):
        here = np.flatnonzero(groups == group)
        share = np.full(len(here), 1 / len(here))
        out[1:, here] = rng.multinomial(len(here), share, size=draws)
    return out


def simulate(test: str, strength: str, trials: int, draws: int) -> dict[str, dict[str, float]]:
    """Coverage and mean width of both intervals, of a measure and of a difference."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(5), 5) if test == "AUPRC" else np.zeros(10, int)
    centres = np.random.default_rng(7).normal(size=(groups.max() + 1, DIMENSIONS))
    values: dict[str, list[float]] = {"value": [], "difference": []}
    ends: dict[str, list[tuple[float, float]]] = {}
    for _ in range(trials):
        points = centres[groups] + 0.8 * rng.normal(size=(len(groups), DIMENSIONS))
        scores = [alike(points, noise, rng) for noise in NOISE[strength]]
        differences = -alike(points, 0.0, rng)

        def each(weights: np.ndarray, s=scores, d=differences) -> dict[str, np.ndarray]:
            one, two = (
                group_separation(x, groups, weights)
                if test == "AUPRC"
                else correlation_with(x[None], d, weights)[0]
                for x in s
            )
            return {"value": one, "difference": one - two}

        for what, x in each(leave_one_out(len(groups))).items():
            values[what].append(float(x[0]))
            ends.setdefault(f"{what}, jackknife", []).append(interval_of_mean([x], [groups])[1:])
        for what, x in each(resampled(groups, draws, rng)).items():
            low, high = np.nanpercentile(x[1:], [2.5, 97.5])
            ends.setdefault(f"{what}, bootstrap", []).append((float(low), float(high)))
    out = {}
    for name, pairs in ends.items():
        true = np.mean(values[name.split(",")[0]])
        low, high = np.array(pairs).T
        out[name] = {
            "true": float(true),
            "coverage": float(((low <= true) & (true <= high)).mean()),
            "width": float((high - low).mean()),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--draws", type=int, default=300, help="resamples of a bootstrap")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        f"{test}, {strength}": simulate(test, strength, options.trials, options.draws)
        for test in ("AUPRC", "Spearman")
        for strength in NOISE
    }
    content = {"trials": options.trials, "draws": options.draws, **found}
    print(json.dumps(content, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
