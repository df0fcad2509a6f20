"""Short hashes that tell the same weights from others: a quick one of some, and one of all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._ops.device_copies import sent_home
from .._ops.mixed_words import mixed_sum
from .call_trace import plain_name
from .evaluation_mode import unwrap
from .offloaded_weights import Read, readers
from .spread_weights import is_spread, whole

_WEIGHTS = 4096  # read of a parameter
_ON_CPU, _ELSEWHERE = 2**19, 2**25  # bytes mixed at a time: a cache's worth, and a GPU's


def of_weights(model: nn.Module) -> str:
    """A digest of names, shapes and evenly spaced values of the weights: cheap at any size."""
    return _begun(model)()


def both(model: nn.Module) -> Callable[[], tuple[str, str]]:
    """Begin `of_weights` and `of_all_weights`; the function returned waits for a GPU, once."""
    of_some, of_all = _begun(model), _begun_of_all(model)
    return lambda: (of_some(), of_all())


def _begun(model: nn.Module) -> Callable[[], str]:
    """`of_weights`, once the values that it reads are on their way from a GPU."""
    weights = {k: w for k, w in sorted(_state(model).items()) if isinstance(w, Tensor)}
    elsewhere = readers(model)
    read = sent_home([_some_bytes(_whole(key, w, elsewhere)) for key, w in weights.items()])

    def digest() -> str:
        out = hashlib.blake2b(digest_size=8)
        for (key, weight), values in zip(weights.items(), read(), strict=True):
            out.update(f"{plain_name(key)} {tuple(weight.shape)}".encode())
            out.update(values.numpy().tobytes())
        return out.hexdigest()

    return digest


def _state(model: nn.Module) -> dict[str, object]:
    """What a model keeps, by name; int8 layers keep weight and bias in one tuple, here taken apart.

    >>> list(_state(nn.Linear(2, 3)))
    ['weight', 'bias']
    """
    found: dict[str, object] = {}
    for name, value in model.state_dict().items():
        parts = enumerate(value) if isinstance(value, tuple) else ()
        found |= {f"{name}.{i}": part for i, part in parts} or {name: value}
    return found


def _some_bytes(weight: Tensor) -> Tensor:  # uint8
    if is_traceable_wrapper_subclass(weight):  # of each tensor in it
        return torch.cat([_some_bytes(part) for _, part in _parts("", weight)])
    weight = weight.dequantize() if weight.is_quantized else weight
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // _WEIGHTS))].contiguous().view(torch.uint8)


def of_all_weights(model: nn.Module) -> str:
    """A digest of names, dtypes, shapes and every byte of the weights, alike on all devices.

    Eight bytes at a time are mixed with their place and added up modulo 2⁶⁴, where they lie: one
    changed word is always seen, and any other change missed once in 2⁶⁴. Weights without bytes (on
    the meta device, offloaded nowhere) count by name, dtype and shape; those that are offloaded or
    spread over processes are read whole, one at a time.
    """
    return _begun_of_all(model)()


def _begun_of_all(model: nn.Module) -> Callable[[], str]:
    """`of_all_weights`, once a GPU is told to add up what lies there."""
    model = unwrap(model)
    found = {plain_name(name): weight for name, weight in _state(model).items()}
    elsewhere = {plain_name(name): read for name, read in readers(model).items()}
    weights = [part for name in sorted(found) for part in _parts(name, found[name])]
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in weights:
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
    sums: dict[torch.device, Tensor | int] = {}
    place = 0
    for words in _words(_whole(name, weight, elsewhere) for name, weight in weights):
        sums[words.device] = sums.get(words.device, 0) + mixed_sum(words, place)
        place += len(words)

    def ended() -> str:
        total = sum(int(each) for each in sums.values()) % 2**64  # one copy back from each device
        out = digest.copy()
        out.update(total.to_bytes(8, "little"))
        return out.hexdigest()

    return ended


def _parts(name: str, weight: object) -> Iterator[tuple[str, Tensor]]:
    """A weight, or the tensors inside one that is made of several; nothing for other state."""
    if not isinstance(weight, Tensor):
        return
    if is_traceable_wrapper_subclass(weight) and not is_spread(weight):
        for inner in weight.__tensor_flatten__()[0]:
            yield from _parts(f"{name}.{inner}", getattr(weight, inner))
    else:
        yield name, weight.detach()


def _whole(name: str, weight: Tensor, elsewhere: Mapping[str, Read]) -> Tensor:
    """A weight itself, wherever it or its parts are."""
    if weight.is_meta and name in elsewhere:
        return elsewhere[name]()
    return whole(weight) if is_spread(weight) else weight


def _words(weights: Iterable[Tensor]) -> Iterator[Tensor]:  # each (n,), int64
    """All bytes in order: many small weights at once, a large one in parts."""
    waiting: list[Tensor] = []
    size = 0
    for piece in (piece for weight in weights for piece in _pieces(weight)):
        full = size + len(piece) > _at_once(piece)
        if waiting and (full or piece.device != waiting[0].device):
            yield _joined(waiting)
            waiting, size = [], 0
        waiting.append(piece)
        size += len(piece)
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Tensor]) -> Tensor:  # (n,) int64
    """Pieces in a row; a single one is read where it lies, if it lies at a whole word."""
    alone = len(pieces) == 1 and pieces[0].storage_offset() % 8 == 0
    return (pieces[0] if alone else torch.cat(pieces)).view(torch.int64)


def _pieces(weight: Tensor) -> Iterator[Tensor]:  # each (n,), uint8
    """The bytes of a weight, in whole words of eight: zeros fill the last."""
    if weight.is_meta:
        return
    if weight.is_quantized:
        weight = weight.dequantize()
    if weight.layout != torch.strided:
        weight = weight.to_dense()
    weight = weight.as_subclass(Tensor).resolve_conj().resolve_neg()
    rows = weight.flatten() if weight.is_contiguous() else weight
    each = max(1, rows[:1].numel() * rows.element_size())
    for some in rows.split(8 * max(1, _at_once(rows) // (8 * each))):
        raw = some.contiguous().flatten().view(torch.uint8)
        yield F.pad(raw, (0, -len(raw) % 8)) if len(raw) % 8 else raw


def _at_once(x: Tensor) -> int:
    return _ON_CPU if x.device.type == "cpu" else _ELSEWHERE
