"""Short hashes that tell the same weights from others: a quick one of some, and one of all."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
    some = _SomeBytes()
    for part in _parts_of(model):
        some.add(part, *part.bytes())
    return some.sent()()


def of_all_weights(model: nn.Module) -> str:
    """A digest of names, dtypes, shapes and every byte of the weights, alike on all devices.

    Eight bytes at a time are mixed with their place and added up modulo 2⁶⁴, where they lie: one
    changed word is always seen, and any other change missed once in 2⁶⁴. Weights without bytes (on
    the meta device, offloaded nowhere) count by name, dtype and shape; those that are offloaded or
    spread over processes are read whole, one at a time.
    """
    every = _EveryByte()
    for part in _parts_of(unwrap(model)):
        every.add(part, part.bytes()[0])
    return every.sent()()


def both(model: nn.Module) -> Callable[[], tuple[str, str]]:
    """Begin `of_weights` and `of_all_weights` of a model that nothing is wrapped around.

    Each weight is read once. The function returned waits for a GPU, once.
    """
    some, every = _SomeBytes(), _EveryByte()
    for part in _parts_of(model):
        raw, width = part.bytes()
        some.add(part, raw, width)
        every.add(part, raw)
    of_some, of_all = some.sent(), every.sent()
    return lambda: (of_some(), of_all())


class _Part(NamedTuple):
    """A weight, or one of the tensors that it is made of."""

    weight: str  # name and shape of the weight
    name: str  # of this tensor
    tensor: Tensor
    read: Read | None  # where its values are kept elsewhere

    def bytes(self) -> tuple[Tensor, int]:  # (n · width,) uint8, width
        """All of it and of one value, wherever the tensor or its parts lie; nothing if nowhere."""
        x = self.tensor
        if x.is_meta:
            if self.read is None:
                return torch.empty(0, dtype=torch.uint8), 1
            x = self.read()
        elif is_spread(x):
            x = whole(x)
        if x.is_quantized:
            x = x.dequantize()
        if x.layout != torch.strided:
            x = x.to_dense()
        x = x.as_subclass(Tensor).resolve_conj().resolve_neg().contiguous()
        return x.view(-1).view(torch.uint8), x.element_size()


def _parts_of(model: nn.Module) -> list[_Part]:
    """All that a model's weights are made of, by name without what torch.compile adds to it."""
    elsewhere = {plain_name(key): read for key, read in readers(model).items()}
    found = {plain_name(key): weight for key, weight in _state(model).items()}
    weights = ((name, found[name]) for name in sorted(found))
    return [
        _Part(f"{name} {tuple(weight.shape)}", inner, tensor, elsewhere.get(inner))
        for name, weight in weights
        if isinstance(weight, Tensor)
        for inner, tensor in _tensors(name, weight)
    ]


def _state(model: nn.Module) -> dict[str, object]:
    """What a model keeps, by name; int8 layers keep weight and bias in one tuple, here taken apart.

    >>> list(_state(nn.Linear(2, 3)))
    ['weight', 'bias']
    """
    found: dict[str, object] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, tuple):
            found |= {f"{name}.{i}": part for i, part in enumerate(value)}
        else:
            found[name] = value
    return found


def _tensors(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A weight, or the tensors inside one that is made of several."""
    if is_traceable_wrapper_subclass(weight) and not is_spread(weight):
        for inner in weight.__tensor_flatten__()[0]:
            yield from _tensors(f"{name}.{inner}", getattr(weight, inner))
    else:
        yield name, weight


class _SomeBytes:
    """What `of_weights` reads: `add` the parts of all weights, and have them `sent`."""

    def __init__(self) -> None:
        self._rows: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
        self._sizes: Counter[torch.device] = Counter()  # in bytes
        self._found: dict[str, list[tuple[torch.device, slice]]] = {}  # of a weight, in those rows

    def add(self, part: _Part, raw: Tensor, width: int) -> None:
        step = -(-raw.numel() // (_WEIGHTS * width))
        if step > 1:
            raw = raw.view(-1, width)[::step].flatten()
        start, device = self._sizes[raw.device], raw.device
        self._sizes[device] += raw.numel()
        self._rows[device].append(raw)
        self._found.setdefault(part.weight, []).append((device, slice(start, self._sizes[device])))

    def sent(self) -> Callable[[], str]:
        """Send it to the host; the function returned waits for it and gives the digest."""
        arrive = sent_home([torch.cat(row) for row in self._rows.values()])

        def digest() -> str:
            rows = dict(zip(self._rows, (row.numpy().data for row in arrive()), strict=True))
            out = hashlib.blake2b(digest_size=8)
            for weight, places in self._found.items():
                out.update(weight.encode())
                for device, place in places:
                    out.update(rows[device][place])
            return out.hexdigest()

        return digest


class _EveryByte:
    """What `of_all_weights` reads: `add` the parts of all weights, and have their sum `sent`."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._sums: dict[torch.device, Tensor | int] = {}
        self._place = 0  # of the next word
        self._waiting: list[Tensor] = []  # small ones, that are mixed at once
        self._size = 0  # in bytes

    def add(self, part: _Part, raw: Tensor) -> None:
        what = f"{part.name} {part.tensor.dtype} {tuple(part.tensor.shape)}\n"
        self._digest.update(what.encode())
        size, device = raw.numel(), raw.device
        most = _ON_CPU if device.type == "cpu" else _ELSEWHERE
        if self._size + size > most or (self._waiting and device != self._waiting[0].device):
            self._mix()
        for piece in raw.split(most) if size > most else [raw] if size else []:
            if short := -piece.numel() % 8:
                piece = F.pad(piece, (0, short))
            self._waiting.append(piece)
            self._size += piece.numel()
            if size > most:
                self._mix()

    def _mix(self) -> None:
        """Add up the words of all that waits; a lone piece is read where it lies, if it can be."""
        if not self._waiting:
            return
        alone = len(self._waiting) == 1 and self._waiting[0].storage_offset() % 8 == 0
        words = (self._waiting[0] if alone else torch.cat(self._waiting)).view(torch.int64)
        total = self._sums.get(words.device, 0)
        self._sums[words.device] = total + mixed_sum(words, self._place)
        self._place += words.numel()
        self._waiting, self._size = [], 0

    def sent(self) -> Callable[[], str]:
        """Add up what waits; the function returned waits for the sum and gives the digest."""
        self._mix()

        def digest() -> str:
            total = sum(map(int, self._sums.values())) % 2**64  # one copy back from each device
            out = self._digest.copy()
            out.update(total.to_bytes(8, "little"))
            return out.hexdigest()

        return digest
