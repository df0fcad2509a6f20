"""Indices of whole kernels: against closed forms, and what makes them similarities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_compare as reference
from resemblance.errors import DataError
from resemblance.similarity import stored_kernels
from resemblance.similarity.indices.cka import cka
from resemblance.similarity.indices.nbs import nbs


def features(seed, n=12, d=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + rng.normal(size=d)


def gram(x):
    return x @ x.T


FORMS = {
    "cka": (cka, lambda a, b: reference.cka(a, b, centred=True)),
    "plain cka": (
        lambda a, b: cka(a, b, centre=False),
        lambda a, b: reference.cka(a, b, centred=False),
    ),
    "nbs": (nbs, reference.nbs),
}
seeds = st.integers(0, 10_000)


@pytest.mark.parametrize("name", FORMS)
def test_index_agrees_with_its_closed_form(name):
    index, form = FORMS[name]
    a, b = gram(features(0)), gram(features(1, d=9))
    # roots of eigenvalues that are zero but for round-off are good to 1e-8
    assert index(a, b) == pytest.approx(form(a, b), abs=1e-7 if name == "nbs" else 1e-10)


@pytest.mark.parametrize("name", FORMS)
def test_numpy_torch_and_float32_agree(name):
    index, _ = FORMS[name]
    a, b = gram(features(0)), gram(features(1))
    value = index(a, b)
    assert index(torch.from_numpy(a), torch.from_numpy(b)) == value
    # float32 holds seven digits of a kernel
    assert index(a.astype(np.float32), b.astype(np.float32)) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=20, deadline=None)
@given(seed=seeds, scale=st.floats(1e-3, 1e3))
def test_rotation_scaling_and_joint_permutation_change_nothing(name, seed, scale):
    index, _ = FORMS[name]
    rng = np.random.default_rng(seed)
    x, y = features(seed), features(seed + 1, d=7)
    value = index(gram(x), gram(y))
    turn, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    columns, rows = rng.permutation(5), rng.permutation(12)
    assert index(gram(scale * x @ turn), gram(y)) == pytest.approx(value, abs=1e-7)
    assert index(gram(x[:, columns]), gram(y)) == pytest.approx(value, abs=1e-7)
    assert index(gram(x[rows]), gram(y[rows])) == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_self_similarity_is_one_and_none_exceeds_it(name, seed):
    index, _ = FORMS[name]
    a, b = gram(features(seed)), gram(features(seed + 1))
    assert index(a, a) == pytest.approx(1, abs=1e-9)
    assert index(a, b) == pytest.approx(index(b, a), abs=1e-7)
    assert 0 <= index(a, b) <= 1


@settings(max_examples=40, deadline=None)
@given(seed=seeds, d=st.integers(1, 15))
def test_cka_never_exceeds_nbs_of_squared_kernels(seed, d):
    a, b = gram(features(seed, d=d)), gram(features(seed + 1))
    assert cka(a, b, centre=False) <= nbs(a @ a, b @ b) + 1e-7


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_nbs_of_grams_is_nbs_of_factors(seed):
    x, y = features(seed), features(seed + 1, d=8)
    assert nbs(gram(x), gram(y)) == pytest.approx(reference.nbs_of_factors(x.T, y.T), abs=1e-7)


def test_nbs_of_centred_features_is_procrustes():
    x, y = features(0), features(1)
    x, y = x - x.mean(0), y - y.mean(0)
    u, _, v = np.linalg.svd(x.T @ y)
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    distance = np.linalg.norm(x @ (u @ v) - y) ** 2  # the best rotation of x onto y
    assert nbs(gram(x), gram(y)) == pytest.approx(1 - distance / 2, abs=1e-9)


def test_centring_survives_a_large_mean():
    x, y = features(0), features(1)
    shifted = x + 1e3  # a mean a thousand times the spread: kernels of 1e6 hold 1e-10
    assert cka(gram(shifted), gram(y)) == pytest.approx(cka(gram(x), gram(y)), abs=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_a_kernel_of_zeros_has_no_similarity(name):
    index, _ = FORMS[name]
    with pytest.raises(DataError, match=r"a kernel is zero .* undefined"):
        index(np.zeros((4, 4)), np.eye(4))


def test_constant_features_have_no_centred_similarity():
    x = np.full((9, 5), 0.1)  # 0.1 has no exact binary form, so centring leaves round-off
    with pytest.raises(DataError, match="a kernel is zero"):
        cka(gram(x), gram(features(0, n=9)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_are_refused(bad):
    k = np.eye(3)
    k[0, 1] = bad
    with pytest.raises(DataError, match="expected finite kernels, found NaN or Inf"):
        cka(k, np.eye(3))


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(DataError, match=r"square kernel matrix, found shape \(3, 2\)"):
        cka(np.ones((3, 2)), np.eye(3))


def test_kernels_over_different_items_are_refused():
    with pytest.raises(DataError, match="same samples, found 3 and 4"):
        nbs(np.eye(3), np.eye(4))


def test_a_matrix_that_is_no_kernel_is_refused():
    with pytest.raises(DataError, match="positive semi-definite kernel, found eigenvalues from -1"):
        nbs(np.diag([1.0, -1.0]), np.eye(2))


def test_factors_clip_round_off_below_zero():
    k = torch.diag(torch.tensor([1.0, -1e-9])).double()
    factor = stored_kernels.psd_factor(k)
    torch.testing.assert_close(factor @ factor.T, torch.diag(torch.tensor([1.0, 0.0])).double())
