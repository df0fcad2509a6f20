"""Which network of a zoo for a new data set? Every score against what fine-tuning and probes reach.

    python -m benchmarks.recommend_data FOLDER data.npz            # once, see there
    python -m benchmarks.recommend --data data.npz --work FOLDER   # or RESEMBLANCE_RECOMMEND_DATA
    python -m benchmarks.recommend --data data.npz --work FOLDER_2 --collection clothes
    python -m benchmarks.recommend joint

Four steps, each of which goes on where it was stopped:

sources   train 27 networks and take one from elsewhere (`recommend_networks`), kept in the work
          folder;
pairs     fine-tune each on each target by two seeds (all weights, a new head), and for the first
          collection fit a linear probe at each of its layers: a line in pairs.jsonl for each;
scores    one pass of each source over the images of each target, and every score that the package
          has: a line in scores.jsonl;
judge     rank by each score against what fine-tuning reached (`recommend_judged`), and write
          results/recommend_FORM.json, with the end _part if some data sets were missing, or
          results/recommend_COLLECTION.json;
joint     (only where it is named) judge all collections together, from those files.

`--pairs-from results/recommend_cpu.json` takes the pairs from an earlier run, if sources came out
with the same accuracies in every digit.

`--collection` is one of three (`recommend_networks`): `six data sets`, whose 28 sources take one
core 75 minutes, `clothes` and `new classes`, which take about five minutes each. `--form cpu` has
small networks; `--form gpu` has ResNet-18s. `--quick` is a few of each, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .linear_probe import probe_accuracy
from .recommend_data import load
from .recommend_networks import (
    COLLECTIONS,
    Collection,
    Form,
    Part,
    accuracy,
    layers,
    network,
    parts_of,
    placed,
    train,
    trained_source,
)

STEPS = ("sources", "pairs", "scores", "judge")
JOINT = ("recommend_cpu_part", "recommend_clothes", "recommend_new_classes")  # results
_RATE = 2e-3
_TIMED = ("cifar10", "cifar10, residual")  # of which the cost of each score is measured
_QUICK_SOURCES = ("cifar10", "svhn", "mnist", "cifar10, residual", "untrained")
_QUICK_TARGETS = ("svhn 5 to 9, 200", "mnist, 100", "digits, 100")


@dataclass(frozen=True)
class Setting:
    """What a run is: enough for another process to go on with it."""

    data: Path
    work: Path
    form: Form
    quick: bool
    device: str
    collection: str = "six data sets"

    @property
    def all(self) -> Collection:
        return COLLECTIONS[self.collection]

    @property
    def sources(self) -> list[str]:
        """Those whose images there are."""
        plans, there = self.all.sources, {*load(self.data), "imagenet"}
        return [
            name
            for name, plan in plans.items()
            if plan.data in there and (not self.quick or name in _QUICK_SOURCES)
        ]

    @property
    def targets(self) -> list[str]:
        """Those whose images there are."""
        aims, there = self.all.targets, load(self.data)
        return [
            name
            for name, aim in aims.items()
            if aim.data in there and (not self.quick or name in _QUICK_TARGETS)
        ]

    @property
    def epochs(self) -> float:  # of a source
        return 0.5 if self.quick else 8 if self.form == "cpu" else 30

    def steps(self, images: int) -> int:  # of fine-tuning: enough to fit most of its images
        return 20 if self.quick else (100 if self.form == "cpu" else 300) + images // 6

    def weights(self, source: str) -> Path:
        return self.work / "sources" / f"{list(self.all.sources).index(source):02d}.pt"

    @property
    def probed(self) -> bool:
        """Whether layers are judged too, which takes as long as all else."""
        return self.collection == "six data sets"

    @property
    def result(self) -> str:  # name of the file in results
        if self.collection != "six data sets":
            return f"recommend_{self.collection.replace(' ', '_')}"
        every = len(self.sources) == len(self.all.sources)
        return f"recommend_{self.form}{'' if every else '_part'}"


def loaded(setting: Setting, source: str) -> nn.Sequential:
    """A source as it was trained."""
    kept = torch.load(setting.weights(source), map_location="cpu", weights_only=True)
    architecture = setting.all.sources[source].architecture
    model = network(architecture, kept["about"]["classes"], form=setting.form, seed=0)
    model.load_state_dict(kept["state"])
    return placed(model, setting.device).eval()


# -- sources -------------------------------------------------------------------------------------


def make_sources(setting: Setting) -> None:
    pools = load(setting.data)
    (setting.work / "sources").mkdir(parents=True, exist_ok=True)
    for name in setting.sources:
        path = setting.weights(name)
        if path.exists():
            continue
        start = time.process_time()
        how: dict[str, Any] = {"form": setting.form, "epochs": setting.epochs}
        model, about = trained_source(setting.all, name, pools, **how, device=setting.device)
        about |= {"seconds": time.process_time() - start}
        whole = path.with_suffix(".part")
        torch.save({"state": model.cpu().state_dict(), "about": about}, whole)
        os.replace(whole, path)
        print(f"{name}: {about}", flush=True)


# -- pairs ---------------------------------------------------------------------------------------


def fine_tuned(setting: Setting, source: str, fit: Part, test: Part) -> list[dict[str, float]]:
    """Test accuracy with each of two seeds, and how well it fits its own images."""
    out = []
    for seed in range(2):
        kept = loaded(setting, source)
        head = f"{len(kept) - 1}."
        body = {k: v for k, v in kept.state_dict().items() if not k.startswith(head)}
        architecture = setting.all.sources[source].architecture
        model = network(architecture, int(fit[1].max()) + 1, form=setting.form, seed=100 + seed)
        model.load_state_dict(body, strict=False)
        model = placed(model, setting.device)
        train(model, *fit, steps=setting.steps(len(fit[0])), batch=32, rate=_RATE, seed=seed)
        out.append({"test": accuracy(model, *test), "fit": accuracy(model, *fit)})
    return out


def probes(model: nn.Sequential, fit: Part, test: Part) -> dict[str, float]:
    """Test accuracy of a linear probe at each layer."""
    (x, y), (new, z) = fit, test
    out = {}
    for name, stage in zip(layers(model), model, strict=False):
        with torch.no_grad():
            x, new = (_in_parts(stage, part) for part in (x, new))
        out[name] = probe_accuracy(x.flatten(1), y, new.flatten(1), z)
    return out


def _in_parts(stage: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([stage(part) for part in x.split(250)])


def one_pair(job: tuple[Setting, str, str]) -> dict[str, Any]:
    setting, source, target = job
    torch.set_num_threads(1)
    fit, test = (_on(setting, part) for part in target_parts(setting, target))
    start = time.process_time()
    tuned = fine_tuned(setting, source, fit, test)
    probed = probes(loaded(setting, source), fit, test) if setting.probed else {}
    seconds = time.process_time() - start
    return {"source": source, "target": target, "tuned": tuned, "probes": probed, "cpu_s": seconds}


def keep_pairs(setting: Setting, path: Path) -> None:
    """Take the pairs from a result, for sources that came out with the same accuracies."""
    result = json.loads(path.read_text())
    for name in setting.sources:
        about = torch.load(setting.weights(name), weights_only=True)["about"]
        other = {key: result["sources"][name][key] for key in about}
        if {**about, "seconds": 0} != {**other, "seconds": 0}:
            raise SystemExit(f"{name!r} is not as it was for {path}: fine-tune all pairs instead")
    with (setting.work / "pairs.jsonl").open("w") as file:
        for target in setting.targets:
            own = result["targets"][target]
            for source in setting.sources:
                tuned = [{"test": own["fine_tuned"][source]}]  # the mean of two seeds
                pair = {"source": source, "target": target, "tuned": tuned}
                file.write(json.dumps({**pair, "probes": own["probes"][source]}) + "\n")


def target_parts(setting: Setting, target: str) -> tuple[Part, Part]:
    return parts_of(setting.all.targets[target], load(setting.data), setting.all.side)


def _on(setting: Setting, part: Part) -> Part:
    return part[0].to(setting.device), part[1].to(setting.device)


# -- scores --------------------------------------------------------------------------------------


def one_score(job: tuple[Setting, str, str]) -> dict[str, Any]:
    from .recommend_scores import scores

    setting, source, target = job
    torch.set_num_threads(1)
    fit, _ = (_on(setting, part) for part in target_parts(setting, target))
    timed = source in _TIMED
    product = setting.collection == "six data sets"
    found = scores(loaded(setting, source), *fit, timed=timed, product=product)
    return {"source": source, "target": target, **found}


# -- lines that are there already, and those that are missing -------------------------------------


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What was written, less a last line that was cut off."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def go_on(
    setting: Setting, path: Path, job: Callable[[Any], dict[str, Any]], processes: int
) -> None:
    """Do the pairs that have no line yet, and append a line for each."""
    done = {(line["source"], line["target"]) for line in lines(path)}
    small_first = sorted(setting.targets, key=lambda name: setting.all.targets[name].fit)
    pairs = [(s, t) for t in small_first for s in setting.sources]  # a target can be judged alone
    jobs = [(setting, *pair) for pair in pairs if pair not in done]
    if path.exists() and not path.read_text().endswith("\n"):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines(path)))
    with path.open("a") as file:
        for i, result in enumerate(_results(job, jobs, processes)):
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(f"{path.stem} {i + 1} of {len(jobs)}: {_short(result)}", flush=True)


def _results(
    job: Callable[[Any], dict[str, Any]], jobs: list[Any], processes: int
) -> Iterable[dict[str, Any]]:
    if processes == 1:
        yield from map(job, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(job, jobs)


def _short(result: dict[str, Any]) -> str:
    tuned = [round(each["test"], 3) for each in result.get("tuned", ())]
    return f"{result['source']} -> {result['target']} {tuned or ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = os.environ.get("RESEMBLANCE_RECOMMEND_DATA")
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; default: all")
    parser.add_argument("--data", type=Path, default=given, help="what recommend_data wrote")
    parser.add_argument("--work", type=Path, help="folder to keep results in")
    parser.add_argument("--form", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--collection", choices=COLLECTIONS, default="six data sets")
    parser.add_argument("--pairs-from", type=Path, help="a result to take the pairs from")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.steps == ["joint"]:
        from .recommend_judged import joint

        joint(JOINT)
        return
    if options.quick and options.collection != "six data sets":
        parser.error("--quick is of the collection `six data sets`")
    if options.work is None:
        parser.error("say where to keep results: --work FOLDER")
    if options.data is None:
        parser.error("say where the images are: --data FILE, or RESEMBLANCE_RECOMMEND_DATA")
    device = "cuda" if options.form == "gpu" and torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    setting = Setting(
        options.data, options.work, options.form, options.quick, device, options.collection
    )
    steps = options.steps or STEPS
    if "sources" in steps:
        make_sources(setting)
    if "pairs" in steps and options.pairs_from is not None:
        keep_pairs(setting, options.pairs_from)
    elif "pairs" in steps:
        go_on(setting, setting.work / "pairs.jsonl", one_pair, options.processes)
    if "scores" in steps:
        go_on(setting, setting.work / "scores.jsonl", one_score, options.processes)
    if "judge" in steps:
        from .recommend_judged import judge

        judge(setting)


if __name__ == "__main__":
    main()
