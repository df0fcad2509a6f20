"""Errors of Hugging Face's libraries become ours, and code that comes with a name is refused."""

from types import SimpleNamespace

import pytest
import torch

import little_language as little
from resemblance._data.hugging_face import loading, longest_sequence, text_config, tokenizer_at
from resemblance.errors import DataError, FormatError


def load(error):
    with loading("bert", "tokeniser", "save it beside the model"):
        raise error


def test_whatever_is_raised_is_quoted_by_its_first_line():
    with pytest.raises(DataError) as refusal:
        load(OSError("not found\nand more"))
    expected = "no tokeniser at 'bert' (not found); save it beside the model"
    assert str(refusal.value) == expected


@pytest.mark.parametrize(
    "said",
    [
        "Loading bert requires you to set the option `trust_remote_code=True`",
        "Dataset scripts are no longer supported, but found bert.py",
    ],
)
def test_code_of_its_own_is_refused_in_its_own_words(said):
    with pytest.raises(DataError, match="'bert' on Hugging Face needs code of its own"):
        load(ValueError(said))


def test_a_folder_of_scripts_is_not_taken_for_code():
    with pytest.raises(DataError, match="no tokeniser at 'bert'"):
        load(OSError("nothing in work/scripts/bert"))


def test_errors_of_ours_pass():
    with pytest.raises(FormatError, match="as it was"):
        load(FormatError("as it was"))


def test_a_folder_without_the_files_of_a_tokenizer_has_none(tmp_path):
    pytest.importorskip("transformers")
    little.saved(tmp_path / "bare", little.gpt2())
    with pytest.raises(DataError, match=r"no tokenizer at .* save it beside the model"):
        tokenizer_at(str(tmp_path / "bare"))
    with pytest.raises(DataError, match="no Hugging Face model at"):
        text_config(str(tmp_path))
    little.saved(tmp_path / "whole", little.gpt2(), little.tokenizer())
    found = tokenizer_at(str(tmp_path / "whole"))
    assert found.get_vocab() == little.tokenizer().get_vocab()


@pytest.mark.parametrize(
    ("fields", "told", "expected"),
    [
        ({"model_type": "gpt2", "n_positions": 1024}, 10**30, 1024),
        ({"model_type": "llama", "max_position_embeddings": 4096}, 2048, 2048),
        ({"max_position_embeddings": 66, "model_type": "mpnet", "pad_token_id": 1}, 60, 60),
        ({"max_position_embeddings": 66, "model_type": "roberta", "pad_token_id": 1}, 10**30, 64),
        ({"model_type": "mamba"}, 10**30, None),
        ({"model_type": "t5", "max_position_embeddings": None}, 512, 512),
    ],
)
def test_how_many_tokens_a_model_takes(fields, told, expected):
    words = SimpleNamespace(model_max_length=told)
    assert longest_sequence(SimpleNamespace(**fields), words) == expected


def test_a_roberta_takes_as_many_tokens_as_is_said():
    pytest.importorskip("transformers")
    little.usable_torchvision()
    from transformers import RobertaConfig, RobertaForMaskedLM

    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    config = RobertaConfig(**shape, intermediate_size=8, max_position_embeddings=22, vocab_size=30)
    longest = longest_sequence(config, little.tokenizer())
    net = RobertaForMaskedLM(config).eval()
    assert net(torch.full((1, longest), 5)).logits.shape[1] == longest == 20
    with pytest.raises((IndexError, RuntimeError)):
        net(torch.full((1, longest + 1), 5))
