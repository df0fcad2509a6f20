"""What a sample is: an item of the data, or tokens of its sequences; and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from .._data.batches import inputs_of
from .._data.drawn_tokens import TokenDraw
from .._data.tokenizer_facts import TokenizerFacts
from .._model.language_models import LanguageModel, encoder_name, language_model
from .._model.layer_choice import Tap
from .._model.losses import FindLogits, Objective, Target, find_logits
from .._model.pooling import Pool
from .._whole_numbers import whole_number
from ..errors import DataError, TargetError, warn

Unit = Literal["auto", "sample", "token"]
_UNMASKED = (
    "the model fills in masked tokens, and those that are recorded are not masked, as the mask "
    "token is not known; pass tokenizer=, one that has it"
)


@dataclass(frozen=True)
class Sampled:
    """Items of the data, or tokens drawn from them."""

    draw: TokenDraw | None  # None for items
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
        of_kind = None if self.draw is None or self.language is None else self.language.kind
        if of_kind != "encoder-decoder":
            return taps, []
        inside = f"{encoder_name(model)}."
        others = [tap.name for tap in taps if f"{tap.module}.".startswith(inside)]
        return [tap for tap in taps if tap.name not in others], others

    def objective(self, target: Target, beta: float, logits: FindLogits | None) -> Objective:
        """What is differentiated.

        The loss of a token is that of its whole sequence, summed: it reaches all that is predicted
        from the token, and neither how many tokens are drawn nor the sequence's length scales it.
        """
        whole = self.draw is not None
        return Objective(target, beta, logits, summed=whole, shifted=self.causal)


def sampled(
    model: nn.Module,
    unit: Unit,
    tokens: int,
    pool: Pool,
    seed: int,
    tokenizer: TokenizerFacts | None = None,
) -> Sampled:
    """What `unit` means for a model, or an error if it does not fit."""
    language = language_model(model)
    if unit not in ("auto", "sample", "token"):
        raise DataError(f'unit must be "auto", "sample" or "token"; found {unit!r}')
    by_token = unit == "token"
    if unit == "auto":  # who pools asks for whole sequences
        by_token = language is not None and language.by_token and pool == "flatten"
    if not by_token:
        return Sampled(None, language)
    if pool != "flatten":
        raise DataError(
            f'pool={pool!r} makes one vector of a sequence, and unit="token" records single '
            "tokens; leave one of them out"
        )
    special = frozenset() if language is None else language.special
    mask = None
    if tokenizer is not None:
        special |= tokenizer.special
    if language is not None and language.kind == "masked":
        mask = None if tokenizer is None else tokenizer.mask
        if mask is None:
            warn(_UNMASKED)
    return Sampled(TokenDraw(whole_number("tokens", tokens, 1), seed, special, mask), language)


def predicts_tokens(samples: Any, outputs: Any) -> bool:
    """Whether a network, given sequences of tokens, has logits for each of their positions."""
    inputs = inputs_of(samples)
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    try:
        z = find_logits(outputs)
    except TargetError:
        return False
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        return False
    return z.ndim == 3 and z.shape[:2] == ids.shape
