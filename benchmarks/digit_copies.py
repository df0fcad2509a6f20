"""Copies of a network for handwritten digits, each saved as safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from . import copied_digits
from .changed_weights import averaged, pruned, rounded
from .copied_network import Copied
from .trained_copies import divergence, trained, with_adapter

SMALLER = "smaller"  # the function of networks.py that builds the small network


def made(folder: Path, *, quick: bool) -> Iterator[Copied]:
    """The base first, then each copy, as it is written to the folder."""
    source = Path(copied_digits.__file__).read_text(encoding="utf-8")
    (folder / "networks.py").write_text(source, encoding="utf-8")
    school = _School(quick)
    base, twin, turned = school.learnt(0), school.learnt(1), school.turned

    def saved(
        section: str, name: str, story: str, net: nn.Module, build: str = "network"
    ) -> Copied:
        state = {key: value.contiguous() for key, value in net.state_dict().items()}
        save_file(state, folder / f"{name}.safetensors")
        model = ("--model", f"networks.py:{build}", "--weights", f"{name}.safetensors")
        return Copied("digits", section, name, story, *school.right(net), model)

    yield saved("base", "base", "trained on 797 images", base)
    for bits in (8, 4, 3):
        yield saved("rounded", f"int{bits}", f"weights in {bits} bits", rounded(base, bits))
    yield Copied(
        "digits", "rounded", "dynamic", "torch's dynamic int8, linear layers", *school.right(base),
        ("--model", "networks.py:dynamic", "--features-only"),
    )  # fmt: skip
    for share in (20, 50, 80):
        story = f"{share} % of the weights removed"
        yield saved("pruned", f"pruned-{share}", story, pruned(base, share / 100))
    small = school.learnt(2, copied_digits.smaller())
    yield saved("distilled", "distilled", "a smaller one, from the base's predictions",
                school.distilled(base, copied_digits.smaller()), SMALLER)  # fmt: skip
    yield saved("distilled", "labelled", "the same smaller one, from labels", small, SMALLER)
    yield saved("distilled", "twin", "the base's size, from another seed", twin)
    adapted = school.tuned(with_adapter(base, ["conv1", "conv2", "conv3", "hidden"], 3), turned)
    yield saved("lora", "lora", "LoRA on turned digits, merged", adapted.merge_and_unload())
    same = [school.tuned(base, school.images, seed=seed) for seed in (4, 5)]
    yield saved("tuned", "tuned", "trained on, same images", same[0])
    yield saved("tuned", "tuned-away", "tuned to turned digits", school.tuned(base, turned))
    yield saved("averaged", "averaged", "mean of two tuned copies", averaged(*same))
    yield saved("averaged", "averaged-twins", "mean of base and twin", averaged(base, twin))


class _School:
    """The images to train on, upright and turned, and how networks are trained and tried."""

    def __init__(self, quick: bool) -> None:
        pixels, labels = copied_digits.images()
        at = copied_digits.TRAINED_ON
        self.images, self.labels, self.epochs = pixels[:at], labels[:at], 1 if quick else 30
        self.turned = self.images.rot90(1, (2, 3))
        self.tests = pixels[at:], pixels[at:].rot90(1, (2, 3))
        self.truth = labels[at:]

    def learnt(self, seed: int, net: nn.Module | None = None) -> nn.Module:
        return self._trained(
            net or copied_digits.network(), self._labelled(self.images), seed, 5e-3
        )

    def tuned(self, net: nn.Module, images: Tensor, seed: int = 3) -> nn.Module:
        """A fifth of the epochs, at a fifth of the rate."""
        return self._trained(net, self._labelled(images), seed, 1e-3, part=5, fresh=False)

    def distilled(self, teacher: nn.Module, student: nn.Module) -> nn.Module:
        with torch.no_grad():
            goal = teacher(self.images)

        def loss(net: nn.Module, rows: Tensor) -> Tensor:
            return divergence(net(self.images[rows]), goal[rows], 2.0)

        return self._trained(student, loss, 2, 5e-3)

    def right(self, net: nn.Module) -> tuple[float, float]:
        """The share of unseen images, upright and turned, of which it knows the digit."""
        with torch.no_grad():
            shares = [float((net(x).argmax(1) == self.truth).double().mean()) for x in self.tests]
        return shares[0], shares[1]

    def _labelled(self, images: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
        return lambda net, rows: cross_entropy(net(images[rows]), self.labels[rows])

    def _trained(
        self, net: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], seed: int, rate: float,
        *, part: int = 1, fresh: bool = True,
    ) -> nn.Module:  # fmt: skip
        if fresh:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                for module in net.modules():
                    if isinstance(module, nn.Linear | nn.Conv2d):
                        module.reset_parameters()
        steps = max(2, self.epochs * 25 // part)
        return trained(
            net, loss, rows=len(self.images), steps=steps, batch=32, rate=rate, seed=seed
        )
