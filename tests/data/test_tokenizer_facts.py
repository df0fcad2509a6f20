"""What is known of a tokenizer: a hash of what it does with text, and its special tokens."""

from __future__ import annotations

import json

import pytest

import little_language as little
from resemblance._data.tokenizer_facts import facts
from resemblance.errors import DataError

pytest.importorskip("transformers")


def test_the_hash_is_of_what_is_done_with_text_alone(tmp_path):
    from transformers import AutoTokenizer

    words = little.tokenizer()
    expected = facts(words)
    assert expected.special == {0}
    assert len(expected.hash) == 16
    assert facts(little.bare_tokenizer()).hash == expected.hash
    words.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert facts(again) == expected
    again.add_special_tokens({"pad_token": "<|pad|>"})
    again(["a text", "b"], padding="max_length", truncation=True, max_length=4)
    assert facts(again).hash == expected.hash  # neither special tokens nor padding are text
    assert facts(again).special == {0, 300}
    again.add_tokens(["network"])
    assert facts(again).hash != expected.hash


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
    assert facts(changed(change)).hash != facts(changed(lambda _: None)).hash


def test_a_tokenizer_that_pads_and_cuts_is_left_as_it_is():
    words = little.bare_tokenizer()
    words.enable_padding(length=200)
    words.enable_truncation(3)
    before = words.to_str()
    assert facts(words) == facts(little.bare_tokenizer())
    assert words.to_str() == before


def test_the_mask_token_is_known():
    found = facts(little.framing_tokenizer())
    assert (found.mask, found.special) == (3, {0, 1, 2, 3})
    assert facts(little.tokenizer()).mask is None


@pytest.mark.parametrize("other", ["gpt2", 3, lambda text: [1]])
def test_what_is_no_tokenizer(other):
    with pytest.raises(DataError, match="tokenizer must be one of the libraries"):
        facts(other)
