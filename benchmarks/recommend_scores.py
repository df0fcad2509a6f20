"""Every score of one source on one target's images, for `benchmarks.recommend`.

Those of the package come from one pass (`resemblance.recommending`), as `rs.recommend` computes
them; beside them what costs more: a trained probe, judged by cross-validation at the last layer,
and, of the first collection, leave-one-out ridge on the product of features and gradients.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.transfer.candidates import run_candidate
from resemblance.transfer.hscore import trans_rate
from resemblance.transfer.query_samples import Query
from resemblance.transfer.transferability import (
    LAYER_SCORES,
    OUTPUT_SCORES,
    UNLABELLED_SCORES,
    score_candidate,
)

from .linear_probe import cross_validated
from .recommend_networks import layers


def scores(
    model: nn.Sequential, x: Tensor, y: Tensor, *, timed: bool, product: bool
) -> dict[str, Any]:
    labels = y.cpu().numpy()
    query = Query(x, labels, len(x), len(x))
    names = layers(model)
    start = time.process_time()
    shown = run_candidate(model, query, layers=names, gradients=True)
    last = shown.layers[names[-1]]["features"]
    rest = {
        "linear probe": cross_validated(last, y.cpu()[shown.positions]),
        "trans_rate, unscaled": trans_rate(last, labels[shown.positions], scaled=False),
    }
    found = score_candidate(shown, labels)
    if product:
        fit = leave_one_out(model, x, labels, layers=names[-1:], kernel="product")
        rest["ridge of the product"] = fit.accuracies[names[-1]]
    return {
        "layers": {name: dict(own) for name, own in found.layers.items()},
        "outputs": dict(found.outputs),
        "rest": rest,
        "seconds": _costs(model, query, names) if timed else None,
        "all_s": time.process_time() - start,
    }


def _costs(model: nn.Sequential, query: Query, names: list[str]) -> dict[str, float]:
    """Processor seconds of the pass, without and with a backward, and of each score over layers."""
    out = {}
    for what, gradients in (("pass and backward", True), ("pass", False)):
        start = time.process_time()
        shown = run_candidate(model, query, layers=names, gradients=gradients)
        out[what] = time.process_time() - start
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
