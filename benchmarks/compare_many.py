"""How `compare_all` grows: R networks of ten layers, R from 10 to 1,000.

The Representations are synthetic (random packed kernels of 16 blocks of 128 samples), since the
time does not depend on what they hold; all R of them are in memory, as they would be in a zoo.

    python benchmarks/compare_many.py --out benchmarks/results/compare_many.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from types import MappingProxyType

import torch

import resemblance as rs
from resemblance.representation import Layer, Representation, Settings

LAYERS, BLOCKS, BLOCK = 10, 16, 128


def template(kinds: tuple[str, ...]) -> Representation:
    """One Representation with the settings that all share."""
    settings = Settings(
        seed=0,
        buckets=0,
        per_sample=1,
        block=BLOCK,
        blocks=BLOCKS,
        max_dim=None,
        pool="flatten",
        target="none" if kinds == ("features",) else "tempered",
        beta=None if kinds == ("features",) else 0.5,
        elementwise=False,
    )
    return Representation(
        layers=(),
        settings=settings,
        samples=BLOCKS * BLOCK,
        model=MappingProxyType({"name": "random"}),
        data=MappingProxyType({"fingerprint": "0", "shards": [[0, 1]]}),
        made=MappingProxyType({}),
        block_sizes=(BLOCK,) * BLOCKS,
        block_numbers=tuple(range(BLOCKS)),
    )


def synthetic(count: int, kinds: tuple[str, ...]) -> list[Representation]:
    """Networks whose correlations are random 16-bit numbers about a common pattern."""
    generator = torch.Generator().manual_seed(0)
    size = BLOCK * (BLOCK - 1) // 2
    common = torch.randint(-8000, 8000, (BLOCKS, size), generator=generator).short()
    whole = template(kinds)
    out = []
    for i in range(count):
        layers = []
        for at in range(LAYERS):
            tensors, moments = {}, {}
            for kind in kinds:
                own = torch.randint(-4000, 4000, (BLOCKS, size), generator=generator).short()
                tensors[f"{kind}.blocks.triangle"] = own.add_(common)
                tensors[f"{kind}.blocks.diagonal"] = torch.ones(BLOCKS, BLOCK)
                moments[f"trace_{kind}"] = float(BLOCKS * BLOCK)
            layers.append(
                Layer(
                    name=f"layer{at}",
                    shape=(64,),
                    dim=64,
                    folded=False,
                    moments=MappingProxyType(moments),
                    tensors=MappingProxyType(tensors),
                )
            )
        model = MappingProxyType({"name": f"net{i}"})
        fields = {**vars(whole), "layers": tuple(layers), "model": model}
        out.append(Representation(**fields))
    return out


def timed(reps: list[Representation], kernel: str) -> dict[str, object]:
    wall, cpu = time.perf_counter(), time.process_time()
    rs.compare_all(reps, kernel=kernel)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    pairs = len(reps) * (len(reps) - 1) // 2
    return {
        "networks": len(reps),
        "kernel": kernel,
        "seconds": round(wall, 3),
        "cpu_seconds": round(cpu, 3),
        "pairs": pairs,
        "pairs_per_second": round(pairs / wall, 1),
        "layer_pairs_per_second": round(LAYERS * pairs / wall, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--product-up-to", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for kernel, kinds in (("features", ("features",)), ("product", ("features", "gradients"))):
        most = max(options.sizes) if kernel == "features" else options.product_up_to
        sizes = [size for size in options.sizes if size <= most]
        zoo = synthetic(max(sizes), kinds)
        rs.compare_all(zoo[:2], kernel=kernel)  # warm-up
        for size in sizes:
            rows.append(timed(zoo[:size], kernel))
            print(rows[-1], flush=True)
        del zoo
    result = {
        "what": f"compare_all over networks of {LAYERS} layers, {BLOCKS} blocks of {BLOCK} samples",
        "environment": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "peak_memory_gb": round(
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, 2
            ),
        },
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
