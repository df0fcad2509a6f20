"""The Gram kernel on a GPU: how fast it reads, against a product for each block, and how exact.

    python -m benchmarks.grams_gpu [--out FILE]

Shapes are those of a batch: 8 blocks of 128 for a ResNet-18 at 32, 2 of 128 for a ResNet-50 and a
ViT-B/16 at 224, 1 of 64 for GPT-2. Speed counts features and gradients once each; the error is the
largest of a correlation against float64.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

from resemblance._ops.gram import block_grams, gram

SHAPES = (
    (8, 128, 65536), (8, 128, 16384), (8, 128, 4096), (2, 128, 802816), (2, 128, 401408),
    (2, 128, 200704), (2, 128, 100352), (2, 128, 151296), (1, 64, 393216),
)  # fmt: skip


def measure(blocks: int, size: int, d: int, dtype: torch.dtype) -> dict[str, Any]:
    f, g = (torch.randn(blocks * size, d, device="cuda").relu().to(dtype) for _ in "fg")
    spans = [(i * size, (i + 1) * size) for i in range(blocks)]
    moved = 2 * f.numel() * f.element_size() / 1e9  # GB, so that over ms it is TB/s
    ours = do_bench(lambda: block_grams([f, g], spans, size), return_mode="median")
    theirs = do_bench(lambda: [gram(x[a:b]) for x in (f, g) for a, b in spans],
                      return_mode="median")  # fmt: skip
    exact = f[:size].double() @ f[:size].double().T
    scale = exact.diagonal().sqrt()
    apart = (block_grams([f, g], spans, size)[0, 0] - exact).abs() / torch.outer(scale, scale)
    return {
        "blocks": blocks, "size": size, "features": d, "dtype": str(dtype)[6:],
        "terabytes_per_second": round(moved / ours, 2),
        "product_for_each_block": round(moved / theirs, 2),
        "error": float(apart.max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).parent
    parser.add_argument("--out", type=Path, default=here / "results/grams_gpu.json")
    out = parser.parse_args().out
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES:
            rows.append(measure(*shape, dtype))
            print(rows[-1], flush=True)
    environment = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "date": str(date.today()),
    }  # fmt: skip
    out.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
