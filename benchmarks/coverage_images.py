"""Whether error bars hold on trained networks: twins on the very images they were trained on.

    python -m benchmarks.coverage_images --data images.npz [--draws 100] [--epochs 60] [--workers 2]

The file holds xtr (n, 32, 32, 3) uint8 and ytr. Two ResNet-18 as in reproduction/ are trained on
18,000 images (a GPU does it in two minutes), features and gradients of the first 8,000 of these
are taken at two layers by plain autograd, and kernels compared in plain float64. Then, as in
`coverage_digits`, all of them are recorded again and again in other blocks, and draws of 1,000.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.images import inputs
from reproduction.nets import ResNet
from reproduction.training import accuracy, train

from . import digits
from .coverage_digits import BETA, KERNELS, Vectors, compared, exact, recorded, summary

LAYERS = ("blocks.7", "pool")
TRAINED, KEPT, DRAWN = 18_000, 8_000, 1_000


def vectors(net: ResNet, images: Tensor) -> Vectors:
    """Features, and gradients of the tempered loss, of every image, by plain autograd."""
    seen: dict[str, Tensor] = {}
    handles = [
        net.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, out, name=name: seen.__setitem__(name, out)
        )
        for name in LAYERS
    ]
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in LAYERS}
    for some in images.split(500):
        logits = net(inputs(some))
        wanted = torch.softmax(BETA * logits.detach(), 1)
        loss = -(wanted * torch.log_softmax(logits, 1)).sum()
        found = torch.autograd.grad(loss, [seen[name] for name in LAYERS])
        for name, gradient in zip(LAYERS, found, strict=True):
            pair = (seen[name].detach(), gradient)
            parts[name].append(tuple(v.contiguous().flatten(1).cpu().numpy() for v in pair))
    for handle in handles:
        handle.remove()
    return {
        name: (np.concatenate([f for f, _ in some]), np.concatenate([g for _, g in some]))
        for name, some in parts.items()
    }


def trained(path: Path, epochs: int) -> tuple[list[Vectors], list[float]]:
    """What two twins make of their own training images, and how many of these they know."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with np.load(path) as content:
        x = torch.from_numpy(content["xtr"][:TRAINED]).to(device)
        y = torch.from_numpy(content["ytr"][:TRAINED]).long().to(device)
    nets, known = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net = ResNet("resnet18", int(y.max()) + 1).to(device)
        train(net, "resnet18", x, y, epochs=epochs, batch=500, rate=0.4, seed=seed)
        known.append(round(accuracy(net, x, y), 4))
        nets.append(vectors(net, x[:KEPT]))
        print("trained; of its training images it knows", known[-1], flush=True)
    return nets, known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    nets, known = trained(options.data, options.epochs)
    result = {"epochs": options.epochs, "known": known, "n_eff": {}, "rows": []}
    for name in LAYERS:
        norms = (nets[0][name][1].astype(np.float64) ** 2).sum(1)
        result["n_eff"][name] = round(float(norms.sum() ** 2 / (norms**2).sum()), 1)
    print(f"n_eff of gradients, of {KEPT:,}:", result["n_eff"], flush=True)
    rng, every = np.random.default_rng(0), np.arange(KEPT)
    subsets = [rng.permutation(KEPT)[:DRAWN] for _ in range(options.draws)]
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "nets.npz", *(v for net in nets for p in net.values() for v in p))
        context = torch.multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, context, _open, (folder,)) as pool:
            many = list(pool.map(_draw, [every] * options.draws, range(options.draws)))
            few = list(pool.map(_draw, subsets, range(options.draws)))
    for at, kernel in enumerate(KERNELS):
        whole = np.array(
            [exact(_double(nets[0][name]), _double(nets[1][name]), kernel) for name in LAYERS]
        )
        mean = np.mean([draw[at]["score"] for draw in few], axis=0)  # exact: kept whole
        for samples, draws, truth in ((KEPT, many, whole), (DRAWN, few, mean)):
            row = {
                "kernel": kernel,
                "samples": samples,
                "layers": list(LAYERS),
                **summary([draw[at] for draw in draws], truth),
            }
            result["rows"].append(row)
            print(row, flush=True)
    digits.write("coverage_images", result)


_nets: list[Vectors] = []  # of a worker


def _open(folder: str) -> None:
    torch.set_num_threads(1)
    with np.load(Path(folder) / "nets.npz") as content:
        flat = iter([content[key] for key in content.files])
    _nets.extend({name: (next(flat), next(flat)) for name in LAYERS} for _ in range(2))


def _draw(rows: np.ndarray, seed: int) -> list[dict[str, Any]]:
    pair = recorded(_nets, rows, seed)
    return [compared(pair, kernel) for kernel in KERNELS]


def _double(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return pair[0].astype(np.float64), pair[1].astype(np.float64)


if __name__ == "__main__":
    main()
