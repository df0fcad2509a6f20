"""Where networks part: found where one layer was damaged, and not where nothing was.

    OMP_NUM_THREADS=1 python -m benchmarks.parting [--networks 40]

Networks of eight layers (perceptrons and convolutional ones in turn) are trained on handwritten
digits. Of each, copies are made with the weights of one layer damaged: noise on them, the smallest
pruned, all rounded to few bits, each at two of four strengths, with the layer drawn at random. A
damage *counts* where it moves the score of its own layer by five standard errors; it is *found*
where `Comparison.parting` of features names that layer or a neighbour. Networks are recorded in
turn on 500 images, whose kernels are whole, and on all 1,797, in blocks.

Gradients are asked of those on all images. They are read from the output back, and a damage that
changes the outputs changes gradients there first, whichever layer it was in.

False findings are counted on half of the networks, recorded in other batches and in other
precision.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance import Comparison, Representation

from . import digits

LAYERS = 8
CHANNELS = 12
SAMPLES = (500, 1797)
DAMAGES: dict[str, tuple[float, ...]] = {
    "noise": (0.02, 0.1, 0.3, 1.0),  # standard deviations of the layer's weights
    "pruning": (0.1, 0.3, 0.5, 0.8),  # of the weights
    "rounding": (8, 6, 4, 3),  # bits
}
KERNELS = ("features", "gradients")


def perceptron(seed: int) -> nn.Sequential:
    widths = [64, *[32] * (LAYERS - 1), 10]
    parts: list[tuple[str, nn.Module]] = [("flat", nn.Flatten())]
    for i in range(LAYERS):
        parts.append((f"layer{i}", nn.Linear(widths[i], widths[i + 1])))
        parts.append((f"act{i}", nn.ReLU() if i < LAYERS - 1 else nn.Identity()))
    return _seeded(parts, seed)


def convolutional(seed: int) -> nn.Sequential:
    """Six convolutions and two linear layers."""
    parts: list[tuple[str, nn.Module]] = []
    for i in range(LAYERS - 2):
        parts.append((f"layer{i}", nn.Conv2d(CHANNELS if i else 1, CHANNELS, 3, padding=1)))
        parts.append((f"act{i}", nn.ReLU()))
        if i == 2:
            parts.append(("pool", nn.MaxPool2d(2)))
    parts += [("mean", nn.AdaptiveAvgPool2d(2)), ("flat", nn.Flatten())]
    parts += [("layer6", nn.Linear(4 * CHANNELS, 32)), ("act6", nn.ReLU())]
    return _seeded([*parts, ("layer7", nn.Linear(32, 10))], seed)


def _seeded(parts: list[tuple[str, nn.Module]], seed: int) -> nn.Sequential:
    model = nn.Sequential(OrderedDict(parts))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.reset_parameters()
    return model


def damaged(
    model: nn.Sequential, layer: int, kind: str, strength: float, generator: torch.Generator
) -> nn.Sequential:
    """A copy with other weights in one layer."""
    out = copy.deepcopy(model)
    weight = out.get_parameter(f"layer{layer}.weight").data
    if kind == "noise":
        weight += strength * weight.std() * torch.randn(weight.shape, generator=generator)
    elif kind == "pruning":
        cut = weight.abs().flatten().kthvalue(max(1, int(strength * weight.numel()))).values
        weight[weight.abs() <= cut] = 0
    else:
        step = 2 * weight.abs().max() / (2**strength - 1)
        weight.copy_((weight / step).round() * step)
    return out


def recorded(model: nn.Module, x: Tensor, batch_size: int = 128) -> Representation:
    names = [f"layer{i}" for i in range(LAYERS)]
    how = {"gradients": len(x) > SAMPLES[0], "data_id": "digits", "progress": False}
    return rs.record(model, x, layers=names, batch_size=batch_size, **how)


def compared(a: Representation, b: Representation, kernel: str) -> Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rs.compare(a, b, kernel=kernel)  # type: ignore[arg-type]


def kernels(rep: Representation) -> tuple[str, ...]:
    """Gradients are left to the larger samples."""
    return KERNELS if rep.samples > SAMPLES[0] else KERNELS[:1]


def of_damage(pair: tuple[Representation, Representation], layer: int) -> dict[str, Any]:
    """What is found in a copy damaged at a layer, by features and by gradients."""
    row: dict[str, Any] = {}
    for kernel in kernels(pair[0]):
        found = compared(*pair, kernel)
        score, error, _ = found.by_layer()
        parting = found.parting()
        row[kernel] = {
            "moved": float(1 - score[layer]),
            "errors": float((1 - score[layer]) / max(error[layer], 1e-300)),
            "found": parting.position,
            "fall": parting.fall,
            "low": parting.low,
            "high": parting.high,
        }
    return row


def false_findings(model: nn.Module, x: Tensor) -> dict[str, dict[str, Any]]:
    """What is found, and the largest fall, of a network and itself recorded otherwise."""
    half = copy.deepcopy(model).bfloat16()
    plain = {n: recorded(model, x, n) for n in (16, 64, 128)}
    short = {n: recorded(half, x.bfloat16(), n) for n in (16, 128)}
    with torch.autocast("cpu", torch.bfloat16):
        cast = recorded(model, x)
    pairs = {
        "float32, batches of 16 and 128": (plain[16], plain[128]),
        "float32, batches of 64 and 128": (plain[64], plain[128]),
        "bfloat16, batches of 16 and 128": (short[16], short[128]),
        "float32 and bfloat16": (plain[128], short[128]),
        "float32 and autocast to bfloat16": (plain[128], cast),
    }
    out: dict[str, dict[str, Any]] = {}
    for name, pair in pairs.items():
        out[name] = {}
        for kernel in kernels(pair[0]):
            parting = compared(*pair, kernel).parting()
            out[name][kernel] = {
                "found": parting.position,
                "largest": max(each.fall for each in parting.tested),
            }
    return out


def share(rows: list[dict[str, Any]], kernel: str = "features") -> dict[str, Any]:
    """Of damages that count, how many were found at their layer, and within one of it."""
    rows = [row for row in rows if kernel in row]
    counted = [row for row in rows if row[kernel]["errors"] >= 5]
    apart = [
        None if row[kernel]["found"] is None else row[kernel]["found"] - row["layer"]
        for row in counted
    ]
    near = sum(x is not None and abs(x) <= 1 for x in apart)
    return {
        "damages": len(rows),
        "counted": len(counted),
        "at the layer": sum(x == 0 for x in apart),
        "within one": near,
        "share within one": round(near / max(1, len(counted)), 4),
        "not found": sum(x is None for x in apart),
        "elsewhere": sum(x is not None and abs(x) > 1 for x in apart),
    }


def summary(rows: list[dict[str, Any]], same: list[dict[str, Any]]) -> dict[str, Any]:
    def those(**wanted: Any) -> list[dict[str, Any]]:
        return [row for row in rows if all(row[key] == x for key, x in wanted.items())]

    grouped = {
        f"{kind} {strength:g}": share(those(kind=kind, strength=strength))
        for kind, strengths in DAMAGES.items()
        for strength in strengths
    }
    first = those(layer=0)
    gradients = share(rows, "gradients")
    gradients["at the output"] = sum(
        row["gradients"]["found"] == LAYERS - 1 for row in rows if "gradients" in row
    )
    nulls = {
        name: {
            kernel: {
                "pairs": len(asked),
                "false findings": sum(x["found"] is not None for x in asked),
                "largest fall": max(x["largest"] for x in asked),
            }
            for kernel in KERNELS
            if (asked := [x[name][kernel] for x in same if kernel in x[name]])
        }
        for name in same[0]
    }
    return {
        "features": share(rows),
        "features, first layer damaged": share(first),
        "features, another layer damaged": share([r for r in rows if r["layer"]]),
        "features, by samples": {str(n): share(those(samples=n)) for n in SAMPLES},
        "features, by damage": grouped,
        "gradients": gradients,
        "same network": nulls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    x, y = digits.load()
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    same: list[dict[str, Any]] = []
    accuracies = []
    for seed in range(options.networks):
        model = (convolutional if seed % 2 else perceptron)(seed)
        digits.train(model, x, y, epochs=options.epochs, seed=seed)
        accuracies.append(round(digits.accuracy(model, x, y), 4))
        some = x[: SAMPLES[seed // 2 % 2]]
        base = recorded(model, some)
        for kind, strengths in DAMAGES.items():
            for strength in strengths[seed // 4 % 2 :: 2]:
                layer = int(torch.randint(LAYERS, (), generator=generator))
                other = recorded(damaged(model, layer, kind, strength, generator), some)
                about = {"network": seed, "samples": len(some), "layer": layer}
                about |= {"kind": kind, "strength": strength}
                rows.append(about | of_damage((base, other), layer))
        if seed // 4 % 2 == 0:
            same.append(false_findings(model, some))
        print(seed, accuracies[-1], share(rows), flush=True)
        for row in rows[-6:]:
            near = row["features"]["found"]
            if near is None or abs(near - row["layer"]) > 1:
                print("missed", row, flush=True)
    result = {"networks": options.networks, "epochs": options.epochs, "accuracy": accuracies}
    result |= summary(rows, same)
    print(json.dumps(result, indent=1))
    digits.write("parting", {**result, "rows": rows})


if __name__ == "__main__":
    main()
