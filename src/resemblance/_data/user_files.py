"""FILE.py:FUNCTION: the user's own program, which is run. Nothing else is ever executed."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from ..errors import DataError, nearest


def call_function(spec: str) -> Any:
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise DataError(f"no file at {file}; expected FILE.py:FUNCTION")
    module_spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # data loader workers look it up by name
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        module_spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, _ in inspect.getmembers(module, inspect.isroutine)]
        raise DataError(f"{file} has no function {name!r}; it has {nearest(name, known) or 'none'}")
    return function()
