"""Names of layers in as much room as there is, without what all begin with or without their middle.

Room is counted in cells of a terminal, of which letters of some scripts take two.
"""

from __future__ import annotations

from collections.abc import Sequence

ELLIPSIS = "…"


def cells(text: str) -> int:
    """How wide a text is on a terminal."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def shared_prefix(names: Sequence[str]) -> str:
    """The dotted prefix that all names begin with, and that leaves something of each.

    >>> shared_prefix(["model.layers.0", "model.layers.10"]), shared_prefix(["fc1", "fc2"])
    ('model.layers.', '')
    """
    if len(names) < 2:
        return ""
    before = [name.split(".")[:-1] for name in names]
    shared = [parts[0] for parts in zip(*before, strict=False)]
    while shared and any(parts[: len(shared)] != shared for parts in before):
        shared.pop()
    return "".join(f"{part}." for part in shared)


def shortened(names: Sequence[str], room: int) -> list[str]:
    """Names no wider than some cells: of longer ones the middle is left out.

    The cut is where most names stay distinct, and as near to the middle as that allows.

    >>> shortened(["layers.7.attention.output", "layers.8.attention.output", "norm"], 16)
    ['layers.7….output', 'layers.8….output', 'norm']
    """
    if all(cells(name) <= room for name in names):
        return list(names)
    keep = max(room - 1, 0)
    heads = sorted(range(keep + 1), key=lambda head: (abs(2 * head - keep), head))
    tried = ([_cut(name, head, keep - head, room) for name in names] for head in heads)
    best: list[str] = []
    for found in tried:
        if len(set(found)) > len(set(best)):
            best = found
        if len(set(best)) == len(set(names)):
            break
    return best


def _cut(name: str, head: int, tail: int, room: int) -> str:
    """Of a name that is too wide, so many cells of its beginning and of its end."""
    if cells(name) <= room:
        return name
    return f"{_first(name, head)}{ELLIPSIS}{_first(name[::-1], tail)[::-1]}"


def _first(text: str, room: int) -> str:
    """As many characters as fit into some cells."""
    if text.isascii():
        return text[:room]
    wide, out = 0, ""
    for character in text:
        wide += cells(character)
        if wide > room:
            break
        out += character
    return out
