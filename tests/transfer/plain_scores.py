"""Plain float64 forms of the scores, by their formulas, with none of the package's code."""

import numpy as np


def classes_of(y):
    return [np.asarray(y) == c for c in np.unique(y)]


def log_evidence(f, t, alpha, beta):
    """log p(t | F, α, β): a normal of covariance I/β + FFᵀ/α."""
    n = len(f)
    covariance = np.eye(n) / beta + f @ f.T / alpha
    sign, size = np.linalg.slogdet(covariance)
    assert sign > 0
    return -(n * np.log(2 * np.pi) + size + t @ np.linalg.solve(covariance, t)) / 2


def log_me(f, y):
    """By the authors' fixed point of α and β, from 1 and 1."""
    n, d = f.shape
    out = []
    for mask in classes_of(y):
        t, a, b = mask.astype(float), 1.0, 1.0
        for _ in range(20_000):
            inverse = np.linalg.inv(a * np.eye(d) + b * f.T @ f)
            m = b * inverse @ f.T @ t
            gamma = d - a * np.trace(inverse)
            new = gamma / (m @ m), (n - gamma) / ((f @ m - t) @ (f @ m - t))
            done = abs(np.log(new[0] / a)) + abs(np.log(new[1] / b)) < 1e-12
            a, b = new
            if done:
                break
        out.append(log_evidence(f, t, a, b))
    return np.mean(out) / n


def h_score(f, y, least=1e-3):
    f = f - f.mean(0)
    means = np.zeros_like(f)
    for mask in classes_of(y):
        means[mask] = f[mask].mean(0)
    inverse = np.linalg.pinv(f.T @ f / len(f), rcond=least, hermitian=True)
    return np.trace(inverse @ (means.T @ means / len(f)))


def shrunk_h_score(f, y, share):
    f = f - f.mean(0)
    n, d = f.shape
    means = np.zeros_like(f)
    for mask in classes_of(y):
        means[mask] = f[mask].mean(0)
    covariance = f.T @ f / n
    shrunk = (1 - share) * covariance + share * np.trace(covariance) / d * np.eye(d)
    return (1 - share) * np.trace(np.linalg.solve(shrunk, means.T @ means / n))


def coding_rate(f, eps):
    n, d = f.shape
    return np.linalg.slogdet(np.eye(d) + f.T @ f / (n * eps))[1] / 2


def trans_rate(f, y, eps, scaled):
    f = f - f.mean(0)
    if scaled:
        f = f / np.sqrt((f**2).sum(1).mean())
    parts = [coding_rate(f[mask], eps) * mask.sum() / len(f) for mask in classes_of(y)]
    return coding_rate(f, eps) - sum(parts)


def leep(p, y):
    n, z = p.shape
    total = 0.0
    for i in range(n):
        likely = 0.0
        for k in range(z):
            joint = sum(p[j, k] for j in range(n) if y[j] == y[i]) / n
            likely += joint / (sum(p[j, k] for j in range(n)) / n) * p[i, k]
        total += np.log(likely)
    return total / n


def nce(p, y):
    top, n = p.argmax(1), len(y)
    total = 0.0
    for i in range(n):
        same = [j for j in range(n) if top[j] == top[i]]
        total += np.log(sum(y[j] == y[i] for j in same) / len(same))
    return total / n


def ridge(f, y):
    """Each sample by a fit to all others, at the ridge of least squared error: n fits a ridge."""
    n, kernel = len(f), f @ f.T
    t = np.stack(classes_of(y), 1).astype(float)
    tried = []
    for alpha in 10.0 ** np.linspace(-5, 3, 17) * np.trace(kernel) / n:
        out = np.zeros_like(t)
        for i in range(n):
            rest = np.arange(n) != i
            inner = kernel[np.ix_(rest, rest)] + alpha * np.eye(n - 1)
            out[i] = kernel[i, rest] @ np.linalg.solve(inner, t[rest])
        tried.append((((out - t) ** 2).sum(), (out.argmax(1) == t.argmax(1)).mean()))
    return min(tried)[1]
