"""Zoos of every kind, which the same tests are run on."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

import resemblance as rs
from zoo_workers import STORES

BUCKET = "zoos"


@pytest.fixture(params=[*STORES, "s3"])
def place(request, tmp_path):
    """Where a zoo may be, of each kind."""
    if request.param == "s3":
        return f"lance:s3://{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}"
    if request.param == "lance":
        pytest.importorskip("lancedb")
        return f"lance:{tmp_path / 'tables'}"
    return str(tmp_path / "zoo")


@pytest.fixture
def zoo(place):
    with rs.Zoo(place) as found:
        yield found


@pytest.fixture
def bucket(object_store, monkeypatch):
    """A bucket on this machine, where LanceDB looks for s3:// while a test runs."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    settings = {"ENDPOINT": object_store, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    settings |= {"ACCESS_KEY_ID": "nobody", "SECRET_ACCESS_KEY": "nothing"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return BUCKET


@pytest.fixture(scope="session")
def object_store():
    """The address of a server that speaks S3 and can be reached from this machine alone."""
    pytest.importorskip("lancedb")
    beside = Path(sys.executable).with_name("moto_server")
    server = str(beside) if beside.exists() else shutil.which("moto_server")
    if server is None:
        pytest.skip("needs a server that speaks S3: pip install 'moto[s3]' flask flask-cors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        [server, "-H", "127.0.0.1", "-p", str(port)], stdout=nothing, stderr=nothing
    )
    try:
        _make_bucket(f"{address}/{BUCKET}", process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _make_bucket(address, process):
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            direct.open(urllib.request.Request(address, method="PUT"), timeout=10).close()
            return
        time.sleep(0.1)
    pytest.fail("the server that speaks S3 did not answer within a minute")
