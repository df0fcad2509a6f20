"""The pass on a GPU: `record` against the bare forward and activation-only backward, in one run.

    python benchmarks/pass_gpu.py [--out FILE] [--networks resnet50 vit ...] [--quick]

The limit of the method is one forward and one backward to the first recorded layer with nothing
recorded, at the same batch size, on the same data, which lie on the device. Rows per network and
dtype: forward alone, that limit, and `record` with features only, with blocks only, with buckets
only, and with both. Random weights: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import resemblance as rs
from networks import ResNet18
from resemblance.capture import untouched
from resemblance.layers import select, trace
from resemblance.targets import losses as losses_of


def networks() -> dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], int, int, int]]:
    """Name -> (model, inputs of n samples, batch size, block, samples)."""

    def images(side: int) -> Callable[[int], Tensor]:
        return lambda n: torch.randn(n, 3, side, side)

    def tokens(n: int) -> dict[str, Tensor]:
        return {"input_ids": torch.randint(0, 50257, (n, 512))}

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
        "resnet18 at 32": (ResNet18, images(32), 1024, 128, 49152),
        "resnet50 at 224": (torchvision("resnet50"), images(224), 256, 128, 16384),
        "vit_b_16 at 224": (torchvision("vit_b_16"), images(224), 256, 128, 16384),
        "gpt2 at 512": (gpt2, tokens, 64, 64, 2048),
    }


def bare(model: nn.Module, batches: list[Any], *, backward: bool) -> None:
    """Forward, and backward to the first layer that `record` would tap; nothing else."""
    loss_of = losses_of("tempered", 0.5, None)

    def run(batch: Any) -> Any:
        return model(**batch) if isinstance(batch, dict) else model(batch)

    with untouched(model):
        if not backward:
            with torch.no_grad():
                for batch in batches:
                    run(batch)
            return
        first = select(model, "auto", trace(model, lambda: run(_take(batches[0], 2))))[0]
        leaves: list[Tensor] = []

        def begin(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()

        handle = dict(model.named_modules())[first.module].register_forward_hook(begin)
        try:
            for batch in batches:
                leaves.clear()
                torch.autograd.grad(loss_of(run(batch), batch).sum(), leaves)
        finally:
            handle.remove()


def _take(batch: Any, n: int) -> Any:
    return {k: v[:n] for k, v in batch.items()} if isinstance(batch, dict) else batch[:n]


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of `work` after one warm-up, with the device idle before and after."""
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def measure(name: str, dtype: torch.dtype, repeats: int, samples: int | None) -> dict[str, Any]:
    build, inputs, batch_size, block, count = networks()[name]
    count = samples or (count if dtype != torch.float32 else count // 4)
    torch.manual_seed(0)
    model = build().cuda().eval()
    data = inputs(count)
    if isinstance(data, dict):
        data = {k: v.cuda() for k, v in data.items()}
        batches = [
            {k: v[i : i + batch_size] for k, v in data.items()} for i in range(0, count, batch_size)
        ]
    else:
        model = model.to(memory_format=torch.channels_last)
        data = data.cuda().to(memory_format=torch.channels_last)
        batches = list(data.split(batch_size))
    common = {"batch_size": batch_size, "block": block, "progress": False, "data_id": "random"}
    variants: dict[str, Callable[[], Any]] = {
        "forward": lambda: bare(model, batches, backward=False),
        "forward + backward": lambda: bare(model, batches, backward=True),
        "record features": lambda: rs.record(model, data, gradients=False, **common),
        "record blocks": lambda: rs.record(model, data, buckets=0, **common),
        "record buckets": lambda: rs.record(model, data, blocks=0, **common),
        "record both": lambda: rs.record(model, data, **common),
        "forward + backward again": lambda: bare(model, batches, backward=True),
    }
    rows: dict[str, Any] = {}
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        for label, work in variants.items():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
            taken = seconds(work, repeats)
            rows[label] = {
                "samples_per_second": round(count / taken, 1),
                "device_gib": round((torch.cuda.max_memory_allocated() - base) / 2**30, 3),
                "host_peak_gib": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
                ),
            }
            print(f"  {label:<26}{rows[label]['samples_per_second']:>12,.0f} /s"
                  f"{rows[label]['device_gib']:>9.2f} GiB", flush=True)  # fmt: skip
    limit = rows["forward + backward"]["samples_per_second"]
    for row in rows.values():
        row["of_the_limit"] = round(row["samples_per_second"] / limit, 3)
    return {"batch_size": batch_size, "block": block, "samples": count, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/pass_gpu.json")
    parser.add_argument("--networks", nargs="*", default=list(networks()))
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "environment": {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "resemblance": rs.__version__,
            "date": str(date.today()),
        }
    }
    for dtype in arguments.dtypes:
        for name in arguments.networks:
            print(f"{name}, {dtype}", flush=True)
            results[f"{name}, {dtype}"] = measure(
                name, getattr(torch, dtype), arguments.repeats, arguments.samples
            )
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
            torch.cuda.empty_cache()
    for key, result in results.items():
        if key != "environment":
            rows = result["rows"]
            print(f"{key:<30}" + "  ".join(f"{k} {v['of_the_limit']:.2f}" for k, v in rows.items()))


if __name__ == "__main__":
    main()
