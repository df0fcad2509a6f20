"""Scores of many recordings at once, in as many processes as there are cores.

A Representation is a row of layers, and `compare` scores all pairs of two rows. Nothing says that a
row must come from one network: the same layer of many networks is a row as well, and one call then
compares all of them, reading each kernel once.
"""

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

_WORKERS = max(1, min(os.cpu_count() or 1, 16) - (2 if (os.cpu_count() or 1) > 4 else 0))
Files = tuple[Path, ...]


@dataclass(frozen=True)
class Plan:
    """How to compare: the arguments of `compare`."""

    kernel: str
    index: str = "cka"
    centre: bool | None = None
    estimator: str = "auto"


@dataclass(frozen=True)
class Job:
    """Two rows of files, at one layer or at all, compared in several ways."""

    rows: Files
    columns: Files
    layer: int | None  # None: all layers of each file, one after the other
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Scores:
    """(rows, columns), each rows' file by file and layer by layer."""

    values: np.ndarray
    stderr: np.ndarray


def score(jobs: Sequence[Job], note: str) -> list[list[Scores]]:
    """The scores of each job, in order, one for each of its plans."""
    print(f"{note}: {sum(len(job.plans) for job in jobs)} comparisons", flush=True)
    return list(_pool().map(_score, jobs))


@functools.cache
def _pool() -> ProcessPoolExecutor:
    """Processes that stay, as each takes seconds to begin."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(_WORKERS, context, initializer=torch.set_num_threads, initargs=(1,))


def _score(job: Job) -> list[Scores]:
    rows, columns = _row(job.rows, job.layer), _row(job.columns, job.layer)
    out = []
    for plan in job.plans:
        with warnings.catch_warnings():
            # own data are compared on purpose here, as in the paper; pruned layers may die
            warnings.simplefilter("ignore", ResemblanceWarning)
            found = rs.compare(
                rows, columns, kernel=plan.kernel, index=plan.index, centre=plan.centre,
                estimator=plan.estimator, unpaired=True,
            )  # fmt: skip
        out.append(Scores(found.scores, found.stderr))
    return out


@functools.lru_cache(maxsize=4)
def _row(files: Files, layer: int | None) -> rs.Representation:
    """One Representation with layers of all files, which must be of the same samples."""
    first, layers = rs.load(files[0]), []
    for i, path in enumerate(files):
        rep = rs.load(path)
        if rep.data.fingerprint != first.data.fingerprint:
            raise ValueError(f"{path.name} was recorded on other samples than {files[0].name}")
        chosen = rep.layers if layer is None else rep.layers[layer : layer + 1]
        layers += [replace(one, name=f"{i} {one.name}") for one in chosen]
    return replace(first, layers=tuple(layers))


def same_layers(
    rows: Sequence[Path], columns: Sequence[Path], plans: Sequence[Plan], depth: int, note: str
) -> np.ndarray:  # (plans, rows, columns, layers)
    """All pairs of files, each layer with the same layer."""
    jobs = [Job(tuple(rows), tuple(columns), layer, tuple(plans)) for layer in range(depth)]
    found = score(jobs, note)
    return np.stack([[one.values for one in at_layer] for at_layer in found], -1)


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
