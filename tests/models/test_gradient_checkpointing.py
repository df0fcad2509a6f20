"""Gradient checkpointing while recording: the same numbers from far less memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint

import networks
import resemblance as rs
import stored
from model_states import assert_unchanged, snapshot
from models.families import usable_torchvision
from optional_libraries import needs
from resemblance.errors import LayerError

OPTIONS = {"data_id": "x", "progress": False, "pool": "mean", "batch_size": 40}
IDS = {"input_ids": torch.randint(0, 31, (40, 12), generator=torch.Generator().manual_seed(0))}
IMAGES = torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 48), nn.Dropout(0.5), nn.Linear(48, 6)

    def forward(self, x):
        return x + self.second(self.drop(self.first(x).tanh()))


class Net(nn.Module):
    """As transformers wrote its models before version 4.53, and as timm does."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def old_style(model):
    model.gradient_checkpointing = True


def like_timm(model):
    model.grad_checkpointing = True


def wrapped(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block)


def wrapped_reentrant(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.REENTRANT)


def transformers_switch(model):
    newer = getattr(model, "activation_checkpointing_enable", None)  # from 5.23 on
    (newer or model.gradient_checkpointing_enable)()


def timm_switch(model):
    model.set_grad_checkpointing(True)


def gpt2():
    usable_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=3, n_embd=16, n_head=2, vocab_size=31, n_positions=16, bos_token_id=0,
            eos_token_id=0,
        )
    )  # fmt: skip


def bert():
    usable_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
            vocab_size=31,
        )
    )  # fmt: skip


def vit():
    usable_torchvision()
    import timm

    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=4, embed_dim=24, num_classes=5
    )


def resnet():
    usable_torchvision()
    import timm

    return timm.create_model("resnet10t", num_classes=5)


INNER = ["blocks.*.first"]
CASES = [
    pytest.param(Net, old_style, X, {}, id="list"),
    pytest.param(Net, old_style, X, {"layers": INNER}, id="list-inside"),
    pytest.param(Net, old_style, X, {"layers": ["blocks.*.second:in"]}, id="list-inputs-inside"),
    pytest.param(Net, like_timm, X, {}, id="switch"),
    pytest.param(Net, wrapped, X, {}, id="wrapper"),
    pytest.param(Net, wrapped_reentrant, X, {}, id="wrapper-reentrant"),
    pytest.param(gpt2, transformers_switch, IDS, {}, id="gpt2", marks=needs("transformers")),
    pytest.param(
        gpt2,
        transformers_switch,
        IDS,
        {"layers": ["transformer.h.*.attn", "transformer.h.*.mlp"]},
        id="gpt2-inside",
        marks=needs("transformers"),
    ),
    pytest.param(bert, transformers_switch, IDS, {}, id="bert", marks=needs("transformers")),
    pytest.param(vit, timm_switch, IMAGES, {}, id="vit", marks=needs("timm")),
    pytest.param(
        vit, timm_switch, IMAGES, {"layers": ["blocks.*.attn"]}, id="vit-inside",
        marks=needs("timm"),
    ),
    pytest.param(resnet, timm_switch, IMAGES, {}, id="resnet", marks=needs("timm")),
]  # fmt: skip


def recorded(model, data, **options):
    """A recording, and the bytes that a graph held before the backward pass of its last batch."""
    held, seen = {}, []

    def pack(tensor):
        memory = tensor.untyped_storage()
        held[memory._cdata] = memory.nbytes()
        return tensor.detach()

    def target(outputs, batch):
        seen.append(sum(held.values()))
        held.clear()
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
        return logits.square().flatten(1).sum(1)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = rs.record(model, data, target=target, **OPTIONS, **options)
    return found, seen[-1]


def parts(model):
    return {**snapshot(model), "attributes": [sorted(m.__dict__) for m in model.modules()]}


@pytest.mark.parametrize(("build", "switch", "data", "options"), CASES)
def test_the_numbers_are_the_same_and_little_is_held(build, switch, data, options):
    model = networks.seeded(build)
    expected, before = recorded(model, data, **options)
    switch(model)
    state = parts(model)
    found, after = recorded(model, data, **options)
    stored.assert_same(found, expected)
    assert after < before / 2
    assert_unchanged(state, parts(model))


@pytest.mark.parametrize("switch", [old_style, like_timm, wrapped])
def test_the_model_comes_back_as_it_was_after_an_error(switch):
    model = networks.seeded(Net).train()
    switch(model)
    state = parts(model)

    def target(outputs, batch):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        rs.record(model, X, target=target, **OPTIONS)
    assert_unchanged(state, parts(model))


def test_a_forward_that_was_put_on_a_layer_stays(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    expected = rs.record(networks.seeded(Net), X, **OPTIONS)
    model = networks.seeded(Net)
    old_style(model)
    accelerate.disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    forwards = [module.__dict__.get("forward") for module in model.modules()]
    found = rs.record(model, X, **OPTIONS)
    stored.assert_same(found, expected)
    assert all(parameter.is_meta for parameter in model.parameters())  # none left behind
    assert [module.__dict__.get("forward") for module in model.modules()] == forwards


def test_without_gradients_nothing_is_switched():
    class Watching(Block):
        def forward(self, x):
            assert "forward" not in self.__dict__
            return super().forward(x)

    model = networks.seeded(Net)
    model.blocks[1] = networks.seeded(Watching)
    old_style(model)
    rs.record(model, X, gradients=False, **OPTIONS)


def test_a_layer_that_is_given_a_cache_is_run_once():
    class Cached(Block):
        def forward(self, x, past_key_values=None):
            past_key_values.append(1)
            return super().forward(x)

    class Generating(Net):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Cached() for _ in range(2))

        def forward(self, x):
            x, self.cache = self.stem(x), []
            for block in self.blocks:
                x = block(x, past_key_values=self.cache)
            return self.head(x)

    model = networks.seeded(Generating)
    old_style(model)
    rs.record(model, X, **OPTIONS)
    assert len(model.cache) == 2


class Own(Net):
    """One that calls torch's checkpoint by itself."""

    reentrant = False

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Reentrant(Own):
    reentrant = True


def test_a_network_that_checkpoints_by_itself_is_recorded_around_what_it_checkpoints():
    expected = rs.record(networks.seeded(Net), X, **OPTIONS)
    stored.assert_same(rs.record(networks.seeded(Own), X, **OPTIONS), expected)


def test_not_if_the_graph_begins_inside():
    with pytest.raises(LayerError, match="inside a part of the network that uses gradient check"):
        rs.record(networks.seeded(Own), X, layers=INNER, **OPTIONS)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_nor_where_only_whole_backward_passes_work():
    with pytest.raises(LayerError, match="with use_reentrant=True, which provides no gradients"):
        rs.record(networks.seeded(Reentrant), X, **OPTIONS)


@pytest.mark.parametrize("switch", [old_style, like_timm, wrapped])
def test_gradients_by_weights_are_found_without_it(switch):
    """torch.func, which makes them, cannot checkpoint."""
    model = networks.seeded(Net)
    expected = rs.task2vec(model, X)
    switch(model)
    assert torch.equal(rs.task2vec(model, X).vector, expected.vector)
