"""Fingerprints tell the same samples, and the same weights, from others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
from resemblance._data import sample_hashes
from resemblance._data.batches import size

X = torch.randn(6, 3, 20, 20, generator=torch.Generator().manual_seed(0))


def of_samples(batch):
    """The hash by which samples without a name are known."""
    return sample_hashes.hashed(sample_hashes.read_to_know(batch), size(batch))


def test_equal_samples_have_equal_hashes_in_any_batch():
    whole = of_samples(X)
    parts = np.concatenate([of_samples(part) for part in X.split(2)])
    assert (whole == parts).all()
    assert len(set(whole.tolist())) == 6


def test_holder_and_labels_do_not_matter():
    y = torch.arange(6)
    for batch in (X.numpy(), (X, y), [X], (X, y + 1), {"x": X}, {"x": X, "labels": y}):
        assert (of_samples(batch) == of_samples(X)).all()


def test_a_changed_value_changes_the_hash_of_its_sample_alone():
    changed = X.clone()
    changed[2] += 1e-6
    assert np.flatnonzero(of_samples(changed) != of_samples(X)) == [2]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]
)
def test_every_dtype_has_a_hash(dtype):
    x = (X[:, 0, 0].clamp_min(0) * 10).to(dtype)
    assert len(set(of_samples(x).tolist())) > 1


def test_texts_have_hashes():
    a, b, c = of_samples(["one", "two", "one"]).tolist()
    assert a == c != b


def test_padding_does_not_matter():
    batch = networks.tokens(5, length=6)
    wide = {key: torch.nn.functional.pad(value, (0, 3)) for key, value in batch.items()}
    left = {key: torch.nn.functional.pad(value, (2, 0)) for key, value in batch.items()}
    other = {**wide, "input_ids": wide["input_ids"] + 7 * (1 - wide["attention_mask"])}
    for same in (wide, left, other):
        assert (of_samples(same) == of_samples(batch)).all()
    changed = {**batch, "input_ids": batch["input_ids"] + batch["attention_mask"]}
    assert (of_samples(changed) != of_samples(batch)).all()


def test_names_stand_for_samples():
    assert (sample_hashes.of_name("a", 3) == sample_hashes.of_name("a", 3)).all()
    assert (sample_hashes.of_name("a", 3) != sample_hashes.of_name("b", 3)).all()
