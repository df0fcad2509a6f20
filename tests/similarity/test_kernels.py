"""Named kernels: entry by entry, and halfway on the Bures geodesic."""

import numpy as np
import pytest
import torch

import reference_compare as reference
from resemblance.similarity import kernels


def data(n=6, d=9, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, d))


@pytest.mark.parametrize("name", ["features", "gradients", "product", "sum", "elementwise"])
def test_entrywise_kernels_agree_with_closed_forms(name):
    f, g = data()
    parts = {
        "features": torch.from_numpy(f @ f.T),
        "gradients": torch.from_numpy(g @ g.T),
        "elementwise": torch.from_numpy((f * g) @ (f * g).T),
    }
    scale = {kind: part.trace() if name in kernels.OF_TRACES else 1 for kind, part in parts.items()}
    needed = {kind: parts[kind] / scale[kind] for kind in kernels.needs(name)}
    out = kernels.entries(name, needed)
    np.testing.assert_allclose(out, reference.kernel(name, f, g), rtol=1e-12)


def test_product_is_the_kernel_of_gradient_times_feature():
    f, g = data()
    psi = np.stack([np.outer(b, a).ravel() for a, b in zip(f, g, strict=True)])
    np.testing.assert_allclose(reference.kernel("product", f, g), psi @ psi.T, rtol=1e-10)


def test_transport_agrees_with_the_plain_formula_on_full_rank():
    f, g = data()
    kf, kg = f @ f.T, g @ g.T
    out = kernels.transport(torch.from_numpy(kf), torch.from_numpy(kg))
    np.testing.assert_allclose(out, reference.transport(kf, kg), atol=1e-9)


def test_transport_is_halfway_between_commuting_kernels():
    # for diagonal kernels the geodesic is that of the roots: ((√a + √b) / 2)²
    a, b = torch.tensor([4.0, 1.0, 9.0]).double(), torch.tensor([1.0, 1.0, 25.0]).double()
    expected = ((a.sqrt() + b.sqrt()) / 2) ** 2
    torch.testing.assert_close(kernels.transport(a.diag(), b.diag()), expected.diag())


def test_transport_leaves_out_what_lies_beyond_the_range_of_features():
    kf = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0])).double()
    kg = torch.diag(torch.tensor([1.0, 1.0, 7.0, 0.0])).double()
    expected = torch.diag(torch.tensor([2.25, 1.0, 0.0, 0.0])).double()
    torch.testing.assert_close(kernels.transport(kf, kg), expected)


def test_transport_of_rank_deficient_kernels_is_finite_and_positive():
    f, g = data(n=20, d=3)
    out = kernels.transport(torch.from_numpy(f @ f.T), torch.from_numpy(g @ g.T))
    values = torch.linalg.eigvalsh(out)
    assert torch.isfinite(out).all()
    assert values[0] > -1e-9 * values[-1]
    assert (values > 1e-6 * values[-1]).sum() == 3  # no more directions than the features have


def test_transport_takes_batches():
    f, g = data()
    kf, kg = torch.from_numpy(f @ f.T), torch.from_numpy(g @ g.T)
    both = kernels.transport(torch.stack([kf, kg]), torch.stack([kg, kf]))
    torch.testing.assert_close(both[1], kernels.transport(kg, kf))
