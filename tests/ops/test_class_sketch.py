"""The sketch over classes: what its buckets and signs promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resemblance._ops.class_sketch import CLASS_BUCKETS, ClassSketch, class_places, row_keys

CPU = torch.device("cpu")


def dense(keys, classes):
    """S of each row (rows, buckets, classes), from single classes."""
    ids = torch.arange(classes).expand(len(keys), -1)
    buckets, signs = class_places(ids, keys, classes)
    out = torch.zeros(len(keys), CLASS_BUCKETS, classes, dtype=torch.float64)
    return out.scatter_(1, buckets[:, None], signs[:, None])


@pytest.mark.parametrize("classes", [1025, 1536, 3000])
def test_a_row_is_sketched_by_the_places_of_its_classes(classes):
    keys, x = row_keys(3, np.arange(7)), torch.randn(7, classes)
    sketch = ClassSketch(classes, CPU)
    found = sketch.sketch(x, sketch.signs(keys))
    expected = (dense(keys, classes) @ x.double()[..., None])[..., 0]
    assert found.shape == (7, CLASS_BUCKETS)
    assert torch.allclose(found.double(), expected, atol=1e-5)


def test_buckets_hold_equally_many_classes():
    buckets, _ = class_places(torch.arange(2000)[None], row_keys(0, np.arange(1)), 2000)
    assert set(buckets.flatten().bincount(minlength=CLASS_BUCKETS).tolist()) == {3, 4}


def test_keys_depend_on_the_seed_and_the_index_alone():
    keys = row_keys(1, np.arange(1000))
    assert torch.equal(keys[[5, 900]], row_keys(1, np.array([5, 900])))
    assert len(set(keys.tolist()) | set(row_keys(2, np.arange(1000)).tolist())) == 2000
    assert 0 <= int(keys.min()) <= int(keys.max()) < 2**32
    assert row_keys(0, np.array([2**63 + 1], np.uint64)).shape == (1,)  # as the hash of a key


def test_inner_products_are_unbiased_and_vary_as_they_should():
    """Over 4,000 keys, of vectors with a common part, in which errors would add up."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, generator=generator)
    y = x + torch.randn(2000, generator=generator)
    sketch = ClassSketch(2000, CPU)
    signs = sketch.signs(row_keys(0, np.arange(4000)))
    both = (sketch.sketch(z.expand(4000, -1), signs).double() for z in (x, y))
    error = torch.mul(*both).sum(1) - float(x.double() @ y.double())
    expected = float((x.square().sum() * y.square().sum() + (x @ y) ** 2) / CLASS_BUCKETS) ** 0.5
    expected *= (1 - CLASS_BUCKETS / 2000) ** 0.5  # of a class with itself there is no error
    assert float(error.std()) == pytest.approx(expected, rel=0.05)
    assert abs(float(error.mean())) < 3 * expected / 4000**0.5


def test_errors_of_different_rows_are_independent():
    """The mean over many rows of one and the same vectors errs as independent errors would."""
    x, y = torch.randn(2, 1500, generator=torch.Generator().manual_seed(1))
    sketch, means = ClassSketch(1500, CPU), []
    for seed in range(40):
        signs = sketch.signs(row_keys(seed, np.arange(400)))
        inner = (sketch.sketch(z.expand(400, -1), signs).double() for z in (x, y))
        error = torch.mul(*inner).sum(1) - float(x.double() @ y.double())
        means.append(float(error.mean() / (error.std() / 400**0.5)))
    assert np.std(means) == pytest.approx(1, abs=0.35)  # three standard errors of 40 draws
