"""What a sweep shows while it runs: lines in a pipe, a table on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

from resemblance.cli.sweep import show_progress
from resemblance.sweep.progress import Outcome, PairStarted

EVENTS = [
    PairStarted("a--x", "cpu, process 1"),
    Outcome("a--x", "again", 1.0, "its worker died"),
    PairStarted("a--x", "cpu, process 2"),
    Outcome("a--x", "recorded", 4.0),
    Outcome("b--x", "busy", 0.0, "process 7 on host"),
    Outcome("b--x", "there"),
    Outcome("c\x1b[31m--x", "failed", 1.0, "bad \x1b[31m luck"),
]


def test_a_line_for_each_pair_in_a_pipe(capsys):
    with show_progress(dict.fromkeys(("a--x", "b--x", "c\x1b[31m--x"), "x")) as watch:
        for event in EVENTS:
            watch(event)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "a--x: will be retried: its worker died (0 of 3 done)",
        "a--x: recorded in 4.0 s (1 of 3 done, about 8.0 s left)",
        "b--x: another sweep is recording it (process 7 on host) (1 of 3 done, about 8.0 s left)",
        "b--x: recorded by another sweep (2 of 3 done, about 4.0 s left)",
        r"c\x1b[31m--x: failed: bad \x1b[31m luck (3 of 3 done, 1 failed)",
    ]


SHOWS = """
import time
from resemblance.cli.sweep import show_progress
from resemblance.sweep.progress import Outcome, PairStarted

with show_progress({"a--x": "x", "b--x": "x", "c--x": "x"}) as watch:
    watch(Outcome("a--x", "recorded", 4.0))
    watch(Outcome("c--x", "failed", 1.0, "bad \\x1b]0;owned luck"))
    watch(PairStarted("b--x", "cpu, process 7"))
    time.sleep(1.5)
"""


def test_a_table_on_a_terminal():
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "120", "LINES": "30", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", SHOWS], stderr=theirs, env=env) as process:
        os.close(theirs)
        found = b""
        with contextlib.suppress(OSError):  # the other end is closed at the end
            while part := os.read(ours, 4096):
                found += part
    os.close(ours)
    assert process.returncode == 0
    text = found.decode()
    for cell in (
        "b--x",
        "running",
        "about",
        "cpu, process 7",
        "2 of 3 done, 1 failed, 1 running",
    ):
        assert cell in text
    assert text.index("b--x") < text.index("c--x") < text.index("a--x")  # what matters most first
    assert "\x1b]0;" not in text
