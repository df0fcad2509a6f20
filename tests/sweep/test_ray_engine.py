"""A sweep on a Ray cluster of two workers on this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from noting_networks import in_folder, notes
from optional_libraries import needs

pytestmark = [needs("ray"), pytest.mark.slow]


def started(folder, *words, **environment):
    command = [sys.executable, "-m", "resemblance", "sweep", "jobs.yaml", "--engine", "ray", *words]
    env = {**os.environ, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, **pipes)


def test_all_results_are_there_though_a_worker_was_killed(tmp_path):
    models = "nets.py:victim, nets.py:one, nets.py:two, nets.py:bad"
    in_folder(tmp_path, f"models: [{models}]\ndata: {{x: nets.py:x}}")
    with started(tmp_path, "--workers", "2", "--json", "-", RAY_ADDRESS="local") as sweep:
        while not (tmp_path / "victim.txt").exists() and sweep.poll() is None:
            time.sleep(0.1)
        os.kill(int((tmp_path / "victim.txt").read_text()), signal.SIGKILL)
        out, err = sweep.communicate()
    assert sweep.returncode == 1, err  # because of the one that fails
    found = {pair["name"]: pair for pair in json.loads(out)["pairs"]}  # and nothing else in out
    failed = found.pop("nets-bad--x")
    assert (failed["state"], failed["error"]) == ("failed", "ValueError: no luck with this one")
    assert {pair["state"] for pair in found.values()} == {"recorded"}
    assert {path.name for path in (tmp_path / "results").glob("*.rsm")} == {
        f"nets-{name}--x.rsm" for name in ("victim", "one", "two")
    }
    assert (tmp_path / "results/nets-bad--x.error.txt").exists()
    counts = Counter(what for what, _ in notes(tmp_path))
    assert (counts["one"], counts["two"], counts["victim"], counts["bad"]) == (1, 1, 1, 2)


def test_a_cluster_that_does_not_answer(tmp_path):
    in_folder(tmp_path, "models: nets.py:one\ndata: {x: nets.py:x}")
    with started(tmp_path, RAY_ADDRESS="127.0.0.1:1") as sweep:
        out, err = sweep.communicate()
    assert (sweep.returncode, out) == (2, "")
    assert "no Ray cluster at RAY_ADDRESS=127.0.0.1:1" in err
