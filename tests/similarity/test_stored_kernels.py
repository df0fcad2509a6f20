"""Kernels as they are read from storage: whatever is read at a time, and down to its round-off."""

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from made_up import recorded
from resemblance._ops import packed_kernels as packing
from resemblance._seeded_random import shuffled
from resemblance.similarity import indices, stored_kernels

THE_WHOLE = (slice(0, 1), 60, "cpu")


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa"])
def test_how_many_blocks_are_taken_at_a_time_does_not_matter(index, monkeypatch):
    a, b = (recorded(seed, 100, block=8, name=f"{seed}") for seed in (0, 1))  # the last is shorter
    found = []
    for rows in (1, 6, 1000):
        monkeypatch.setitem(stored_kernels._ROWS, "cpu", rows)
        found.append(rs.compare(a, b, index=index))
    for other in found[1:]:
        for name in ("scores", "stderr", "chance", "chance_high"):
            np.testing.assert_allclose(getattr(other, name), getattr(found[0], name), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"block": 16, "blocks": 8}], ids=["whole", "blocks"])
@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa", "nbs", "spectral"])
def test_a_layer_lost_in_round_off_is_called_constant(index, options):
    rng = np.random.default_rng(0)
    # vectors are float32, whose steps are 6e-8 beside one
    f = {"flat": 1 + 1e-7 * rng.normal(size=(200, 5)), "alive": rng.normal(size=(200, 5))}
    a = rs.record_arrays(f, data_id="x", buckets=0, name="net", **options)
    with pytest.warns(rs.errors.ResemblanceWarning, match="layer 'flat' of 'net' is constant") as w:
        found = rs.compare(a, a, kernel="features", index=index, centre=True, estimator="blocks")
    assert len(w) == 1
    assert np.isnan(found.scores[0]).all()
    assert np.isnan(found.scores[:, 0]).all()
    assert found.scores[1, 1] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"block": 16, "blocks": 3}], ids=["whole", "blocks"])
@pytest.mark.parametrize("index", ["cka-debiased", "cka"])
def test_wide_noise_is_not_called_constant(index, options):
    """In a product of wide noise entries lie far below the diagonal, but rounding further still."""
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 60, 40_000)).astype(np.float32)
    a = rs.record_arrays(f, g, data_id="x", buckets=0, max_dim=64, **options)
    found = rs.compare(a, a, kernel="product", index=index, estimator="blocks")
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-6)
    assert found.notes == ()


@pytest.mark.parametrize("options", [{}, {"block": 16, "blocks": 8}], ids=["whole", "blocks"])
@pytest.mark.parametrize("kernel", ["product", "sum", "features"])
def test_a_constant_layer_is_called_so_for_every_kernel(kernel, options):
    rng = np.random.default_rng(0)
    same = np.repeat(rng.normal(size=(1, 40)), 150, 0)
    a = rs.record_arrays(same, 3 * same, data_id="x", buckets=0, **options)
    with pytest.warns(rs.errors.ResemblanceWarning, match="is constant on these data"):
        found = rs.compare(a, a, kernel=kernel, centre=True, estimator="blocks")
    assert np.isnan(found.scores).all()


def test_round_off_is_what_packing_leaves():
    """Of each kernel, the mean square error of its entries; an estimate of it, and never less."""
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 120, 50)) + 0.3
    a = rs.record_arrays(f, g, data_id="x", buckets=0, block=40, blocks=2)
    order = shuffled(120, 0)[:40]
    for kernel in ("features", "product", "sum"):
        exact = reference.kernel(kernel, f, g)[np.ix_(order, order)]
        triangle, _ = stored_kernels.read(a.layers, kernel, slice(0, 1), 40, "cpu")
        i, j = np.tril_indices(40, -1)
        error = np.mean((triangle[0].numpy() - exact[i, j]) ** 2)
        least = float(stored_kernels.round_off(a.layers, kernel, slice(0, 1), 40)[0])
        assert 1 < least / error < 100


@pytest.mark.parametrize("unit", [None, 7.0])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum"])
def test_a_mean_that_was_taken_off_is_put_back(kernel, whole, unit):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 100, 30)) + 2
    options = {} if whole else {"block": 40, "blocks": 2}
    a = rs.record_arrays(f, g, data_id="x", buckets=0, **options)
    assert all(a[0].packed_blocks(x, whole=whole).offset is not None for x in a[0].kinds)
    n = 100 if whole else 40
    order = shuffled(100, 0)[:n]
    exact = reference.kernel(kernel, f, g)[np.ix_(order, order)]
    if unit is not None:
        of_f, of_g = (unit / np.square(x).sum() for x in (f, g))
        over = {"features": of_f, "gradients": of_g, "product": of_f * of_g, "sum": unit}
        exact *= over[kernel]
    which = slice(0, 1)
    triangle, diagonal = stored_kernels.read(a.layers, kernel, which, n, "cpu", unit, whole=whole)
    i, j = np.tril_indices(n, -1)
    # offsets are float32, and correlations good to 1.5e-5 of what is left without the mean
    np.testing.assert_allclose(triangle[0], exact[i, j], atol=3e-5 * exact.max())
    np.testing.assert_allclose(diagonal[0], np.diag(exact), rtol=1e-5)
    least = float(stored_kernels.round_off(a.layers, kernel, which, n, unit, whole=whole)[0])
    assert least / np.mean((triangle[0].numpy() - exact[i, j]) ** 2) > 1


@pytest.mark.parametrize("kernel", ["features", "gradients", "sum", "product"])
def test_a_mean_may_stay_away_from_what_is_centred_but_not_from_a_product(kernel):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 60, 30)) + 2
    a = rs.record_arrays(f, g, data_id="x", buckets=0)
    kept, loose = (
        packing.squares(*stored_kernels.read(a.layers, kernel, *THE_WHOLE, loose=x, whole=True))[0]
        for x in (False, True)
    )
    assert torch.equal(kept, loose) == (kernel == "product")
    # nothing is lost by it: what was taken off is u_i + u_j
    kept, loose = (indices.centred(k) for k in (kept, loose))
    torch.testing.assert_close(kept, loose, atol=1e-6 * float(kept.max()), rtol=0)


def test_blocks_of_a_whole_kernel_keep_their_mean():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(60, 30)) + 2
    rep = rs.record_arrays(f, data_id="x", buckets=0, block=25)
    order = shuffled(60, 0)
    for b, (triangle, diagonal) in enumerate(
        stored_kernels.kernel_blocks(rep[0], "features", rep.block_sizes)
    ):
        rows = f[order[25 * b : 25 * b + 25]]
        exact = rows @ rows.T
        np.testing.assert_allclose(diagonal, np.diag(exact), rtol=1e-5)
        i, j = np.tril_indices(len(rows), -1)
        np.testing.assert_allclose(triangle, exact[i, j], atol=3e-5 * exact.max())
    assert b == 2
