"""Fused Triton kernel: a layer's buckets and moments in one read of features and gradients.

In plain PyTorch, folding, bucketing, totals and inner products each read the features and the
gradients again. This kernel reads every element once: a program takes a few samples and a tile of
slots, loops over the chunks that fold onto those slots, and adds the result to the buckets. It
computes what `Fold` and `add_to_buckets` compute, up to the order of float32 sums, which differs
from run to run (`deterministic=True` selects the plain implementation).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .fold import Fold

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

# samples, slots and warps of a program: the fastest of those tried on an H200
_ROWS, _SLOTS, _WARPS = 4, 512, 2
_FEATURES_PER_READ = 8192  # features, where there are no buckets to fold onto


def can_fuse(x: Tensor) -> bool:
    """Whether the fused kernel can take this tensor."""
    return triton is not None and x.is_cuda


if triton is not None:

    @triton.jit
    def _sketch_kernel(
        f_ptr, g_ptr,  # (n, d) features and gradients, row-major
        sign_ptr,  # (d,) int8 signs along features
        shift_ptr,  # (chunks, 2) int32
        bucket_ptr, weight_ptr,  # (n, T) int64, float32
        table_f, table_g,  # (M, W) float32
        total_f, total_g,  # (W,) float64
        inner_ptr, norm_f_ptr, norm_g_ptr,  # (n,) float32
        n, d, rows_of, length, run, chunks,  # an image of rows × length is folded to rows × run
        T: tl.constexpr, PAIR: tl.constexpr, LAST: tl.constexpr, EIGHTS: tl.constexpr,
        ROWS: tl.constexpr, SLOTS: tl.constexpr,
    ):  # fmt: skip
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        slots = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
        real = rows < n
        width = rows_of * run
        inside = slots < width
        down = slots // rows_of if LAST else slots // run  # of a slot, the place in its run
        along = slots % rows_of if LAST else slots % run
        start = rows.to(tl.int64)[:, None] * d
        sum_f = tl.zeros((ROWS, SLOTS), tl.float32)
        sum_g = tl.zeros((ROWS, SLOTS), tl.float32)
        inner = tl.zeros((ROWS, SLOTS), tl.float32)
        norm_f = tl.zeros((ROWS, SLOTS), tl.float32)
        norm_g = tl.zeros((ROWS, SLOTS), tl.float32)
        for chunk in range(chunks):
            row = along if LAST else down
            place = down if LAST else along
            if T > 0:
                row -= tl.load(shift_ptr + 2 * chunk)
                row = tl.where(row < 0, row + rows_of, row)
                place -= tl.load(shift_ptr + 2 * chunk + 1)
                place = tl.where(place < 0, place + run, place)
            place += chunk * run
            column = place * rows_of + row if LAST else row * length + place
            if EIGHTS:  # shifts and sizes are multiples of eight: so are runs of columns
                column = tl.max_contiguous(tl.multiple_of(column, 8), 8)
            valid = inside & (place < length)
            mask = real[:, None] & valid[None, :]
            f = tl.load(f_ptr + start + column[None, :], mask=mask, other=0.0).to(tl.float32)
            g = f
            norm_f += f * f
            if PAIR:
                g = tl.load(g_ptr + start + column[None, :], mask=mask, other=0.0).to(tl.float32)
                norm_g += g * g
                inner += f * g
            if T > 0:
                sign = tl.load(sign_ptr + column, mask=valid, other=0).to(tl.float32)
                sum_f += f * sign[None, :]
                if PAIR:
                    sum_g += g * sign[None, :]
        to = slots[None, :]
        keep = real[:, None] & inside[None, :]
        for t in tl.static_range(T):
            bucket = tl.load(bucket_ptr + rows * T + t, mask=real, other=0)
            weight = tl.load(weight_ptr + rows * T + t, mask=real, other=0.0)
            at = bucket[:, None] * width + to
            tl.atomic_add(table_f + at, sum_f * weight[:, None], mask=keep, sem="relaxed")
            if PAIR:
                tl.atomic_add(table_g + at, sum_g * weight[:, None], mask=keep, sem="relaxed")
        if T > 0:
            total = tl.sum(sum_f, 0).to(tl.float64)
            tl.atomic_add(total_f + slots, total, mask=inside, sem="relaxed")
            if PAIR:
                total = tl.sum(sum_g, 0).to(tl.float64)
                tl.atomic_add(total_g + slots, total, mask=inside, sem="relaxed")
        tl.atomic_add(norm_f_ptr + rows, tl.sum(norm_f, 1), mask=real, sem="relaxed")
        if PAIR:
            tl.atomic_add(norm_g_ptr + rows, tl.sum(norm_g, 1), mask=real, sem="relaxed")
            tl.atomic_add(inner_ptr + rows, tl.sum(inner, 1), mask=real, sem="relaxed")


def sketch_batch(
    features: Tensor,  # (n, d), contiguous
    gradients: Tensor | None,  # likewise, and of the same dtype
    fold: Fold | None,  # None without buckets
    buckets: tuple[Tensor, Tensor] | None,  # bucket (int64) and sign (float32) of each, (n, t)
    tables: Sequence[tuple[Tensor, Tensor]],  # (M, width) float32 and (width,) float64; added to
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a batch to buckets and totals, if any; returns ‖f‖², ‖g‖² and ⟨f, g⟩ of each sample."""
    n, d = features.shape
    norm_f, norm_g, inner = torch.zeros(3, n, dtype=torch.float32, device=features.device)
    rows, length, run, last = 1, d, min(d, _FEATURES_PER_READ), False
    if fold is not None:
        rows, length, run, last = fold.rows, fold.length, fold.run, fold.channels_last
    grid = (-(-rows * run // _SLOTS), -(-n // _ROWS))
    eights = rows % 8 == 0 if last else run % 8 == 0 and (rows == 1 or length % 8 == 0)
    h, s = buckets if buckets is not None else (inner, inner)  # not read
    signs, shifts = fold.packed if fold is not None else (inner, inner)
    (table_f, total_f), (table_g, total_g) = (*tables, *tables, *[(inner, inner)] * 2)[:2]
    _sketch_kernel[grid](
        features, features if gradients is None else gradients, signs, shifts, h, s,
        table_f, table_g, total_f, total_g, inner, norm_f, norm_g,
        n, d, rows, length, run, -(-length // run),
        T=0 if buckets is None else h.shape[1], PAIR=gradients is not None, LAST=last,
        EIGHTS=eights, ROWS=_ROWS, SLOTS=_SLOTS, num_warps=_WARPS,
    )  # fmt: skip
    return norm_f, norm_g, inner
