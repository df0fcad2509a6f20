"""Effects of exchanged blocks against networks that are built by hand, and lists that hold."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import little_language
import resemblance as rs
from digit_copies import pruned, rounded, trained, unseen
from resemblance.analysis.sensitivity import (
    MEASURES,
    divergence_of_rows,
    mean_of_predictions,
)
from resemblance.errors import DataError, LayerError, MismatchError

LAYERS = ("1", "3", "5")


@pytest.fixture(scope="module")
def images():
    return unseen()[0][:200]


def mixed(base, other, names):
    """The base with the weights of some layers of the other."""
    net = copy.deepcopy(base)
    for name in names:
        net.get_submodule(name).load_state_dict(other.get_submodule(name).state_dict())
    return net


def plain_effects(measure, base, net, x):  # (samples,)
    """By the definitions, in float64."""
    with torch.no_grad():
        a, b = (m.double()(x.double()) for m in map(copy.deepcopy, (base, net)))
    p, q = a.softmax(-1), b.softmax(-1)
    if measure == "kl":
        return (p * (p / q).log()).sum(-1)
    if measure == "js":
        m = (p + q) / 2
        return ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
    if measure == "disagreement":
        return (a.argmax(-1) != b.argmax(-1)).double()
    return ((a - b) ** 2).sum(-1) / (a**2).sum(-1)


def mean_and_error(values):
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


# -- effects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
def test_effects_are_those_of_networks_built_by_hand(measure, images):
    base, other = trained(), rounded(3)
    found = rs.sensitivity(base, other, images, measure=measure, samples=200, batch_size=64)
    assert found.blocks == LAYERS
    whole = plain_effects(measure, base, other, images)
    assert (found.whole, found.whole_stderr) == pytest.approx(mean_and_error(whole), rel=1e-4)
    for i, name in enumerate(LAYERS):
        own = plain_effects(measure, base, mixed(base, other, [name]), images)
        assert (found.own[i], found.own_stderr[i]) == pytest.approx(mean_and_error(own), rel=1e-4)
        restored = plain_effects(measure, base, mixed(other, base, [name]), images)
        gain = mean_and_error(whole - restored)
        assert (found.gain[i], found.gain_stderr[i]) == pytest.approx(gain, rel=1e-3, abs=1e-7)


def test_tiny_divergences_keep_their_digits():
    generator = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(64, 50, generator=generator)
    other = z + 1e-4 * torch.randn(64, 50, generator=generator)
    log_p, log_q = (x.double().log_softmax(-1) for x in (z, other))
    exact = (log_p.exp() * (log_p - log_q)).sum(-1)
    found = divergence_of_rows(z, other, "kl", False).double()
    assert torch.allclose(found, exact, rtol=1e-2)  # where float32 rounds by ten times the sum
    assert bool((found >= 0).all())


def test_independent_labels_and_impossible_classes():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 30, 4, generator=generator)
    p, q = a.double().sigmoid(), b.double().sigmoid()
    kl = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(-1)
    assert torch.allclose(divergence_of_rows(a, b, "kl", True).double(), kl, rtol=1e-4)
    differ = ((a > 0) != (b > 0)).any(-1).float()
    assert torch.equal(divergence_of_rows(a, b, "disagreement", True), differ)
    a[:, 0] = b[:, 0] = -torch.inf  # a class that is masked out in both
    rest = divergence_of_rows(a[:, 1:], b[:, 1:], "kl", False)
    assert torch.allclose(divergence_of_rows(a, b, "kl", False), rest, rtol=1e-5)
    assert divergence_of_rows(a, a * torch.nan, "disagreement", False).isnan().all()


class Sum(nn.Module):
    """Three parts whose outputs are added, so that effects interact in pairs alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 5) for _ in range(3))

    def forward(self, x):
        return self.a(x) + self.b(x) + self.c(x)


def test_contributions_are_shapley_values_where_blocks_interact_in_pairs():
    torch.manual_seed(2)
    base, other, x = Sum(), Sum(), torch.randn(64, 6)
    found = rs.sensitivity(base, other, x, measure="distance")

    def value(names):
        return float(plain_effects("distance", base, mixed(base, other, names), x).mean())

    orders = list(itertools.permutations("abc"))
    for i, name in enumerate("abc"):
        before = [order[: order.index(name)] for order in orders]
        shapley = np.mean([value([*rest, name]) - value(rest) for rest in before])
        assert found.contribution[i] == pytest.approx(shapley, rel=1e-5)
    assert found.contribution.sum() == pytest.approx(found.whole, rel=1e-5)


def test_standard_errors_cover_where_sequences_differ_in_length():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        counts = rng.integers(2, 30, 128).astype(float)
        level = rng.lognormal(0, 0.5, 128)  # tokens of one sequence are alike
        value, error = mean_of_predictions(level * counts, counts)
        inside += abs(value - math.exp(0.125)) < 1.96 * error
    assert 0.92 < inside / 1000 < 0.97
    assert math.isnan(mean_of_predictions(np.ones(1), np.ones(1))[1])


# -- lists --------------------------------------------------------------------------------------


def test_a_list_is_ranked_by_contribution_and_verified(images):
    base, other = trained(), rounded(3)
    found = rs.sensitivity(base, other, images, keep=2)
    assert found.spared == tuple(LAYERS[i] for i in np.argsort(-found.contribution)[:2])
    (kept,) = set(LAYERS) - set(found.spared)
    verified = plain_effects("kl", base, mixed(base, other, [kept]), images)
    remaining = found.remaining, found.remaining_stderr
    assert remaining == pytest.approx(mean_and_error(verified), rel=1e-4)
    assert "was run on the same samples; the remaining effect is" in found.summary()
    frame = found.to_frame()
    assert set(frame.index[frame.spared]) == set(found.spared)


def test_the_shortest_list_that_reaches_a_target(images):
    base, other = trained(), rounded(3)
    left = [rs.sensitivity(base, other, images, keep=k).remaining for k in range(4)]
    assert left[3] == 0
    for k in range(1, 4):
        limit = (left[k] + left[k - 1]) / 2
        found = rs.sensitivity(base, other, images, target=limit)
        assert (len(found.spared), found.remaining) == (k, left[k])
        assert "is reached" in found.summary()
    assert rs.sensitivity(base, other, images, target=10.0).spared == ()
    out_of_reach = rs.sensitivity(base, other, images, groups=["1"], target=left[3])
    assert out_of_reach.spared == ("1",)
    assert out_of_reach.remaining > 0
    assert "is not reached" in out_of_reach.summary()


def test_lists_for_other_tools(images):
    found = rs.sensitivity(trained(), rounded(3), images, keep=1)
    (name,) = found.spared
    assert found.lists["names"] == [name]
    assert re.match(found.lists["regex"], f"{name}.inner")
    assert not re.match(found.lists["regex"], f"{name}0")
    assert found.lists["llm-compressor"] == [rf"re:^{name}(\.|$)"]
    assert json.loads(json.dumps(found.to_dict()))["lists"] == found.lists


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.stage = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])

    def forward(self, x):
        x = self.stage(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x


def test_nodes_of_an_exported_graph_are_found_by_the_names_of_modules(tmp_path):
    onnx = pytest.importorskip("onnx")
    base, x = Nested(), torch.randn(64, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of this exporter, which still is used
        torch.onnx.export(base, x, tmp_path / "net.onnx", dynamo=False)
    graph = onnx.load(tmp_path / "net.onnx").graph
    other = copy.deepcopy(base)
    names = ["stem", "stage.0.0", "stage.1", "blocks.0.0", "blocks.1.0"]
    for name in names:
        other.get_submodule(name).weight.data.mul_(1.1)
        found = rs.sensitivity(base, other, x, groups=name, keep=1)
        nodes = eval(found.lists["onnxruntime"], {"graph": graph})
        assert [node for node in nodes if node.endswith("/Gemm")] == nodes[:1]
        other.get_submodule(name).load_state_dict(base.get_submodule(name).state_dict())


# -- cost and traces ----------------------------------------------------------------------------


def test_passes_are_counted(images):
    base, other = trained(), rounded(3)
    runs = []
    hooks = [
        net.register_forward_pre_hook(lambda m, x: runs.append(len(x[0]))) for net in (base, other)
    ]
    found = rs.sensitivity(base, other, images, samples=96, batch_size=48, keep=1)
    for hook in hooks:
        hook.remove()
    assert found.passes == 2 * len(LAYERS) + 2 + 2  # a list costs two more
    assert sum(n for n in runs if n > 2) == 96 * found.passes  # trials are of two samples
    assert found.samples == 96


def test_results_do_not_depend_on_the_batch_size_and_do_on_the_seed(images):
    first, same, other = (
        rs.sensitivity(trained(), rounded(3), images, samples=60, batch_size=b, seed=s)
        for b, s in ((7, 0), (60, 0), (7, 1))
    )
    assert np.allclose(first.own, same.own, rtol=1e-4)
    assert not np.allclose(first.own, other.own, rtol=1e-2)


def test_models_are_left_untouched(images):
    base, other = trained(), rounded(3)
    base.train()
    before = [
        ({k: v.clone() for k, v in net.state_dict().items()}, list(net.modules()))
        for net in (base, other)
    ]
    rs.sensitivity(base, other, images)
    for net, (state, modules) in zip((base, other), before, strict=True):
        assert all(x is y for x, y in zip(net.modules(), modules, strict=True))
        assert all(torch.equal(net.state_dict()[k], v) for k, v in state.items())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
        assert all(p.requires_grad for p in net.parameters())
    assert base.training
    base.eval()


class Fails(nn.Linear):
    left = 10

    def forward(self, x):
        Fails.left -= 1
        if Fails.left < 0:
            raise ZeroDivisionError("in the middle")
        return super().forward(x)


def test_models_are_left_untouched_by_an_error():
    base = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    other = nn.Sequential(Fails(4, 4), nn.ReLU(), Fails(4, 3))
    before = [list(net.modules()) for net in (base, other)]
    with pytest.raises(ZeroDivisionError):
        rs.sensitivity(base, other, torch.randn(64, 4))
    for net, modules in zip((base, other), before, strict=True):
        assert list(net.modules()) == modules
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


# -- kinds of copies ----------------------------------------------------------------------------


def test_a_pruned_copy_and_one_that_is_the_same_in_part(images):
    found = rs.sensitivity(trained(), mixed(trained(), pruned(0.6), ["3"]), images)
    assert found.blocks == found.spared == ("3",)
    assert found.unchanged == ("1", "5")
    assert found.own[0] == found.gain[0] == found.whole > 0
    assert found.remaining == 0


def test_torchs_own_dynamic_int8(images):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what goes in its later versions
        other = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(trained()), {nn.Linear}, torch.qint8
        )
    found = rs.sensitivity(trained(), other, images)
    assert found.blocks == LAYERS
    assert 0 < found.whole < 0.01
    assert found.contribution.sum() == pytest.approx(found.whole, rel=0.3)


def test_a_copy_in_half_precision(images):
    other = copy.deepcopy(trained()).bfloat16()
    found = rs.sensitivity(trained(), other, images, keep=3)
    assert found.blocks == LAYERS
    assert 0 < found.whole < 0.01
    assert found.remaining < found.whole  # what is left is the rounding of the inputs
    backwards = rs.sensitivity(other, trained(), images)
    assert backwards.whole == pytest.approx(found.whole, rel=0.2)


def language(seed=0):
    net = little_language.gpt2(seed=seed).eval()
    with torch.no_grad():  # predictions that are not uniform
        for weight in net.parameters():
            weight.mul_(3)
    return net


def tokens(n=64, length=12):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 300, (n, length), generator=generator)
    mask = torch.arange(length) < torch.randint(3, length + 1, (n, 1), generator=generator)
    return {"input_ids": ids, "attention_mask": mask.long()}


def test_a_language_model_with_tied_weights_and_padding():
    pytest.importorskip("transformers")
    base, data = language(), tokens()
    other = copy.deepcopy(base)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + 0.05 * torch.randn_like(weight))
    found = rs.sensitivity(base, other, data)
    assert found.blocks == (
        "transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1",
        "transformer.ln_f", "lm_head",
    )  # fmt: skip
    real = data["attention_mask"].bool()
    with torch.no_grad():
        a, b = (net(**data).logits.double()[real].log_softmax(-1) for net in (base, other))
    kl = (a.exp() * (a - b)).sum(-1)
    assert found.whole == pytest.approx(float(kl.mean()), rel=1e-3)
    assert (found.samples, found.predictions) == (64, int(real.sum()))
    (note,) = (n for n in found.notes if n.code == "shared-weights")
    assert "transformer.wte.weight = lm_head.weight" in note
    assert "tokens of 64 sequences" in found.summary()


def test_a_lora_adapter_on_some_layers():
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    base, data = language(), tokens()
    how = peft.LoraConfig(
        r=2, target_modules=["c_attn"], layers_to_transform=[1], fan_in_fan_out=True,
        init_lora_weights=False,
    )  # fmt: skip
    adapted = peft.get_peft_model(copy.deepcopy(base), how)
    found = rs.sensitivity(base, adapted, data)
    assert found.blocks == ("transformer.h.1",)
    assert "transformer.h.0" in found.unchanged
    assert found.own[0] == pytest.approx(found.whole, rel=1e-4) != 0
    merged = adapted.merge_and_unload()
    assert rs.sensitivity(base, merged, data).whole == pytest.approx(found.whole, rel=1e-3)
    layer = "transformer.h.1.attn.c_attn"
    assert rs.sensitivity(base, merged, data, groups=layer).blocks == (layer,)


def test_an_embedding_model_is_measured_by_the_distance_of_its_outputs():
    pytest.importorskip("transformers")
    base, data = language().transformer, tokens()
    other = copy.deepcopy(base)
    with torch.no_grad():
        other.h[1].mlp.c_fc.weight.mul_(1.1)
    found = rs.sensitivity(base, other, data)
    real = data["attention_mask"].bool()
    with torch.no_grad():
        a, b = (net(**data).last_hidden_state.double()[real] for net in (base, other))
    each = ((a - b) ** 2).sum(-1) / (a**2).sum(-1)
    assert (found.measure, found.blocks) == ("distance", ("h.1",))
    assert found.whole == pytest.approx(float(each.mean()), rel=1e-4)


class Twice(nn.Module):
    """One layer under two names, and one that is used but is no module of the tree."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.last = nn.Linear(4, 3)
        self.hidden = [nn.Linear(4, 4)]
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = self.hidden[0](self.again(self.first(x).tanh()).tanh())
        return self.last(x * self.scale)


def test_a_shared_module_is_exchanged_wherever_it_is_used():
    torch.manual_seed(3)
    base = Twice()
    other = copy.deepcopy(base)
    with torch.no_grad():
        other.first.weight.mul_(1.2)
        other.scale.mul_(1.1)
    x = torch.randn(64, 4)
    found = rs.sensitivity(base, other, x)
    assert found.blocks == ("first",)
    alone = copy.deepcopy(base)
    alone.first.load_state_dict(other.first.state_dict())
    with torch.no_grad():
        p, q = (net(x).double().log_softmax(-1) for net in (base, alone))
    assert found.own[0] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3)
    (note,) = (n for n in found.notes if n.code == "weights-outside")
    assert note == "weights outside of all blocks differ too: scale"


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Residual(nn.Module):
    def __init__(self, width, inner, blocks=2):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.Sequential(*(Block(width, inner) for _ in range(blocks)))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def test_blocks_that_cannot_be_exchanged_are_named():
    x = torch.randn(64, 8)
    base, narrow = Residual(6, 12), Residual(6, 8, blocks=1)
    narrow.head = nn.Sequential(nn.Identity(), nn.Linear(6, 3))
    found = rs.sensitivity(base, narrow, x)
    assert found.blocks == ("stem", "blocks.0", "head")
    assert found.excluded == (("blocks.1", "the copy has no module 'blocks.1'"),)
    assert "Not exchanged: blocks.1 (the copy has no module 'blocks.1')." in found.summary()
    wide = Residual(7, 12)
    with pytest.raises(
        LayerError, match=r"can be exchanged; stem: the network with it alone does not run"
    ):
        rs.sensitivity(base, wide, x)


def test_blocks_that_were_changed_together_are_named():
    """A basis turned in all blocks: the whole copy is the base, and each block alone is not."""
    torch.manual_seed(4)
    base, x = Residual(6, 12), torch.randn(64, 8)
    turn = torch.linalg.qr(torch.randn(6, 6)).Q
    other = copy.deepcopy(base)
    with torch.no_grad():
        other.stem.weight.copy_(turn @ base.stem.weight)
        other.stem.bias.copy_(turn @ base.stem.bias)
        other.head.weight.copy_(base.head.weight @ turn.T)
        for mine, theirs in zip(other.blocks, base.blocks, strict=True):
            mine.up.weight.copy_(theirs.up.weight @ turn.T)
            mine.down.weight.copy_(turn @ theirs.down.weight)
            mine.down.bias.copy_(turn @ theirs.down.bias)
    found = rs.sensitivity(base, other, x)
    assert found.whole < 1e-9
    (note,) = (n for n in found.notes if n.code == "not-alone")
    assert all(name in note for name in found.blocks)
    codes = [n.code for n in rs.sensitivity(trained(), rounded(3), unseen()[0]).notes]
    assert "not-alone" not in codes


def test_a_hook_on_the_copy_alone_counts_as_a_change(images):
    other = copy.deepcopy(trained())
    other[3].register_forward_hook(lambda m, x, y: y.half().float())
    found = rs.sensitivity(trained(), other, images)
    assert found.blocks == ("3",)


# -- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": 0}, "`samples` must be a whole number, 1 or more"),
        ({"batch_size": 0}, "`batch_size` must be a whole number, 1 or more"),
        ({"keep": -1}, "`keep` must be a whole number"),
        ({"keep": 1, "target": 0.1}, "pass either `keep` or `target`"),
        ({"target": -0.1}, "`target` must be a number, 0 or more"),
        ({"measure": "mse"}, "`measure` must be auto, kl, js"),
        ({"names": ("base", "")}, "`copy` must be a non-empty string"),
    ],
)
def test_options_out_of_range(options, said, images):
    with pytest.raises(DataError, match=re.escape(said)):
        rs.sensitivity(trained(), rounded(3), images, **options)


def test_groups_that_cannot_be_exchanged(images):
    with pytest.raises(LayerError, match=r"found the input of one, '3:in'"):
        rs.sensitivity(trained(), rounded(3), images, groups="3:in")
    nested = Nested()
    with pytest.raises(LayerError, match=r"'stage.0' is inside 'stage'"):
        rs.sensitivity(
            nested, copy.deepcopy(nested), torch.randn(8, 4), groups=["stage", "stage.0"]
        )
    with pytest.raises(LayerError, match="no blocks that differ between base and copy"):
        rs.sensitivity(trained(), trained_again(), images)
    with pytest.raises(LayerError, match="found no layer that has any"):
        rs.sensitivity(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU()), torch.randn(8, 4))


def trained_again():
    return copy.deepcopy(trained())


def test_outputs_that_cannot_be_compared(images):
    other = copy.deepcopy(trained())
    other[5] = nn.Linear(24, 4)
    with pytest.raises(MismatchError, match=r"found \(.*10\) of the base and \(.*4\)"):
        rs.sensitivity(trained(), other, images)
    broken = copy.deepcopy(trained())
    broken[3].weight.data[0] = torch.nan
    with pytest.raises(DataError, match="outputs of the base or of the copy are NaN"):
        rs.sensitivity(trained(), broken, images)

    class NoRows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).sum(0)

    with pytest.raises(LayerError, match="expected outputs with one row for each sample"):
        rs.sensitivity(NoRows(), NoRows(), torch.randn(64, 4), measure="distance")


class OutOfMemory(nn.Linear):
    def forward(self, x):
        if len(x) > 2:
            raise torch.OutOfMemoryError
        return super().forward(x)


def test_out_of_memory_says_what_to_do():
    base = nn.Sequential(OutOfMemory(4, 3))
    other = copy.deepcopy(base)
    other[0].weight.data.mul_(2)
    with pytest.raises(DataError, match=r"out of memory; pass a smaller `batch_size`"):
        rs.sensitivity(base, other, torch.randn(64, 4))


def test_a_network_of_another_engine_is_refused(tmp_path):
    net = torch.jit.trace(nn.Linear(4, 3), torch.randn(2, 4))
    with pytest.raises(LayerError, match="runs outside of PyTorch"):
        rs.sensitivity(net, net, torch.randn(64, 4))
