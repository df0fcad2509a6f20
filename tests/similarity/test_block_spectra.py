"""NBS and spectra from blocks: exact in one block, and what many blocks make of them."""

from dataclasses import replace

import numpy as np
import pytest

import reference_compare as reference
import resemblance as rs
from made_up import recorded, related


@pytest.mark.parametrize("index", ["nbs", "spectral"])
@pytest.mark.parametrize("centre", [False, True])
def test_one_block_gives_the_exact_nbs_and_spectrum(index, centre):
    a, b = recorded(0, 15), recorded(1, 15)
    k1, k2 = (reference.kernel("gradients", *(x["l0"] for x in related(s, 15))) for s in (0, 1))
    if centre:
        k1, k2 = reference.centre(k1), reference.centre(k2)
    found = rs.compare(a, b, kernel="gradients", index=index, centre=centre, estimator="blocks")
    expected = getattr(reference, index)(k1, k2)
    assert found.scores[0, 0] == pytest.approx(expected, abs=2e-3)  # roots of round-off count


def test_unpaired_spectra_add_their_variances():
    f, _ = related(0, 200)
    h, _ = related(1, 200)
    some = {"buckets": 0, "blocks": 12}  # not all samples, whose kernel would be kept whole
    a = rs.record_arrays(f, data_id="x", **some)
    b, c = (rs.record_arrays(h, data_id=name, **some) for name in ("x", "y"))
    together = rs.compare(a, b, kernel="features", index="spectral")
    apart = rs.compare(a, c, kernel="features", index="spectral")
    np.testing.assert_array_equal(together.scores, apart.scores)
    assert (apart.stderr > 0).all()
    assert not np.allclose(apart.stderr, together.stderr)
    fewer = replace(
        c,
        block_sizes=c.block_sizes[:1],
        block_numbers=c.block_numbers[:1],
    )
    assert np.isnan(rs.compare(a, fewer, kernel="features", index="spectral").stderr).all()


def test_nbs_from_blocks_lies_above_that_of_all_samples():
    f, _ = related(0, 400)
    h, _ = related(1, 400)
    a, b = (rs.record_arrays(x, data_id="x", buckets=0, blocks=12) for x in (f, h))
    found = rs.compare(a, b, kernel="features", index="nbs")
    whole = reference.nbs(*(reference.centre(x["l0"] @ x["l0"].T) for x in (f, h)))
    assert found.scores[0, 0] > whole
    assert any("overestimates" in note for note in found.notes)
