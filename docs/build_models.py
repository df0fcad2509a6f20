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

HEAD = """# Layers that auto picks

This page says which layers `layers="auto"` records, how to name others, and what it picks of the families that were tried.

```console
resemblance layers --model torchvision:resnet18 --data photos/
```

lists all modules that run and which of them `auto` picks. `auto` records the stem, every repeated block, and the input of the head. It finds them in a trial run on two samples.

| term | meaning |
|---|---|
| block | a module with at least two weight matrices, such as a residual block or a transformer layer. One convolution with its norm and activation is a layer, not a block |
| run | the blocks under one attribute of a module (a `Sequential`, a `ModuleList`, or numbered names such as `b1`, `b2`), of which one receives the output of the one before. Parallel experts, and the parts of a residual block, are not a run |
| stage | a module with a run inside. It is opened, and so are all modules of its class. A module among blocks that returns something different from its last block (a sum with its input, several outputs joined) is a block itself |

- **Recorded** are the blocks in runs that are not stages, the last module before the first of them and before a decoder or a second tower, and the input of the head.
- **Networks without runs** are chains: the output of each layer with weights is recorded, after its activation.
- **Outputs without an axis of samples** cannot be recorded. The module around such a block is used instead, or a warning names it. A rotary embedding is not a stem.

## Name layers yourself

| `layers=` | means |
|---|---|
| `"layer2.0"` | the output of that module, for every call |
| `"layer2.0:in"` | its input |
| `"relu#1"`, `"relu#2"` | its output in the first call, the second call |
| `"blocks.*"` | `*` matches anything but a dot: `blocks.0`, not `blocks.0.attn` |
| `"blocks.**"` | `**` matches anything, so every module inside as well |
| `"layer?.[01]"` | `?` is one character, `[01]` one of these |
| `["auto", "!head:in"]`, `["blocks.**", "!**.drop*"]` | without the layers that match after `!` |
| `"!stem"` | `auto` without it |

In version 0.1 `*` also matched dots. Until the next release, a pattern that would have matched other layers then is refused, with what to write instead.

Outputs of four or more axes are images. Whether channels come first or last is read from the layers that process them, so that `pool="mean"` of a Swin Transformer, which has (n, height, width, channels), is the mean over positions. Such outputs are recorded, and passed to your pooling function, as (n, channels, height, width).

## Families that were tried

Each family was built small, with random weights, and recorded with the defaults on eight random inputs. The tests do the same and compare with this page. `{0..3}` stands for all blocks, whose number is smaller than in published models. Written by `python docs/build_models.py`.
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
