"""Language models: their kind, special tokens and decoder inputs, and what counts as one sample.

The transformers library is not imported: a network is recognised by the name of its class and the
fields of its `config`. `SampleUnit` is the resolved option `unit`: a sample is an item of the data,
or a single token drawn from a sequence by a `TokenSampler`.

Which positions are drawn depends only on the seed, the sequence's index and its real tokens:
padding on either side and the other sequences of a batch do not change them. Padding and special
tokens are never drawn. In a sequence with fewer tokens than requested, some are recorded more than
once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .._data.batches import (
    IGNORE_INDEX,
    attention_mask,
    batch_inputs,
    batch_labels,
    call_model,
    is_plain_list,
)
from .._data.hugging_face import TokenizerInfo
from .._data.sources import Batch, SampledTokens
from .._utils.hashing import TOKEN, random_bits
from ..errors import DataError, TargetError, warn
from .layer_outputs import Pool
from .layer_patterns import Tap
from .logits import find_logits

Kind = Literal["causal", "masked", "encoder-decoder"]
_SPECIAL_TOKEN_FIELDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
)
_KINDS: dict[str, Kind] = {  # by how the name of a class ends
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
}


@dataclass(frozen=True)
class LanguageModel:
    """A language model: of which kind, and which of its tokens are no text."""

    kind: Kind
    special: frozenset[int]


def detect_language_model(model: nn.Module) -> LanguageModel | None:
    """What kind of language model it is, seen through adapters around it; None if it is none."""
    config = getattr(model, "config", None)
    unwrapped: Any = getattr(model, "get_base_model", None)
    inner = unwrapped() if callable(unwrapped) else model
    name = type(inner).__name__
    kind = next((kind for suffix, kind in _KINDS.items() if name.endswith(suffix)), None)
    if getattr(config, "is_encoder_decoder", False) and hasattr(inner, "get_encoder"):
        kind = "encoder-decoder"
    if kind is None:
        return None
    parts = [config, getattr(config, "text_config", None)]
    found = [getattr(part, name, None) for part in parts for name in _SPECIAL_TOKEN_FIELDS]
    every = (one for value in found for one in (value if isinstance(value, list) else [value]))
    return LanguageModel(kind, frozenset(one for one in every if isinstance(one, int)))


def run_function(model: nn.Module) -> Callable[[nn.Module, Any], Any]:
    """How to run a model on a batch by convention.

    A language model keeps no cache of keys and values, which is for generating text.
    """
    if detect_language_model(model) is None:
        return call_model
    caches = "use_cache" in inspect.signature(model.forward).parameters
    more = {"use_cache": False} if caches else {}

    def run(model: nn.Module, batch: Any) -> Any:
        inputs = batch_inputs(batch)
        named = {"input_ids": inputs} if isinstance(inputs, Tensor) else inputs
        return (
            model(**{**named, **more}) if isinstance(named, Mapping) else call_model(model, batch)
        )

    return run


def add_decoder_inputs(model: nn.Module, batch: Any) -> Any:
    """A batch with what a decoder is given in training, if it has nothing of its own.

    That is the labels, or else the input tokens, one place to the right, after the token to start
    on; what labels leave out is padding.
    """
    if isinstance(batch, Mapping) and "decoder_input_ids" in batch:
        return batch
    labels = batch_labels(batch)
    labelled = isinstance(labels, Tensor) and labels.ndim == 2
    tokens = labels if labelled else batch_inputs(batch)
    if isinstance(tokens, Mapping):
        tokens = tokens.get("input_ids")
    config: Any = model.config
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "bos_token_id", None) if start is None else start
    usable = isinstance(tokens, Tensor) and tokens.ndim == 2 and not tokens.is_floating_point()
    if not usable or start is None:
        raise DataError(
            f"{type(model).__name__} has a decoder, which needs inputs of its own: add "
            '"decoder_input_ids", or "labels" (n, length), to the batch'
        )
    pad = getattr(config, "pad_token_id", None) or 0
    shifted = tokens.masked_fill(tokens == IGNORE_INDEX, pad).roll(1, dims=1)
    shifted[:, 0] = start
    named = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch_inputs(batch)}
    mask = (tokens != IGNORE_INDEX).long() if labelled else named.get("attention_mask")
    more = {"decoder_input_ids": shifted}
    if isinstance(mask, Tensor):
        more["decoder_attention_mask"] = mask
    return {**named, **more}


def encoder_name(model: nn.Module) -> str | None:
    """The name of the encoder inside an encoder–decoder model, whose layers see other positions."""
    encoder: Any = getattr(model, "get_encoder", lambda: None)()
    return next((name for name, module in model.named_modules() if module is encoder), None)


# -- drawing tokens -------------------------------------------------------------------------------

_ID_KEYS = ("decoder_input_ids", "input_ids")  # of an encoder–decoder model, those of its decoder
_MASK_KEYS = {"decoder_input_ids": "decoder_attention_mask", "input_ids": "attention_mask"}


@dataclass(frozen=True)
class TokenSampler:
    """How tokens are drawn from sequences."""

    tokens: int  # of each sequence
    seed: int
    special: frozenset[int] = frozenset()  # tokens that are never drawn
    mask_token: int | None = None  # takes the place of drawn tokens, for models that fill in

    def __call__(self, batch: Batch) -> Batch:
        """The batch with real tokens first and no more padding than needed, and its positions."""
        samples = move_padding_last(batch.samples)
        key, ids = token_ids(samples)
        allowed = ~np.isin(ids, list(self.special))
        masks = ((_MASK_KEYS.get(key), True), ("special_tokens_mask", False))  # of real ones?
        for name, real in masks if isinstance(samples, Mapping) else ():
            mask = samples.get(name)
            if isinstance(mask, np.ndarray | Tensor) and tuple(mask.shape) == ids.shape:
                allowed &= (torch.as_tensor(mask).cpu().numpy() != 0) == real
        positions = sample_positions(allowed, batch.indices, self.tokens, self.seed)
        if self.mask_token is not None:
            filled = ids.copy()
            np.put_along_axis(filled, positions, self.mask_token, 1)
            listed = isinstance(samples, tuple | list)
            given = samples[key] if key else samples[0] if listed else samples
            masked = torch.from_numpy(filled).to(torch.as_tensor(given))
            if key:
                samples = {**samples, key: masked}
            else:
                samples = type(samples)([masked, *samples[1:]]) if listed else masked
        return replace(batch, samples=samples, drawn=SampledTokens(positions, ids.shape[1]))


def sample_positions(
    allowed: np.ndarray, indices: np.ndarray, tokens: int, seed: int
) -> np.ndarray:
    """Positions (n, tokens) where `allowed` (n, length) is, in an order of their own a sequence.

    >>> allowed = np.array([[False, True, True, False]])
    >>> sorted(sample_positions(allowed, np.array([7]), 2, seed=0)[0].tolist())
    [1, 2]
    """
    counts = allowed.sum(1)
    if not counts.all():
        raise DataError(
            f"sequence {indices[np.argmin(counts)]} has no token to record, only padding and "
            "special tokens; remove it"
        )
    # of an allowed token, among those of its sequence
    rank = (np.cumsum(allowed, 1) - 1).astype(np.uint64)  # with int64 the sum would be a float
    keys = random_bits(seed, TOKEN, (indices.astype(np.uint64)[:, None] << np.uint64(32)) + rank)
    keys = np.where(allowed, keys >> np.uint64(1), np.uint64(2**64 - 1))
    order = np.argsort(keys, 1, kind="stable")
    which = np.arange(tokens) % counts[:, None]  # what is scarce comes again
    return np.take_along_axis(order, which, 1)


def token_ids(samples: Any) -> tuple[str, np.ndarray]:
    """The token ids (n, length) of a batch, and the key they are under, `""` if it has none."""
    inputs = batch_inputs(samples)
    key = ""
    if isinstance(inputs, Mapping):
        key = next((name for name in _ID_KEYS if name in inputs), "")
        inputs = inputs.get(key)
    if isinstance(inputs, np.ndarray | Tensor):
        ids = torch.as_tensor(inputs)
        if ids.ndim == 2 and not ids.is_floating_point() and ids.dtype != torch.bool:
            return key, ids.cpu().numpy()
    if getattr(inputs, "ndim", 0) == 1 or is_plain_list(inputs):
        raise DataError(
            f"{key or 'a batch'} has the wrong shape: token ids must be (sequences, length), found "
            f"a 1-D {type(inputs).__name__}. Each item of a list is a batch, so add a batch axis "
            "(ids[None]), or pass a data set of single sequences"
        )
    what = type(samples).__name__
    if isinstance(samples, Mapping):
        what = f"a dict of {', '.join(map(str, samples))}"
    elif isinstance(inputs, np.ndarray | Tensor):
        what = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
    raise DataError(
        '`unit="token"` needs sequences of token ids (n, length), alone or as "input_ids" of a '
        f'dict; found {what}; make tokens of the texts, or record with `unit="sample"`'
    )


def move_padding_last(samples: Any) -> Any:
    """A batch of token sequences with real tokens first, cut to the longest of them.

    Causal models read the same in either place, but for networks that count positions from the
    first column.
    """
    mask = attention_mask(samples)
    if mask is None:
        return samples
    real = mask != 0
    longest = max(1, int(real.sum(1).max()))
    if longest == mask.shape[1] and not bool((real[:, 1:] & ~real[:, :-1]).any()):
        return samples
    order = real.int().argsort(dim=1, descending=True, stable=True)[:, :longest]

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = torch.as_tensor(leaf)
        if not isinstance(leaf, Tensor) or leaf.shape != mask.shape:
            return leaf
        return leaf.gather(1, order.to(leaf.device))

    return {key: moved(leaf) for key, leaf in samples.items()}


# -- what counts as one sample --------------------------------------------------------------------

Unit = Literal["auto", "sample", "token"]
_MSG_UNMASKED = (
    "the model is a masked language model, but recorded tokens are not masked, because the mask "
    "token is unknown; pass a `tokenizer` that has one"
)


@dataclass(frozen=True)
class SampleUnit:
    """Items of the data, or tokens drawn from them."""

    draw: TokenSampler | None  # None for items
    language: LanguageModel | None

    @property
    def tokens(self) -> int | None:
        return None if self.draw is None else self.draw.tokens

    @property
    def causal(self) -> bool:
        """Whether the right answer at a token is the next one."""
        return self.language is not None and self.language.kind == "causal"

    def seen(self, model: nn.Module, taps: list[Tap]) -> tuple[list[Tap], list[str]]:
        """The taps that have the positions tokens are drawn from, and the names of the others.

        Of an encoder–decoder model tokens are the decoder's.
        """
        if self.draw is None or self.language is None or self.language.kind != "encoder-decoder":
            return taps, []
        inside = f"{encoder_name(model)}."
        others = [tap.name for tap in taps if f"{tap.module}.".startswith(inside)]
        return [tap for tap in taps if tap.name not in others], others


def resolve_unit(
    model: nn.Module,
    unit: Unit,
    tokens: int,
    pool: Pool,
    seed: int,
    tokenizer: TokenizerInfo | None = None,
) -> SampleUnit:
    """What counts as one sample of a model, from the options of a recording."""
    language = detect_language_model(model)
    kind = None if language is None else language.kind
    # who pools asks for whole sequences
    natural = unit == "auto" and kind in ("causal", "masked") and pool == "flatten"
    if unit != "token" and not natural:
        return SampleUnit(None, language)
    special = frozenset() if language is None else language.special
    mask = None
    if tokenizer is not None:
        special |= tokenizer.special
        mask = tokenizer.mask if kind == "masked" else None
    if kind == "masked" and mask is None:
        warn(_MSG_UNMASKED)
    return SampleUnit(TokenSampler(tokens, seed, special, mask), language)


def predicts_tokens(samples: Any, outputs: Any) -> bool:
    """Whether a network, given sequences of tokens, has logits for each of their positions."""
    inputs = batch_inputs(samples)
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        return False
    try:
        z = find_logits(outputs)
    except TargetError:
        return False
    return z.ndim == 3 and z.shape[:2] == ids.shape
