"""Can training data say, before any network is run, which to run? For `rs.recommend`'s first look.

    python -m benchmarks.recommend_first_look --data data.npz --work FOLDER [--form cpu]

A reference network (one of the sources of `benchmarks.recommend`, or an untrained one) is recorded
on the training images of every source and on the images of every target; sources are ranked for a
target by how near their training images are, by several distances, and judged by what fine-tuning
from them reached. Needs the pairs of `benchmarks.recommend`. Writes
results/recommend_first_look.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import resemblance as rs
from resemblance.transfer.recommend import data_distance

from .digits import write
from .recommend import Setting, lines, loaded
from .recommend_data import load
from .recommend_judged import regret, tau
from .recommend_networks import SOURCES, TARGETS, images_of, parts_of

REFERENCES = ("cifar100, wide", "cifar10, turned", "untrained")
_IMAGES = 1000  # of a source's training data


def _mean(rep: rs.Representation, layer: int) -> np.ndarray:
    return rep[layer].features.sketch.total.double().numpy() / rep.samples  # type: ignore[union-attr]


def _last(a: rs.Representation, b: rs.Representation) -> float:
    x, y = _mean(a, -1), _mean(b, -1)
    return float((x - y) @ (x - y) / np.sqrt((x @ x) * (y @ y)))


def _over_spread(a: rs.Representation, b: rs.Representation) -> float:
    """Means' distance next to how far samples spread about them."""
    out = []
    for i in range(len(a)):
        x, y = _mean(a, i), _mean(b, i)
        spread = [rep[i].features.trace / rep.samples - m @ m for rep, m in ((a, x), (b, y))]
        out.append(float((x - y) @ (x - y)) / max(sum(spread), 1e-12))
    return float(np.mean(out))


def _moments(a: rs.Representation, b: rs.Representation) -> float:
    """One less the cosine of folded second moments, which the sketches' rows estimate."""
    out = []
    for i in range(len(a)):
        x, y = (rep[i].features.sketch.table.double().numpy() for rep in (a, b))  # type: ignore[union-attr]
        x, y = x.T @ x, y.T @ y
        out.append(1 - float((x * y).sum() / (np.linalg.norm(x) * np.linalg.norm(y))))
    return float(np.mean(out))


def _spectra(a: rs.Representation, b: rs.Representation) -> float:
    """The distance of the shares of sorted singular values of the sketches."""
    out = []
    for i in range(len(a)):
        both = []
        for rep in (a, b):
            s = np.linalg.svd(rep[i].features.sketch.table.double().numpy(), compute_uv=False)  # type: ignore[union-attr]
            both.append(s**2 / (s**2).sum())
        out.append(float(np.abs(both[0] - both[1]).sum()))
    return float(np.mean(out))


DISTANCES: dict[str, Callable[[rs.Representation, rs.Representation], float]] = {
    "means, all layers": data_distance,
    "means, last layer": _last,
    "means over spread, all layers": _over_spread,
    "second moments, all layers": _moments,
    "spectra, all layers": _spectra,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--form", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = Setting(options.data, options.work, options.form, False, "cpu")
    pools = load(setting.data)
    pairs = {(x["source"], x["target"]): x for x in lines(setting.work / "pairs.jsonl")}
    targets = [t for t in setting.targets if all((s, t) in pairs for s in setting.sources)]
    here = [s for s in setting.sources if SOURCES[s].data in pools]  # whose images are there
    trained = [s for s in here if SOURCES[s].length > 0]
    plain = [s for s in trained if SOURCES[s].labels == "own" and SOURCES[s].length == 1]
    result: dict[str, dict[str, dict[str, float]]] = {}
    for reference in REFERENCES:
        net = loaded(setting, reference)
        how: dict[str, Any] = {"gradients": False, "outputs": False, "progress": False}
        of = {s: rs.record(net, images_of(SOURCES[s], pools)[0][:_IMAGES], **how) for s in trained}
        at = {t: rs.record(net, parts_of(TARGETS[t], pools)[0][0], **how) for t in targets}
        result[reference] = {}
        for name, distance in DISTANCES.items():
            own: dict[str, list[float]] = {}
            for t in targets:
                near = {s: -distance(of[s], at[t]) for s in trained}
                for which, some in (("trained", trained), ("fully trained", plain)):
                    truth = np.array(
                        [np.mean([x["test"] for x in pairs[s, t]["tuned"]]) for s in some]
                    )
                    values = np.array([near[s] for s in some])
                    own.setdefault(f"tau, {which}", []).append(tau(values, truth))
                    own.setdefault(f"regret, {which}", []).append(regret(values, truth))
                    best = int(truth.argmax())
                    kept = np.argsort(-values)[: len(some) // 2]
                    own.setdefault(f"best is in the nearer half, {which}", []).append(best in kept)
                    short = float(truth.max() - truth[kept].max())
                    own.setdefault(f"lost by the nearer half, {which}", []).append(short)
            result[reference][name] = {key: float(np.mean(x)) for key, x in own.items()}
            print(reference, name, {k: round(v, 3) for k, v in result[reference][name].items()})
    print(write("recommend_first_look", {"targets": targets, "references": result}))


if __name__ == "__main__":
    main()
