"""What recording costs on language models of a billion parameters and more, as a ratio in one run.

    python -m benchmarks.large_gpu --out benchmarks/results/large_gpu.json [--only 1.1B/512/256]

Llama-shaped networks with random weights in bfloat16, sequences of random tokens, block 128, 16
tokens of each sequence, all layers. The *bare* pass is the same micro-batches through the same
network, forward and back to the embeddings, with the same gradient at the logits and no taps. Both
are timed in a process that has recorded once; what the first recording costs more is stated as
`cold`. Times are wall clock, from data on the host to a finished Representation.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance._models.losses import Objective

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500},
    "1.1B": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
             "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000},
    "6.7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000},
}  # fmt: skip
# name, tokens of a sequence, sequences, sequences in a forward pass
CASES = [
    ("1.1B", 512, 256, 32),
    ("1.1B", 512, 2048, 32),
    ("1.1B", 2048, 256, 8),
    ("6.7B", 512, 256, 16),
    ("6.7B", 2048, 256, 4),
]
BLOCK = 128


def network(shape: str, length: int, device: torch.device) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=length)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            return LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def bare(net: nn.Module, ids: Tensor, batch: int, device: torch.device) -> None:
    """Forward and back to the embeddings, of the loss that is recorded, and nothing else."""
    objective = Objective(summed=True)
    embed: Any = net.get_input_embeddings()  # type: ignore[operator]
    for part in ids.split(batch):
        some = part.to(device, non_blocking=True)
        leaf = embed(some).detach().requires_grad_()
        outputs = net(inputs_embeds=leaf, use_cache=False)
        at, gradient = objective.start(some, outputs)
        torch.autograd.grad(at, leaf, gradient)


def record(net: nn.Module, ids: Tensor, batch: int) -> rs.Representation:
    return rs.record(net, ids, block=BLOCK, batch_size=batch, progress=False)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Seconds, and GiB at the most on the device."""
    cuda = device.type == "cuda"
    gc.collect()  # so that neither pays for the other's garbage
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    return took, torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0


def measured(
    net: nn.Module, case: tuple[str, int, int, int], device: torch.device, patience: float
) -> dict[str, Any]:
    shape, length, sequences, batch = case
    vocabulary = SHAPES[shape]["vocab_size"]
    ids = torch.randint(3, vocabulary, (sequences, length), generator=torch.manual_seed(1))
    times: dict[str, list[float]] = {"bare": [], "record": []}
    memory: dict[str, float] = {}
    began = time.perf_counter()
    while not times["record"] or time.perf_counter() - began < patience:  # in turn: clocks drift
        for name, work in (
            ("bare", lambda: bare(net, ids, batch, device)),
            ("record", lambda: record(net, ids, batch)),
        ):
            seconds, memory[name] = timed(work, device)
            times[name].append(round(seconds, 3))
    best = {name: min(values) for name, values in times.items()}
    row = {
        "model": shape,
        "length": length,
        "sequences": sequences,
        "batch": batch,
        "seconds": times,
        "ratio": round(best["bare"] / best["record"], 3),
        "gib": {name: round(value, 2) for name, value in memory.items()},
        "tokens_per_second": round(sequences * length / best["record"]),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="such as 1.1B/512")
    parser.add_argument("--patience", type=float, default=10, help="seconds for a case's runs")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs, on any machine")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = [("tiny", 32, 40, 8), ("tiny", 32, 300, 16)] if options.tiny else CASES
    cases = [x for x in cases if f"{x[0]}/{x[1]}/{x[2]}".startswith(options.only)]
    environment = {
        "resemblance": rs.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
    }
    rows, net, at = [], None, None
    for case in cases:
        if at != case[:2]:
            net, at = None, case[:2]
            if device.type == "cuda":
                torch.cuda.empty_cache()
            net = network(case[0], case[1], device)
            few = torch.randint(3, SHAPES[case[0]]["vocab_size"], (case[3], case[1]))
            cold, _ = timed(lambda: record(net, few, case[3]), device)  # noqa: B023
            warm, _ = timed(lambda: record(net, few, case[3]), device)  # noqa: B023
            print(f"{at}: {case[3]} sequences cold {cold:.2f} s, again {warm:.2f} s", flush=True)
        rows.append(measured(net, case, device, options.patience) | {"cold": round(cold - warm, 2)})
        if options.out:
            content = {"block": BLOCK, "environment": environment, "rows": rows}
            options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
