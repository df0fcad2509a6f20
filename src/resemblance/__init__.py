"""How alike are two neural networks, where do they part, and which one fits my data?

Names are imported when they are first used, so that `resemblance --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {  # public name -> the module that defines it
    "Comparison": "similarity.comparison",
    "CountSketch": "_ops.count_sketch",
    "KernelClassifier": "analysis.kernel_classifier",
    "Representation": "representation.representation",
    "ResemblanceError": "errors",
    "adaptation": "analysis.mean_embedding",
    "cka": "similarity.indices",
    "compare": "similarity.two_networks",
    "compare_all": "similarity.many_networks",
    "fisher_rao": "analysis.fisher_rao_norm",
    "load": "representation.representation",
    "merge": "representation.representation",
    "nbs": "similarity.indices",
    "record": "recording.from_model",
    "record_arrays": "recording.from_model",
    "report": "views.report_page",
    "task2vec": "analysis.task_embedding",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from ._ops.count_sketch import CountSketch
    from .analysis.fisher_rao_norm import fisher_rao
    from .analysis.kernel_classifier import KernelClassifier
    from .analysis.mean_embedding import adaptation
    from .analysis.task_embedding import task2vec
    from .errors import ResemblanceError
    from .recording.from_model import record, record_arrays
    from .representation.representation import Representation, load, merge
    from .similarity.comparison import Comparison
    from .similarity.indices import cka, nbs
    from .similarity.many_networks import compare_all
    from .similarity.two_networks import compare
    from .views.report_page import report


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
