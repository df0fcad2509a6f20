"""Write docs/reference/layers.md, the layers that `auto` picks of each family: python docs/build_models.py"""

# ruff: noqa: E501

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests/models"))

from families import TIMM, TRANSFORMERS, Family, recorded  # noqa: E402

HEAD = """# Which layers `auto` picks

`layers="auto"` records what a person would point at in a print-out of the network: the stem, every repeated block, and the vector before the head. It reads this off a trial run on two samples.

- A **block** is a module of at least two weight matrices: a residual block, a transformer layer. One convolution with its norm and activation is a layer, not a block.
- A **run** is the blocks under one attribute of a module (a `Sequential`, a `ModuleList`, or numbered names such as `b1`, `b2`), of which one is given what another of its class gave. Experts side by side, and the parts inside a residual block, are no run.
- A module with a run inside is a **stage** and is opened, and so are all of its class. But one that stands among blocks and gives something else than its run hands on (a sum with what it was given, several outputs joined) is itself the block.
- **Recorded** are the blocks in runs that are no stages; the last module before the first of them, and before a decoder or a second tower; and the input of the head. A network without runs is a chain: there, what each layer with weights hands on is recorded, after its activation.
- What has no axis of samples cannot be recorded: a rotary embedding is no stem, and a block without one gives way to the module around it. If there is none it is left out, and a warning names it.

`resemblance layers --model … --data …` lists what runs and what is picked. To choose otherwise, name layers:

| `layers=` | means |
|---|---|
| `"layer2.0"` | that module's output, every time it runs |
| `"layer2.0:in"` | its input |
| `"relu#1"`, `"relu#2"` | what it gives the first time, the second time |
| `"blocks.*"` | `*` is anything but a dot: `blocks.0`, not `blocks.0.attn` |
| `"blocks.**"` | `**` is anything: every module inside as well |
| `"layer?.[01]"` | `?` is one letter, `[01]` one of these |
| `["auto", "!head:in"]`, `["blocks.**", "!**.drop*"]` | without what follows the `!` |
| `"!stem"` | `auto` without it |

In version 0.1 `*` crossed dots. Until the next release a pattern that matched other layers then is refused, and the error says what to write.

Outputs of four or more axes are images. Whether their channels come first or last is read off the layers that work on them, so that `pool="mean"` of a Swin Transformer, which keeps (n, height, width, channels), is a mean over its pixels as that of a convolutional network is. Such outputs are recorded, and handed to a pooling function of yours, as (n, channels, height, width).

## What was tried

Each family below was built small, without trained weights, and recorded with the defaults on eight random inputs; the tests do the same and compare with this page. Sizes are not the published ones: read `{0..3}` as "all of them". Made by `python docs/build_models.py`.
"""


def short(names: Sequence[str]) -> list[str]:
    """Layers with successive numbers written as one: `blocks.{0..11}`."""
    groups: list[tuple[list[str], list[str], int]] = []  # first, last, which part counts up
    for name in names:
        parts = re.split(r"(\d+)", name)
        if groups:
            first, last, at = groups[-1]
            differ = [i for i in range(len(parts)) if parts[i : i + 1] != last[i : i + 1]]
            counts_up = (
                len(parts) == len(last)
                and len(differ) == 1
                and differ[0] % 2 == 1
                and at in (-1, differ[0])
                and int(parts[differ[0]]) == int(last[differ[0]]) + 1
            )
            if counts_up:
                groups[-1] = (first, parts, differ[0])
                continue
        groups.append((parts, parts, -1))
    return [
        "".join(first)
        if at < 0
        else "".join([*first[:at], f"{{{first[at]}..{last[at]}}}", *first[at + 1 :]])
        for first, last, at in groups
    ]


def row(family: Family, names: Sequence[str]) -> str:
    """A family's line of the table."""
    blocks = ", ".join(family.blocks.split())
    layers = ", ".join(f"`{name}`" for name in short(names))
    note = f" {family.note}" if family.note else ""
    return f"| {family.name} | {blocks} | {layers}{note} |"


def page(rows: Mapping[str, str]) -> str:
    """The whole page, given each family's line."""
    parts = [HEAD]
    for title, families in (("timm", TIMM), ("transformers", TRANSFORMERS)):
        lines = "\n".join(rows[family.name] for family in families)
        parts.append(
            f"### {title}: {len(families)}\n\n| | blocks | layers |\n|---|---|---|\n{lines}\n"
        )
    return "\n".join(parts)


def tried(families: Iterable[Family]) -> dict[str, str]:
    """A line for each family, recorded now."""
    rows = {}
    for family in families:
        try:
            rows[family.name] = row(family, recorded(family)[1].layer_names)
        except Exception as error:
            rows[family.name] = f"| {family.name} | | fails: {str(error).splitlines()[0]} |"
            print(rows[family.name])
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    (HERE / "reference/layers.md").write_text(page(tried([*TIMM, *TRANSFORMERS])))
