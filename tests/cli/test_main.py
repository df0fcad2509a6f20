"""The entry point: mistakes, warnings and interruptions as one line and an exit status."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import resemblance as rs
import small
from resemblance.cli import main as entry
from resemblance.cli.main import main
from resemblance.errors import ResemblanceWarning


def test_version_and_help_answer_without_torch():
    """`--help` is quick because it never waits for torch."""
    code = (
        "import sys, resemblance.cli.main as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert {'torch', 'scipy', 'matplotlib'}.isdisjoint(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Compare two networks" in done.stdout


ON_FILES = """
import sys
from resemblance.cli.main import main

try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("command", [["info", "net.rsm"], ["zoo", "list", "zoo"]], ids=" ".join)
def test_commands_that_compute_nothing_do_not_wait_for_torch(command, tmp_path):
    rep = small.record()
    rep.save(tmp_path / "net.rsm")
    with rs.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(rep)
    words = [sys.executable, "-c", ON_FILES, *command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert rep.name in done.stdout


@pytest.mark.parametrize("logits", ["softmax", "sigmoid", "none"])
def test_info_reads_files_of_every_format_without_torch(logits, tmp_path):
    classes, x = 2000 if logits == "softmax" else 3, torch.randn(40, 4)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, classes))
    rep = rs.record(net, x, logits=logits, gradients=False, name="net")
    rep.save(tmp_path / "net.rsm")
    assert rep.outputs is not None
    words = [sys.executable, "-c", ON_FILES, "info", "net.rsm"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_file(refused):
    assert refused("info", "gone.rsm") == (
        "no file at gone.rsm; expected a recording, which `resemblance record` and "
        "Representation.save write"
    )


def test_unpaired_files_are_compared_if_allowed_with_a_warning(recorded, refused):
    recorded("record", "--model", "nets.py:small", "--data", "digits", "--limit", 99, "-o", "c.rsm")
    words = [sys.executable, "-m", "resemblance", "compare", "a.rsm", "c.rsm", "--unpaired"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    assert "1,797 and 99 unpaired samples" in " ".join(done.stdout.split())
    assert done.stderr.startswith("warning: the two recordings used different samples")
    assert done.stderr.count("\n") == 1
    message = refused("compare", "a.rsm", "c.rsm")
    assert "1,797 samples" in message
    assert "99 samples" in message
    assert "unpaired" in message


def test_an_unknown_option_and_a_missing_argument(refused):
    assert refused("compare", "a.rsm").startswith("Missing argument")
    assert refused("compare", "--kernal", "features", "a", "b").startswith("No such option")


def test_debug_shows_the_traceback_of_a_mistake(run):
    status, out, err = run("--debug", "info", "gone.rsm")
    assert (status, out) == (2, "")
    assert err.startswith("Traceback (most recent call last)")
    assert err.splitlines()[-1].startswith("error: no file at gone.rsm")


def test_an_interruption_is_one_word_and_status_130(run, monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "app", interrupted)
    assert run("info", "a.rsm") == (130, "", "interrupted\n")


BROKEN = """
from resemblance.cli import main as entry

def app(words, **options):
    raise ZeroDivisionError("a fault of ours")

entry.app = app
entry.main(["info", "a.rsm"])
"""


def test_what_nobody_expects_is_a_traceback_a_line_and_status_70():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (70, "")
    first, *_, error, last = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert error == "ZeroDivisionError: a fault of ours"
    assert last == (
        "error: internal error (ZeroDivisionError); please report it with the traceback above"
    )


def test_a_reader_that_stops_is_no_error(recorded):
    words = f"{sys.executable} -m resemblance info --json - {' a.rsm' * 200} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


CHECK = "--max-disagreement 0.5 --json c.json"
COMMANDS = {
    "passes": (f"check a.rsm a.rsm {CHECK}", 0),
    "is refused": (f"check a.rsm b.rsm {CHECK}", 2),  # ten classes and two
    "table": ("info a.rsm", 0),
    "json": ("info --json - a.rsm", 0),
    "no file": ("info gone.rsm", 2),
    "zoo": ("zoo add zoo a.rsm", 0),
    "help": ("--help", 0),
}


@pytest.mark.parametrize(
    ("closed", "commands"),
    [
        (">&-", ["passes", "table", "help"]),
        ("2>&-", ["is refused"]),
        (">&- 2>&-", ["json"]),
        ("<&- >&- 2>&-", ["passes", "no file", "zoo"]),
    ],
)
def test_closed_streams_leave_the_exit_status_as_it_is(recorded, closed, commands):
    """A closed descriptor is also the next that a file gets, which must not be written into."""
    for words, status in (COMMANDS[name] for name in commands):
        line = f"{sys.executable} -m resemblance {words} {closed}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert done.returncode == status, (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert not (">&-" in closed.split() and done.stdout)
    if "passes" in commands:
        assert json.loads(Path("c.json").read_text())["status"] == "passed"


def test_warnings_of_others_are_shown_as_python_shows_them(run, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    run("--version")
    warnings.showwarning(UserWarning("theirs"), UserWarning, "file.py", 1)
    assert shown == ["theirs"]


# -- SIGTERM -------------------------------------------------------------------------------------

WRITES = """
import sys
from resemblance._utils.atomic_files import write_atomically
from resemblance.cli import main as entry

def app(words, **options):
    print("begun", flush=True)
    for i in range(10**9):
        write_atomically(words[0], bytes([97 + i % 26]) * 2_000_000)

entry.app = app
entry.main()
"""


def terminated(words, seconds=0.0, **options):
    """SIGTERM so long after the command has said that it begun: status and standard error."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes, **options) as command:
        assert command.stdout.readline() == "begun\n"
        time.sleep(seconds)
        command.terminate()
        return command.wait(), command.stderr.read()


@pytest.mark.slow
def test_sigterm_at_any_moment_leaves_a_whole_file_and_nothing_beside_it(tmp_path):
    path, moments = tmp_path / "a.bin", random.Random(0)
    path.write_bytes(b"a" * 2_000_000)
    for _ in range(50):
        words = [sys.executable, "-c", WRITES, str(path)]
        assert terminated(words, moments.uniform(0, 0.02)) == (143, "")
        content = path.read_bytes()
        assert content == content[:1] * 2_000_000
        assert os.listdir(tmp_path) == ["a.bin"]


def test_sigterm_ends_a_pass_with_status_143_and_without_a_word(folder):
    (folder / "slow.py").write_text(
        "import time\nfrom torch import nn\n\n\n"
        "class Slow(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(60)\n\n\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), Slow(64, 10))\n"
    )
    words = [sys.executable, "-m", "resemblance", "record", "--model", "slow.py:net"]
    assert terminated([*words, "--data", "digits", "-o", "a.rsm"]) == (143, "")
    assert not (folder / "a.rsm").exists()


def test_sigterm_ends_an_import_with_status_143_and_without_a_word(folder):
    """An import may turn an exception into another, lose it, or abort."""
    (folder / "slow.py").write_text("import deep\n")
    (folder / "deep.py").write_text(
        "import time\n\ntry:\n    print('begun', flush=True)\n    time.sleep(60)\n"
        "except BaseException:\n    raise ImportError('cut short') from None\n"
    )
    words = [sys.executable, "-m", "resemblance", "layers", "--model", "slow.py:net"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    assert terminated([*words, "--data", "digits"], env=environment) == (143, "")


def test_sigterm_is_caught_while_the_command_runs_and_where_nobody_else_does(run, monkeypatch):
    def during(handler):
        seen = []
        before = signal.signal(signal.SIGTERM, handler)
        monkeypatch.setattr(
            entry, "app", lambda *_, **__: seen.append(signal.getsignal(signal.SIGTERM))
        )
        try:
            run()
            return seen[0] is not handler, signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)

    assert during(signal.SIG_DFL) == (True, True)
    assert during(signal.SIG_IGN) == (False, True)
    assert during(lambda *_: None) == (False, True)


def test_the_command_runs_in_any_thread():
    ended = []

    def elsewhere():
        try:
            main(["--version"])
        except SystemExit as end:
            ended.append(end.code)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ended == [0]


def test_a_warning_is_one_line_that_no_terminal_obeys(run, capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # and put it back
    run("--version")
    text = "layer '\x1b]0;owned\x07[/x]' of\nnet[v2]"
    warnings.showwarning(ResemblanceWarning(text), ResemblanceWarning, "file.py", 1)
    assert capsys.readouterr().err == "warning: layer '\\x1b]0;owned\\x07[/x]' of\\nnet[v2]\n"
