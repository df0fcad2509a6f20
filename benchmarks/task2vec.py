"""Task2Vec: how much faster than one backward a sample, and is Monte Carlo precise enough?

    python -m benchmarks.task2vec

Speed is `task2vec` against a loop of single backward passes that squares each gradient, for one
label drawn a sample and for the expectation over all classes, interleaved, on one thread. Precision
is measured on tasks cut from the digits: a probe network whose head is refitted to each task, as in
the paper. The ranking of all pairs of tasks by distance is compared with that of the exact
expectation, over seeds of the drawn labels, and between two halves of the data.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn

from resemblance.analysis.task2vec import TaskEmbedding, task2vec

from .digits import load, network, train, write

TASKS: dict[str, dict[int, int]] = {
    "0-4": {d: d for d in range(5)},
    "5-9": {d: d - 5 for d in range(5, 10)},
    "0-9": {d: d for d in range(10)},
    "parity": {d: d % 2 for d in range(10)},
    "above 4": {d: int(d > 4) for d in range(10)},
    "0 or 1": {0: 0, 1: 1},
    "7 or 9": {7: 0, 9: 1},
    "round": {d: int(d in (0, 6, 8, 9)) for d in range(10)},
}


def one_by_one(model: nn.Module, x: Tensor, draws: int | None, seed: int) -> Tensor:
    """The same embedding by one backward a sample and label, each after the other."""
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for sample in x:
        log_p = model(sample[None]).log_softmax(1)[0]
        p = log_p.detach().exp()
        drawn = torch.multinomial(p, draws, generator=generator) if draws else range(len(p))
        for label in drawn:
            model.zero_grad()
            log_p[label].backward(retain_graph=draws != 1)
            for t, parameter in zip(total, parameters, strict=True):
                t += parameter.grad**2 * (1 / draws if draws else p[label])
    weights = [t for t in total if t.ndim > 1][:-1]
    return torch.cat([t.flatten(1).mean(1) / len(x) for t in weights])


def speed(model: nn.Module, x: Tensor, draws: int | None, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"chunked": [], "one_by_one": []}
    task2vec(model, x[:256], draws=draws)  # warm
    for i in range(repeats):
        start = time.process_time()
        fast = task2vec(model, x, draws=draws, seed=i)
        middle = time.process_time()
        slow = one_by_one(model, x, draws, i)
        times["chunked"].append(middle - start)
        times["one_by_one"].append(time.process_time() - middle)
        print(f"  repeat {i}: {times['chunked'][-1]:.2f} s, {times['one_by_one'][-1]:.2f} s")
    cosine = torch.cosine_similarity(fast.vector.float(), slow, dim=0)
    least = {f"{k}_cpu_seconds": min(v) for k, v in times.items()}
    ratio = least["one_by_one_cpu_seconds"] / least["chunked_cpu_seconds"]
    slower, faster = (statistics.median(times[k]) for k in ("one_by_one", "chunked"))
    print(f"  {ratio:.1f} times faster by the least times, {slower / faster:.1f} by medians")
    return {
        "samples": len(x),
        **least,
        "times_faster": ratio,
        "times_faster_by_medians": slower / faster,
        "cosine": float(cosine),
    }


def fit_head(model: nn.Sequential, x: Tensor, y: Tensor, classes: int) -> nn.Sequential:
    """The probe with a head fitted to a task; the body is shared and stays as it is."""
    with torch.no_grad():
        features = model[:-1](x)
    head = nn.Linear(features.shape[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(features), y) + 1e-3 * head.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return nn.Sequential(*model[:-1], head)


def distances(embeddings: list[TaskEmbedding]) -> np.ndarray:
    return np.array([a.distance(b) for a, b in itertools.combinations(embeddings, 2)])


def precision(x: Tensor, y: Tensor, seeds: int) -> dict[str, Any]:
    probe = train(network(10, seed=0), x[:600], y[:600], epochs=4, seed=0)
    x, y = x[600:], y[600:]
    tasks = []
    for name, map_ in TASKS.items():
        mask = torch.tensor([int(d) in map_ for d in y])
        labels = torch.tensor([map_[int(d)] for d in y[mask]])
        model = fit_head(probe, x[mask], labels, max(map_.values()) + 1)
        tasks.append((name, model, x[mask][:400]))

    def embed(part: slice, **options: Any) -> np.ndarray:
        return distances([task2vec(m, data[part], **options) for _, m, data in tasks])

    exact = embed(slice(None), draws=None)
    pairs = [f"{a} / {b}" for a, b in itertools.combinations(TASKS, 2)]
    out: dict[str, Any] = {"exact": dict(zip(pairs, exact.tolist(), strict=True))}
    for draws in (1, 10):
        found = np.stack([embed(slice(None), draws=draws, seed=s) for s in range(seeds)])
        out[f"draws_{draws}"] = {
            "rank_correlation_with_exact": float(np.mean([kendalltau(f, exact)[0] for f in found])),
            "bias": float((found.mean(0) - exact).mean()),
            "spread": float(found.std(0).mean()),
        }
        print(f"  draws {draws}: {out[f'draws_{draws}']}")
    halves = [embed(slice(i, None, 2), draws=None) for i in (0, 1)]
    out["halves_of_the_data"] = {
        "rank_correlation": float(kendalltau(*halves)[0]),
        "spread": float(np.abs(halves[0] - halves[1]).mean() / 2**0.5),
    }
    out["spread_between_pairs"] = float(exact.std())
    print(f"  halves: {out['halves_of_the_data']}, pairs spread over {exact.std():.4f}")
    return out


def main() -> None:
    torch.set_num_threads(1)
    x, y = load()
    model = train(network(10, seed=0), x[:600], y[:600], epochs=4, seed=0)
    print("speed, one label a sample")
    result: dict[str, Any] = {"one_label": speed(model, x[:1024], draws=1, repeats=11)}
    print("speed, the expectation over ten classes")
    result["expectation"] = speed(model, x[:256], draws=None, repeats=5)
    print("precision")
    result["precision"] = precision(x, y, seeds=5)
    print(write("task2vec", result))


if __name__ == "__main__":
    main()
