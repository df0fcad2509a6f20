"""What a model is as a language model, and how it is run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import networks
from resemblance._models.language_models import (
    add_decoder_inputs,
    detect_language_model,
    encoder_name,
    run_function,
)
from resemblance.errors import DataError

IDS = torch.tensor([[4, 5, 6], [7, 8, 9]])


def named(name, **config):
    made = type(name, (nn.Linear,), {"get_encoder": lambda self: self})(2, 2)
    made.config = SimpleNamespace(**config)
    return made


@pytest.mark.parametrize(
    ("name", "config", "kind"),
    [
        ("LlamaForCausalLM", {}, "causal"),
        ("GPT2LMHeadModel", {}, "causal"),
        ("BertForMaskedLM", {}, "masked"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("BertForSequenceClassification", {}, None),
        ("ViTForImageClassification", {}, None),
    ],
)
def test_kinds_are_known_by_name_and_configuration(name, config, kind):
    found = detect_language_model(named(name, **config))
    assert (found.kind if found else None) == kind


def test_special_tokens_come_from_the_configuration():
    config = {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": None}
    assert detect_language_model(named("AForCausalLM", **config)).special == {1, 2, 7}


def test_a_model_without_a_configuration_is_no_language_model():
    assert detect_language_model(networks.seeded(networks.MLP)) is None


def test_adapters_are_seen_through():
    inner = networks.LittleForCausalLM()

    class Adapter(nn.Module):
        config = inner.config

        def get_base_model(self):
            return inner

    assert detect_language_model(Adapter()).kind == "causal"


def test_no_cache_is_kept_and_ids_alone_are_named():
    class CachedForCausalLM(nn.Module):
        def forward(self, input_ids, use_cache=True):
            return input_ids, use_cache

    ids, cached = run_function(CachedForCausalLM())(CachedForCausalLM(), IDS)
    assert torch.equal(ids, IDS)
    assert cached is False


def test_a_decoder_is_given_its_labels_one_place_to_the_right():
    net = named("TForConditionalGeneration", decoder_start_token_id=3, pad_token_id=0)
    labels = torch.tensor([[4, 5, -100], [7, -100, -100]])
    found = add_decoder_inputs(net, {"input_ids": IDS, "labels": labels})
    assert found["decoder_input_ids"].tolist() == [[3, 4, 5], [3, 7, 0]]
    assert found["decoder_attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert labels[0, 2] == -100  # they are as they were
    assert add_decoder_inputs(net, found) is found


def test_a_decoder_without_labels_is_given_the_inputs():
    net = named("TForConditionalGeneration", bos_token_id=3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = add_decoder_inputs(net, {"input_ids": IDS, "attention_mask": mask})
    assert found["decoder_input_ids"].tolist() == [[3, 4, 5], [3, 7, 8]]
    assert torch.equal(found["decoder_attention_mask"], mask)
    assert add_decoder_inputs(net, IDS)["input_ids"] is IDS


def test_a_decoder_without_anything_to_start_on_says_what_to_add():
    net = named("TForConditionalGeneration", is_encoder_decoder=True, bos_token_id=3)
    with pytest.raises(DataError, match='add "decoder_input_ids", or "labels"'):
        add_decoder_inputs(net, {"pixel_values": torch.zeros(2, 3)})


def test_the_encoder_is_found_by_name():
    net = nn.ModuleDict({"reads": nn.Linear(2, 2), "writes": nn.Linear(2, 2)})
    net.get_encoder = lambda: net["reads"]
    assert encoder_name(net) == "reads"
    assert encoder_name(nn.Linear(2, 2)) is None
