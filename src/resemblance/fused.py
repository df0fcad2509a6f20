"""The buckets and moments of a layer in one read of its features and gradients, on a GPU.

In plain PyTorch, folding, bucketing, totals and inner products each read the features and the
gradients again. This Triton kernel reads every element once: a program takes a few samples and a
tile of slots, walks through the chunks that fold onto those slots, and adds what it gathered to
the buckets. It computes what `sketch.Fold` and `sketch.add_to_buckets` compute, up to the order of
float32 sums, which differs from run to run (`deterministic=True` takes the plain path).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .sketch import Fold

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

_ROWS, _SLOTS = 4, 256  # samples and slots of one program: the fastest of those tried on an H200


def available(x: Tensor) -> bool:
    """Whether the fused kernel can take this tensor."""
    return triton is not None and x.is_cuda


if triton is not None:

    @triton.jit
    def _kernel(
        f_ptr, g_ptr,  # (n, d) features and gradients, row-major
        sign_ptr,  # (d,) int8 signs along features
        shift_ptr,  # (chunks,) int32
        bucket_ptr, weight_ptr,  # (n, T) int64, float32
        table_f, table_g,  # (M, W) float32
        total_f, total_g,  # (W,) float64
        inner_ptr, norm_f_ptr, norm_g_ptr,  # (n,) float32
        n, d, width, chunks,
        T: tl.constexpr, PAIR: tl.constexpr, EIGHTS: tl.constexpr,
        ROWS: tl.constexpr, SLOTS: tl.constexpr,
    ):  # fmt: skip
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        slots = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
        real = rows < n
        inside = slots < width
        start = rows.to(tl.int64)[:, None] * d
        sum_f = tl.zeros((ROWS, SLOTS), tl.float32)
        sum_g = tl.zeros((ROWS, SLOTS), tl.float32)
        inner = tl.zeros((ROWS, SLOTS), tl.float32)
        norm_f = tl.zeros((ROWS, SLOTS), tl.float32)
        norm_g = tl.zeros((ROWS, SLOTS), tl.float32)
        for chunk in range(chunks):
            shift = tl.load(shift_ptr + chunk)
            turned = slots - shift
            column = chunk * width + tl.where(turned < 0, turned + width, turned)
            if EIGHTS:  # shifts and widths are multiples of eight: so are runs of columns
                column = tl.max_contiguous(tl.multiple_of(column, 8), 8)
            valid = inside & (column < d)
            sign = tl.load(sign_ptr + column, mask=valid, other=0).to(tl.float32)
            mask = real[:, None] & valid[None, :]
            f = tl.load(f_ptr + start + column[None, :], mask=mask, other=0.0).to(tl.float32)
            sum_f += f * sign[None, :]
            norm_f += f * f
            if PAIR:
                g = tl.load(g_ptr + start + column[None, :], mask=mask, other=0.0).to(tl.float32)
                sum_g += g * sign[None, :]
                norm_g += g * g
                inner += f * g
        place = slots[None, :]
        keep = real[:, None] & inside[None, :]
        for t in range(T):
            bucket = tl.load(bucket_ptr + rows * T + t, mask=real, other=0)
            weight = tl.load(weight_ptr + rows * T + t, mask=real, other=0.0)
            at = bucket[:, None] * width + place
            tl.atomic_add(table_f + at, sum_f * weight[:, None], mask=keep, sem="relaxed")
            if PAIR:
                tl.atomic_add(table_g + at, sum_g * weight[:, None], mask=keep, sem="relaxed")
        tl.atomic_add(total_f + slots, tl.sum(sum_f, 0).to(tl.float64), mask=inside, sem="relaxed")
        tl.atomic_add(norm_f_ptr + rows, tl.sum(norm_f, 1), mask=real, sem="relaxed")
        if PAIR:
            tl.atomic_add(
                total_g + slots, tl.sum(sum_g, 0).to(tl.float64), mask=inside, sem="relaxed"
            )
            tl.atomic_add(norm_g_ptr + rows, tl.sum(norm_g, 1), mask=real, sem="relaxed")
            tl.atomic_add(inner_ptr + rows, tl.sum(inner, 1), mask=real, sem="relaxed")


def sketch(
    features: Tensor,  # (n, d)
    gradients: Tensor | None,
    fold: Fold,
    buckets: Tensor,  # (n, t) int64
    signs: Tensor,  # (n, t) float32
    tables: Sequence[Tensor],  # (M, width) float32, for features and gradients; added to
    totals: Sequence[Tensor],  # (width,) float64, likewise
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a batch to buckets and totals; returns ‖f‖², ‖g‖² and ⟨f, g⟩ of each sample."""
    n, d = features.shape
    pair = gradients is not None
    norm_f, norm_g, inner = torch.zeros(3, n, device=features.device)
    grid = (triton.cdiv(fold.width, _SLOTS), triton.cdiv(n, _ROWS))
    f = features.contiguous()
    g = f if gradients is None else gradients.to(f.dtype).contiguous()
    _kernel[grid](
        f, g, *fold.packed(),
        buckets, signs, tables[0], tables[-1], totals[0], totals[-1], inner, norm_f, norm_g,
        n, d, fold.width, len(fold.shifts),
        T=buckets.shape[1], PAIR=pair, EIGHTS=fold.width % 8 == 0,
        ROWS=_ROWS, SLOTS=_SLOTS, num_warps=4,
    )  # fmt: skip
    return norm_f, norm_g, inner
