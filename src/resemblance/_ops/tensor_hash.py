"""Order-independent sums of mixed 64-bit words, the basis of hashes of weights and samples.

Each word is mixed with its position (SplitMix64) and the results are added modulo 2⁶⁴, so the order
of the additions does not matter and every device gives the same hash. On a GPU one Triton kernel
reads each word once, where plain PyTorch would pass over all of them a dozen times.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

_WORDS_PER_PROGRAM, _ROW_TILE = (
    4096,
    (4, 256),
)  # words of a program; rows and words of each at a time
# of SplitMix64, as int64
_GOLDEN, _FIRST, _SECOND = (
    x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


if triton is not None:

    @triton.jit
    def _splitmix64_triton(x, FIRST: tl.constexpr, SECOND: tl.constexpr):
        x = x.to(tl.uint64, bitcast=True)  # whose shifts bring in zeros
        x = (x ^ (x >> 30)) * tl.full((), FIRST, tl.int64).to(tl.uint64, bitcast=True)
        x = (x ^ (x >> 27)) * tl.full((), SECOND, tl.int64).to(tl.uint64, bitcast=True)
        return (x ^ (x >> 31)).to(tl.int64, bitcast=True)

    @triton.jit
    def _hash_kernel(words_ptr, out_ptr, count, place, GOLDEN: tl.constexpr, FIRST: tl.constexpr,
                SECOND: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        there = at < count
        x = tl.load(words_ptr + at, mask=there, other=0) + (at + place) * GOLDEN
        x = _splitmix64_triton(x, FIRST, SECOND)
        tl.atomic_add(out_ptr, tl.sum(tl.where(there, x, 0), 0), sem="relaxed")

    @triton.jit
    def _row_hash_kernel(words_ptr, keys_ptr, out_ptr, rows, width, FIRST: tl.constexpr,
                    SECOND: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        total = tl.zeros((ROWS,), tl.int64)
        for start in range(0, width, SIZE):
            at = start + tl.arange(0, SIZE)
            there = (row < rows)[:, None] & (at < width)[None, :]
            x = tl.load(words_ptr + row[:, None] * width + at[None, :], mask=there, other=0)
            key = tl.load(keys_ptr + at, mask=at < width, other=0)[None, :]
            x = _splitmix64_triton(x ^ key, FIRST, SECOND) - _splitmix64_triton(key, FIRST, SECOND)
            total += tl.sum(tl.where(there, x, 0), 1)
        tl.store(out_ptr + row, total, mask=row < rows)


def hash_sum(words: Tensor, place: int) -> Tensor:  # (n,) int64 -> ()
    """Σ of each word and its place, counted from `place`, through the finaliser of SplitMix64.

    That is a bijection for each place (Steele, Lea, Flood 2014), so that one changed word always
    changes the sum.
    """
    if triton is not None and words.is_cuda:
        with torch.cuda.device_of(words):
            return launch_hash_kernel(words, place)
    places = torch.arange(place, place + len(words), device=words.device)
    return _splitmix64_inplace(words + places.mul_(_GOLDEN)).sum()


def hash_row_sums(words: Tensor, keys: Tensor) -> Tensor:  # (n, w), (w,) int64 -> (n,)
    """Σ_j mix(word_j ^ key_j) − mix(key_j) of each row, by that finaliser: zeros add nothing."""
    if triton is not None and words.is_cuda:
        with torch.cuda.device_of(words):
            return launch_row_hash_kernel(words, keys)
    return _splitmix64_inplace(words ^ keys).sum(1) - _splitmix64_inplace(keys.clone()).sum()


def launch_hash_kernel(words: Tensor, place: int) -> Tensor:
    """The same as `hash_sum` by the kernel."""
    out = torch.zeros((), dtype=torch.int64, device=words.device)
    grid = (triton.cdiv(len(words), _WORDS_PER_PROGRAM),)
    _hash_kernel[grid](words, out, len(words), place, _GOLDEN, _FIRST, _SECOND, _WORDS_PER_PROGRAM)
    return out


def launch_row_hash_kernel(words: Tensor, keys: Tensor) -> Tensor:
    """The same as `hash_row_sums` by the kernel."""
    words, (rows, width), (each, size) = words.contiguous(), words.shape, _ROW_TILE
    out = torch.empty(rows, dtype=torch.int64, device=words.device)
    grid = (triton.cdiv(rows, each),)
    _row_hash_kernel[grid](words, keys, out, rows, width, _FIRST, _SECOND, each, size)
    return out


def _splitmix64_inplace(x: Tensor) -> Tensor:
    """In place."""
    x = x.bitwise_xor_(_logical_right_shift(x, 30)).mul_(_FIRST)
    x = x.bitwise_xor_(_logical_right_shift(x, 27)).mul_(_SECOND)
    return x.bitwise_xor_(_logical_right_shift(x, 31))


def _logical_right_shift(words: Tensor, by: int) -> Tensor:
    """To the right with zeros coming in, where int64 brings in the sign."""
    return (words >> by).bitwise_and_(2 ** (64 - by) - 1)
