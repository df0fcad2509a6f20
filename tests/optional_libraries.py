"""Libraries that tests can do without, and one that does not always load."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch


def needs(package):
    """Skips a test where a library is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}, which is not installed")


def usable_torchvision() -> None:
    """Make torchvision importable, which timm and transformers load, also where its compiled
    operators do not load. Where it is not installed, nothing needs it.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision

        torchvision._kept = library  # the operators live as long as this
