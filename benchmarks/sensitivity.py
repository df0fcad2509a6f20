"""Which blocks to spare: lists by `sensitivity` against random lists and the best of all.

    python -m benchmarks.sensitivity            # four minutes on two cores

Two networks are trained here: a residual network on handwritten digits (stem, four blocks, head)
and a GPT of four blocks on Python's own library, token by token. Copies are rounded to few bits, a
step a row, or pruned. Effects are measured on 256 samples; lists are judged on 256 others, where
every list of one to three blocks is run. Time is given in forward passes of the base over the same
samples, and memory as what tensors take beyond the models.
Writes results/sensitivity.json.
"""

from __future__ import annotations

import copy
import itertools
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resemblance as rs

from . import digits
from .changed_weights import pruned, rounded

SAMPLES, LENGTH, TOKENS = 256, 32, 256  # bytes are the tokens
UNTOUCHED = 2**25 - 2**16  # bytes of a block that sets glibc up, and which nothing writes into
COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "int4": lambda net: rounded(net, 4),
    "int3": lambda net: rounded(net, 3),
    "half pruned": lambda net: pruned(net, 0.5),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.Sequential(*(Block(24) for _ in range(4))),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 10),
    )


class Layer(nn.Module):
    """A block of a GPT: causal attention and an MLP, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int = 96, depth: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        return self.head(self.norm(self.layers(x)))


def digit_network() -> tuple[nn.Module, Tensor]:
    """The residual network, and the images that it has not seen."""
    x, y = digits.load()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = residual()
    return digits.train(net, x[:900], y[:900], epochs=12, seed=0), x[900:]


def language_model(steps: int) -> tuple[nn.Module, Tensor]:
    """The GPT, and sequences of files that it has not seen."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = [path.read_bytes() for path in files]
    cut = [
        torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8).long()
        for part in ([t for i, t in enumerate(text) if i % 10], text[::10])
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = GPT()
    optimiser = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(len(cut[0]) - LENGTH, (24, 1), generator=generator)
        ids = cut[0][starts + torch.arange(LENGTH)]
        loss = nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"loss of a byte: {float(loss.detach()):.2f} nats", flush=True)
    unseen = cut[1][: 1024 * LENGTH].view(-1, LENGTH)
    order = torch.randperm(len(unseen), generator=generator)
    return net.eval(), unseen[order][: 2 * SAMPLES]


@torch.no_grad()
def log_probabilities(net: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([net(some).log_softmax(-1) for some in x.split(64)])


def effect(log_p: Tensor, net: nn.Module, x: Tensor) -> float:
    """KL(base‖net), of the base's predictions."""
    log_q = log_probabilities(net, x)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).double().mean())


def restored(copied: nn.Module, base: nn.Module, names: tuple[str, ...]) -> nn.Module:
    net = copy.deepcopy(copied)
    for name in names:
        net.get_submodule(name).load_state_dict(base.get_submodule(name).state_dict())
    return net


def lists(base: nn.Module, copied: nn.Module, found: rs.Sensitivity, x: Tensor) -> list[Any]:
    """What every list of one to three blocks leaves on these samples, and those of rankings."""
    out, log_p = [], log_probabilities(base, x)
    for size in (1, 2, 3):
        left = {
            names: effect(log_p, restored(copied, base, names), x)
            for names in itertools.combinations(found.blocks, size)
        }
        row: dict[str, Any] = {"kept": size, "lists": len(left)}
        for name, score in {
            "contribution": found.contribution, "own": found.own, "gain": found.gain,
        }.items():  # fmt: skip
            best = {found.blocks[i] for i in np.argsort(-score)[:size]}
            row[f"by_{name}"] = next(left[names] for names in left if set(names) == best)
        row |= {"best": min(left.values()), "random": float(np.mean(list(left.values())))}
        row["better_lists"] = sum(value < row["by_contribution"] for value in left.values())
        out.append(row)
    return out


def run_time(run: Callable[[], Any], times: int = 3) -> float:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return min(took)


def peak_bytes(run: Callable[[], Any]) -> int:
    """The largest sum of tensors that were allocated in a run and not yet freed."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    level = peak = 0
    events = (e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        level += event.nbytes() * (abs(event.nbytes()) != UNTOUCHED)
        peak = max(peak, level)
    return peak


@torch.no_grad()
def forward(net: nn.Module, x: Tensor) -> None:
    for some in x.split(32):
        net(some)


def measured(name: str, label: str, base: nn.Module, x: Tensor) -> dict[str, Any]:
    copied = COPIES[label](base)
    here, there = x[:SAMPLES], x[SAMPLES : 2 * SAMPLES]

    def run(samples: int = SAMPLES) -> rs.Sensitivity:
        return rs.sensitivity(base, copied, here, samples=samples, keep=2)

    found = run()
    one_pass = run_time(lambda: forward(base, here))
    row = {
        "network": name,
        "copy": label,
        "blocks": list(found.blocks),
        **{k: getattr(found, k).tolist() for k in ("own", "own_stderr", "gain", "gain_stderr")},
        "whole": found.whole,
        "whole_stderr": found.whole_stderr,
        "sum_own": float(found.own.sum()),
        "sum_gain": float(found.gain.sum()),
        "sum_contribution": float(found.contribution.sum()),
        "passes": found.passes,
        "time_in_forward_passes": run_time(run) / one_pass,
        "peak_mb": peak_bytes(run) / 1e6,
        "peak_mb_of_half_the_samples": peak_bytes(lambda: run(SAMPLES // 2)) / 1e6,
        "peak_mb_of_a_forward_pass": peak_bytes(lambda: forward(base, here)) / 1e6,
        "lists": lists(base, copied, found, there),
    }
    print(f"{name}, {label}: {found!r}, {row['time_in_forward_passes']:.1f} passes", flush=True)
    return row


def main() -> None:
    start = time.process_time()
    networks = {"residual, digits": digit_network(), "GPT, source code": language_model(500)}
    rows = [measured(name, label, *both) for name, both in networks.items() for label in COPIES]
    digits.write(
        "sensitivity", {"samples": SAMPLES, "cpu_s": time.process_time() - start, "rows": rows}
    )


if __name__ == "__main__":
    main()
