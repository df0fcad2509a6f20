"""Triton kernels without a GPU: run in Triton's interpreter, which a process has on or off."""

from __future__ import annotations

import os
import subprocess
import sys


def agrees(check: str) -> None:
    """Run a program that prints "agree" if a kernel does as plain PyTorch does."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    words = [sys.executable, "-c", check]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.stdout == "agree\n", done.stderr
