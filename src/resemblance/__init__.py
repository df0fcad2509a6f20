"""How alike are two neural networks, where do they part, and which one fits my data?

Names are imported when they are first used, so that `resemblance --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {  # public name -> the module that defines it
    "Comparison": "comparison",
    "CountSketch": "sketch",
    "KernelClassifier": "classify",
    "Representation": "representation",
    "ResemblanceError": "errors",
    "adaptation": "adaptation",
    "cka": "indices",
    "compare": "compare",
    "compare_all": "many",
    "fisher_rao": "fisher_rao",
    "load": "representation",
    "merge": "representation",
    "nbs": "indices",
    "record": "record",
    "record_arrays": "record",
    "report": "report",
    "task2vec": "task2vec",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from .adaptation import adaptation
    from .classify import KernelClassifier
    from .compare import compare
    from .comparison import Comparison
    from .errors import ResemblanceError
    from .fisher_rao import fisher_rao
    from .indices import cka, nbs
    from .many import compare_all
    from .record import record, record_arrays
    from .report import report
    from .representation import Representation, load, merge
    from .sketch import CountSketch
    from .task2vec import task2vec


class _Package(types.ModuleType):
    """A package whose public names win over its modules of the same name (`compare`, `record`)."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOME[name]}", self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted([*__all__, "__version__"])


sys.modules[__name__].__class__ = _Package
