"""Who is called the same function in another basis: copies that compute the same, and others.

    python -m benchmarks.same_function                     # four minutes on two cores
    python -m benchmarks.same_function --cost [--device cuda]

Convolutional networks on handwritten digits and a small transformer with RMS norms and gated MLPs
on Python's own library are changed so that their function stays: units permuted, units rescaled
by lognormal numbers (σ = 1), both, the residual stream rotated once norms were folded into the next
layers, norms folded alone. Beside them stand plain copies (int8, int4, pruned, tuned) and networks
that were trained apart: every pair of them is compared. Each is recorded with f ∘ g and without.
A verdict is what `compare` reports, with those of `check` for decibels and for KL. Writes
results/same_function.json.

`--cost` measures what `elementwise=True` adds to a pass, in CPU time or on a GPU in wall time, and
adds it to the file under the device's name. It is on by default only if that is below 2 %.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance.errors import ResemblanceWarning

from . import digits
from .changed_weights import pruned, rounded
from .networks import ResNet18

RESULT = digits.HERE / "results" / "same_function.json"
CHAIN = (0, 2, 5, 9, 11)  # layers of digits.network with weights, each giving to the next
DIGIT_LAYERS = ("1", "3", "6", "10")
LENGTH, WIDTH, BYTES = 32, 48, 256
TWINS = 7  # networks trained apart: 21 pairs


# -- digits --------------------------------------------------------------------------------------


def permuted(net: nn.Sequential, seed: int = 0) -> nn.Sequential:
    """The units of all hidden layers in another order."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one, two, places in _neighbours(net):
            order = torch.randperm(len(one.weight), generator=generator)
            one.weight.copy_(one.weight[order].clone())
            one.bias.copy_(one.bias[order].clone())
            inputs = (order[:, None] * places + torch.arange(places)).flatten()
            two.weight.copy_(two.weight[:, inputs].clone())
    return net


def rescaled(net: nn.Sequential, sigma: float = 1.0, seed: int = 0) -> nn.Sequential:
    """The units of all hidden layers times lognormal numbers, by which the next layer divides."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one, two, places in _neighbours(net):
            scale = torch.exp(sigma * torch.randn(len(one.weight), generator=generator))
            one.weight.mul_(scale.view(-1, *[1] * (one.weight.ndim - 1)))
            one.bias.mul_(scale)
            inputs = scale.repeat_interleave(places)
            two.weight.div_(inputs.view(1, -1, *[1] * (two.weight.ndim - 2)))
    return net


def _neighbours(net: nn.Sequential) -> Iterator[tuple[Any, Any, int]]:
    """Layers, the next ones, and at how many places these take each unit."""
    for i, j in itertools.pairwise(CHAIN):
        one, two = net[i], net[j]
        yield one, two, two.weight.shape[1] // len(one.weight)


def tuned(net: nn.Sequential) -> nn.Module:
    x, y = digits.load()
    return digits.train(copy.deepcopy(net), x[:900], y[:900], epochs=2, seed=9, rate=1e-3)


# -- transformer ---------------------------------------------------------------------------------


class Block(nn.Module):
    """Causal attention and a gated MLP, each after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, BYTES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def source_code() -> tuple[Tensor, Tensor]:
    """Bytes to train on, and sequences of files that are kept from it."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = b"".join(x.read_bytes() for x in files[1:80]), files[0].read_bytes() * 4
    seen, unseen = (torch.frombuffer(bytearray(x), dtype=torch.uint8).long() for x in parts)
    return seen, unseen[: 64 * LENGTH].view(-1, LENGTH)


def trained(text: Tensor, seed: int, steps: int, start: nn.Module | None = None) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = copy.deepcopy(start) if start is not None else Transformer()
    net = net.train()
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3 if start is None else 5e-4)
    for _ in range(steps):
        rows = torch.randint(len(text) - LENGTH, (16, 1), generator=generator)
        ids = text[rows + torch.arange(LENGTH)]
        loss = nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


@torch.no_grad()
def folded(net: Any) -> Any:
    """The gains of norms multiplied into the layers that follow."""
    net = copy.deepcopy(net)
    readers = [(block.norm1, (block.qkv,)) for block in net.blocks]
    readers += [(block.norm2, (block.gate, block.up)) for block in net.blocks]
    for norm, layers in [*readers, (net.norm, (net.head,))]:
        for layer in layers:
            layer.weight.mul_(norm.weight)
        norm.weight.fill_(1)
    return net


@torch.no_grad()
def rotated(net: Any, seed: int = 0) -> Any:
    """The residual stream turned by a random rotation, once norms have no gains."""
    net = folded(net)
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator)).Q
    turn = turn.float()
    for table in (net.embed, net.place):
        table.weight.copy_(table.weight @ turn)
    for block in net.blocks:
        for reader in (block.qkv, block.gate, block.up):
            reader.weight.copy_(reader.weight @ turn)
        for writer in (block.out, block.down):
            writer.weight.copy_(turn.T @ writer.weight)
            writer.bias.copy_(writer.bias @ turn)
    net.head.weight.copy_(net.head.weight @ turn)
    return net


@torch.no_grad()
def hidden_units(net: Any, *, scale: bool, seed: int = 0) -> Any:
    """The hidden units of MLPs in another order, or those before the gate rescaled."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    for block in net.blocks:
        if scale:
            s = torch.exp(torch.randn(3 * WIDTH, generator=generator))
            block.up.weight.mul_(s[:, None])
            block.up.bias.mul_(s)
            block.down.weight.div_(s)
        else:
            order = torch.randperm(3 * WIDTH, generator=generator)
            for layer in (block.gate, block.up):
                layer.weight.copy_(layer.weight[order].clone())
                layer.bias.copy_(layer.bias[order].clone())
            block.down.weight.copy_(block.down.weight[:, order].clone())
    return net


# -- verdicts ------------------------------------------------------------------------------------


def verdict(base: rs.Representation, other: rs.Representation, *, gate: bool) -> dict[str, Any]:
    found = rs.compare(base, other)
    same = found.same_function
    limits: list[dict[str, Any]] = [{"min_db": 20}, {"max_kl": 0.01}, {"min": {"features": 0.9}}]
    names = ("min_db 20", "max_kl 0.01", "min features 0.9")
    checked = [rs.check(base, other, **limit).status for limit in limits if gate]
    return {
        "kl": found.behaviour.kl if found.behaviour else None,
        "reported": None if same is None else dict(zip(same.layers, same.basis, strict=True)),
        "recognised": same is not None and same.recognised,
        **dict(zip(names, checked, strict=False)),
    }


def record(net: nn.Module, x: Tensor, layers: Any, elementwise: bool) -> rs.Representation:
    how: dict[str, Any] = {"unit": "token"} if x.dtype == torch.long else {}
    return rs.record(net, x, layers=layers, elementwise=elementwise, buckets=0, **how)


def rows_of(
    what: str,
    nets: dict[str, tuple[str, nn.Module]],
    twins: list[nn.Module],
    x: Tensor,
    layers: Any,
) -> Iterator[dict[str, Any]]:
    """The verdict on each copy of the first network, and on every pair of networks."""
    for elementwise in (True, False):
        base = record(twins[0], x, layers, elementwise)
        for name, (kind, net) in nets.items():
            row = verdict(base, record(net, x, layers, elementwise), gate=True)
            yield {"network": what, "copy": name, "kind": kind, "elementwise": elementwise, **row}
        reps = [base] + [record(net, x, layers, elementwise) for net in twins[1:]]
        for i, j in itertools.combinations(range(len(reps)), 2):
            row = verdict(reps[i], reps[j], gate=False)
            about = {"network": what, "copy": f"twins {i} and {j}", "kind": "twin"}
            yield {**about, "elementwise": elementwise, **row}


def all_rows() -> Iterator[dict[str, Any]]:
    x, y = digits.load()
    twins: list[Any] = [
        digits.train(digits.network(10, seed), x[:900], y[:900], epochs=8, seed=seed)
        for seed in range(TWINS)
    ]
    net = twins[0]
    copies: dict[str, tuple[str, nn.Module]] = {
        "permuted": ("same", permuted(net)),
        "rescaled": ("same", rescaled(net)),
        "permuted, rescaled": ("same", rescaled(permuted(net))),
        "int8": ("plain", rounded(net, 8)),
        "int4": ("plain", rounded(net, 4)),
        "int8, permuted": ("plain", permuted(rounded(net, 8))),
        "half pruned": ("plain", pruned(net, 0.5)),
        "tuned": ("plain", tuned(net)),
    }
    yield from rows_of("digits", copies, twins, x[900:1400], list(DIGIT_LAYERS))

    text, ids = source_code()
    models = [trained(text, seed, 200) for seed in range(3)]
    net = models[0]
    copies = {
        "norms folded": ("same", folded(net)),
        "rotated": ("same", rotated(net)),
        "hidden units permuted": ("same", hidden_units(net, scale=False)),
        "hidden units rescaled": ("same", hidden_units(net, scale=True)),
        "int8": ("plain", rounded(net, 8)),
        "int4": ("plain", rounded(net, 4)),
        "tuned": ("plain", trained(text, 9, 20, net)),
    }
    parts = ("", ".norm1", ".norm2", ".up")
    layers = [f"blocks.{i}{part}" for i in range(3) for part in parts] + ["norm"]
    yield from rows_of("transformer", copies, models, ids, layers)


# -- what elementwise costs ----------------------------------------------------------------------


def cost(device: str, samples: int, repeats: int) -> dict[str, Any]:
    """The time of a pass with f ∘ g over that without, of a ResNet and of a transformer."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    torch.manual_seed(0)
    cases: dict[str, tuple[nn.Module, Tensor, dict[str, Any]]] = {
        "ResNet-18, 32 × 32": (ResNet18(), torch.randn(samples, 3, 32, 32), {}),
        "transformer": (
            Transformer(), torch.randint(0, BYTES, (samples, LENGTH)), {"unit": "token"}
        ),
    }  # fmt: skip
    out = {}
    for name, (net, x, how) in cases.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        sizes = {}
        for repeat in range(repeats + 1):
            for elementwise, took in times.items():
                start = clock()
                rep = rs.record(net.to(device).eval(), x, elementwise=elementwise, **how)
                if repeat:  # the first warms up
                    took.append(clock() - start)
                elif not repeat:
                    with tempfile.NamedTemporaryFile(suffix=".rsm") as file:
                        sizes[elementwise] = os.path.getsize(rep.save(file.name))
        medians = {key: statistics.median(values) for key, values in times.items()}
        out[name] = {
            "samples": samples,
            "seconds_without": times[False],
            "seconds_with": times[True],
            "time_ratio": medians[True] / medians[False],
            "file_ratio": sizes[True] / sizes[False],
        }
        print(f"{device}, {name}: {out[name]['time_ratio']:.3f} of the time", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ResemblanceWarning)
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    known.pop("environment", None)
    if args.cost:
        measured = cost(args.device, args.samples, args.repeats)
        known["elementwise_cost"] = {**known.get("elementwise_cost", {}), args.device: measured}
    else:
        known["rows"] = []
        for row in all_rows():
            known["rows"].append(row)
            if row["kind"] != "twin" or row["reported"]:
                kinds = sorted(set((row["reported"] or {}).values()))
                print(row["network"], row["copy"], row["elementwise"], kinds, flush=True)
        same = [row for row in known["rows"] if row["kind"] == "same"]
        twins = [row for row in known["rows"] if row["kind"] == "twin"]
        known["summary"] = {
            "function_preserving": len(same),
            "recognised": sum(row["recognised"] for row in same),
            "undecided": sum(row["reported"] is not None and not row["recognised"] for row in same),
            "failed_min_db": sum(row["min_db 20"] == "failed" for row in same),
            "failed_min_features": sum(row["min features 0.9"] == "failed" for row in same),
            "twins": len(twins),
            "twins_called_the_same": sum(row["reported"] is not None for row in twins),
        }
        print(known["summary"])
    digits.write("same_function", known)


if __name__ == "__main__":
    main()
