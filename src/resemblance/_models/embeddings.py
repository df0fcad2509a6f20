"""Which of a network's outputs is an embedding: one vector for each sample.

Outputs are taken for embeddings where they are no predictions: with `logits="none"`, or where all
vectors have length one. Hidden states of a sequence become one vector by the option `pool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .layer_outputs import Pool, tensor_at, why_unreadable
from .logits import UNIT_TOLERANCE, LogitsReader

_NAMES = ("sentence_embedding", "embeddings", "text_embeds", "image_embeds")
_HIDDEN = "last_hidden_state"
SEQUENCE_POOLS = ("mean", "first", "last")  # that make one vector of a sequence
_MIN_DIMENSIONS = 3  # of vectors whose length shows that they are embeddings


@dataclass(frozen=True)
class EmbeddingsReader:
    """Reads one vector, or the hidden states of one sequence, for each sample off the outputs."""

    def __call__(self, outputs: Any) -> Tensor:  # (n, 1, d), or (n, 1, positions, d)
        found = find_embedding(outputs)
        assert found is not None  # as in the trial
        return found[:, None]


def find_embeddings_reader(
    logits: LogitsReader, outputs: Any, samples: int, pool: Pool
) -> EmbeddingsReader | None:
    """What reads embeddings off the outputs of a trial; None if they are none.

    Args:
        logits: the option `logits`, which must not be that of predictions.
        outputs: what the model returned.
        samples: for how many samples.
        pool: how a layer's output becomes a vector.
    """
    x = find_embedding(outputs)
    if x is None or why_unreadable(x) or len(x) != samples or logits.option not in ("auto", "none"):
        return None
    flat, pooled = x.ndim == 2, x.ndim == 3 and pool in SEQUENCE_POOLS
    if logits.option == "auto":
        lengths = torch.linalg.vector_norm(x.detach().double(), dim=-1)
        unit = bool(((lengths - 1).abs() < UNIT_TOLERANCE).all())
        return EmbeddingsReader() if flat and x.shape[1] >= _MIN_DIMENSIONS and unit else None
    return EmbeddingsReader() if pooled or (flat and x.shape[1] > 1) else None


def find_embedding(outputs: Any) -> Tensor | None:
    """A tensor itself, an output named as an embedding, hidden states, or the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        named = [outputs[name] for name in _NAMES if isinstance(outputs.get(name), Tensor)]
        if len(named) > 1:  # as of a model of images and texts
            return None
        hidden = outputs.get(_HIDDEN)
        return named[0] if named else hidden if isinstance(hidden, Tensor) else None
    return tensor_at(outputs) if isinstance(outputs, tuple | list) else None
