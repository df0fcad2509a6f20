"""Gram matrices inside blocks: all blocks of a batch, of features and gradients, in one kernel.

On a GPU, one product per block means one launch per block and half the memory bandwidth. Here one
Triton kernel serves the whole batch: a program takes one block and a share of its columns, reads
each element once and multiplies the tile by its own transpose, after subtracting a vector from the
block where asked to. The shares are summed in a fixed order, so runs agree bit for bit. Elsewhere
`gram` is called for each block.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

# By the bytes of an element: columns that a program reads at a time, its warps and stages, and how
# many programs run on each multiprocessor. The fastest of those tried on an H200.
_TILES = {2: (64, 8, 4, 1), 4: (16, 4, 4, 2)}
_MIN_SHARE = 1024  # columns that a program must have for another to be worth its start
# Products of float32 as the kernel takes them: factors rounded to eleven bits and sums in float32
# ("tf32"), or three such products for one ("tf32x3"). Narrow layers are cheap as they are.
_FLOAT32_PRECISION = "tf32"
_MIN_FLOAT32_COLUMNS = 1024
_MAX_BLOCK = 128  # samples in a block whose sums fit into registers
_ROWS_FOR_MEAN = 8  # rows of a block: theirs is off that of all by an eighth of the variance


# torch can sum half-precision products in float32 and keep the sum so, from 2.8 on
_WIDE_PRODUCTS = tuple(int(v) for v in torch.__version__.split(".")[:2]) >= (2, 8)


if triton is not None:

    @triton.jit
    def _round_to_tf32(x):
        """float32 to the nearest eleven bits, which the hardware would cut off instead."""
        bits = x.to(tl.int32, bitcast=True)
        near = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        return tl.where(x == x, near, x)  # NaN stays NaN

    @triton.jit
    def _gram_kernel(
        f_ptr, g_ptr,  # (rows, d), row-major
        taken_ptr,  # (blocks, d), the vector m that is taken off, where LESS
        out_ptr,  # (parts, kinds, blocks, SIZE, SIZE) float32
        along_ptr,  # (parts, kinds, blocks, SIZE), x·m − ½‖m‖², where LESS
        rows, d,
        share,  # columns of a program, a multiple of COLUMNS
        SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        PRECISION: tl.constexpr, ROUND: tl.constexpr, LESS: tl.constexpr,
    ):  # fmt: skip
        part, block, kind = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        x_ptr = f_ptr
        if kind == 1:
            x_ptr = g_ptr
        row = tl.arange(0, ROWS)
        inside = row < SIZE
        real = inside & (block * SIZE + row < rows)
        start = (block * SIZE + row).to(tl.int64)[:, None] * d
        sums = tl.zeros((ROWS, ROWS), tl.float32)
        along = tl.zeros((ROWS,), tl.float32)
        for at in range(part * share, tl.minimum((part + 1) * share, d), COLUMNS):
            column = at + tl.arange(0, COLUMNS)
            mask = real[:, None] & (column < d)[None, :]
            x = tl.load(x_ptr + start + column[None, :], mask=mask, other=0.0)
            if LESS:
                m = tl.load(taken_ptr + block.to(tl.int64) * d + column, column < d, 0.0)[None, :]
                along += tl.sum((x - m / 2) * m, 1)
                x = tl.where(mask, x - m, 0.0)
            if ROUND:
                x = _round_to_tf32(x)
            sums = tl.dot(x, tl.trans(x), sums, input_precision=PRECISION)
        place = (part * tl.num_programs(2) + kind) * tl.num_programs(1) + block
        to = out_ptr + place * SIZE * SIZE + row[:, None] * SIZE + row[None, :]
        tl.store(to, sums, mask=inside[:, None] & inside[None, :])
        if LESS:
            tl.store(along_ptr + place * SIZE + row, tl.where(real, along, 0.0), mask=inside)


def gram(x: Tensor) -> Tensor:  # (n, d) -> (n, n)
    """The kernel of the rows of x, in float32 whatever the dtype of x.

    On a GPU, half-precision rows are multiplied as they are: their products are exact in float32,
    in which they are summed. On a CPU, of a large kernel only what lies on one side of the
    diagonal is computed, but for squares of fewer than 64 rows upon it.
    """
    if x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and _WIDE_PRODUCTS:
        return torch.mm(x, x.T, out_dtype=torch.float32)
    x = x.detach().float()
    if x.is_cuda or x.shape[1] < 2048:  # more products take longer to begin than they save
        return x @ x.T
    out = x.new_empty(len(x), len(x))
    _write_gram(x, out)
    return out


def _write_gram(x: Tensor, out: Tensor) -> None:  # (n, d), (n, n)
    """The kernel of each half of the rows, and what lies between them."""
    if len(x) < 64:
        torch.mm(x, x.T, out=out)
        return
    half = len(x) // 2
    torch.mm(x[half:], x[:half].T, out=out[half:, :half])
    out[:half, half:] = out[half:, :half].T
    _write_gram(x[:half], out[:half, :half])
    _write_gram(x[half:], out[half:, half:])


def block_grams(
    vectors: Sequence[Tensor],  # one or two tensors (n, d) of one dtype
    spans: Sequence[tuple[int, int]],  # rows [start, stop) of each block
    size: int,  # samples in a full block
) -> Tensor:  # (kinds, blocks, size, size) float32
    """The kernels of the rows inside blocks; those of short blocks end in zeros."""
    if _kernel_applies(vectors[0], spans, size):
        return launch_gram_kernel(vectors, spans, size, _column_parts(vectors, len(spans)))[0]
    kernels = [gram(x[start:stop]) for x in vectors for start, stop in spans]
    full = [k if len(k) == size else F.pad(k, 2 * (0, size - len(k))) for k in kernels]
    return torch.stack(full).unflatten(0, (len(vectors), len(spans)))


def block_grams_without_mean(
    x: Tensor, spans: Sequence[tuple[int, int]], size: int
) -> tuple[Tensor, Tensor]:  # (n, d) -> (blocks, size, size), (blocks, size) float32
    """Kernels L of x − m, m near the mean of its block, and u_i = x_i·m − ½‖m‖².

    K_ij = L_ij + u_i + u_j whatever m is.
    """
    near = _approximate_means(x, spans, size)
    if _kernel_applies(x, spans, size):
        parts = _column_parts([x], len(spans))
        grams, along = launch_gram_kernel([x], spans, size, parts, near)
        return grams[0], along[0]
    kernels, offset = [], []
    for (start, stop), m in zip(spans, near, strict=True):
        rest = x[start:stop] - m
        kernels.append(block_grams([rest], [(0, len(rest))], size)[0, 0])
        offset.append(F.pad(rest @ m + m @ m / 2, (0, size - len(rest))))
    return torch.stack(kernels), torch.stack(offset)


def _approximate_means(
    x: Tensor, spans: Sequence[tuple[int, int]], size: int
) -> Tensor:  # (blocks, d)
    """The mean of some rows of each block, evenly spaced: to read all would take as long again."""
    step = max(1, size // _ROWS_FOR_MEAN)
    if all(span == (i * size, (i + 1) * size) for i, span in enumerate(spans)):
        return x[: len(spans) * size].unflatten(0, (-1, size))[:, ::step].mean(1)
    return torch.stack([x[start:stop:step].mean(0) for start, stop in spans])


def launch_gram_kernel(
    vectors: Sequence[Tensor],
    spans: Sequence[tuple[int, int]],  # of adjacent blocks
    size: int,
    parts: int,  # into which the columns are cut, at the most
    taken: Tensor | None = None,  # (blocks, d), a vector m to subtract from each block
) -> tuple[Tensor, Tensor]:
    """`block_grams` by the kernel and, with `taken`, x·m − ½‖m‖² (kinds, blocks, size)."""
    x = vectors[0]
    d, wide = x.shape[1], x.element_size()
    columns, warps, stages, _ = _TILES[wide]
    share = triton.cdiv(triton.cdiv(d, parts), columns) * columns
    grid = (triton.cdiv(d, share), len(spans), len(vectors))
    out = torch.empty(
        grid[0], len(vectors), len(spans), size, size, dtype=torch.float32, device=x.device
    )
    along = out if taken is None else out.new_empty(out.shape[:-1])
    _gram_kernel[grid](
        x, vectors[-1], x if taken is None else taken, out, along, spans[-1][1], d, share,
        SIZE=size, ROWS=max(16, triton.next_power_of_2(size)), COLUMNS=columns,
        PRECISION=_FLOAT32_PRECISION, ROUND=wide == 4 and _FLOAT32_PRECISION == "tf32",
        LESS=taken is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if grid[0] == 1:
        return out[0], along[0]
    return out.sum(0), along if taken is None else along.sum(0)


def _kernel_applies(x: Tensor, spans: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether the kernel takes these: all blocks but the last full, on a GPU with such products."""
    if triton is None or not x.is_cuda or size > _MAX_BLOCK:
        return False
    least = {torch.float32: _MIN_FLOAT32_COLUMNS, torch.bfloat16: 0, torch.float16: 0}.get(x.dtype)
    if least is None or x.shape[1] < least or not x.is_contiguous():
        return False
    if any(span != (i * size, (i + 1) * size) for i, span in enumerate(spans[:-1])):
        return False
    return spans[-1][0] == (len(spans) - 1) * size and _gpu_properties(x.device)[1] >= 8


def _column_parts(vectors: Sequence[Tensor], blocks: int) -> int:
    """Into how many shares the columns go, so that programs fill the device once."""
    x, d = vectors[0], vectors[0].shape[1]
    at_once = _TILES[x.element_size()][3] * _gpu_properties(x.device)[0]
    return max(1, min(at_once // (blocks * len(vectors)), d // _MIN_SHARE))


@functools.cache
def _gpu_properties(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and the first number of the compute capability."""
    about = torch.cuda.get_device_properties(device)
    return about.multi_processor_count, about.major
