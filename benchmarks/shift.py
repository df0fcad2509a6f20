"""Which label-free score of one network follows its error rate as the data shift?

    python -m benchmarks.recommend_data FOLDER data.npz     # once, see there
    python -m benchmarks.shift --data data.npz              # about three minutes of one core

For each of three data sets (Fashion-MNIST, SVHN, CIFAR-10) three networks are trained on 4,000
images of 16 × 16 pixels, and recorded on 1,000 other images as they are and with each of 19
changes. Each score of the recording is compared with the error rate on the same images: Spearman's
ρ over the 20 versions, signed so that a score that works has a positive one. Scores: ‖μ‖ and the
log ratio of the product kernel at the last and the middle layer, dispersity and ‖mean(p − q)‖ of
the outputs, and what others use: mean confidence, mean entropy, and ATC (Garg et al. 2022,
arXiv 2201.04234), whose threshold on confidence is set on 1,000 unchanged images of their own.
Intervals are bootstraps over networks of each data set and over changes. Writes results/shift.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import resemblance as rs
from resemblance.errors import ResemblanceWarning

from .digits import write
from .recommend_data import load
from .recommend_networks import Architecture, layers, network, train

DATA = ("fashion", "svhn", "cifar10")
NETWORKS: tuple[tuple[Architecture, int], ...] = (("plain", 0), ("plain", 1), ("residual", 2))
_SIDE, _TRAIN, _HELD = 16, 4000, 1000
_EPOCHS, _BATCH, _RATE = 8, 64, 2e-3
_DRAWS = 1000


def _noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


def _dropped(x: Tensor, share: float) -> Tensor:
    """Some pixels are black."""
    draw = torch.rand(x[:, :1].shape, generator=torch.Generator().manual_seed(8))
    return torch.where(draw < share, x.amin(), x)


def _blurred(x: Tensor, width: int) -> Tensor:
    same = nn.functional.pad(x, (width // 2,) * 4, mode="replicate")
    return nn.functional.avg_pool2d(same, width, 1)


def _rotated(x: Tensor, degrees: float) -> Tensor:
    angle = torch.tensor(degrees * np.pi / 180)
    c, s = angle.cos(), angle.sin()
    matrix = torch.stack([torch.stack([c, -s, c * 0]), torch.stack([s, c, c * 0])])
    grid = nn.functional.affine_grid(
        matrix.expand(len(x), 2, 3).float(), list(x.shape), align_corners=False
    )
    return nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _hidden(x: Tensor, side: int) -> Tensor:
    """A square in the middle is grey."""
    out, start = x.clone(), (x.shape[-1] - side) // 2
    out[..., start : start + side, start : start + side] = 0
    return out


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "noise 0.2": lambda x: x + 0.2 * _noise(x),
    "noise 0.5": lambda x: x + 0.5 * _noise(x),
    "noise 1": lambda x: x + _noise(x),
    "blur 3": lambda x: _blurred(x, 3),
    "blur 5": lambda x: _blurred(x, 5),
    "brighter": lambda x: x + 0.5,
    "brighter, more": lambda x: x + 1,
    "darker": lambda x: x - 0.5,
    "contrast 0.5": lambda x: 0.5 * x,
    "contrast 0.25": lambda x: 0.25 * x,
    "rotated 15": lambda x: _rotated(x, 15),
    "rotated 45": lambda x: _rotated(x, 45),
    "rotated 90": lambda x: x.rot90(1, (2, 3)),
    "moved 2": lambda x: x.roll(2, 3),
    "moved 4": lambda x: x.roll((3, 3), (2, 3)),
    "pixels dropped, 0.1": lambda x: _dropped(x, 0.1),
    "pixels dropped, 0.3": lambda x: _dropped(x, 0.3),
    "middle hidden": lambda x: _hidden(x, 6),
    "inverted": lambda x: -x,
}
SIGNS = {  # of what should rise with the error rate
    "mean embedding, last layer": 1,
    "mean embedding, middle layer": 1,
    "log ratio, last layer": 1,
    "log ratio, middle layer": 1,
    "mean gradient of outputs": 1,
    "dispersity of outputs": -1,
    "confidence": -1,
    "entropy": 1,
    "ATC": 1,
}


@torch.no_grad()
def _probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(250)]).double().softmax(1)


def _scores(model: nn.Sequential, x: Tensor, threshold: float) -> dict[str, float]:
    names = layers(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # ‖μ‖² below zero is NaN, ranked first
        table = rs.adaptation(rs.record(model, x, layers=names, progress=False))
    p = _probabilities(model, x)
    top = p.amax(1)
    out = {
        f"{name}, {where} layer": float(np.nan_to_num(table[column][at], nan=-1e9))
        for name, column in (("mean embedding", "mean_embedding"), ("log ratio", "log_ratio"))
        for where, at in (("last", -1), ("middle", len(names) // 2))
    }
    return out | {
        "mean gradient of outputs": table.outputs.mean_gradient,
        "dispersity of outputs": table.outputs.dispersity,
        "confidence": float(top.mean()),
        "entropy": float(-torch.special.xlogy(p, p).sum(1).mean()),
        "ATC": float((top < threshold).double().mean()),
    }


def one_network(pools: Any, data: str, architecture: Architecture, seed: int) -> dict[str, Any]:
    """A network's error rate and scores on each version of its held-out images."""
    x, y = pools[data]["sources"].tensors(_SIDE)
    model = network(architecture, 10, form="cpu", seed=seed)
    steps = _EPOCHS * _TRAIN // _BATCH
    train(model, x[:_TRAIN], y[:_TRAIN], steps=steps, batch=_BATCH, rate=_RATE, seed=seed)
    own, right = x[_TRAIN : _TRAIN + _HELD], y[_TRAIN : _TRAIN + _HELD]
    p = _probabilities(model, own)
    wrong = float((p.argmax(1) != right).double().mean())
    threshold = float(p.amax(1).quantile(wrong))  # so that as many are below it as are wrong
    new, z = (part[:_HELD] for part in pools[data]["targets"].tensors(_SIDE))
    rows = {}
    for name, shift in SHIFTS.items():
        changed = shift(new)
        error = float((_probabilities(model, changed).argmax(1) != z).double().mean())
        rows[name] = {"error": error, **_scores(model, changed, threshold)}
    return {"data": data, "architecture": architecture, "seed": seed, "shifts": rows}


def correlations(rows: list[dict[str, float]]) -> dict[str, float]:
    """Spearman's ρ of each score with the error rate, signed."""
    error = [row["error"] for row in rows]
    return {
        score: float(np.nan_to_num(sign * spearmanr([row[score] for row in rows], error)[0]))
        for score, sign in SIGNS.items()
    }


def summary(networks: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean ρ over networks, of all and of each data set, with intervals, and less that of ‖μ‖."""
    rng = np.random.default_rng(0)
    sets = {name: [n for n in networks if n["data"] == name] for name in DATA}
    sets = {name: some for name, some in sets.items() if some}

    def mean(some: list[dict[str, Any]], versions: list[str]) -> np.ndarray:
        found = [correlations([n["shifts"][v] for v in versions]) for n in some]
        return np.array([[x[score] for score in SIGNS] for x in found]).mean(0)

    def drawn(groups: list[list[dict[str, Any]]]) -> np.ndarray:
        names = rng.choice([*SHIFTS], len(SHIFTS)).tolist()
        some = [group[i] for group in groups for i in rng.integers(0, len(group), len(group))]
        return mean(some, names)

    out = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw may repeat one version
        for name, groups in {"all": [*sets.values()], **{k: [v] for k, v in sets.items()}}.items():
            value = mean([n for group in groups for n in group], [*SHIFTS])
            draws = np.array([drawn(groups) for _ in range(_DRAWS)])
            less = draws - draws[:, :1]
            out[name] = {
                score: {
                    "rho": float(value[i]),
                    "interval": np.quantile(draws[:, i], [0.025, 0.975]).tolist(),
                    "less_mean_embedding": float(value[i] - value[0]),
                    "less_mean_embedding_interval": np.quantile(
                        less[:, i], [0.025, 0.975]
                    ).tolist(),
                }
                for i, score in enumerate(SIGNS)
            }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what recommend_data wrote")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    pools = load(options.data)
    networks = []
    for data in DATA:
        for architecture, seed in NETWORKS:
            networks.append(one_network(pools, data, architecture, seed))
            errors = [row["error"] for row in networks[-1]["shifts"].values()]
            print(f"{data}, {architecture}: errors {min(errors):.2f} to {max(errors):.2f}")
    found = summary(networks)
    for name, scores in found.items():
        print(f"\n{name}")
        for score, own in sorted(scores.items(), key=lambda item: -item[1]["rho"]):
            low, high = own["interval"]
            print(f"  {score:30s} {own['rho']:.2f} ({low:.2f} to {high:.2f})")
    result = {"mean": found, "networks": networks, "cpu_seconds": time.process_time() - start}
    print(write("shift", result))


if __name__ == "__main__":
    main()
