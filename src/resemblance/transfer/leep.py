"""LEEP and NCE: how well a network's predictions over its own classes predict new labels."""

from __future__ import annotations

from typing import Any

import torch

from ..analysis.kernel_ridge import encode_labels


def leep(probabilities: Any, labels: Any) -> float:
    """The mean log likelihood of labels, predicted from the network's own classes z.

    p(y | z) is the empirical conditional under p(y, z) = (1/n) Σ_i 1[yᵢ = y] pᵢ(z), and the score
    is (1/n) Σ_i log Σ_z p(yᵢ | z) pᵢ(z). Larger is better, at most 0.

    Args:
        probabilities: (n, Z), the softmax of the network's outputs.
        labels: (n,) of any classes.

    Bias: upwards, as p(y | z) has seen the labels it is scored on, the more the larger Z is next to
    n. Cost: O(n Z + n C Z). Reference: Nguyen et al. 2020, arXiv 2002.12462.

    >>> leep(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), ["cat", "dog"])
    0.0
    """
    p = torch.as_tensor(probabilities).double()
    numbers, classes = encode_labels(labels, len(p))
    joint = torch.zeros(classes, p.shape[1], dtype=p.dtype).index_add_(0, numbers, p) / len(p)
    conditional = joint / joint.sum(0).clamp_min(1e-300)  # (C, Z)
    likely = (p * conditional[numbers]).sum(1)
    return float(likely.clamp_min(1e-300).log().mean()) + 0.0


def nce(probabilities: Any, labels: Any) -> float:
    """−H(Y | Z), where Z is the class that the network thinks likeliest.

    Σ_yz p(y, z) log p(y | z) over the counts of pairs. Larger is better, at most 0.

    Args:
        probabilities: (n, Z), the softmax of the network's outputs, or its logits.
        labels: (n,) of any classes.

    Bias: upwards, as for `leep`. Cost: O(n Z). Reference: Tran et al. 2019, arXiv 1908.08142.

    >>> round(nce(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), [0, 1]), 6)  # one class for two: −log 2
    -0.693147
    """
    p = torch.as_tensor(probabilities).double()
    numbers, classes = encode_labels(labels, len(p))
    pairs = torch.zeros(classes, p.shape[1], dtype=torch.float64)
    pairs.index_put_(
        (numbers, p.argmax(1)), torch.ones(len(p), dtype=torch.float64), accumulate=True
    )
    conditional = pairs / pairs.sum(0).clamp_min(1)
    return float(torch.special.xlogy(pairs, conditional).sum()) / len(p) + 0.0
