"""KL between language models from two small files: error, bias, coverage, bytes, time, verdicts.

    python -m benchmarks.kl_sketch --out benchmarks/results/kl_sketch.json    # a GPU, five minutes
    python -m benchmarks.kl_sketch --tiny --out tiny.json                     # a CPU, seconds

Trains a small Llama and a twin on the Python files of this machine (32,000 tokens of vocabulary),
and makes copies: rounded, pruned, in bfloat16, trained on. The truth is the KL of all tokens that
were drawn of many unseen sequences, in float64. Each draw takes some of these sequences and a seed
of the sketch, and estimates KL as two files of them would; beside it stands the exact mean. Then
base and copies are recorded into files as a user would, which `check` judges. The pass is timed
with the summary of outputs as it is, as it was before there were sketches (32 classes, and groups
that are added up atomically), and without any. The result is written after each step.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import platform
import random
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resemblance as rs
from resemblance._ops.class_sketch import row_keys
from resemblance.recording import output_summary
from resemblance.representation.outputs import CLASS_GROUPS, Outputs, class_groups
from resemblance.similarity.agreement import row_divergences

LIMIT = 0.05  # nats, of `check`


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    vocabulary: int = 32_000
    text: int = 40_000_000  # bytes
    bpe_text: int = 16_000_000  # bytes that the tokenizer is trained on
    length: int = 256  # tokens of a sequence
    width: int = 384
    layers: int = 8
    batch: int = 64
    steps: int = 2500  # at most
    seconds: float = 50.0  # of training, of the base and of its twin
    population: int = 2048  # sequences
    sequences: int = 256  # of a draw
    checked: int = 768  # of a file that `check` judges
    tried: int = 128  # to find the pruning whose KL is the limit
    tokens: int = 16  # of a sequence
    draws: int = 40
    timed: int = 1024  # sequences of a timed pass
    repeats: int = 5


TINY = Scale(1500, 400_000, 300_000, 48, 32, 2, 16, 40, 3.0, 96, 48, 64, 16, 4, 3, 32, 1)


class Clock:
    """Prints what happens when."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self, what: str) -> None:
        print(f"{time.perf_counter() - self._start:6.1f} s  {what}", flush=True)


# -- text and networks --------------------------------------------------------------------------


def python_files(most: int) -> list[str]:
    """Source files of the standard library and of installed packages, in one random order."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    files = sorted({path for folder in folders for path in Path(folder).rglob("*.py")})
    random.Random(0).shuffle(files)
    found: list[str] = []
    size = 0
    for path in files:
        if size >= most:
            break
        try:
            text = path.read_text(encoding="utf-8")[:200_000]
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) > 500:
            found.append(text)
            size += len(text)
    return found


def tokenised(texts: list[str], scale: Scale, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Sequences to train on, and unseen ones; every tenth file is kept from training."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    some, size = [], 0
    for text in texts:
        if size < scale.bpe_text:
            some.append(text)
            size += len(text)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(some, trainer)
    rows = []
    for part in ([x for i, x in enumerate(texts) if i % 10], texts[::10]):
        ids = np.concatenate([np.array(x.ids, np.int64) for x in tokenizer.encode_batch(part)])
        rows.append(torch.from_numpy(ids[: len(ids) // scale.length * scale.length]))
    train, unseen = (x.view(-1, scale.length) for x in rows)
    order = torch.randperm(len(unseen), generator=torch.Generator().manual_seed(0))
    return train, unseen[order]


def network(scale: Scale, seed: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=scale.vocabulary, hidden_size=scale.width, num_hidden_layers=scale.layers,
        intermediate_size=scale.width * 8 // 3, num_attention_heads=max(2, scale.width // 64),
        num_key_value_heads=max(2, scale.width // 64), max_position_embeddings=scale.length,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def trained(
    net: nn.Module, text: Tensor, scale: Scale, *, seed: int, rate: float, part: float = 1.0
) -> float:
    """Train in place for so many seconds or steps, the rate falling to zero; the last loss."""
    device = next(net.parameters()).device
    optimiser = torch.optim.AdamW(
        net.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda"
    )
    generator = torch.Generator().manual_seed(seed)
    start, step, loss, done = time.perf_counter(), 0, torch.zeros(()), 0.0
    net.train()
    while done < 1:
        warm = min(1.0, (step + 1) / (50 * part))
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (1 - done)
        rows = text[torch.randint(len(text), (scale.batch,), generator=generator)].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            z = net(input_ids=rows, use_cache=False).logits
        loss = F.cross_entropy(z[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 10 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # else the clock runs ahead of what was done
        elapsed = time.perf_counter() - start
        done = max(step / (scale.steps * part), elapsed / (scale.seconds * part))
    net.eval()
    return float(loss.detach())


@torch.no_grad()
def edited(net: nn.Module, edit: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy in which all matrices of the blocks are edited."""
    out = copy.deepcopy(net)
    for name, weight in out.named_parameters():
        if weight.ndim == 2 and "layers." in name:
            weight.copy_(edit(weight))
    return out


def rounded(bits: int) -> Callable[[Tensor], Tensor]:
    """Symmetric rounding, with a scale for each row."""
    top = 2 ** (bits - 1) - 1

    def edit(weight: Tensor) -> Tensor:
        step = weight.abs().amax(1, keepdim=True) / top
        return (weight / step).round() * step

    return edit


def pruned(share: float) -> Callable[[Tensor], Tensor]:
    def edit(weight: Tensor) -> Tensor:
        size = weight.abs()
        return weight * (size > size.flatten().kthvalue(int(share * size.numel())).values)

    return edit


def copies(
    base: nn.Module, text: Tensor, tried: Tensor, scale: Scale
) -> Iterator[tuple[str, nn.Module]]:
    """Copies of a network by name; the twin is made elsewhere."""
    for bits in (8, 4, 3, 6, 5):
        yield f"int{bits}", edited(base, rounded(bits))
    for share in (30, 40, 50):
        yield f"pruned-{share}", edited(base, pruned(share / 100))
    share = share_at_the_limit(base, tried)
    yield "pruned-to-the-limit", edited(base, pruned(share))
    yield "bf16", copy.deepcopy(base).to(torch.bfloat16)
    tuned = copy.deepcopy(base)
    trained(tuned, text, scale, seed=5, rate=1e-4, part=0.05)
    yield "tuned", tuned


def share_at_the_limit(base: nn.Module, ids: Tensor) -> float:
    """The share of weights without which KL is the limit, on sequences used for nothing else."""
    places = torch.arange(ids.shape[1]).expand(len(ids), -1)[:, 8::8]
    z = logits(base, ids, places)
    low, high = 0.0, 0.8
    for _ in range(9):
        share = (low + high) / 2
        kl = exact(z, logits(edited(base, pruned(share)), ids, places))[0].mean()
        low, high = (share, high) if kl < LIMIT else (low, share)
    return (low + high) / 2


# -- estimates ----------------------------------------------------------------------------------


@torch.no_grad()
def logits(net: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    """Logits (sequences, tokens, classes) at some positions (sequences, tokens), in float32."""
    device, found = next(net.parameters()).device, []
    for some, at in zip(ids.split(32), positions.split(32), strict=True):
        z = net(input_ids=some.to(device), use_cache=False).logits
        found.append(z[torch.arange(len(z), device=device)[:, None], at.to(device)].float())
    return torch.cat(found)


def exact(z: Tensor, w: Tensor) -> Tensor:
    """KL in both directions (2, sequences, tokens) in float64."""
    found = []
    for one, two in zip(z.split(16), w.split(16), strict=True):
        p, q = one.double().log_softmax(-1), two.double().log_softmax(-1)
        found.append(torch.stack([(p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)]).cpu())
    return torch.cat(found, 1)


@functools.cache
def class_tables(classes: int, device: torch.device) -> Any:
    return output_summary._ClassTables(classes, device)


def summarised(z: Tensor, rows: Tensor, seed: int) -> Outputs:
    """What a file holds of some sequences, with the sketch of a seed."""
    tables = class_tables(z.shape[-1], z.device)
    index = np.arange(rows.numel() * z.shape[1], dtype=np.uint64)
    log_p = z[rows.to(z.device)].flatten(0, 1).log_softmax(-1)
    kept = [
        tables.summary(some, None, keys.to(z.device))
        for some, keys in zip(log_p.split(512), row_keys(seed, index).split(512), strict=True)
    ]
    return Outputs(z.shape[-1], **{k: torch.cat([x[k] for x in kept]).cpu() for k in kept[0]})


def evaluated(z: Tensor, w: Tensor, base: list[Outputs], scale: Scale) -> dict[str, Any]:
    """Error, bias and coverage of the estimates over draws of sequences and seeds."""
    true = exact(z, w)
    population = true.mean((1, 2))
    rows = []
    for seed in range(scale.draws):
        chosen, of_base = drawn(seed, scale), base[seed]
        of_copy = summarised(w, chosen, seed)
        found = row_divergences(of_base, of_copy)
        if not seed:
            least = row_divergences(of_base, of_copy, estimate=False).kl.mean()
            bound_share = float(least / true[0, chosen].mean())
        for side, kl in enumerate((found.kl, found.reverse)):
            units = kl.view(len(chosen), -1).mean(1)
            rows.append(
                {
                    "estimate": float(units.mean()),
                    "stderr": float(units.std() / len(units) ** 0.5),
                    "exact": float(true[side, chosen].mean()),
                    "exact_stderr": float(true[side, chosen].mean(1).std() / len(units) ** 0.5),
                    "truth": float(population[side]),
                    "noise": float(found.noise[side].square().mean().sqrt()),
                }
            )
    each: dict[str, Any] = {"kl": float(population[0]), "reverse": float(population[1])}
    x = {k: np.array([row[k] for row in rows]) for k in rows[0]}
    error = (x["estimate"] - x["exact"])[::2]
    size = len(chosen) * z.shape[1]
    return each | {
        "row_kl_p99": float(true[0].flatten().quantile(0.99)),
        "estimate": float(x["estimate"][::2].mean()),
        "stderr": float(np.sqrt((x["stderr"][::2] ** 2).mean())),
        "row_noise": float(x["noise"].mean()),
        "bias": float(error.mean()),
        "bias_stderr": float(error.std(ddof=1) / len(error) ** 0.5),
        "rms_error_of_sketch": float(np.sqrt((error**2).mean())),
        "predicted_error_of_sketch": float(x["noise"][::2].mean() / size**0.5),
        "covered": int((np.abs(x["estimate"] - x["truth"]) <= 2 * x["stderr"]).sum()),
        "covered_by_exact": int((np.abs(x["exact"] - x["truth"]) <= 2 * x["exact_stderr"]).sum()),
        "covered_of_drawn": int((np.abs(x["estimate"] - x["exact"]) <= 2 * x["stderr"]).sum()),
        "estimates": len(rows),
        "lower_bound_share": bound_share,
    }


def drawn(seed: int, scale: Scale) -> Tensor:
    """The sequences of a draw."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(scale.population, (scale.sequences,), generator=generator)


# -- files and time -----------------------------------------------------------------------------


class WithoutSketch:
    """What was kept of rows of many classes before there were sketches."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self._group = class_groups(classes).to(device)

    def summary(self, log_p: Tensor, others: Tensor | None, keys: Tensor) -> dict[str, Tensor]:
        top_log_p, top = log_p.topk(32)
        groups = log_p.new_zeros(len(log_p), CLASS_GROUPS)
        groups.index_add_(1, self._group, log_p.exp())
        return {"top": top, "top_log_p": top_log_p, "groups": groups.log()}


def pass_times(net: nn.Module, ids: Tensor, scale: Scale) -> dict[str, Any]:
    """Seconds of a recording pass with each summary of outputs, in turn."""
    patched = mock.patch.object(output_summary, "_ClassTables", WithoutSketch)
    ways: dict[str, Any] = {"sketch": None, "before": patched, "no_outputs": None}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(scale.repeats + 1):
        for name, patch in ways.items():
            start = time.perf_counter()
            if patch is not None:
                patch.start()
            record(net, ids, scale, outputs=name != "no_outputs")
            if patch is not None:
                patch.stop()
            if repeat:  # the first warms up
                found[name].append(time.perf_counter() - start)
    seconds = {name: float(np.median(x)) for name, x in found.items()}
    best = {name: min(x) for name, x in found.items()}
    return {
        "seconds": seconds,
        "all": found,
        "slower": seconds["sketch"] / seconds["before"] - 1,
        "slower_best": best["sketch"] / best["before"] - 1,
    }


def record(net: nn.Module, ids: Tensor, scale: Scale, **more: Any) -> rs.Representation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rs.record(
            net, {"input_ids": ids}, tokens=scale.tokens, progress=False, data_id="unseen", **more
        )


def judged(base: Path, one: Path) -> dict[str, Any]:
    """What `check` says of two files, and `behaviour`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict, found = rs.check(base, one, max_kl=LIMIT), rs.behaviour(base, one)
    finding = verdict.findings[0]
    return {
        "status": verdict.status, "exit_status": verdict.exit_status, "kl": finding.measured,
        "low": finding.low, "high": finding.high, "samples_needed": finding.samples_needed,
        "behaviour_kl": found.kl, "behaviour_kl_stderr": found.kl_stderr, "js": found.js,
        "js_upper": found.js_upper,
    }  # fmt: skip


def bytes_a_row(rep: rs.Representation) -> dict[str, float]:
    assert rep.outputs is not None
    rows = rep.outputs.rows
    return {name: x.nbytes / rows for name, x in rep.outputs.tensors().items()}


# -- the run ------------------------------------------------------------------------------------


def run(scale: Scale, device: torch.device, out: Path) -> dict[str, Any]:
    clock = Clock()
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    report: dict[str, Any] = {
        "what": "KL of copies of a language model, estimated from files, beside the exact one",
        "environment": {"torch": torch.__version__, "device": name, "scale": vars(scale)},
        "copies": {},
    }

    def save() -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")

    train, unseen = tokenised(python_files(scale.text), scale, scale.vocabulary)
    clock(f"{train.numel():,} tokens to train on, {unseen.numel():,} unseen")
    nets = [network(scale, seed).to(device) for seed in (0, 1)]
    losses = [trained(net, train, scale, seed=i, rate=2e-3) for i, net in enumerate(nets)]
    base, twin = nets
    report["training"] = {"tokens": train.numel(), "losses": losses}
    clock(f"trained: losses {losses[0]:.3f} and {losses[1]:.3f}")

    report["time"] = pass_times(base, unseen[: scale.timed], scale)
    save()
    clock(f"pass: {report['time']['seconds']}, slower by {100 * report['time']['slower']:.1f} %")

    ids = unseen[: scale.population]
    generator = torch.Generator().manual_seed(1)
    places = torch.rand(len(ids), scale.length, generator=generator).argsort(1)[:, : scale.tokens]
    z = logits(base, ids, places)
    of_base = [summarised(z, drawn(seed, scale), seed) for seed in range(scale.draws)]
    recorded = unseen[: scale.checked]
    tried = unseen[scale.population :][: scale.tried]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rep = record(base, recorded, scale, gradients=False, name="base")
        path = rep.save(Path(folder, "base.rsm"))
        report["bytes_a_row"] = bytes_a_row(rep)
        report["bytes_a_row_in_all"] = sum(report["bytes_a_row"].values())
        save()

        def everything() -> Iterator[tuple[str, nn.Module]]:
            yield from copies(base, train, tried, scale)
            yield "twin", twin

        for name, net in everything():
            found = evaluated(z, logits(net, ids, places), of_base, scale)
            one = record(net, recorded, scale, gradients=False, name=name)
            found["check"] = judged(path, one.save(Path(folder, "copy.rsm")))
            report["copies"][name] = found
            report["coverage"] = coverage(report["copies"])
            save()
            clock(
                f"{name}: KL {found['kl']:.3g}, estimated {found['estimate']:.3g} ± "
                f"{found['stderr']:.2g}, bias {found['bias']:.2g} ± {found['bias_stderr']:.2g}, "
                f"covered {found['covered']} of {found['estimates']}, "
                f"{found['check']['status']} ({found['check']['low']:.3g} to "
                f"{found['check']['high']:.3g})"
            )
    return report


def coverage(found: dict[str, Any]) -> dict[str, float]:
    """The share of estimates within two standard errors.

    Of the population's KL, of that of the drawn sequences, and how often exact means of the drawn
    sequences lie within two of theirs of the population's.
    """
    total = sum(x["estimates"] for x in found.values())
    keys = ("covered", "covered_of_drawn", "covered_by_exact")
    return {key: sum(x[key] for x in found.values()) / total for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "kl_sketch.json"
    )
    parser.add_argument("--tiny", action="store_true", help="everything small, on a CPU")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available() and not options.tiny
    scale = TINY if options.tiny else Scale()
    report = run(scale, torch.device("cuda" if on_gpu else "cpu"), options.out)
    print(
        f"coverage {report['coverage']}, {report['bytes_a_row_in_all']:.0f} bytes a row, "
        f"slower by {100 * report['time']['slower']:.1f} %"
    )


if __name__ == "__main__":
    main()
