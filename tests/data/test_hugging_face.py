"""Errors of Hugging Face's libraries, remote code that is refused, and facts of a tokenizer."""

import json
from types import SimpleNamespace

import pytest
import torch

import little_language as little
import resemblance as rs
from optional_libraries import needs
from resemblance._data.hugging_face import (
    convert_load_errors,
    is_hf_dataset,
    load_text_config,
    load_tokenizer,
    max_sequence_length,
    tokenizer_info,
    with_tensor_columns,
)
from resemblance.errors import DataError, FormatError, MissingExtra


def load(error):
    with convert_load_errors("bert", "tokeniser", "save it with the model"):
        raise error


def test_whatever_is_raised_is_quoted_by_its_first_line():
    with pytest.raises(DataError) as refusal:
        load(OSError("not found\nand more"))
    tried = "there is no folder bert, and on the hub: not found"
    expected = f"no tokeniser at 'bert' ({tried}); save it with the model"
    assert str(refusal.value) == expected


@pytest.mark.parametrize(
    "said",
    [
        "Loading bert requires you to set the option `trust_remote_code=True`",
        "Dataset scripts are no longer supported, but found bert.py",
    ],
)
def test_code_of_its_own_is_refused_in_its_own_words(said):
    with pytest.raises(DataError, match="'bert' on Hugging Face needs custom code"):
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
    with pytest.raises(DataError, match=r"no tokenizer at .* save it with the model"):
        load_tokenizer(str(tmp_path / "bare"))
    with pytest.raises(DataError, match="no Hugging Face model at"):
        load_text_config(str(tmp_path))
    little.saved(tmp_path / "whole", little.gpt2(), little.tokenizer())
    found = load_tokenizer(str(tmp_path / "whole"))
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
    assert max_sequence_length(SimpleNamespace(**fields), words) == expected


def test_a_roberta_takes_as_many_tokens_as_is_said():
    pytest.importorskip("transformers")
    little.usable_torchvision()
    from transformers import RobertaConfig, RobertaForMaskedLM

    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    config = RobertaConfig(**shape, intermediate_size=8, max_position_embeddings=22, vocab_size=30)
    longest = max_sequence_length(config, little.tokenizer())
    net = RobertaForMaskedLM(config).eval()
    assert net(torch.full((1, longest), 5)).logits.shape[1] == longest == 20
    with pytest.raises((IndexError, RuntimeError)):
        net(torch.full((1, longest + 1), 5))


def test_a_broken_torchvision_is_named():
    """transformers hides it behind an error of its own."""
    hidden = ModuleNotFoundError("Could not import module 'GPT2LMHeadModel'")
    hidden.__cause__ = RuntimeError("operator torchvision::nms does not exist")
    with pytest.raises(MissingExtra, match=r"torchvision is broken .* built for a different torch"):
        load(hidden)


# -- data sets of the library datasets ------------------------------------------------------------


def table(**columns):
    from datasets import Dataset

    return Dataset.from_dict(columns)


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = torch.nn.Embedding(30, 8), torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].float()
        return self.last((self.embedding(input_ids) * mask).sum(1))


@needs("datasets")
@pytest.mark.parametrize("loader", [False, True])
def test_a_tokenised_table_is_recorded_in_its_default_format(loader):
    """Sequences of different lengths are padded, and texts are ignored."""
    ids = [[1 + (i + j) % 29 for j in range(3 + i % 5)] for i in range(60)]
    masks = [[1] * len(row) for row in ids]
    data = table(text=["a b"] * 60, input_ids=ids, attention_mask=masks, labels=[0, 1, 2] * 20)
    given = torch.utils.data.DataLoader(data, batch_size=7) if loader else data
    found = rs.record(Words(), given, target="labels", pool="mean")
    padded = [row + [0] * (7 - len(row)) for row in ids]
    batch = {
        "input_ids": torch.tensor(padded),
        "attention_mask": torch.tensor([row + [0] * (7 - len(row)) for row in masks]),
        "labels": torch.tensor([0, 1, 2] * 20),
    }
    torch.manual_seed(0)
    assert found.data == rs.record(Words(), batch, target="labels", pool="mean").data


@needs("datasets")
def test_columns_of_numbers_become_tensors_and_texts_are_left_out():
    data = table(text=["a"], words=[["a", "b"]], x=[[[1.0, 2.0]]], label=[1])
    (row,) = with_tensor_columns(data)
    assert sorted(row) == ["label", "x"]
    assert row["x"].shape == (1, 2)


@needs("datasets")
def test_a_table_of_texts_alone_stays_as_it_is():
    data = table(text=["a", "b"], label=[0, 1])
    assert with_tensor_columns(data) is data
    assert is_hf_dataset(data)
    assert not is_hf_dataset([{"text": "a"}])


@needs("datasets")
def test_a_tokenised_table_by_name(tmp_path):
    from resemblance._data.load_data import load_data

    table(input_ids=[[1, 2], [3, 4], [5, 6]]).save_to_disk(tmp_path / "saved")
    assert len(load_data(str(tmp_path / "saved"), limit=2)) == 2
    assert len(load_data(f"hf:{tmp_path / 'saved'}")) == 3


pytest.importorskip("transformers")


def test_the_hash_is_of_what_is_done_with_text_alone(tmp_path):
    from transformers import AutoTokenizer

    words = little.tokenizer()
    expected = tokenizer_info(words)
    assert expected.special == {0}
    assert len(expected.hash) == 16
    assert tokenizer_info(little.bare_tokenizer()).hash == expected.hash
    words.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_info(again) == expected
    again.add_special_tokens({"pad_token": "<|pad|>"})
    again(["a text", "b"], padding="max_length", truncation=True, max_length=4)
    assert (
        tokenizer_info(again).hash == expected.hash
    )  # neither special tokens nor padding are text
    assert tokenizer_info(again).special == {0, 300}
    again.add_tokens(["network"])
    assert tokenizer_info(again).hash != expected.hash


def changed(change):
    """A tokenizer whose definition was changed."""
    from tokenizers import Tokenizer

    definition = json.loads(little.bare_tokenizer().to_str())
    change(definition)
    return Tokenizer.from_str(json.dumps(definition))


def merged_in_another_order(definition):
    definition["model"]["merges"].reverse()


def in_lower_case(definition):
    definition["normalizer"] = {"type": "Lowercase"}


def with_a_space_first(definition):
    definition["pre_tokenizer"]["add_prefix_space"] = True


def with_two_words_exchanged(definition):
    vocabulary = definition["model"]["vocab"]
    vocabulary["e"], vocabulary["~"] = vocabulary["~"], vocabulary["e"]


@pytest.mark.parametrize(
    "change",
    [merged_in_another_order, in_lower_case, with_a_space_first, with_two_words_exchanged],
)
def test_a_change_in_what_it_does_shows(change):
    assert tokenizer_info(changed(change)).hash != tokenizer_info(changed(lambda _: None)).hash


def test_a_tokenizer_that_pads_and_cuts_is_left_as_it_is():
    words = little.bare_tokenizer()
    words.enable_padding(length=200)
    words.enable_truncation(3)
    before = words.to_str()
    assert tokenizer_info(words) == tokenizer_info(little.bare_tokenizer())
    assert words.to_str() == before


def test_the_mask_token_is_known():
    found = tokenizer_info(little.framing_tokenizer())
    assert (found.mask, found.special) == (3, {0, 1, 2, 3})
    assert tokenizer_info(little.tokenizer()).mask is None


@pytest.mark.parametrize("other", ["gpt2", 3, lambda text: [1]])
def test_what_is_no_tokenizer(other):
    with pytest.raises(DataError, match="tokenizer must be one of the libraries"):
        tokenizer_info(other)


def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub(tmp_path):
    for name in (str(tmp_path / "gone"), "./gone", "models/mine/gone"):
        with pytest.raises(DataError, match=f"no folder at {name}; expected one that exists"):
            load_tokenizer(name)


def test_the_log_of_the_hub_is_held_back_and_the_error_says_what_was_tried():
    logging = pytest.importorskip("huggingface_hub.utils").logging
    before, log = logging.get_verbosity(), logging.get_logger("huggingface_hub.utils._http")
    refused = pytest.raises(
        DataError, match=r"there is no folder net, and on the hub: offline\); sa"
    )
    with refused, convert_load_errors("net", "tokenizer", "save it"):
        assert not log.isEnabledFor(30)  # a warning
        raise OSError("offline")
    assert logging.get_verbosity() == before
