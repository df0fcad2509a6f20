"""Uploads: a file that somebody sends, written to a folder of its own as it comes.

No more than the limit is ever kept, and little of it in memory. What is in the file is for a worker
to find out; the folder is gone when it has.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..errors import ResemblanceError

LIMIT = 256  # MiB
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
        idle: seconds that a sender may be silent.
    """
    with tempfile.TemporaryDirectory(prefix="resemblance-") as folder:  # of this user alone
        path = Path(folder) / _NAME
        await _written(chunks, path, limit, idle)
        yield path


async def _written(chunks: AsyncIterator[bytes], path: Path, limit: int, idle: float) -> None:
    came = 0
    with path.open("wb") as file:
        while True:
            try:
                chunk = await asyncio.wait_for(anext(chunks), idle)
            except StopAsyncIteration:
                break
            except asyncio.TimeoutError as error:
                why = f"nothing came for {idle:g} seconds; send it again"
                raise UploadError(408, why) from error
            came += len(chunk)
            if came > limit:
                raise UploadError(413, too_large(limit))
            file.write(chunk)
    if not came:
        raise UploadError(422, "expected a file written by Representation.save, found an empty one")


def too_large(limit: int) -> str:
    """Why a file is not taken."""
    return (
        f"expected a file of at most {limit / _MEBIBYTE:,.4g} MiB, found a larger one; start the "
        "server with a larger --upload-limit, or add the file with `resemblance zoo add`"
    )
