"""How `compare` grows with layers, L from 5 to 80, and `compare_all` with networks, R up to 1,000.

The Representations are synthetic (random packed kernels of blocks of 128 samples: 64 of them for a
pair, 16 of ten layers for many networks), since the time does not depend on what they hold; all R
of them are in memory, as they would be in a zoo.

    python -m benchmarks.compare_many --out benchmarks/results/compare_many.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from dataclasses import replace
from pathlib import Path

import torch

import resemblance as rs
from resemblance.representation.layer import Blocks, Layer, Products, Recorded
from resemblance.representation.representation import (
    DataInfo,
    Made,
    ModelInfo,
    Representation,
    Settings,
)

LAYERS, BLOCKS, BLOCK = 10, 16, 128
PAIR_BLOCKS = 64


def template(kinds: tuple[str, ...], blocks: int) -> Representation:
    """One Representation with the settings that all share."""
    settings = Settings(
        seed=0,
        buckets=0,
        per_sample=1,
        block=BLOCK,
        blocks=blocks,
        max_dim=None,
        pool="flatten",
        target="none" if kinds == ("features",) else "tempered",
        beta=None if kinds == ("features",) else 0.5,
        elementwise=False,
    )
    return Representation(
        layers=(),
        settings=settings,
        samples=blocks * BLOCK,
        model=ModelInfo("random", fingerprint=None, parameters=None),
        data=DataInfo("random", blocks * BLOCK, "seeded", ((0, 1),), fingerprint="0"),
        made=Made.now(dtype="float32"),
        block_sizes=(BLOCK,) * blocks,
        block_numbers=tuple(range(blocks)),
    )


def synthetic(
    count: int, kinds: tuple[str, ...], depth: int = LAYERS, blocks: int = BLOCKS
) -> list[Representation]:
    """Networks whose correlations are random 16-bit numbers about a common pattern."""
    generator = torch.Generator().manual_seed(0)
    size = BLOCK * (BLOCK - 1) // 2
    common = torch.randint(-8000, 8000, (blocks, size), generator=generator).short()
    whole = template(kinds, blocks)
    out = []
    for i in range(count):
        layers = []
        for at in range(depth):
            recorded = {}
            for kind in kinds:
                own = torch.randint(-4000, 4000, (blocks, size), generator=generator).short()
                packed = Blocks(own.add_(common), torch.ones(blocks, BLOCK))
                recorded[kind] = Recorded(float(blocks * BLOCK), packed)
            layers.append(
                Layer(
                    name=f"layer{at}",
                    shape=(64,),
                    dim=64,
                    folded=False,
                    products=Products(1.0, 1.0, 1.0, 1.0) if "gradients" in kinds else None,
                    **recorded,
                )
            )
        out.append(replace(whole, layers=tuple(layers)).renamed(f"net{i}"))
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


def pair(depth: int) -> dict[str, object]:
    """`compare` of two networks with a map of depth × depth, with error bars and chance level."""
    a, b = synthetic(2, ("features",), depth, PAIR_BLOCKS)
    times = []
    for _ in range(4):  # the first one is the warm-up
        start = time.perf_counter()
        rs.compare(a, b, kernel="features")
        times.append(time.perf_counter() - start)
    return {"layers": depth, "seconds": [round(t, 3) for t in sorted(times[1:])]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--product-up-to", type=int, default=300)
    parser.add_argument("--layers", type=int, nargs="+", default=[5, 10, 20, 40, 80])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pairs = []
    for depth in options.layers:
        pairs.append(pair(depth))
        print(pairs[-1], flush=True)
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
        "pair": {"what": f"compare of two networks, {PAIR_BLOCKS} blocks", "rows": pairs},
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
