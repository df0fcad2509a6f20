"""The process that reads recordings."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys

import pytest

from resemblance import Zoo
from resemblance.web import worker_pool
from resemblance.web.worker_pool import answer_query, serve


def test_one_line_for_each_line(little):
    asked = [
        {"ask": "zoo_map", "of": {"group": little.group, "kernel": "features"}},
        {"ask": "pair", "of": {"a": "0" * 64, "b": "0" * 64}},
    ]
    lines, out = b"".join(json.dumps(x).encode() + b"\n" for x in asked), io.BytesIO()
    serve(str(little.place), io.BytesIO(lines), out, 60)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(found[0]["answer"]["points"]) == 7
    assert "no entry" in found[1]["error"]
    assert "fault" not in found[1]
    assert str(little.place) not in found[1]["error"]


@pytest.mark.parametrize(
    ("error", "said", "fault"),
    [
        (MemoryError(), "more memory", False),
        (RuntimeError("can't allocate memory: you tried"), "more memory", False),
        (RuntimeError("/secret/path"), "could not be read (RuntimeError); see the server", True),
        (KeyError("x"), "could not be read (KeyError)", True),
        (RecursionError("deep"), "could not be read (RecursionError)", True),
    ],
)
def test_whatever_goes_wrong_is_a_line(little, monkeypatch, capsys, error, said, fault):
    def fail(zoo):
        raise error

    monkeypatch.setattr(worker_pool, "QUESTIONS", {"fail": fail})
    with Zoo(little.place) as zoo:
        found = answer_query(zoo, {"ask": "fail", "of": {}})
    assert said in found["error"]
    assert "secret" not in found["error"]
    assert found.get("fault", False) is fault
    assert ("Traceback" in capsys.readouterr().err) is fault


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory on Linux")
def test_memory_is_limited():
    code = """
from resemblance.web.worker_pool import limit_memory
limit_memory(256)
small = bytearray(50 * 2**20)
try:
    bytearray(400 * 2**20)
except MemoryError:
    print("refused")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "refused\n"


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="the system has no alarm")
def test_a_process_that_nobody_kills_ends_by_itself(little):
    code = """
import io, sys
from resemblance.web import worker_pool
def loop(zoo):
    while True:
        pass
worker_pool.QUESTIONS = {"loop": loop}
question = io.BytesIO(b'{"ask": "loop", "of": {}}\\n')
worker_pool.serve(sys.argv[1], question, io.BytesIO(), 1)
"""
    found = subprocess.run([sys.executable, "-c", code, str(little.place)], timeout=60)
    assert found.returncode == -signal.SIGALRM
