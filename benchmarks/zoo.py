"""What a zoo of 20,000 entries costs: adding, listing, reading, searching, and what search finds.

Entries are synthetic and small: 32 samples, four layers of eight features, no gradients, no
sketches, about 8 kB a file and one signature of 8 kB each, all of one group. Networks come in
families of twenty: the features of a layer are those of its family's founder, mixed with noise by a
share that is drawn for each network, so that a query has near, less near and unrelated networks.

Added one by one, every entry is on the disk before the next begins. `add_all` takes 64 together.
`search` reads and compares candidates exactly; `nearest` is the comparison of signatures alone.
Recall is the share of the ten best, by CKA of all entries computed from the features themselves,
that are among the candidates that signatures gave (40 of them), and among the ten that `search`
returned. The same is measured at several numbers of entries, for how it grows.

    python -m benchmarks.zoo --out benchmarks/results/zoo.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import resemblance as rs
from resemblance.representation.representation import Representation
from resemblance.zoo.signature import signatures

SAMPLES, LAYERS, WIDTH, FAMILY = 32, 4, 8, 20
SIZES = (1_000, 5_000, 20_000)
QUERIES, ALONE, LIMIT, CANDIDATES = 20, 200, 10, 40


def features(number: int) -> np.ndarray:  # (layers, samples, features)
    """Those of a network, from its number alone."""
    founder = np.random.default_rng([1, number // FAMILY]).normal(size=(LAYERS, SAMPLES, WIDTH))
    rng = np.random.default_rng([2, number])
    share = rng.uniform(0.05, 0.9)
    noise = rng.normal(size=founder.shape)
    return ((1 - share) ** 0.5 * founder + share**0.5 * noise).astype(np.float32)


def recorded(number: int) -> Representation:
    found = features(number)
    rep = rs.record_arrays(
        {f"layer {i}": x for i, x in enumerate(found)},
        name=f"family {number // FAMILY} member {number % FAMILY}",
        data_id="synthetic",
        buckets=0,
    )
    bare = (
        dataclasses.replace(
            x, sketch_signs=None, features=dataclasses.replace(x.features, sketch=None)
        )
        for x in rep
    )
    return dataclasses.replace(rep, layers=tuple(bare))


def direction(number: int) -> np.ndarray:  # (layers·samples²,) float32
    """Centred kernels of all layers, each of one length: cosines are the mean CKA over layers."""
    x = features(number).astype(np.float64)
    x = x - x.mean(1, keepdims=True)
    kernels = (x @ x.swapaxes(1, 2)).reshape(LAYERS, -1)
    kernels /= np.linalg.norm(kernels, axis=1, keepdims=True) * LAYERS**0.5
    return kernels.ravel().astype(np.float32)


def seconds(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def fill(zoo: rs.Zoo, first: int, last: int, *, together: bool) -> dict[str, float]:
    """Add networks, and say how many a second, one by one and together, once they are made."""
    spent, alone, count, processor = 0.0, 0.0, 0, 0.0
    for start in range(first, last, 64):
        reps = [recorded(i) for i in range(start, min(start + 64, last))]
        if together and start + 64 < last - ALONE:
            spent += seconds(lambda reps=reps: zoo.add_all(reps))  # type: ignore[misc]
        else:
            began = time.process_time()
            alone += seconds(lambda reps=reps: [zoo.add(rep) for rep in reps])  # type: ignore[misc]
            processor += time.process_time() - began
            count += len(reps)
    many = last - first - count
    out = {"adds_a_second": round(count / alone, 1), "added_one_by_one": count}
    out["processor_ms_an_add"] = round(1e3 * processor / count, 2)
    return out | ({"adds_a_second_together": round(many / spent, 1)} if many else {})


def searched(zoo: rs.Zoo, exact: np.ndarray, size: int) -> dict[str, float]:
    """Times of queries, and what was found of the ten best."""
    ids = {entry.name: entry.id for entry in zoo}
    number = {ids[f"family {i // FAMILY} member {i % FAMILY}"]: i for i in range(size)}
    own = {i: id for id, i in number.items()}
    group = zoo.entry(own[0]).group
    began_all = time.process_time()
    whole, near, by_signature, by_search, error, missed = [], [], [], [], [], [0.0]
    for query in np.linspace(0, size - 1, QUERIES).astype(int):
        true = exact[:size] @ exact[query]
        best = [int(i) for i in np.argsort(-true) if i != query][:LIMIT]
        rep = recorded(int(query))
        asked = signatures(rep)["features"]
        began = time.perf_counter()
        candidates = zoo.store.nearest(group, "features", asked, CANDIDATES + 1)
        near.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = zoo.search(own[int(query)], limit=LIMIT)
        whole.append(time.perf_counter() - began)
        by_signature.append(np.mean([i in {number[id] for id, _ in candidates} for i in best]))
        by_search.append(np.mean([number[x.entry.id] in best for x in found]))
        there = {number[x.entry.id] for x in found}
        missed += [float(true[i]) for i in best if i not in there]
        error += [abs(x.score - true[number[x.entry.id]]) for x in found]
    processor = time.process_time() - began_all  # of both searches, and of the exact ranking
    return {
        "search_s": round(median(whole), 4),
        "processor_s_a_query": round(processor / QUERIES, 4),
        "nearest_s": round(median(near), 4),
        "recall_of_candidates": round(float(np.mean(by_signature)), 4),
        "recall_of_search": round(float(np.mean(by_search)), 4),
        "highest_score_missed": round(max(missed), 3),
        "unrelated_score_high": round(float(np.quantile(exact[:size] @ exact[0], 0.95)), 3),
        "largest_error_of_a_score": float(f"{max(error):.2g}"),
    }


def measured(place: str, sizes: tuple[int, ...], *, together: bool) -> list[dict[str, Any]]:
    zoo = rs.Zoo(place)
    exact = np.stack([direction(i) for i in range(max(sizes))])
    rows, there = [], 0
    for size in sizes:
        row: dict[str, Any] = {"entries": size, **fill(zoo, there, size, together=together)}
        there = size
        some = [entry.id for entry in zoo][:: max(1, size // 50)]
        row["open_and_count_s"] = round(seconds(lambda: len(rs.Zoo(place))), 4)
        row["list_s"] = round(seconds(lambda: zoo.list()), 3)
        row["get_ms"] = round(1e3 * median(seconds(lambda k=k: zoo.get(k)) for k in some), 2)  # type: ignore[misc]
        row["get_a_layer_ms"] = round(
            1e3 * median(seconds(lambda k=k: zoo.get(k, layers=[1])) for k in some),  # type: ignore[misc]
            2,
        )
        row |= searched(zoo, exact, size)
        row["verify_s"] = round(seconds(lambda: zoo.verify()), 1)
        folder = Path(place.removeprefix("lance:"))
        sizes_ = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        row["megabytes"] = round(sum(sizes_) / 1e6, 1)
        row["load_average"] = round(os.getloadavg()[0], 1)  # of everything on the machine
        row["file_kilobytes"] = round(zoo.entry(some[0]).size / 1e3, 1)
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--stores", nargs="+", default=["folder", "lance"])
    parser.add_argument("--place", type=Path, help="a folder for zoos; default: a temporary one")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {}
    if options.out and options.out.exists():  # what is measured now takes the place of what was
        content = json.loads(options.out.read_text())
    content |= {
        "environment": {
            "resemblance": rs.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "sqlite": sqlite3.sqlite_version,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        },
        "entry": {"samples": SAMPLES, "layers": LAYERS, "features": WIDTH, "signatures": 1},
    }
    for store in options.stores:
        folder = Path(tempfile.mkdtemp(dir=options.place))
        try:
            place = f"lance:{folder}/zoo" if store == "lance" else f"{folder}/zoo"
            sizes = tuple(options.sizes)
            content[store] = measured(place, sizes, together=store == "lance")
        finally:
            shutil.rmtree(folder)
        if options.out:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
            content["environment"]["peak_memory_gb"] = round(peak, 2)
            options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
