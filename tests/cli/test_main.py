"""The entry point: mistakes, warnings and interruptions as one line and an exit status."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from resemblance.cli import main as entry
from resemblance.cli.main import main


def test_version_and_help_answer_without_torch():
    """`--help` is quick because it never waits for torch."""
    code = (
        "import sys, resemblance.cli.main as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Compare two recorded networks" in done.stdout


def test_a_missing_file(refused):
    assert refused("info", "gone.rsm") == (
        "no file at gone.rsm; expected one written by Representation.save"
    )


def test_unpaired_files_are_compared_with_a_warning(recorded):
    recorded("record", "--model", "nets.py:small", "--data", "digits", "--limit", 99, "-o", "c.rsm")
    words = [sys.executable, "-m", "resemblance", "compare", "a.rsm", "c.rsm"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    assert "1,797 and 99 unpaired samples" in done.stdout
    assert done.stderr.startswith("warning: the two networks saw different samples")
    assert done.stderr.count("\n") == 1


def test_an_unknown_option_and_a_missing_argument(refused):
    assert refused("compare", "a.rsm").startswith("Missing argument")
    assert refused("compare", "--kernal", "features", "a", "b").startswith("No such option")


def test_debug_shows_the_traceback(folder):
    from resemblance.errors import FormatError

    with pytest.raises(FormatError):
        main(["--debug", "info", "gone.rsm"])


def test_an_interruption_is_one_word_and_status_130(run, monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "app", interrupted)
    assert run("info", "a.rsm") == (130, "", "interrupted\n")


def test_what_nobody_expects_is_raised_as_it_is(folder, monkeypatch):
    def broken(*words, **options):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(entry, "app", broken)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        main(["info", "a.rsm"])


def test_a_reader_that_stops_is_no_error(recorded):
    words = f"{sys.executable} -m resemblance info --json - {' a.rsm' * 200} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_warnings_of_others_are_shown_as_python_shows_them(run, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    run("--version")
    warnings.showwarning(UserWarning("theirs"), UserWarning, "file.py", 1)
    assert shown == ["theirs"]
