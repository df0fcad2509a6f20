"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write to a temporary file, fsync, rename: readers see the old file or the new one, whole."""
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "xb") as file:  # the process's own umask decides who may read it
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
