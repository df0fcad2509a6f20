"""Files that somebody sends."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from resemblance.web.application import receive_upload


async def taken(chunks, **options):
    async with receive_upload(chunks, **options) as path:
        return path, path.read_bytes(), path.parent.stat().st_mode & 0o777


async def coming(*parts, wait=0.0):
    for part in parts:
        await asyncio.sleep(wait)
        yield part


def test_what_comes_is_in_a_folder_that_is_gone_afterwards():
    path, content, mode = asyncio.run(taken(coming(b"ab", b"", b"c")))
    assert content == b"abc"
    assert mode == 0o700
    assert not path.parent.exists()


def test_no_more_than_the_limit_is_kept():
    seen = []

    async def endless():
        while True:
            seen.append(1)
            yield b"x" * 1000

    with pytest.raises(HTTPException, match="larger --upload-limit") as refusal:
        asyncio.run(taken(endless(), limit=10_500))
    assert refusal.value.status_code == 413
    assert len(seen) == 11


@pytest.mark.parametrize(("limit", "status"), [(3, None), (2, 413)])
def test_the_limit_itself_is_taken(limit, status):
    if status is None:
        assert asyncio.run(taken(coming(b"abc"), limit=limit))[1] == b"abc"
        return
    with pytest.raises(HTTPException):
        asyncio.run(taken(coming(b"abc"), limit=limit))


def test_a_sender_that_falls_silent_is_not_waited_for():
    with pytest.raises(HTTPException, match=r"the upload stalled for 0\.05 seconds") as refusal:
        asyncio.run(taken(coming(b"a", wait=5), idle=0.05))
    assert refusal.value.status_code == 408


def test_an_empty_file_is_refused():
    with pytest.raises(HTTPException, match="found an empty file"):
        asyncio.run(taken(coming()))


def test_a_sender_of_a_byte_now_and_then_is_not_waited_for_either():
    drops = coming(*[b"x"] * 500, wait=0.01)  # never silent for long
    with pytest.raises(HTTPException, match="the upload stalled") as refusal:
        asyncio.run(taken(drops, idle=0.2))
    assert refusal.value.status_code == 408


def test_a_full_disk_is_said(monkeypatch):
    class FullDisk(io.BytesIO):
        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *_, **__: FullDisk())
    with pytest.raises(HTTPException, match="no disk space") as refusal:
        asyncio.run(taken(coming(b"x")))
    assert refusal.value.status_code == 507
