"""Plain float64 references for adaptation scores, Fisher norms and kernel ridge.

Every number here is computed from full matrices, by the formula, with no regard to cost; nothing
of the library is imported.
"""

import numpy as np


def gram(x):
    x = np.asarray(x, dtype=np.float64)
    return x @ x.T


def kernel(name, f, g):
    kf, kg = gram(f), gram(g)
    return {
        "features": kf,
        "gradients": kg,
        "product": kf * kg,
        "sum": kf / np.trace(kf) + kg / np.trace(kg),
        "elementwise": gram(np.asarray(f, np.float64) * np.asarray(g, np.float64)),
    }[name]


def adaptation(k):
    """‖μ‖, ‖K‖_F/N², √Tr K/N, the two ratios, the log of the first, ‖μ‖²."""
    n = len(k)
    squared = k.sum() / n**2
    mean, frobenius, trace = squared**0.5, np.linalg.norm(k) / n**2, np.trace(k) ** 0.5 / n
    return {
        "mean_embedding": mean,
        "norm_frobenius": frobenius,
        "norm_trace": trace,
        "ratio_frobenius": mean / frobenius,
        "ratio_trace": mean / trace,
        "log_ratio": np.log(mean / frobenius),
        "mean_embedding_squared": squared,
    }


def dispersity(p):
    """‖P‖_* over the largest that n rows of probabilities can have."""
    return np.linalg.svd(p, compute_uv=False).sum() / (len(p) * min(p.shape)) ** 0.5


def mean_gradient(z, beta):
    return np.linalg.norm((softmax(z) - softmax(beta * z)).mean(0))


def fisher_rao(f, g, depth):
    inner = (np.asarray(f, np.float64) * np.asarray(g, np.float64)).sum(1)
    return (depth + 1) * np.mean(inner**2) ** 0.5


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def fisher_of_logistic_regression(x, w, b):
    """E p_c (1 − p_c) x_j², the Fisher information of weight (c, j), averaged over j."""
    p = softmax(x @ w.T + b)
    return np.einsum("nc,nj->cj", p * (1 - p), x**2).mean(1) / len(x)


def ridge(k, targets, alpha, new):  # (n, n), (n, C), α, (m, n) -> (m, C)
    return new @ np.linalg.solve(k + alpha * np.eye(len(k)), targets)


def leave_one_out(k, targets, alpha):
    """Each row predicted by a fit to all other rows, one fit a row."""
    out = np.empty_like(targets)
    for i in range(len(k)):
        rest = np.delete(np.arange(len(k)), i)
        out[i] = ridge(k[np.ix_(rest, rest)], targets[rest], alpha, k[i, rest][None])[0]
    return out


def one_hot(y):
    return (y[:, None] == np.unique(y)).astype(np.float64)


def weighted(a, b):
    """Task2Vec's symmetric distance."""
    u, v = a / (a + b), b / (a + b)
    return 1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v)
