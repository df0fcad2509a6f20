"""What a layer holds, by its names in docs/reference/format.md; whether two hold the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import reference


def moments(layer):
    """Every sum over samples, by name."""
    out = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        out[f"trace_{kind}"] = recorded.trace
        if recorded.buckets is not None:
            out[f"mean_{kind}"] = recorded.buckets.mean_norm
    if layer.products is not None:
        out |= dataclasses.asdict(layer.products)
        out["product"] = out.pop("norms")
    return out


def tensors(layer):
    """Every tensor, by name."""
    named = {name: getattr(layer, name) for name in ("signs", "sketch_signs")}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        named[f"{kind}.norms"] = recorded.norms
        for part in ("blocks", "whole", "sketch", "buckets", "sums"):
            record = getattr(recorded, part)
            record = record.kernel if part == "whole" and record is not None else record
            for field in dataclasses.fields(record) if record is not None else ():
                if field.name != "mean_norm":
                    named[f"{kind}.{part}.{field.name}"] = getattr(record, field.name)
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def assert_same(a, b, tolerance=0.0):
    """Equal entry by entry: bit for bit, or to a tolerance relative to √(K_ii K_jj)."""
    assert a.layer_names == b.layer_names
    assert (a.samples, a.settings) == (b.samples, b.settings)
    assert (a.block_sizes, a.block_numbers) == (b.block_sizes, b.block_numbers)
    assert a.data.fingerprint == b.data.fingerprint
    for one, two in zip(a, b, strict=True):
        ours, theirs = tensors(one), tensors(two)
        assert moments(one) == pytest.approx(moments(two), rel=tolerance, abs=tolerance)
        if tolerance == 0:
            assert ours.keys() == theirs.keys()
            for key in ours:
                assert torch.equal(ours[key].nan_to_num(-1), theirs[key].nan_to_num(-1)), (
                    one.name,
                    key,
                )
            continue
        for kind in one.kinds:
            if a.settings.buckets:
                assert reference.close(one.buckets(kind), two.buckets(kind).numpy(), tolerance)
            for x, y in zip(one.blocks(kind), two.blocks(kind), strict=True):
                assert reference.close(x, y.numpy(), tolerance + 1 / 32767)


def assert_identical(a, b):
    """Equal bit for bit in all but when and where they were made."""
    for field in dataclasses.fields(a):
        if field.name not in ("layers", "made"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    for one, two in zip(a, b, strict=True):
        for field in ("name", "shape", "dim", "folded"):
            assert getattr(one, field) == getattr(two, field)
    assert_same(a, b)
