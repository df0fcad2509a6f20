"""Every exception and warning of this package, as one small tree.

    ResemblanceError
    ├── LayerError      a layer cannot be found, never runs, or gets no gradient
    │   └── NoBackwardError   a quantised layer has no backward pass
    ├── DataError       the data are empty, malformed or not finite, or a file cannot be written
    ├── TargetError     no useful gradient can be formed from the model's output
    ├── MismatchError   two Representations cannot be compared or merged
    ├── FormatError     a file is damaged, truncated, or of an unsupported kind or version
    └── MissingExtra    an optional package is needed

    ResemblanceWarning  the result stands, but the reader should know this first

Every message says what was expected, what was found and what to do.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit


class ResemblanceError(Exception):
    """The root of every error that this package raises on purpose."""


class LayerError(ResemblanceError):
    """A layer cannot be found, never runs, or gets no gradient."""


class NoBackwardError(LayerError):
    """A quantised layer has no backward pass, so no gradient reaches the layers before it.

    Args:
        layer: the name of the layer.
        kind: the name of its class.
    """

    def __init__(self, layer: str, kind: str) -> None:
        self.layer = layer
        super().__init__(
            f"layer {layer!r} ({kind}) is quantised and has no backward pass, so gradients cannot "
            "reach the layers before it; record with `gradients=False`"
        )


class DataError(ResemblanceError):
    """The data are empty, malformed or not finite, or a file cannot be written."""


class TargetError(ResemblanceError):
    """No useful gradient can be formed from the model's output."""


class MismatchError(ResemblanceError):
    """Two Representations cannot be compared or merged."""


class FormatError(ResemblanceError):
    """A file is damaged, truncated, or of another kind or version."""


class MissingExtra(ResemblanceError):  # noqa: N818 - it names what is missing
    """An optional package is needed; the message says which install brings it."""


class ResemblanceWarning(UserWarning):
    """The answer stands, but its reader should know this first."""

    @property
    def code(self) -> str:
        """The code of the note that it says (`Note.code`); `text` if it is no note of a result."""
        return getattr(self.args[0], "code", "text")


def warn(text: str) -> None:
    """A ResemblanceWarning that points to the caller's own line, however deep in the package."""
    frame, level = sys._getframe(1), 2
    inside = (os.path.dirname(__file__) + os.sep, contextlib.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, ResemblanceWarning, stacklevel=level)


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, from where the package came.

    That is the clone that it runs from, or the folder, file or repository that pip took it from and
    noted beside it. Without a note it came from an index.
    """
    from importlib import metadata  # slow to load, and only errors need it
    from urllib.request import url2pathname

    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    package, note = f"resemblance[{extra}]", None
    with contextlib.suppress(metadata.PackageNotFoundError):
        note = metadata.distribution("resemblance").read_text("direct_url.json")
    if not note:
        return f"pip install '{package}'"
    origin = json.loads(note)
    if "dir_info" in origin:
        folder = url2pathname(urlsplit(origin["url"]).path)
        return f"pip install {shlex.quote(f'{folder}[{extra}]')}"
    kind = origin.get("vcs_info", {}).get("vcs")
    source = f"{kind}+{origin['url']}" if kind else origin["url"]
    return f"pip install {shlex.quote(f'{package} @ {source}')}"


def import_optional(module: str, package: str, extra: str) -> ModuleType:
    """An optional module, or an error that says which install brings it, or repairs it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken installation raises whatever it likes
        install = install_command(extra)
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if name and name.split(".")[0] == module.split(".")[0]:
            raise MissingExtra(
                f"this needs {package}, which is not installed: {install}"
            ) from error
        if broken := broken_torchvision(error):
            raise broken from error
        raise MissingExtra(
            f"this needs {package}, which is installed but cannot be imported "
            f"({first_line(error)}); install a compatible version: {install} --force-reinstall"
        ) from error


def broken_torchvision(error: BaseException) -> MissingExtra | None:
    """The error to raise if another library failed because torchvision's operators do not load."""
    cause: BaseException | None = error
    while cause is not None:
        if "operator torchvision::" in str(cause):
            return MissingExtra(
                f"the installed torchvision is broken ({first_line(cause)}): it was built for a "
                "different torch. Install the torchvision that matches this torch, or uninstall it"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def close_matches(name: str, candidates: Iterable[str], count: int = 5) -> str:
    """The candidates closest to a misspelt name, as text for an error message.

    >>> close_matches("layer1.conv", ["layer1.conv1", "layer2.conv2", "fc"])
    'layer1.conv1, layer2.conv2'
    """
    known = list(candidates)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.5) or known[:count]
    return ", ".join(close)


def first_line(error: BaseException) -> str:
    """What a foreign error says, short enough to be quoted."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
