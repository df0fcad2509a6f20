"""Weights that several processes hold in parts: torch's DTensors, as FSDP and tensor parallel make.

FSDP gathers a module's weights before it runs, so that every process computes whole outputs; under
tensor parallelism each computes a part of many outputs, which nothing about them tells. Both are
known by the names of torch's classes, as importing those takes long.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def is_spread(weight: object) -> bool:
    """Whether it is a DTensor, of which this process holds a part."""
    return isinstance(weight, Tensor) and hasattr(weight, "full_tensor")


def whole(weight: Any) -> Tensor:
    """All of a DTensor; every process that has a part must ask for it."""
    return weight.full_tensor()


def computed_in_parts(model: nn.Module) -> str | None:
    """The name of a weight whose module runs on a part of it, as tensor parallelism has it."""
    gathered = {id(p) for m in model.modules() if _gathers(m) for p in m.parameters()}
    for name, weight in model.named_parameters():
        if is_spread(weight) and _splits(weight) > (id(weight) in gathered):
            return name
    return None


def _splits(weight: Any) -> int:
    """Along how many axes of the mesh of processes it is split: FSDP splits it along one."""
    return sum(not placement.is_replicate() for placement in weight.placements)


def _gathers(module: nn.Module) -> bool:
    return any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__)
