"""Closed forms in float64, written plainly and slowly. Nothing here imports the library."""

from __future__ import annotations

import copy

import numpy as np
import torch

# -- features and gradients, one sample at a time, by cutting the network at each layer ----------


def features_and_gradients(model, samples, loss):
    """{layer: (features (N, ...), gradients (N, ...))} in float64, in order of execution.

    `samples` is a list of batches of one sample; loss(logits, sample) is a number.
    """
    model = copy.deepcopy(model).double().eval()
    found = {}
    for sample in samples:
        stages = model.stages(sample)
        value = sample["input_ids"] if isinstance(sample, dict) else sample
        value = value.double() if value.is_floating_point() else value
        for i, (name, stage) in enumerate(stages):
            with torch.no_grad():
                value = stage(value.clone())
            leaf = value.clone().requires_grad_()
            output = leaf
            for _, later in stages[i + 1 :]:
                output = later(output.clone())
            (gradient,) = torch.autograd.grad(loss(output, sample), leaf)
            features, gradients = found.setdefault(name, ([], []))
            features.append(value[0].numpy().copy())
            gradients.append(gradient[0].numpy().copy())
    return {name: (np.stack(f), np.stack(g)) for name, (f, g) in found.items()}


def tempered(beta):
    """E over q ∝ p^β of −log p, class by class, averaged over predictions that are not padding."""

    def loss(logits, sample):
        logits = logits.reshape(-1, logits.shape[-1])
        keep = torch.ones(len(logits))
        if isinstance(sample, dict) and sample["attention_mask"].numel() == len(logits):
            keep = sample["attention_mask"].flatten()
        total = 0.0
        for row in torch.nonzero(keep).flatten():
            p = torch.exp(logits[row]) / torch.exp(logits[row]).sum()
            q = p.detach() ** beta / (p.detach() ** beta).sum()
            total = total - (q * torch.log(p)).sum()
        return total / keep.sum()

    return loss


def at_logits(z, beta):
    """The gradient of the tempered loss at the logits: softmax(z) − softmax(βz)."""

    def softmax(v):
        e = np.exp(v - v.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return softmax(z) - softmax(beta * z)


def at_label_logits(z, beta):
    """The gradient of the tempered loss of independent labels at the logits: σ(z) − σ(βz)."""

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    return sigmoid(z) - sigmoid(beta * z)


def of_labels(one, two):
    """KL(one‖two) and JS of each row of independent labels, from probabilities (n, labels)."""
    kl, js = np.zeros(len(one)), np.zeros(len(one))
    for p, q in ((one, two), (1 - one, 1 - two)):
        m = (p + q) / 2
        kl += (p * np.log(p / q)).sum(1)
        js += (p * np.log(p / m) + q * np.log(q / m)).sum(1) / 2
    return kl, js


# -- kernels, sketches, moments ------------------------------------------------------------------


def kernel(x):
    """K_ij = x_i · x_j."""
    x = np.asarray(x, np.float64).reshape(len(x), -1)
    return np.array([[float(np.dot(a, b)) for b in x] for a in x])


def algorithm_1(x, buckets, signs, count):
    """K̃ of the paper's Algorithm 1: F̃[:, h(n)] += s(n) f_n for each bucket and sign of sample n."""
    x = np.asarray(x, np.float64).reshape(len(x), -1)
    sketch = np.zeros((x.shape[1], count))
    for n in range(len(x)):
        for h, s in zip(np.atleast_1d(buckets[n]), np.atleast_1d(signs[n]), strict=True):
            sketch[:, h] += s * x[n]
    return sketch.T @ sketch


def centred(x):
    """The samples with their mean taken off."""
    x = np.asarray(x, np.float64).reshape(len(x), -1)
    return x - x.mean(0)


def moments(f, g=None, elementwise=False):
    """Every moment of a layer, by loops over samples."""
    f = np.asarray(f, np.float64).reshape(len(f), -1)
    out = {
        "trace_features": sum(float(a @ a) for a in f),
        "mean_features": float(f.mean(0) @ f.mean(0)),
    }
    if g is None:
        return out
    g = np.asarray(g, np.float64).reshape(len(g), -1)
    out |= {
        "trace_gradients": sum(float(b @ b) for b in g),
        "mean_gradients": float(g.mean(0) @ g.mean(0)),
        "product": sum(float(a @ a) * float(b @ b) for a, b in zip(f, g, strict=True)),
        "inner": sum(float(a @ b) for a, b in zip(f, g, strict=True)),
        "inner_squared": sum(float(a @ b) ** 2 for a, b in zip(f, g, strict=True)),
        "inner_fourth": sum(float(a @ b) ** 4 for a, b in zip(f, g, strict=True)),
    }
    if elementwise:
        out["trace_elementwise"] = sum(float((a * b) @ (a * b)) for a, b in zip(f, g, strict=True))
        out["mean_elementwise"] = float((f * g).mean(0) @ (f * g).mean(0))
    return out


def close(found, expected, relative):
    """Whether two kernels agree to `relative` of √(K_ii K_jj), entry by entry."""
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    return bool((np.abs(np.asarray(found) - expected) <= relative * scale + 1e-300).all())


def divergences(log_p, log_q):
    """KL(p‖q), KL(q‖p) and JS of each row (3, n) in float64, of log-probabilities (n, classes)."""
    p, q = (np.asarray(x, np.float64) for x in (log_p, log_q))
    m = np.logaddexp(p, q) - np.log(2)

    def kl(one, two):
        return (np.exp(one) * (one - two)).sum(1)

    return np.stack([kl(p, q), kl(q, p), (kl(p, m) + kl(q, m)) / 2])


def sketched_kl(log_p, log_q, listed, sketch):
    """The estimate of KL(p‖q) of one row, with the classes T that are listed by both.

    Σ_T p (log p − log q) + ⟨S p, S (log p − c_p) − S (log q − c_q)⟩ + (c_p − c_q) Σ p, the last two
    over the other classes, with c the mean over all classes and S a matrix (buckets, classes).
    """
    p, q = (np.maximum(np.asarray(x, np.float64), -60) for x in (log_p, log_q))
    rest = np.ones(len(p), bool)
    rest[listed] = False
    exact = (np.exp(p) * (p - q))[~rest].sum()
    ratio = np.where(rest, (p - p.mean()) - (q - q.mean()), 0)
    inner = (sketch @ np.where(rest, np.exp(p), 0)) @ (sketch @ ratio)
    return exact + inner + (p.mean() - q.mean()) * np.exp(p)[rest].sum()
