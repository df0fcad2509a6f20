"""Rows that come a few at a time."""

from __future__ import annotations

import torch

from resemblance.recording.growing_rows import Rows


def test_rows_come_out_as_they_came():
    rows = Rows()
    parts = [torch.randn(n, 3) for n in (1, 0, 4, 9, 2)]
    for part in parts:
        rows.append(part)
    assert len(rows) == 16
    assert torch.equal(rows.whole(), torch.cat(parts))
