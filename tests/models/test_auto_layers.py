"""What `layers="auto"` picks: rules on small networks; real families are in tests/models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import networks
from resemblance._models.auto_layers import choose_auto_layers
from resemblance._models.trace import trace
from resemblance.errors import LayerError

IMAGES = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def choice(model, inputs):
    def run():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    return choose_auto_layers(trace(model.eval(), run, count=2)[0])


def chosen(model, inputs):
    return choice(model, inputs).names()


class Pair(nn.Module):
    """A residual block of two matrices."""

    def __init__(self, width=4):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


class Stage(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Joining(Stage):
    """Adds what it was given to what its blocks hand on."""

    def forward(self, x):
        return x + super().forward(x)


class Rearranging(Stage):
    def forward(self, x):
        return super().forward(x).flip(1)


# -- blocks, stages and chains ------------------------------------------------------------------


def test_a_resnet_is_stem_blocks_and_the_vector_before_the_head():
    net = networks.seeded(networks.ResNet, blocks=3)
    assert chosen(net, IMAGES) == ["relu", "layer1.0", "layer1.1", "layer1.2", "fc:in"]


def test_a_transformer_is_embedding_layers_and_the_vector_before_the_head():
    net = networks.seeded(networks.Transformer)
    assert chosen(net, networks.tokens(2)) == ["embed", "layers.0", "layers.1", "head:in"]


def test_a_chain_is_each_weighted_layers_activation():
    net = networks.seeded(networks.MLP)
    assert chosen(net, torch.zeros(2, 6)) == ["act1", "act2"]


def test_after_a_recurrent_layer_it_is_what_the_head_is_given():
    net = networks.seeded(networks.Recurrent, last_state=True)
    assert chosen(net, torch.zeros(2, 4, dtype=torch.long)) == ["embed", "head:in"]


def test_without_modules_for_activations_it_is_the_weighted_layers():
    net = networks.seeded(networks.Functional)
    assert chosen(net, torch.zeros(2, 1, 5, 5)) == ["conv", "fc1"]


def test_a_single_layer_is_taken():
    assert chosen(nn.Sequential(nn.Linear(3, 2)), torch.zeros(2, 3)) == ["0"]


def test_blocks_without_a_stem_or_a_head():
    net = nn.Sequential(*(networks.Block(3) for _ in range(2)))
    assert chosen(net, IMAGES) == ["0", "1"]


def test_without_weights_it_asks_for_names():
    with pytest.raises(LayerError, match="found no layers with weights that run"):
        chosen(nn.Sequential(nn.ReLU()), torch.zeros(2, 3))


def test_stages_are_opened_also_those_of_a_single_block():
    net = nn.Sequential(Stage(Pair()), Stage(Pair(), Pair()), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0.blocks.0", "1.blocks.0", "1.blocks.1", "2:in"]


def test_a_stage_that_joins_something_to_what_its_blocks_give_is_a_block():
    net = nn.Sequential(Joining(Pair(), Pair()), Joining(Pair(), Pair()), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0", "1", "2:in"]


def test_a_stage_that_only_rearranges_what_its_blocks_give_is_opened():
    net = nn.Sequential(Rearranging(Pair(), Pair()), Rearranging(Pair(), Pair()))
    assert chosen(net, ROWS) == ["0.blocks.0", "0.blocks.1", "1.blocks.0", "1.blocks.1"]


def test_a_layer_with_its_norm_and_activation_is_no_block():
    def layer():
        return Stage(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())

    net = nn.Sequential(layer(), layer(), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0.blocks.2", "1.blocks.2"]


def test_parts_inside_a_residual_block_are_no_run():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part1, self.part2 = Stage(nn.Linear(4, 4), nn.Linear(4, 4)), None
            self.part2 = Stage(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x):
            x = x + self.part1(x)
            return x + self.part2(x)

    net = nn.Sequential(Layer(), Layer(), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0", "1", "2:in"]


def test_experts_side_by_side_are_no_run():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(Pair() for _ in range(3))

        def forward(self, x):
            return sum(expert(x) for expert in self.experts)

    net = nn.Sequential(Experts(), Experts(), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0", "1", "2:in"]


def test_layers_that_collect_what_all_before_them_gave_are_no_run():
    class Dense(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.one, self.two = nn.Linear(width, 3), nn.Linear(3, 3)

        def forward(self, found):
            return self.two(self.one(torch.cat(found, 1)))

    class DenseStage(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Dense(4 + 3 * i) for i in range(2))
            self.narrow = nn.Linear(10, 4)

        def forward(self, x):
            found = [x]
            for layer in self.layers:
                found.append(layer(found))
            return self.narrow(torch.cat(found, 1))

    net = nn.Sequential(DenseStage(), DenseStage(), nn.Linear(4, 3))
    assert chosen(net, ROWS) == ["0", "1", "2:in"]


def test_one_module_run_again_and_again_is_a_run():
    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Pair(), nn.Linear(4, 3)

        def forward(self, x):
            for _ in range(3):
                x = self.block(x)
            return self.head(x)

    assert chosen(Looped(), ROWS) == ["block", "block#2", "block#3", "head:in"]


def test_numbered_names_and_other_names_beside_them():
    class Wide(Pair):
        pass

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.between, self.c = Pair(), Pair(), Wide(), Pair()
            self.d, self.head = Pair(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.d(self.c(self.between(self.b(self.a(x))))))

    assert chosen(Named(), ROWS) == ["a", "b", "between", "c", "d", "head:in"]


def test_sequentials_of_equal_parts_are_blocks():
    def block():
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.Sequential(block(), block()), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.blocks(x))

    assert chosen(Net(), ROWS) == ["blocks.0", "blocks.1", "head:in"]


def test_of_a_stages_lists_only_the_heaviest_is_opened():
    class Begun(nn.Module):
        def __init__(self):
            super().__init__()
            self.begin = nn.Sequential(Pair(), Pair())
            self.blocks = nn.Sequential(Pair(), Pair(), Pair())

        def forward(self, x):
            return self.blocks(self.begin(x))

    net = nn.Sequential(Begun(), Begun())
    assert chosen(net, ROWS) == [
        "0.begin",  # the stem
        *(f"{i}.blocks.{j}" for i in (0, 1) for j in (0, 1, 2)),
    ]


# -- stems and heads ----------------------------------------------------------------------------


class Rotary(nn.Module):
    """Looks like an embedding of positions: it has no axis of samples."""

    def forward(self, x):
        return torch.ones(1, x.shape[1], 4)


class Writer(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed, self.positions = nn.Embedding(9, 4), positions
        self.blocks, self.head = Stage(Pair(), Pair()), nn.Linear(4, 9)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.blocks(x + self.positions(x)))


class Learned(nn.Module):
    """Positions for every sample, and the same for all."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x):
        return self.table(torch.arange(x.shape[1]).expand(x.shape[:2]))


@pytest.mark.parametrize("positions", [Rotary, Learned])
def test_positions_are_no_stem(positions):
    ids = torch.arange(10).reshape(2, 5) % 9
    names = chosen(Writer(positions()), ids)
    assert names == ["embed", "blocks.blocks.0", "blocks.blocks.1", "head:in"]


def test_a_stem_is_named_by_the_outermost_module_that_does_something():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = Stage(nn.Linear(4, 4), nn.ReLU())
            self.nothing, self.blocks = nn.Identity(), Stage(Pair(), Pair())

        def forward(self, x):
            return self.blocks(self.nothing(self.stem(x)))

    assert chosen(Net(), ROWS) == ["stem", "blocks.blocks.0", "blocks.blocks.1"]


def test_a_decoder_has_a_stem_of_its_own():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.ModuleList([nn.Embedding(9, 4), Stage(Pair(), Pair())])
            self.decoder = nn.ModuleList([nn.Embedding(9, 4), Stage(Pair(), Pair())])
            self.head = nn.Linear(4, 9)

        def forward(self, ids):
            read = self.encoder[1](self.encoder[0](ids)).mean(1, keepdim=True)
            return self.head(self.decoder[1](self.decoder[0](ids) + read))

    assert chosen(Both(), torch.arange(10).reshape(2, 5) % 9) == [
        "encoder.0",
        "encoder.1.blocks.0",
        "encoder.1.blocks.1",
        "decoder.0",
        "decoder.1.blocks.0",
        "decoder.1.blocks.1",
        "head:in",
    ]


def test_of_several_heads_on_one_vector_the_first_is_looked_at():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = Stage(Pair(), Pair())
            self.head, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            x = self.blocks(x)
            return self.head(x) + self.other(x)

    assert chosen(Heads(), ROWS) == ["blocks.blocks.0", "blocks.blocks.1", "head:in"]


# -- what cannot be recorded --------------------------------------------------------------------


class Folded(nn.Module):
    """Runs blocks on rows of all samples together, (samples × tokens, width)."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Pair(), Pair())

    def forward(self, x):
        return self.blocks(x.flatten(0, 1)).reshape(x.shape)


def test_blocks_without_an_axis_of_samples_give_way_to_the_module_around():
    net = nn.Sequential(Folded(), nn.Flatten(), nn.Linear(12, 3))
    found = choice(net, torch.randn(2, 3, 4))
    assert (found.names(), found.left_out) == (["0", "2:in"], [])


def test_blocks_without_an_axis_of_samples_and_a_module_around_are_left_out():
    class Bare(Folded):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 4), nn.Linear(12, 3)

        def forward(self, x):
            return self.head(super().forward(self.first(x)).flatten(1))

    found = choice(Bare(), torch.randn(2, 3, 4))
    assert found.left_out == ["blocks.0", "blocks.1"]
    assert found.names() == ["first"]


def test_of_several_tensors_the_one_with_samples_is_recorded():
    class TwoScales(Pair):
        def forward(self, both):
            fine, coarse = both
            return super().forward(fine), super().forward(coarse)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(TwoScales(), TwoScales())
            self.head = nn.Linear(4, 3)

        def forward(self, x):  # (n, tokens, 4)
            return self.head(self.blocks((x.flatten(0, 1), x.mean(1)))[1])

    found = choice(Net(), torch.randn(2, 3, 4))
    assert found.names() == ["blocks.0", "blocks.1", "head:in"]
    assert [call.output.position for call in found.outputs] == [1, 1]
