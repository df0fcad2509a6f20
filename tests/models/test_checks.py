"""Warnings about models: randomness, mixed samples, no gradients, reordered outputs."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import networks
import resemblance as rs
from model_states import assert_unchanged, snapshot
from resemblance._data.batches import call_model, take_samples
from resemblance._models.checks import DeterminismCheck, copy_batch, subsample_features
from resemblance._models.eval_mode import RandomState, run_in_eval_mode
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import ResemblanceWarning, TargetError

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=G)
IMAGES = torch.randn(40, 3, 6, 6, generator=G)
RANDOM = "returns different values when it is run again on the same samples"
DRAWS = np.random.default_rng(0)
MIXING = "the output for a sample depends on the rest of its batch"


def found(net, data, run=call_model):
    """What a trial on the first two samples says."""
    with run_in_eval_mode(net), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        state, batch = RandomState(None), take_samples(data, np.arange(2))
        determinism = DeterminismCheck(net, run, batch, run(net, copy_batch(batch)), state)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            determinism.check()
        assert [str(w.message) for w in given] == [str(determinism.fault)] * bool(determinism.fault)
        return determinism.fault


class Chain(nn.Module):
    """fc1, something done to its output, fc2, head."""

    def __init__(self, inside, width=16):
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, width), nn.Linear(width, 16), nn.Linear(16, 4)
        self.inside = inside

    def forward(self, x):
        return self.head(torch.relu(self.fc2(self.inside(torch.relu(self.fc1(x))))))


class Dropping(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class Depth(nn.Module):
    """Stochastic depth: a branch that is left out at times, here in every other run."""

    def __init__(self):
        super().__init__()
        self.branch, self.run = nn.Linear(16, 16), itertools.count()

    def forward(self, x):
        torch.rand(len(x))  # which comes out as
        return x + self.branch(x) * (next(self.run) % 2)


class Counter(nn.Module):
    """Not random, but another at every call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


RANDOM_ONES = {
    "dropout": (lambda: Chain(Dropping()), "inside"),
    "as a function": (lambda: Chain(lambda x: F.dropout(x, 0.5, training=True)), "fc2"),
    "noise": (lambda: Chain(lambda x: x + 0.5 * torch.randn_like(x)), "fc2"),
    "of numpy": (lambda: Chain(lambda x: x * float(DRAWS.random())), "fc2"),
    "stochastic depth": (lambda: Chain(Depth()), "inside"),
    "a state": (lambda: Chain(Counter()), "inside"),
    "after a loss": (
        lambda: AtTheEnd(lambda z: {"loss": z.sum(), "logits": z + torch.randn_like(z)}),
        "",
    ),
    "at the end": (lambda: AtTheEnd(lambda z: z + torch.randn_like(z)), ""),
}


class AtTheEnd(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.body, self.after = networks.MLP(), after

    def forward(self, x):
        return self.after(self.body(x))


@pytest.mark.parametrize("name", RANDOM_ONES)
def test_random_models_are_found_with_the_layer_where_it_begins(name):
    make, layer = RANDOM_ONES[name]
    unsteady = found(networks.seeded(make), X)
    assert unsteady is not None
    assert unsteady.random
    assert unsteady.layer == layer
    where = f"first at layer '{layer}'" if layer else "in its output"
    assert f"{RANDOM} ({where}, by " in str(unsteady)
    assert "Scores will be too low" in str(unsteady)


@pytest.mark.parametrize("outputs", [1, 3, 10])
def test_dropout_of_few_outputs_is_found_whatever_is_drawn(outputs):
    """A tenth of 2 × 3 outputs is dropped: two runs are alike in 0.82⁶ = 30 % of cases."""
    for seed in range(20):
        net = networks.seeded(lambda: nn.Sequential(nn.Linear(6, outputs), OnAtOutput()))
        batch, state = take_samples(X, np.arange(2)), RandomState(None)
        with run_in_eval_mode(net), torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            determinism = DeterminismCheck(net, call_model, batch, net(batch), state)
            with pytest.warns(ResemblanceWarning, match=RANDOM):
                determinism.check()
        assert determinism.fault.random


class OnAtOutput(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.1, training=True)


class Attention(nn.Module):
    """Every sample attends to all others."""

    def forward(self, x):
        return torch.softmax(x @ x.T, 1) @ x


class Clip(nn.Module):
    """Logits of every image against every text."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x):
        return F.normalize(self.image(x)) @ F.normalize(self.text(x)).T


class OneForEach(nn.Module):
    """A mixture of experts that have room for one sample: the next is left out."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Linear(16, 16)

    def forward(self, x):
        to = x.argmax(1)
        place = F.one_hot(to, 16).cumsum(0).gather(1, to[:, None])
        return self.expert(x) * (place == 1)


MIXING_ONES = {
    "batch norm": (lambda: Chain(nn.BatchNorm1d(16, track_running_stats=False)), "inside"),
    "attention": (lambda: Chain(Attention()), "inside"),
    "less the mean": (lambda: Chain(lambda x: x - x.mean(0)), "fc2"),
    "clip": (Clip, ""),
    "experts with room for one": (lambda: Chain(OneForEach()), "inside"),
    "time first": (lambda: TimeFirst(mixing=True), "head"),
}


class TimeFirst(nn.Module):
    """Sequences as (time, samples, width), two steps long as two samples are."""

    def __init__(self, mixing=False):
        super().__init__()
        self.rnn, self.head, self.mixing = nn.GRU(3, 5), nn.Linear(5, 4), mixing

    def forward(self, x):
        out, _ = self.rnn(x.unflatten(1, (2, 3)).transpose(0, 1))
        return self.head(out - out.mean(1, keepdim=True) if self.mixing else out).transpose(0, 1)


@pytest.mark.parametrize("name", MIXING_ONES)
def test_models_that_mix_samples_are_found_with_the_layer_where_it_begins(name):
    make, layer = MIXING_ONES[name]
    unsteady = found(networks.seeded(make), X)
    assert unsteady is not None
    assert not unsteady.random
    assert unsteady.layer == layer
    assert MIXING in str(unsteady)
    assert "Results will depend on `batch_size`" in str(unsteady)


# -- no false alarm --------------------------------------------------------------------------------


class TopOne(nn.Module):
    """A mixture of experts, each of which runs on the tokens that were sent to it."""

    def __init__(self, width=16, count=4):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x):
        flat = x.flatten(0, -2)
        weights, to = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            if (to == i).any():
                out[to == i] = expert(flat[to == i])
        return (out * weights[:, None]).view_as(x)


class Writing(nn.Module):
    """Takes the mean off its input, in place: its second run would see another."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(x.sub_(3).mul_(2))


class LayerDrop(nn.Module):
    """Draws at every call, and leaves layers out in training alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        drop = torch.rand(()) < 0.5
        return x if self.training and drop else self.layer(x)


class SeedsItself(nn.Module):
    """Random numbers that are the same at every call."""

    def forward(self, x):
        torch.manual_seed(1)
        return x + torch.randn_like(x[:1])


class AttentionWithoutDropout(nn.Module):
    def forward(self, x):
        x = x[:, None, None]
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)[:, 0, 0]


class Odd(nn.Module):
    """Modules whose outputs have two rows that are no samples, or no samples at all."""

    def __init__(self):
        super().__init__()
        self.both, self.loss, self.head = nn.Identity(), nn.Identity(), nn.Linear(6, 4)

    def forward(self, x):
        stacked = self.both(torch.stack([x.flatten(), 2 * x.flatten()]))
        self.loss(x.sum())
        return self.head(stacked[0].view_as(x)), self.both(x.T)


def encoder(dtype=torch.float32):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dtype=dtype)
    return nn.Sequential(nn.Embedding(11, 16, dtype=dtype), nn.TransformerEncoder(layer, 3))


def deep(dtype, normed=True):
    """Sixteen blocks, trained by nobody: round-off grows along them."""
    norm = nn.LayerNorm if normed else nn.Identity
    blocks = [nn.Sequential(norm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(16)]
    return nn.Sequential(nn.Linear(6, 64), *blocks, nn.Linear(64, 4)).to(dtype)


TOKENS = networks.tokens(40)
STEADY_ONES = {
    "mlp": (networks.MLP, X),
    "convnet with batch norm": (networks.ResNet, IMAGES),
    "convnet in half precision": (lambda: networks.ResNet().bfloat16(), IMAGES.bfloat16()),
    "dropout as it should be": (lambda: Chain(nn.Dropout(0.5)), X),
    "transformer with padding": (networks.Transformer, TOKENS),
    "encoder": (encoder, TOKENS["input_ids"]),
    "encoder in half precision": (lambda: encoder(torch.bfloat16), TOKENS["input_ids"]),
    "deep": (lambda: deep(torch.float32), X),
    "deep in half precision": (lambda: deep(torch.bfloat16), X.bfloat16()),
    "deep and not normed": (lambda: deep(torch.float16, normed=False), X.half()),
    "experts": (lambda: Chain(TopOne()), X),
    "experts of tokens": (
        lambda: nn.Sequential(nn.Embedding(11, 16), TopOne(), TopOne(), nn.Linear(16, 4)),
        TOKENS["input_ids"],
    ),
    "experts in half precision": (
        lambda: nn.Sequential(
            nn.Embedding(11, 16), TopOne(), TopOne(), nn.Linear(16, 4)
        ).bfloat16(),
        TOKENS["input_ids"],
    ),
    "recurrent": (networks.Recurrent, TOKENS["input_ids"][:, :5] % 9),
    "time first": (lambda: networks.Recurrent(batch_first=False), TOKENS["input_ids"] % 9),
    "time first, two steps": (TimeFirst, X),
    "two steps": (lambda: networks.Recurrent(batch_first=False), TOKENS["input_ids"][:, :2] % 9),
    "writes into its input": (Writing, X),
    "odd outputs": (Odd, X),
    "no samples in its output": (lambda: AtTheEnd(torch.sum), X),
    "draws to no effect": (lambda: Chain(LayerDrop()), X),
    "seeds itself": (lambda: Chain(SeedsItself()), X),
    "attention without dropout": (lambda: Chain(AttentionWithoutDropout()), X),
    "dropout of nothing": (lambda: Chain(lambda x: F.dropout(x, 0.0, training=True)), X),
    "nothing but NaN": (lambda: AtTheEnd(lambda z: z * torch.nan), X),
    "nothing but zeros": (lambda: AtTheEnd(torch.zeros_like), X),
    "masked logits": (
        lambda: AtTheEnd(lambda z: z.index_fill(1, torch.tensor([1]), -torch.inf)),
        X,
    ),
}


@pytest.mark.parametrize("name", STEADY_ONES)
def test_others_are_not_suspected(name):
    make, data = STEADY_ONES[name]
    assert found(networks.seeded(make), data if isinstance(data, dict) else data.clone()) is None


@pytest.mark.parametrize("make", [networks.MLP, lambda: Chain(TopOne()), lambda: deep(None)])
def test_nor_are_they_under_autocast(make):
    with torch.autocast("cpu", torch.bfloat16):
        assert found(networks.seeded(make), X) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_language_models_are_not_suspected(dtype):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 11, "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    try:
        gpt2 = networks.seeded(
            transformers.GPT2LMHeadModel,
            transformers.GPT2Config(vocab_size=11, n_layer=2, n_embd=16, n_head=2, n_positions=8),
        )
        bert = networks.seeded(
            transformers.BertForMaskedLM, transformers.BertConfig(**small, intermediate_size=32)
        )
    except (ImportError, RuntimeError) as error:  # of what it needs in its turn
        pytest.skip(str(error))
    for net in (gpt2, bert):
        assert found(net.to(dtype), TOKENS) is None


def test_equal_runs_cost_one_more_and_others_three():
    def counted(net):
        sizes = []

        def run(model, batch):
            sizes.append(batch[:, 0].tolist())
            return model(batch)

        found(networks.seeded(lambda: net), X, run)
        return sizes

    a, b = X[:2, 0].tolist()
    assert counted(networks.MLP()) == [[a, b], [b, b]]
    assert counted(Chain(Dropping())) == [[a, b], [b, b], [a, b], [b, b]]


def test_one_sample_alone_can_be_random_and_nothing_else():
    one = X[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "only 1 sample")
        rs.record(networks.seeded(networks.MLP), one, gradients=False)
        rs.record(networks.seeded(lambda: Chain(Attention())), one, gradients=False)
    with pytest.warns(ResemblanceWarning, match=RANDOM):
        rs.record(networks.seeded(lambda: Chain(Dropping())), one, gradients=False)


# -- in a pass -------------------------------------------------------------------------------------

RUNNERS = {
    "record": lambda net: rs.record(net, X),
    "classifier": lambda net: rs.KernelClassifier(net).fit(X, [0, 1] * 20),
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Chain(Dropping()), RANDOM), (lambda: Chain(Attention()), MIXING)],
    ids=["random", "mixing"],
)
def test_a_pass_warns_once_and_leaves_no_trace(runner, make, message):
    net = networks.seeded(make).train()
    net.register_buffer("count", torch.zeros(1))
    net.register_forward_pre_hook(lambda module, _: module.count.add_(1) and None)
    before = snapshot(net)
    with pytest.warns(ResemblanceWarning, match=message) as caught:
        RUNNERS[runner](net)
    assert len([w for w in caught if "below 50" not in str(w.message)]) == 1
    assert_unchanged(before, snapshot(net))


def test_callers_that_run_the_model_themselves_are_warned_as_well():
    with pytest.warns(ResemblanceWarning, match=MIXING) as caught:
        rs.task2vec(networks.seeded(lambda: Chain(Attention())), X)
    assert len(caught) == 1


def test_it_leaves_none_either_where_the_warning_is_an_error():
    net = networks.seeded(lambda: Chain(Dropping())).train()
    before = snapshot(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResemblanceWarning, match=RANDOM):
            rs.record(net, X)
    assert_unchanged(before, snapshot(net))


def test_the_warning_points_to_the_line_that_recorded():
    with pytest.warns(ResemblanceWarning) as caught:
        rs.record(networks.seeded(Clip), X, gradients=False)
    assert caught[0].filename == __file__


def test_what_it_warns_of_is_so():
    """A random network is unlike itself, and one that mixes is at another batch size."""
    options = {"layers": ["head"], "gradients": False}
    for make in (lambda: Chain(Dropping()), lambda: Chain(Attention())):
        net, found = networks.seeded(make), []
        for size in (4, 40):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(size)
                with pytest.warns(ResemblanceWarning):
                    found.append(rs.record(net, X, batch_size=size, **options))
        assert rs.compare(*found, kernel="features").scores[0, 0] < 0.99


SAMPLES = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))


class Runs(networks.MLP):
    """Notes how many samples each run was on, and whether for a gradient."""

    def forward(self, x):
        self.__dict__.setdefault("runs", []).append((len(x), torch.is_grad_enabled()))
        return super().forward(x)


def record(model, data=SAMPLES, **options):
    return rs.record(model, data, block=8, layers=["act1", "act2"], **options)


@pytest.mark.parametrize(("batch_size", "batches"), [(32, 3 * [32]), ("auto", [96])])
def test_two_small_runs_come_before_the_batches(batch_size, batches):
    model = networks.seeded(Runs)
    record(model, batch_size=batch_size)
    assert model.runs == [(2, False), (2, True), *((n, True) for n in batches)]


class Reordering(networks.MLP):
    """Runs its batch in another order inside, and returns outputs in the order of the batch."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def forward(self, x):
        order = self.order(x)
        return super().forward(x[order])[order.argsort()]


REORDERED = {
    "flipped": lambda x: torch.arange(len(x)).flip(0),
    "sorted": lambda x: x[:, 0].argsort(),
    "rolled": lambda x: torch.arange(len(x)).roll(1),
}


@pytest.mark.parametrize("order", REORDERED)
@pytest.mark.parametrize("options", [{}, {"gradients": False}, {"batch_size": 16}], ids=str)
def test_a_network_that_reorders_its_batch_inside_is_noticed(order, options):
    model = networks.seeded(lambda: Reordering(REORDERED[order]))
    with pytest.warns(ResemblanceWarning, match=r"'act1' holds samples in a different order"):
        record(model, **options)
    record(model, batch_size=1)  # where nothing can be out of order


@pytest.mark.parametrize(
    "data",
    [
        SAMPLES,
        (SAMPLES, torch.arange(96) % 5),
        [SAMPLES[:50], SAMPLES[50:]],
        SAMPLES[:1],
        SAMPLES[:3],
    ],
)
def test_other_networks_are_not_suspected_of_reordering(data):
    record(networks.seeded(networks.MLP), data)  # a warning would be an error


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3000), (5, 7, 40, 40), (5, 2000, 3)])
def test_some_values_are_the_same_ones_of_every_sample(shape):
    x = torch.arange(float(torch.Size(shape[1:]).numel())).expand(5, -1).reshape(shape)
    found = subsample_features(x + torch.arange(5.0).reshape(5, *[1] * (len(shape) - 1)))
    assert found.shape[1] <= 1024
    assert torch.equal(found - found[:1], torch.arange(5.0)[:, None].expand_as(found))


@pytest.mark.parametrize("batch_size", [1, 8, 16, 40, "auto"])
def test_no_gradient_at_all_is_refused_after_the_first_samples(batch_size):
    model = networks.seeded(Runs)
    with pytest.raises(TargetError, match="zero at every layer"):
        record(model, target=lambda z, _: 0 * z.sum(1), batch_size=batch_size)
    seen = [n for n, gradients in model.runs if gradients]
    assert sum(seen) <= 2 + {"auto": 96}.get(batch_size, 32 + 8)


def test_no_gradient_at_all_is_refused_where_there_are_few_samples():
    with pytest.raises(TargetError, match="zero at every layer"):
        record(networks.seeded(networks.MLP), SAMPLES[:9], target=lambda z, _: 0 * z.sum(1))
    record(networks.seeded(networks.MLP), SAMPLES[:9], gradients=False)


def test_the_first_samples_may_have_no_gradient_if_others_have_one():
    first = SAMPLES[torch.from_numpy(seeded_permutation(len(SAMPLES), seed=0)[:10].copy())]

    def none_at_first(z, batch):
        quiet = (batch[:, None] == first).all(-1).any(1)
        return z.square().sum(1) * ~quiet

    one, all_at_once = (
        record(networks.seeded(networks.MLP), target=none_at_first, batch_size=n) for n in (1, 96)
    )
    assert one["act2"].gradients.norms.count_nonzero() == len(SAMPLES) - 10
    assert torch.allclose(one["act2"].gradients.norms, all_at_once["act2"].gradients.norms)


def test_gradients_that_are_zero_where_samples_are_alike_are_not_refused():
    """A trial's batch is of one sample several times, whose spread has no slope at zero."""
    rep = record(networks.seeded(networks.MLP), target=lambda z, _: (z - z.mean(0)).square().sum(1))
    assert rep["act1"].gradients.norms.count_nonzero() > 90


@pytest.mark.parametrize("batch_size", [3, "auto"])
def test_a_random_model_is_named_whether_or_not_there_was_a_trial(batch_size):
    class Drops(networks.MLP):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5))

    with pytest.warns(UserWarning, match="returns different values when it is run again"):
        record(networks.seeded(Drops), batch_size=batch_size)
