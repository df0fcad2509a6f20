"""How large an experiment is: the full one, and one small enough for a test."""

from __future__ import annotations

from dataclasses import dataclass

DATA = ("cifar10", "cifar100", "svhn")
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
ARCHITECTURES = ("resnet18", "resnet50")


@dataclass(frozen=True)
class Scale:
    """Numbers of networks, samples and epochs. Everything else is the same in both."""

    seeds: int = 10  # ResNet-18s a data set; one ResNet-50 each
    few: int = 5  # of them, where each pair costs a singular value decomposition or more
    origins: int = 3  # CIFAR-10 networks whose copies and checkpoints are followed
    width: int = 64  # channels of the first stage
    side: int = 32  # pixels; larger images are shrunk
    train: int = 30_000  # images of each data set that networks learn from
    epochs: int = 24
    batch: int = 512
    rate: float = 0.4  # of learning, at the top of its cycle
    own: int = 10_000  # training images a network is recorded on, and D_T of the norms
    test: int = 8_000
    probe: int = 3_072  # test images of all three data sets, mixed, that all networks see
    exact: int = 10_000  # test images for kernels that are held whole
    exact_nbs: int = 2_048  # of them, for roots of whole kernels
    buckets: int = 512
    few_buckets: int = 128
    task2vec: int = 512  # images
    ridge: int = 10_000  # labelled images that kernel ridge and the linear probe learn from
    checkpoints: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 20)
    summary: int = 512  # images of the summaries that are small enough to share
    pretrained: int = 1024  # images that networks from elsewhere are recorded on


FULL = Scale()
QUICK = Scale(
    seeds=2, few=2, origins=1, width=8, side=8, train=1000, epochs=4, batch=50, rate=0.1, own=128,
    test=256, probe=96, exact=128, exact_nbs=64, buckets=32, few_buckets=16, task2vec=16,
    ridge=200, checkpoints=(1,), summary=64, pretrained=32,
)  # fmt: skip
