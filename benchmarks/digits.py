"""The handwritten digits of scikit-learn, a small convolutional network, and how to train it."""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

HERE = Path(__file__).parent
NAMES = {"1": "conv 1", "3": "conv 2", "6": "conv 3", "10": "linear"}


def load(seed: int = 0) -> tuple[Tensor, Tensor]:
    """1,797 images (1, 8, 8) in [0, 1] and their labels, in a seeded order."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order], torch.tensor(digits.target)[order]


def network(classes: int, seed: int) -> nn.Sequential:
    """Three convolutions, a hidden layer and a head; `NAMES` are its activations."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )


def train(
    model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, seed: int, rate: float = 2e-3
) -> nn.Module:
    """Adam on batches of 32."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).double().mean())


def write(name: str, result: dict[str, Any]) -> Path:
    """A result beside where it was made, as JSON under results/."""
    processor = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    environment = {
        "date": str(date.today()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    path = HERE / "results" / f"{name}.json"
    path.write_text(json.dumps({"environment": environment, **result}, indent=1) + "\n")
    return path


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
