"""(2), (3) Task2Vec and the Fisher-Rao distance between independently trained networks."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

import resemblance as rs

from ..scoring import auc, summary
from .lab import Lab

DRAWS = 2  # labels a sample for Task2Vec: its error is far below the spread over networks


def run(lab: Lab) -> dict[str, Any]:
    names = lab.zoo.originals()
    lab.recordings.make((n, f"train:{_home(n)}", "sketch") for n in names)
    rao, tasks = {}, {}
    for name in names:
        own = f"train:{_home(name)}"
        rao[name] = rs.fisher_rao(lab.recordings(name, own, "sketch"))
    few = [n for n in names if int(n.split("/")[2]) < lab.scale.few]
    for name in few:
        images = lab.recordings.inputs(f"train:{_home(name)}")[: lab.scale.task2vec]
        chunk = 64 if images.is_cuda else None
        tasks[name] = rs.task2vec(lab.zoo(name), images, draws=DRAWS, name=name, chunk=chunk)
        print(f"Task2Vec of {name}", flush=True)
    distance = {
        which: np.array([list(rao[p].distances(rao[q]).values()) for p, q in them])
        for which, them in _pairs(names).items()
    }
    cosine = {
        which: np.array([[tasks[p].cosine(tasks[q])] for p, q in them])
        for which, them in _pairs(few).items()
    }
    return {
        "layers": list(rao[names[0]].norms),
        "Fisher-Rao distance": {which: summary(v) for which, v in distance.items()},
        "Fisher-Rao norm": {
            home: summary(
                np.array([list(rao[n].norms.values()) for n in names if _home(n) == home])
            )
            for home in lab.data
        },
        "Task2Vec cosine": {which: summary(v) for which, v in cosine.items()},
        "auc": {
            "Fisher-Rao": _auc({which: -v for which, v in distance.items()}),
            "Task2Vec": _auc(cosine),
        },
        "networks": {"Fisher-Rao": lab.scale.seeds, "Task2Vec": lab.scale.few},
    }


def _pairs(names: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Pairs of different networks for each of the six pairs of data sets."""
    out: dict[str, list[tuple[str, str]]] = {}
    for p, q in combinations(names, 2):
        out.setdefault(f"{_home(p)}-{_home(q)}", []).append((p, q))
    return out


def _home(name: str) -> str:
    return name.split("/")[0]


def _auc(values: dict[str, np.ndarray]) -> list[float]:
    same = np.concatenate([v for which, v in values.items() if len(set(which.split("-"))) == 1])
    other = np.concatenate([v for which, v in values.items() if len(set(which.split("-"))) == 2])
    return [auc(same[:, i], other[:, i]) for i in range(same.shape[1])]
