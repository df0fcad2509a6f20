"""A small network on a few vectors, recorded in many small blocks."""

from __future__ import annotations

import torch

import networks
import resemblance as rs

VECTORS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
SMALL = {"block": 4, "blocks": 64, "buckets": 16}


def record(data=VECTORS, seed_of_model=0, **options):
    return rs.record(networks.seeded(networks.MLP, seed=seed_of_model), data, **SMALL | options)
