"""What `record(compile=True)` gains on a GPU, and whether it gives the same scores.

    python -m benchmarks.compiled_gpu [--networks "resnet50 at 224" ...] [--out FILE]

Networks, data and batch sizes of `benchmarks.pass_gpu`, bfloat16. Of each: samples a second of
`record` as written and compiled, the better of two passes, by which time there is a graph; what
the first compiled pass took longer; and the CKA of every layer with a second network from another
seed, recorded as written, by either recording: how far the two lie apart, in standard errors.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import resemblance as rs

from .pass_gpu import autocast, length, made, networks, take, timed

SAMPLES = {"resnet50 at 224": 16384, "vit_b_16 at 224": 6144, "gpt2 at 512": 1024}
KERNELS = ("features", "gradients", "product")


def measured(name: str) -> dict[str, Any]:
    batch_size, block, *_ = networks()[name][2]
    data = networks()[name][1](SAMPLES[name])
    options = {"batch_size": batch_size, "block": block, "progress": False, "data_id": "random"}
    options["unit"] = "sample"
    found: dict[str, rs.Representation] = {}

    def passes(compiled: bool) -> list[float]:
        def work() -> None:
            found[str(compiled)] = rs.record(model, data, compile=compiled, **options)

        return [timed(work) for _ in range(3)]

    with autocast(torch.bfloat16):
        other = rs.record(made(name, 1), take(data, slice(64 * block)), **options)
        model = made(name)
        written, compiled = passes(False), passes(True)
        # what is compared, on as many samples as the other saw
        few = take(data, slice(64 * block))
        pair = [rs.record(model, few, compile=way, **options) for way in (False, True)]
    apart = {kernel: _apart(pair, other, kernel) for kernel in KERNELS}
    row = {
        "samples": length(data),
        "as_written_per_second": round(length(data) / min(written), 1),
        "compiled_per_second": round(length(data) / min(compiled[1:]), 1),
        "gain": round(min(written) / min(compiled[1:]), 3),
        "seconds_to_compile": round(compiled[0] - min(compiled[1:]), 1),
        "apart_in_standard_errors": apart,
    }
    print(name, row, flush=True)
    return row


def _apart(
    pair: list[rs.Representation], other: rs.Representation, kernel: str
) -> dict[str, float]:
    """Of scores with a third network: the most over layers, and the most of the scores alone."""
    one, two = (rs.compare(rep, other, kernel=kernel) for rep in pair)
    scores = np.abs(one.scores - two.scores).diagonal()
    errors = np.maximum(one.stderr.diagonal(), 1e-12)
    return {
        "errors": round(float(np.nanmax(scores / errors)), 3),
        "score": round(float(np.nanmax(scores)), 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    results = Path(__file__).parent / "results/compiled_gpu.json"
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument("--networks", nargs="*", default=list(SAMPLES), choices=list(SAMPLES))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU that torch can use")
    content: dict[str, Any] = {
        "environment": {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "resemblance": rs.__version__,
        }
    }
    for name in options.networks:
        content[name] = measured(name)
        torch.cuda.empty_cache()
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
