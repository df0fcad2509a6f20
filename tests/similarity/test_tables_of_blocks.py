"""Tables from blocks; `test_every_pair` holds them against `compare`."""

from __future__ import annotations

import numpy as np
import pytest

import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.similarity import block_estimates
from resemblance.similarity.combinations import Question
from resemblance.similarity.tables_of_blocks import OfBlocks


def made(samples=64, **options):
    rng = np.random.default_rng(0)
    layers = {x: rng.normal(size=(samples, 4)) + 1 for x in "abc"}
    return rs.record_arrays(layers, data_id="x", block=10, blocks=5, **options)


@pytest.mark.parametrize("centre", [True, False])
def test_any_rows_and_columns_are_those_of_the_estimator(centre):
    rep = made()
    asked = Question("features", "cka", centre, "blocks")
    found = OfBlocks(rep.layers, rep, asked).estimate(slice(0, 2), slice(1, 3), asked)
    truth = block_estimates.scores(rep, rep, asked)
    for name in ("scores", "stderr", "chance", "effective_blocks"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(truth, name)[:2, 1:], atol=1e-6, err_msg=name
        )


def test_a_ratio_without_norms_is_refused():
    rep = made(keep_sums=False)
    centred = Question("features", "cka", True, "blocks")  # whose norms are not looked for
    tables = OfBlocks(rep.layers, rep, centred)
    with pytest.raises(MismatchError, match="needs the norm of every sample"):
        tables.estimate(slice(0, 1), slice(0, 1), Question("features", "cka", False, "ratio"))
