"""Recordings of a network with samples of several kinds, and their scores as plain numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

import resemblance as rs
from resemblance.errors import ResemblanceWarning

from .scale import Scale

KERNELS = ("features", "gradients", "product")
TOP = 0.01  # of the tokens: how much of the gradients' squared norm do these carry?
Recordings = dict[str, rs.Representation]


def units(scale: Scale) -> dict[str, dict[str, Any]]:
    """What a sample may be, as options of `record`."""
    return {
        "tokens": {"unit": "token", "tokens": scale.tokens, "block": scale.block},
        "one token": {"unit": "token", "tokens": 1, "block": scale.one_block},
        "last token": {"unit": "sample", "pool": "last", "block": scale.block},
        "mean": {"unit": "sample", "pool": "mean", "block": scale.block},
        "whole sequence": {"unit": "sample", "pool": "flatten", "block": scale.block},
    }


def recorded(
    net: nn.Module, ids: Tensor, ways: Mapping[str, Mapping[str, Any]], name: str
) -> Recordings:
    """A network recorded in each of several ways, in float32. Nothing is sketched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)
        return {
            way: rs.record(
                net,
                ids,
                name=name,
                data_id="held-out",
                buckets=0,
                outputs=False,
                progress=False,
                **options,
            )
            for way, options in ways.items()
        }


def compared(base: Recordings, other: Recordings) -> dict[str, Any]:
    """For each way of recording and each kernel, CKA by layer and its mean over layers."""
    return {
        way: {kernel: _scores(base[way], other[way], kernel) for kernel in KERNELS} for way in base
    }


def _scores(base: rs.Representation, other: rs.Representation, kernel: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        # a pruned layer may be constant; whether few sequences carry a kernel is kept as n_eff
        warnings.simplefilter("ignore", ResemblanceWarning)
        found = rs.compare(base, at_depths_of(base, other), kernel=kernel)
    value, error, chance = found.by_layer()
    mean, mean_error = found.mean()
    replicates = found.replicates
    if replicates is not None:
        replicates = np.nanmean(replicates[:, np.isfinite(value)], 1)
    n_eff = None if found.n_eff is None else found.n_eff[1]
    return {
        "layers": list(found.rows),
        "score": _plain(value),
        "stderr": _plain(error),
        "chance": None if chance is None else _plain(chance[0]),
        "mean": _plain(mean),
        "mean stderr": _plain(mean_error),
        "replicates": None if replicates is None else _plain(replicates),
        "n_eff": None if n_eff is None else _plain(n_eff),
    }


def at_depths_of(base: rs.Representation, other: rs.Representation) -> rs.Representation:
    """The other with as many layers as the base, each the one at the same relative depth.

    Of networks with equally many layers that changes nothing.
    """
    if len(base) == len(other):
        return other
    places = np.linspace(0, len(other) - 1, len(base)).round().astype(int)
    layers = (
        replace(other[int(place)], name=layer.name, bare_name=layer.bare_name)
        for place, layer in zip(places, base, strict=True)
    )
    return replace(other, layers=tuple(layers))


def concentration(rep: rs.Representation) -> dict[str, Any]:
    """On how few samples the gradients live, layer by layer.

    `top` is the share of Σ ‖g‖² that the largest one in a hundred carry; `n_eff` is
    (Σ ‖g‖²)² / Σ ‖g‖⁴, all samples where they are equal.
    """
    top, effective = [], []
    for layer in rep:
        norms = layer.recorded("gradients").norms
        assert norms is not None
        d = norms[norms.isfinite()].double()
        largest = d.topk(max(1, round(TOP * len(d)))).values
        top.append(float(largest.sum() / d.sum()))
        effective.append(float(d.sum() ** 2 / d.square().sum()))
    return {
        "samples": rep.samples, "layers": rep.layer_names, "top": _plain(np.array(top)),
        "n_eff": _plain(np.array(effective)),
    }  # fmt: skip


def _plain(values: Any) -> Any:
    """Lists of numbers of six digits; None where there is none."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return None if np.isnan(values) else float(f"{float(values):.7g}")
