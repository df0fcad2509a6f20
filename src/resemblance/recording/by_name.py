"""Recordings by name: models and data as commands, gates and sweeps are given them.

`Wanted` names a model and data; `opened_data` reads the data, which several models may share, and
`record_named` loads the model, records it and notes its address.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .._data.named_data import load_data, named_samples
from .._data.streams import BUFFER
from .._data.tokenized_text import TextOptions, sequences_in
from .._model.named_models import load_model
from .._ops.device_choice import usable
from ..representation.representation import Representation
from .from_model import record


@dataclass(frozen=True)
class Wanted:
    """A model and the data to record it on, by name."""

    model: str  # torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER or FILE.py:FUNCTION
    data: str  # as `named_data` has them: digits, a folder, shards, hf:NAME, FILE.py:FUNCTION, ...
    weights: str | None = None  # a file of them
    pretrained: bool = False  # the library's own weights, which it downloads
    size: int = 224  # of images
    raw: bool = False  # pixels in [0, 1], not normalised as ImageNet's
    skip_bad: bool = False  # unreadable images are bad samples
    limit: int = 0  # samples; 0 for all
    text: TextOptions = field(default_factory=TextOptions)
    device: str = ""  # the GPU if there is one
    buffer: int = BUFFER  # samples of a stream that wait to be shuffled

    @property
    def address(self) -> str:
        """What loads the model again."""
        return f"{self.model} --weights {self.weights}" if self.weights else self.model


def opened_data(wanted: Wanted) -> Any:
    """The data, as `record` takes them; of text, cut and made into tokens by the model's own."""
    return load_data(
        wanted.data,
        size=wanted.size,
        raw=wanted.raw,
        skip_bad=wanted.skip_bad,
        model=wanted.model,
        text=wanted.text,
        limit=wanted.limit,
        buffer=wanted.buffer,
    )


def record_named(wanted: Wanted, data: Any, **options: Any) -> Representation:
    """A model recorded on data that were opened for it, with the options of `record`."""
    net = load_model(wanted.model, weights=wanted.weights, pretrained=wanted.pretrained)
    sequences = sequences_in(data)
    if sequences is not None:
        options = {"tokenizer": sequences.tokenizer, **options}
    if options.get("data_id") is None:
        options["data_id"] = named_samples(wanted.data, wanted.text)
    net = net.to(usable(wanted.device or ("cuda" if torch.cuda.is_available() else "cpu")))
    rep = record(net, data, **options)
    return replace(rep, model=replace(rep.model, address=wanted.address))
