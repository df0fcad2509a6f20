"""All pairs of many kernels at once, by every similarity index of the library.

Most indices are inner products of what each kernel can be turned into once: centred kernels,
distances, ranks, masks of neighbours, projections. The others (`nbs`, `procrustes`, `svcca`) are
nuclear norms, which a batched Newton–Schulz iteration finds without singular values. Everything is
in float64. `tests/test_resi.py` compares each with the library's index.

Two things differ from the library, by less than it matters here. Kernels have not been rounded to
16 bits, but directions below that rounding do not count, as there. And `rsa-kendall` is τ-b of a
fixed random subset of the distances.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

NEIGHBOURS = 10
VARIANCE = 0.99  # of SVCCA
KENDALL_DISTANCES = 4096  # at most so many, of N(N − 1)/2
_INT16_ROUND_OFF = 1e-9  # as in the library's `pair_statistics`
_STEPS = 40  # of Newton–Schulz: directions above 1e-6 of the largest have converged


class Kernels:
    """M kernels over the same N samples, and what indices need of them.

    Args:
        square: the kernels (M, N, N), not centred.
        rows: factors (M, N, r) with `square` = rows rowsᵀ, where r < N; None: eigenvalues are
            computed of the kernels themselves.
        centred: whether indices that leave it open centre the kernel, as the library does for
            features alone.
    """

    def __init__(self, square: Tensor, rows: Tensor | None, *, centred: bool) -> None:
        self.square, self.rows, self.centred = square, rows, centred
        self.n = square.shape[-1]

    @cached_property
    def middle(self) -> Tensor:
        """HKH."""
        k = self.square
        k = k - k.mean(-1, keepdim=True)
        return k - k.mean(-2, keepdim=True)

    @cached_property
    def default(self) -> Tensor:
        return self.middle if self.centred else self.square

    @cached_property
    def distances(self) -> Tensor:
        """Squared distances, (M, N, N), with exact zeros on the diagonal."""
        d = self.square.diagonal(dim1=1, dim2=2)
        out = (d[:, :, None] + d[:, None, :] - 2 * self.square).clamp_min(0)
        out.diagonal(dim1=1, dim2=2).zero_()
        return out

    @cached_property
    def cosines(self) -> Tensor:
        scale = self.square.diagonal(dim1=1, dim2=2).clamp_min(0).rsqrt()
        scale = torch.where(scale.isfinite(), scale, 0.0)
        return self.square * scale[:, :, None] * scale[:, None, :]

    @cached_property
    def neighbours(self) -> Tensor:
        """Masks (M, N, N) of each sample's nearest others."""
        others = self.cosines.clone()
        others.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        nearest = others.topk(min(NEIGHBOURS, self.n - 1), dim=2).indices
        return torch.zeros_like(others).scatter_(2, nearest, 1.0)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        i, j = torch.tril_indices(self.n, self.n, -1, device=self.square.device)
        return i, j

    def spectrum(self, centred: bool) -> tuple[Tensor, Tensor]:
        """Eigenvalues (M, r) from the largest on, and eigenvectors (M, N, r); zero if invisible."""
        return self._centred_spectrum if centred else self._plain_spectrum

    @cached_property
    def _centred_spectrum(self) -> tuple[Tensor, Tensor]:
        rows = None if self.rows is None else self.rows - self.rows.mean(1, keepdim=True)
        return _spectrum(self.middle, rows)

    @cached_property
    def _plain_spectrum(self) -> tuple[Tensor, Tensor]:
        if self.centred:
            return self._centred_spectrum
        return _spectrum(self.square, self.rows)


def features_like(x: Tensor, *, centred: bool) -> Kernels:  # (M, N, d)
    """Kernels of vectors."""
    x = x.double()
    return Kernels(x @ x.mT, x if x.shape[2] < x.shape[1] else None, centred=centred)


def product(f: Tensor, g: Tensor) -> Kernels:
    f, g = f.double(), g.double()
    return Kernels((f @ f.mT) * (g @ g.mT), None, centred=False)


def total(f: Tensor, g: Tensor) -> Kernels:
    """K_f / tr K_f + K_g / tr K_g."""
    each = [x.double() / x.double().square().sum((1, 2), keepdim=True).sqrt() for x in (f, g)]
    return features_like(torch.cat(each, 2), centred=False)


# -- eigenvalues --


def visible_from(k: Tensor) -> Tensor:  # (M, N, N) -> (M,)
    """The largest eigenvalue that the rounding of a stored kernel has."""
    n, d = k.shape[-1], k.diagonal(dim1=1, dim2=2)
    pairs = (d.sum(1).square() - d.square().sum(1)) / (n * (n - 1))
    peak = (d.amax(1) / d.mean(1)).clamp_min(1)
    return (0.64 * _INT16_ROUND_OFF * n * pairs * peak).sqrt()


def _spectrum(k: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    values, vectors = eigh(k if rows is None else rows.mT @ rows)
    values, vectors = values.flip(-1), vectors.flip(-1)
    seen = values > torch.maximum(visible_from(k)[:, None], 1e-12 * values[:, :1])
    if rows is not None:
        vectors = rows @ vectors * values.clamp_min(1e-300).rsqrt()[:, None, :]
    rank = max(1, int(seen.sum(1).max()))
    seen, values, vectors = seen[:, :rank], values[:, :rank], vectors[..., :rank]
    return values * seen, torch.where(seen[:, None, :], vectors, 0.0)


_faster: dict[tuple[str, int], str] = {}


def eigh(k: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of many matrices, on the GPU or the CPU: what is faster."""
    if not k.is_cuda:
        return torch.linalg.eigh(k)
    key = ("eigh", k.shape[-1])
    if key not in _faster:
        some = k[: min(len(k), 16)]
        torch.linalg.eigh(some[:1])  # the first call loads a library
        times = {}
        for place, compute in (("gpu", torch.linalg.eigh), ("cpu", _eigh_by_threads)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            compute(some)
            torch.cuda.synchronize()
            times[place] = time.perf_counter() - start
        _faster[key] = min(times, key=times.__getitem__)
        print(f"eigh of {len(some)} matrices of {k.shape[-1]}:", times, flush=True)
    if _faster[key] == "gpu":
        try:
            values, vectors = torch.linalg.eigh(k)
            return values, vectors
        except torch.linalg.LinAlgError as error:
            print(f"eigh on the GPU: {error}; on the CPU instead", flush=True)
    return _eigh_by_threads(k)


def _eigh_by_threads(k: Tensor) -> tuple[Tensor, Tensor]:
    here = k.cpu()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(torch.linalg.eigh, here))
    return (
        torch.stack([x[0] for x in found]).to(k.device),
        torch.stack([x[1] for x in found]).to(k.device),
    )


def nuclear_norms(m: Tensor) -> Tensor:  # (P, r, s) -> (P,)
    """Sums of singular values, as Tr(QᵀM) with the polar factor Q of M.

    Newton–Schulz: X ← 1.5 X − 0.5 X XᵀX raises a singular value by half until it is near one.
    Those below about 1e-7 of the Frobenius norm add less than they should.
    """
    size = m.square().sum((1, 2), keepdim=True).sqrt().clamp_min(1e-300)
    x = m / size
    if x.shape[1] > x.shape[2]:
        x = x.mT
    x = x.contiguous()
    first = x
    for _ in range(_STEPS):
        x = torch.baddbmm(x, x @ x.mT, x, beta=1.5, alpha=-0.5)
    return (x * first).sum((1, 2)) * size[:, 0, 0]


# -- indices: (M, M), with networks explained in rows where they are not symmetric --


def _gram(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x.flatten(1) @ (x if y is None else y).flatten(1).T


def _cosine(x: Tensor) -> Tensor:
    x = x.flatten(1)
    return _gram(x / x.norm(dim=1, keepdim=True))


def cka(k: Kernels) -> Tensor:
    return _cosine(k.default)


def cka_debiased(k: Kernels) -> Tensor:
    """The cosine of U-centred kernels, or of those without their diagonals."""
    n, x = k.n, k.square.clone()
    x.diagonal(dim1=1, dim2=2).zero_()
    if k.centred:
        sums = x.sum(2)
        everything = sums.sum(1)[:, None, None] / ((n - 1) * (n - 2))
        x = x - (sums[:, :, None] + sums[:, None, :]) / (n - 2) + everything
        x.diagonal(dim1=1, dim2=2).zero_()
    return _cosine(x)


def rsa(k: Kernels) -> Tensor:
    i, j = k.pairs
    x = k.distances[:, i, j]
    return _cosine(x - x.mean(1, keepdim=True))


def rsa_spearman(k: Kernels) -> Tensor:
    i, j = k.pairs
    x = mean_ranks(k.distances[:, i, j])
    return _cosine(x - x.mean(1, keepdim=True))


def mean_ranks(x: Tensor) -> Tensor:  # (M, t) -> (M, t)
    """Ranks from 1 on; ties have the mean of theirs."""
    ordered = x.sort(1).values
    below = torch.searchsorted(ordered, x.contiguous())
    upto = torch.searchsorted(ordered, x.contiguous(), right=True)
    return (below + upto + 1).double() / 2


def rsa_kendall(k: Kernels) -> Tensor:
    i, j = k.pairs
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(i), generator=generator)[:KENDALL_DISTANCES].to(i.device)
    x = k.distances[:, i[some], j[some]]
    out = x.new_zeros(len(x), len(x))
    for rows in torch.arange(x.shape[1], device=x.device).split(max(1, 2**22 // x.shape[1])):
        later = torch.arange(x.shape[1], device=x.device) > rows[:, None]
        # sums of −1, 0 and 1 are exact in float32 below 2^24
        signs = (x[:, rows, None] - x[:, None, :]).sign_().to(torch.float32) * later
        out += _gram(signs).double()
    own = out.diagonal().sqrt()
    return out / (own[:, None] * own[None, :])


def distance_correlation(k: Kernels) -> Tensor:
    x = k.distances.sqrt()
    x = x - x.mean(1, keepdim=True)
    return _cosine(x - x.mean(2, keepdim=True)).clamp_min(0).sqrt()


def mutual_knn(k: Kernels) -> Tensor:
    return _gram(k.neighbours) / k.neighbours[0].sum()


def jaccard(k: Kernels) -> Tensor:
    out = []
    for mask in k.neighbours:
        shared = (mask * k.neighbours).sum(2)
        union = mask.sum(1) + k.neighbours.sum(2) - shared
        out.append((shared / union).mean(1))
    return torch.stack(out)


def cknna(k: Kernels) -> Tensor:
    """HSIC of cosines between common neighbours; rows and columns enter differently."""
    near, own = k.neighbours, []
    cross = torch.stack(
        [_masked_hsic(a * near, c, k.cosines) for a, c in zip(near, k.cosines, strict=True)]
    )
    own = torch.cat(
        [_masked_hsic(a[None], c, c[None]) for a, c in zip(near, k.cosines, strict=True)]
    )
    return cross / (own[:, None] * own[None, :]).clamp_min(0).sqrt()


def _masked_hsic(mask: Tensor, one: Tensor, two: Tensor) -> Tensor:  # (M, n, n), (n, n), (M, n, n)
    n = one.shape[-1]
    a, b = mask * one, mask * two
    sums = a.sum((1, 2)) * b.sum((1, 2)) / ((n - 1) * (n - 2))
    edges = (a.sum(1) * b.sum(2)).sum(1)
    return (a * b.mT).sum((1, 2)) + sums - 2 * edges / (n - 2)


def cca(k: Kernels) -> Tensor:
    values, vectors = k.spectrum(centred=True)
    count = (values > 0).sum(1)
    return _gram(vectors @ vectors.mT) / torch.minimum(count[:, None], count[None, :])


def linear_regression(k: Kernels) -> Tensor:
    """The share of the row's variance that the column explains."""
    values, vectors = k.spectrum(centred=True)
    kernels = (vectors * values[:, None, :]) @ vectors.mT
    return _gram(kernels, vectors @ vectors.mT) / values.sum(1)[:, None]


def svcca(k: Kernels) -> Tensor:
    values, vectors = k.spectrum(centred=True)
    least = values.flip(1).cumsum(1).flip(1)  # what is left from here on
    kept = (values > 0) & (least > (1 - VARIANCE) * values.sum(1, keepdim=True))
    rank = int(kept.sum(1).max())
    count = kept.sum(1)
    bases = (vectors * kept[:, None, :])[..., :rank]
    return _nuclear_pairs(bases) / torch.minimum(count[:, None], count[None, :])


def _nuclear_pairs(factors: Tensor) -> Tensor:  # (M, N, r) -> (M, M), symmetric
    m = len(factors)
    out = factors.new_zeros(m, m)
    i, j = torch.triu_indices(m, m, device=factors.device)
    step = max(1, 2**28 // factors.shape[2] ** 2 // 8)
    for a, b in zip(i.split(step), j.split(step), strict=True):
        out[a, b] = nuclear_norms(factors[a].mT @ factors[b])
    return torch.triu(out) + torch.triu(out, 1).T


def nbs(k: Kernels) -> Tensor:
    return _nuclear_cosine(k, centred=False)


def procrustes(k: Kernels) -> Tensor:
    """1 − 2θ/π of the angle θ between centred kernels."""
    return 1 - 2 / math.pi * _nuclear_cosine(k, centred=True).clamp(-1, 1).arccos()


def _nuclear_cosine(k: Kernels, centred: bool) -> Tensor:
    values, vectors = k.spectrum(centred)
    size = values.sum(1).sqrt()
    return _nuclear_pairs(vectors * values.sqrt()[:, None, :]) / (size[:, None] * size[None, :])


def spectral(k: Kernels) -> Tensor:
    return _cosine(k.spectrum(centred=False)[0])


INDICES: dict[str, Callable[[Kernels], Tensor]] = {
    "cka": cka,
    "cka-debiased": cka_debiased,
    "rsa": rsa,
    "rsa-spearman": rsa_spearman,
    "rsa-kendall": rsa_kendall,
    "distance-correlation": distance_correlation,
    "mutual-knn": mutual_knn,
    "cknna": cknna,
    "jaccard": jaccard,
    "cca": cca,
    "linear-regression": linear_regression,
    "svcca": svcca,
    "spectral": spectral,
    "nbs": nbs,
    "procrustes": procrustes,
}
