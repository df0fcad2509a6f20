"""Small networks of which some suit a small task better than others, and a zoo of them."""

import torch
from torch import nn

import resemblance as rs

N = 240


def task(seed=0):
    """Four classes by the signs of two of eight numbers: inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def network(seed=0, *, blind=False):
    """With `blind`, one that does not look at the two numbers that matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 5)
        )
    if blind:
        with torch.no_grad():
            net[0].weight[:, :2] = 0
    return net


def filled(place, networks, x, **options):
    """A zoo with recordings of networks by name."""
    zoo = rs.Zoo(place)
    entries = {
        name: zoo.add(rs.record(net, x, name=name, progress=False), **options)
        for name, net in networks.items()
    }
    return zoo, entries
