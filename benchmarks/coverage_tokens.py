"""Whether error bars hold on tokens: two language models that read source code byte by byte.

    OMP_NUM_THREADS=1 python -m benchmarks.coverage_tokens [--draws 200] [--steps 400]

Tokens of one sequence are not independent, so error bars leave out sequences. Two small causal
networks are trained on Python's own library from two seeds. Then sequences are drawn from files
that neither has seen, again and again, both networks are recorded on them token by token, and
intervals are asked to cover the mean score of all draws. Beside it stands what leaving out blocks
would say, as if tokens were independent: `blocks` is that error over the true spread.
"""

from __future__ import annotations

import argparse
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance.similarity import block_estimator, jackknife
from resemblance.similarity.kernels import CompareConfig

from . import digits

WIDTH, HEADS, DEPTH, LENGTH = 96, 4, 3, 64
KERNELS = ("features", "gradients", "product")
LAYERS = ["blocks.0", "blocks.1", "blocks.2"]
POOL, DRAWN = 6000, 160  # sequences there are, and in a draw


class BytesForCausalLM(nn.Module):
    """A small causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, input_ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on and bytes of other files, each (sequences, LENGTH)."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    order = np.random.default_rng(0).permutation(len(files))
    content = [np.frombuffer(files[i].read_bytes(), np.uint8) for i in order]
    half = len(content) * 2 // 3
    parts = []
    for some in (content[:half], content[half:]):
        joined = np.concatenate(some)
        parts.append(joined[: len(joined) // LENGTH * LENGTH].reshape(-1, LENGTH))
    other = np.random.default_rng(1).permutation(parts[1])[:POOL]
    return parts[0], other


def trained(sequences: np.ndarray, seed: int, steps: int) -> tuple[nn.Module, float]:
    torch.manual_seed(seed)
    net = BytesForCausalLM()
    optimiser = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    rng, loss = np.random.default_rng(seed), torch.tensor(0.0)
    for _ in range(steps):
        ids = torch.from_numpy(sequences[rng.integers(len(sequences), size=48)]).long()
        logits = net(ids)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return net.eval(), float(loss)


def compared(nets: list[nn.Module], ids: Tensor) -> dict[str, dict[str, np.ndarray]]:
    """Scores, errors and intervals of each kernel, layer by layer."""
    reps = [rs.record(net, ids, layers=LAYERS, buckets=0, progress=False) for net in nets]
    out = {}
    for kernel in KERNELS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = rs.compare(*reps, kernel=kernel)  # type: ignore[arg-type]
        low, high = found.interval()
        asked = CompareConfig(kernel, "cka", found.centre, "blocks")  # type: ignore[arg-type]
        each = block_estimator._block_statistics(*reps, asked, "cpu")
        rest = each.each.mean(each.weight * ~torch.eye(len(each.weight), dtype=torch.bool))
        naive = jackknife.jackknife_error(rest.cross / rest.norms())
        parts = (found.scores, found.stderr, low, high, naive.numpy())
        names = ("score", "stderr", "low", "high", "naive")
        out[kernel] = {name: np.diag(x) for name, x in zip(names, parts, strict=True)}
        out[kernel]["warned"] = np.array(any("trusted" in str(w.message) for w in caught))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    train, other = text()
    made = [trained(train, seed, options.steps) for seed in (1, 2)]
    nets, losses = zip(*made, strict=True)
    print("cross-entropy of a byte, at the end:", [round(x, 3) for x in losses], flush=True)
    rng, draws = np.random.default_rng(2), []
    for i in range(options.draws):
        ids = torch.from_numpy(other[rng.permutation(len(other))[:DRAWN]]).long()
        draws.append(compared(list(nets), ids))
        if i % 20 == 19:
            print(i + 1, "draws", flush=True)
    result: dict[str, Any] = {
        "loss": [round(x, 3) for x in losses],
        "sequences": DRAWN,
        "length": LENGTH,
        "draws": options.draws,
        "rows": [],
    }
    for kernel in KERNELS:
        x = {name: np.stack([d[kernel][name] for d in draws]) for name in draws[0][kernel]}
        truth, spread = x["score"].mean(0), x["score"].std(0, ddof=1)
        covered = (x["low"] <= truth) & (truth <= x["high"])
        row = {
            "kernel": kernel,
            "layers": LAYERS,
            "score": np.round(truth, 4).tolist(),
            "spread": np.round(spread, 5).tolist(),
            "coverage": np.round(covered.mean(0), 3).tolist(),
            "sequences": np.round(x["stderr"].mean(0) / spread, 2).tolist(),
            "blocks": np.round(x["naive"].mean(0) / spread, 2).tolist(),
            "warned": round(float(x["warned"].mean()), 3),
        }
        result["rows"].append(row)
        print(row, flush=True)
    digits.write("coverage_tokens", result)


if __name__ == "__main__":
    main()
