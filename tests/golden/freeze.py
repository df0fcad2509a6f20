"""Numbers that must not move: everything the package computes, as one flat table of arrays.

    python tests/golden/freeze.py files FOLDER             write the small recordings
    python tests/golden/freeze.py values OUT.npz           compute every number
    python tests/golden/freeze.py against OLD.npz NEW.npz  say where two tables differ

The tests compute the table `values.npz` beside this file anew. Keys begin with `file.` (from
recordings that version 0.1.0 wrote: reproducible to 1e-9), `many.` (from recordings, in float32),
or `pass.` (networks are run again). What begins with `file.` was computed by version 0.1.0, but for
standard errors, which are estimated otherwise since, and one combination that was an error; the
rest by version 0.2, which keeps the kernels of few samples whole.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import resemblance as rs

HERE = Path(__file__).parent
PUBLISHED = HERE.parent.parent / "reproduction" / "results"
# Keys that are computed from the published recordings, which an sdist does not hold.
FROM_PUBLISHED = (
    "file.twins.", "file.transport.", "file.apart.", "file.match", "file.adaptation.published.",
    "file.fisher_rao.published.", "many.",
)  # fmt: skip
KERNELS = ("features", "gradients", "product", "sum", "elementwise", "transport")
INDICES = ("cka", "cka-debiased", "nbs", "spectral", "rsa")
ESTIMATORS = ("auto", "blocks", "buckets", "paper")
PARTS = ("scores", "stderr", "chance", "chance_high")
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


SMALL = {"buckets": 32, "elementwise": True, "block": 24, "name": "small"}


def write_files(folder: Path) -> None:
    x = samples()
    rs.record(network(1), x, **SMALL, keep_sums=True).save(folder / "a.rsm")
    rs.record(network(2, 28), x, **SMALL).save(folder / "b.rsm")
    rs.record(network(2, 28), samples(260, 5), **SMALL).save(folder / "c.rsm")
    for i in range(2):
        rs.record(network(1), x, **SMALL, shard=(i, 2)).save(folder / f"shard-{i}.rsm")


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
    found = rs.compare(a, b, **options)
    parts = {name: getattr(found, name) for name in PARTS}
    return {**parts, "meta": [found.centre, found.estimator, found.paired, *found.samples]}


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
    found = rs.compare_all(reps, **{"blocks": 16, **options})
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
            size = np.abs(x).max(initial=0)
            absolute = key.startswith(("file", "many")) or key.endswith(PARTS)
            scale = max(size, 1.0 if absolute else 1e-300)
            out[key] = float(np.abs(x - y).max(initial=0) / scale)
    return out


def main(what: str, *paths: str) -> None:
    if what == "files":
        write_files(Path(paths[0]))
    elif what == "values":
        np.savez_compressed(paths[0], **values())
    elif what == "against":
        found = differences(*(dict(np.load(path)) for path in paths))
        groups: dict[str, list[tuple[float, str]]] = {}
        for key, value in found.items():
            groups.setdefault(".".join(key.split(".")[:2]), []).append((value, key))
        for group, members in groups.items():
            worst, key = max(members)
            print(f"{group:28} {len(members):5} keys, worst {worst:.2e} at {key}")


if __name__ == "__main__":
    main(*sys.argv[1:])
