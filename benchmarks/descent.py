"""Who descends from whom: how well copies are told from networks that were trained apart.

    OMP_NUM_THREADS=1 python -m benchmarks.descent [--images FOLDER] [--origins 2] [--quick]
    OMP_NUM_THREADS=1 python -m benchmarks.descent --probes --images FOLDER

Networks are trained, and copies made of each: rounded, pruned, tuned, given a LoRA adapter that is
merged, averaged with another; copies also with their hidden units in another order. Against them
stand networks that share no weights: twins from other seeds, distilled ones, networks of other
tasks, and copies of those. Every network is recorded on unseen data and on the package's noise.
Thresholds are chosen on two architectures for handwritten digits (`chosen on`), such that at most
one in a hundred pairs that are not related would be called so, and judged on others (`judged on`):
another network for digits, networks with batch normalisation for house numbers (FOLDER holds
svhn.npz and cifar100.npz with xtr, ytr, xte, yte; else they are left out), and a small Llama.

With --probes, networks for house numbers and for photographs are recorded on unseen house numbers,
on the package's images and on its noise instead, and it is asked whether those tell twins, copies
and other tasks apart as ordinary data do. The answer is added to the result.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import resemblance as rs
from resemblance import Representation
from resemblance._data import probe_samples
from resemblance._data.text import TextOptions
from resemblance.errors import ResemblanceWarning
from resemblance.recording.config import RecordConfig
from resemblance.recording.record import NamedRecording, load_recording_data, record_named
from resemblance.zoo.descent import NOISE, descent
from resemblance.zoo.signature import layers_at_depths

from . import copied_digits, digits, language_copies
from .changed_weights import averaged, pruned, rounded
from .trained_copies import divergence, trained, with_adapter

SAMPLES = 512  # of noise
_SCRATCH = {"origin", "other task", "distilled"}
RATE = 0.01  # of false alarms, where thresholds are chosen
SCORES = ("coordinates", *(f"noise {i}/3" for i in range(4)), "noise mean", "features")


@dataclass(frozen=True)
class Made:
    """A network, where its weights come from, and what became of them."""

    kind: str
    origins: frozenset[str]  # of whose weights it has some; its own name if trained from scratch
    net: nn.Module | None
    exchanged: bool = False  # hidden units in another order
    file: str = ""  # of a language model


@dataclass(frozen=True)
class School:
    """How networks of one architecture are trained."""

    name: str
    build: Callable[[int], nn.Module]  # of so many classes
    chain: Callable[[nn.Module], list[list[nn.Module]]]  # layers in order, each with its norm
    adapted: tuple[str, ...]  # layers with an adapter
    inputs: Tensor
    labels: Tensor
    other: tuple[Tensor, Tensor]  # another task
    unseen: Tensor
    noise: Tensor
    steps: int
    rate: float = 4e-3

    def learnt(self, seed: int, *, other: bool = False) -> nn.Module:
        x, y = self.other if other else (self.inputs, self.labels)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = self.build(int(y.max()) + 1)
        return self._trained(net, x, y, self.steps, self.rate, seed)

    def tuned(self, net: nn.Module, seed: int, *, other: bool = False) -> nn.Module:
        """A quarter of the steps; to another task, with a new head."""
        x, y = self.other if other else (self.inputs, self.labels)
        if other:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                fresh = self.build(int(y.max()) + 1)
            state = net.state_dict()
            head = self._head(fresh)
            kept = {k: v for k, v in state.items() if not k.startswith(head)}
            fresh.load_state_dict(kept, strict=False)
            net = fresh
        return self._trained(net, x, y, self.steps // 4, self.rate / 3, seed)

    def distilled(self, teacher: nn.Module, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            student = self.build(int(self.labels.max()) + 1)
        with torch.no_grad():
            goal = teacher(self.inputs)

        def loss(net: nn.Module, rows: Tensor) -> Tensor:
            return divergence(net(self.inputs[rows]), goal[rows], 2.0)

        return trained(student, loss, **self._how(self.steps, self.rate, seed))

    def exchanged(self, net: nn.Module, seed: int) -> nn.Module:
        """The same function with the units of each hidden layer in another order."""
        net, rng = copy.deepcopy(net), np.random.default_rng(seed)
        chain = self.chain(net)
        with torch.no_grad():
            for (layer, *norms), (following, *_) in itertools.pairwise(chain):
                order = torch.from_numpy(rng.permutation(len(layer.weight)))
                for module in (layer, *norms):
                    for name in ("weight", "bias", "running_mean", "running_var"):
                        if getattr(module, name, None) is not None:
                            value = getattr(module, name)
                            value.copy_(value[order].clone())
                shape = following.weight.shape
                by_unit = following.weight.reshape(shape[0], len(order), -1)
                following.weight.copy_(by_unit[:, order].reshape(shape).clone())
        return net

    def _head(self, net: nn.Module) -> str:
        last = self.chain(net)[-1][0]
        return next(name for name, module in net.named_modules() if module is last)

    def _how(self, steps: int, rate: float, seed: int) -> dict[str, Any]:
        return {
            "rows": len(self.inputs),
            "steps": max(2, steps),
            "batch": 32,
            "rate": rate,
            "seed": seed,
        }

    def _trained(
        self, net: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float, seed: int
    ) -> nn.Module:
        def loss(net: nn.Module, rows: Tensor) -> Tensor:
            return cross_entropy(net(x[rows]), y[rows])

        return trained(net, loss, **self._how(steps, rate, seed) | {"rows": len(x)})


def family(school: School, origins: int, twins: int) -> Iterator[Made]:
    """Networks from scratch, copies of the first of them, and distilled ones."""
    nets = [school.learnt(seed) for seed in range(twins)]
    names = [frozenset({f"{school.name} {i}"}) for i in range(twins)]
    for net, name in zip(nets, names, strict=True):
        yield Made("origin", name, net)
    for i in range(2):
        own = frozenset({f"{school.name} other {i}"})
        yield Made("other task", own, school.learnt(100 + i, other=True))
    for i in range(origins):
        base, name = nets[i], names[i]
        copies = {f"int{bits}": rounded(base, bits) for bits in (8, 4)}
        copies |= {f"pruned {p} %": pruned(base, p / 100) for p in (20, 50, 80)}
        same = [school.tuned(base, 200 + 10 * i + k) for k in range(2)]
        copies |= {"tuned": same[0], "averaged": averaged(*same)}
        copies["tuned away"] = school.tuned(base, 300 + i, other=True)
        adapter = with_adapter(base, list(school.adapted), 400 + i)
        tuned = school.tuned(adapter, 400 + i)
        copies["lora"] = tuned.merge_and_unload()  # type: ignore[operator]
        for kind, net in copies.items():
            yield Made(kind, name, net)
        merged = averaged(base, nets[(i + 1) % twins])
        yield Made("averaged with a twin", name | names[(i + 1) % twins], merged)
        for kind in ("origin", "int4", "pruned 50 %", "pruned 80 %", "tuned", "tuned away", "lora"):
            net = school.exchanged(copies.get(kind, base), 500 + i)
            yield Made(kind, name, net, exchanged=True)
        own = frozenset({f"{school.name} distilled {i}"})
        yield Made("distilled", own, school.distilled(base, 600 + i))


def language(folder: Path, *, quick: bool) -> Iterator[Made]:
    """A small Llama and its copies, as `language_copies` makes them."""
    apart = {"twin": {"llama twin"}, "from-text": {"llama from text"}}
    for copied in language_copies.made(folder, quick=quick):
        origins = apart.get(copied.name, {"llama"})
        if copied.name == "averaged-twins":
            origins = {"llama", "llama twin"}
        kind = {"base": "origin", "twin": "origin", "from-text": "origin"}.get(copied.name)
        yield Made(kind or copied.name, frozenset(origins), None, file=copied.name)


def recorded(school: School | None, made: Made, folder: Path) -> dict[str, Representation]:
    """On unseen data, and on noise, of which only four layers are kept."""
    if school is None:
        text = TextOptions(length=language_copies.LENGTH)
        wanted = NamedRecording(
            f"hf:{folder / made.file}", str(folder / "unseen.txt"), limit=256, text=text
        )
        config = RecordConfig(gradients=False, progress=False)
        return {"data": record_named(wanted, load_recording_data(wanted), config)}
    assert made.net is not None
    options = {"gradients": False, "progress": False, "buckets": 0}
    data = rs.record(made.net, school.unseen, data_id="unseen", **options)
    return {"data": data, "noise": rs.record(made.net, school.noise, data_id=NOISE, **options)}


def scored(a: dict[str, Representation], b: dict[str, Representation]) -> dict[str, Any]:
    """All that could tell whether two networks are related."""
    found = descent(a["data"], b["data"])
    out: dict[str, Any] = {"coordinates": found.strength, "shared": found.related}
    if found.coordinates is None:
        out["coordinates"] = 0.0
    out["features"] = _by_depth(a["data"], b["data"]).mean()
    if "noise" in a:
        noise = _by_depth(a["noise"], b["noise"])
        out |= {f"noise {i}/3": x for i, x in enumerate(noise.tolist())}
        out["noise mean"] = noise.mean()
    return {key: x if isinstance(x, bool) else round(float(x), 4) for key, x in out.items()}


def _by_depth(a: Representation, b: Representation) -> np.ndarray:  # (4,)
    """Centred CKA of features at four relative depths."""
    kernels = [[_centred(layer, rep) for layer in layers_at_depths(rep)] for rep in (a, b)]
    return np.array([float((x * y).sum()) for x, y in zip(*kernels, strict=True)])


_KEPT: dict[int, Tensor] = {}


def _centred(layer: Any, rep: Representation) -> Tensor:
    """Kernels of blocks, each centred, of length one; kept, as a network is in many pairs."""
    if id(layer) not in _KEPT:
        whole = layer.features.whole is not None
        k = layer.blocks("features", whole=whole)
        k = k - k.mean(-1, keepdim=True) - k.mean(-2, keepdim=True) + k.mean((-2, -1), keepdim=True)
        _KEPT[id(layer)] = (k / k.norm()).float()
    return _KEPT[id(layer)]


def pairs(every: Sequence[tuple[Made, dict[str, Representation]]]) -> Iterator[dict[str, Any]]:
    """Each origin beside its copies, and pairs that share no weights, one of them no copy."""
    for (a, one), (b, two) in itertools.combinations(every, 2):
        related = bool(a.origins & b.origins)
        if related and (a.kind != "origin" or a.exchanged):
            continue
        if not related and (a.exchanged or b.exchanged or not {a.kind, b.kind} & _SCRATCH):
            continue  # others say as much
        kind = "as it was" if b.kind == "origin" else b.kind
        yield {
            "related": related,
            "exchanged": a.exchanged or b.exchanged,
            "kind": kind if related else _apart(a, b),
            "origins": sorted(a.origins | b.origins),
            **scored(one, two),
        }


def _apart(a: Made, b: Made) -> str:
    kinds = {a.kind, b.kind}
    for kind in ("other task", "distilled"):
        if kind in kinds:
            return kind
    return "twins" if kinds == {"origin"} else "copies of twins"


def wilson(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    z, p = 1.96, count / of
    centre, spread = p + z * z / 2 / of, z * (p * (1 - p) / of + z * z / 4 / of**2) ** 0.5
    low, high = ((centre + sign * spread) / (1 + z * z / of) for sign in (-1, 1))
    return round(max(0.0, low), 4), round(min(1.0, high), 4)


def area(yes: Sequence[float], no: Sequence[float]) -> float:
    """The area under the ROC curve: how often a related pair scores above another."""
    a, b = np.array(yes)[:, None], np.array(no)[None]
    return round(float((a > b).mean() + 0.5 * (a == b).mean()), 4)


def judged(rows: list[dict[str, Any]], thresholds: dict[str, float]) -> dict[str, Any]:
    """Rates of each score, by what is to be told apart, and the area under its ROC curve."""
    out: dict[str, Any] = {}
    apart = [r for r in rows if not r["related"]]
    for name, exchanged in (("units in place", False), ("units exchanged", True)):
        copies = [r for r in rows if r["related"] and r["exchanged"] == exchanged]
        if not copies:
            continue
        out[name] = {}
        for score in SCORES:
            yes, no = ([r[score] for r in some if score in r] for some in (copies, apart))
            if not yes or not no:
                continue
            at = thresholds[score]
            hits, alarms = (sum(x > at for x in some) for some in (yes, no))
            out[name][score] = {
                "area": area(yes, no),
                "threshold": at,
                "found": [hits, len(yes), *wilson(hits, len(yes))],
                "alarms": [alarms, len(no), *wilson(alarms, len(no))],
            }
    return out


def thresholds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of each score, what all but one in a hundred pairs that are not related stay below."""
    apart = [r for r in rows if not r["related"]]
    return {
        score: round(float(np.quantile([r[score] for r in apart], 1 - RATE, method="higher")), 4)
        for score in SCORES
    }


def by_kind(rows: list[dict[str, Any]], limits: dict[str, float]) -> list[dict[str, Any]]:
    """Of each kind of pair, medians of scores and how many are said to be related."""
    out = []
    keys = sorted({(r["related"], r["exchanged"], r["kind"]) for r in rows}, reverse=True)
    for related, exchanged, kind in keys:
        some = [
            r
            for r in rows
            if (r["related"], r["exchanged"], r["kind"]) == (related, exchanged, kind)
        ]
        medians = {
            score: round(float(np.median([r[score] for r in some if score in r])), 3)
            for score in SCORES
            if score in some[0]
        }
        noisy = [r["noise 1/3"] > limits["noise 1/3"] for r in some if "noise 1/3" in r]
        out.append(
            {"related": related, "exchanged": exchanged, "kind": kind, "pairs": len(some)}
            | {"shared": sum(r["shared"] for r in some), "by noise": sum(noisy), **medians}
        )
    return out


def probes(school: School) -> dict[str, Any]:
    """Mean similarity, over four depths, of an origin and others on three kinds of samples."""
    made = list(family(school, 1, 4))
    pictures = (
        torch.stack([probe_samples.probe_image(i, school.unseen.shape[-1]) for i in range(SAMPLES)])
        - 0.5
    ) / 0.25
    places = {"house numbers": school.unseen, "probe:images": pictures, NOISE: school.noise}
    out: dict[str, Any] = {}
    for name, samples in places.items():
        reps = [rs.record(x.net, samples, data_id=name, progress=False, buckets=0) for x in made]  # type: ignore[arg-type]
        found: dict[str, list[tuple[float, float]]] = {}
        for x, rep in zip(made[1:], reps[1:], strict=True):
            if not x.exchanged:
                kind = "twin" if x.kind == "origin" else x.kind
                both = (
                    rs.compare(reps[0], rep, kernel=k).mean()[0] for k in ("features", "gradients")
                )
                found.setdefault(kind, []).append(tuple(both))  # type: ignore[arg-type]
        out[name] = {
            kind: dict(
                zip(("features", "gradients"), np.round(np.mean(x, 0), 3).tolist(), strict=True)
            )
            for kind, x in found.items()
        }
        order = [kind for kind in out["house numbers"] if kind in found]
        for kernel in ("features", "gradients"):
            ranks = [
                np.argsort(np.argsort([out[p][kind][kernel] for kind in order]))
                for p in ("house numbers", name)
            ]
            out[name].setdefault("rank correlation with house numbers", {})[kernel] = round(
                float(np.corrcoef(*ranks)[0, 1]), 3
            )
    return out


# -- the networks -------------------------------------------------------------------------------


def schools(images: Path | None, *, quick: bool) -> Iterator[tuple[str, School]]:
    """Where thresholds are chosen, then where they are judged."""
    x, y = digits.load()
    half, steps = len(x) // 2, 20 if quick else 600
    noise = torch.stack([probe_samples.noise_image(i, 8)[:1] for i in range(SAMPLES)])
    common: dict[str, Any] = {
        "inputs": x[:half],
        "labels": y[:half],
        "other": (x[:half], y[:half] % 2),
        "unseen": x[half:][:SAMPLES],
        "noise": noise,
        "steps": steps,
    }
    yield "chosen on", School("conv", _conv, _sequential, ("0", "2", "5", "9"), **common)
    yield "chosen on", School("perceptron", _perceptron, _sequential, ("1", "3", "5"), **common)
    named = ("conv1", "conv2", "conv3", "hidden")
    yield "judged on", School("digit-net", _digit_net, _named, named, **common)
    if images is None:
        return
    svhn, cifar = (_images(images / f"{name}.npz") for name in ("svhn", "cifar100"))
    chosen = cifar[1] < 20
    yield (
        "judged on",
        School(
            "normalised",
            _normalised,
            _blocks,
            ("0", "4", "8", "12"),
            inputs=svhn[0][:6000],
            labels=svhn[1][:6000],
            other=(cifar[0][chosen], cifar[1][chosen]),
            unseen=svhn[0][-SAMPLES:],
            noise=(torch.stack([probe_samples.noise_image(i, 16) for i in range(SAMPLES)]) - 0.5)
            / 0.25,
            steps=20 if quick else 700,
        ),
    )


def _images(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        x, y = file["xtr"][:12000], file["ytr"][:12000]
    pixels = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255
    return (avg_pool2d(pixels, 2) - 0.5) / 0.25, torch.from_numpy(y).long()


def _conv(classes: int) -> nn.Module:
    net = digits.network(classes, int(torch.randint(2**31, ()).item()))
    return net


def _perceptron(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(),
        nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def _digit_net(classes: int) -> nn.Module:
    net = copied_digits.DigitNet(16)
    net.head = nn.Linear(64, classes)
    return net


def _normalised(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, after in itertools.pairwise((3, 24, 32, 48, 48)):
        layers += [nn.Conv2d(wide, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2) if after > 24 else nn.Identity()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 4, classes))


def _sequential(net: nn.Module) -> list[list[nn.Module]]:
    return [[module] for module in net if isinstance(module, nn.Conv2d | nn.Linear)]  # type: ignore[attr-defined]


def _named(net: nn.Module) -> list[list[nn.Module]]:
    return [[getattr(net, name)] for name in ("conv1", "conv2", "conv3", "hidden", "head")]


def _blocks(net: nn.Module) -> list[list[nn.Module]]:
    out: list[list[nn.Module]] = []
    for module in net:  # type: ignore[attr-defined]
        if isinstance(module, nn.Conv2d | nn.Linear):
            out.append([module])
        elif isinstance(module, nn.BatchNorm2d):
            out[-1].append(module)
    return out


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=Path, default=None)
    parser.add_argument("--origins", type=int, default=2)
    parser.add_argument("--twins", type=int, default=6)
    parser.add_argument("--probes", action="store_true", help="only ask what probes tell")
    parser.add_argument("--quick", action="store_true", help="train next to nothing, keep nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResemblanceWarning)
    if options.probes:
        *_, (_, school) = schools(options.images, quick=options.quick)
        return _add_probes(probes(school), keep=not options.quick)
    rows: dict[str, list[dict[str, Any]]] = {}
    use: dict[str, list[str]] = {"chosen on": [], "judged on": []}
    begun, seconds = time.process_time(), {}

    def run(name: str, school: School | None, every: Iterator[Made], folder: Path) -> None:
        made = [(each, recorded(school, each, folder)) for each in every]
        rows[name] = list(pairs(made))
        _KEPT.clear()
        seconds[name] = round(time.process_time() - begun)
        print(f"{seconds[name]:5.0f} s  {name}: {len(made)} networks, {len(rows[name])} pairs")

    with tempfile.TemporaryDirectory() as place:
        for what, school in schools(options.images, quick=options.quick):
            use[what].append(school.name)
            every = family(school, options.origins, options.twins)
            run(school.name, school, every, Path(place))
        if not options.quick:
            use["judged on"].append("llama")
            run("llama", None, language(Path(place), quick=False), Path(place))
    chosen = [r for name in use["chosen on"] for r in rows[name]]
    limits = thresholds(chosen)
    result: dict[str, Any] = {
        "options": vars(options) | {"images": options.images is not None},
        "networks": use,
        "processor_seconds": seconds,
        "thresholds": limits,
        "chosen on": judged(chosen, limits),
        "judged on": {
            "all": judged([r for name in use["judged on"] for r in rows[name]], limits),
            **{name: judged(rows[name], limits) for name in use["judged on"]},
        },
        "shared": {
            what: {
                "found": sum(r["shared"] for r in some if r["related"] and not r["exchanged"]),
                "of": sum(r["related"] and not r["exchanged"] for r in some),
                "alarms": (alarms := sum(r["shared"] for r in some if not r["related"])),
                "pairs apart": (apart := sum(not r["related"] for r in some)),
                "interval": wilson(alarms, apart),
            }
            for what, names in use.items()
            for some in [[r for name in names for r in rows[name]]]
        },
        "by kind": {name: by_kind(some, limits) for name, some in rows.items()},
    }
    print(result["thresholds"], result["shared"], result["judged on"]["all"], sep="\n")
    if not options.quick:
        path = digits.HERE / "results" / "descent.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        kept = {key: before[key] for key in ("probes",) if key in before}
        print(digits.write("descent", result | kept))
    return result


def _add_probes(found: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    """The result with what probes tell beside all else."""
    print(json.dumps(found, indent=1))
    path = digits.HERE / "results" / "descent.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    result: dict[str, Any] = before | {"probes": found}
    if keep:
        path.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
