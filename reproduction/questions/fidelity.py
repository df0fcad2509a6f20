"""(d) Does a score fall when a copy stops behaving like its origin? (e) Who descends from whom?

Three CIFAR-10 networks; of each its checkpoints, copies (tuned further, pruned, rounded,
distilled), and twins. What changed is measured on test images: accuracy lost, the share of
predictions that disagree, the mean Jensen-Shannon distance of outputs. Spearman's ρ of 1 − score
with each of them says whether a kernel sees it. Lineage: the AUC of telling descendants (tuned,
pruned, rounded, moved to CIFAR-100) from networks that are not (twins, distilled, strangers).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from ..scoring import Plan, auc, same_layers
from ..training import predictions
from .lab import Lab

HOME = "cifar10"
KERNELS = {
    "features, centred": ("features", True), "features, not centred": ("features", False),
    "gradients": ("gradients", None), "product": ("product", None), "sum": ("sum", None),
}  # fmt: skip
PROBES = {"natural": f"test:{HOME}", "noise": "noise"}
TRUTHS = ("accuracy lost", "disagreement", "Jensen-Shannon")


def run(lab: Lab) -> dict[str, Any]:
    families = {origin: _family(lab, origin) for origin in lab.zoo.origins()}
    everyone = sorted({n for origin, f in families.items() for n in (origin, *f)})
    dead: list[str] = []
    wanted = [(n, data, "default") for n in everyone for data in PROBES.values()]
    lab.recordings.make(wanted, dead)
    everyone = [n for n in everyone if n not in dead]
    families = {o: [n for n in family if n not in dead] for o, family in families.items()}
    layers = lab.recordings(everyone[0], PROBES["natural"]).layer_names
    plans = [Plan(kernel, "cka", centre, "blocks") for kernel, centre in KERNELS.values()]
    place = {name: i for i, name in enumerate(everyone)}
    found: dict[str, np.ndarray] = {}
    for probe, data in PROBES.items():
        files = [lab.recordings.path(n, data) for n in everyone]
        origins = [files[place[origin]] for origin in families]
        note = f"fidelity, {probe} probe"
        found[probe] = same_layers(origins, files, plans, len(layers), note)
    changed = {origin: _changes(lab, origin, family) for origin, family in families.items()}
    rows = [
        {
            "origin": origin, "network": other, "kind": _kind(origin, other), **change,
            "scores": {
                probe: {
                    k: _list(found[probe][i, list(families).index(origin), place[other]])
                    for i, k in enumerate(KERNELS)
                }
                for probe in PROBES
            },
        }
        for origin in families for other, change in changed[origin].items()
    ]  # fmt: skip
    return {
        "layers": layers,
        "left out, without gradients": dead,
        "networks": rows,
        "fidelity": _fidelity(rows, list(families), len(layers)),
        "lineage": _lineage(rows, len(layers)),
    }


def _family(lab: Lab, origin: str) -> list[str]:
    """Descendants, all twins, and two strangers."""
    twins = [n for n in lab.zoo.originals() if n.startswith(f"{HOME}/") and n != origin]
    strangers = ["cifar100/resnet18/0", "svhn/resnet18/0"]
    return [*lab.zoo.descendants(origin), *twins, *strangers]


def _kind(origin: str, other: str) -> str:
    if other.startswith(f"{origin}/"):
        return other.removeprefix(f"{origin}/")
    return "twin" if other.startswith(f"{HOME}/") else "stranger"


def _changes(lab: Lab, origin: str, family: list[str]) -> dict[str, dict[str, float | None]]:
    data = lab.data[HOME]
    p = predictions(lab.zoo(origin), data.xte)
    right = float((p.argmax(1) == data.yte).double().mean())
    out: dict[str, dict[str, float | None]] = {}
    for other in family:
        q = predictions(lab.zoo(other), data.xte)
        if q.shape != p.shape or not other.startswith(HOME):  # other classes: nothing to compare
            out[other] = dict.fromkeys(TRUTHS)
            continue
        out[other] = {
            "accuracy lost": right - float((q.argmax(1) == data.yte).double().mean()),
            "disagreement": float((p.argmax(1) != q.argmax(1)).double().mean()),
            "Jensen-Shannon": float(_jensen_shannon(p, q).mean()),
        }
    return out


def _jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """The distance (root of the divergence, base 2) between the outputs of each sample."""
    p, q = p.double(), q.double()
    middle = (p + q) / 2

    def divergence(a: Tensor) -> Tensor:
        return torch.where(a > 0, a * (a / middle).log2(), 0.0).sum(1)

    return ((divergence(p) + divergence(q)) / 2).clamp_min(0).sqrt()


def _fidelity(rows: list[dict[str, Any]], origins: list[str], depth: int) -> list[dict[str, Any]]:
    """Spearman's ρ of 1 − score with what changed, within each origin's family."""
    groups = {
        "training": lambda kind: kind.startswith("epoch-"),
        "copies": lambda kind: (
            kind not in ("twin", "stranger", "moved") and not kind.startswith("epoch-")
        ),
        "copies and twins": lambda kind: (
            kind not in ("stranger", "moved") and not kind.startswith("epoch-")
        ),
    }
    out = []
    for group, belongs in groups.items():
        for kernel in KERNELS:
            for truth in TRUTHS:
                by_origin = [
                    _rho(
                        [r for r in rows if r["origin"] == o and belongs(r["kind"])],
                        kernel,
                        truth,
                        depth,
                    )
                    for o in origins
                ]
                values = np.stack(by_origin)  # (origins, 1 + layers)
                out.append({
                    "group": group, "kernel": kernel, "truth": truth,
                    "rho": _list(values[:, 0]), "mean": _list(values.mean(0)[:1])[0],
                    "by layer": _list(values.mean(0)[1:]),
                })  # fmt: skip
    return out


def _rho(rows: list[dict[str, Any]], kernel: str, truth: str, depth: int) -> np.ndarray:
    """Of the mean over layers, then of each layer; NaN where nothing varies."""
    scores = np.array([r["scores"]["natural"][kernel] for r in rows], float)
    scores = scores.reshape(len(rows), depth)  # no rows either: all may have been left out
    change = np.array([r[truth] for r in rows], float)
    columns = np.concatenate([np.nanmean(scores, 1, keepdims=True), scores], 1)
    return np.array([_spearman(1 - column, change) for column in columns.T])


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def _lineage(rows: list[dict[str, Any]], depth: int) -> list[dict[str, Any]]:
    def descends(kind: str) -> bool:
        return kind in ("tuned", "moved") or kind.startswith(("pruned-", "int"))

    out = []
    for probe in PROBES:
        for kernel in KERNELS:
            table = np.array([r["scores"][probe][kernel] for r in rows], float)
            kin = np.array([descends(r["kind"]) for r in rows])
            others = np.array([r["kind"] in ("twin", "distilled", "stranger") for r in rows])
            near = np.array([r["kind"] in ("twin", "distilled") for r in rows])
            row = {"probe": probe, "kernel": kernel}
            for name, against in (("all others", others), ("twins and distilled", near)):
                row[name] = [
                    auc(np.nan_to_num(table[kin, i]), np.nan_to_num(table[against, i]))
                    for i in range(depth)
                ]
            out.append(row)
    return out


def _list(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(v) else round(float(v), 5) for v in values]
