"""Features and gradients at layers, against a reference that cuts the network."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
import stored
from resemblance._data.batches import num_samples
from resemblance._data.sources import Batch, Piece, SampledTokens
from resemblance._models.capture import Capture, Rows
from resemblance._models.eval_mode import run_in_eval_mode
from resemblance._models.layer_patterns import Tap, select_layers
from resemblance._models.losses import Objective
from resemblance._models.trace import trace
from resemblance._models.wrappers import unwrap_model
from resemblance.errors import LayerError, TargetError

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(5, 3, 6, 6, generator=G, dtype=torch.float64)
VECTORS = torch.randn(5, 6, generator=G, dtype=torch.float64)
IDS = torch.randint(0, 9, (5, 4), generator=G)


def capture(model, batch, layers, *, target="tempered", gradients=True, beta=0.5):
    """{layer: (features, gradients)} as the library captures them, in the model's own dtype."""
    model, found = unwrap_model(model), {}

    def run(part=batch):
        return model(**part) if isinstance(part, dict) else model(part)

    def consume(i, features, grads):
        found[taps[i].name] = (features.clone(), None if grads is None else grads.clone())

    objective = Objective(target, beta)
    start = partial(objective.start, batch) if gradients else None
    with run_in_eval_mode(model):
        taps = select_layers(model, layers, trace(model, run)[0])
        with Capture(model, taps, gradients=gradients) as captured:
            captured.run(run, start, num_samples(batch), consume)
    return found


def one_by_one(batch):
    if isinstance(batch, dict):
        return [{k: v[n : n + 1] for k, v in batch.items()} for n in range(num_samples(batch))]
    return list(batch.split(1))


def assert_matches(found, expected, names, tolerance=1e-10):
    assert names
    for name in names:
        for ours, theirs in zip(found[name], expected[name], strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance)


# -- values -------------------------------------------------------------------------------------

CASES = {
    "mlp": (networks.MLP, {}, VECTORS, ["fc1", "act1", "fc2", "act2", "head"]),
    "resnet": (
        networks.ResNet,
        {},
        IMAGES,
        ["conv1", "bn1", "relu", "layer1.0", "layer1.1", "pool", "fc"],
    ),
    "token transformer": (
        networks.Transformer,
        {},
        networks.tokens(5),
        ["embed", "layers.0", "layers.1", "norm", "head"],
    ),
    "transformer": (
        networks.Transformer,
        {"classes": 3},
        networks.tokens(5),
        ["embed", "layers.0", "layers.1", "norm", "head"],
    ),
    "rnn": (networks.Recurrent, {}, IDS, ["embed", "rnn", "head"]),
    "time-major rnn": (networks.Recurrent, {"batch_first": False}, IDS, ["embed", "rnn", "head"]),
    "lstm": (networks.Recurrent, {"kind": nn.LSTM}, IDS, ["embed", "rnn", "head"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("beta", [0.5, 0.0, 2.0])
def test_features_and_gradients_match_the_reference(case, beta):
    kind, options, batch, names = CASES[case]
    model = networks.seeded(kind, **options).double().train()
    expected = reference.features_and_gradients(model, one_by_one(batch), reference.tempered(beta))
    assert_matches(capture(model, batch, names, beta=beta), expected, names)


@pytest.mark.parametrize("case", CASES)
def test_any_subset_of_layers_gives_the_same(case):
    kind, options, batch, names = CASES[case]
    model = networks.seeded(kind, **options).double()
    everything = capture(model, batch, names)
    for subset in (names[1:], names[-2:], names[::2], names[:1]):
        assert_matches(capture(model, batch, subset), everything, subset)


@pytest.mark.parametrize("case", CASES)
def test_features_alone_are_the_same_features(case):
    kind, options, batch, names = CASES[case]
    model = networks.seeded(kind, **options).double()
    both = capture(model, batch, names)
    alone = capture(model, batch, names, gradients=False)
    for name in names:
        assert torch.equal(alone[name][0], both[name][0])
        assert alone[name][1] is None


def test_gradient_at_the_logits_is_the_closed_form():
    model = networks.seeded(networks.MLP).double()
    z, gradient = capture(model, VECTORS, ["head"], beta=0.3)["head"]
    np.testing.assert_allclose(gradient, reference.at_logits(z.numpy(), 0.3), atol=1e-12)


def test_repeated_calls_and_inputs_agree_with_their_neighbours():
    model = networks.seeded(networks.ResNet).double()
    found = capture(
        model, IMAGES, ["layer1.0", "layer1.0.relu#2", "layer1.1:in", "layer1.1.conv1:in"]
    )
    for name in ("layer1.0.relu#2", "layer1.1:in"):
        assert torch.equal(found[name][0], found["layer1.0"][0])
        assert torch.equal(found[name][1], found["layer1.0"][1])
    # The block's skip path goes round its first convolution, so less gradient enters there.
    assert torch.equal(found["layer1.1.conv1:in"][0], found["layer1.0"][0])
    np.testing.assert_allclose(found["layer1.1.conv1:in"][1], found["layer1.0"][1], atol=1e-12)


def test_inner_layers_of_blocks_with_in_place_relus():
    """Against finite differences: the feature at bn1 is the value before the in-place ReLU."""
    model = networks.seeded(networks.ResNet, blocks=1).double().eval()
    block = model.layer1[0]
    found = capture(model, IMAGES[:2], ["layer1.0.bn1", "layer1.0.bn2"])
    x = model.relu(model.bn1(model.conv1(IMAGES[:2])))
    with torch.no_grad():
        before = block.bn1(block.conv1(x))
    assert (before < 0).any()
    assert torch.equal(found["layer1.0.bn1"][0], before)

    def loss(value):
        out = block.bn2(block.conv2(torch.relu(value)))
        out = torch.relu(out + x)
        z = model.fc(model.pool(out).flatten(1))
        q = torch.softmax(0.5 * frozen, -1)
        return -(q * torch.log_softmax(z, -1)).sum()

    with torch.no_grad():
        frozen = model(IMAGES[:2])
        step = torch.zeros_like(before)
        step[1, 2, 3, 4] = 1e-6
        slope = (loss(before + step) - loss(before - step)) / 2e-6
    assert float(found["layer1.0.bn1"][1][1, 2, 3, 4]) == pytest.approx(float(slope), rel=1e-5)


def test_writing_over_a_base_that_a_tapped_layer_shows_part_of():
    class Part(nn.Module):
        def forward(self, x):
            return x[:, :3]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.part, self.head = nn.Linear(6, 4), Part(), nn.Linear(4, 3)

        def forward(self, x):
            x = self.fc(x)
            self.part(x)
            return self.head(x.relu_())

    model = networks.seeded(Net).double()
    with torch.no_grad():
        expected = model.fc(VECTORS)[:, :3]
    found = capture(model, VECTORS, ["fc", "part"], gradients=False)
    assert torch.equal(found["part"][0], expected)


# -- kinds of output ----------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    extra: int = 0


WRAPPINGS = {
    "tuple": (lambda x: (x, 1), lambda o: o[0]),
    "list": (lambda x: [x], lambda o: o[0]),
    "dict": (lambda x: {"n": 3, "hidden": x}, lambda o: o["hidden"]),
    "dataclass": (lambda x: Output(x), lambda o: o.hidden),
    "nested": (lambda x: ({"a": [x]}, None), lambda o: o[0]["a"][0]),
}


class Wrapping(nn.Module):
    def __init__(self, kind, keyword=False):
        super().__init__()
        self.kind, self.keyword = kind, keyword
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return WRAPPINGS[self.kind][0](self.inner(x))


class Unwrapping(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.wrapping, self.head = Wrapping(kind), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(WRAPPINGS[self.kind][1](self.wrapping(x)))


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_outputs_of_every_kind(kind):
    model = networks.seeded(Unwrapping, kind).double()
    found = capture(model, VECTORS, ["wrapping.inner", "wrapping"])
    alone = capture(model, VECTORS, ["wrapping"])  # here it becomes the leaf and is swapped
    for name in ("wrapping.inner", "wrapping"):
        assert torch.equal(found[name][0], alone["wrapping"][0])
        assert torch.equal(found[name][1], alone["wrapping"][1])


def test_inputs_given_by_keyword():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(input=self.fc(input=x))

    model = networks.seeded(Net).double()
    found = capture(model, VECTORS, ["fc", "head:in"])
    assert torch.equal(found["fc"][1], found["head:in"][1])
    assert torch.equal(capture(model, VECTORS, ["head:in"])["head:in"][1], found["fc"][1])


def test_a_time_major_layer_with_as_many_steps_as_samples_is_not_mixed_up():
    """Five steps, five samples: the trial run of two samples tells the axes apart."""
    model = networks.seeded(networks.Recurrent, batch_first=False).float()
    model.between = nn.Identity()
    ids = torch.randint(0, 9, (40, 5), generator=torch.Generator().manual_seed(1))
    hidden = {}

    def forward(tokens):
        out, _ = model.rnn(model.embed(tokens).transpose(0, 1))
        return model.head(model.between(out).mean(0))

    model.forward = forward
    for size_of_batch in (5, 40):
        hidden[size_of_batch] = rs.record(
            model, ids, layers="between", pool="mean", block=5, batch_size=size_of_batch
        )
    a, b = (rep["between"].blocks("features") for rep in hidden.values())
    assert torch.allclose(a, b, atol=1e-6)


def test_a_layer_without_one_row_a_sample_is_refused():
    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head = nn.Linear(3, 4), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.fc(x.reshape(-1, 3)).reshape(len(x), -1))

    with pytest.raises(LayerError, match=r"'fc': expected 5 samples.*found shape \(10, 4\)"):
        capture(networks.seeded(Merged).double(), VECTORS, ["fc"])


def test_a_layer_without_a_floating_point_output_is_refused():
    class Net(networks.MLP):
        def __init__(self):
            super().__init__()
            self.which = nn.Identity()

        def forward(self, x):
            self.which(torch.arange(len(x)))
            return super().forward(x)

    with pytest.raises(LayerError, match="'which': expected a dense floating-point tensor"):
        capture(networks.seeded(Net).double(), VECTORS, ["which"])


# -- gradients that do not arrive ----------------------------------------------------------------


class SideBranch(networks.MLP):
    def __init__(self):
        super().__init__()
        self.side = nn.Linear(6, 2)

    def forward(self, x):
        self.side(x)
        return super().forward(x)


def test_a_layer_whose_gradient_never_arrives_is_named():
    with pytest.raises(LayerError, match="'side' gets no gradient"):
        capture(networks.seeded(SideBranch).double(), VECTORS, ["fc1", "side"])


def test_no_layer_reaching_the_loss_is_an_error():
    with pytest.raises(LayerError, match="no tapped layer reaches the loss"):
        capture(networks.seeded(SideBranch).double(), VECTORS, ["side"])


def test_features_of_a_side_branch_can_be_recorded():
    found = capture(networks.seeded(SideBranch).double(), VECTORS, ["side"], gradients=False)
    assert found["side"][0].shape == (5, 2)


def test_a_layer_that_runs_only_on_some_batches_is_named():
    class Sometimes(networks.MLP):
        def __init__(self):
            super().__init__()
            self.rare = nn.Identity()

        def forward(self, x):
            return super().forward(self.rare(x) if len(x) <= 2 else x)

    with pytest.raises(LayerError, match="'rare' never runs on this batch"):
        rs.record(networks.seeded(Sometimes), VECTORS.float().repeat(8, 1), layers="rare")


def test_a_layer_is_left_out_from_the_first_batch_on_or_not_at_all():
    model, found = networks.seeded(networks.MLP).double(), []

    def run():
        return model(VECTORS)

    def consume(i, features, grads):
        found.append(i)

    def narrow(x):  # the rows of the second layer alone
        return x if x.shape[1] == second else None

    with run_in_eval_mode(model):
        calls, _ = trace(model, run)
        taps = select_layers(model, "auto", calls)
        second = next(call.shape[1] for call in calls if call.name == taps[-1].name)
        with Capture(model, taps, gradients=False, may_drop=True) as captured:
            captured.run(run, None, 5, consume, narrow)
            assert captured.dropped == set(range(len(taps))) - set(found)
            assert captured.dropped
            captured.run(run, None, 5, consume, narrow)
        with Capture(model, taps, gradients=False, may_drop=True) as captured:
            captured.run(run, None, 5, consume)
            with pytest.raises(LayerError, match="expected one row for each position"):
                captured.run(run, None, 5, consume, narrow)


# -- callers and wrappers ------------------------------------------------------------------------


def test_unregistered_tensors_that_require_grad_do_no_harm():
    class Net(networks.MLP):
        def forward(self, x):
            return super().forward(x * self.scale)

    model = networks.seeded(Net).double()
    model.scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    expected = capture(networks.seeded(networks.MLP).double(), VECTORS, ["fc1", "act2"])
    assert_matches(
        capture(model, VECTORS, ["fc1", "act2"]),
        {k: (f.numpy(), g.numpy()) for k, (f, g) in expected.items()},
        ["fc1", "act2"],
    )
    assert model.scale.grad is None


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_any_grad_mode_of_the_caller(mode):
    model = networks.seeded(networks.ResNet)
    images = IMAGES.float().repeat(8, 1, 1, 1)
    expected = rs.record(model, images)
    with mode():
        inside = images.clone()  # an inference tensor in inference mode
        found = rs.record(model, inside)
        assert torch.is_grad_enabled() == (mode is torch.enable_grad)
    stored.assert_same(found, expected)


def test_frozen_models():
    model = networks.seeded(networks.MLP).double()
    expected = capture(model, VECTORS, ["act1", "act2"])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = capture(model, VECTORS, ["act1", "act2"])
    assert torch.equal(found["act1"][1], expected["act1"][1])
    assert not any(p.requires_grad for p in model.parameters())


def test_channels_last():
    model = networks.seeded(networks.ResNet).double()
    expected = capture(model, IMAGES, ["relu", "layer1.0"])
    model = model.to(memory_format=torch.channels_last)
    images = IMAGES.to(memory_format=torch.channels_last)
    found = capture(model, images, ["relu", "layer1.0"])
    for name in expected:
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-12)
    flat = [
        rs.record(m.float(), x.float().repeat(8, 1, 1, 1), layers="relu", block=5, max_dim=None)
        for m, x in ((model, images), (networks.seeded(networks.ResNet), IMAGES))
    ]
    # The order of features in memory must not matter, to the round-off of float32.
    assert torch.allclose(*(rep["relu"].buckets("features") for rep in flat), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_low_precision(dtype, autocast):
    model = networks.seeded(networks.MLP)
    vectors = VECTORS.float()
    exact = capture(model, vectors, ["act1", "act2"])
    if autocast:
        with torch.autocast("cpu", dtype=dtype):
            found = capture(model, vectors, ["act1", "act2"])
    else:
        found = capture(model.to(dtype), vectors.to(dtype), ["act1", "act2"])
    # bfloat16 has 8 bits of mantissa; a few layers lose a few of them
    for name in exact:
        for ours, theirs in zip(found[name], exact[name], strict=True):
            assert float((ours.float() - theirs).norm() / theirs.norm()) < 0.05


def test_small_gradients_survive_float16():
    """Gradients around 1e-7 vanish in float16, whose smallest number is 6e-8, but for a scale."""
    model = networks.seeded(networks.MLP, width=32)
    with torch.no_grad():
        model.head.weight *= 3e-4
    vectors = VECTORS.float()
    exact = capture(model, vectors, ["act1"])["act1"][1]
    assert float(exact.abs().median()) < 2e-7
    found = capture(model.half(), vectors.half(), ["act1"])["act1"][1]
    assert float((found - exact).norm() / exact.norm()) < 0.02


# -- hooks ---------------------------------------------------------------------------------------


def hooks_of(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def test_a_module_that_refuses_a_hook_leaves_none_on_the_others():
    class NoHooks(nn.Linear):
        def register_forward_hook(self, *args, **options):
            raise RuntimeError("no hooks here")

    class Later(networks.MLP):
        def __init__(self):
            super().__init__()
            self.head = NoHooks(self.head.in_features, self.head.out_features)

    model = Later()
    taps = [Tap(name, name, 1, False) for name in ("fc1", "act1", "fc2", "act2", "head")]
    with pytest.raises(RuntimeError, match="no hooks here"), Capture(model, taps, gradients=True):
        pass
    assert not any(hooks_of(model))


def test_an_interruption_on_any_line_of_entering_leaves_no_hook():
    """Ctrl-C may come between any two lines, such as when a hook is on and not yet noted."""
    taps = [
        Tap(f"{name}{end}", name, 1, bool(end)) for name in ("fc1", "fc2") for end in ("", ":in")
    ]
    lines = 0

    def interrupted_at(line):
        left = line

        def trace_lines(frame, event, _):
            nonlocal left
            if frame.f_code is not Capture.__enter__.__code__:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return trace_lines

        model, before = networks.seeded(networks.MLP), sys.gettrace()
        sys.settrace(trace_lines)
        try:
            with Capture(model, taps, gradients=True):
                return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            assert not any(hooks_of(model))

    while interrupted_at(lines):
        lines += 1
    assert lines > 2 * len(taps)  # a hook each, in a loop


class Between(nn.Module):
    """Two linear layers, with something made of what lies between them and taken back."""

    def __init__(self, there, back):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)
        self.between, self.back = Applied(there), back

    def forward(self, x):
        return self.fc2(self.back(self.between(self.fc1(x))))


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


UNREADABLE = {
    "complex64": (lambda x: torch.complex(x, x), lambda z: z.real),
    "sparse": (lambda x: x.to_sparse(), lambda z: z.to_dense()),
    "meta": (lambda x: x.to("meta"), lambda z: torch.ones(z.shape)),
    "nested": (lambda x: torch.nested.nested_tensor(list(x)), lambda z: torch.stack(z.unbind())),
    "int64": (lambda x: x.long(), lambda z: z.float()),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_layer_whose_outputs_hold_no_real_numbers_is_named(kind):
    net, x = Between(*UNREADABLE[kind]), torch.randn(40, 6)
    with pytest.raises(LayerError, match=rf"layer 'between': expected a dense .*{kind}"):
        rs.record(net, x, layers=["between"], gradients=False)
    assert rs.record(net, x, layers=["fc1"], gradients=False).layer_names == ["fc1"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_features_in_8_bits_are_recorded_and_their_gradients_refused(dtype):
    x = torch.randn(40, 6)
    net = networks.seeded(lambda: Between(lambda x: x.to(dtype), lambda z: z.float()))
    wide = networks.seeded(lambda: Between(lambda x: x.to(dtype).float(), lambda z: z))
    with pytest.raises(LayerError, match=r"'between' returns torch.float8.*gradients underflow"):
        rs.record(net, x, layers=["between"])
    one, two = (rs.record(n, x, layers=["between"], gradients=False) for n in (net, wide))
    assert torch.equal(one[0].buckets("features"), two[0].buckets("features"))
    assert torch.equal(one[0].blocks("features"), two[0].blocks("features"))


@pytest.mark.parametrize("kind", ["complex64", "sparse", "meta"])
def test_outputs_that_are_no_logits_at_all_are_refused_clearly(kind):
    class Net(networks.MLP):
        def forward(self, x):
            return UNREADABLE[kind][0](super().forward(x))

    with pytest.raises(TargetError, match=rf"expected logits as a dense tensor.*{kind}"):
        rs.record(Net(), torch.randn(40, 6))
    assert len(rs.record(Net(), torch.randn(40, 6), gradients=False)) == 2


POSITIONS = np.array([[4, 0], [1, 2], [3, 3], [0, 4], [2, 1]])


def test_rows_come_window_by_window_and_in_each_block_by_block():
    pieces = [Piece(0, np.array([7, 8, 9])), Piece(1, np.array([3, 4]))]
    rows = Rows(Batch(pieces, None, SampledTokens(POSITIONS, 5)))
    assert rows.sample.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert rows.token.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    x = torch.randn(5, 5, 3)
    found = rows.pick(x)
    for row, sample, token in zip(found, rows.sample, rows.token, strict=True):
        assert torch.equal(row, x[sample, POSITIONS[sample, token]])


def test_samples_that_are_whole_stay_as_they_are():
    rows = Rows(Batch([Piece(0, np.arange(4))], None))
    x = torch.randn(4, 2, 2)
    assert rows.pick(x) is x
    assert rows.sample.tolist() == [0, 1, 2, 3]


def test_an_output_without_such_positions_has_no_rows():
    rows = Rows(Batch([Piece(0, np.arange(5))], None, SampledTokens(POSITIONS, 5)))
    assert all(rows.pick(torch.zeros(shape)) is None for shape in [(5, 5), (5, 6, 2), (4, 5, 2)])
