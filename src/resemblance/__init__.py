"""How alike are two neural networks, where do they part, and which one fits my data?

Names are imported when they are first used, so that `resemblance --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_HOME = {  # public name -> the module that defines it
    "Comparison": "similarity.comparison",
    "ComparisonMatrix": "similarity.comparison_matrix",
    "CountSketch": "_ops.count_sketch",
    "KernelClassifier": "analysis.kernel_classifier",
    "Representation": "representation.representation",
    "ResemblanceError": "errors",
    "Trajectory": "similarity.training_course",
    "Zoo": "zoo.collection",
    "adaptation": "analysis.mean_embedding",
    "behaviour": "similarity.same_predictions",
    "check": "gate.judgement",
    "cka": "similarity.indices",
    "compare": "similarity.two_networks",
    "compare_all": "similarity.many_networks",
    "coordinates": "similarity.shared_coordinates",
    "fisher_rao": "analysis.fisher_rao_norm",
    "load": "representation.file_format",
    "merge": "representation.merging",
    "nbs": "similarity.indices",
    "recommend": "recommending.for_data",
    "record": "recording.from_model",
    "record_arrays": "recording.from_arrays",
    "report": "views.report_page",
    "stream": "_data.streams",
    "task2vec": "analysis.task_embedding",
    "trajectory": "similarity.checkpoints_in_order",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from ._data.streams import stream as stream
    from ._ops.count_sketch import CountSketch as CountSketch
    from .analysis.fisher_rao_norm import fisher_rao as fisher_rao
    from .analysis.kernel_classifier import KernelClassifier as KernelClassifier
    from .analysis.mean_embedding import adaptation as adaptation
    from .analysis.task_embedding import task2vec as task2vec
    from .errors import ResemblanceError as ResemblanceError
    from .gate.judgement import check as check
    from .recommending.for_data import recommend as recommend
    from .recording.from_arrays import record_arrays as record_arrays
    from .recording.from_model import record as record
    from .representation.file_format import load as load
    from .representation.merging import merge as merge
    from .representation.representation import Representation as Representation
    from .similarity.checkpoints_in_order import trajectory as trajectory
    from .similarity.comparison import Comparison as Comparison
    from .similarity.comparison_matrix import ComparisonMatrix as ComparisonMatrix
    from .similarity.indices import cka as cka
    from .similarity.indices import nbs as nbs
    from .similarity.many_networks import compare_all as compare_all
    from .similarity.same_predictions import behaviour as behaviour
    from .similarity.shared_coordinates import coordinates as coordinates
    from .similarity.training_course import Trajectory as Trajectory
    from .similarity.two_networks import compare as compare
    from .views.report_page import report as report
    from .zoo.collection import Zoo as Zoo


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
