"""(c) How far is each estimator from the kernel that is held whole?

Three ResNet-18s (two twins and a stranger) on CIFAR-10 test images. Whole N × N kernels are
summed in float32 from the same features and gradients that `record` sees, and give the truth for
all pairs of layers; two seeds of the order and the sketch give the error of each estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import resemblance as rs

from ..nets import ResNet
from ..scoring import Job, Plan, Scores, score
from .lab import KERNELS, Lab

SEEDS = 2
Kernels = dict[str, list[Tensor]]  # features, gradients: (N, N) a layer


def run(lab: Lab) -> dict[str, Any]:
    scale = lab.scale
    names = ["cifar10/resnet18/0", "cifar10/resnet18/1", "cifar100/resnet18/0"]
    pairs = [(names[0], names[1]), (names[0], names[2])]
    whole = inputs_of(lab, scale.exact)
    estimates = _estimates(lab, names, pairs, whole, "whole", layers=[None])
    kept = {name: whole_kernels(lab.zoo(name), whole) for name in names}
    truth = {
        (pair, kernel): cka(_named(kept[pair[0]], kernel), _named(kept[pair[1]], kernel))
        for pair in pairs for kernel in KERNELS
    }  # fmt: skip
    result = {"samples": len(whole), "seeds": SEEDS, "CKA": _errors(estimates, truth)}
    del kept
    part = inputs_of(lab, scale.exact_nbs)
    small = {name: whole_kernels(lab.zoo(name), part) for name in names}
    depth = len(small[names[0]]["features"])
    at = [0, depth // 2, depth - 1]
    roots = _estimates(lab, names, pairs, part, "part", layers=at, index="nbs")
    truth = {
        (pair, kernel): np.array(
            [
                [nbs(_named(small[pair[0]], kernel)[i], _named(small[pair[1]], kernel)[i])]
                for i in at
            ]
        )
        for pair in pairs for kernel in KERNELS
    }  # fmt: skip
    result |= {"NBS samples": len(part), "NBS": _errors(roots, truth)}
    return result


def inputs_of(lab: Lab, count: int) -> Tensor:
    return lab.recordings.inputs("exact")[:count]


Key = tuple[str, tuple[str, str], str]  # estimator, pair, kernel


def _estimates(
    lab: Lab, names: list[str], pairs: list[tuple[str, str]], x: Tensor, called: str, *,
    layers: Sequence[int | None], index: str = "cka",
) -> dict[Key, list[Scores]]:  # fmt: skip
    """Of each estimator, pair and kernel, once a seed."""
    scale = lab.scale
    plans = [(scale.buckets, 64), (scale.buckets, 16), (scale.few_buckets, 64)]
    estimators = {
        "blocks, 64 of 128": ("blocks", scale.buckets, 64),
        "blocks, 16 of 128": ("blocks", scale.buckets, 16),
        f"buckets, {scale.buckets}": ("buckets", scale.buckets, 64),
        f"buckets, {scale.few_buckets}": ("buckets", scale.few_buckets, 64),
        f"Algorithm 1, {scale.buckets}": ("paper", scale.buckets, 64),
        f"Algorithm 1, {scale.few_buckets}": ("paper", scale.few_buckets, 64),
    }
    if index == "nbs":
        del estimators["blocks, 16 of 128"]
    folder = lab.recordings.folder / "exact"
    folder.mkdir(exist_ok=True)

    def file(name: str, seed: int, m: int, count: int) -> Any:
        return folder / f"{name.replace('/', '_')}@{called}@{seed}@{m}@{count}.rsm"

    for name in names:
        net = lab.zoo(name)
        for seed in range(SEEDS):
            for m, count in plans:
                path = file(name, seed, m, count)
                if not path.exists():
                    with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
                        rep = rs.record(
                            net, x, layers=net.taps, name=name, data_id=called, seed=seed,
                            batch_size=1024, progress=False, buckets=m, blocks=count,
                        )  # fmt: skip
                    rep.save(path)
    keys, jobs = [], []
    for named, (estimator, m, count) in estimators.items():
        for pair in pairs:
            for kernel in KERNELS:
                # the truth of features is centred, as by default; Algorithm 1 does not centre
                plan = Plan(kernel, index, kernel == "features" and estimator != "paper", estimator)
                for seed in range(SEEDS):
                    rows, columns = ((file(name, seed, m, count),) for name in pair)
                    for layer in layers:
                        keys.append((named, pair, kernel, seed))
                        jobs.append(Job(rows, columns, layer, (plan,)))
    by_seed: dict[tuple[str, tuple[str, str], str, int], list[Scores]] = {}
    for key, (found,) in zip(keys, score(jobs, f"estimators of {index}"), strict=True):
        by_seed.setdefault(key, []).append(found)
    out: dict[Key, list[Scores]] = {}
    for (named, pair, kernel, _), parts in by_seed.items():
        values, errors = ([getattr(p, n) for p in parts] for n in ("values", "stderr"))
        whole = Scores(np.concatenate(values), np.concatenate(errors))
        out.setdefault((named, pair, kernel), []).append(whole)
    return out


def _errors(
    estimates: dict[Key, list[Scores]], truth: dict[tuple[tuple[str, str], str], np.ndarray]
) -> list[dict[str, Any]]:
    rows = []
    for (named, pair, kernel), several in estimates.items():
        true = truth[pair, kernel]
        apart = np.stack([s.values for s in several]) - true[None]
        assert apart.shape[1:] == true.shape
        row = {
            "estimator": named, "pair": list(pair), "kernel": kernel,
            "mean absolute": float(np.abs(apart).mean()), "bias": float(apart.mean()),
            "largest": float(np.abs(apart).max()),
            "true": [float(true.min()), float(true.max())],
        }  # fmt: skip
        if named.startswith("blocks"):
            errors = np.stack([s.stderr for s in several])
            row["within two standard errors"] = float((np.abs(apart) <= 2 * errors).mean())
        rows.append(row)
    return rows


# -- kernels that are held whole -----------------------------------------------------------------


def whole_kernels(net: ResNet, x: Tensor, beta: float = 0.5) -> Kernels:
    """K_f and K_g of every tap over all samples, by plain autograd and plain products."""
    cuda, parts = x.is_cuda, {tap: ([], []) for tap in net.taps}
    modules = dict(net.named_modules())
    taken: dict[str, Tensor] = {}
    hooks = [
        modules[tap].register_forward_hook(
            lambda _, __, out, tap=tap: taken.__setitem__(tap, out.requires_grad_())
        )
        for tap in net.taps
    ]
    net.requires_grad_(False)
    for batch in x.split(512):
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            z = net(batch).float()
            loss = -((beta * z.detach()).softmax(1) * z.log_softmax(1)).sum()
        for tap, g in zip(net.taps, torch.autograd.grad(loss, list(taken.values())), strict=True):
            parts[tap][0].append(taken[tap].detach().flatten(1))
            parts[tap][1].append(g.flatten(1))
    for hook in hooks:
        hook.remove()
    out: Kernels = {"features": [], "gradients": []}
    for tap in net.taps:
        for kind, rows in zip(out, parts.pop(tap), strict=True):
            out[kind].append(_gram(torch.cat(rows)))
    return out


def _gram(x: Tensor) -> Tensor:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    k = sum(part.float() @ part.float().T for part in x.split(8192, 1))
    torch.backends.cuda.matmul.allow_tf32 = allowed
    assert isinstance(k, Tensor)
    return k


def _named(kernels: Kernels, kernel: str) -> list[Tensor]:
    if kernel == "features":
        return [_centred(k) for k in kernels["features"]]
    if kernel == "gradients":
        return kernels["gradients"]
    return [f * g for f, g in zip(kernels["features"], kernels["gradients"], strict=True)]


def _centred(k: Tensor) -> Tensor:
    mean = k.mean(0, dtype=torch.float64)
    return (k - mean[:, None] - mean[None, :] + mean.mean()).float()


def cka(a: list[Tensor], b: list[Tensor]) -> np.ndarray:
    """⟨K, L⟩ / ‖K‖‖L‖ of all pairs."""

    def inner(k: Tensor, m: Tensor) -> float:
        return float(sum((p * q).sum(dtype=torch.float64) for p, q in
                         zip(k.split(1000), m.split(1000), strict=True)))  # fmt: skip

    left, right = ([inner(k, k) ** 0.5 for k in side] for side in (a, b))
    return np.array([[inner(k, m) / (s * t) for m, t in zip(b, right, strict=True)]
                     for k, s in zip(a, left, strict=True)])  # fmt: skip


def nbs(k: Tensor, m: Tensor) -> float:
    """Tr (K^½ L K^½)^½ / √(Tr K Tr L) in float64."""
    values, vectors = torch.linalg.eigh(k.double())
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    inner = torch.linalg.eigvalsh(root @ m.double() @ root).clamp_min(0).sqrt().sum()
    return float(inner / (k.double().trace() * m.double().trace()).sqrt())
