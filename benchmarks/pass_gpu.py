"""The pass on a GPU: `record` against the bare forward and activation-only backward, in one run.

    python -m benchmarks.pass_gpu [--only pass rivals ...] [--networks ...] [--first-code PATH]

The limit is one forward and one backward to the first recorded layer as torch runs them, with
nothing recorded, at the same batch size, on the same data, which lie on the device. A pass takes a
shorter way back through batch norms than torch does, so that it may be above that limit: *the bare
pass here* is the limit with that. Rows per network and dtype: forward alone, both limits, and
`record` with features only, with blocks only, with buckets only, with both, and with both bit for
bit. Random weights: speed does not depend on them.

Beside it: what hashes of weights and samples take of a pass, what the state of a ResNet-50 holds on
the device between batches, whether host memory grows with the samples, and two rivals: pytorch-cka
(`pip install pytorch-cka`), and the method's first code in a checkout of github.com/amzn/xfer that
the reader brings. `--only` picks parts and `--add` keeps the other parts of the result file.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import resemblance as rs
from resemblance._data.sample_hashes import SampleFingerprints
from resemblance._models.eval_mode import run_in_eval_mode
from resemblance._models.layer_patterns import select_layers
from resemblance._models.losses import Objective
from resemblance._models.trace import trace
from resemblance.recording import accumulators
from resemblance.recording import record as recording_pass

from .networks import ResNet18

PARTS = ("host", "rivals", "pass", "hashes", "state", "first-code")
SMALL, LARGE = "resnet18 at 32", "resnet50 at 224"


def networks() -> dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], tuple[int, ...]]]:
    """Name -> (model, inputs of n samples, (batch size, block, samples, samples in float32))."""

    def images(side: int) -> Callable[[int], Tensor]:
        def draw(n: int) -> Tensor:
            x = torch.empty(n, 3, side, side, device="cuda", memory_format=torch.channels_last)
            return x.normal_()

        return draw

    def tokens(n: int) -> dict[str, Tensor]:
        return {"input_ids": torch.randint(0, 50257, (n, 512), device="cuda")}

    def torchvision(name: str) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            import torchvision

            model = getattr(torchvision.models, name)()
            if name.startswith("vit"):  # its head begins at zero, which has no gradient
                nn.init.normal_(model.heads.head.weight, std=0.02)
            return model

        return build

    def gpt2() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config(use_cache=False))

    return {
        SMALL: (ResNet18, images(32), (4096, 128, 49152, 49152)),
        LARGE: (torchvision("resnet50"), images(224), (256, 128, 16384, 16384)),
        "vit_b_16 at 224": (torchvision("vit_b_16"), images(224), (256, 128, 16384, 2048)),
        "gpt2 at 512": (gpt2, tokens, (64, 64, 2048, 1152)),
    }


def made(name: str, seed: int = 0) -> nn.Module:
    """A network on the device, images' channels last."""
    torch.manual_seed(seed)
    model = networks()[name][0]().cuda().eval()
    return model if name.startswith("gpt") else model.to(memory_format=torch.channels_last)


def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cuda", dtype, enabled=dtype != torch.float32)


def take(data: Any, where: slice) -> Any:
    return {k: v[where] for k, v in data.items()} if isinstance(data, dict) else data[where]


def length(data: Any) -> int:
    return len(data["input_ids"] if isinstance(data, dict) else data)


def split(data: Any, batch_size: int) -> Iterator[Any]:
    for start in range(0, length(data), batch_size):
        yield take(data, slice(start, start + batch_size))


def bare(
    model: nn.Module, data: Any, batch_size: int, *, backward: bool, norms: bool = False
) -> None:
    """Forward, and backward to the first layer that `record` would tap; nothing else.

    With `norms`, batch norms go back as they do in a pass.
    """
    objective = Objective("tempered", 0.5)

    def run(batch: Any) -> Any:
        return model(**batch) if isinstance(batch, dict) else model(batch)

    if not backward:
        with run_in_eval_mode(model, frozen=False), torch.no_grad():
            for batch in split(data, batch_size):
                run(batch)
        return
    model.requires_grad_(False)
    with contextlib.ExitStack() as undo:
        undo.callback(model.requires_grad_)
        undo.enter_context(run_in_eval_mode(model, frozen=norms))
        calls, _ = trace(model, lambda: run(take(data, slice(2))))
        first = select_layers(model, "auto", calls)[0]
        leaves: list[Tensor] = []

        def begin(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()

        handle = dict(model.named_modules())[first.module].register_forward_hook(begin)
        undo.callback(handle.remove)
        for batch in split(data, batch_size):
            leaves.clear()
            at, gradient = objective.start(batch, run(batch))
            torch.autograd.grad(at, leaves, gradient)


def host_peak() -> float:  # GiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes, with the device idle before and after."""
    gc.collect()  # of what ran before
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def rate(work: Callable[[Any], Any], data: Any, warm: int, repeats: int, patience: float) -> Any:
    """Samples a second: median, least and most of some runs, after a warm-up on `warm` samples.

    Runs end early once they have taken `patience` seconds together.
    """
    torch.cuda.empty_cache()
    base, times = torch.cuda.memory_allocated(), []
    work(take(data, slice(warm)))  # which leaves its memory with the allocator
    torch.cuda.reset_peak_memory_stats()
    while not times or (len(times) < repeats and sum(times) < patience):
        times.append(timed(lambda: work(data)))
    speeds = sorted(length(data) / t for t in times)
    return {
        "samples_per_second": round(statistics.median(speeds), 1),
        "least": round(speeds[0], 1),
        "most": round(speeds[-1], 1),
        "runs": len(speeds),
        "samples": length(data),
        "device_gib": round((torch.cuda.max_memory_allocated() - base) / 2**30, 3),
        "host_peak_gib": round(host_peak(), 2),
    }


def show(label: str, row: dict[str, Any]) -> None:
    span = f"({row['least']:,.1f} to {row['most']:,.1f} in {row['runs']})"
    print(f"  {label:<34}{row['samples_per_second']:>12,.1f} /s  {span}", flush=True)


def the_pass(name: str, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """All rows of one network in one precision, each beside the limit."""
    batch_size, block, *counts = networks()[name][2]
    model = made(name)
    data = networks()[name][1](options.samples or counts[dtype == torch.float32])
    common = {"batch_size": batch_size, "block": block, "progress": False, "data_id": "random"}
    common["unit"] = "sample"  # whole sequences, as before there were tokens

    def recording(**choice: Any) -> Callable[[Any], Any]:
        return lambda data: rs.record(model, data, **common, **choice)

    limit = "forward + backward"
    variants: dict[str, Callable[[Any], Any]] = {
        "forward": lambda data: bare(model, data, batch_size, backward=False),
        limit: lambda data: bare(model, data, batch_size, backward=True),
        "record features": recording(gradients=False),
        "record blocks": recording(buckets=0),
        "record buckets": recording(blocks=0),
        "record both": recording(),
        "record both, deterministic": recording(deterministic=True),
        f"{limit} again": lambda data: bare(model, data, batch_size, backward=True),
    }
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        variants["the bare pass here"] = lambda data: bare(
            model, data, batch_size, backward=True, norms=True
        )
    rows: dict[str, Any] = {}
    with autocast(dtype):
        for label, work in variants.items():
            if options.rows and label not in (limit, *options.rows):
                continue
            some = data
            if "deterministic" in label:  # slower: a quarter of the samples will do
                some = take(data, slice(max(length(data) // 4, 2 * batch_size)))
            rows[label] = rate(work, some, 2 * batch_size, options.repeats, options.patience)
            show(label, rows[label])
    for row in rows.values():
        row["of_the_limit"] = round(
            row["samples_per_second"] / rows[limit]["samples_per_second"], 3
        )
    return {"batch_size": batch_size, "block": block, "rows": rows}


class Unseen(SampleFingerprints):
    """Hashes nothing."""

    def begin(self, samples: Any) -> None:
        self._labelled = False

    def end(self, batch: Any, keep: Any) -> None:
        pass

    def settle(self, unread: int = 0) -> None:
        pass


def hashes(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What hashes of weights and samples add to a pass: it is timed with and without, in turn.

    Samples are hashed as if they had no name, which takes longer. The share is that of the median
    of the differences between neighbours, of which now one runs first, now the other.
    """
    batch_size, block, count, _ = networks()[name][2]
    model, data = made(name), networks()[name][1](options.samples or count)
    if options.host:
        data = data.cpu()

    def recording() -> None:
        rs.record(model, data, batch_size=batch_size, block=block, unit="sample", progress=False)

    def unhashed() -> None:
        with (
            mock.patch.object(accumulators, "SampleFingerprints", Unseen),
            mock.patch.object(
                recording_pass,
                "begin_weight_hashes",
                return_value=lambda: ("0" * 16, "0" * 16),
            ),
        ):
            recording()

    ways = {"record": recording, "without hashes": unhashed}
    times: dict[str, list[float]] = {way: [] for way in ways}
    with autocast(torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose samples differ little
        recording()
        for turn in range(25):
            for way in [*ways] if turn % 2 else [*ways][::-1]:
                times[way].append(timed(ways[way]))
            if turn and sum(times["record"]) > options.patience:
                break
    added = [one - two for one, two in zip(*times.values(), strict=True)]
    best = {key: min(values) for key, values in times.items()}
    return {
        "seconds": {key: [round(x, 4) for x in values] for key, values in times.items()},
        "samples": length(data),
        "of_the_pass": round(statistics.median(added) / statistics.median(times["record"]), 5),
        "of_the_best": round(1 - best["without hashes"] / best["record"], 5),
    }


def state_held() -> dict[str, Any]:
    """Device memory of a ResNet-50's accumulators between batches, at the default settings.

    What is allocated as the last batch begins, less what was as the first one began; 64 blocks of
    128 samples are kept by then.
    """
    model, batch_size = made(LARGE), 256
    data = networks()[LARGE][1](64 * 128 + batch_size)
    seen: list[int] = []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        if len(batch) > 2:  # not the trial
            seen.append(torch.cuda.memory_allocated())
        return model(batch)

    with autocast(torch.bfloat16):
        options = {"batch_size": batch_size, "data_id": "random", "progress": False}
        rep = rs.record(model, data, call=call, **options)
    return {"state_gib": round((seen[-1] - seen[0]) / 2**30, 3), "layers": len(rep)}


def host_growth() -> dict[str, Any]:
    """How much more host memory a ResNet-18 takes on four times the samples, in one process."""
    model, samples = made(SMALL), networks()[SMALL][2][2]
    data = networks()[SMALL][1](samples)
    peaks = []
    with autocast(torch.bfloat16):
        for n in (samples // 4, samples):
            rs.record(model, data[:n], batch_size=4096, data_id="random", progress=False)
            peaks.append(host_peak())
    return {
        "samples": [samples // 4, samples],
        "host_peak_gib": [round(peak, 3) for peak in peaks],
        "growth_mib": round((peaks[1] - peaks[0]) * 1024, 2),
    }


class Batches(Dataset):
    """Batches of data on the device, brought into a layout as they are asked for."""

    def __init__(self, data: Tensor, size: int, layout: torch.memory_format) -> None:
        self.parts, self.layout = data.split(size), layout

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, i: int) -> Tensor:
        return self.parts[i].contiguous(memory_format=self.layout)


def rivals(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """pytorch-cka and this package on pairs of networks: a map of CKA of features, layer by layer.

    The peer takes its best of some batch sizes and two memory layouts. `equal_batches` has the
    device memory of all at one batch size, of the peer in the layout that takes less.
    """
    try:
        from cka import compute_cka
    except ImportError as error:
        print(f"  skipped: {error}; pip install pytorch-cka")
        return {"skipped": str(error)}
    nets = [made(name, seed) for seed in (0, 1)]
    batch_size, block, count, _ = networks()[name][2]
    data = networks()[name][1](options.samples or count)
    calls, _ = trace(nets[0], lambda: nets[0](data[:2]))
    taps = select_layers(nets[0], "auto", calls)
    layers = [tap.module for tap in taps]

    def peer(size: int, layout: torch.memory_format) -> Callable[[Tensor], Any]:
        def work(data: Tensor) -> Any:
            loader = DataLoader(Batches(data, size, layout), batch_size=None)
            for net in nets:
                net.to(memory_format=layout)
            return compute_cka(*nets, loader, layers=layers, device="cuda", progress=False)

        return work

    def ours(**choice: Any) -> Callable[[Tensor], Any]:
        common = {"gradients": False, "batch_size": batch_size, "block": block, "layers": layers}

        def work(data: Tensor) -> Any:
            for net in nets:
                net.to(memory_format=torch.channels_last)
            a, b = (
                rs.record(net, data, data_id="random", progress=False, **common, **choice)
                for net in nets
            )
            return rs.compare(a, b, kernel="features", device="cuda")

        return work

    sizes = [size for size in (128, 256, 512, 1024, 2048, 4096) if size <= batch_size]
    layouts = (torch.contiguous_format, torch.channels_last)
    rows: dict[str, Any] = {}
    for dtype in (getattr(torch, name) for name in options.dtypes):
        with autocast(dtype):
            few = data[: max(1024, 3 * batch_size)]
            tried = {
                (size, layout): rate(peer(size, layout), few, 2 * size, 1, 0)
                for size in sizes for layout in layouts
            }  # fmt: skip
            size, layout = max(tried, key=lambda key: tried[key]["samples_per_second"])
            how: dict[str, Callable[[Tensor], Any]] = {
                "pytorch-cka": peer(size, layout),
                "resemblance, blocks": ours(buckets=0),
                "resemblance, blocks and buckets": ours(),
            }
            for label, work in how.items():
                row = rate(work, data, 2 * batch_size, options.repeats, options.patience)
                rows[f"{label}, {str(dtype)[6:]}"] = row
                show(f"{label}, {str(dtype)[6:]}", row)
        peers = rows[f"pytorch-cka, {str(dtype)[6:]}"]
        peers |= {"batch_size": size, "layout": str(layout)}
        for label in how:
            row = rows[f"{label}, {str(dtype)[6:]}"]
            row["of_the_rival"] = round(row["samples_per_second"] / peers["samples_per_second"], 3)
        held = {label: rows[f"{label}, {str(dtype)[6:]}"]["device_gib"] for label in how}
        held["pytorch-cka"] = min(tried[batch_size, x]["device_gib"] for x in layouts)
        peers["equal_batches"] = {"batch_size": batch_size, "device_gib": held}
        print(f"  GiB of the device in batches of {batch_size}: {held}", flush=True)
    return {"layers": len(layers), "pairs_of": name, "rows": rows}


def first_code(checkout: Path | None) -> dict[str, Any]:
    """The method's first code on one batch of 256 after another like it, as its README runs it.

    Adding up to its buckets is timed; the products of the buckets at the end are left out.
    """
    folder = checkout / "nn_similarity_index" if checkout else None
    if folder is None or not folder.is_dir():
        why = f"no folder {folder}" if folder else "no --first-code PATH was given"
        print(f"  skipped: {why}")
        return {"skipped": why}
    sys.path.insert(0, str(folder))
    import torchvision
    from sketched_kernels import SketchedKernels

    small = torchvision.models.resnet18(num_classes=10)  # with the stem of CIFAR
    small.conv1, small.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    out: dict[str, Any] = {}
    for name, net, side in ((SMALL, small, 32), (LARGE, torchvision.models.resnet50(), 224)):
        batch = torch.randn(256, 3, side, side), torch.zeros(256)
        loader = DataLoader([batch], batch_size=None)
        begun = time.perf_counter()
        code = SketchedKernels(net.cuda().eval(), loader, side, "cuda", 512, 1, 1000)
        code.compute_sketched_mat()  # touches all of its memory for the first time
        taken = timed(code.compute_sketched_mat)
        out[name] = {
            "samples_per_second": round(256 / taken, 2),
            "samples": 256,
            "host_peak_gib": round(host_peak(), 2),
        }
        print(f"  {name}: {256 / taken:,.1f} /s, {time.perf_counter() - begun:.0f} s", flush=True)
        del code, net
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/pass_gpu.json")
    parser.add_argument("--add", action="store_true", help="to what the file holds")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--networks", nargs="*", default=list(networks()))
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--rows", nargs="*", help="of the pass, such as 'record both'; all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=8, help="seconds for a row's runs")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--host", action="store_true", help="images in host memory, for hashes")
    parser.add_argument("--first-code", type=Path, help="a checkout of github.com/amzn/xfer")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU that torch can use; pass_cpu.py does without")
    results: dict[str, Any] = {}
    if options.add and options.out.exists():
        results = json.loads(options.out.read_text())
    results["environment"] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "resemblance": rs.__version__,
        "date": str(date.today()),
    }

    def part(key: str, work: Callable[..., Any], *arguments: Any) -> None:
        begun = time.perf_counter()
        print(key, flush=True)
        results[key] = work(*arguments)
        torch.cuda.empty_cache()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"  {time.perf_counter() - begun:.0f} s", flush=True)

    if "host" in options.only:  # first, while the process is small
        part("host memory", host_growth)
    if "rivals" in options.only:
        for name in (name for name in (LARGE, SMALL) if name in options.networks):
            part(f"pairs of {name}", rivals, name, options)
    if "pass" in options.only:
        for dtype in options.dtypes:
            for name in options.networks:
                part(f"{name}, {dtype}", the_pass, name, getattr(torch, dtype), options)
    if "hashes" in options.only:
        for name in options.networks:
            where = ", images on the host" if options.host else ""
            part(f"hashes of {name}{where}", hashes, name, options)
    if "state" in options.only:
        part("state", state_held)
    if "first-code" in options.only:  # last, as it takes much host memory
        part("first code", first_code, options.first_code)
    for key, result in results.items():
        rows = result.get("rows", {})
        shares = {k: v.get("of_the_limit", v.get("of_the_rival")) for k, v in rows.items()}
        if rows:
            print(f"{key:<30}" + "  ".join(f"{k} {share:.2f}" for k, share in shares.items()))
        elif key != "environment":
            print(f"{key:<30}{result}")


if __name__ == "__main__":
    main()
