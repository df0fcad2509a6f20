"""What `resemblance serve` bears: many clients on the loopback for a minute.

A zoo of small networks is served by the command itself, in a process of its own. First every thing
that the page can ask of recordings is asked once, two at a time: that is what answers cost. Then
clients of another process, each with one connection that it keeps, ask one thing after the other
without a pause, drawn from a seed: the page and its files, lists, searches for ever other words,
networks, and the answers above, which the server has kept. Latency is from the first byte sent to
the last received. Memory is that of the server and its workers together, before the load and after
it. Clients share the machine's cores with the server.

    python -m benchmarks.serve --out benchmarks/results/serve.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import quantiles
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import resemblance as rs

NETWORKS, SAMPLES, CLIENTS, SECONDS = 12, 256, 32, 60
PAGE = ("/", "/static/report.css", "/static/charts.js", "/static/pair.js", "/static/zoo.js")
KERNELS = ("features", "gradients", "product")
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def fill(place: Path, count: int) -> None:
    """Networks of three layers in families of four, on the same samples."""
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(0))
    with rs.Zoo(place) as zoo:
        for i in range(count):
            torch.manual_seed(i // 4)
            net = nn.Sequential(
                nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
            )
            noise = torch.Generator().manual_seed(i)
            with torch.no_grad():
                for weight in net.parameters():
                    weight += (
                        0.1 * (i % 4) * weight.std() * torch.randn(weight.shape, generator=noise)
                    )
            rep = rs.record(net, x, name=f"family {i // 4} member {i % 4}", data_id="made up")
            zoo.add(rep, tags=[f"family {i // 4}"])


@contextlib.contextmanager
def served(place: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a server."""
    command = [sys.executable, "-m", "resemblance", "serve", str(place), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        yield int(found[1]), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def memory(process: int) -> float:
    """MiB that a process and its children hold."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    own = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return (int(own[1]) / 1024 if own else 0.0) + sum(map(memory, children))


async def asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
) -> tuple[int, bytes]:
    """The status and the body of an answer, over a connection that stays open."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert length is not None
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


def questions(ids: list[str], group: str) -> list[str]:
    """All that the page can ask of recordings."""
    return [
        *(f"/api/map?group={group}&kernel={kernel}" for kernel in KERNELS),
        *(f"/api/entries/{id}/nearest?kernel={kernel}" for id in ids for kernel in KERNELS),
        *(f"/api/entries/{id}/relatives" for id in ids),
        *(f"/api/recommend?query={id}" for id in ids),
        *(f"/api/pair?a={a}&b={b}" for a, b in combinations_with_replacement(ids, 2)),
        f"/api/families?group={group}",
    ]


def drawn(ids: list[str], known: list[str], chance: random.Random) -> str:
    """Something that a page may ask for."""
    return chance.choice(
        (
            chance.choice(PAGE),
            "/api/zoo",
            f"/api/entries?find={chance.randrange(10**6)}&sort=name",
            f"/api/entries?tag=family+{chance.randrange(4)}",
            f"/api/entries/{chance.choice(ids)}",
            *chance.choices(known, k=5),
        )
    )


class Seen:
    """Latencies in milliseconds by kind of address, and statuses."""

    def __init__(self) -> None:
        self.latencies: dict[str, list[float]] = {}
        self.statuses: Counter[int] = Counter()
        self.broken = 0

    async def ask(self, line: Line, path: str) -> Line:
        """Ask over a connection; which to use next."""
        start = time.perf_counter()
        try:
            status, _ = await asked(*line, path)
        except (OSError, asyncio.IncompleteReadError):
            self.broken += 1
            return await asyncio.open_connection("127.0.0.1", line[1].get_extra_info("peername")[1])
        kind = re.sub(r"[0-9a-f]{64}", "ID", path.partition("?")[0])
        self.latencies.setdefault(kind, []).append(1000 * (time.perf_counter() - start))
        self.statuses[status] += 1
        return line

    def told(self, seconds: float) -> dict[str, Any]:
        every = [x for some in self.latencies.values() for x in some]
        return {
            "seconds": round(seconds, 1),
            "requests": len(every),
            "requests_per_second": round(len(every) / seconds, 1),
            "statuses": dict(sorted(self.statuses.items())),
            "errors": self.broken + sum(n for x, n in self.statuses.items() if x >= 400),
            "latency_ms": spread(every),
            "by_address": {kind: spread(some) for kind, some in sorted(self.latencies.items())},
        }


async def load(port: int, process: int, clients: int, seconds: float) -> dict[str, Any]:
    """What answers cost, and what all clients saw."""
    line = await asyncio.open_connection("127.0.0.1", port)
    _, body = await asked(*line, "/api/entries?limit=5000")
    entries = json.loads(body)["entries"]
    ids, group = [entry["id"] for entry in entries], entries[0]["group"]
    await asked(*line, f"/api/map?group={group}")  # by then, workers have loaded their libraries
    await asked(*line, f"/api/families?group={group}")
    line[1].close()
    known = questions(ids, group)
    first, then = Seen(), Seen()

    async def each(paths: list[str]) -> None:
        line = await asyncio.open_connection("127.0.0.1", port)
        for path in paths:
            line = await first.ask(line, path)
        line[1].close()

    async def client(number: int, end: float) -> None:
        chance = random.Random(number)
        line = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            line = await then.ask(line, drawn(ids, known, chance))
        line[1].close()

    began = time.monotonic()
    await asyncio.gather(each(known[::2]), each(known[1::2]))
    made = first.told(time.monotonic() - began)
    before = memory(process)
    began = time.monotonic()
    await asyncio.gather(*(client(number, began + seconds) for number in range(clients)))
    held = then.told(time.monotonic() - began)
    after = {"before": round(before, 1), "after": round(memory(process), 1)}
    return {"answers_once": made, "clients": clients, "load": held, "memory_mib": after}


def spread(values: list[float]) -> dict[str, float]:
    """Where the middle, the slowest hundredth and the slowest lie."""
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(max(values), 1)}


def measured(networks: int, clients: int, seconds: float) -> dict[str, Any]:
    """Fill a zoo, serve it, and hold the load."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "zoo"
        fill(place, networks)
        with served(place) as (port, process):
            return asyncio.run(load(port, process, clients, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=NETWORKS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measured(args.networks, args.clients, args.seconds)
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    text = json.dumps({"machine": machine, "networks": args.networks, **found}, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
