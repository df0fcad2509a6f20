"""Figures from results: one function a picture, each of one JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from .scale import DATA, TITLES

PAIRS = {
    "cifar10-cifar10": ("CIFAR-10, CIFAR-10", "tab:blue", "-"),
    "cifar100-cifar100": ("CIFAR-100, CIFAR-100", "tab:orange", "-"),
    "svhn-svhn": ("SVHN, SVHN", "tab:green", "-"),
    "cifar10-cifar100": ("CIFAR-10, CIFAR-100", "tab:purple", "--"),
    "cifar10-svhn": ("CIFAR-10, SVHN", "tab:red", "--"),
    "cifar100-svhn": ("CIFAR-100, SVHN", "tab:brown", "--"),
}
COLOURS = {"cifar10": "tab:blue", "cifar100": "tab:orange", "svhn": "tab:green"}
KERNEL_COLOURS = {
    "features, centred": "tab:blue", "features, not centred": "lightskyblue",
    "gradients": "tab:red", "product": "tab:purple", "sum": "tab:green",
}  # fmt: skip
Result = dict[str, Any]


def draw(folder: Path) -> None:
    """Every figure whose result is there."""
    drawn = {
        "pairs": (similarity, others, task_auc), "identification": (identification,),
        "rivals": (rivals,), "maps": (maps,), "norms": (norms, ratios), "ridge": (ridge,),
        "options": (options,), "exact": (exact,), "fidelity": (fidelity, lineage),
        "pretrained": (pretrained,),
    }  # fmt: skip
    for name, functions in drawn.items():
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"no {path.name}, no figure of it")
            continue
        content = json.loads(path.read_text())
        for function in functions:
            for stem, figure in function(content):
                figure.savefig(folder / f"{stem}.png", dpi=110, bbox_inches="tight")
                plt.close(figure)
                print(f"drew {stem}.png", flush=True)


Pictures = Iterable[tuple[str, plt.Figure]]


def _short(layers: Sequence[str]) -> list[str]:
    return [layer.replace("blocks.", "") for layer in layers]


def _layers(axes: Axes, layers: Sequence[str]) -> None:
    names = _short(layers)
    step = 1 if len(names) <= 12 else 2
    axes.set_xticks(range(0, len(names), step), names[::step], fontsize=8)


def _curves(axes: Axes, scores: Result) -> None:
    for which, (label, colour, line) in PAIRS.items():
        mean, sd = np.array(scores[which]["mean"]), np.array(scores[which]["sd"])
        axes.errorbar(
            range(len(mean)), mean, sd, label=label, color=colour,
            linestyle=line, marker="o", markersize=3, linewidth=1.2, capsize=2,
        )  # fmt: skip


def _grid_of_curves(r: Result, kernels: Sequence[str], title: str) -> plt.Figure:
    columns = ("own data, Algorithm 1, CKA", "own data, Algorithm 1, NBS",
               "probe, blocks, CKA", "probe, buckets, NBS")  # fmt: skip
    figure, grid = plt.subplots(
        len(kernels), 4, figsize=(15, 3.1 * len(kernels)), sharex=True, sharey=True
    )
    for row, kernel in zip(grid, kernels, strict=True):
        for axes, column in zip(row, columns, strict=True):
            _curves(axes, r["settings"][f"{column}, {kernel}"]["scores"])
            _layers(axes, r["layers"])
            axes.set_ylim(0, 1.02)
            axes.grid(alpha=0.3)
        row[0].set_ylabel(f"{kernel}\nsimilarity")
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column, fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="upper center", ncols=6,
                  frameon=False, bbox_to_anchor=(0.5, 0.945), fontsize=9)  # fmt: skip
    figure.suptitle(title, y=0.97 if len(kernels) > 2 else 1.0)
    return figure


def similarity(r: Result) -> Pictures:
    yield "similarity", _grid_of_curves(
        r, ("features", "gradients", "product"),
        "Same layer of two independent ResNet-18s: mean and standard deviation over pairs",
    )  # fmt: skip


def others(r: Result) -> Pictures:
    yield "similarity-others", _grid_of_curves(
        r, ("sum", "elementwise", "transport"),
        "Other ways to join features and gradients: mean and standard deviation over pairs",
    )  # fmt: skip


def task_auc(r: Result) -> Pictures:
    wanted = {
        "probe, blocks, CKA, features": ("features, centred", "tab:blue", "-"),
        "probe, blocks, CKA, features, not centred": ("features, plain", "lightskyblue", "-"),
        "probe, blocks, CKA, gradients": ("gradients", "tab:red", "-"),
        "probe, blocks, CKA, product": ("product", "tab:purple", "-"),
        "probe, blocks, CKA, sum": ("sum", "tab:green", "-"),
        "own data, Algorithm 1, CKA, features": ("features, Algorithm 1, own", "tab:blue", ":"),
        "own data, Algorithm 1, CKA, product": ("product, Algorithm 1, own", "tab:purple", ":"),
    }
    figure, axes = plt.subplots(figsize=(7.5, 4))
    for name, (label, colour, line) in wanted.items():
        axes.plot(r["settings"][name]["auc"], line, color=colour, marker="o", label=label)
    _layers(axes, r["layers"])
    axes.set(xlabel="layer", ylabel="AUC", title="Telling “same training data” from “other”")
    axes.axhline(0.5, color="grey", linewidth=0.8)
    axes.legend(fontsize=8, frameon=False, loc="lower left")
    axes.grid(alpha=0.3)
    yield "task-identification", figure


def identification(r: Result) -> Pictures:
    rows = {k: v for k, v in r.items() if k != "environment"}
    names = sorted(rows, key=lambda k: rows[k]["accuracy"])
    figure, axes = plt.subplots(figsize=(8, 0.3 * len(names) + 1.2))
    axes.barh(names, [100 * rows[n]["accuracy"] for n in names],
              xerr=[100 * rows[n]["sd over pairs"] for n in names],
              color="tab:blue", ecolor="black", capsize=2)  # fmt: skip
    for i, name in enumerate(names):
        axes.text(
            1, i, f"{100 * rows[name]['accuracy']:.1f}", va="center", color="white", fontsize=8
        )
    axes.set(xlim=(0, 105), xlabel="layers found in a twin, % (bar: standard deviation over pairs)",
             title="Layer identification")  # fmt: skip
    yield "layer-identification", figure


def rivals(r: Result) -> Pictures:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), width_ratios=(1, 1.6))
    table = np.zeros((3, 3))
    text = [["" for _ in DATA] for _ in DATA]
    for which, score in r["Task2Vec cosine"].items():
        i, j = (DATA.index(part) for part in which.split("-"))
        for a, b in ((i, j), (j, i)):
            table[a, b] = score["mean"][0]
            text[a][b] = f"{score['mean'][0]:.2f}\n± {score['sd'][0]:.2f}"
    left.imshow(table, vmin=0, vmax=1, cmap="viridis")
    for i in range(3):
        for j in range(3):
            left.text(j, i, text[i][j], ha="center", va="center",
                      color="white" if table[i, j] < 0.6 else "black")  # fmt: skip
    names = [TITLES[d] for d in DATA]
    left.set_xticks(range(3), names)
    left.set_yticks(range(3), names)
    left.set_title("Task2Vec, cosine of networks")
    _curves(right, r["Fisher-Rao distance"])
    _layers(right, r["layers"])
    right.set(xlabel="layer", ylabel="|a − b| / √(ab)", title="Fisher-Rao distance")
    right.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    right.grid(alpha=0.3)
    yield "rivals", figure


def maps(r: Result) -> Pictures:
    for setting, stem in (("probe, blocks", "probe"), ("own data, Algorithm 1", "own")):
        for networks in ("resnet18-resnet18", "resnet50-resnet50", "resnet18-resnet50"):
            found = [m for m in r["maps"] if m["networks"] == networks and m["setting"] == setting]
            pairs = list(dict.fromkeys(m["data"] for m in found))
            kernels = list(dict.fromkeys(m["kernel"] for m in found))
            figure, grid = plt.subplots(
                len(kernels), len(pairs), figsize=(2.3 * len(pairs) + 1, 2.5 * len(kernels) + 0.6),
                sharex=True, sharey=True, layout="constrained",
            )  # fmt: skip
            rows, columns = networks.split("-")
            for m in found:
                axes = grid[kernels.index(m["kernel"]), pairs.index(m["data"])]
                image = axes.imshow(m["scores"], vmin=0, vmax=1, cmap="magma", origin="lower",
                                    aspect="auto")  # fmt: skip
                a, b = (TITLES[d] for d in m["data"].split("-"))
                if m["kernel"] == kernels[0]:
                    axes.set_title(f"{a}\n{b} →", fontsize=8)
                for axis, kind in ((axes.xaxis, columns), (axes.yaxis, rows)):
                    names = _short(r["layers"][kind])
                    step = 3
                    axis.set_ticks(range(0, len(names), step), names[::step], fontsize=7)
            for row, kernel in zip(grid, kernels, strict=True):
                row[0].set_ylabel(f"{kernel}\n{rows} layer", fontsize=9)
            for axes in grid[-1]:
                axes.set_xlabel(f"{columns} layer", fontsize=8)
            figure.colorbar(image, ax=grid, shrink=0.6, label="CKA")
            figure.suptitle(f"All pairs of layers: {setting}", fontsize=11)
            yield f"maps-{networks}-{stem}", figure


def _norm_grid(r: Result, columns: dict[str, str], title: str) -> plt.Figure:
    figure, grid = plt.subplots(
        2 * len(columns),
        3,
        figsize=(12, 2.7 * 2 * len(columns)),
        sharey="row",
        layout="constrained",
    )
    at = [(a, c) for c in columns for a in ("resnet18", "resnet50")]
    for row, (architecture, column) in zip(grid, at, strict=True):
        for axes, home in zip(row, DATA, strict=True):
            for data in (*(f"train:{d}" for d in DATA), f"test:{home}"):
                _norm(axes, r, f"{architecture}, {home} on {data}, blocks", column, data)
            axes.set_yscale("log")
            _layers(axes, r["layers"][architecture])
            axes.grid(alpha=0.3)
            axes.set_title(f"{architecture} from {TITLES[home]}", fontsize=9)
        row[0].set_ylabel(columns[column])
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    handles = [line for axes in grid[0] for line in axes.get_legend_handles_labels()[0]]
    labels = [label for axes in grid[0] for label in axes.get_legend_handles_labels()[1]]
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(title)
    return figure


def _norm(axes: Axes, r: Result, key: str, column: str, data: str) -> None:
    content = r["norms"][key][column]
    depth = len(content["mean"]) if column.startswith(("mean", "norm")) else 1
    mean, sd = (depth * np.array(content[k], float) for k in ("mean", "sd"))
    if not sd.any():  # one network: how sure it is of itself
        sd = depth * np.array(content["stderr"], float)
    kind, home = data.split(":")
    axes.errorbar(
        range(len(mean)), mean, np.minimum(sd, 0.9 * mean), color=COLOURS[home], capsize=2,
        linestyle="-" if kind == "train" else ":", marker="o", markersize=3,
        label=f"D_T: {TITLES[home]}" + ("" if kind == "train" else ", test images"),
    )  # fmt: skip


def norms(r: Result) -> Pictures:
    yield "norms", _norm_grid(
        r,
        {"mean_embedding": "‖μ‖ · layers", "norm_frobenius": "‖K‖_F / N² · layers",
         "norm_trace": "√Tr K / N · layers"},
        "A network from D_S on images of D_T, from exact blocks\n(bars: standard deviation over "
        "networks; for the one ResNet-50, standard errors)",
    )  # fmt: skip


def ratios(r: Result) -> Pictures:
    yield "ratios", _norm_grid(
        r,
        {"ratio_frobenius": "‖μ‖ / (‖K‖_F / N²)", "ratio_trace": "‖μ‖ / (√Tr K / N)"},
        "‖μ‖ over the normalisers of CKA and of NBS, from exact blocks",
    )  # fmt: skip


def pretrained(r: Result) -> Pictures:
    versions = sorted({row["version"] for row in r["rows"]})
    figure, grid = plt.subplots(1, len(versions), figsize=(4.3 * len(versions), 3.6), sharey=True,
                                squeeze=False, layout="constrained")  # fmt: skip
    for axes, version in zip(grid[0], versions, strict=True):
        for row in r["rows"]:
            if row["version"] == version:
                mean, error = (np.array(row[k], float) for k in ("log_ratio", "log_ratio_stderr"))
                axes.errorbar(range(len(mean)), mean, 2 * error, color=COLOURS[row["data"]],
                              marker="o", markersize=3, label=TITLES[row["data"]])  # fmt: skip
        axes.set(title=f"EfficientNet-Lite{version}", xlabel="block")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("log ‖μ‖ / (‖K‖_F / N²)\n(bars: two standard errors)")
    grid[0, 0].legend(frameon=False)
    yield "pretrained", figure
    figure, grid = plt.subplots(1, len(r["tasks"]), figsize=(13, 3.8), layout="constrained")
    for axes, task in zip(grid, r["tasks"], strict=True):
        for kernel, colour in (("features", "tab:blue"), ("product", "tab:purple")):
            axes.plot(task["ridge"][kernel], marker="o", color=colour,
                      label=f"kernel ridge, {kernel}")  # fmt: skip
        _probes(axes, task)
        axes.set(xlabel="block", ylim=(0, 1), title=f"EfficientNet-Lite0, {TITLES[task['target']]}")
    grid[0].set_ylabel("accuracy on left-out images")
    grid[-1].legend(fontsize=8, frameon=False)
    yield "pretrained-ridge", figure


def _probes(axes: Axes, task: Result) -> None:
    for name, line in (("converged", "--"), ("one epoch", ":")):
        axes.axhline(task[f"probe, {name}"], color="black", linestyle=line,
                     label=f"linear probe, {name}")  # fmt: skip
    axes.grid(alpha=0.3)


def ridge(r: Result) -> Pictures:
    figure, grid = plt.subplots(1, len(r["tasks"]), figsize=(13, 3.8), layout="constrained")
    for axes, task in zip(grid, r["tasks"], strict=True):
        for kernel, colour in (("features", "tab:blue"), ("gradients", "tab:red"),
                               ("product", "tab:purple")):  # fmt: skip
            axes.plot([row["accuracy"] for row in task["ridge"][kernel]], marker="o", color=colour,
                      label=f"kernel ridge, {kernel}")  # fmt: skip
        _probes(axes, task)
        _layers(axes, r["layers"])
        axes.set(xlabel="layer", ylim=(0, 1),
                 title=f"{TITLES[task['source']]} network on {TITLES[task['target']]}")  # fmt: skip
    grid[0].set_ylabel("accuracy on test images")
    grid[-1].legend(fontsize=8, frameon=False)
    yield "ridge", figure


OPTIONS = {
    "sketch": "default: M = 512, t = 1, β = 0.5", "few buckets": "M = 128",
    "four buckets a sample": "t = 4", "beta 0": "β = 0", "beta 0.25": "β = 0.25",
    "beta 0.75": "β = 0.75", "labels": "labels in place of predictions",
}  # fmt: skip


def options(r: Result) -> Pictures:
    rows = [o for o in r["options"] if o["setting"].startswith("own") and o["kernel"] == "product"]
    figure, grid = plt.subplots(2, (len(rows) + 1) // 2, figsize=(16, 6.2), sharex=True,
                                sharey=True, layout="constrained")  # fmt: skip
    for axes in grid.flat[len(rows) :]:
        axes.axis("off")
    for axes, row in zip(grid.flat, rows, strict=False):
        _curves(axes, row["scores"])
        axes.set_title(OPTIONS.get(row["option"], row["option"]), fontsize=9)
        _layers(axes, r["layers"])
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("CKA")
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle("Options of Algorithm 1: product kernel, own data")
    yield "options", figure


def exact(r: Result) -> Pictures:
    figure, axes = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for side, index in zip(axes, ("CKA", "NBS"), strict=True):
        rows = r[index]
        estimators = list(dict.fromkeys(row["estimator"] for row in rows))
        for i, kernel in enumerate(("features", "gradients", "product")):
            values = [
                np.mean([row["mean absolute"] for row in rows
                         if row["estimator"] == e and row["kernel"] == kernel])
                for e in estimators
            ]  # fmt: skip
            side.bar(np.arange(len(estimators)) + 0.27 * (i - 1), values, 0.25, label=kernel,
                     color=("tab:blue", "tab:red", "tab:purple")[i])  # fmt: skip
        side.set_yscale("log")
        side.set_xticks(range(len(estimators)), estimators, rotation=25, ha="right", fontsize=8)
        n = r["samples"] if index == "CKA" else r["NBS samples"]
        side.set(ylabel="mean absolute error", title=f"{index} against whole kernels, N = {n:,}")
        side.grid(alpha=0.3, axis="y")
    axes[0].legend(frameon=False)
    yield "accuracy", figure


def fidelity(r: Result) -> Pictures:
    kernels = ("features, centred", "gradients", "product")
    figure, grid = plt.subplots(1, 3, figsize=(14, 4.3), sharex=True, sharey=True,
                                layout="constrained")  # fmt: skip
    groups = {
        "checkpoint": ("tab:grey", "."), "pruned": ("tab:red", "v"), "rounded": ("tab:orange", "s"),
        "tuned": ("tab:green", "^"), "distilled": ("tab:purple", "D"), "twin": ("tab:blue", "o"),
    }  # fmt: skip
    for axes, kernel in zip(grid, kernels, strict=True):
        for group, (colour, marker) in groups.items():
            rows = [n for n in r["networks"] if _group(n["kind"]) == group]
            means = [np.nanmean(np.array(n["scores"]["natural"][kernel], float)) for n in rows]
            axes.scatter([n["disagreement"] for n in rows], means, s=28, color=colour,
                         marker=marker, label=group)  # fmt: skip
        axes.set(title=kernel, xlabel="share of predictions that differ from the origin’s")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("CKA with the origin, mean over layers")
    grid[-1].legend(frameon=False, fontsize=8)
    yield "fidelity", figure


def _group(kind: str) -> str:
    for start, name in (("epoch-", "checkpoint"), ("pruned-", "pruned"), ("int", "rounded")):
        if kind.startswith(start):
            return name
    return kind


def lineage(r: Result) -> Pictures:
    figure, grid = plt.subplots(1, 2, figsize=(12, 4), sharey=True, layout="constrained")
    for axes, probe in zip(grid, ("natural", "noise"), strict=True):
        for row in r["lineage"]:
            if row["probe"] == probe:
                axes.plot(row["twins and distilled"], marker="o", label=row["kernel"],
                          color=KERNEL_COLOURS[row["kernel"]])  # fmt: skip
        _layers(axes, r["layers"])
        axes.axhline(0.5, color="grey", linewidth=0.8)
        axes.set(xlabel="layer", title=f"{probe} probe")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("AUC: descendants above\ntwins and distilled")
    grid[1].legend(frameon=False, fontsize=8)
    yield "lineage", figure
