"""Gram matrices inside blocks of samples: all of a batch, of features and gradients, at once.

On a GPU a product for each block is a launch for each block, and reads memory at half its speed.
Here one Triton kernel serves a whole batch: a program takes one block and a share of its columns,
reads each element once and multiplies the tile with its own transpose. The shares are added in a
fixed order, so runs agree bit for bit. Elsewhere `gram` is called for each block.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .packed_kernels import gram

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

# By the bytes of an element: columns that a program reads at a time, its warps and stages, and how
# many programs run on each multiprocessor. The fastest of those tried on an H200.
_TILES = {2: (64, 8, 4, 1), 4: (16, 4, 4, 2)}
_LEAST_SHARE = 1024  # columns that a program must have for another to be worth its start
# Products of float32 as the kernel takes them: factors rounded to eleven bits and sums in float32
# ("tf32"), or three such products for one ("tf32x3"). Narrow layers are cheap as they are.
_SINGLE = "tf32"
_LEAST_SINGLE = 1024
_LARGEST = 128  # samples in a block whose sums fit into registers


if triton is not None:

    @triton.jit
    def _rounded(x):
        """float32 to the nearest eleven bits, which the hardware would cut off instead."""
        bits = x.to(tl.int32, bitcast=True)
        near = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        return tl.where(x == x, near, x)  # NaN stays NaN

    @triton.jit
    def _kernel(
        f_ptr, g_ptr,  # (rows, d), row-major
        out_ptr,  # (parts, kinds, blocks, SIZE, SIZE) float32
        rows, d,
        share,  # columns of a program, a multiple of COLUMNS
        SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        PRECISION: tl.constexpr, ROUND: tl.constexpr,
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
        for at in range(part * share, tl.minimum((part + 1) * share, d), COLUMNS):
            column = at + tl.arange(0, COLUMNS)
            mask = real[:, None] & (column < d)[None, :]
            x = tl.load(x_ptr + start + column[None, :], mask=mask, other=0.0)
            if ROUND:
                x = _rounded(x)
            sums = tl.dot(x, tl.trans(x), sums, input_precision=PRECISION)
        place = (part * tl.num_programs(2) + kind) * tl.num_programs(1) + block
        to = out_ptr + place * SIZE * SIZE + row[:, None] * SIZE + row[None, :]
        tl.store(to, sums, mask=inside[:, None] & inside[None, :])


def grams(
    vectors: Sequence[Tensor],  # one or two tensors (n, d) of one dtype
    spans: Sequence[tuple[int, int]],  # rows [start, stop) of each block
    size: int,  # samples in a full block
) -> Tensor:  # (kinds, blocks, size, size) float32
    """The kernels of the rows inside blocks; those of short blocks end in zeros."""
    if _fits(vectors[0], spans, size):
        return launch(vectors, spans, size, _parts(vectors, len(spans)))
    kernels = [gram(x[start:stop]) for x in vectors for start, stop in spans]
    full = [k if len(k) == size else F.pad(k, 2 * (0, size - len(k))) for k in kernels]
    return torch.stack(full).unflatten(0, (len(vectors), len(spans)))


def launch(
    vectors: Sequence[Tensor], spans: Sequence[tuple[int, int]], size: int, parts: int
) -> Tensor:
    """`grams` by the kernel, with the columns in `parts` or fewer; blocks must follow in a row."""
    x = vectors[0]
    d, wide = x.shape[1], x.element_size()
    columns, warps, stages, _ = _TILES[wide]
    share = triton.cdiv(triton.cdiv(d, parts), columns) * columns
    grid = (triton.cdiv(d, share), len(spans), len(vectors))
    out = torch.empty(grid[0], len(vectors), len(spans), size, size, device=x.device)
    _kernel[grid](
        x, vectors[-1], out, spans[-1][1], d, share,
        SIZE=size, ROWS=max(16, triton.next_power_of_2(size)), COLUMNS=columns,
        PRECISION=_SINGLE, ROUND=wide == 4 and _SINGLE == "tf32",
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out[0] if grid[0] == 1 else out.sum(0)


def _fits(x: Tensor, spans: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether the kernel takes these: all blocks but the last full, on a GPU with such products."""
    if triton is None or not x.is_cuda or size > _LARGEST:
        return False
    least = {torch.float32: _LEAST_SINGLE, torch.bfloat16: 0, torch.float16: 0}.get(x.dtype)
    if least is None or x.shape[1] < least or not x.is_contiguous():
        return False
    if any(span != (i * size, (i + 1) * size) for i, span in enumerate(spans[:-1])):
        return False
    return spans[-1][0] == (len(spans) - 1) * size and _device(x.device)[1] >= 8


def _parts(vectors: Sequence[Tensor], blocks: int) -> int:
    """Into how many shares the columns go, so that programs fill the device once."""
    x, d = vectors[0], vectors[0].shape[1]
    at_once = _TILES[x.element_size()][3] * _device(x.device)[0]
    return max(1, min(at_once // (blocks * len(vectors)), d // _LEAST_SHARE))


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and the first number of the compute capability."""
    about = torch.cuda.get_device_properties(device)
    return about.multi_processor_count, about.major
