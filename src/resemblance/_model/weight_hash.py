"""A short hash that tells the same weights from others."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from .call_trace import plain_name

_WEIGHTS = 4096  # read of a parameter


def of_weights(model: nn.Module) -> str:
    """A digest of names, shapes and evenly spaced values of the weights: cheap at any size."""
    digest = hashlib.blake2b(digest_size=8)
    weights = {k: w for k, w in sorted(model.state_dict().items()) if isinstance(w, Tensor)}
    values = {key: _some_bytes(weight) for key, weight in weights.items()}
    read: dict[str, bytes] = {}
    for device in {x.device for x in values.values()}:  # one copy each, as a GPU is slow to begin
        here = {key: x for key, x in values.items() if x.device == device}
        whole = torch.cat([*here.values()]).cpu().split([len(x) for x in here.values()])
        read |= {key: x.numpy().tobytes() for key, x in zip(here, whole, strict=True)}
    for key, weight in weights.items():
        digest.update(f"{plain_name(key)} {tuple(weight.shape)}".encode())
        digest.update(read[key])
    return digest.hexdigest()


def _some_bytes(weight: Tensor) -> Tensor:  # uint8
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // _WEIGHTS))].contiguous().view(torch.uint8)
