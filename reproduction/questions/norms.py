"""(5), (6), (7) ‖μ‖, its normalisers and their ratios: a network from D_S on images of D_T.

D_T are training images, as in the paper: a network has seen those of its own data set. Test images
of its own show what that changes. The kernel is the product, the values those of `adaptation`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import resemblance as rs
from resemblance.errors import ResemblanceWarning

from ..scale import ARCHITECTURES, DATA
from .lab import Lab

COLUMNS = (
    "mean_embedding", "norm_frobenius", "norm_trace", "ratio_frobenius", "ratio_trace",
    "log_ratio", "mean_embedding_squared",
)  # fmt: skip


def run(lab: Lab) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        for home in DATA:
            names = [n for n in lab.zoo.originals(architecture) if n.startswith(f"{home}/")]
            names = names[: lab.scale.few]
            for data in (*(f"train:{d}" for d in DATA), f"test:{home}"):
                lab.recordings.make((n, data, "norms") for n in names)
                for estimator in ("blocks", "paper"):
                    key = f"{architecture}, {home} on {data}, {estimator}"
                    out[key] = _table([lab.recordings(n, data, "norms") for n in names], estimator)
        print(f"norms of {architecture}", flush=True)
    return {"norms": out, "layers": {k: _layers(lab, k) for k in ARCHITECTURES}}


def _layers(lab: Lab, architecture: str) -> list[str]:
    return lab.recordings(f"cifar10/{architecture}/0", "train:cifar10", "norms").layer_names


def _table(reps: list[rs.Representation], estimator: str) -> dict[str, Any]:
    """Mean and spread over networks, and the mean standard error of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # ‖μ‖² below zero is NaN, counted below
        tables = [rs.adaptation(rep, estimator=estimator) for rep in reps]
    out: dict[str, Any] = {"networks": len(reps), "samples": reps[0].samples}
    for column in COLUMNS:
        values = np.stack([t[column] for t in tables])
        errors = np.stack([t[f"{column}_stderr"] for t in tables])
        out[column] = {
            "mean": _plain(_mean(values)),
            "sd": _plain(np.sqrt(_mean((values - _mean(values)) ** 2))),
            "stderr": _plain(_mean(errors)),
            "undefined": np.isnan(values).sum(0).tolist(),
        }
    return out


def _mean(values: np.ndarray) -> np.ndarray:
    """Over networks, of those that are defined."""
    count = (~np.isnan(values)).sum(0)
    return np.where(count > 0, np.nansum(values, 0) / np.maximum(count, 1), np.nan)


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(v) else float(f"{v:.5g}") for v in values]
