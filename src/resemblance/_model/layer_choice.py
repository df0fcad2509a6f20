"""Which layers to record: names, globs or `"auto"`, resolved to calls in order of execution.

`select` turns what the user asked for into `Tap`s; `automatic` is what it asks for by itself.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from ..errors import LayerError, nearest
from .call_trace import Call, modules_of

INPUT = ":in"  # the suffix of a layer name that taps a module's input, not its output

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Tap:
    """Where to record: one call of a module, its output or its input."""

    name: str
    module: str
    call: int
    is_input: bool


def select(model: nn.Module, layers: str | Sequence[str], calls: Sequence[Call]) -> list[Tap]:
    """Taps in order of execution for `"auto"`, a name, a glob, or a list of them."""
    asked = (
        [layers]
        if isinstance(layers, str | bytes) or not isinstance(layers, Iterable)
        else list(layers)
    )
    if wrong := [name for name in asked if not isinstance(name, str)]:
        raise LayerError(f'layers must be "auto", a name or a list of names; found {wrong[0]!r}')
    if not asked:
        raise LayerError('no layers were asked for; pass layers="auto" or at least one name')
    patterns: list[str] = []
    for pattern in asked:
        patterns += automatic(model, calls) if pattern == "auto" else [pattern]
    chosen: dict[str, tuple[int, Tap]] = {}
    for pattern in patterns:
        is_input = pattern.endswith(INPUT)
        for c in _matching(model, pattern, calls):
            name = c.name + (INPUT if is_input else "")
            number = int(c.name.removeprefix(c.module).removeprefix("#") or 1)
            moment = c.began if is_input else c.ended
            chosen[name] = (moment, Tap(name, c.module, number, is_input))
    return [tap for _, tap in sorted(chosen.values(), key=lambda item: item[0])]


def _matching(model: nn.Module, pattern: str, calls: Sequence[Call]) -> Sequence[Call]:
    """The calls that a name or a glob stands for, or an error with the nearest names."""
    wanted = pattern.removesuffix(INPUT)
    named = [c for c in calls if wanted in (c.name, c.module)]
    hits = named or [c for c in calls if fnmatch.fnmatchcase(c.name, wanted)]
    if hits:
        return hits
    close = nearest(wanted, (c.name for c in calls))
    if any(name == wanted or fnmatch.fnmatchcase(name, wanted) for name in modules_of(model)):
        raise LayerError(
            f"layer {pattern!r} exists but never runs in the forward pass; these do: {close}"
        )
    raise LayerError(
        f"no layer is named {pattern!r} and no name matches it as a glob; nearest: {close}"
    )


def automatic(model: nn.Module, calls: Sequence[Call]) -> list[str]:
    """The layers a person would pick: stem, repeated blocks, and the vector before the head.

    A block is a module with parts of its own whose class occurs at least twice and which lies in
    no larger such module: residual blocks, transformer layers, inverted residuals. A network
    without blocks is a chain: there, every weighted layer's activation is taken, which is the
    activation module that follows it, if one does before the next weighted layer, and else its own
    output. After a recurrent layer it is what the next layer is given, as that may be the last
    state and not the output.
    """
    leaves = sorted((c for c in calls if c.leaf), key=lambda c: c.ended)
    weighted = [c for c in leaves if c.weighted]
    if not weighted:
        raise LayerError(
            'layers="auto" looks for layers with weights and found none that run; name the layers'
        )
    head = weighted[-1]
    if blocks := _repeated(model, calls):
        first = min(c.began for c in blocks)
        before = [c for c in leaves if c.ended < first and c.shape is not None]
        names = [before[-1].name] if before else []
        names += [c.name for c in blocks]
        if head.began > max(c.ended for c in blocks):
            names.append(head.name + INPUT)
        return names
    # Of several layers the last, the head, is left out: what it is given is recorded before it.
    pairs: Sequence[tuple[Call, Call | None]] = list(itertools.pairwise(weighted))
    return [_activation(here, later, leaves) for here, later in pairs or [(head, None)]]


def _activation(here: Call, later: Call | None, leaves: Sequence[Call]) -> str:
    """The name of what a weighted layer of a chain hands on to the later one."""
    if here.recurrent and later is not None:
        return later.name + INPUT
    until = later.began if later else float("inf")
    between = [c for c in leaves if here.ended < c.ended < until]
    active = [c for c in between if hasattr(nn.modules.activation, c.kind)]
    return (active or [here])[-1].name


def _repeated(model: nn.Module, calls: Sequence[Call]) -> list[Call]:
    """Calls of the outermost modules with parts whose class occurs at least twice."""
    ran = {c.module: c for c in calls}
    parts = {
        name: type(module)
        for name, module in modules_of(model).items()
        if name in ran
        and type(module) not in _CONTAINERS
        and not ran[name].leaf
        and any(True for _ in module.parameters())
    }
    often = {kind for kind, count in Counter(parts.values()).items() if count > 1}
    blocks = {name for name, kind in parts.items() if kind in often}
    inner = {name for name in blocks if any(name.startswith(other + ".") for other in blocks)}
    return [c for c in calls if c.module in blocks - inner and c.shape is not None]
