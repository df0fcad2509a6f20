"""Train, record and compare the networks of one family.

    python -m reproduction.resi resnet --data cifar10.npz --out FOLDER --minutes 8.5
    python -m reproduction.resi vgg --data svhn.npz --out FOLDER
    python -m reproduction.resi transformer --data text.npz --out FOLDER

`python -m reproduction.resi.data` packs the data. For each design, FOLDER gets a file
`FAMILY-DESIGN.npz` with all scores, and with a description of what they are of (`about`, JSON).
Networks and kernels are not kept. A design that FOLDER holds whole is not made again, so a run that
was stopped by `--minutes` continues with the next one. `python -m reproduction.resi.judge` reads
the files.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import indices, scores
from .data import load
from .designs import (
    DESIGNS,
    MAX_VARIANCE,
    STRENGTHS,
    Member,
    Plan,
    held_out,
    members,
    network_seed,
    plan,
    probe,
)
from .families import FAMILIES
from .saved import Design, read, save
from .training import Recipe, Slot, train_together
from .vectors import TARGETS, Vectors, record

RECIPES = {
    "resnet": Recipe(720, 250, 0.2),
    "vgg": Recipe(720, 250, 0.1, mirror=False),
    "transformer": Recipe(720, 250, 1e-3, decay=0.0, adam=True),
}
_FIRST_GUESS = {"wave": 15.0, "compare": 30.0}  # seconds, until they have been measured


class Run:
    """One family of networks, within a time."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.start = time.perf_counter()
        self.family, self.out, self.tiny = chosen.family, chosen.out, chosen.tiny
        self.end = self.start + 60 * chosen.minutes
        self.device = torch.device(chosen.device)
        self.seeds = 2 if self.tiny else chosen.seeds
        self.probe = 40 if self.tiny else chosen.probe
        samples = load(chosen.data)
        if samples.is_text != (self.family == "transformer"):
            kinds = ("bytes of text", "images")
            wanted, found = kinds if self.family == "transformer" else kinds[::-1]
            raise SystemExit(f"{chosen.data}: {self.family} takes {wanted}, found {found}")
        self.samples = (samples.first(200, 80) if self.tiny else samples).to(self.device)
        self.recipe = RECIPES[self.family]
        if self.tiny:
            indices.KENDALL_DISTANCES = 100
            self.recipe = Recipe(6, 50, self.recipe.rate, self.recipe.decay, self.recipe.adam)
        self.times = dict(_FIRST_GUESS)
        self.together = len(STRENGTHS)
        self.graphs = not chosen.no_graphs and self.device.type == "cuda"
        self.out.mkdir(parents=True, exist_ok=True)
        self.say(
            f"{len(self.samples.x_train)} training and {len(self.samples.x_test)} test samples"
        )

    def say(self, words: str) -> None:
        print(f"{time.perf_counter() - self.start:6.1f} s  {words}", flush=True)

    def left(self) -> float:
        return self.end - time.perf_counter()

    def slots(self) -> list[Slot]:
        start = time.perf_counter()
        rows = len(self.samples.x_train) * (4 if self.samples.is_text else 1)

        def make(graph: bool) -> list[Slot]:
            return [
                Slot(
                    self.family,
                    self.recipe,
                    self.samples.x_train,
                    rows=rows,
                    tiny=self.tiny,
                    graph=graph,
                )
                for _ in range(self.together)
            ]

        made: list[Slot] = []
        if self.graphs:
            try:
                made = make(True)
                why = made[0].differs(plan("base", Member(0, 0), self.samples))
            except RuntimeError as error:
                why = str(error)
            if why:
                self.say(f"!! training without CUDA graphs: {why}")
                self.graphs = False
        if not self.graphs:
            made = make(False)
        self.say(
            f"memory for {len(made)} networks, graphs={self.graphs}: "
            f"{time.perf_counter() - start:.1f} s"
        )
        return made

    def design(self, name: str, slots: list[Slot]) -> None:
        """Train, record and compare the networks of a design, as many as there is time for."""
        wanted = members(name, self.seeds)
        x, y = probe(name, self.samples, self.probe)
        tests = held_out(name, self.samples)
        networks: list[Vectors] = []
        shared: dict[tuple[int, int], Plan] = {}  # data that several networks are trained on
        began = time.perf_counter()
        for at in range(0, len(wanted), self.together):
            need = 1.15 * (self.times["wave"] + self.times["compare"])
            if self.left() < need and at < 2 * self.together:
                self.say(
                    f"{name}: not begun, as {self.left():.0f} s are left and {need:.0f} s needed"
                )
                return
            if self.left() < need:
                self.say(f"{name}: time for {len(networks)} of {len(wanted)} networks")
                break
            wave, start = wanted[at : at + self.together], time.perf_counter()
            plans = []
            for member in wave:
                key = (member.group, member.seed if name == "labels" else 0)
                if key not in shared:
                    shared[key] = plan(name, member, self.samples)
                plans.append(shared[key])
            seeds = [network_seed(name, member) for member in wave]
            nets = train_together(slots, plans, seeds)
            trained = time.perf_counter() - start
            for net, one in zip(nets, plans, strict=True):
                networks.append(record(net, x, y, tests, (one.x[:1000], one.y[:1000])))
            self.times["wave"] = time.perf_counter() - start
            latest = networks[-len(wave) :]
            self.say(
                f"{name}: {len(networks)}/{len(wanted)} networks, {trained:.1f} s of training, "
                f"{self.times['wave'] - trained:.1f} s of recording; accuracies "
                f"{' '.join(f'{v.accuracy:.3f}' for v in latest)}, learnt "
                f"{' '.join(f'{v.learnt:.3f}' for v in latest)}"
            )
        start = time.perf_counter()
        found = scores.between_networks(networks)
        if name == "base":
            scores.between_layers(networks, found)
        self.times["compare"] = time.perf_counter() - start
        self.keep(name, wanted[: len(networks)], networks, found, len(networks) == len(wanted))
        self.say(
            f"{name}: compared in {self.times['compare']:.1f} s, all in "
            f"{time.perf_counter() - began:.1f} s; {len(found.errors)} errors; by index: "
            + ", ".join(
                f"{k} {v:.1f}" for k, v in sorted(found.seconds.items(), key=lambda i: -i[1])
            )
        )

    def keep(
        self, name: str, made: list[Any], networks: list[Vectors], found: scores.Scores, whole: bool
    ) -> None:
        described = {
            "family": self.family,
            "design": name,
            "complete": whole,
            "groups": [m.group for m in made],
            "seeds": [m.seed for m in made],
            "accuracy": [v.accuracy for v in networks],
            "learnt": [v.learnt for v in networks],
            "probe": self.probe,
            "strengths": STRENGTHS,
            "recipe": vars(self.recipe),
            "training samples": len(self.samples.x_train),
            "test samples": len(self.samples.x_test),
            "max variance": MAX_VARIANCE,
            "targets": TARGETS,
            "kendall distances": indices.KENDALL_DISTANCES,
            "seconds": {k: round(v, 2) for k, v in found.seconds.items()},
            "errors": found.errors,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "tiny": self.tiny,
        }
        save(
            self.path(name),
            Design(described, {k: v.astype(np.float32) for k, v in found.arrays.items()}),
        )

    def path(self, name: str) -> Path:
        return self.out / f"{self.family}-{name}.npz"

    def is_complete(self, name: str) -> bool:
        return self.path(name).exists() and read(self.path(name)).about["complete"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.resi",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--data", type=Path, required=True, help="packed by reproduction.resi.data")
    parser.add_argument("--out", type=Path, required=True, help="scores, and what they are of")
    parser.add_argument("--designs", nargs="+", choices=DESIGNS, default=DESIGNS)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop before so many are over")
    parser.add_argument("--seeds", type=int, default=5, help="networks in a group")
    parser.add_argument("--probe", type=int, default=512, help="samples that are recorded")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-graphs", action="store_true", help="train eagerly on a GPU")
    parser.add_argument("--tiny", action="store_true", help="a few steps of tiny networks")
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = chosen.device.startswith("cuda") and not chosen.tiny
    run = Run(chosen)
    todo = [name for name in chosen.designs if not run.is_complete(name)]
    if todo:
        slots = run.slots()
        for name in todo:
            run.design(name, slots)
    missing = [name for name in chosen.designs if not run.is_complete(name)]
    run.say(f"still missing: {', '.join(missing)}" if missing else "all designs are there")


if __name__ == "__main__":
    main()
