"""Little tokenizers and language models, saved to folders as real ones are, and texts for them."""

from __future__ import annotations

import torch

from optional_libraries import usable_torchvision

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Two networks can look at the same words and see the same things.",
    "A tokenizer cuts texts into pieces, and each piece has a number.",
    "What is rare is cut finer than what is frequent.",
    "Nothing is downloaded, and nothing is left behind.",
]
TEXTS = [f"{SENTENCES[i % 5]} {SENTENCES[(i * i + 1) % 5][: 5 + i]}" for i in range(40)]


def bare_tokenizer(vocabulary=300, special=("<|end|>",), sentences=SENTENCES):
    """Byte-level BPE of the library tokenizers, trained on a few sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(sentences, trainer)
    return made


def tokenizer(vocabulary=300, sentences=SENTENCES, **special):
    """The same for transformers, with nothing around a text."""
    usable_torchvision()
    from transformers import PreTrainedTokenizerFast

    made = bare_tokenizer(vocabulary, sentences=sentences)
    return PreTrainedTokenizerFast(tokenizer_object=made, **{"eos_token": "<|end|>", **special})


def framing_tokenizer():
    """One that puts [CLS] before a text and [SEP] after it, and has a mask token."""
    usable_torchvision()
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    made = bare_tokenizer(special=names)
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    roles = ("pad_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=made, **dict(zip(roles, names, strict=True)))


def gpt2(vocabulary=300, seed=0):
    usable_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 24}
    return GPT2LMHeadModel(
        GPT2Config(**shape, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0)
    )


def llama(vocabulary=300):
    usable_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    more = {"intermediate_size": 24, "max_position_embeddings": 24, "bos_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**shape, **more, vocab_size=vocabulary, eos_token_id=0))


def bert(vocabulary=300):
    usable_torchvision()
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    more = {"intermediate_size": 24, "max_position_embeddings": 24, "pad_token_id": 0}
    return BertForMaskedLM(BertConfig(**shape, **more, vocab_size=vocabulary))


def saved(folder, model, words=None):
    """A model and its tokenizer in a folder."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    if words is not None:
        words.save_pretrained(folder)
    return folder
