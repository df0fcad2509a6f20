"""The state a model is run in: model and process come back as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
import stored
from model_states import assert_unchanged, snapshot, unusual
from resemblance._model.evaluation_mode import RandomState

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(5, 3, 6, 6, generator=G, dtype=torch.float64)
VECTORS = torch.randn(5, 6, generator=G, dtype=torch.float64)
IDS = torch.randint(0, 9, (5, 4), generator=G)


def test_wrapped_models_give_what_the_model_gives():
    model = networks.seeded(networks.ResNet)
    images = IMAGES.float().repeat(8, 1, 1, 1)
    expected = rs.record(model, images)
    stored.assert_same(rs.record(nn.DataParallel(model), images), expected)
    stored.assert_same(rs.record(torch.compile(model, backend="eager"), images), expected)
    inner = copy.deepcopy(model)
    inner.layer1[0] = torch.compile(inner.layer1[0], backend="eager")
    compiled = rs.record(inner, images)
    stored.assert_same(compiled, expected)
    assert compiled.model.fingerprint == expected.model.fingerprint
    in_place = copy.deepcopy(model)
    in_place.compile(backend="eager")
    stored.assert_same(rs.record(in_place, images), expected)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = networks.seeded(networks.MLP)
        wrapped = nn.parallel.DistributedDataParallel(model)
        vectors = VECTORS.float().repeat(8, 1)
        stored.assert_same(rs.record(wrapped, vectors), rs.record(model, vectors))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("gradients", [False, True])
def test_weights_that_autocast_keeps_are_neither_old_nor_left_behind(gradients):
    model, x = networks.seeded(networks.MLP), torch.randn(40, 6)
    options = {"gradients": gradients, "data_id": "x", "progress": False}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2)
        found = rs.record(model, x, **options)
        model(x).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = rs.record(model, x, **options)
    stored.assert_same(found, again)


STATES = {
    "mlp": (networks.MLP, VECTORS.float().repeat(8, 1)),
    "resnet": (networks.ResNet, IMAGES.float().repeat(8, 1, 1, 1)),
    "transformer": (networks.Transformer, networks.tokens(40)),
    "rnn": (networks.Recurrent, IDS.repeat(8, 1)),
}


@pytest.mark.parametrize("case", STATES)
def test_the_model_comes_back_as_it_was(case):
    kind, data = STATES[case]
    model = unusual(kind)
    before = snapshot(model)
    rs.record(model, data, pool="mean")
    assert_unchanged(before, snapshot(model))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["data", "forward", "target"])
def test_the_model_comes_back_as_it_was_after_an_exception(error, where):
    model = unusual(networks.ResNet)
    before = snapshot(model)
    seen = []

    def stop(at):
        seen.append(at)
        if at == where and seen.count(at) > 3:
            raise error("enough")

    def data():
        for _ in range(6):
            stop("data")
            yield IMAGES.float().repeat(2, 1, 1, 1)

    def call(net, batch):
        stop("forward")
        return net(batch)

    def target(outputs, batch):
        stop("target")
        return outputs.square().sum(1)

    with pytest.raises(error, match="enough"):
        rs.record(model, data(), call=call, target=target, block=10, batch_size=10)
    assert_unchanged(before, snapshot(model))


def test_an_encoder_that_would_pack_padded_batches_is_run_as_written():
    """nn.TransformerEncoder turns padded batches into nested tensors in evaluation mode."""

    class Net(nn.Module):
        def __init__(self, nested):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
            self.head = nn.Linear(8, 3)

        def forward(self, input_ids, attention_mask):
            x = self.embed(input_ids)
            x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
            return self.head(x[:, 0])

    nested, plain = (
        rs.record(networks.seeded(Net, flag), networks.tokens(40), pool="mean")
        for flag in (True, False)
    )
    assert nested.layer_names == ["embed", "encoder.layers.0", "encoder.layers.1", "head:in"]
    stored.assert_same(nested, plain)


def test_the_random_state_is_known_to_have_moved_and_goes_back():
    state = RandomState(None)
    assert not state.moved()
    drawn = torch.rand(3)
    assert state.moved()
    state.put_back()
    assert not state.moved()
    assert torch.equal(torch.rand(3), drawn)
