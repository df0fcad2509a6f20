"""A server of a zoo, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    address: str  # with a slash at its end
    process: subprocess.Popen[str]


@contextlib.contextmanager
def serving(place: Path, *options: str, **environment: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "resemblance", "serve", str(place), "--port", "0", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found is not None, said
        limit.cancel()
        yield Served(found[0].partition("?")[0], process)
    finally:
        limit.cancel()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
