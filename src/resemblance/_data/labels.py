"""Labels of samples: found, checked against the classes, turned into one-hot targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._whole_numbers import is_whole
from ..errors import DataError


def as_labels(given: Any) -> np.ndarray:  # -> (n,)
    """Labels as an array of numbers or of names, with none missing.

    >>> as_labels(["cat", "dog"]).tolist()
    ['cat', 'dog']
    """
    try:
        found = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:
        raise DataError("expected one label a sample, found rows of different lengths") from error
    if found.ndim != 1:
        raise DataError(
            f"expected one label a sample, found labels of shape {found.shape}; pass integers or "
            "names, not one-hot rows"
        )
    values = list(given) if isinstance(given, list | tuple) else found.tolist()
    names = [isinstance(value, str) for value in values]
    numbers = found.dtype.kind in "biuf" or all(map(is_whole, values))
    if not (all(names) if any(names) else numbers):
        kinds = sorted({type(value).__name__ for value in values})
        raise DataError(
            f"expected labels that are all numbers or all names, found {', '.join(kinds)}; leave "
            "out samples without a label"
        )
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise DataError(
            "expected a class for each sample, found NaN as a label; leave out samples without one"
        )
    return found


def of_batch(indices: np.ndarray, own: Any, given: np.ndarray | None) -> np.ndarray:  # (n,)
    """The labels of a batch: those given apart, by index, else its own."""
    if given is not None:
        if indices.max() >= len(given):
            raise DataError(
                f"expected one label a sample, found labels of shape {given.shape} and a sample "
                f"{indices.max()}; pass labels in the order of the data"
            )
        return given[indices]
    if own is None:
        raise DataError("found no labels; pass y, or data whose batches are (inputs, labels)")
    labels = as_labels(own)
    if len(labels) != len(indices):
        raise DataError(
            f"expected one label a sample, found {len(labels)} labels for {len(indices)} samples"
        )
    return labels


def classes(labels: np.ndarray, given: Any = None) -> np.ndarray:
    """The sorted classes, of which there are two or more, each with samples."""
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(f"expected samples of two or more classes, found {some(present)} alone")
    wanted = present if given is None else np.unique(np.asarray(given))
    if len(absent := np.setdiff1d(wanted, present)):
        raise DataError(
            f"no sample of class {some(absent)}, which classes= lists: it cannot be learnt; "
            "add samples of it or leave it out"
        )
    if len(surplus := np.setdiff1d(present, wanted)):
        raise DataError(
            f"samples of class {some(surplus)}, which classes= does not list; list it or leave "
            "them out"
        )
    return present


def one_hot(labels: np.ndarray, known: np.ndarray) -> Tensor:  # (n,), (C,) -> (n, C)
    """Rows of float64 with a one at each label's class.

    >>> one_hot(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return torch.from_numpy((labels[:, None] == known).astype(np.float64))


def refuse_unseen(labels: np.ndarray, known: np.ndarray) -> None:
    """An error if a label is none of the classes that were fitted."""
    if len(unseen := np.setdiff1d(labels, known)):
        raise DataError(
            f"label {some(unseen)} was not among the classes of fit ({some(known)}), so it can "
            "never be predicted; fit with samples of it, or leave it out"
        )


def some(values: np.ndarray) -> str:
    """A few labels, for an error message."""
    return ", ".join(str(value) for value in values[:5]) + (", ..." if len(values) > 5 else "")
