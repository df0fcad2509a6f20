"""A network trained on handwritten digits, once, and copies of it that were rounded or pruned."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import resemblance as rs

TRAINED_ON = 600  # of 1,797 images


@functools.cache
def images():
    pytest.importorskip("sklearn")
    from resemblance._data.load_data import load_digits_data

    return load_digits_data()


def unseen():
    x, y = images()
    return x[TRAINED_ON:], y[TRAINED_ON:]


@functools.cache
def trained():
    """Right on nine of ten unseen images."""
    x, y = (part[:TRAINED_ON] for part in images())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(),
            nn.Linear(24, 10),
        )  # fmt: skip
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def rounded(bits):
    """A copy with the weights of each layer rounded to so many bits."""
    net = copy.deepcopy(trained())
    with torch.no_grad():
        for module in net:
            if isinstance(module, nn.Linear):
                step = module.weight.abs().max() / (2 ** (bits - 1) - 1)
                module.weight.copy_((module.weight / step).round() * step)
    return net


def pruned(share):
    """A copy without the smallest weights of each layer."""
    net = copy.deepcopy(trained())
    with torch.no_grad():
        for module in net:
            if isinstance(module, nn.Linear):
                least = module.weight.abs().flatten().kthvalue(int(share * module.weight.numel()))
                module.weight[module.weight.abs() <= least.values] = 0
    return net


@functools.cache
def recorded(name="base"):
    """By name: base, int8, int4, pruned; of all unseen images."""
    made = {"int8": (rounded, 8), "int4": (rounded, 4), "pruned": (pruned, 0.6)}
    net = trained() if name == "base" else made[name][0](made[name][1])
    return rs.record(net, unseen(), name=name)
