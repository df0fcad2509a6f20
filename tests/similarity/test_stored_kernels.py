"""Kernels entry by entry, in strips of rows, and read from storage."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from made_up import recorded
from resemblance._ops import packing
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import MismatchError
from resemblance.similarity import stored_kernels
from resemblance.similarity.kernels import KERNEL_TABLE, KERNELS, required_kinds
from resemblance.similarity.stored_kernels import (
    STRIP_KERNELS,
    KernelStrips,
    iter_blocks,
    read_blocks,
    row_effects,
)


def data(n=6, d=9, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, d))


def test_product_is_the_kernel_of_gradient_times_feature():
    f, g = data()
    psi = np.stack([np.outer(b, a).ravel() for a, b in zip(f, g, strict=True)])
    np.testing.assert_allclose(reference.kernel("product", f, g), psi @ psi.T, rtol=1e-10)


def test_transport_agrees_with_the_plain_formula_on_full_rank():
    f, g = data()
    kf, kg = f @ f.T, g @ g.T
    out = stored_kernels.transport_kernel(torch.from_numpy(kf), torch.from_numpy(kg))
    np.testing.assert_allclose(out, reference.transport(kf, kg), atol=1e-9)


def test_transport_is_halfway_between_commuting_kernels():
    # for diagonal kernels the geodesic is that of the roots: ((√a + √b) / 2)²
    a, b = torch.tensor([4.0, 1.0, 9.0]).double(), torch.tensor([1.0, 1.0, 25.0]).double()
    expected = ((a.sqrt() + b.sqrt()) / 2) ** 2
    torch.testing.assert_close(stored_kernels.transport_kernel(a.diag(), b.diag()), expected.diag())


def test_transport_leaves_out_what_lies_beyond_the_range_of_features():
    kf = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0])).double()
    kg = torch.diag(torch.tensor([1.0, 1.0, 7.0, 0.0])).double()
    expected = torch.diag(torch.tensor([2.25, 1.0, 0.0, 0.0])).double()
    torch.testing.assert_close(stored_kernels.transport_kernel(kf, kg), expected)


def test_transport_of_rank_deficient_kernels_is_finite_and_positive():
    f, g = data(n=20, d=3)
    out = stored_kernels.transport_kernel(torch.from_numpy(f @ f.T), torch.from_numpy(g @ g.T))
    values = torch.linalg.eigvalsh(out)
    assert torch.isfinite(out).all()
    assert values[0] > -1e-9 * values[-1]
    assert (values > 1e-6 * values[-1]).sum() == 3  # no more directions than the features have


def test_transport_takes_batches():
    f, g = data()
    kf, kg = torch.from_numpy(f @ f.T), torch.from_numpy(g @ g.T)
    both = stored_kernels.transport_kernel(torch.stack([kf, kg]), torch.stack([kg, kf]))
    torch.testing.assert_close(both[1], stored_kernels.transport_kernel(kg, kf))


@pytest.fixture(scope="module")
def rep():
    rng = np.random.default_rng(0)
    features = {"far": rng.normal(size=(50, 4)) + 30, "near": rng.normal(size=(50, 4))}
    gradients = {name: rng.normal(size=(50, 4)) for name in features}
    kept = {"block": 20, "blocks": 2, "elementwise": False}  # not the kernel of all samples
    return rs.record_arrays(features, gradients, data_id="x", **kept)


@pytest.mark.parametrize("kernel", [name for name in STRIP_KERNELS if name != "elementwise"])
def test_rows_are_those_of_the_kernel(rep, kernel):
    strips = KernelStrips(rep.layers, kernel, 1, 20, loose=False, whole=False)
    lower = torch.cat(
        [
            torch.nn.functional.pad(strips.rows(a, b), (0, 20 - b)).clone()
            for a, b in ((0, 7), (7, 20))
        ],
        1,
    )
    for at, layer in enumerate(rep):
        triangle, diagonal = (x[0] for x in list(iter_blocks([layer], kernel, rep.block_sizes))[1])
        i, j = torch.tril_indices(20, 20, -1)
        unit = diagonal.mean()
        torch.testing.assert_close(lower[at, i, j], triangle / unit, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(strips.diagonal[at], diagonal / unit, rtol=1e-12, atol=1e-12)
        assert not lower[at].triu().any()


def test_loose_strips_leave_out_what_centring_does(rep):
    loose = KernelStrips(
        rep.layers, "features", 0, 20, loose=True, whole=False, unit=torch.ones(2, 1)
    )
    triangle, _ = read_blocks(rep.layers, "features", slice(0, 1), 20, "cpu", loose=True)
    i, j = torch.tril_indices(20, 20, -1)
    torch.testing.assert_close(loose.rows(0, 20)[:, i, j], triangle)


def test_levelled_rows_sum_to_zero(rep):
    strips = KernelStrips(rep.layers, "features", 0, 20, loose=True, whole=False).levelled()
    lower = strips.rows(0, 20)
    sums = lower.sum(1) + lower.sum(2)
    assert float(sums.abs().max()) < 1e-12
    assert float(row_effects(sums).abs().max()) < 1e-12
    assert not row_effects(
        torch.ones(1, 2)
    ).any()  # two samples have one pair, and nothing to level


THE_WHOLE = (slice(0, 1), 60, "cpu")


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa"])
def test_how_many_blocks_are_taken_at_a_time_does_not_matter(index, monkeypatch):
    a, b = (recorded(seed, 100, block=8, name=f"{seed}") for seed in (0, 1))  # the last is shorter
    found = []
    for rows in (1, 6, 1000):
        monkeypatch.setitem(stored_kernels._KERNELS_AT_ONCE, "cpu", rows)
        found.append(rs.compare(a, b, kernel="product", index=index))
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
    assert not any("constant" in note for note in found.notes)


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
    order = seeded_permutation(120, 0)[:40]
    for kernel in ("features", "product", "sum"):
        exact = reference.kernel(kernel, f, g)[np.ix_(order, order)]
        triangle, _ = stored_kernels.read_blocks(a.layers, kernel, slice(0, 1), 40, "cpu")
        i, j = np.tril_indices(40, -1)
        error = np.mean((triangle[0].numpy() - exact[i, j]) ** 2)
        least = float(stored_kernels.round_off_level(a.layers, kernel, slice(0, 1), 40)[0])
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
    order = seeded_permutation(100, 0)[:n]
    exact = reference.kernel(kernel, f, g)[np.ix_(order, order)]
    if unit is not None:
        of_f, of_g = (unit / np.square(x).sum() for x in (f, g))
        over = {"features": of_f, "gradients": of_g, "product": of_f * of_g, "sum": unit}
        exact *= over[kernel]
    which = slice(0, 1)
    triangle, diagonal = stored_kernels.read_blocks(
        a.layers, kernel, which, n, "cpu", unit, whole=whole
    )
    i, j = np.tril_indices(n, -1)
    # offsets are float32, and correlations good to 1.5e-5 of what is left without the mean
    np.testing.assert_allclose(triangle[0], exact[i, j], atol=3e-5 * exact.max())
    np.testing.assert_allclose(diagonal[0], np.diag(exact), rtol=1e-5)
    least = float(stored_kernels.round_off_level(a.layers, kernel, which, n, unit, whole=whole)[0])
    assert least / np.mean((triangle[0].numpy() - exact[i, j]) ** 2) > 1


@pytest.mark.parametrize("kernel", ["features", "gradients", "sum", "product"])
def test_a_mean_may_stay_away_from_what_is_centred_but_not_from_a_product(kernel):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 60, 30)) + 2
    a = rs.record_arrays(f, g, data_id="x", buckets=0)
    kept, loose = (
        packing.symmetric_matrices(
            *stored_kernels.read_blocks(a.layers, kernel, *THE_WHOLE, loose=x, whole=True)
        )[0]
        for x in (False, True)
    )
    assert torch.equal(kept, loose) == (kernel == "product")
    # nothing is lost by it: what was taken off is u_i + u_j
    kept, loose = (stored_kernels.centre_kernel(k) for k in (kept, loose))
    torch.testing.assert_close(kept, loose, atol=1e-6 * float(kept.max()), rtol=0)


def test_blocks_of_a_whole_kernel_keep_their_mean():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(60, 30)) + 2
    rep = rs.record_arrays(f, data_id="x", buckets=0, block=25)
    order = seeded_permutation(60, 0)
    for b, packed in enumerate(stored_kernels.iter_blocks([rep[0]], "features", rep.block_sizes)):
        triangle, diagonal = (x[0] for x in packed)
        rows = f[order[25 * b : 25 * b + 25]]
        exact = rows @ rows.T
        np.testing.assert_allclose(diagonal, np.diag(exact), rtol=1e-5)
        i, j = np.tril_indices(len(rows), -1)
        np.testing.assert_allclose(triangle, exact[i, j], atol=3e-5 * exact.max())
    assert b == 2


# -- the table of kernels --


def test_every_name_has_an_entry():
    assert tuple(KERNEL_TABLE) == KERNELS


@pytest.mark.parametrize("name", KERNELS)
def test_an_entry_agrees_with_the_closed_form(name):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(6, 9)), rng.normal(size=(6, 9))
    parts = {
        "features": torch.from_numpy(f @ f.T),
        "gradients": torch.from_numpy(g @ g.T),
        "elementwise": torch.from_numpy((f * g) @ (f * g).T),
    }
    scale = {
        kind: part.trace() if KERNEL_TABLE[name].over_traces else 1 for kind, part in parts.items()
    }
    needed = {kind: parts[kind] / scale[kind] for kind in required_kinds(name)}
    out = stored_kernels.combine_entries(name, needed)
    np.testing.assert_allclose(out, reference.kernel(name, f, g), rtol=1e-9)
    if KERNEL_TABLE[name].entrywise:
        packed = stored_kernels.combine_entries(name, {kind: k[2] for kind, k in needed.items()})
        assert torch.equal(packed, out[2])


@pytest.mark.parametrize("estimator", ["buckets", "paper"])
def test_a_kernel_that_buckets_do_not_have_is_refused(monkeypatch, estimator):
    spec = replace(KERNEL_TABLE["gradients"], buckets=False)
    monkeypatch.setitem(KERNEL_TABLE, "gradients", spec)
    a, b = recorded(0, 40), recorded(1, 40)
    message = f"gradients kernel cannot be formed from buckets: estimator is '{estimator}'; record"
    with pytest.raises(MismatchError, match=message):
        rs.compare(a, b, kernel="gradients", estimator=estimator)
    assert np.isfinite(rs.compare(a, b, kernel="gradients").scores).all()
