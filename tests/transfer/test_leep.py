"""LEEP and NCE against their plain sums."""

import numpy as np
import plain_scores as plain
import pytest
import torch

from resemblance.errors import DataError
from resemblance.transfer.leep import leep, nce

rng = np.random.default_rng(0)
P = rng.dirichlet([0.3] * 7, 50)
Y = rng.integers(0, 3, 50)


@pytest.mark.parametrize("labels", [Y, np.array(["a", "b", "c"])[Y], torch.tensor(Y)])
def test_they_are_their_sums(labels):
    assert leep(P, labels) == pytest.approx(plain.leep(P, Y), rel=1e-10)
    assert nce(P, labels) == pytest.approx(plain.nce(P, Y), rel=1e-10)


def test_predictions_that_tell_labels_have_likelihood_one():
    sure = np.eye(3)[Y]
    assert leep(sure, Y) == nce(sure, Y) == 0.0
    assert leep(P, Y) <= 0
    assert nce(P, Y) <= 0


def test_a_rare_label_is_as_unlikely_as_it_is():
    p, labels = np.full((2001, 2), 0.5), np.arange(2001) == 2000
    share = 1 / 2001
    expected = (1 - share) * np.log(1 - share) + share * np.log(share)
    assert leep(p, labels) == pytest.approx(expected, rel=1e-10)
    assert nce(p, labels) == pytest.approx(expected, rel=1e-10)


def test_a_class_that_is_never_predicted_tells_nothing():
    wide = np.concatenate([P, np.zeros((50, 1))], 1)
    assert leep(wide, Y) == pytest.approx(leep(P, Y), rel=1e-12)
    assert nce(wide, Y) == pytest.approx(nce(P, Y), rel=1e-12)


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="a label for each of 50"):
        leep(P, Y[:40])
    with pytest.raises(DataError, match="two or more classes"):
        nce(P, np.zeros(50))
