"""Squared norms against full float64 kernels: exact, or unbiased with errors that shrink."""

import numpy as np
import pytest

import reference_analysis as reference
from resemblance.analysis import adaptation
from resemblance.errors import MismatchError
from shifted import apart, arrays, recorded, without_norms


def exact(kernel, f, g):
    """‖μ‖², ‖K‖_F²/N⁴ and Tr K/N²."""
    table = reference.adaptation(reference.kernel(kernel, f, g))
    return [table[name] ** 2 for name in ("mean_embedding", "norm_frobenius", "norm_trace")]


@pytest.mark.parametrize("kernel", ["features", "gradients", "product", "sum", "elementwise"])
def test_a_whole_kernel_gives_them_exactly(kernel):
    f, g = arrays(n=200)
    rep = recorded(f, g)
    found = adaptation.squared_norms_from_blocks(rep[0], kernel, rep)
    # int16 correlations are good to 1.5e-5
    np.testing.assert_allclose(found.values, exact(kernel, f, g), rtol=3e-4)
    assert [x.shape for x in found.deviations] == [(32, 3)]


def test_groups_of_samples_are_left_out_as_if_they_had_not_been_recorded():
    f, g = arrays(n=64)
    rep = recorded(f, g)
    total, others = adaptation._kernel_sums(rep[0], "product", rep)
    k = rep[0].blocks("features", whole=True)[0] * rep[0].blocks("gradients", whole=True)[0]
    keep = slice(2, None)  # 32 groups of two
    rest = k[keep, keep].numpy()
    off = rest - np.diag(np.diag(rest))
    d = np.diag(rest)
    expected = (62, 62 * 61, d.sum(), (d**2).sum(), off.sum(), (off**2).sum())
    np.testing.assert_allclose(others[0, :6], expected, rtol=1e-9)
    assert len(others) == 32
    assert total[0] == 64


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("kernel", ["features", "product"])
def test_they_are_unbiased_over_random_blocks_and_the_trace_is_exact(kernel, norms):
    f, g = arrays()
    truth = exact(kernel, f, g)
    found = []
    for seed in range(150):
        rep = apart(f, g, seed) if norms else without_norms(apart(f, g, seed))
        found.append(adaptation.squared_norms_from_blocks(rep[0], kernel, rep).values)
    error = np.std(found, 0) / len(found) ** 0.5
    bias = 0.01 if norms else 1e-6  # a ratio is unbiased to first order
    assert (np.abs(np.mean(found, 0) - truth) < 4 * error + bias * np.abs(truth))[:2].all()
    np.testing.assert_allclose([x[2] for x in found], truth[2], rtol=1e-5)


def test_the_deviation_of_the_trace_shrinks_with_samples_beyond_the_blocks():
    f, g = arrays(n=1024)
    errors = []
    for blocks in (32, 128):
        rep = recorded(f, g, blocks=blocks, block=8)
        found = adaptation.squared_norms_from_blocks(rep[0], "product", rep)
        assert found.values[2] == pytest.approx(exact("product", f, g)[2], rel=1e-5)
        errors.append(sum((x[:, 2] ** 2).sum() for x in found.deviations) ** 0.5)
    assert errors[0] == pytest.approx(errors[1], rel=0.4)


def test_sums_over_the_bucket_kernel_are_those_of_the_paper_and_their_bias_is_known():
    f, g = arrays(n=96, mean=0.3)
    found = []
    for seed in range(60):
        rep = recorded(f, g, seed=seed)
        found.append(adaptation.squared_norms_from_buckets(rep[0], "product", rep))
    k = (rep[0].buckets("features") * rep[0].buckets("gradients")).numpy()
    expected = k.sum() / 96**2, np.linalg.norm(k) ** 2 / 96**4, np.trace(k) / 96**2
    assert found[-1].values == pytest.approx(expected)
    assert found[-1].deviations == []
    excess = (f.astype(float) ** 2).sum(1).mean() * (g.astype(float) ** 2).sum(1).mean() / 32
    more = np.mean([x.values[0] for x in found]) - exact("product", f, g)[0]
    assert more == pytest.approx(excess, rel=0.25)


def test_without_a_pair_of_samples_there_is_nothing_to_estimate():
    rep = recorded(*arrays(n=1))
    with pytest.raises(MismatchError, match=r"layer .* has no blocks with two or more samples"):
        adaptation.squared_norms_from_blocks(rep[0], "product", rep)
