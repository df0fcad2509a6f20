"""Copies of a small Llama that was trained on Python's own library, each saved to a folder.

Source code is what ships with every Python, and so is its manual (pydoc_data), the other text.
Every tenth file is kept from training; what is recorded comes from there.
"""

from __future__ import annotations

import copy
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .changed_weights import averaged, pruned, rounded
from .copied_network import Copied
from .trained_copies import divergence, trained, with_adapter

LENGTH, WORDS = 96, 1024  # tokens of a sequence, tokens that there are
SEQUENCES = 256  # recorded
SHAPE = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 4}
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]  # with an adapter


def made(folder: Path, *, quick: bool) -> Iterator[Copied]:
    """The base first, then each copy, as it is written to the folder."""
    school = _School(folder, quick)
    base, stranger, manual = school.learnt(0), school.learnt(1), school.manual

    def saved(section: str, name: str, story: str, net: Any) -> Copied:
        net.save_pretrained(folder / name)
        school.tokenizer.save_pretrained(folder / name)
        model = ("--model", f"hf:{name}")
        return Copied("language", section, name, story, *school.loss(net), model)

    yield saved("base", "base", "trained on source code", base)
    for bits in (8, 4, 3):
        yield saved("rounded", f"int{bits}", f"weights in {bits} bits", rounded(base, bits))
    for share in (20, 50, 80):
        story = f"{share} % of the weights removed"
        yield saved("pruned", f"pruned-{share}", story, pruned(base, share / 100))
    student = school.student(base)
    yield saved("distilled", "distilled", "half as deep, from the base's predictions", student)
    yield saved("distilled", "from-text", "as deep as that, from the text", school.learnt(2, 2))
    yield saved("distilled", "twin", "the base's size, from another seed", stranger)
    adapted = school.tuned(with_adapter(base, LAYERS, 3), manual)
    yield saved("lora", "lora", "LoRA on the manual, merged", adapted.merge_and_unload())
    same = [school.tuned(base, school.source, seed=seed) for seed in (4, 5)]
    yield saved("tuned", "tuned", "trained on, same text", same[0])
    yield saved("tuned", "tuned-away", "tuned to the manual", school.tuned(base, manual))
    yield saved("averaged", "averaged", "mean of two tuned copies", averaged(*same))
    yield saved("averaged", "averaged-twins", "mean of base and twin", averaged(base, stranger))


class _School:
    """The texts to train on and to be tried on, and how networks are trained."""

    def __init__(self, folder: Path, quick: bool) -> None:
        from pydoc_data.topics import topics

        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        code = [path.read_text(encoding="utf-8", errors="ignore") for path in files]
        words = [topics[name] for name in sorted(topics)]
        kept = "".join(code[::10])[: 40_000 if quick else 300_000]
        (folder / "unseen.txt").write_text(kept, encoding="utf-8")
        self.steps = 4 if quick else 900
        self.tokenizer = _tokenizer([text[:20_000] for text in code + words])
        self.source = self._cut([text for i, text in enumerate(code) if i % 10])
        self.manual = self._cut([text for i, text in enumerate(words) if i % 10])
        self.tests = self._cut([kept]), self._cut(words[::10])

    def _cut(self, texts: list[str]) -> Tensor:  # (sequences, LENGTH)
        """Token by token, in sequences of one length."""
        tokens = [n for ids in self.tokenizer(texts)["input_ids"] for n in ids]
        return torch.tensor(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)

    def learnt(self, seed: int, depth: int = 4) -> nn.Module:
        return self._trained(_llama(depth, seed), self.source, self.steps, 4e-3, seed)

    def tuned(self, net: nn.Module, text: Tensor, seed: int = 3) -> nn.Module:
        """An eighth of the steps, at a fifth of the rate."""
        return self._trained(net, text, self.steps // 8, 8e-4, seed)

    def student(self, teacher: nn.Module) -> nn.Module:
        """Half as deep; it begins with every other layer of its teacher."""
        student = _llama(2, 2)
        student.model.embed_tokens = copy.deepcopy(teacher.model.embed_tokens)
        student.tie_weights()
        student.model.norm = copy.deepcopy(teacher.model.norm)
        for i in range(2):
            layer = copy.deepcopy(teacher.model.layers[2 * i + 1])
            layer.self_attn.layer_idx = i
            student.model.layers[i] = layer

        def loss(net: Any, rows: Tensor) -> Tensor:
            ids = self.source[rows]
            with torch.no_grad():
                goal = teacher(input_ids=ids).logits
            return divergence(net(input_ids=ids).logits, goal, 1.0)

        how = {"rows": len(self.source), "steps": max(2, self.steps // 3), "batch": 12}
        return trained(student, loss, **how, rate=2e-3, seed=2)

    def loss(self, net: Any) -> tuple[float, float]:
        """Of a token in nats, on unseen source code and on unseen pages of the manual."""
        with torch.no_grad():
            parts = [test[:: max(1, len(test) // 200)] for test in self.tests]
            found = [float(net(input_ids=ids, labels=ids).loss) for ids in parts]
        return found[0], found[1]

    def _trained(
        self, net: nn.Module, text: Tensor, steps: int, rate: float, seed: int
    ) -> nn.Module:
        def loss(net: Any, rows: Tensor) -> Tensor:
            return net(input_ids=text[rows], labels=text[rows]).loss

        how = {"rows": len(text), "steps": max(2, steps), "batch": 12}
        return trained(net, loss, **how, rate=rate, seed=seed)


def _llama(depth: int, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    more = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "tie_word_embeddings": True}
    shape = LlamaConfig(**SHAPE, **more, num_hidden_layers=depth, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(shape)


def _tokenizer(texts: list[str]) -> Any:
    """Byte-level BPE of so many tokens, trained on these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=WORDS, special_tokens=["<end>"], initial_alphabet=alphabet,
            show_progress=False,
        ),
    )  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=found, eos_token="<end>")
