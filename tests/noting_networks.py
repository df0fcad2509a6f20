"""Small networks and data in a folder of their own, which note in a file when they are loaded."""

from __future__ import annotations

NETWORKS = '''
import os
import time
from pathlib import Path

import torch
from torch import nn


def note(what):
    with open("notes.txt", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")


def network(name, seed):
    note(name)
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)


def one():
    return network("one", 1)


def two():
    return network("two", 2)


def bad():
    note("bad")
    raise ValueError("no luck\\nwith this one")


def victim():
    """The first to load it waits to be killed."""
    if not Path("victim.txt").exists():
        Path("victim.new").write_text(str(os.getpid()))
        os.rename("victim.new", "victim.txt")
        until(lambda: False)
    return network("victim", 3)


def hangs(how):
    """A network whose first pass never ends."""
    class Hangs(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            Path("hangs.new").write_text(str(os.getpid()))
            os.rename("hangs.new", "hangs.txt")
            how()
            return self.inner(x)

    note("hangs")
    return Hangs()


def asleep():
    return hangs(lambda: time.sleep(3600))


def holding():
    """In compiled code that keeps the interpreter to itself: a regular expression without end."""
    import re

    return hangs(lambda: re.match("(a+)+$", "a" * 64 + "b"))


def together(name, seed):
    """Waits until two processes have come this far."""
    found = network(name, seed)
    pids = lambda: {line.split()[1] for line in open("notes.txt") if line.startswith("net")}
    until(lambda: len(pids()) > 1)
    return found


def net0():
    return together("net0", 0)


def net1():
    return together("net1", 1)


def net2():
    return together("net2", 2)


def net3():
    return together("net3", 3)


def samples(seed):
    return torch.rand(96, 6, generator=torch.Generator().manual_seed(seed))


def x():
    note("x")
    return samples(0)


def y():
    note("y")
    return samples(1)


def stream():
    note("stream")
    return (samples(0)[i : i + 32] for i in (0, 32, 64))
'''


def in_folder(folder, jobs):
    """A file of jobs beside the networks: its path."""
    (folder / "nets.py").write_text(NETWORKS)
    path = folder / "jobs.yaml"
    path.write_text(f"{jobs}\noptions: {{buckets: 16, block: 16}}\n")
    return path


def notes(folder):
    """What was loaded, and by which processes."""
    path = folder / "notes.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []
