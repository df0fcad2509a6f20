"""Workers on this machine, as real processes: killed, replaced, and shared by two sweeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from noting_networks import in_folder, notes
from resemblance.errors import DataError
from resemblance.sweep.job_file import read_jobs
from resemblance.sweep.local_engine import devices_for, run_local
from resemblance.sweep.progress import Outcome, PairStarted
from resemblance.sweep.run_sweep import ResultFolder, SweepLocation


@pytest.fixture(scope="module")
def survived(tmp_path_factory):
    """Two workers, one of which is killed: the folder, and what was told."""
    folder = tmp_path_factory.mktemp("killed")
    jobs = "models: [nets.py:victim, nets.py:one, nets.py:bad]\ndata: [nets.py:x, nets.py:y]"
    asked = read_jobs(in_folder(folder, jobs))
    place = SweepLocation(asked.base, ResultFolder(asked.out))
    place.results.make()
    told = []
    for event in run_local(asked.pairs, place, devices=["cpu", "cpu"], retries=1):
        told.append(event)
        if isinstance(event, PairStarted) and "victim" in event.name and not _killed(folder):
            for _ in range(1200):
                if (folder / "victim.txt").exists():
                    break
                time.sleep(0.05)
            os.kill(int((folder / "victim.txt").read_text()), signal.SIGKILL)
            (folder / "killed.txt").touch()
    return folder, told, asked


def _killed(folder):
    return (folder / "killed.txt").exists()


def ended(told):
    last = {event.name: event for event in told if isinstance(event, Outcome)}
    return {name: event.state for name, event in last.items()}


def test_all_results_are_there_though_a_worker_was_killed(survived):
    folder, told, _ = survived
    assert ended(told) == {
        f"nets-{net}--nets-{data}": "failed" if net == "bad" else "recorded"
        for net in ("victim", "one", "bad")
        for data in "xy"
    }
    assert len(list((folder / "results").glob("*.rsm"))) == 4
    (died,) = [x for x in told if isinstance(x, Outcome) and "its worker died" in x.error]
    assert (died.state, died.error) == ("again", "its worker died: SIGKILL, possibly out of memory")


def test_each_is_recorded_once_and_failures_are_tried_again(survived):
    folder, _, _ = survived
    counts = Counter(what for what, _ in notes(folder))
    assert (counts["one"], counts["victim"]) == (2, 2)  # for two data sets
    assert counts["bad"] == 4  # and each of them twice


def test_data_are_read_once_by_each_worker(survived):
    folder, _, _ = survived
    opened = [(what, pid) for what, pid in notes(folder) if what in "xy"]
    workers = {pid for _, pid in opened}
    assert len(workers) == 3  # one of which took the place of the dead
    assert len(opened) <= 4  # for six pairs and three attempts more: the dead one's once again


def test_devices_are_shared_out_in_turn():
    assert devices_for(["cpu", " cpu"], None) == ["cpu", "cpu"]
    with pytest.raises(DataError, match="device must be cpu, cuda"):
        devices_for(["gpu"], None)
    with pytest.raises(DataError, match="'cuda:99' cannot be used here"):
        devices_for(["cuda:99"], 1)


def test_workers_end_when_the_sweep_is_given_up(made, tmp_path):
    asked, place = made("models: nets.py:victim\ndata: nets.py:x")
    events = run_local(asked.pairs, place, devices=["cpu"], retries=0)
    began = next(events)
    pid = int(began.where.split()[-1])
    os.kill(pid, 0)
    events.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


SWEEPS = """
import sys
from resemblance.sweep import local_engine
from resemblance.sweep.job_file import read_jobs
from resemblance.sweep.run_sweep import ResultFolder, SweepLocation

if __name__ == "__main__":
    asked = read_jobs(sys.argv[1])
    place = SweepLocation(asked.base, ResultFolder(asked.out))
    place.results.make()
    for event in local_engine.run_local(asked.pairs, place, devices=["cpu"], retries=0):
        print(event, flush=True)
"""


@pytest.mark.parametrize(
    "net",
    [
        "asleep",
        pytest.param(
            "holding",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it"),
        ),
    ],
)
def test_a_worker_that_hangs_dies_with_a_sweep_that_is_killed(made, tmp_path, net):
    """And lets go of its lock, so that the next sweep can record the pair."""
    asked, place = made(f"models: nets.py:{net}\ndata: nets.py:x")
    script = tmp_path / "sweeps.py"
    script.write_text(SWEEPS)
    words = [sys.executable, str(script), str(tmp_path / "jobs.yaml")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as sweep:
        worker = int(appeared(tmp_path / "hangs.txt").read_text())
        sweep.kill()
    for _ in range(1200):
        if not alive(worker):
            break
        time.sleep(0.05)
    assert not alive(worker)
    with place.results.claimed(asked.pairs[0], wait=True) as own:  # its threads may be ending yet
        assert own


def test_a_pair_that_takes_too_long_is_given_up_and_the_others_go_on(made, tmp_path):
    """Whether it sleeps or holds the interpreter's lock."""
    asked, place = made("models: [nets.py:asleep, nets.py:holding, nets.py:one]\ndata: nets.py:x")
    told = list(run_local(asked.pairs, place, devices=["cpu", "cpu"], retries=1, seconds=4))
    ends = {x.name: x for x in told if isinstance(x, Outcome)}
    begun = [x.name for x in told if isinstance(x, PairStarted)]
    for net in ("asleep", "holding"):
        slow = ends[f"nets-{net}--nets-x"]
        late = "it took longer than the time limit of 4 seconds"
        assert (slow.state, slow.error) == ("failed", late)
        assert begun.count(slow.name) == 1  # not again
    assert "nets-one--nets-x" in ends  # recorded, unless the machine is very busy


def appeared(path):
    for _ in range(2400):
        if path.exists():
            break
        time.sleep(0.05)
    return path


def alive(pid):
    """Whether a process runs; one that its parent has yet to ask after does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip()[:1] not in ("", "Z")
