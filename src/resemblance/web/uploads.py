"""Uploads: a file that somebody sends, written to a folder of its own as it comes.

No more than the limit is ever kept, and little of it in memory; who sends next to nothing is not
waited for. What is in the file is for a worker to find out; the folder is gone when it has.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from ..errors import ResemblanceError

LIMIT = 256  # MiB
SLOWEST = 16 * 1024  # bytes a second, on the whole
_MEBIBYTE = 2**20
_NAME = "recording.rsm"


class UploadError(ResemblanceError):
    """An upload that was not taken in, with the status that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@asynccontextmanager
async def received(
    chunks: AsyncIterator[bytes], *, limit: int = LIMIT * _MEBIBYTE, idle: float = 30.0
) -> AsyncIterator[Path]:
    """The path of what came, until the end of the block.

    Args:
        limit: bytes that are taken at most.
        idle: seconds that a sender may be silent, or behind `SLOWEST`.
    """
    with tempfile.TemporaryDirectory(prefix="resemblance-") as folder:  # of this user alone
        path = Path(folder) / _NAME
        await _written(chunks, path, limit, idle)
        yield path


async def _written(chunks: AsyncIterator[bytes], path: Path, limit: int, idle: float) -> None:
    came, began = 0, time.monotonic()
    with path.open("wb", buffering=0) as file:
        while True:
            left = began + idle + came / SLOWEST - time.monotonic()
            try:
                chunk = await asyncio.wait_for(anext(chunks), min(idle, max(left, 0)))
            except StopAsyncIteration:
                break
            except asyncio.TimeoutError as error:
                why = f"too little came for {idle:g} seconds; send it again"
                raise UploadError(408, why) from error
            came += len(chunk)
            if came > limit:
                raise UploadError(413, too_large(limit))
            _keep(file, chunk)
    if not came:
        raise UploadError(422, "expected a file written by Representation.save, found an empty one")


def _keep(file: IO[bytes], chunk: bytes) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        raise UploadError(507, "the server has no room for the file; tell who runs it") from error


def too_large(limit: int) -> str:
    """Why a file is not taken."""
    return (
        f"expected a file of at most {limit / _MEBIBYTE:,.4g} MiB, found a larger one; start the "
        "server with a larger --upload-limit, or add the file with `resemblance zoo add`"
    )
