"""How similar are two neural networks, where do they diverge, and which one fits my data?

Names are imported when they are first used, so that `resemblance --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_HOME = {  # public name -> the module that defines it
    "Adaptation": "analysis.adaptation",
    "Behaviour": "similarity.agreement",
    "EmbeddingBehaviour": "similarity.neighbours",
    "Embeddings": "representation.embeddings",
    "Comparison": "similarity.comparison",
    "ComparisonMatrix": "similarity.comparison_matrix",
    "Coordinates": "similarity.drift",
    "Copies": "gate.copies",
    "CountSketch": "_ops.count_sketch",
    "Descents": "zoo.descent",
    "Entry": "zoo.entry",
    "FamilyTree": "zoo.family_tree",
    "FisherRao": "analysis.fisher_rao",
    "Flips": "similarity.flips",
    "FullComparison": "similarity.comparison",
    "KernelClassifier": "analysis.classifier",
    "KernelComparison": "similarity.comparison",
    "Layer": "representation.layer",
    "LayerDivergence": "similarity.divergence",
    "Note": "representation.notes",
    "Outputs": "representation.outputs",
    "Recommendation": "transfer.recommendation",
    "Representation": "representation.representation",
    "ResemblanceError": "errors",
    "SearchResult": "zoo.search",
    "TaskEmbedding": "analysis.task2vec",
    "Sensitivity": "analysis.sensitivity",
    "Trajectory": "similarity.trajectory",
    "Verdict": "gate.verdict",
    "Zoo": "zoo.zoo",
    "adaptation": "analysis.adaptation",
    "behaviour": "analysis.behaviour",
    "check": "gate.check",
    "cka": "similarity.indices.cka",
    "compare": "similarity.compare",
    "compare_all": "similarity.compare_all",
    "coordinates": "similarity.drift",
    "copies": "gate.copies",
    "fisher_rao": "analysis.fisher_rao",
    "flips": "similarity.flips",
    "load": "representation.file_format",
    "merge": "representation.merge",
    "nbs": "similarity.indices.nbs",
    "recommend": "transfer.recommend",
    "record": "recording.record",
    "record_arrays": "recording.record_arrays",
    "register_index": "similarity.indices.registry",
    "report": "views.report",
    "sensitivity": "analysis.sensitivity",
    "stream": "_data.streams",
    "task2vec": "analysis.task2vec",
    "trajectory": "similarity.trajectory",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from ._data.streams import stream as stream
    from ._ops.count_sketch import CountSketch as CountSketch
    from .analysis.adaptation import Adaptation as Adaptation
    from .analysis.adaptation import adaptation as adaptation
    from .analysis.behaviour import behaviour as behaviour
    from .analysis.classifier import KernelClassifier as KernelClassifier
    from .analysis.fisher_rao import FisherRao as FisherRao
    from .analysis.fisher_rao import fisher_rao as fisher_rao
    from .analysis.sensitivity import Sensitivity as Sensitivity
    from .analysis.sensitivity import sensitivity as sensitivity
    from .analysis.task2vec import TaskEmbedding as TaskEmbedding
    from .analysis.task2vec import task2vec as task2vec
    from .errors import ResemblanceError as ResemblanceError
    from .gate.check import check as check
    from .gate.copies import Copies as Copies
    from .gate.copies import copies as copies
    from .gate.verdict import Verdict as Verdict
    from .recording.record import record as record
    from .recording.record_arrays import record_arrays as record_arrays
    from .representation.embeddings import Embeddings as Embeddings
    from .representation.file_format import load as load
    from .representation.layer import Layer as Layer
    from .representation.merge import merge as merge
    from .representation.notes import Note as Note
    from .representation.outputs import Outputs as Outputs
    from .representation.representation import Representation as Representation
    from .similarity.agreement import Behaviour as Behaviour
    from .similarity.compare import compare as compare
    from .similarity.compare_all import compare_all as compare_all
    from .similarity.comparison import Comparison as Comparison
    from .similarity.comparison import FullComparison as FullComparison
    from .similarity.comparison import KernelComparison as KernelComparison
    from .similarity.comparison_matrix import ComparisonMatrix as ComparisonMatrix
    from .similarity.divergence import LayerDivergence as LayerDivergence
    from .similarity.drift import Coordinates as Coordinates
    from .similarity.drift import coordinates as coordinates
    from .similarity.flips import Flips as Flips
    from .similarity.flips import flips as flips
    from .similarity.indices.cka import cka as cka
    from .similarity.indices.nbs import nbs as nbs
    from .similarity.indices.registry import register_index as register_index
    from .similarity.neighbours import EmbeddingBehaviour as EmbeddingBehaviour
    from .similarity.trajectory import Trajectory as Trajectory
    from .similarity.trajectory import trajectory as trajectory
    from .transfer.recommend import recommend as recommend
    from .transfer.recommendation import Recommendation as Recommendation
    from .views.report import report as report
    from .zoo.descent import Descents as Descents
    from .zoo.entry import Entry as Entry
    from .zoo.family_tree import FamilyTree as FamilyTree
    from .zoo.search import SearchResult as SearchResult
    from .zoo.zoo import Zoo as Zoo


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
