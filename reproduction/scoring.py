"""Scores of many pairs of recordings, in as many processes as there are cores."""

from __future__ import annotations

import functools
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import resemblance as rs
from resemblance.errors import ResemblanceWarning

_WORKERS = min(os.cpu_count() or 1, 16)


@dataclass(frozen=True)
class Job:
    """One comparison of two files: all pairs of layers, or each layer with its counterpart."""

    a: Path
    b: Path
    kernel: str
    index: str = "cka"
    centre: bool | None = None
    estimator: str = "auto"
    layers: str = "same"  # or "all"


@dataclass(frozen=True)
class Matrix:
    """All pairs of many files at one layer, from exact blocks of shared samples."""

    files: tuple[Path, ...]
    layer: int
    kernel: str
    index: str = "cka"
    centre: bool | None = None


@dataclass(frozen=True)
class Scores:
    """(rows, columns), or (layers,) for counterparts alone."""

    values: np.ndarray
    stderr: np.ndarray
    chance: np.ndarray | None


def score(jobs: Sequence[Job | Matrix], note: str = "") -> list[Scores]:
    """The scores of each job, in order."""
    print(f"{note}: {len(jobs)} comparisons", flush=True)
    chunk = max(1, len(jobs) // (16 * _WORKERS))
    return list(_pool().map(_score, jobs, chunksize=chunk))


@functools.cache
def _pool() -> ProcessPoolExecutor:
    """Processes that stay, as each takes seconds to begin."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(_WORKERS, context, initializer=_alone)


def _alone() -> None:
    torch.set_num_threads(1)


@functools.lru_cache(maxsize=40)
def _load(path: Path) -> rs.Representation:
    return rs.load(path)


def _score(job: Job | Matrix) -> Scores:
    if isinstance(job, Matrix):
        reps = [_load(path) for path in job.files]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResemblanceWarning)  # a layer may die when pruned
            found = rs.compare_all(
                reps, kernel=job.kernel, index=job.index, centre=job.centre, layer=job.layer,
                blocks=64,
            )  # fmt: skip
        return Scores(found.scores, found.stderr, None)
    a, b = _load(job.a), _load(job.b)
    if job.layers == "all":
        return _compare(a, b, job)
    parts = [
        _compare(replace(a, layers=(one,)), replace(b, layers=(two,)), job)
        for one, two in zip(a.layers, b.layers, strict=True)
    ]
    chance = [part.chance for part in parts]
    return Scores(
        np.array([part.values[0, 0] for part in parts]),
        np.array([part.stderr[0, 0] for part in parts]),
        np.array([c[0, 0] for c in chance if c is not None]) if chance[0] is not None else None,
    )


def _compare(a: rs.Representation, b: rs.Representation, job: Job) -> Scores:
    with warnings.catch_warnings():
        # networks are compared on their own data on purpose here, as in the paper
        warnings.simplefilter("ignore", ResemblanceWarning)
        c = rs.compare(
            a, b, kernel=job.kernel, index=job.index, centre=job.centre, estimator=job.estimator
        )
    return Scores(c.scores, c.stderr, c.chance)


def same_layers(
    files: Sequence[Path], plans: Sequence[tuple[str, str, bool | None]], depth: int, note: str
) -> np.ndarray:  # (plans, files, files, layers)
    """All pairs of files on shared samples, layer by layer; a plan is (kernel, index, centre)."""
    jobs = [Matrix(tuple(files), layer, *plan) for plan in plans for layer in range(depth)]
    found = np.stack([scores.values for scores in score(jobs, note)])
    return np.moveaxis(found.reshape(len(plans), depth, *found.shape[1:]), 1, -1)


def auc(same: np.ndarray, other: np.ndarray) -> float:
    """The chance that one of `same` lies above one of `other`; ties count half."""
    difference = same[:, None] - other[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def summary(values: np.ndarray) -> dict[str, list[float]]:  # (pairs, layers)
    """Mean and spread over pairs, layer by layer."""
    return {
        "mean": np.mean(values, 0).round(5).tolist(),
        "sd": np.std(values, 0, ddof=1 if len(values) > 1 else 0).round(5).tolist(),
        "min": np.min(values, 0).round(5).tolist(),
        "max": np.max(values, 0).round(5).tolist(),
        "pairs": [len(values)],
    }
