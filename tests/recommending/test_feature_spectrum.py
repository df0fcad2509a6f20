"""One decomposition for all scores of a layer."""

import numpy as np
import pytest
import torch

from resemblance.errors import DataError
from resemblance.recommending.feature_spectrum import FeatureSpectrum, numbered, spectrum_of


@pytest.mark.parametrize("shape", [(20, 7), (12, 40)])
def test_coordinates_have_the_features_inner_products(shape):
    f = np.random.default_rng(0).normal(size=shape) + 1
    found = FeatureSpectrum.of(torch.tensor(f))
    x = found.coordinates.numpy()
    assert np.allclose(x @ x.T, f @ f.T)
    assert found.width == shape[1]
    y = found.centred().coordinates.numpy()
    g = f - f.mean(0)
    assert np.allclose(y @ y.T, g @ g.T)
    assert len(found.centred().values) == min(shape[0] - 1, shape[1])


def test_a_spectrum_stays_one_and_integers_are_numbers():
    found = spectrum_of(np.array([[1, 2], [3, 4], [5, 7]]))
    assert spectrum_of(found) is found
    assert found.values.dtype == torch.float64


def test_features_that_are_no_table_are_refused():
    with pytest.raises(DataError, match=r"expected features of shape \(samples, width\)"):
        FeatureSpectrum.of(np.zeros((3, 2, 2)))


def test_labels_are_numbered():
    numbers, classes = numbered(["b", "a", "b"], 3)
    assert numbers.tolist() == [1, 0, 1]
    assert classes == 2
