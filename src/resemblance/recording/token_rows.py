"""Which tokens the rows of kept blocks are: collected window by window while a pass runs."""

from __future__ import annotations

import numpy as np
import torch

from ..representation.representation import TokenRows


class RowsOfBlocks:
    """Sequences and positions of the tokens in blocks: `add` parts of a window, and `end` it."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._open: list[tuple[np.ndarray, np.ndarray]] = []
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []  # (tokens, block) each

    def add(self, indices: np.ndarray, positions: np.ndarray) -> None:  # (n,), (n, tokens)
        """Sequences of the open window, with the tokens drawn from each."""
        self._open.append((indices, positions))

    def end(self) -> None:
        """The window is whole."""
        parts, self._open = self._open, []
        sequence = np.concatenate([indices for indices, _ in parts])
        position = np.concatenate([positions for _, positions in parts]).T
        width = ((0, 0), (0, self._block - len(sequence)))
        every = np.broadcast_to(sequence, position.shape)
        self._rows.append(
            (np.pad(every, width, constant_values=-1), np.pad(position, width, constant_values=-1))
        )

    def result(self) -> TokenRows | None:
        """All of them; None if nothing came."""
        if not self._rows:
            return None
        both = (np.concatenate(parts).astype(np.int64) for parts in zip(*self._rows, strict=True))
        sequence, position = map(torch.from_numpy, both)
        return TokenRows(sequence, position)
