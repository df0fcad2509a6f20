"""Tables from kernels of all samples; `test_every_pair` holds them against `compare`."""

from __future__ import annotations

import numpy as np
import pytest

import resemblance as rs
from resemblance.similarity.combinations import Question
from resemblance.similarity.tables_of_whole import OfWhole
from resemblance.similarity.whole_estimates import Pairing, groups, scores


@pytest.mark.parametrize("samples", [3, 5, 40])
@pytest.mark.parametrize("centre", [True, False])
def test_any_rows_and_columns_are_those_of_the_estimator(samples, centre):
    rng = np.random.default_rng(0)
    rep = rs.record_arrays({x: rng.normal(size=(samples, 4)) for x in "abcd"}, data_id="x")
    asked = Question("features", "cka", centre, "blocks")
    found = OfWhole(rep.layers, samples, asked).estimate(slice(1, 2), slice(1, 4), asked)
    spans = groups(samples)
    truth = scores(Pairing(rep.layers[1:2], rep.layers[1:], asked, samples, spans), seed=None)
    for name in ("scores", "stderr", "replicates"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), atol=1e-6)
    assert found.scores[0, 0] == pytest.approx(1)
