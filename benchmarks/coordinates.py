"""How exact changes in shared coordinates are, and who is said to share them: networks on digits.

    OMP_NUM_THREADS=1 python -m benchmarks.coordinates [--origins 3] [--sketches 20] [--twins 8]

Networks are trained on half of 1,797 images of handwritten digits, and copies of them rounded,
pruned or trained on. Features and gradients of the other half are taken in float64 by plain
autograd, which gives the true change and cosine of each layer. They are recorded again and again
with another seed, that is in another sketch, and estimates are set against the truth. Then
networks that were trained apart, or whose units were exchanged, are asked whether they share
coordinates, which they do not.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance import Representation

from . import digits

LAYERS = tuple(digits.NAMES)
BETA = 0.5
FEWEST_DIRECTIONS = 10  # of a change, from which on errors are promised to be small
Vectors = dict[str, tuple[np.ndarray, np.ndarray]]  # features and gradients by layer


def rounded(bits: int) -> Callable[[nn.Sequential], nn.Sequential]:
    """Weights rounded to 2^bits equal steps."""

    def change(weight: Tensor) -> Tensor:
        step = weight.abs().max() / (2 ** (bits - 1) - 1)
        return (weight / step).round() * step

    return lambda net: _with_weights(net, change)


def pruned(share: float) -> Callable[[nn.Sequential], nn.Sequential]:
    """The smallest weights of each layer set to zero."""

    def change(weight: Tensor) -> Tensor:
        limit = weight.abs().flatten().kthvalue(int(share * weight.numel())).values
        return weight.where(weight.abs() > limit, 0)

    return lambda net: _with_weights(net, change)


def tuned(net: nn.Sequential) -> nn.Sequential:
    """Trained on, to tell odd digits from even ones, with a new head."""
    x, y = digits.load()
    out = copy.deepcopy(net)
    out[-1] = digits.network(2, seed=9)[-1]
    half = len(x) // 2
    return digits.train(out, x[:half], y[:half] % 2, epochs=4, seed=9, rate=1e-3)  # type: ignore[return-value]


def _with_weights(net: nn.Sequential, change: Callable[[Tensor], Tensor]) -> nn.Sequential:
    net = copy.deepcopy(net)
    for weight in net.parameters():
        if weight.ndim > 1:  # biases stay as they are
            weight.data = change(weight.data)
    return net


CHANGES: dict[str, Callable[[nn.Sequential], nn.Sequential]] = {
    "int8": rounded(8),
    "int6": rounded(6),
    "int4": rounded(4),
    "20 % pruned": pruned(0.2),
    "50 % pruned": pruned(0.5),
    "80 % pruned": pruned(0.8),
    "tuned": tuned,
}


def trained(seed: int, epochs: int) -> nn.Sequential:
    """A network that learned the first half of the images."""
    x, y = digits.load()
    half = len(x) // 2
    net = digits.network(10, seed)
    digits.train(net, x[:half], y[:half], epochs=epochs, seed=seed)
    return net


def vectors(model: nn.Sequential) -> Vectors:
    """Features, and gradients of the tempered loss, of the second half in float64."""
    x, _ = digits.load()
    value, seen = x[len(x) // 2 :].double(), {}
    for name, module in copy.deepcopy(model).double().named_children():
        value = module(value)
        if name in LAYERS:
            seen[name] = value
    with torch.no_grad():
        wanted = torch.softmax(BETA * value, 1)
    loss = -(wanted * torch.log_softmax(value, 1)).sum()
    found = torch.autograd.grad(loss, list(seen.values()))
    return {
        name: (f.detach().numpy(), g.numpy())
        for (name, f), g in zip(seen.items(), found, strict=True)
    }


def exchanged(net: nn.Sequential, seed: int) -> nn.Sequential:
    """The same network with the units of each layer in another order."""
    net, rng = copy.deepcopy(net), np.random.default_rng(seed)
    layers = [module for module in net if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer, following in itertools.pairwise(layers):
        order = torch.from_numpy(rng.permutation(len(layer.weight)))
        layer.weight.data = layer.weight.data[order]
        layer.bias.data = layer.bias.data[order]  # type: ignore[union-attr]
        shape = following.weight.shape
        by_unit = following.weight.data.reshape(shape[0], len(order), -1)
        following.weight.data = by_unit[:, order].reshape(shape)
    return net


@functools.lru_cache(maxsize=1)  # many copies are set beside one origin
def origin(net: nn.Sequential, sketches: int) -> list[Representation]:
    """A network in many sketches."""
    return [recorded(net, seed) for seed in range(sketches)]


def recorded(net: nn.Sequential, seed: int) -> Representation:
    x = digits.load()[0].to(net[0].weight.dtype)  # type: ignore[arg-type]
    return rs.record(
        net, x[len(x) // 2 :], layers=list(LAYERS), beta=BETA, seed=seed, data_id="digits"
    )


def truth(a: Vectors, b: Vectors, layers: Sequence[str] = LAYERS) -> dict[str, np.ndarray]:
    """Decibels, cosine, share of the mean and effective rank of the change: (kinds, layers)."""
    found = [[_truth(a[name][i], b[name][i], centre=i == 0) for name in layers] for i in (0, 1)]
    keys = ("decibels", "cosine", "mean_share", "rank")
    return dict(zip(keys, np.moveaxis(np.array(found), -1, 0), strict=True))


def _truth(x: np.ndarray, y: np.ndarray, *, centre: bool) -> tuple[float, ...]:
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    moved = x - y
    total = (moved**2).sum()
    if not total:
        return np.inf, 1.0, 0.0, 0.0
    decibels = -10 * np.log10(total / (x**2).sum())
    share = len(x) * (moved.mean(0) ** 2).sum() / total
    kernel = moved @ moved.T if len(moved) < moved.shape[1] else moved.T @ moved
    if centre:
        x, y = x - x.mean(0), y - y.mean(0)
    cosine = (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())
    return decibels, cosine, share, np.trace(kernel) ** 2 / (kernel**2).sum()


def accuracy(a: nn.Sequential, b: nn.Sequential, sketches: int) -> list[dict[str, Any]]:
    """Estimates of one change in many sketches against the truth, layer by layer."""
    true = truth(vectors(a), vectors(b))
    found = [rs.coordinates(a_seed, recorded(b, i)) for i, a_seed in enumerate(origin(a, sketches))]
    rows = []
    for i, j in np.ndindex(2, len(LAYERS)):
        row: dict[str, Any] = {"kind": found[0].kinds[i], "layer": digits.NAMES[LAYERS[j]]}
        row["rank"] = float(true["rank"][i, j])
        for column in ("decibels", "cosine", "mean_share"):
            row[column] = error_of(column, found, true[column][i, j], (i, j))
        row["shared"] = float(np.mean([x.shared_layers[j] for x in found]))
        row["chance_high"] = float(np.mean([x.chance_high[j] for x in found]))
        rows.append(row)
    return rows


def error_of(
    column: str, found: Sequence[Any], true: np.ndarray | float, at: tuple[int, int]
) -> dict[str, float]:
    """Estimates of one number of one layer against the truth."""
    error = np.array([x[column][at] for x in found]) - true
    stated = np.array([x[f"{column}_stderr"][at] for x in found])
    return {
        "truth": float(np.mean(true)),
        "bias": float(error.mean()),
        "rmse": float((error**2).mean() ** 0.5),
        "stderr": float((stated**2).mean() ** 0.5),
        # estimates hold vectors in float32
        "covered": float((abs(error) <= 2 * stated + 1e-6).mean()),
    }


def alarms(pairs: list[tuple[nn.Sequential, nn.Sequential]], sketches: int) -> dict[str, Any]:
    """How often networks that share no coordinates are said to, and how near they come."""
    count, nearest, high = 0, -np.inf, []
    for a, b in pairs:
        for seed in range(sketches):
            found = rs.coordinates(recorded(a, seed), recorded(b, seed))
            count += found.shared
            nearest = max(nearest, float(np.nanmax(found.cosine[0] - found.chance_high)))
            high.append(found.cosine[0])
    return {
        "comparisons": len(pairs) * sketches,
        "alarms": count,
        "largest cosine": np.max(high, 0).round(3).tolist(),
        "nearest to an alarm": round(nearest, 3),
    }


def roundings(net: nn.Sequential) -> dict[str, Any]:
    """Decibels of features, layer by layer, of one network in two precisions, and the floor."""
    out, origin = {}, recorded(net, 0)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        found = rs.coordinates(origin, recorded(copy.deepcopy(net).to(dtype), 0))
        decibels = np.round(found.decibels, 1).tolist()
        out[str(dtype)] = dict(zip(found.kinds, decibels, strict=True), floor=round(found.floor, 1))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--origins", type=int, default=3)
    parser.add_argument("--sketches", type=int, default=20)
    parser.add_argument("--twins", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    nets = [trained(seed, options.epochs) for seed in range(max(options.origins, options.twins))]
    rows = []
    for number, net in enumerate(nets[: options.origins]):
        copies = {name: change(net) for name, change in CHANGES.items()}
        copies["twin"] = nets[(number + 1) % len(nets)]
        copies["exchanged units"] = exchanged(net, number)
        for name, other in copies.items():
            for row in accuracy(net, other, options.sketches):
                rows.append({"origin": number, "change": name, **row})
            print(number, name, flush=True)
    twins = list(itertools.combinations(nets[: options.twins], 2))
    others = [(a, exchanged(a, seed)) for a in nets[: options.twins] for seed in range(5)]
    result = {
        "options": vars(options),
        "overall": overall(rows),
        "alarms": {"twins": alarms(twins, 2), "exchanged units": alarms(others, 2)},
        "float32 against": roundings(nets[0]),
        "rows": short(rows),
    }
    print(result["overall"], result["alarms"], sep="\n")
    digits.write("coordinates", result)


def overall(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of changes of many directions and of few, and coverage."""
    out: dict[str, Any] = {}
    for column in ("decibels", "cosine", "mean_share"):
        for what, many in (("many directions", True), ("few directions", False)):
            some = [r[column] for r in rows if (r["rank"] >= FEWEST_DIRECTIONS) == many]
            if some:
                out[f"{column}, {what}"] = {
                    "cells": len(some),
                    "rmse": round(float(np.mean([r["rmse"] ** 2 for r in some]) ** 0.5), 4),
                    "largest rmse": round(max(r["rmse"] for r in some), 4),
                    "covered": round(float(np.mean([r["covered"] for r in some])), 4),
                    "least covered": round(min(r["covered"] for r in some), 4),
                }
    return out


def short(value: Any) -> Any:
    """Numbers of four digits."""
    if isinstance(value, dict):
        return {key: short(x) for key, x in value.items()}
    if isinstance(value, list):
        return [short(x) for x in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
