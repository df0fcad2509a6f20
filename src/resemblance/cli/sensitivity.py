"""The command `sensitivity`: which blocks of a copy to keep in full precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

from typer import Argument, Option

import resemblance as rs

from .._utils import formatting as digits
from ..errors import DataError
from . import output
from .commands import app
from .options import (
    DataName,
    Device,
    Json,
    Length,
    Logits,
    Pretrained,
    Raw,
    Size,
    Tokenizer,
)
from .output import check_outputs

if TYPE_CHECKING:
    from torch import nn

    from ..analysis.sensitivity import Sensitivity

_HELP_MODEL = "A model (see record --model)."


@app.command()
def sensitivity(
    base: Annotated[str, Argument(metavar="BASE", help=f"The original network. {_HELP_MODEL}")],
    copy: Annotated[
        str, Argument(metavar="COPY", help="Its quantised, pruned or fine-tuned copy. A model.")
    ],
    data: DataName,
    base_weights: Annotated[
        Optional[str], Option(metavar="FILE", help="Weights for the base.")
    ] = None,
    copy_weights: Annotated[
        Optional[str], Option(metavar="FILE", help="Weights for the copy.")
    ] = None,
    pretrained: Pretrained = False,
    copy_dtype: Annotated[
        Optional[str],
        Option(metavar="DTYPE", help="Precision to run the copy in, such as bfloat16."),
    ] = None,
    group: Annotated[
        Optional[list[str]],
        Option(
            "--group",
            metavar="NAME",
            help="Blocks to examine: auto, or names or patterns as for record --layer; repeatable.",
        ),
    ] = None,
    measure: Annotated[
        str,
        Option(
            metavar="MEASURE",
            help="Effect on the outputs: kl, js, disagreement, distance, or auto (kl for logits, "
            "else distance).",
        ),
    ] = "auto",
    samples: Annotated[
        int, Option(min=1, metavar="N", help="Number of samples to run, drawn from the data.")
    ] = 256,
    keep: Annotated[
        Optional[int],
        Option(metavar="N", help="Number of blocks to keep in full precision. Default: 3."),
    ] = None,
    target: Annotated[
        Optional[float],
        Option(
            metavar="x",
            help="Instead of --keep: keep as few blocks as bring the effect down to x.",
        ),
    ] = None,
    logits: Logits = "auto",
    size: Size = 224,
    raw: Raw = False,
    length: Length = None,
    tokenizer: Tokenizer = None,
    batch_size: Annotated[int, Option(min=1, metavar="N", help="Samples per forward pass.")] = 32,
    seed: Annotated[int, Option(metavar="N", help="Seed of the draw of samples.")] = 0,
    device: Device = "",
    copy_device: Annotated[
        str, Option(metavar="DEVICE", help="Device of the copy, if it differs from --device.")
    ] = "",
    json_file: Json = None,
    png: Annotated[
        Optional[Path], Option(metavar="FILE", help="Save a figure of the effect of each block.")
    ] = None,
) -> None:
    """Find the blocks of a copy that change its outputs most.

    Exchanges one block at a time between the original and the copy, and lists the blocks to keep
    in full precision.
    """
    from .._data.text import TextOptions
    from ..recording.record import NamedRecording, load_recording_data
    from ..views import plots

    if png is not None:
        png = plots.picture_path(png)
    check_outputs(json_file, png, read=[base, copy, base_weights, copy_weights, data])
    one = _loaded(base, base_weights, pretrained, device)
    two = _loaded(copy, copy_weights, pretrained, copy_device or device, copy_dtype)
    text = TextOptions(length, tokenizer=tokenizer)
    wanted = NamedRecording(base, data, size=size, raw=raw, text=text)
    found = rs.sensitivity(
        one,
        two,
        load_recording_data(wanted),
        groups=group or "auto",
        measure=cast(Any, measure),
        samples=samples,
        keep=keep,
        target=target,
        logits=cast(Any, logits),
        batch_size=batch_size,
        seed=seed,
        names=_names((base, base_weights), (copy, copy_weights), copy_dtype),
        progress=None,
    )
    if png is not None:
        plots.save_figure(found.plot(), png)
    if not output.write_json(json_file, found.to_dict()):
        _show(found)


def _loaded(
    model: str, weights: str | None, pretrained: bool, device: str, dtype: str | None = None
) -> nn.Module:
    import torch

    from .._models.eval_mode import as_dtype
    from .._models.loading import MODEL_PREFIXES, exported_format, load_model
    from .._ops.devices import check_device

    if Path(model).is_file() and not exported_format(model) and ".py:" not in model:
        raise DataError(
            f"expected a model, found the file {model}. Recordings contain no weights: pass the "
            f"model that was recorded, as {', '.join(MODEL_PREFIXES)} or FILE.py:FUNCTION"
        )
    net = load_model(model, weights=weights, pretrained=pretrained and weights is None)
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return net.to(where, as_dtype(dtype))


def _names(
    base: tuple[str, str | None], copy: tuple[str, str | None], dtype: str | None
) -> tuple[str, str]:
    one, two = (weights or model for model, weights in (base, copy))
    return one, f"{two} ({dtype})" if dtype else two


def _show(found: Sensitivity) -> None:
    """A line for each block, in order of execution, then what to keep."""
    columns = {}
    for name in ("own", "gain"):
        pairs = zip(getattr(found, name), getattr(found, f"{name}_stderr"), strict=True)
        columns[name] = digits.align_numbers([digits.format_quantity(*pair) for pair in pairs])
    spared = [
        str(found.spared.index(name) + 1) if name in found.spared else "" for name in found.blocks
    ]
    rows = zip(found.blocks, columns["own"], columns["gain"], spared, strict=True)
    output.print_table(("block", "alone", "gained if restored", "keep"), rows)
    output.print_wrapped(*found.summary().split("\n"))
    if found.spared:
        for name, content in found.lists.items():
            if name != "names":
                text = content if isinstance(content, str) else json.dumps(content)
                output.print_line(f"{name}: {text}")
