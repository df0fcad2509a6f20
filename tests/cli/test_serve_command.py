"""`resemblance serve`: what it refuses, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request

from resemblance import Zoo
from resemblance.errors import install_command


def test_what_is_no_zoo_is_refused(refused, tmp_path):
    assert "no zoo at nowhere" in refused("serve", "nowhere")
    (tmp_path / "file").write_text("")
    assert "create one with" in refused("serve", tmp_path / "file")


def test_an_address_that_others_can_reach_needs_a_token(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("RESEMBLANCE_TOKEN", raising=False)
    found = refused("serve", tmp_path, "--host", "0.0.0.0")
    assert "--token is required" in found
    assert "at least 16" in refused("serve", tmp_path, "--token", "short")


def test_a_missing_extra_is_named(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)  # as if it were not installed
    assert install_command("web") in refused("serve", tmp_path)


def test_it_says_where_it_is_answers_and_stops_when_interrupted(tmp_path):
    Zoo(tmp_path / "zoo").close()
    (tmp_path / "zoo").mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "resemblance",
        "serve",
        "zoo",
        "--port",
        "0",
        "--token",
        "auto",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said = process.stdout.readline()
        found = re.fullmatch(
            r"Serving zoo at (http://127\.0\.0\.1:\d+/)\?token=(\S{32}) \(press Ctrl-C.*\n", said
        )
        assert found is not None, said
        asked = urllib.request.Request(f"{found[1]}api/zoo")
        asked.add_header("Authorization", f"Bearer {found[2]}")
        with urllib.request.urlopen(asked) as answer:
            assert b'"entries":0' in answer.read()
        children = _children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == ""
    assert err == "stopped\n"
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def _children(process):
    try:
        with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
            return file.read().split()
    except OSError:  # not on Linux
        return []
