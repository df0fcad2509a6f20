"""How alike are two neural networks, where do they part, and which one fits my data?"""

from .errors import ResemblanceError
from .record import record, record_arrays
from .representation import Representation, load, merge
from .sketch import CountSketch

__version__ = "0.1.0"

__all__ = [
    "CountSketch",
    "Representation",
    "ResemblanceError",
    "load",
    "merge",
    "record",
    "record_arrays",
]
