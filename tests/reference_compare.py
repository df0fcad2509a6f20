"""Closed forms of kernels and indices in float64, written plainly, without the library."""

from __future__ import annotations

import itertools

import numpy as np


def root(k):
    values, vectors = np.linalg.eigh((k + k.T) / 2)
    return vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T


def kernel(name, f, g=None):
    """A named kernel of features (n, d) and gradients (n, d)."""
    kf = f @ f.T
    if name == "features":
        return kf
    if name == "elementwise":
        return (f * g) @ (f * g).T
    kg = g @ g.T
    if name == "gradients":
        return kg
    if name == "product":
        return kf * kg
    if name == "sum":
        return kf / np.trace(kf) + kg / np.trace(kg)
    return transport(kf / np.trace(kf), kg / np.trace(kg))


def transport(kf, kg):
    """Halfway on the Bures geodesic, for a kf of full rank."""
    half = root(kf)
    back = np.linalg.inv(half)
    t = back @ root(half @ kg @ half) @ back
    middle = (np.eye(len(kf)) + t) / 2
    return middle @ kf @ middle


def centre(k):
    h = np.eye(len(k)) - 1 / len(k)
    return h @ k @ h


def inner(k1, k2, *, centred):
    """⟨K1, K2⟩_F over n², of HKH if centred."""
    if centred:
        k1, k2 = centre(k1), centre(k2)
    return (k1 * k2).sum() / len(k1) ** 2


def hsic(k1, k2):
    """The unbiased HSIC of Song et al. 2012: mean over distinct pairs, triples and quadruples."""
    n = len(k1)
    a, b = k1 - np.diag(np.diag(k1)), k2 - np.diag(np.diag(k2))
    total = np.trace(a @ b) + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
    return total / (n * (n - 3))


def pairs(k1, k2):
    """The mean of K1_ij K2_ij over i ≠ j."""
    n = len(k1)
    return ((k1 * k2).sum() - (np.diag(k1) * np.diag(k2)).sum()) / (n * (n - 1))


def cka(k1, k2, *, centred):
    cross = inner(k1, k2, centred=centred)
    return cross / np.sqrt(inner(k1, k1, centred=centred) * inner(k2, k2, centred=centred))


def cka_debiased(k1, k2, *, centred):
    form = hsic if centred else pairs
    return form(k1, k2) / np.sqrt(form(k1, k1) * form(k2, k2))


def nbs(k1, k2):
    half = root(k1)
    middle = np.linalg.eigvalsh(half @ k2 @ half)
    return np.sqrt(np.maximum(middle, 0)).sum() / np.sqrt(np.trace(k1) * np.trace(k2))


def nbs_of_factors(psi1, psi2):
    """Nuclear norm of Ψ1Ψ2ᵀ over the norms, for K = ΨᵀΨ."""
    top = np.linalg.svd(psi1 @ psi2.T, compute_uv=False).sum()
    return top / (np.linalg.norm(psi1) * np.linalg.norm(psi2))


def spectral(k1, k2):
    a, b = (np.sort(np.linalg.eigvalsh(k))[::-1] for k in (k1, k2))
    return a @ b / np.sqrt((a @ a) * (b @ b))


def distances(k):
    """Squared distances of all pairs i > j."""
    n = len(k)
    return np.array([k[i, i] + k[j, j] - 2 * k[i, j] for i in range(n) for j in range(i)])


def rsa(k1, k2):
    return np.corrcoef(distances(k1), distances(k2))[0, 1]


def best_monotone(scores):
    """The largest sum over non-decreasing choices of a column for each row, by trying all."""
    rows, columns = scores.shape
    choices = itertools.combinations_with_replacement(range(columns), rows)
    return max(sum(scores[i, j] for i, j in enumerate(choice)) for choice in choices)


# -- neighbours, ranks, distances and projections --


def correlations(k):
    """Cosine similarities of samples."""
    scale = np.sqrt(np.diag(k))
    return k / np.outer(scale, scale)


def neighbours(k, count=10):
    """The set of the nearest other samples of each sample, by cosine similarity."""
    cosines = correlations(k)
    out = []
    for i, row in enumerate(cosines):
        others = [j for j in np.argsort(-row, kind="stable") if j != i]
        out.append(set(others[:count]))
    return out


def mutual_knn(k1, k2, count=10):
    both = zip(neighbours(k1, count), neighbours(k2, count), strict=True)
    return np.mean([len(x & y) / count for x, y in both])


def jaccard(k1, k2, count=10):
    both = zip(neighbours(k1, count), neighbours(k2, count), strict=True)
    return np.mean([len(x & y) / len(x | y) for x, y in both])


def hsic_of_masked(k1, k2):
    """The unbiased HSIC of Song et al. 2012, of matrices that need not be symmetric."""
    n = len(k1)
    a, b = k1 - np.diag(np.diag(k1)), k2 - np.diag(np.diag(k2))
    total = (a * b.T).sum() + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
    return total / (n * (n - 3))


def cknna(k1, k2, count=10):
    """HSIC of cosines between common neighbours, over that of either with itself."""

    def masked(one, other):
        both = zip(neighbours(one, count), neighbours(other, count), strict=True)
        shared = [x & y for x, y in both]
        mask = np.array([[j in row for j in range(len(one))] for row in shared])
        return hsic_of_masked(mask * correlations(one), mask * correlations(other))

    return masked(k1, k2) / np.sqrt(masked(k1, k1) * masked(k2, k2))


def rsa_spearman(k1, k2):
    from scipy.stats import spearmanr

    return spearmanr(distances(k1), distances(k2)).statistic


def rsa_kendall(k1, k2):
    """Concordant less discordant pairs of distances, over those tied in neither (tau-b)."""
    x, y = distances(k1), distances(k2)
    one, two = (np.sign(d[:, None] - d) for d in (x, y))
    return (one * two).sum() / np.sqrt((one**2).sum() * (two**2).sum())


def distance_correlation(k1, k2):
    parts = []
    for k in (k1, k2):
        d = np.sqrt(np.maximum(np.diag(k)[:, None] + np.diag(k) - 2 * k, 0))
        parts.append(d - d.mean(0) - d.mean(1)[:, None] + d.mean())
    a, b = parts
    return np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean()))


def directions(k, share=1.0):
    """Left singular vectors and squared singular values of features whose kernel is k."""
    values, vectors = np.linalg.eigh(k)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = (values > 1e-9 * values[0]).sum()
    if share < 1:
        count = np.searchsorted(np.cumsum(values) / values.sum(), share) + 1
    return vectors[:, :count], values[:count]


def canonical_correlations(k1, k2, share=1.0):
    one, two = (directions(k, share)[0] for k in (k1, k2))
    return np.linalg.svd(one.T @ two, compute_uv=False)


def cca(k1, k2):
    return np.mean(canonical_correlations(k1, k2) ** 2)


def svcca(k1, k2):
    return np.mean(canonical_correlations(k1, k2, 0.99))


def linear_regression(k1, k2):
    """The share of the first features' variance that a linear map of the second explains."""
    basis, _ = directions(k2)
    return np.trace(basis.T @ k1 @ basis) / np.trace(k1)


def procrustes(k1, k2):
    """1 − 2θ/π, with θ the angle between the features once one is rotated onto the other."""
    return 1 - 2 / np.pi * np.arccos(min(1.0, nbs(k1, k2)))
