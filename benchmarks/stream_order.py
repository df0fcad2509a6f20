"""How much of a sorted stream's order a shuffle buffer leaves, and what that does to scores.

    OMP_NUM_THREADS=1 python -m benchmarks.stream_order [--out benchmarks/results/stream_order.json]

A stream of ten classes, one after the other, 1,000 or 10,000 samples each: vectors of 32 numbers of
which a fifth of the variance is between classes. Two untrained networks are recorded on it through
buffers of several sizes. Shares are those of the variance at the last layer that `record` measures
for its warning: between blocks of 128 successive samples, and between the 64 blocks that are kept,
which come first, and all later ones. *CKA* is that of features from blocks, against the same from
the samples in random order.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance._models.run import open_pass
from resemblance.recording.stream_order import OrderCheck

CLASSES, WIDTH = 10, 32
BLOCK, KEPT = 128, 64  # samples in a block, and blocks that are kept
BUFFERS = (1, 100, 1_000, 3_000, 10_000, 30_000, 100_000)


def samples(count: int) -> Tensor:  # (count, WIDTH), sorted by class
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, WIDTH, generator=generator) * 0.5
    noise = torch.randn(count, WIDTH, generator=generator)
    return centres.repeat_interleave(count // CLASSES, 0) + noise


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(),
                         nn.Linear(48, CLASSES))  # fmt: skip


def stream(x: Tensor, buffer: int) -> Any:
    rows = ({"__key__": str(i), "x": row} for i, row in enumerate(x))
    return rs.stream(rows, lambda row: row["x"], buffer=buffer)


def shares(x: Tensor, buffer: int) -> dict[str, float]:
    """What `record` measures at the last layer, also where it is too little to warn of."""
    net, check = network(0), OrderCheck()
    with open_pass(net, stream(x, buffer), block=BLOCK) as run:
        for _, batch in run.batches(BLOCK):
            with torch.no_grad():
                check.add(net(batch), [(0, len(batch))])
    return {"between blocks": check.share_between(), "first from later": check.share_apart(KEPT)}


def measured(count: int) -> list[dict[str, Any]]:
    x = samples(count)
    true = _cka(x, None)
    out = []
    for buffer in (b for b in BUFFERS if b <= count):
        row = {"samples": count, "buffer": buffer, **shares(x, buffer)}
        row |= {"cka": _cka(x, buffer), "cka in random order": true}
        print(json.dumps(row), flush=True)
        out.append(row)
    return out


def _cka(x: Tensor, buffer: int | None) -> float:
    """Between two networks at the first layer, from blocks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (
            rs.record(
                network(seed),
                x if buffer is None else stream(x, buffer),
                layers="1",
                gradients=False,
                block=BLOCK,
                progress=False,
            )
            for seed in (0, 1)
        )
        found = rs.compare(one, two, kernel="features", estimator="blocks")
    return float(found.scores[0, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [row for count in given.samples for row in measured(count)]
    if given.out is not None:
        given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
