"""Data from the host: `record` from every kind of source, beside what it could reach at best.

    python -m benchmarks.loader_gpu [--networks ...] [--sources ...] [--samples N] [--out FILE]

A pass can be no faster than its source (fetched and copied to the device in batches, with no
network), and no faster than a pass over data that lie on the device. `share` is what `record`
reaches of the slower of the two. Medians of three runs, with the least and the most, after a
warm-up; all in one process, with random weights, in bfloat16 by autocast. `host_ms` says where the
host's time goes in a batch of one more run: in the source (with gathering), in sending, in waiting
for the device to keep up, and in the rest, which is mostly launching kernels. If source, sending
and the rest together take longer than the device takes for a batch, the host is what limits.

`--batch-sizes` compares `batch_size="auto"` with explicit sizes instead, at 1,000 and at 10,000
samples in host tensors, all else at its default.

`--tiny` runs everything in small on whatever device there is, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import resemblance as rs
from resemblance._models import run as the_pass
from resemblance._ops.devices import HostToDevice

from . import pass_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# name -> (side of images or length of texts, batch size, samples)
NETWORKS = {
    "resnet50 at 224": (224, 256, 8192),
    "vit_b_16 at 224": (224, 256, 4096),
    "gpt2 at 512": (512, 64, 1024),
    "resnet18 at 32": (32, 4096, 49152),
}
SOURCES = ("gpu", "host", "loader", "workers", "pinned workers", "uint8", "jpeg")
AUTO = ("gpu", "host", "workers")  # which are run at all defaults too
TEXTS = ("gpu", "host", "loader", "workers", "pinned workers")
WORKERS = 8
JPEGS = 512  # files, which are read again and again
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class Tiny(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 8) if vocabulary else None
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        if self.tokens is not None:
            return self.head(self.tokens(input_ids).mean(1))
        return self.head(self.conv(input_ids).relu().mean((2, 3)))


class Normalised(Dataset):
    """Images of eight bits, made floating-point numbers by whoever asks for them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return normalise(self.images[i]), self.labels[i]


class Folder(Dataset):
    """JPEG files, decoded and normalised by whoever asks for them."""

    def __init__(self, files: list[Path], labels: Tensor) -> None:
        self.files, self.labels = files, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        with Image.open(self.files[i % len(self.files)]) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB")))
        return normalise(pixels.permute(2, 0, 1)), self.labels[i]


class Texts(Dataset):
    """Token ids, as what a language model is called with."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i]}


def normalise(image: Tensor) -> Tensor:  # (3, h, w) uint8
    return ((image.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]).contiguous()


def made(name: str, tiny: bool) -> nn.Module:
    if tiny:
        return Tiny(64 if name.startswith("gpt") else 0).to(DEVICE).eval()
    return pass_gpu.made(name)


def data_of(name: str, options: argparse.Namespace) -> tuple[Any, int, int]:
    """Samples on the device; their number and the batch size."""
    side, batch_size, count = NETWORKS[name]
    if options.tiny:
        side, batch_size, count = 12, 16, 128
    count = options.samples or count
    torch.manual_seed(0)
    if name.startswith("gpt"):
        most = 64 if options.tiny else 50257
        return (
            {"input_ids": torch.randint(0, most, (count, side), device=DEVICE)},
            count,
            batch_size,
        )
    images = torch.randn(count, 3, side, side, device=DEVICE)
    return (images, torch.arange(count, device=DEVICE) % 1000), count, batch_size


def tree(function: Callable[[Any], Any], data: Any) -> Any:
    if isinstance(data, dict):
        return {key: tree(function, value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return [tree(function, value) for value in data]
    return function(data)


def source(kind: str, there: Any, batch_size: int, folder: Path) -> Any:
    """The data as `record` takes them."""
    if kind == "gpu":
        return there
    workers = 0 if kind == "loader" else min(WORKERS, os.cpu_count() or 1)
    how: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    how["pin_memory"] = kind == "pinned workers" and DEVICE == "cuda"
    if isinstance(there, dict):
        ids = there["input_ids"].cpu()
        return {"input_ids": ids} if kind == "host" else DataLoader(Texts(ids), **how)
    images, labels = there
    labels = labels.cpu()
    if kind == "uint8":
        pixels = (images * 64 + 128).clamp(0, 255).to(torch.uint8).cpu()
        return DataLoader(Normalised(pixels, labels), **how)
    if kind == "jpeg":
        return DataLoader(Folder(jpegs(images, folder), labels), **how)
    if kind == "host":
        return images.cpu(), labels
    return DataLoader(TensorDataset(images.cpu(), labels), **how)


def jpegs(images: Tensor, folder: Path) -> list[Path]:
    """Smooth pictures, which pack as photographs do."""
    from PIL import Image

    coarse = nn.functional.avg_pool2d(images[:JPEGS], 4)
    smooth = nn.functional.interpolate(coarse, images.shape[-2:], mode="bicubic")
    pixels = (smooth * 160 + 128).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    files = [folder / f"{images.shape[-1]}-{i}.jpg" for i in range(len(pixels))]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file, quality=90)
    return files


def batches(data: Any, batch_size: int) -> Iterator[Any]:
    """A source read by plain code, in random order."""
    if isinstance(data, DataLoader):
        yield from data
        return
    count = len(next(iter(data.values()) if isinstance(data, dict) else iter(data)))
    for where in torch.randperm(count).split(batch_size):
        yield tree(lambda x, where=where: x[where.to(x.device)], data)


def alone(data: Any, batch_size: int) -> None:
    """Fetch all batches, and copy them to the device."""
    for batch in batches(data, batch_size):
        tree(lambda x: x.to(DEVICE, non_blocking=True), batch)


def timed(work: Callable[[], Any]) -> float:
    gc.collect()
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def rate(work: Callable[[], Any], count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Samples a second of some runs, which end early once they took `patience` seconds."""
    work()
    times: list[float] = []
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    while len(times) < options.repeats and (not times or sum(times) < options.patience):
        times.append(timed(work))
    speeds = sorted(count / t for t in times)
    row = {
        "samples_per_second": round(statistics.median(speeds), 1),
        "least": round(speeds[0], 1),
        "most": round(speeds[-1], 1),
        "runs": len(speeds),
    }
    if DEVICE == "cuda":
        row["device_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return row


@contextlib.contextmanager
def host_times() -> Iterator[Counter[str]]:
    """Seconds of the host in parts of a pass, and the batches that were fetched."""
    spent: Counter[str] = Counter()

    def noting(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[part] += time.perf_counter() - start

        return noted

    made_source, event = the_pass.make_source, torch.get_device_module(DEVICE).Event

    def make_source(*arguments: Any, **options: Any) -> Any:
        found = made_source(*arguments, **options)

        def fetched(batch_size: int, share: Any) -> Iterator[Any]:
            remaining = found.batches(batch_size, share)
            while (batch := noting("source", next)(remaining, None)) is not None:
                spent["batches"] += 1
                yield batch

        return dataclasses.replace(found, batches=fetched)

    patches = [
        mock.patch.object(the_pass, "make_source", make_source),
        mock.patch.object(HostToDevice, "send", noting("send", HostToDevice.send)),
        mock.patch.object(event, "synchronize", noting("wait", event.synchronize)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield spent


def host_milliseconds(work: Callable[[], Any]) -> dict[str, float]:
    with host_times() as spent:
        whole = timed(work)
    count = max(1, spent.pop("batches", 0))
    spent["rest"] = whole - sum(spent.values())
    return {part: round(1000 * seconds / count, 2) for part, seconds in spent.items()}


def measure(name: str, options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Any]]:
    """Each source's row, as it is measured."""
    model = made(name, options.tiny)
    there, count, batch_size = data_of(name, options)
    fixed = {"batch_size": batch_size, "block": min(128, batch_size), "unit": "sample"}
    best: dict[str, float] = {}  # record with data on the device, at a fixed size and at defaults
    kinds = [kind for kind in SOURCES if kind in options.sources]
    for kind in kinds if not name.startswith("gpt") else [k for k in kinds if k in TEXTS]:
        begun, row = time.perf_counter(), {"samples": count}
        data = source(kind, there, batch_size, folder)

        def work(how: dict[str, Any], data: Any = data) -> Callable[[], Any]:
            return lambda: rs.record(model, data, data_id="random", progress=False, **how)

        if kind != "gpu":
            row["alone"] = rate(lambda data=data: alone(data, batch_size), count, options)
        row["record"] = rate(work(fixed), count, options)
        row["host_ms"] = host_milliseconds(work(fixed))
        ways = {"record": row["record"]}
        if kind in AUTO:
            ways["auto"] = row["auto"] = rate(work({"unit": "sample"}), count, options)
        for way, found in ways.items():
            speed = found["samples_per_second"]
            best.setdefault(way, speed if kind == "gpu" else float("nan"))
            limits = [best[way], row.get("alone", found)["samples_per_second"]]
            found["share"] = round(speed / min(x for x in limits if x == x), 3)
        row["seconds"] = round(time.perf_counter() - begun, 1)
        yield kind, row
        del data, work


def batch_sizes(name: str, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """By number of samples, what `record` reaches at explicit batch sizes and at "auto"."""
    model, chosen = made(name, options.tiny), list[int]()
    choose = the_pass.ModelPass._batch_size

    def noted(*arguments: Any) -> tuple[int, int]:
        found = choose(*arguments)
        chosen.append(found[0])
        return found

    for count in options.counts:
        some = argparse.Namespace(samples=count, tiny=options.tiny)
        data = tree(lambda x: x.cpu(), data_of(name, some)[0])
        data = tuple(data) if isinstance(data, list) else data
        row: dict[str, Any] = {}
        for size in [*options.batch_sizes, "auto"]:

            def work(size: Any = size, data: Any = data) -> Any:
                how = {"batch_size": size, "unit": "sample", "data_id": "random"}
                return rs.record(model, data, progress=False, **how)

            with mock.patch.object(the_pass.ModelPass, "_batch_size", noted):
                row[str(size)] = rate(work, count, options)
        best = max(each["samples_per_second"] for each in row.values())
        auto = row["auto"]
        auto |= {"chosen": chosen[-1], "share": round(auto["samples_per_second"] / best, 3)}
        yield str(count), row


def show_batch_sizes(count: str, row: dict[str, Any]) -> None:
    rates = (f"{size} {each['samples_per_second']:,.0f}" for size, each in row.items())
    auto = row["auto"]
    print(f"  {count} samples: {', '.join(rates)}; auto is {auto['chosen']}, {auto['share']}")
    print(end="", flush=True)


def show(kind: str, row: dict[str, Any]) -> None:
    def cell(way: str) -> str:
        found = row.get(way)
        if found is None:
            return f"{'':>27}"
        span = f"({found['least']:,.0f} to {found['most']:,.0f})"
        return f"{found['samples_per_second']:>9,.0f} {span:<17}"

    shares = [f"{row[way]['share']:.2f}" for way in ("record", "auto") if way in row]
    print(f"  {kind:<15}" + "".join(map(cell, ("alone", "record", "auto"))) + "  ".join(shares))
    print(f"  {'':<15}host ms a batch: {row['host_ms']}; {row['seconds']} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "results/loader_gpu.json"
    parser.add_argument("--out", type=Path, default=default, help="added to if it is there")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--sources", nargs="*", default=SOURCES, choices=SOURCES)
    parser.add_argument(
        "--batch-sizes", nargs="*", type=int, help="beside auto, instead of sources"
    )
    parser.add_argument("--counts", nargs="*", type=int, default=[1000, 10000])
    parser.add_argument("--samples", type=int, help="instead of each network's own number")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=12, help="seconds for a row's runs")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if DEVICE != "cuda" and not options.tiny:
        parser.error("this benchmark needs a GPU that torch can use, or --tiny")

    def keep() -> None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")

    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["environment"] = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "resemblance": rs.__version__,
        "date": str(date.today()),
    }
    cast = torch.autocast(DEVICE, torch.bfloat16, enabled=not options.tiny)
    with tempfile.TemporaryDirectory() as folder, cast, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose samples differ little
        for name in options.networks:
            print(f"{name}: source alone, record, record at all defaults, shares", flush=True)
            found = results.setdefault(name, {"batch_size": NETWORKS[name][1], "rows": {}})
            if options.batch_sizes is not None:
                for count, row in batch_sizes(name, options):
                    found.setdefault("batch_sizes", {})[count] = row
                    show_batch_sizes(count, row)
                    keep()
                continue
            rows = found["rows"]
            for kind, row in measure(name, options, Path(folder)):
                rows[kind] = row
                show(kind, row)
                keep()


if __name__ == "__main__":
    main()
