"""Numbers that must not move: everything the package computes, as one flat table of arrays.

    python tests/golden/freeze.py files FOLDER     write the small recordings
    python tests/golden/freeze.py values FOLDER    compute every number
    python tests/golden/freeze.py against OLD NEW  say where the tables of two folders differ

The tests compute the tables beside this file anew: `values.npz`, and `published.npz` from the
published recordings, which an sdist does not hold. Keys begin with `file.` (from
recordings, those without tokens written by version 0.1.0: reproducible to 1e-9), `many.` (from
recordings, in float32), `report.` (read from a report, which rounds), or `pass.` (networks are run
again). What begins with `file.` was computed by version 0.1.0, but for
standard errors, which are estimated otherwise since, and one combination that was an error; the
rest by version 0.2, which keeps the kernels of few samples whole.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import sys
import tempfile
import warnings
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import resemblance as rs
from resemblance.similarity.all_pairs import compare_every_pair
from resemblance.similarity.compare import compare_population
from resemblance.zoo.search import score_many
from resemblance.zoo.signature import signatures

HERE = Path(__file__).parent
PUBLISHED = HERE.parent.parent / "reproduction" / "results"
KERNELS = ("features", "gradients", "product", "sum", "elementwise", "transport")
INDICES = ("cka", "cka-debiased", "nbs", "spectral", "rsa")
ESTIMATORS = ("auto", "blocks", "buckets", "paper")
PARTS = ("scores", "stderr", "chance", "chance_high")
PRODUCTS = 1e-6  # of float32, which processors add in different orders
LIMITS = {  # how far the numbers of a kind may move
    "file": 1e-9,  # float64 throughout, but for permuted kernels
    "many": PRODUCTS,
    "report": 2e-5,  # a page rounds to five digits
    "pass": 1e-4,  # networks run in float32, and so are their features summed
}
# Keys that are computed from the published recordings.
FROM_PUBLISHED = (
    "file.twins.", "file.transport.", "file.apart.", "file.match", "file.adaptation.published.",
    "file.fisher_rao.published.", "many.all.", "many.layer.",
    *(f"many.{kernel}." for kernel in KERNELS),
)  # fmt: skip
Table = dict[str, np.ndarray]


def samples(count: int = 300, seed: int = 0) -> torch.Tensor:
    """Three clusters in twelve dimensions, so that kernels have structure."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 12, generator=generator)
    return centres[torch.arange(count) % 3] + 0.7 * torch.randn(count, 12, generator=generator)


def network(seed: int, width: int = 20) -> nn.Module:
    net = nn.Sequential(
        nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 40), nn.ReLU(), nn.Linear(40, 5)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(p.shape[-1], 4) ** 0.5)
    return net


def convolutional(seed: int) -> nn.Module:
    """Wide enough to be folded, with a batch norm and an activation in place."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 49, 4),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 3)
    return net


class Causal(nn.Module):
    """A causal language model in miniature: a running mean of embeddings, and two layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 16), nn.Linear(16, 12)
        self.act, self.head = nn.Tanh(), nn.Linear(12, 20)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(1, input_ids.shape[1] + 1)[None, :, None]
        return self.head(self.act(self.mix(self.embed(input_ids).cumsum(1) / steps**0.5)))


def sequences() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 20, (72, 12), generator=torch.Generator().manual_seed(4))
    return {"input_ids": ids}


SMALL = {"buckets": 32, "elementwise": True, "block": 24, "name": "small"}


def write_files(folder: Path) -> None:
    x = samples()
    rs.record(network(1), x, **SMALL, keep_sums=True).save(folder / "a.rsm")
    rs.record(network(2, 28), x, **SMALL).save(folder / "b.rsm")
    rs.record(network(2, 28), samples(260, 5), **SMALL).save(folder / "c.rsm")
    for i in range(2):
        rs.record(network(1), x, **SMALL, shard=(i, 2)).save(folder / f"shard-{i}.rsm")
    write_token_files(folder)
    write_array_files(folder)


def write_array_files(folder: Path) -> None:
    """Networks whose full Gram matrices are stored, and networks with norms of more samples.

    The first layer has a mean far from zero, and a few samples dominate the gradients.
    """
    for name, count, options in (("whole", 100, {}), ("large", 1100, {"block": 16, "blocks": 20})):
        for seed in (1, 2):
            rng = np.random.default_rng(seed)
            signal = np.random.default_rng(99).normal(size=(count, 5))
            heavy = np.exp(np.random.default_rng(98).normal(size=(count, 1)))
            features = {x: signal + rng.normal(size=signal.shape) + 20 * (x == "x") for x in "xy"}
            gradients = {x: heavy * (signal + rng.normal(size=signal.shape)) for x in "xy"}
            rep = rs.record_arrays(
                features, gradients, data_id=name, name=f"{name} {seed}", buckets=0, **options
            )
            layers = [with_parts(layer, sketch=lambda _: None) for layer in rep]
            replace(rep, layers=tuple(layers)).save(folder / f"{name}-{seed}.rsm")


def write_token_files(folder: Path) -> None:
    options = {"unit": "token", "tokens": 2, "buckets": 32, "block": 24, "layers": ["mix"]}
    for seed in (1, 2):
        rep = rs.record(Causal(seed), sequences(), **options, name=f"causal {seed}")
        rep.save(folder / f"tokens-{seed}.rsm")


# -- from recordings ------------------------------------------------------------------------------


def put(table: Table, key: str, compute, *arguments, **options) -> None:
    """The arrays that `compute` returns, or the kind of error that it raises."""
    try:
        found = compute(*arguments, **options)
    except (rs.ResemblanceError, ValueError) as error:
        found = {"error": type(error).__name__}
    for name, value in found.items():
        if value is not None:
            table[f"{key}.{name}"] = np.asarray(value)


def compared(a, b, **options) -> dict:
    found = rs.compare(a, b, unpaired=True, **{"kernel": "product", **options})
    parts = {name: getattr(found, name) for name in PARTS}
    return {**parts, "meta": [found.centre, found.estimator, found.paired, *found.samples]}


def with_errors(a, b, **options) -> dict:
    """A comparison with all that belongs to its standard errors."""
    return estimated(rs.compare(a, b, **{"kernel": "product", **options}))


def estimated(found) -> dict:
    names = (*PARTS, "df", "replicates", "effective_blocks")
    numbers = {name: getattr(found, name) for name in names}
    if found.n_eff is not None:
        numbers["n_eff"] = np.concatenate(found.n_eff)
    return {**numbers, "estimator": [found.estimator]}


def comparisons(table: Table, key: str, a, b) -> None:
    for kernel, index, estimator in itertools.product(KERNELS, INDICES, ESTIMATORS):
        for centre in (None, True, False):
            options = {"kernel": kernel, "index": index, "estimator": estimator, "centre": centre}
            name = f"{key}.{kernel}.{index}.{estimator}.{centre}"
            put(table, name, compared, a, b, **options)


def adapted(rep, **options) -> dict:
    return dict(rs.adaptation(rep, **options).columns)


def from_files() -> Table:
    table: Table = {}
    a, b, c = (rs.load(HERE / f"{name}.rsm") for name in "abc")
    comparisons(table, "file.ab", a, b)
    for kernel, index in itertools.product(KERNELS, INDICES):
        put(
            table,
            f"file.ac.{kernel}.{index}",
            compared,
            a,
            c,
            kernel=kernel,
            index=index,
        )
    whole = rs.merge([rs.load(HERE / f"shard-{i}.rsm") for i in (1, 0)])
    for kernel in KERNELS:
        for estimator in ("blocks", "buckets"):
            options = {"kernel": kernel, "estimator": estimator, "centre": False}
            put(
                table,
                f"file.merged.{kernel}.{estimator}",
                compared,
                whole,
                b,
                **options,
            )
        for estimator in ("blocks", "paper"):
            options = {"kernel": kernel, "estimator": estimator}
            put(table, f"file.adaptation.{kernel}.{estimator}", adapted, a, **options)
    for kernel in ("features", "gradients", "product"):
        y = np.arange(300) % 3
        machine = rs.KernelClassifier(network(1), kernel=kernel, alpha=0.5, layer="1", max_dim=None)
        machine.fit_representation(a, y)
        table[f"pass.classifier.{kernel}.file"] = machine.decision_function(samples(20, 9))
    table |= norms("file.fisher_rao.a", a)
    table |= from_gate_and_zoo(a, b, c) | from_tokens() | from_arrays()
    return table | from_pairs({"abc": [a, b, c]})


def from_gate_and_zoo(a, b, c) -> Table:
    table: Table = {}
    put(table, "file.check.ab", checked, a, b, min=MINIMA)
    with tempfile.TemporaryDirectory() as folder:
        table |= reported("report.abc", [a, b, c], Path(folder) / "report.html")
        zoo = rs.Zoo(Path(folder) / "zoo")
        for rep in (a, b, c):
            zoo.add(rep)
        for kernel in ("features", "gradients", "product"):
            found = zoo.search(a, kernel=kernel)
            for name in ("score", "stderr", "chance_high", "signature"):
                key = f"many.search.{kernel}.{name}"
                table[key] = np.array([getattr(match, name) for match in found])
    return table


def from_tokens() -> Table:
    """Tokens of sequences: blocks hold one token of each, and whole sequences are left out."""
    table: Table = {}
    one, two = (rs.load(HERE / f"tokens-{seed}.rsm") for seed in (1, 2))
    for kernel, index in itertools.product(KERNELS, INDICES):
        put(table, f"file.tokens.{kernel}.{index}", compared, one, two, kernel=kernel, index=index)
    limits = {"max_disagreement": 0.3, "max_kl": 0.5, "max_js": 0.1, "min_db": 3}
    put(table, "file.tokens.check", checked, one, two, min=MINIMA, **limits)
    numbers = rs.behaviour(one, two).to_dict().items()
    table |= {f"file.tokens.behaviour.{k}": np.array(v) for k, v in numbers if type(v) is float}
    return table


def from_arrays() -> Table:
    """Estimates from full Gram matrices, from the norms of all samples, and from both at once."""
    table: Table = {}
    sets = {
        name: [rs.load(HERE / f"{name}-{seed}.rsm") for seed in (1, 2)]
        for name in ("whole", "large", "tokens")
    }
    sets["mixed"] = [without_whole(rep, i) for i, rep in enumerate(sets["whole"])]
    for name, (one, two) in sets.items():
        for kernel, index in itertools.product(KERNELS, INDICES):
            key, options = f"file.{name}.errors.{kernel}.{index}", {"kernel": kernel}
            put(table, key, with_errors, one, two, index=index, **options)
        for estimator, centre in (("blocks", False), ("ratio", False), ("blocks", True)):
            key = f"file.{name}.errors.{estimator}.{centre}"
            options = {"kernel": "gradients", "estimator": estimator, "centre": centre}
            put(table, key, with_errors, one, two, **options)
        for kernel in ("features", "gradients", "product"):
            put(table, f"file.{name}.population.{kernel}", population, one, two, kernel)
        put(table, f"file.{name}.checked", checked, one, two, min=MINIMA)
        put(table, f"file.{name}.trajectory", steps, [one, two, one])
        for kernel in ("features", "gradients", "product"):
            put(table, f"many.matrix.{name}.{kernel}", matrix, [one, two, one], kernel=kernel)
    return table | from_pairs(sets)


def without_whole(rep, place: int):
    """A recording that lacks the full Gram matrix of one layer."""
    layers = list(rep)
    parts = {"blocks": lambda kept: kept.whole.blocks, "whole": lambda _: None}
    layers[place] = with_parts(layers[place], **parts)
    return replace(rep, layers=tuple(layers))


def with_parts(layer, **parts):
    """A layer with other parts of what was recorded, each from all of it."""
    kept = {kind: layer.recorded(kind) for kind in layer.kinds}
    return replace(layer, **{
        kind: replace(x, **{name: made(x) for name, made in parts.items()})
        for kind, x in kept.items()
    })  # fmt: skip


def population(a, b, kernel) -> dict:
    return estimated(compare_population(a, b, kernel))


def steps(reps) -> dict:
    found, out = rs.trajectory(reps, steps=range(len(reps))), {}
    for course in (found.features, found.gradients):
        for name in ("scores", "stderr", "replicates"):
            out[f"{course.kernel}.{name}"] = getattr(course, name)
    return out


def matrix(reps, **options) -> dict:
    found = rs.compare_all(reps, **{"kernel": "product", **options})
    return {"scores": found.scores, "stderr": found.stderr, "n_eff": found.n_eff}


def from_pairs(sets: dict) -> Table:
    """What a report compares, what a zoo ranks by, and its signatures."""
    table: Table = {}
    for name, reps in sets.items():
        for kernel in ("features", "gradients", "product", "sum"):
            found, _ = compare_every_pair(reps, kernel, ("cka", "cka-debiased"), {})
            for (i, j, index), pair in sorted(found.items()):
                numbers = estimated(pair)
                if i == j:  # without an error, degrees of freedom are round-off
                    numbers["df"] = None
                put(table, f"many.every.{name}.{kernel}.{index}.{i}{j}", dict, numbers)
        for kernel in ("features", "gradients", "product"):
            for i, j in itertools.permutations(range(len(reps)), 2):
                key = f"many.ranked.{name}.{kernel}.{i}{j}"
                put(table, key, ranked, reps[i], reps[j], kernel)
        for i, rep in enumerate(reps):
            for kernel, vector in signatures(rep).items():
                table[f"many.signature.{name}.{i}.{kernel}"] = vector[::16].astype(float)
    return table


def ranked(query, other, kernel) -> dict:
    (found,) = score_many(query, [other], kernel)
    return {} if found is None else asdict(found)


MINIMA = {"features": 0.9, "gradients": 0.8, "mean:product": 0.5}


def checked(a, b, **thresholds) -> dict:
    """What was measured for each threshold, its bounds, and what became of it."""
    found = rs.check(a, b, **thresholds)
    numbers = [(x.measured, x.low, x.high, x.samples_needed) for x in found.findings]
    words = [(x.threshold.name, x.status, x.layer or "") for x in found.findings]
    return {"bounds": np.array(numbers, dtype=float), "words": words}


def reported(key: str, reps, path: Path) -> Table:
    """The numbers of a report, out of its page: rounded there, to three digits or five."""
    rs.report(reps, path)
    packed = re.findall(r">([A-Za-z0-9+/=]{100,})<", path.read_text(encoding="utf-8"))
    plain = [zlib.decompress(base64.b64decode(text)) for text in packed]
    (data,) = (json.loads(text) for text in plain if text.startswith(b"{"))
    table = {
        f"{key}.{x['kernel']}.{x['index']}.{part}": np.array(x[part], dtype=float)
        for x in data["overview"]
        for part in ("scores", "stderr")
    }
    table[f"{key}.means"] = np.array([x["mean"] for x in data["comparisons"]], dtype=float)
    table[f"{key}.adaptation"] = np.array(
        [layer for x in data["adaptation"] for layer in (x or {}).get("mean_embedding", [])]
    )
    return table


def from_published() -> Table:
    table: Table = {}
    published = sorted(PUBLISHED.glob("*.rsm"))
    p, q, r = (rs.load(PUBLISHED / f"{n}.rsm") for n in
               ("cifar10_resnet18_0", "cifar10_resnet18_1", "svhn_resnet50_0"))  # fmt: skip
    for index, kernel in itertools.product(INDICES, ("features", "gradients", "product", "sum")):
        put(
            table,
            f"file.twins.{kernel}.{index}",
            compared,
            p,
            q,
            kernel=kernel,
            index=index,
        )
    put(table, "file.transport", compared, p, q, kernel="transport")
    put(table, "file.apart", compared, p, r)
    match = rs.compare(p, r, kernel="features").match()
    table["file.match"] = np.array([match.nearest, match.aligned])
    put(table, "file.adaptation.published", adapted, r)
    table |= norms("file.fisher_rao.published", r)
    networks = [rs.load(path) for path in published]
    for kernel, index in itertools.product(KERNELS, ("cka", "cka-debiased")):
        for centre in (True, False):
            options = {"kernel": kernel, "index": index, "centre": centre}
            put(table, f"many.{kernel}.{index}.{centre}", many, networks[::4], **options)
    put(table, "many.all", many, networks)
    put(table, "many.layer", many, networks[:5], layer=-1, blocks=3)
    return table


def many(reps, **options) -> dict:
    found = rs.compare_all(reps, **{"kernel": "product", "blocks": 16, **options})
    return {"scores": found.scores, "stderr": found.stderr, "order": found.order()}


def norms(key: str, rep) -> Table:
    found = rs.fisher_rao(rep)
    return {
        f"{key}.norms": np.array(list(found.norms.values())),
        f"{key}.stderr": np.array(list(found.stderr.values())),
    }


# -- networks run again ---------------------------------------------------------------------------


def recorded(key: str, rep) -> Table:
    """What a recording holds, through what can be read from it by any version."""
    table: Table = {f"{key}.blocks": np.array([rep.block_sizes, rep.block_numbers])}
    for layer in rep:
        for kind in layer.kinds:
            table[f"{key}.{layer.name}.{kind}.blocks"] = layer.blocks(kind).sum((1, 2)).numpy()
            if rep.settings.buckets:
                for centre in (False, True):
                    kernel = layer.buckets(kind, centre=centre).numpy()
                    table[f"{key}.{layer.name}.{kind}.buckets.{centre}"] = kernel.sum(0)
    table |= norms(f"{key}.fisher_rao", rep) if rep.settings.gradients else {}
    if rep.settings.gradients and rep.settings.blocks:
        put(table, f"{key}.adaptation", adapted, rep)
    compares = rep.settings.blocks and rep.complete  # one shard of several is refused
    for kernel in ("features", "gradients", "product") if compares else ():
        put(table, f"{key}.{kernel}", compared, rep, rep, kernel=kernel)
    return table


def from_passes() -> Table:
    table: Table = {}
    x, images = samples(), samples(600, 3)[:, :3, None, None].expand(-1, 3, 16, 16)
    images = images + torch.randn(600, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    turned = images.to(memory_format=torch.channels_last)
    y = torch.arange(300) % 3
    net = network(1)
    stream = [x[i : i + 37] for i in range(0, 300, 37)]
    passes = {
        "default": (net, x, {}),
        "elementwise": (net, x, {"elementwise": True, "buckets": 64, "per_sample": 2}),
        "stream": (net, stream, {"block": 16}),
        "labels": (net, (x, y), {"target": "labels", "batch_size": 64}),
        "features": (convolutional(1), images, {"gradients": False}),
        "folded": (convolutional(1), images, {"max_dim": 256, "buckets": 64}),
        "channels-last": (convolutional(1), turned, {"buckets": 0}),
        "pooled": (convolutional(1), images, {"pool": "mean", "block": 20, "beta": 0.0}),
        "skip": (net, torch.cat([x, torch.full((3, 12), torch.nan)]), {"on_bad": "skip"}),
        "shard": (net, x, {"shard": (1, 3)}),
    }
    for key, (model, data, options) in passes.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table |= recorded(f"pass.{key}", rs.record(model, data, **options))
    f = x.numpy()
    table |= recorded("pass.arrays", rs.record_arrays(f, f[:, ::-1].copy(), data_id="x"))
    for kernel in ("features", "gradients", "product"):
        for sketch in (None, "both"):
            machine = rs.KernelClassifier(net, kernel=kernel, sketch=sketch, buckets=64, layer="1")
            machine.fit(x, y)
            key = f"pass.classifier.{kernel}.{sketch}"
            table[f"{key}.values"] = machine.decision_function(samples(20, 9))
            table[f"{key}.fit"] = np.array(
                [machine.alpha_, machine.loo_score_ or machine.cv_score_]
            )
    for draws in (None, 3):
        table[f"pass.task2vec.{draws}"] = rs.task2vec(net, x[:64], draws=draws).vector.numpy()
    table["pass.task2vec.images"] = rs.task2vec(
        convolutional(1), images[:40], chunk=16
    ).vector.numpy()
    return table


def values() -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = from_published() if PUBLISHED.exists() else {}
        return from_files() | published | from_passes()


def write_tables(folder: Path, table: Table) -> None:
    """A table as two files, one of them what the published recordings yield."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, published in (("values", False), ("published", True)):
        part = {k: v for k, v in table.items() if k.startswith(FROM_PUBLISHED) == published}
        write_table(folder / f"{name}.npz", part)


def write_table(path: Path, table: Table) -> None:
    """All arrays of one type in a row, as thousands of small files in an archive take more room.

    Numbers are rounded to a hundredth of the tolerance with which they are compared, and those of
    float64 are stored byte by byte, first bytes first, which compresses better.
    """
    index, rows = {}, {}
    for key, value in sorted(table.items()):
        kind = "text" if value.dtype.kind == "U" else value.dtype.str
        index[key] = kind, value.shape
        rows.setdefault(kind, []).append(rounded(key, value).ravel())
    arrays = {kind: np.concatenate(some) for kind, some in rows.items()}
    if "<f8" in arrays:
        arrays["<f8"] = arrays["<f8"].view(np.uint8).reshape(-1, 8).T
    np.savez_compressed(path, index=json.dumps(index), **arrays)


def rounded(key: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "f" or not value.size:
        return value
    step = 2.0 ** np.floor(np.log2(scale_of(key, value) * LIMITS[key.partition(".")[0]] / 100))
    return np.round(value / step) * step


def scale_of(key: str, value: np.ndarray) -> float:
    """What differences are relative to: 1 for scores, else the largest number."""
    absolute = key.startswith(("file", "many")) or key.endswith(PARTS)
    size = np.abs(np.nan_to_num(value, posinf=0, neginf=0)).max(initial=0)
    return max(float(size), 1.0 if absolute else 1e-300)


def read_tables(folder: Path) -> Table:
    names = ("values", "published") if PUBLISHED.exists() else ("values",)
    return {key: x for name in names for key, x in read_table(folder / f"{name}.npz").items()}


def read_table(path: Path) -> Table:
    with np.load(path) as stored:
        arrays, table = dict(stored), {}
    if "<f8" in arrays:
        arrays["<f8"] = np.ascontiguousarray(arrays["<f8"].T).view("<f8").ravel()
    done = dict.fromkeys(arrays, 0)
    for key, (kind, shape) in json.loads(str(arrays["index"])).items():
        start, done[kind] = done[kind], done[kind] + math.prod(shape)
        table[key] = arrays[kind][start : done[kind]].reshape(shape)
    return table


def differences(old: Table, new: Table) -> dict[str, float]:
    """Of every key, the largest difference: of scores as it is, else relative to the largest one.

    Infinite where tables differ in keys, shapes or words.
    """
    out: dict[str, float] = {}
    for key in sorted({*old, *new}):
        x, y = old.get(key), new.get(key)
        if x is None or y is None or x.shape != y.shape or x.dtype.kind != y.dtype.kind:
            out[key] = np.inf
        elif x.dtype.kind not in "fi":
            out[key] = 0.0 if (x == y).all() else np.inf
        elif not (np.isfinite(x) == np.isfinite(y)).all():
            out[key] = np.inf
        else:
            x, y = (np.nan_to_num(v.astype(float), posinf=0, neginf=0) for v in (x, y))
            out[key] = float(np.abs(x - y).max(initial=0) / scale_of(key, x))
    return out


def main(what: str, *paths: str) -> None:
    if what == "files":
        write_files(Path(paths[0]))
    elif what == "values":
        write_tables(Path(paths[0]), values())
    elif what == "against":
        found = differences(*(read_tables(Path(path)) for path in paths))
        groups: dict[str, list[tuple[float, str]]] = {}
        for key, value in found.items():
            groups.setdefault(".".join(key.split(".")[:2]), []).append((value, key))
        for group, members in groups.items():
            worst, key = max(members)
            print(f"{group:28} {len(members):5} keys, worst {worst:.2e} at {key}")


if __name__ == "__main__":
    main(*sys.argv[1:])
