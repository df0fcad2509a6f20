"""The numbers of README.md that are counts or pickings from results/*.json, printed anew.

python -m reproduction.claims [RESULTS_DIR]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import resemblance as rs

from .scale import DATA

RESULTS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
OWN, PROBE = "own data, Algorithm 1", "probe, blocks"


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def verdict(row: dict[str, Any]) -> str:
    wishes = ("same above other", "near above far", "CIFAR-10/SVHN above CIFAR-100/SVHN")
    shares = "  ".join(f"{sum(row[wish])}/{len(row[wish])}" for wish in wishes)
    return f"{shares}  AUC {min(row['auc']):.3f}"


def pairs() -> None:
    print("(1), (b): the three wishes at so many layers, AUC at the worst")
    for name, row in result("pairs")["settings"].items():
        print(f"  {name:<52}{verdict(row)}")


def identification() -> None:
    print("(a): layers found in a twin")
    for name, row in result("identification").items():
        if name != "environment":
            print(f"  {name:<32}{row['accuracy']:.3f}  {row['ordered pairs']} pairs")


def rivals() -> None:
    print("(2), (3)")
    r = result("rivals")
    for name, auc in r["auc"].items():
        print(f"  {name}: AUC {np.round(auc, 3).tolist()}")
    near, far = (r["Fisher-Rao distance"][f"cifar10-{other}"]["mean"] for other in DATA[:0:-1])
    print(f"  CIFAR-10 nearer to SVHN than to CIFAR-100 at {sum(np.less(near, far))} layers")
    norm = {home: np.array(v["mean"]) for home, v in r["Fisher-Rao norm"].items()}
    apart = norm["cifar100"] / np.stack([norm["cifar10"], norm["svhn"]])
    print(f"  norms of CIFAR-100 over the others': {apart.min():.1f} to {apart.max():.1f}")


def maps() -> None:
    print("(4)")
    found = {
        (m["networks"], m["data"], m["kernel"], m["setting"]): np.array(m["scores"])
        for m in result("maps")["maps"]
    }
    small = "resnet18-resnet18"
    for home in DATA:
        twins = found[small, f"{home}-{home}", "product", OWN]
        beside = (np.diag(twins, 1) + np.diag(twins, -1)) / 2
        print(f"  {home} twins, neighbouring layers: {beside.round(2).tolist()}")
    early = (
        found[small, "cifar10-cifar100", "product", OWN].T,
        found[small, "cifar100-svhn", "product", OWN],
    )
    for other, m in zip(("CIFAR-10", "SVHN"), early, strict=True):
        print(f"  CIFAR-100 with {other} to block 4: least {m[:, :6].min():.2f}, mean "
              f"{m[:, :6].mean():.2f}; later {m[:, 6:].mean():.2f}")  # fmt: skip
    for home in DATA[:2]:
        last = found[small, f"{home}-svhn", "product", OWN][-2:, -2:].max()
        print(f"  last layers of SVHN with those of {home}: at most {last:.2f}")
    other = [
        m.max() for (_, data, kernel, setting), m in found.items()
        if (kernel, setting) == ("product", PROBE) and len(set(data.split("-"))) == 2
    ]  # fmt: skip
    print(f"  product of different tasks on the probe: at most {max(other):.2f}")
    for home in DATA:
        for kernel in ("features", "product"):
            m = found["resnet18-resnet50", f"{home}-{home}", kernel, PROBE]
            print(
                f"  {home}, {kernel}: ResNet-50 layer of each of ResNet-18 {m.argmax(1).tolist()}"
            )
    rep = rs.load(RESULTS / "cifar100_resnet50_0.rsm")
    few = rs.compare(rep, rep, kernel="features").scores[10]
    many = found["resnet50-resnet50", "cifar100-cifar100", "features", PROBE][10]
    print(f"  CIFAR-100 ResNet-50, block 9: probe {many.round(2).tolist()}")
    print(f"  {'':>30}summary {few.round(2).tolist()}")


def norms() -> None:
    print("(5), (6): share of layers, over three sources")
    tables = result("norms")["norms"]

    def of(net: str, home: str, data: str, how: str, column: str) -> np.ndarray:
        return np.array(tables[f"{net}, {home} on {data}, {how}"][column]["mean"], float)

    for net in ("resnet18", "resnet50"):
        for how in ("blocks", "paper"):
            print(f"  {net}, {how}")
            for kind in ("train", "test"):
                for column, least in (("mean_embedding", True), ("ratio_frobenius", False)):
                    right = []
                    for home in DATA:
                        own = of(net, home, f"{kind}:{home}", how, column)
                        rest = [of(net, home, f"train:{d}", how, column) for d in DATA if d != home]
                        right += list(own < np.min(rest, 0) if least else own > np.max(rest, 0))
                    word = "smallest" if least else "largest"
                    print(f"    {column} {word} on own {kind} images {sum(right)}/{len(right)}")
            for column in ("mean_embedding", "norm_frobenius", "norm_trace"):
                far, near = (of(net, "cifar10", f"train:{d}", how, column) for d in DATA[:0:-1])
                print(f"    {column} of SVHN above CIFAR-100 {sum(far > near)}/{len(far)}")
            top = [list(of(net, home, "train:svhn", how, "ratio_trace") > np.max(
                [of(net, home, f"train:{d}", how, "ratio_trace") for d in DATA[:2]], 0))
                for home in DATA]  # fmt: skip
            print(f"    ratio_trace largest on SVHN {sum(map(sum, top))}/{sum(map(len, top))}")
    for home in DATA:
        for data in DATA:
            a, b = (of(net, home, f"train:{data}", "blocks", "mean_embedding")
                    for net in ("resnet18", "resnet50"))  # fmt: skip
            print(f"  {home} on {data}: ResNet-50 over ResNet-18 {b.mean() / a.mean():.2f}, pooled "
                  f"{b[-1] / a[-1]:.2f}; ResNet-18 pooled {a[-1]:.2f}")  # fmt: skip


def ridge() -> None:
    print("(8)")
    for task in result("ridge")["tasks"]:
        probes = [round(task[f"probe, {which}"], 2) for which in ("one epoch", "converged")]
        print(f"  {task['source']} on {task['target']}: probes {probes}")
        for kernel, rows in task["ridge"].items():
            print(f"    {kernel}: {[round(row['accuracy'], 2) for row in rows]}")


def options() -> None:
    print("(9)")
    for row in result("options")["options"]:
        what = f"{row['setting']}, {row['option']}, {row['kernel']}"
        print(f"  {what:<58}moves {row['difference']['mean absolute']:.3f}  {verdict(row)}")


if __name__ == "__main__":
    for part in (pairs, identification, rivals, maps, norms, ridge, options):
        part()
