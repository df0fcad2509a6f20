"""Whether error bars hold on trained networks: twins on handwritten digits, trained for long.

    OMP_NUM_THREADS=1 python -m benchmarks.coverage_digits [--draws 200] [--epochs 150]

Networks that are sure of themselves put their gradients on few samples, which is hard on error
bars. Two twins are trained on all 1,797 digits, so that these are training images to both. Features
and gradients are taken in float64 by plain autograd, and kernels compared in plain float64. Then
all images are recorded again and again with another seed, that is in other blocks, and intervals
are asked to cover the score of all of them; and draws of 500 images, whose kernels are kept whole,
to cover the mean score of such draws. (These are drawn without replacement, so that they vary by a
seventh less than images drawn anew would.)
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

import resemblance as rs
from resemblance import Representation

from . import digits

KERNELS = ("features", "gradients", "product", "sum")
LAYERS = ("3", "10")
BETA = 0.5
Vectors = dict[str, tuple[np.ndarray, np.ndarray]]  # features and gradients by layer


def vectors(model: nn.Sequential, x: torch.Tensor) -> Vectors:
    """Features, and gradients of the tempered loss, of every sample in float64."""
    value, seen = x.double(), {}
    for name, module in model.double().named_children():
        value = module(value)
        if name in LAYERS:
            seen[name] = value
    with torch.no_grad():
        wanted = torch.softmax(BETA * value, 1)
    loss = -(wanted * torch.log_softmax(value, 1)).sum()
    found = torch.autograd.grad(loss, list(seen.values()))
    return {
        name: (f.detach().flatten(1).numpy(), g.flatten(1).numpy())
        for (name, f), g in zip(seen.items(), found, strict=True)
    }


def exact(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...], kernel: str) -> float:
    """CKA of two layers' kernels, in plain float64; features are centred."""
    one, two = (kernel_of(*pair, kernel) for pair in (a, b))
    return float((one * two).sum() / np.sqrt((one**2).sum() * (two**2).sum()))


def kernel_of(f: np.ndarray, g: np.ndarray, kernel: str) -> np.ndarray:
    if kernel == "features":
        f = f - f.mean(0)
        return f @ f.T
    kf, kg = f @ f.T, g @ g.T
    if kernel == "gradients":
        return kg
    return kf * kg if kernel == "product" else kf / np.trace(kf) + kg / np.trace(kg)


def recorded(nets: list[Vectors], rows: np.ndarray, seed: int) -> list[Representation]:
    return [
        rs.record_arrays(
            {name: f[rows] for name, (f, _) in net.items()},
            {name: g[rows] for name, (_, g) in net.items()},
            data_id="digits",
            seed=seed,
        )
        for net in nets
    ]


def compared(pair: list[Representation], kernel: str) -> dict[str, Any]:
    """Score, interval, standard error and whether a warning came, layer by layer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = rs.compare(*pair, kernel=kernel)  # type: ignore[arg-type]
    low, high = found.interval()
    return {
        "score": np.diag(found.scores),
        "stderr": np.diag(found.stderr),
        "low": np.diag(low),
        "high": np.diag(high),
        "warned": any("cannot be trusted" in str(w.message) for w in caught),
        "estimator": found.estimator,
    }


def summary(draws: list[dict[str, Any]], truth: np.ndarray) -> dict[str, Any]:
    """How the draws of one kernel did; truth (layers,) or (draws, layers)."""
    score, low, high, stderr = (
        np.stack([draw[key] for draw in draws]) for key in ("score", "low", "high", "stderr")
    )
    slack = 1e-6
    covered = (low - slack <= truth) & (truth <= high + slack)
    error = score - truth
    return {
        "score": np.round(score.mean(0), 4).tolist(),
        "rmse": np.round(np.sqrt((error**2).mean(0)), 6).tolist(),
        "stderr": np.round(stderr.mean(0), 6).tolist(),
        "coverage": np.round(covered.mean(0), 3).tolist(),
        "warned": round(float(np.mean([draw["warned"] for draw in draws])), 3),
        "estimators": sorted({draw["estimator"] for draw in draws}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=150)
    options = parser.parse_args()
    x, y = digits.load()
    twins = [digits.network(10, seed) for seed in (1, 2)]
    for seed, net in enumerate(twins, 1):
        digits.train(net, x, y, epochs=options.epochs, seed=seed)
    nets = [vectors(net, x) for net in twins]
    n_eff = {}
    for name in LAYERS:
        norms = (nets[0][name][1] ** 2).sum(1)
        n_eff[name] = round(float(norms.sum() ** 2 / (norms**2).sum()), 1)
    print("n_eff of gradients, of 1,797:", n_eff, flush=True)
    rng, result = np.random.default_rng(0), {"epochs": options.epochs, "n_eff": n_eff, "rows": []}
    every = np.arange(len(x))
    subsets = [rng.permutation(len(x))[:500] for _ in range(options.draws)]
    many_pairs = [recorded(nets, every, seed) for seed in range(options.draws)]
    few_pairs = [recorded(nets, rows, seed) for seed, rows in enumerate(subsets)]
    for kernel in KERNELS:
        whole = np.array([exact(nets[0][name], nets[1][name], kernel) for name in LAYERS])
        many = [compared(pair, kernel) for pair in many_pairs]
        few = [compared(pair, kernel) for pair in few_pairs]
        mean = np.mean([draw["score"] for draw in few], axis=0)  # exact, as kernels are whole
        for samples, draws, truth in ((len(x), many, whole), (500, few, mean)):
            row = {"kernel": kernel, "samples": samples, "layers": list(LAYERS)}
            row.update(summary(draws, truth))
            result["rows"].append(row)
            print(row, flush=True)
    digits.write("coverage_digits", result)


if __name__ == "__main__":
    main()
