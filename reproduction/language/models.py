"""Byte-level language models of the transformers library, and the tokenizer that bytes need."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import nn

from .scale import Scale

BYTES = 256  # tokens of a causal model
MASK = BYTES  # the token that stands for a byte to be filled in


def causal(scale: Scale, size: str, seed: int) -> nn.Module:
    """A GPT-2 over bytes, untrained. Nothing is dropped out."""
    transformers = _transformers()
    how = scale.networks[size]
    config = transformers.GPT2Config(
        vocab_size=BYTES, n_positions=scale.context, n_embd=how.width, n_layer=how.layers,
        n_head=how.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh", bos_token_id=None, eos_token_id=None,
        use_cache=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(config).eval()


def masked(scale: Scale, seed: int) -> nn.Module:
    """A ModernBERT over bytes and a mask, untrained (Warner et al. 2024).

    In as many steps a BERT, whose positions are embeddings, learns little more than how frequent
    bytes are.
    """
    transformers = _transformers()
    how = scale.networks["masked"]
    config = transformers.ModernBertConfig(
        vocab_size=BYTES + 1, max_position_embeddings=scale.context, hidden_size=how.width,
        num_hidden_layers=how.layers, num_attention_heads=how.heads,
        intermediate_size=2 * how.width, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        cls_token_id=None, sep_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(seed)
    return transformers.ModernBertForMaskedLM(config).eval()


def projections(net: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """The weight matrices inside blocks by name, each with the axis of its outputs.

    GPT-2 keeps its matrices as (inputs, outputs), other networks as (outputs, inputs). Embeddings
    and what maps to tokens stay as they are in all copies.
    """
    found = {}
    for name, module in net.named_modules():
        kind = type(module).__name__
        if ".h." in name and kind == "Conv1D":
            found[name] = (module, 1)
        elif ".layers." in name and kind == "Linear":
            found[name] = (module, 0)
    return found


def block_of(name: str) -> int:
    """The number of the block that a projection is in.

    >>> block_of("transformer.h.3.mlp.c_fc")
    3
    """
    return next(int(part) for part in name.split(".") if part.isdigit())


def tokenizer() -> Any:
    """One whose tokens are the bytes of a text, with a mask token, for `record(tokenizer=)`."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    made = Tokenizer(BPE(vocab=dict(_letters()), merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens(["[MASK]"])
    return _transformers().PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]")


def _letters() -> list[tuple[str, int]]:
    """The letter that byte-level tokenizers write for each byte."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(BYTES) if byte not in shown]
    return [(chr(b), b) for b in shown] + [(chr(BYTES + i), b) for i, b in enumerate(hidden)]


@functools.cache
def _transformers() -> Any:
    """The library, also where the torchvision beside it does not fit the installed torch."""
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        pass
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # as if not installed
    import transformers

    return transformers
