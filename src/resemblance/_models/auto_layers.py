"""Choose layers for `layers="auto"`: the stem, the repeated blocks, and the input of the head.

It is the choice a person would make from a printout of the network. Everything is read from a
trace, so only what actually runs counts: which module runs inside which, which one receives
another's output, and how many weight matrices each one has.

- A *block* is a module with at least two weight matrices. One layer with its norm and activation is
  a layer, not a block.
- A *run* is the set of blocks under one attribute of a module (a Sequential, a ModuleList, or
  numbered names), provided two of them have the same class and the second receives the output of
  the first. Parallel experts and the parts of a residual block are not a run.
- A module that contains a run is a *stage*: the blocks inside it are recorded instead of the stage,
  and the same holds for every module of its class. The exception is a module that is itself in a
  run and returns something other than its run's output (a sum with its own input, or several
  outputs joined): that is a block.
- Recorded are the blocks that are in runs and are not stages. Directly inside the model, single
  modules of the same class and modules that connect two blocks are recorded too. A block whose
  output has no sample axis is replaced by the module around it, or skipped if there is none.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

from ..errors import LayerError
from .trace import Call, Place

K = TypeVar("K")

INPUT_SUFFIX = ":in"  # the suffix of a layer name that taps a module's input, not its output

_MIN_MATRICES = 2  # of a block
_REL_TOLERANCE = 1e-5  # between sums of the same numbers in another order

Build = tuple[type, ...]  # a class, as a trace notes it
_ListPlace = tuple[Build | None, str]  # a list: the class around it (None: the model), and its name


@dataclass(frozen=True)
class AutoLayers:
    """The calls to record, each by its output or its input, and those that cannot be recorded."""

    outputs: list[Call]
    inputs: list[Call]
    left_out: list[str]

    def names(self) -> list[str]:
        """As they are named in a recording, in order of execution."""
        named = [(c.ended, c.name) for c in self.outputs]
        named += [(c.began, c.name + INPUT_SUFFIX) for c in self.inputs]
        return [name for _, name in sorted(named)]


def choose_auto_layers(calls: Sequence[Call]) -> AutoLayers:
    """The layers a person would pick: stem, repeated blocks, and the vector before the head.

    A network without blocks is a chain: there, every weighted layer's activation is taken, which
    is the activation module that follows it, if one does before the next weighted layer, and else
    its own output. After a recurrent layer it is what the next layer is given, as that may be the
    last state and not the output.
    """
    leaves = [c for c in calls if c.leaf]
    if not any(c.weighted for c in leaves):
        raise LayerError('`layers="auto"` found no layers with weights that run; name the layers')
    blocks, left_out = _recordable_calls(_blocks_in_runs(calls))
    if not blocks:
        outputs, inputs = _chain_calls(leaves)
        return AutoLayers(outputs, inputs, left_out)
    return AutoLayers([*_stem_calls(blocks, calls), *blocks], _head_calls(blocks, leaves), left_out)


def repeated_blocks(calls: Sequence[Call]) -> list[str]:
    """The names of the modules that `choose_auto_layers` takes for blocks, in order of execution.

    Empty for a network without repeated blocks.
    """
    return list(dict.fromkeys(block.call.module for block in _blocks_in_runs(calls)))


# -- blocks -------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Block:
    """A call of a module of two or more weight matrices, with those directly inside it."""

    call: Call
    around: _Block | None = None
    inside: list[_Block] = field(default_factory=list)

    def follows(self, other: _Block) -> bool:
        return other.call.ended in self.call.given_by

    def within(self) -> Iterator[_Block]:
        for block in self.inside:
            yield block
            yield from block.within()

    def place(self) -> _ListPlace:
        """The list it is in: the class around it (None: the model) and the attribute there."""
        around = self.around.call if self.around else None
        inner = self.call.module.removeprefix(f"{around.module}." if around else "")
        return around.build if around else None, re.sub(r"\d+$", "", inner.split(".")[0])


def _blocks_in_runs(calls: Sequence[Call]) -> list[_Block]:
    """The blocks in runs that are no stages, in order of execution."""
    outermost = _nest_blocks(calls)
    every = [block for top in outermost for block in (top, *top.within())]
    families = [outermost, *(block.inside for block in every)]
    passed = _upstream_calls(calls)
    runs = {
        place
        for siblings in families
        for place, members in _group_by(siblings, _Block.place).items()
        for chain in _split_into_chains(members, passed)
        if len({block.call.build for block in chain}) < len(chain)
    }
    in_run = {block for block in every if block.place() in runs}
    for alike in _group_by(outermost, lambda block: block.call.build).values():
        in_run.update(*(chain for chain in _split_into_chains(alike, passed) if len(chain) > 1))
    beside_runs = {
        block
        for siblings in families
        for chain in _split_into_chains(siblings, passed)
        if not in_run.isdisjoint(chain)
        for block in chain
    }
    joining = {b.call.build for b in beside_runs if _changes_run_output(b, in_run, calls)}
    stages = {b.call.build for b in every if _contains_run(b, in_run, joining)}
    lesser = _minor_lists(every, in_run, stages)
    found: list[_Block] = []
    todo = list(outermost)
    while todo:
        block = todo.pop()
        if block.call.build in stages:
            todo += [part for part in block.inside if part.place() not in lesser]
        elif block in in_run:
            found.append(block)
    found += _adjacent_blocks(found, [b for b in outermost if b.call.build not in stages])
    return sorted(found, key=lambda block: block.call.ended)


def _upstream_calls(calls: Sequence[Call]) -> dict[int, frozenset[int]]:
    """For each call, by when it ended, the blocks whose output it was given.

    At once, or through layers that are no blocks: a norm, a convolution between two stages.
    """
    small = {c.ended for c in calls if not _is_block(c)}
    found: dict[int, frozenset[int]] = {}
    for call in sorted(calls, key=lambda c: c.began):
        through = [found[giver] for giver in call.given_by & small if giver in found]
        found[call.ended] = call.given_by.union(*through)
    return found


def _is_block(call: Call) -> bool:
    return not call.leaf and call.matrices >= _MIN_MATRICES


def _contains_run(block: _Block, in_run: set[_Block], joining: set[Build]) -> bool:
    """Whether there is a run inside it, and not inside a block."""
    return block.call.build not in joining and any(
        part in in_run or _contains_run(part, in_run, joining) for part in block.inside
    )


def _nest_blocks(calls: Sequence[Call]) -> list[_Block]:
    """The outermost blocks, with those inside them.

    A call is inside another that began before it and ended after it. A Sequential stands for the
    blocks inside it; one in a list that has none inside is a block itself.
    """
    blocks: list[_Block] = []
    for call in filter(_is_block, calls):  # in order of their ends, so inner ones come first
        holds_blocks = bool(blocks) and blocks[-1].call.began > call.began
        if not call.is_list or (call.listed and not holds_blocks):
            blocks.append(_Block(call))
    outermost: list[_Block] = []
    begun: list[_Block] = []
    for block in sorted(blocks, key=lambda block: block.call.began):
        while begun and begun[-1].call.ended < block.call.began:
            begun.pop()
        block.around = begun[-1] if begun else None
        (begun[-1].inside if begun else outermost).append(block)
        begun.append(block)
    return outermost


def _group_by(blocks: Sequence[_Block], key: Callable[[_Block], K]) -> dict[K, list[_Block]]:
    groups: defaultdict[K, list[_Block]] = defaultdict(list)
    for block in blocks:
        groups[key(block)].append(block)
    return groups


def _split_into_chains(
    siblings: Sequence[_Block], passed: dict[int, frozenset[int]]
) -> list[list[_Block]]:
    """Siblings parted into those that are given, one by the other, what they gave."""
    chains: list[list[_Block]] = []
    for block in siblings:
        givers = passed[block.call.ended]
        mine = [chain for chain in chains if any(b.call.ended in givers for b in chain)]
        chains = [chain for chain in chains if chain not in mine]
        chains.append([*itertools.chain(*mine), block])
    return chains


def _minor_lists(
    every: Sequence[_Block], in_run: set[_Block], stages: set[Build]
) -> set[_ListPlace]:
    """Of several lists in a stage that is itself in a run, all but that of the most weights.

    The others are how it begins, or what its blocks look up.
    """
    weights: defaultdict[Build | None, Counter[str]] = defaultdict(Counter)
    for block in every:
        if block.around in in_run and (block in in_run or block.call.build in stages):
            around, attribute = block.place()
            weights[around][attribute] += block.call.matrices
    return {
        (around, attribute)
        for around, lists in weights.items()
        for attribute, _ in lists.most_common()[1:]
    }


def _changes_run_output(block: _Block, in_run: set[_Block], calls: Sequence[Call]) -> bool:
    """Whether a block with a run inside gives something else than what that hands on.

    What is only rearranged, as from rows of tokens to an image, is handed on.
    """
    handed = {part.call.ended for part in block.within() if part in in_run}
    if not handed:
        return False
    whole = block.call
    for call in calls:  # in order of their ends, so that an inner one comes before an outer
        inside = whole.began < call.began and call.ended < whole.ended
        if inside and (call.ended in handed or handed & (call.given_by | call.hands_on)):
            handed.add(call.ended)
            if math.isclose(call.total, whole.total, rel_tol=_REL_TOLERANCE):
                return False
    return not handed & whole.hands_on


def _adjacent_blocks(found: Sequence[_Block], others: Sequence[_Block]) -> list[_Block]:
    """What stands beside blocks: one more like the last, and what leads from one to another."""

    def belongs(other: _Block) -> bool:
        before = [block for block in found if other.follows(block)]
        alike = any(block.call.build == other.call.build for block in before)
        return alike or (bool(before) and any(block.follows(other) for block in found))

    return [other for other in others if other not in found and belongs(other)]


def _recordable_calls(blocks: Sequence[_Block]) -> tuple[list[Call], list[str]]:
    """The calls to record in place of blocks, and those that cannot be."""
    found: dict[str, Call] = {}
    left_out: list[str] = []
    for block in blocks:
        around: _Block | None = block
        while around is not None and not _has_sample_axis(around.call.output):
            around = around.around
        if around is None:
            left_out.append(block.call.name)
        else:
            found[around.call.name] = around.call
    return sorted(found.values(), key=lambda c: c.ended), left_out


def _has_sample_axis(place: Place | None) -> bool:
    return place is not None and place.samples


# -- before and after them ----------------------------------------------------------------------


def _stem_calls(blocks: Sequence[Call], calls: Sequence[Call]) -> Iterator[Call]:
    """What the first block is given, and the first after an embedding: of a decoder, of a tower."""
    end = -1  # of the blocks so far
    for block in sorted(blocks, key=lambda c: c.began):
        before = [c for c in calls if end < c.began and c.ended < block.began]
        enters = any(c.leaf and c.weighted and c.input is None for c in before)
        made = [
            c
            for c in before
            if _has_sample_axis(c.output) and not (c.kind == "Identity" and c.given_by)
        ]
        if made and (end < 0 or enters):
            yield max(made, key=lambda c: (c.varies, c.ended))  # no embedding of positions
        end = max(end, block.ended)


def _head_calls(blocks: Sequence[Call], leaves: Sequence[Call]) -> list[Call]:
    """What is given to the head: the last layer with weights, if it comes after the blocks.

    Other layers that give as many numbers, after the blocks or as one vector a sample outside of
    them, are heads as well, as of two towers: one is taken of each width of input.
    """
    end = max(c.ended for c in blocks)
    outside = [
        c
        for c in leaves
        if c.weighted
        and c.shape
        and not any(b.began < c.began and c.ended < b.ended for b in blocks)
    ]
    if not outside or outside[-1].began < end:
        return []
    width = (outside[-1].shape or ())[-1]
    found: dict[int, Call] = {}
    for call in outside:
        shape = call.shape or ()
        alike = shape[-1:] == (width,) and (call.began > end or len(shape) == 2)
        if alike and call.input is not None and call.input.samples:
            found.setdefault(call.input.shape[-1], call)
    return list(found.values())


# -- chains -------------------------------------------------------------------------------------


def _chain_calls(leaves: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """The calls whose outputs, and those whose inputs, are what layers hand on to the next."""
    outputs: list[Call] = []
    inputs: list[Call] = []
    weighted = [c for c in leaves if c.weighted]
    # Of several layers the last, the head, is left out: what it is given is recorded before it.
    pairs: Sequence[tuple[Call, Call | None]] = list(itertools.pairwise(weighted))
    for here, later in pairs or [(weighted[-1], None)]:
        if here.recurrent and later is not None:
            inputs += [later] if _has_sample_axis(later.input) else []
            continue
        until = later.began if later else float("inf")
        between = [c for c in leaves if here.ended < c.ended < until]
        active = [c for c in between if hasattr(nn.modules.activation, c.kind)]
        found = [c for c in (here, *active) if _has_sample_axis(c.output)]
        outputs += found[-1:]
    return outputs, inputs
