"""The samples of one family of networks, packed into a file of at most 40 MiB.

    python -m reproduction.resi.data cifar10.npz OUT.npz [--train 18000] [--test 4000]
    python -m reproduction.resi.data --text OUT.npz

Images come as `xtr`, `ytr`, `xte`, `yte` (uint8, n × 32 × 32 × 3, and integer labels) and are kept
without loss, as WebP strips. Text is Python's own standard library: windows of 128 bytes, to be
assigned to one of ten packages. Windows of training and of test never share a file.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SIDE, STRIP = 32, 500  # pixels, and images in a strip (WebP allows 16,383 rows)
WINDOW = 128  # bytes
PACKAGES = (
    "asyncio", "email", "encodings", "idlelib", "multiprocessing", "tkinter", "unittest", "xml",
    "importlib", "http",
)  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """Training and test samples: images (n, 32, 32, 3) or windows of text (n, 128), all uint8."""

    x_train: Tensor
    y_train: Tensor  # (n,) int64
    x_test: Tensor
    y_test: Tensor

    @property
    def is_text(self) -> bool:
        return self.x_train.ndim == 2

    def to(self, device: torch.device) -> Samples:
        return Samples(*(x.to(device) for x in vars(self).values()))

    def first(self, train: int, test: int) -> Samples:
        return Samples(
            self.x_train[:train], self.y_train[:train], self.x_test[:test], self.y_test[:test]
        )


def load(path: Path) -> Samples:
    """Samples of a file that this module packed."""
    with np.load(path) as file:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(file)
        if missing:
            raise SystemExit(
                f"{path}: expected a file packed by `python -m reproduction.resi.data`, found one "
                f"without {', '.join(sorted(missing))}"
            )
        arrays = [file["x_train"], file["y_train"], file["x_test"], file["y_test"]]
        if "x_train_offsets" in file:
            for i, part in ((0, "x_train"), (2, "x_test")):
                ends = file[f"{part}_offsets"]
                blobs = [file[part][a:b].tobytes() for a, b in itertools.pairwise(ends)]
                arrays[i] = np.concatenate([_unpacked(blob) for blob in blobs])
    return Samples(
        *(torch.from_numpy(x.astype(np.int64) if i % 2 else x) for i, x in enumerate(arrays))
    )


def _unpacked(blob: bytes) -> np.ndarray:  # -> (n, 32, 32, 3)
    """The images of a strip."""
    try:
        from PIL import Image
    except ImportError:
        from torchvision.io import decode_webp

        strip = decode_webp(torch.frombuffer(bytearray(blob), dtype=torch.uint8))
        return strip.permute(1, 2, 0).numpy()[..., :3].reshape(-1, SIDE, SIDE, 3)
    return np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")).reshape(-1, SIDE, SIDE, 3)


def _packed(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Strips of images, one after the other, and where each begins and ends."""
    from PIL import Image

    blobs = []
    for start in range(0, len(images), STRIP):
        buffer = io.BytesIO()
        strip = images[start : start + STRIP].reshape(-1, SIDE, 3)
        Image.fromarray(strip).save(buffer, "webp", lossless=True, quality=60, method=4)
        blobs.append(buffer.getvalue())
    ends = np.cumsum([0, *map(len, blobs)])
    return np.frombuffer(b"".join(blobs), np.uint8), ends


def pack_images(source: Path, out: Path, train: int, test: int) -> None:
    """Pack the first images of each part of a data set."""
    with np.load(source) as file:
        parts = {
            "train": (file["xtr"], file["ytr"], train),
            "test": (file["xte"], file["yte"], test),
        }
    arrays = {}
    for part, (x, y, count) in parts.items():
        arrays[f"x_{part}"], arrays[f"x_{part}_offsets"] = _packed(x[:count])
        arrays[f"y_{part}"] = y[:count].astype(np.uint8)
    np.savez(out, **arrays)


def pack_text(out: Path, train: int, test: int, library: Path | None = None) -> None:
    """Pack windows of Python's standard library, as many of each package."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    generator = random.Random(0)
    arrays: dict[str, list[np.ndarray]] = {f"{a}_{b}": [] for a in "xy" for b in ("train", "test")}
    for label, package in enumerate(PACKAGES):
        files = sorted((library / package).rglob("*.py"))
        files = [f for f in files if "test" not in str(f.relative_to(library)).lower() or
                 package == "unittest"]  # fmt: skip
        generator.shuffle(files)
        windows: dict[str, list[bytes]] = {"train": [], "test": []}
        for i, file in enumerate(files):
            text = file.read_bytes()
            enough = len(windows["test"]) >= test // len(PACKAGES) or i > len(files) // 3
            windows["train" if enough else "test"] += [
                text[a : a + WINDOW] for a in range(0, len(text) - WINDOW + 1, 16)
            ]
        for part, count in (("train", train), ("test", test)):
            found = windows[part]
            generator.shuffle(found)
            found = found[: count // len(PACKAGES)]
            arrays[f"x_{part}"] += [np.frombuffer(w, np.uint8) for w in found]
            arrays[f"y_{part}"] += [np.full(1, label, np.uint8)] * len(found)
    packed = {}
    for part in ("train", "test"):
        order = np.random.default_rng(0).permutation(len(arrays[f"x_{part}"]))
        packed[f"x_{part}"] = np.stack(arrays[f"x_{part}"])[order]
        packed[f"y_{part}"] = np.concatenate(arrays[f"y_{part}"])[order]
        print(part, len(order), "windows;", np.bincount(packed[f"y_{part}"]).tolist())
    np.savez_compressed(out, **packed)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.resi.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, nargs="?", help="a data set of images, as .npz")
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", action="store_true", help="Python's standard library instead")
    parser.add_argument("--train", type=int, default=18_000)
    parser.add_argument("--test", type=int, default=4_000)
    chosen = parser.parse_args()
    if chosen.text:
        pack_text(chosen.out, chosen.train, chosen.test)
    elif chosen.source is None:
        parser.error("name a data set of images, or pass --text")
    else:
        pack_images(chosen.source, chosen.out, chosen.train, chosen.test)
    print(f"{chosen.out}: {chosen.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
