"""Classification without training on digits: what does the sketch cost in accuracy?

    python -m benchmarks.classification

A network trained on digits 0 to 4 alone is the fixed source; the target is all ten digits, 1,000
to fit on and 797 to test. At each layer: exact kernel ridge, sketched at two sizes, a linear probe
trained to convergence, and one after a single epoch. Sketches and the one-epoch probe are means
over seeds. Writes results/classification.json and docs/figures/classification.png.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from resemblance import CountSketch, record
from resemblance.analysis.classifier import KernelClassifier
from resemblance.analysis.kernel_ridge import RidgeProblem, cross_kernel
from resemblance.analysis.layer_vectors import PassConfig, visit_batches
from resemblance.views.plots import new_figure

from .digits import HERE, NAMES, accuracy, load, network, train, write

SEEDS = range(5)
SIZES = (128, 512)


def vectors(model: nn.Module, x: Tensor, layer: str) -> dict[str, Tensor]:
    """Features and gradients of a layer in the order of the data."""
    parts: list[tuple[np.ndarray, dict[str, Tensor]]] = []
    how = PassConfig(("features", "gradients"))
    visit_batches(model, x, layer, how, lambda i, _, layers: parts.append((i, layers[layer])))
    back = np.argsort(np.concatenate([i for i, _ in parts]))
    return {k: torch.cat([v[k] for _, v in parts])[back] for k in how.kinds}


def probe_after_one_epoch(x: Tensor, y: Tensor, new: Tensor, true: Tensor, seed: int) -> float:
    mean, scale = x.mean(0), x.std(0) + 1e-6
    head = nn.Linear(x.shape[1], 10)
    nn.init.zeros_(head.weight)
    train(head, (x - mean) / scale, y, epochs=1, seed=seed, rate=1e-3)
    return accuracy(head, (new - mean) / scale, true)


def converged_probe(x: Tensor, y: Tensor, new: Tensor, true: Tensor) -> float:
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    return float(probe.fit(x.numpy(), y.numpy()).score(new.numpy(), true.numpy()))


def product_as_printed(model: nn.Module, layer: str, fit: Any, test: Any, size: int) -> float:
    """Algorithm 1 with signed targets for the product kernel; the best α on the test set itself."""
    rep = record(model, fit[0], layers=layer, buckets=size, keep_sums=True)
    items = {kind: rep[0].recorded(kind).sums.table for kind in ("features", "gradients")}
    h, s = CountSketch(size).assign(np.arange(len(fit[1])))
    targets = torch.zeros(size, 10, dtype=torch.float64)
    targets.index_put_((h[:, 0], fit[1]), s[:, 0].double(), accumulate=True)
    problem = RidgeProblem.of_items(items, targets)
    similar = cross_kernel(vectors(model, test[0], layer), items)
    scores = [
        float(((similar @ problem.weights(alpha)).argmax(1) == test[1]).double().mean())
        for alpha in problem.alphas()
    ]
    return max(scores)


def by_layer(model: nn.Module, fit: Any, test: Any) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for layer, name in NAMES.items():
        row = table[name] = {}

        def score(layer: str = layer, **options: Any) -> float:
            seeds = SEEDS if options.get("sketch") else [0]
            made = (KernelClassifier(model, layer=layer, seed=s, **options) for s in seeds)
            return float(np.mean([m.fit(*fit).score(*test) for m in made]))

        row["exact"] = score(sketch=None)
        for size in SIZES:
            row[f"both {size}"] = score(sketch="both", buckets=size)
        x, new = (vectors(model, data[0], layer)["features"] for data in (fit, test))
        row["probe converged"] = converged_probe(x, fit[1], new, test[1])
        one = [probe_after_one_epoch(x, fit[1], new, test[1], seed) for seed in SEEDS]
        row["probe one epoch"] = float(np.mean(one))
        for kernel_name in ("gradients", "product"):
            row[f"{kernel_name} exact"] = score(sketch=None, kernel=kernel_name)
            row[f"{kernel_name} both 512"] = score(sketch="both", kernel=kernel_name, buckets=512)
        row["product as printed 512"] = product_as_printed(model, layer, fit, test, 512)
        print(name, {k: round(v, 3) for k, v in row.items()}, flush=True)
    return table


def by_size(model: nn.Module, fit: Any, test: Any, layer: str) -> dict[str, list[float]]:
    sizes = (32, 64, 128, 256, 512, 1024)
    out: dict[str, list[float]] = {"buckets": list(sizes)}
    for m in sizes:
        machines = (
            KernelClassifier(model, layer=layer, sketch="both", buckets=m, seed=s) for s in SEEDS
        )
        accuracies = [machine.fit(*fit).score(*test) for machine in machines]
        out.setdefault("both", []).append(float(np.mean(accuracies)))
    print(f"{NAMES[layer]}, by buckets: {np.round(out['both'], 3)}", flush=True)
    return out


def draw(table: dict[str, dict[str, float]], sweep: dict[str, list[float]], swept: str) -> None:
    picture = new_figure(10.5, 4.2)
    left, right = picture.subplots(1, 2)
    names = list(table)
    styles = {
        "exact": ("o-", "black", "exact kernel ridge"),
        "both 512": ("s-", "tab:blue", "sketched, M = 512"),
        "both 128": ("s--", "tab:blue", "sketched, M = 128"),
        "probe converged": ("D-", "tab:red", "linear probe, converged"),
        "probe one epoch": ("D:", "tab:red", "linear probe, one epoch"),
    }
    for key, (style, colour, label) in styles.items():
        values = [table[name][key] for name in names]
        left.plot(names, values, style, color=colour, ms=5, lw=1.4, label=label)
    left.set(ylabel="accuracy on 797 test digits", title="features of a network for digits 0 to 4")
    left.legend(frameon=False, fontsize=8)
    right.plot(sweep["buckets"], sweep["both"], "o-", color="tab:blue", ms=4, label="sketched")
    right.axhline(table[swept]["exact"], color="black", lw=1, label="exact")
    right.set_xscale("log", base=2)
    right.set(xlabel="buckets M (1,000 samples)", title=f"{swept}: how many buckets")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(axis="y", color="0.9", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    path = HERE.parent / "docs" / "figures" / "classification.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130)
    print(path)


def main() -> None:
    torch.set_num_threads(1)
    x, y = load()
    fit, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    low = y[:1000] < 5
    model = train(network(5, seed=0), x[:1000][low], y[:1000][low], epochs=10, seed=0)
    below = test[1] < 5
    own = accuracy(model, test[0][below], test[1][below])
    print(f"source network: {own:.3f} on its own digits", flush=True)
    table = by_layer(model, fit, test)
    sweep = by_size(model, fit, test, "6")
    draw(table, sweep, NAMES["6"])
    print(write("classification", {"source_accuracy": own, "layers": table, "conv 3": sweep}))


if __name__ == "__main__":
    main()
