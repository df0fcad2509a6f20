"""Every score of one source on one target's images, for `benchmarks.recommend`.

Those of the package come from one pass, as `rs.recommend` computes them. Beside them are the
adaptation scores ‖μ‖ and log ratio, negated, which need no labels and by which `rs.recommend` once
ranked, and what costs more: a trained probe, judged by cross-validation at the last layer, and, of
the first collection, leave-one-out ridge on the product of features and gradients.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

import resemblance as rs
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.errors import ResemblanceWarning
from resemblance.transfer.candidates import run_candidate
from resemblance.transfer.hscore import trans_rate
from resemblance.transfer.query_samples import Query
from resemblance.transfer.transferability import (
    LAYER_SCORES,
    OUTPUT_SCORES,
    score_candidate,
)

from .linear_probe import cross_validated
from .recommend_networks import layers

UNLABELLED_SCORES = ("mean_embedding", "log_ratio")  # columns of adaptation


def scores(
    model: nn.Sequential, x: Tensor, y: Tensor, *, timed: bool, product: bool
) -> dict[str, Any]:
    labels = y.cpu().numpy()
    query = Query(x, labels, len(x), len(x))
    names = layers(model)
    start = time.process_time()
    shown = run_candidate(model, query, layers=names)
    last = shown.layers[names[-1]]["features"]
    rest = {
        "linear probe": cross_validated(last, y.cpu()[shown.positions]),
        "trans_rate, unscaled": trans_rate(last, labels[shown.positions], scaled=False),
    }
    found, free = score_candidate(shown, labels), _without_labels(model, x, names)
    if product:
        fit = leave_one_out(model, x, labels, layers=names[-1:], kernel="product")
        rest["ridge of the product"] = fit.accuracies[names[-1]]
    return {
        "layers": {name: {**own, **free[name]} for name, own in found.layers.items()},
        "outputs": dict(found.outputs),
        "rest": rest,
        "seconds": _costs(model, query, names) if timed else None,
        "all_s": time.process_time() - start,
    }


def _without_labels(model: nn.Module, x: Tensor, names: list[str]) -> dict[str, dict[str, float]]:
    """−‖μ‖ and −log ratio of each layer, NaN where ‖μ‖² is below zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        rep = rs.record(model, x, layers=names, outputs=False, progress=False)
        table = rs.adaptation(rep)
    return {
        name: {score: -float(table[score][i]) for score in UNLABELLED_SCORES}
        for i, name in enumerate(table.layers)
    }


def _costs(model: nn.Sequential, query: Query, names: list[str]) -> dict[str, float]:
    """Processor seconds of the pass, and of each score over layers."""
    out = {}
    start = time.process_time()
    shown = run_candidate(model, query, layers=names)
    out["pass"] = time.process_time() - start
    for score in (*LAYER_SCORES, *OUTPUT_SCORES):
        again = replace(shown, layers=dict(shown.layers))
        start = time.process_time()
        score_candidate(again, query.labels, [score])
        out[score] = time.process_time() - start
    return out


def table(lines: list[dict[str, Any]], about: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """One row of values a score, over lines of one target, by the name that people read."""

    def of_layers(score: str, where: str) -> list[float]:
        found = []
        for line in lines:
            values = [own.get(score, np.nan) for own in line["layers"].values()]
            place = {"last": -1, "middle": len(values) // 2}.get(where)
            over = np.nanmax if where == "best" else np.nanmean
            found.append(over(values) if place is None else values[place])
        return found

    out = {
        f"{score}, {where}": of_layers(score, where)
        for score in LAYER_SCORES
        for where in ("last", "middle", "best", "mean")
    }
    out |= {score: [line["outputs"][score] for line in lines] for score in OUTPUT_SCORES}
    out |= {
        f"{score}, {where}": of_layers(score, where)
        for score in UNLABELLED_SCORES
        for where in ("last", "middle", "mean")
    }
    out |= {key: [line["rest"][key] for line in lines] for key in lines[0]["rest"]}
    out["own accuracy"] = [about[line["source"]]["own_accuracy"] for line in lines]
    out["own steps"] = [about[line["source"]]["steps"] for line in lines]
    return {name: np.array(values, dtype=float) for name, values in out.items()}
