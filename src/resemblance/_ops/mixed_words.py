"""A sum of 64-bit words, each mixed with its place: what a hash of many bytes is made of.

Modulo 2⁶⁴ it does not matter in which order words are added, so every device gives the same. On a
GPU one Triton kernel reads each word once, where plain PyTorch would go over all of them a dozen
times.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it, such as the CPU's
    triton = None

_AT_ONCE = 4096  # words of a program
# of SplitMix64, as int64
_GOLDEN, _FIRST, _SECOND = (
    x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


if triton is not None:

    @triton.jit
    def _kernel(words_ptr, out_ptr, count, place, GOLDEN: tl.constexpr, FIRST: tl.constexpr,
                SECOND: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        there = at < count
        x = tl.load(words_ptr + at, mask=there, other=0) + (at + place) * GOLDEN
        x = x.to(tl.uint64, bitcast=True)  # whose shifts bring in zeros
        x = (x ^ (x >> 30)) * tl.full((), FIRST, tl.int64).to(tl.uint64, bitcast=True)
        x = (x ^ (x >> 27)) * tl.full((), SECOND, tl.int64).to(tl.uint64, bitcast=True)
        x = (x ^ (x >> 31)).to(tl.int64, bitcast=True)
        tl.atomic_add(out_ptr, tl.sum(tl.where(there, x, 0), 0), sem="relaxed")


def mixed_sum(words: Tensor, place: int) -> Tensor:  # (n,) int64 -> ()
    """Σ of each word and its place, counted from `place`, through the finaliser of SplitMix64.

    That is a bijection for each place (Steele, Lea, Flood 2014), so that one changed word always
    changes the sum.
    """
    if triton is not None and words.is_cuda:
        with torch.cuda.device_of(words):
            return launch(words, place)
    places = torch.arange(place, place + len(words), device=words.device)
    return _mixed(words + places.mul_(_GOLDEN)).sum()


def mixed_rows(words: Tensor, keys: Tensor) -> Tensor:  # (n, w), (w,) int64 -> (n, w)
    """Each word and its column's key through the same finaliser, in plain PyTorch."""
    return _mixed(words ^ keys)


def launch(words: Tensor, place: int) -> Tensor:
    """The same by the kernel."""
    out = torch.zeros((), dtype=torch.int64, device=words.device)
    grid = (triton.cdiv(len(words), _AT_ONCE),)
    _kernel[grid](words, out, len(words), place, _GOLDEN, _FIRST, _SECOND, _AT_ONCE)
    return out


def _mixed(x: Tensor) -> Tensor:
    """In place."""
    x = x.bitwise_xor_(_shifted(x, 30)).mul_(_FIRST)
    x = x.bitwise_xor_(_shifted(x, 27)).mul_(_SECOND)
    return x.bitwise_xor_(_shifted(x, 31))


def _shifted(words: Tensor, by: int) -> Tensor:
    """To the right with zeros coming in, where int64 brings in the sign."""
    return (words >> by).bitwise_and_(2 ** (64 - by) - 1)
