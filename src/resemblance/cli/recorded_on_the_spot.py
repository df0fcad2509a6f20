"""Networks that a command is given as files, or as models to be recorded on the spot.

A copy is recorded as its base was: with the same settings, at the same layers, under the name that
its samples were given, and beyond 1,024 classes with what it gives the classes that were likeliest
to the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import resemblance as rs

from ..errors import DataError

if TYPE_CHECKING:
    from ..representation.representation import Representation

_LIBRARIES = ("torchvision:", "timm:", "hf:")


@dataclass(frozen=True)
class Network:
    """One of the two, as it was named."""

    role: str  # base or copy
    address: str
    weights: str | None

    @property
    def is_model(self) -> bool:
        """Whether it is to be recorded; else it is a file."""
        return self.address.startswith(_LIBRARIES) or ".py:" in self.address


@dataclass(frozen=True)
class Samples:
    """What models are recorded on, and how."""

    data: str | None
    size: int
    raw: bool
    limit: int
    layers: list[str] | None
    device: str
    length: int | None = None  # of sequences, if text


def recorded(base: Network, copy: Network, on: Samples) -> tuple[Representation, Representation]:
    """Both, from files or from a pass each."""
    models = [network for network in (base, copy) if network.is_model]
    if models and on.data is None:
        raise DataError(
            f"{models[0].address} is a model, which is recorded on data; give them with --data, or "
            "give a file that was recorded"
        )
    for network in (base, copy):
        if network.weights is not None and not network.is_model:
            raise DataError(
                f"--{network.role}-weights are for a model, and {network.address} is a file; leave "
                "them out, or name the model"
            )
    if on.data is not None and not models:
        raise DataError("--data are for models, and both networks are files; leave them out")
    one = _recorded(base, on, None) if base.is_model else rs.load(base.address)
    two = _recorded(copy, on, one) if copy.is_model else rs.load(copy.address)
    return one, two


def _recorded(network: Network, on: Samples, base: Representation | None) -> Representation:
    from .._data.tokenized_text import TextOptions
    from ..recording.by_name import Wanted, opened_data, record_named

    how: dict[str, Any] = {"size": on.size, "raw": on.raw, "limit": on.limit, "device": on.device}
    text = TextOptions(on.length)
    wanted = Wanted(network.address, on.data or "", network.weights, **how, text=text)
    options: dict[str, Any] = {} if base is None else _as(base)
    if on.layers:
        options |= {"layers": on.layers}
    name = network.weights or network.address
    made = record_named(wanted, opened_data(wanted), name=name, **options)
    if base is not None:
        _check_samples(base, made, on)
    return made


def _check_samples(base: Representation, copy: Representation, on: Samples) -> None:
    """Refuse other samples under the name that the base's go by, which alone would pair them."""
    held = base.data.content, copy.data.content
    if base.data.id is not None and None not in held and held[0] != held[1]:
        raise DataError(
            f"expected --data to hold the samples that {base.name!r} was recorded on, which it "
            f"calls {base.data.id!r}; {on.data} holds others. Give those, with the same --limit, "
            "--size and --length, or record the copy with --data-id and give both files"
        )


def _as(base: Representation) -> dict[str, Any]:
    """Options that record a copy as its base was."""
    settings = base.settings
    if settings.target not in ("tempered", "labels", "none"):
        raise DataError(
            f"{base.name!r} was recorded with a target of your own, {settings.target!r}, which a "
            "command cannot repeat; record the copy as well, and give both files"
        )
    options: dict[str, Any] = {
        key: getattr(settings, key)
        for key in ("seed", "buckets", "per_sample", "block", "blocks", "pool", "unit", "tokens")
    }
    if settings.gradients:
        options |= {"target": settings.target}
    if settings.beta is not None:
        options |= {"beta": settings.beta}
    return options | {
        "layers": base.layer_names,
        "gradients": settings.gradients,
        "elementwise": settings.elementwise,
        "outputs_of": base if base.outputs is not None else None,
        "data_id": base.data.id,
    }
