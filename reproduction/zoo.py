"""The networks by name, trained when they are first asked for and kept in a folder.

`cifar10/resnet18/3` is the fourth ResNet-18 on CIFAR-10; `cifar10/resnet18/3/pruned-50` is made
of it, `cifar10/resnet18/3/epoch-4` is what it was after four epochs.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .images import Images
from .nets import ResNet
from .scale import ARCHITECTURES, DATA, Scale
from .training import accuracy, pruned, rounded, train

PRUNED = (20, 35, 50, 65, 80)  # % of the weights
BITS = (8, 4, 3)
COPIES = (
    "tuned", "moved", "distilled",
    *(f"pruned-{share}" for share in PRUNED), *(f"int{bits}" for bits in BITS),
)  # fmt: skip


class Zoo:
    """Loads networks, and makes those that are not there yet."""

    def __init__(self, data: dict[str, Images], scale: Scale, folder: Path) -> None:
        self.data, self.scale, self.folder = data, scale, folder
        self.device = data[DATA[0]].xtr.device
        folder.mkdir(parents=True, exist_ok=True)

    def originals(self, architecture: str = "resnet18") -> list[str]:
        """Names of the independently trained networks."""
        seeds = self.scale.seeds if architecture == ARCHITECTURES[0] else 1
        return [f"{data}/{architecture}/{seed}" for data in DATA for seed in range(seeds)]

    def origins(self) -> list[str]:
        """Names of those whose copies are followed."""
        return self.originals()[: self.scale.origins]

    def descendants(self, origin: str) -> list[str]:
        """Names of copies and checkpoints of a network."""
        return [f"{origin}/epoch-{e}" for e in self.scale.checkpoints] + [
            f"{origin}/{kind}" for kind in COPIES
        ]

    def path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '_')}.safetensors"

    def __call__(self, name: str) -> ResNet:
        """A network, in evaluation mode on the device."""
        if not self.path(name).exists():
            self._make(name)
        weights = load_file(self.path(name))
        net = ResNet(name.split("/")[1], len(weights["head.bias"]), self.scale.width)
        net.load_state_dict(weights)
        last = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        return net.to(self.device, memory_format=last).eval()

    def accuracies(self) -> dict[str, dict[str, float]]:
        """Of every network made so far: on training and test images, and how long it took."""
        return {
            name: json.loads(path.read_text())
            for path in sorted(self.folder.glob("*.json"))
            for name in [path.stem.replace("_", "/")]
        }

    def _make(self, name: str) -> None:
        start = time.perf_counter()
        home, architecture, seed, *kind = name.split("/")
        if not kind:
            net = self._trained(home, architecture, int(seed))
        else:
            net, home = self._copy(f"{home}/{architecture}/{seed}", kind[0])
        taken = time.perf_counter() - start
        self._save(name, net, home, taken)

    def _trained(self, home: str, architecture: str, seed: int) -> ResNet:
        data, name = self.data[home], f"{home}/{architecture}/{seed}"
        followed = name in self.origins()

        def keep(epoch: int, net: ResNet) -> None:
            if followed and epoch in self.scale.checkpoints:
                self._save(f"{name}/epoch-{epoch}", net, home, 0.0)

        fresh = self._fresh(architecture, data.classes, 1000 * DATA.index(home) + seed)
        return self._train(fresh, architecture, home, seed, after=keep)

    def _copy(self, origin: str, kind: str) -> tuple[ResNet, str]:
        """A network made of another, and the data set it now belongs to."""
        home, architecture, seed = origin.split("/")
        net, seed_of = self(origin), 100 + int(seed)
        if kind.startswith("pruned-"):
            return pruned(net, int(kind.removeprefix("pruned-")) / 100), home
        if kind.startswith("int"):
            return rounded(net, int(kind.removeprefix("int"))), home
        if kind == "tuned":  # some more epochs on the same images, at a quarter of the rate
            return self._train(net, architecture, home, seed_of, epochs=1 / 6, rate=1 / 4), home
        fresh = self._fresh(architecture, self.data[home].classes, seed_of)
        if kind == "distilled":  # another network, taught by this one
            return self._train(fresh, architecture, home, seed_of, teacher=net), home
        if kind == "moved":  # fine-tuned to CIFAR-100 with a new head, at half of the rate
            home = "cifar100"
            fresh = self._fresh(architecture, self.data[home].classes, seed_of)
            body = {k: v for k, v in net.state_dict().items() if not k.startswith("head")}
            fresh.load_state_dict(body, strict=False)
            return self._train(fresh, architecture, home, seed_of, epochs=1 / 3, rate=1 / 2), home
        raise KeyError(f"no such copy: {kind}")

    def _train(
        self, net: ResNet, architecture: str, home: str, seed: int, *,
        epochs: float = 1, rate: float = 1, **how: Any,
    ) -> ResNet:  # fmt: skip
        """Trained for a share of the usual epochs at a share of the usual rate."""
        data, scale = self.data[home], self.scale
        return train(
            net, architecture, data.xtr, data.ytr, seed=seed, mirror=home != "svhn",
            epochs=max(1, round(epochs * scale.epochs)), rate=rate * scale.rate, batch=scale.batch,
            **how,
        )  # fmt: skip

    def _fresh(self, architecture: str, classes: int, seed: int) -> ResNet:
        torch.manual_seed(seed)
        return ResNet(architecture, classes, self.scale.width).to(self.device)

    def _save(self, name: str, net: ResNet, home: str, seconds: float) -> None:
        data = self.data[home]
        net.eval()
        facts = {
            "train": accuracy(net, data.xtr, data.ytr),
            "test": accuracy(net, data.xte, data.yte),
            "seconds": round(seconds, 1),
        }
        self.path(name).with_suffix(".json").write_text(json.dumps(facts))
        path = self.path(name)
        save_file(
            {k: v.contiguous() for k, v in net.state_dict().items()}, path.with_suffix(".tmp")
        )
        path.with_suffix(".tmp").rename(path)  # last: a network that is there is whole
        print(f"{name}: {facts}", flush=True)
