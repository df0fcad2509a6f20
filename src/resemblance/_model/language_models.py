"""What a model is as a language model, by what its class and configuration say.

Nothing is imported for it: a network is known by the names that the transformers library gives its
classes and the fields of its `config`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from .._data.batches import IGNORED, inputs_of, labels_of, run_by_convention
from ..errors import DataError

Kind = Literal["causal", "masked", "encoder-decoder"]
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id")
_CAUSAL, _MASKED = ("ForCausalLM", "LMHeadModel"), ("ForMaskedLM",)


@dataclass(frozen=True)
class LanguageModel:
    """A language model: of which kind, and which of its tokens are no text."""

    kind: Kind
    special: frozenset[int]

    @property
    def by_token(self) -> bool:
        """Whether tokens are its samples unless something else is asked for."""
        return self.kind in ("causal", "masked")


def language_model(model: nn.Module) -> LanguageModel | None:
    """What kind of language model it is, seen through adapters around it; None if it is none."""
    config = getattr(model, "config", None)
    unwrapped: Any = getattr(model, "get_base_model", None)
    inner = unwrapped() if callable(unwrapped) else model
    name = type(inner).__name__
    kind: Kind
    if getattr(config, "is_encoder_decoder", False) and hasattr(inner, "get_encoder"):
        kind = "encoder-decoder"
    elif name.endswith(_CAUSAL):
        kind = "causal"
    elif name.endswith(_MASKED):
        kind = "masked"
    else:
        return None
    return LanguageModel(kind, _special(config))


def _special(config: Any) -> frozenset[int]:
    parts = [config, getattr(config, "text_config", None)]
    found = [getattr(part, name, None) for part in parts for name in _SPECIAL]
    every = (one for value in found for one in (value if isinstance(value, list) else [value]))
    return frozenset(one for one in every if isinstance(one, int))


def runner(model: nn.Module) -> Callable[[nn.Module, Any], Any]:
    """How to run a model on a batch by convention.

    A language model keeps no cache of keys and values, which is for generating text.
    """
    if language_model(model) is None:
        return run_by_convention
    more = (
        {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    )

    def run(model: nn.Module, batch: Any) -> Any:
        inputs = inputs_of(batch)
        if isinstance(inputs, Tensor):
            inputs = {"input_ids": inputs}
        if not isinstance(inputs, Mapping):
            return run_by_convention(model, batch)
        return model(**{**inputs, **more})

    return run


def with_decoder_inputs(model: nn.Module, batch: Any) -> Any:
    """A batch with what a decoder is given in training, if it has nothing of its own.

    That is the labels, or else the input tokens, one place to the right, after the token to start
    on; what labels leave out is padding.
    """
    if isinstance(batch, Mapping) and "decoder_input_ids" in batch:
        return batch
    labels = labels_of(batch)
    labelled = isinstance(labels, Tensor) and labels.ndim == 2
    tokens = labels if labelled else inputs_of(batch)
    if isinstance(tokens, Mapping):
        tokens = tokens.get("input_ids")
    config: Any = model.config
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "bos_token_id", None) if start is None else start
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        tokens = None
    if tokens is None or start is None:
        raise DataError(
            f"{type(model).__name__} has a decoder, which needs inputs of its own: add "
            '"decoder_input_ids", or "labels" (n, length), to the batch'
        )
    pad = getattr(config, "pad_token_id", None) or 0
    shifted = tokens.masked_fill(tokens == IGNORED, pad).roll(1, dims=1)
    shifted[:, 0] = start
    named = dict(batch) if isinstance(batch, Mapping) else {"input_ids": inputs_of(batch)}
    mask = (tokens != IGNORED).long() if labelled else named.get("attention_mask")
    more = {"decoder_input_ids": shifted}
    if isinstance(mask, Tensor):
        more["decoder_attention_mask"] = mask
    return {**named, **more}


def encoder_name(model: nn.Module) -> str | None:
    """The name of the encoder inside an encoder–decoder model, whose layers see other positions."""
    encoder: Any = getattr(model, "get_encoder", lambda: None)()
    return next((name for name, module in model.named_modules() if module is encoder), None)
