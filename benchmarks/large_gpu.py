"""What recording costs on language models of a billion parameters and more, as a ratio in one run.

    python -m benchmarks.large_gpu --out benchmarks/results/large_gpu.json [--only 1.1B/512/256]

Llama-shaped networks with random weights in bfloat16, sequences of random tokens, block 128, 16
tokens of each sequence, all layers. The *bare* pass is the same micro-batches through the same
network, forward and back to the embeddings, with the same gradient at the logits and no taps. Both
are timed in a process that has recorded once; what the first recording costs more is stated as
`cold`. Times are wall clock, from data on the host to a finished Representation.

    python -m benchmarks.large_gpu --start-end --out benchmarks/results/start_end.json

What a recording spends before its first batch and after its last, by cause, for 256 sequences of a
network of 1.1 billion parameters and 1,000 images of a ResNet-50: milliseconds of wall clock in
each part without the parts inside it, in the first recording of the process and as medians of
later ones. `no part` is all between the parts. The device is waited for once more than usual, at
the end of the last batch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance._models import checks, run
from resemblance._models.losses import Objective
from resemblance.recording import accumulators, output_summary
from resemblance.recording import record as recording
from resemblance.recording.accumulators import Accumulators
from resemblance.recording.layer_accumulator import LayerAccumulator

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


# -- before the first batch and after the last -----------------------------------------------------

# what is timed: where it is looked up, by which name, and what it is called in the table
PARTS: list[tuple[Any, str, str]] = [
    (run, "make_source", "source and its first samples"),
    (run, "batch_to_device", "samples to the device"),
    (run, "trace", "trace"),
    (recording, "select_layers", "choice of layers"),
    (recording, "begin_parameter_hash", "hash of parameters"),
    (recording, "begin_weight_hashes", "hashes of weights"),
    (recording, "find_logits_reader", "how outputs are read"),
    (recording._Recorder, "_begin", "accumulators"),
    (checks.FirstBatchChecks, "trial", "trial there and back"),
    (run.ModelPass, "_batch_size", "batch size"),
    (checks.FirstBatchChecks, "end", "checks of the first batch"),
    (accumulators, "finish_layers", "kernels and sketches formed"),
    (accumulators, "send_to_host", "begin of copies to the host"),
    (Accumulators, "result", "result"),
    (LayerAccumulator, "result", "layers of the result"),
    (output_summary.OutputSummary, "result", "outputs of the result"),
]
BATCHES, NO_PART = "batches", "no part"


class Causes:
    """Seconds in parts of a recording, each without the parts inside it, by phase."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, dict[str, float]] = {
            phase: defaultdict(float) for phase in ("before", BATCHES, "after")
        }
        self._device, self._phase, self._stack = device, "before", [NO_PART]
        self._since = time.perf_counter()

    def _note(self) -> None:
        now = time.perf_counter()
        self.seconds[self._phase][self._stack[-1]] += now - self._since
        self._since = now

    def part(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            self._note()
            self._stack.append(name)
            try:
                return work(*arguments, **options)
            finally:
                self._note()
                self._stack.pop()

        return noted

    def phase(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, which begins another phase; the device has done what was before."""

        def noted(*arguments: Any, **options: Any) -> Any:
            if self._phase != name:
                if name == "after" and self._device.type == "cuda":
                    torch.cuda.synchronize()
                self._note()
                self._phase = name
            return work(*arguments, **options)

        return noted

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        with contextlib.ExitStack() as patches:
            for where, name, what in PARTS:
                patches.enter_context(
                    mock.patch.object(where, name, self.part(what, getattr(where, name)))
                )
            for where, name, phase in (
                (run.ModelPass, "_feed_batch", BATCHES),
                (checks.FirstBatchChecks, "end", "after"),
            ):
                work = self.phase(phase, getattr(where, name))
                patches.enter_context(mock.patch.object(where, name, work))
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self._since = time.perf_counter()
            yield
            self._note()


def start_and_end(work: Callable[[], Any], device: torch.device, runs: int) -> dict[str, Any]:
    """Milliseconds by phase and cause: of the first run, and medians of those after the second."""
    found = []
    for _ in range(runs + 2):
        causes = Causes(device)
        with causes.timed():
            work()
        found.append(causes.seconds)

    def table(seen: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
        out: dict[str, dict[str, float]] = {}
        for phase in ("before", "after"):
            names = {name for seconds in seen for name in seconds[phase]}
            rows = {
                name: statistics.median(1000 * seconds[phase].get(name, 0.0) for seconds in seen)
                for name in names
            }
            out[phase] = {
                name: round(ms, 2) for name, ms in sorted(rows.items(), key=lambda x: -x[1])
            }
            whole = [1000 * sum(seconds[phase].values()) for seconds in seen]
            out[phase] = {"together": round(statistics.median(whole), 2), **out[phase]}
        batches = [1000 * sum(seconds[BATCHES].values()) for seconds in seen]
        return out | {BATCHES: {"together": round(statistics.median(batches), 2)}}

    return {"first": table(found[:1]), "again": table(found[2:]), "runs": runs}


def show_start_and_end(name: str, row: dict[str, Any]) -> None:
    print(f"{name}: ms in the first recording, and in later ones")
    for phase in ("before", BATCHES, "after"):
        first, again = row["first"][phase], row["again"][phase]
        for cause in sorted({*first, *again}, key=lambda x: -again.get(x, 0.0)):
            label = f"{phase}, {cause}" if cause != "together" else phase
            print(f"  {label:<45}{first.get(cause, 0):>10,.1f}{again.get(cause, 0):>10,.1f}")
    print(end="", flush=True)


def record_sequences(device: torch.device, tiny: bool) -> tuple[str, Callable[[], Any]]:
    """A name, and a recording of sequences on the host at the defaults."""
    shape, length, count = ("tiny", 32, 40) if tiny else ("1.1B", 512, 256)
    net = network(shape, length, device)
    ids = torch.randint(3, SHAPES[shape]["vocab_size"], (count, length))
    return f"{count} sequences, {shape}", lambda: rs.record(net, ids, progress=False)


def record_images(device: torch.device, tiny: bool) -> tuple[str, Callable[[], Any]]:
    """The same of images, in bfloat16."""
    from . import networks, pass_gpu

    net = networks.ResNet18().eval() if tiny else pass_gpu.made(pass_gpu.LARGE)
    count, side, name = (40, 32, "ResNet-18") if tiny else (1000, 224, "ResNet-50")
    images = torch.randn(count, 3, side, side)

    def work() -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=not tiny):
            return rs.record(net, images, progress=False)

    return f"{count} images, {name}", work


def measure_start_and_end(device: torch.device, options: argparse.Namespace) -> None:
    rows: dict[str, Any] = {}
    for case in (record_images, record_sequences):
        name, work = case(device, options.tiny)
        rows[name] = start_and_end(work, device, 3)
        del work
        show_start_and_end(name, rows[name])
        if options.out:
            content = {"environment": environment_of(device), "milliseconds": rows}
            options.out.write_text(json.dumps(content, indent=1) + "\n")


def environment_of(device: torch.device) -> dict[str, str]:
    return {
        "resemblance": rs.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="such as 1.1B/512")
    parser.add_argument("--patience", type=float, default=10, help="seconds for a case's runs")
    parser.add_argument("--tiny", action="store_true", help="to see that it runs, on any machine")
    parser.add_argument(
        "--start-end", action="store_true", help="what is spent before and after the batches"
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = [("tiny", 32, 40, 8), ("tiny", 32, 300, 16)] if options.tiny else CASES
    cases = [x for x in cases if f"{x[0]}/{x[1]}/{x[2]}".startswith(options.only)]
    if options.start_end:
        measure_start_and_end(device, options)
        return
    environment = environment_of(device)
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
