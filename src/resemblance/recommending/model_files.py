"""Networks by name in a file, for the command: FILE.toml, or FILE.py:FUNCTION that gives a dict.

    [models]
    resnet = "timm:resnet18"
    mine = { model = "nets.py:small", weights = "small.safetensors" }

What stands in such a file is the caller's own word, and is loaded; what a zoo says is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._data.user_files import call_function
from .._model.named_models import load_model
from .._ops.device_choice import usable
from ..errors import DataError, FormatError, first_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Make = Callable[[], nn.Module]
_EXAMPLE = 'expected a table [models] with lines such as resnet = "timm:resnet18"'


def networks_in(spec: str, *, device: str = "") -> dict[str, Make]:
    """What makes each network that a file names, on a device; a GPU if there is one."""
    found = _from_function(spec) if ".py:" in spec else _from_toml(Path(spec))
    return {name: placed(make, device) for name, make in found.items()}


def address_of(text: str) -> Make:
    """What loads a network from an address, as a recording writes it."""
    model, _, weights = text.partition(" --weights ")
    return partial(load_model, model, weights=weights or None)


def placed(make: Make, device: str = "") -> Make:
    """What makes a network on a device, which must be there; a GPU if there is one."""
    there = usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return lambda: make().to(there)


def _from_function(spec: str) -> dict[str, Make]:
    found = call_function(spec)
    if not isinstance(found, Mapping) or not found:
        raise DataError(
            f"{spec} gave {type(found).__name__}; expected a dict of networks by name, or of "
            "functions that make them"
        )
    return {str(name): partial(_itself, spec, name, one) for name, one in found.items()}


def _itself(spec: str, name: str, network: Any) -> nn.Module:
    made = network if isinstance(network, nn.Module) or not callable(network) else network()
    if not isinstance(made, nn.Module):
        raise DataError(f"{spec} has {type(made).__name__} for {name!r}; expected a network")
    return made


def _from_toml(path: Path) -> dict[str, Make]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"no file at {path}; {_EXAMPLE}, or FILE.py:FUNCTION") from None
    except (OSError, ValueError) as error:
        said = first_line(error)
        raise FormatError(f"{path} cannot be read as TOML ({said}); {_EXAMPLE}") from None
    models = content.get("models")
    if not isinstance(models, dict) or not models:
        raise FormatError(f"{path} names no networks; {_EXAMPLE}")
    return {name: _from_line(path, name, value) for name, value in models.items()}


def _from_line(path: Path, name: str, value: Any) -> Make:
    if isinstance(value, str):
        return address_of(value)
    known = {"model", "weights", "pretrained"}
    if not isinstance(value, dict) or not isinstance(value.get("model"), str) or set(value) - known:
        raise FormatError(
            f"{path}: expected an address for {name!r}, or a table of model, weights and "
            f"pretrained; found {value!r}"
        )
    return partial(
        load_model,
        value["model"],
        weights=value.get("weights"),
        pretrained=bool(value.get("pretrained", False)),
    )
