"""Which layer is set beside which: of copies in real wrappers, cut, narrowed and renamed ones."""

from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import warnings
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import networks
import resemblance as rs
from optional_libraries import usable_torchvision
from resemblance.similarity.comparison import Comparison
from resemblance.similarity.pairing import (
    LayerKey,
    Matching,
    align_layers,
    match_by_name,
    match_in_all,
    match_layers,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
SCORES = np.random.default_rng(0).uniform(size=(64, 64))
NAMES = st.sampled_from(["a", "b.c", "b.d", "b.e", "net.a", "net.b.c", "f", "net.b.d"])
SOME = st.lists(NAMES, min_size=1, max_size=6, unique=True)


def matched(rows, columns):
    """How layers of these names, or names and shapes, are matched."""
    sides = (
        [LayerKey(*x) if isinstance(x, tuple) else LayerKey(x) for x in y] for y in (rows, columns)
    )
    found = match_layers(*sides, SCORES[: len(rows), : len(columns)])
    return found.by, found.columns


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (["a", "b"], ["a", "b"], (0, 1)),
        (["a", "b", "c"], ["c", "b", "a"], (2, 1, 0)),  # whatever their order
        (["h.0", "h.1"], ["model.h.0", "model.h.1"], (0, 1)),  # a prefix on one side
        (["transformer.h.0", "transformer.h.1", "head:in"], ["h.0", "h.1"], (0, 1, None)),
        (["a", "b", "c"], ["net.a", "b", "c", "net.d"], (0, 1, 2)),  # of some layers
        (["a", "b", "c"], ["net.a", "b", "c", "d"], (None, 1, 2)),  # of one: that is its name
        (["h.0", "h.1", "h.2"], ["h.0", "h.2"], (0, None, 1)),  # one was removed
        (["h.0", "h.2"], ["h.0", "h.1", "h.2"], (0, 2)),
        (["a", "b", "x", "y"], ["a", "b", "u", "v", "w"], (0, 1, None, None)),  # half of the fewer
        (["visual.0", "text.h.0", "text.h.1"], ["h.0", "h.1"], (None, 0, 1)),
        (["a", "a.b"], ["net.a", "net.a.b"], (0, 1)),
        (["2.a", "2.b:in"], ["a", "b:in"], (0, 1)),  # a Sequential around the network
        ([("a", (9,)), ("b", (9,))], [("a", (4,)), ("b", (5,))], (0, 1)),  # narrower
        (["0", "2"], ["0", "2"], (0, 1)),
        ([("0", (9,)), ("2", (9,))], [("0", (4,)), ("2", (4,))], (0, 1)),
        ([("0", (9,)), ("2", (8,))], [("0", (9,)), ("2", (8,)), ("4", (7,))], (0, 1)),
        ([("0", (9,)), ("2:in", (8,))], [("net.0", (9,)), ("net.2:in", (8,))], (0, 1)),
    ],
)
def test_namesakes_are_counterparts(rows, columns, expected):
    assert matched(rows, columns) == ("name", expected)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (["a", "b", "c"], ["a", "x", "y", "z"]),  # fewer than half
        (["h.0", "h.1"], ["layers.0", "layers.1"]),  # a number after another word is no name
        (["encoder.a", "encoder.b"], ["decoder.a", "decoder.b"]),  # other words on both sides
        ([("0", (9,)), ("2", (9,))], [("0", (4,)), ("2", (4,)), ("4", (4,))]),
        ([("1", (9,)), ("3:in", (8,))], [("1", (5,)), ("3:in", (4,)), ("4", (4,))]),
        ([("1#2", (9,))], [("1#2", (5,)), ("4", (4,))]),
        (["0", "2"], ["0", "2", "4"]),  # shapes are not known
    ],
)
def test_without_namesakes_or_equal_shapes_layers_are_aligned(rows, columns):
    scores = SCORES[: len(rows), : len(columns)]
    assert matched(rows, columns) == ("similarity", align_layers(scores))


def test_as_many_layers_of_the_same_shapes_are_matched_by_position():
    shapes = [(8, 4, 4), (8, 4, 4), (16,)]
    rows, columns = ([(f"{x}{i}", s) for i, s in enumerate(shapes)] for x in "ab")
    assert matched(rows, columns) == ("position", (0, 1, 2))
    assert matched(rows, columns[:2])[0] == "similarity"
    assert matched(rows, [*columns[:2], ("b2", (17,))])[0] == "similarity"


def test_of_a_layer_and_the_wrapper_around_it_the_wrapper_is_taken():
    layers = [LayerKey("fc1"), LayerKey("fc1"), LayerKey("fc2")]  # fc1.base_layer ends before fc1
    assert match_by_name([LayerKey("fc1"), LayerKey("fc2")], layers).columns == (1, 2)
    assert match_by_name(layers, [LayerKey("fc1"), LayerKey("fc2")]).columns == (None, 0, 1)
    assert match_by_name(layers, layers).columns == (0, 1, 2)


@settings(max_examples=60, deadline=None)
@given(one=SOME, two=SOME)
def test_namesakes_are_the_same_either_way_round(one, two):
    scores = SCORES[: len(one), : len(two)]
    there = match_layers([LayerKey(x) for x in one], [LayerKey(x) for x in two], scores)
    back = match_layers([LayerKey(x) for x in two], [LayerKey(x) for x in one], scores.T)
    assert there.by == back.by
    pairs = [(i, j) for i, j in enumerate(there.columns) if j is not None]
    assert there.turned(scores).by == there.by
    if there.by == "name":
        assert len({j for _, j in pairs}) == len(pairs)  # nobody's twice
        assert len(pairs) == sum(i is not None for i in back.columns)
        for i, j in pairs:
            assert there.turned(scores).columns[j] == i
            assert one[i].endswith(two[j]) or two[j].endswith(one[i])
    else:
        assert there.turned(scores) == back


def test_layers_of_all_networks_are_those_that_have_namesakes_in_all():
    nets = [["a", "b", "c", "d"], ["m.a", "m.c", "m.b", "m.x"], ["a", "y", "b", "c"]]
    known = [[LayerKey(name) for name in names] for names in nets]
    assert match_in_all(known) == [[0, 1, 2], [0, 2, 1], [0, 2, 3]]
    assert match_in_all([*known, [LayerKey(x) for x in ("a", "d", "u", "v")]]) is None  # of a alone
    assert match_in_all([*known, [LayerKey(x) for x in "stuv"]]) is None


# -- copies in wrappers ----------------------------------------------------------------------------


def origin(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


class Inside(nn.Module):
    """A network as part of another, as backbones and base models are."""

    def __init__(self, net):
        super().__init__()
        self.backbone = net

    def forward(self, x):
        return self.backbone(x)


def moved(net, size=0.3):
    """A copy whose weights are moved, so that layers differ from their origins."""
    net, noise = copy.deepcopy(net), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p += size * torch.randn(p.shape, generator=noise)
    return net


def assert_matched_as_unwrapped(wrapped, copied, x=X, **options):
    """A wrapped copy is as alike its origin as the copy is without a wrapper."""
    first = rs.record(origin(), x, name="origin", **options)
    bare, inside = (rs.record(net, x, name="copy", **options) for net in (copied, wrapped))
    plain, found = (
        rs.compare(first, bare, kernel="product"),
        rs.compare(first, inside, kernel="product"),
    )
    assert found.matching == Matching("name", tuple(range(len(first))))
    np.testing.assert_allclose(found.by_layer()[0], plain.by_layer()[0], atol=1e-6)
    np.testing.assert_allclose(found.mean(), plain.mean(), atol=1e-6)
    assert "layers matched by name" in found.summary()
    many = rs.compare_all([first, bare, inside], kernel="product")
    assert many.matched_by == "name"
    assert many.scores[0, 2] == pytest.approx(many.scores[0, 1], abs=1e-6)


def test_a_copy_inside_another_network():
    copied = moved(origin())
    assert_matched_as_unwrapped(Inside(copied), copied)
    assert_matched_as_unwrapped(nn.Sequential(nn.Identity(), Inside(copied)), copied)


def test_a_compiled_copy():
    copied = moved(origin())
    assert_matched_as_unwrapped(torch.compile(copy.deepcopy(copied), backend="eager"), copied)
    part = copy.deepcopy(copied)
    part.fc1 = torch.compile(part.fc1, backend="eager")
    assert_matched_as_unwrapped(Inside(part), copied)


def test_a_copy_in_distributed_data_parallel(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        copied = moved(origin())
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(copied))
        assert_matched_as_unwrapped(parallel, copied)
        assert_matched_as_unwrapped(Inside(parallel), copied)
    finally:
        torch.distributed.destroy_process_group()


def test_a_copy_whose_parts_are_checkpointed():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    copied = moved(origin())
    wrapped = copy.deepcopy(copied)
    wrapped.act1 = checkpoint_wrapper(wrapped.act1)
    assert_matched_as_unwrapped(wrapped, copied)


@pytest.fixture
def transformers():
    """transformers, also where the compiled operators of torchvision, which it loads, do not."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers, which is not installed")
    usable_torchvision()
    return importlib.import_module("transformers")


@pytest.fixture
def gpt2(transformers):
    """A tiny GPT-2 and sequences for it."""
    small = {"n_layer": 4, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 12}
    config = transformers.GPT2Config(**small, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (96, 12), generator=torch.Generator().manual_seed(0))
    return transformers.GPT2LMHeadModel(config).eval(), {"input_ids": ids}


@pytest.fixture
def adapted(gpt2):
    """It, a copy that a LoRA adapter changed in three of its four blocks, and both recorded."""
    if importlib.util.find_spec("peft") is None:
        pytest.skip("needs peft, which is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft loads
        import peft

        options = {"target_modules": ["c_attn"], "layers_to_transform": [1, 2, 3]}
        config = peft.LoraConfig(r=4, fan_in_fan_out=True, layers_pattern="h", **options)
        torch.manual_seed(1)
        net = peft.get_peft_model(copy.deepcopy(gpt2[0]), config)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.6)
    merged = copy.deepcopy(net).merge_and_unload()  # the same function, without a wrapper
    nets = {"origin": gpt2[0], "adapted": net, "merged": merged}
    return [rs.record(x, gpt2[1], name=name, pool="mean") for name, x in nets.items()]


def test_a_network_with_an_adapter_is_matched_with_its_origin(adapted, tmp_path):
    first, wrapped, merged = adapted
    assert all(name.startswith("base_model.model.") for name in wrapped.layer_names)
    for kernel in ("features", "gradients", "product"):
        found = rs.compare(first, wrapped, kernel=kernel)
        assert found.matching == Matching("name", tuple(range(len(first))))
        # as alike as the same weights are without a wrapper, and no more
        plain = rs.compare(first, merged, kernel=kernel)
        np.testing.assert_allclose(found.by_layer()[0], plain.by_layer()[0], atol=1e-3)
        assert found.mean() == pytest.approx(plain.mean(), abs=1e-3)
    # the best alignment calls them more alike than they are
    found = rs.compare(first, wrapped, kernel="features")
    assert found.mean()[0] < 0.6  # 0.44 as measured
    assert np.mean(found.match().aligned_scores) > 0.85  # 0.94
    # files say the same
    paths = [rep.save(tmp_path / f"{rep.name}.rsm") for rep in (first, wrapped)]
    assert rs.compare(*paths, kernel="features") == found


def test_many_networks_and_a_layer_by_name_are_seen_through_an_adapter(adapted):
    first, wrapped, merged = adapted
    many = rs.compare_all(adapted, kernel="product")
    assert many.matched_by == "name"
    assert many.layers[1] == tuple(wrapped.layer_names)
    expected = rs.compare(first, wrapped, kernel="product", estimator="blocks").mean()
    assert (many.scores[0, 1], many.stderr[0, 1]) == pytest.approx(expected, abs=1e-5)
    for name in (first.layer_names[2], wrapped.layer_names[2]):
        one = rs.compare_all(adapted, kernel="product", layer=name)
        assert one.layers == tuple((rep.layer_names[2],) for rep in adapted)
    with pytest.raises(rs.errors.LayerError, match="no layer 'nowhere'"):
        rs.compare_all(adapted, kernel="product", layer="nowhere")
    old = replace(wrapped, layers=tuple(replace(x, bare_name="") for x in wrapped))  # as of 0.1
    assert rs.compare(merged, old, kernel="product").matching.by == "name"


def test_a_base_model_is_matched_with_the_model_that_has_a_head(gpt2):
    net, ids = gpt2
    options = {"pool": "mean", "gradients": False}
    whole, base = rs.record(net, ids, **options), rs.record(net.transformer, ids, **options)
    assert whole.layer_names == [*(f"transformer.{x}" for x in base.layer_names), "lm_head:in"]
    found = rs.compare(whole, base, kernel="features")
    assert found.matching == Matching("name", (*range(len(base)), None))
    assert found.mean()[0] == pytest.approx(1, abs=1e-5)
    assert found.without_counterpart() == (("lm_head:in",), ())
    turned = rs.compare(base, whole, kernel="features")
    assert turned.matching == found.matching.turned(found.scores)
    assert "Layers of GPT2LMHeadModel without a counterpart: lm_head:in." in turned.summary()


# -- copies that were cut, narrowed or renamed -----------------------------------------------------


def chain(*names, width=8, seed=0):
    """Named stages, each a linear layer and a ReLU; equal names have equal weights."""
    torch.manual_seed(seed)
    weights = {name: nn.Linear(width, width) for name in "abcdef"}
    first, head = nn.Linear(6, width), nn.Linear(width, 3)
    stages = OrderedDict(stem=nn.Sequential(first, nn.ReLU()))
    stages |= {name: nn.Sequential(weights[name[0]], nn.ReLU()) for name in names}
    return nn.Sequential(stages | OrderedDict(head=head))


def recorded(net, *layers, name="net"):
    return rs.record(net, X, layers=list(layers), name=name, block=8)


def test_a_pruned_copy_is_matched_layer_by_layer_and_says_what_is_gone():
    whole = recorded(chain("a", "b", "c"), "stem", "a", "b", "c", name="whole")
    cut = recorded(chain("a", "c"), "stem", "a", "c", name="cut")
    found = rs.compare(whole, cut, estimator="blocks", kernel="features")
    assert found.matching == Matching("name", (0, 1, None, 2))
    assert found.without_counterpart() == (("b",), ())
    assert "Layers of whole without a counterpart: b." in found.summary()
    value, error, chance = found.by_layer()
    np.testing.assert_allclose(value[:2], 1, atol=1e-5)  # before the cut
    assert np.isnan([value[2], error[2], *chance[:, 2]]).all()
    assert value[3] == found.scores[3, 2]
    # the mean and its error are those of the layers that are in both
    kept = [whole[i] for i in (0, 1, 3)]
    without = rs.compare(replace(whole, layers=tuple(kept)), cut, kernel="features")
    assert found.mean() == pytest.approx(without.mean(), abs=1e-12)
    assert np.isfinite(found.mean()).all()
    back = rs.compare(cut, whole, estimator="blocks", kernel="features")
    assert back.matched == (0, 1, 3)
    assert back.mean() == pytest.approx(found.mean(), abs=1e-12)
    assert back.without_counterpart() == ((), ("b",))
    assert found.carried_by() is not None
    assert found.plot().axes[1].get_title(loc="left") == "layers matched by name"


def test_networks_of_equal_depth_of_which_some_layers_are_namesakes():
    one = recorded(chain("a", "b", "c"), "a", "b", "c", name="one")
    two = recorded(chain("a", "c", "d"), "a", "c", "d", name="two")
    found, many = (
        rs.compare(one, two, kernel="product", estimator="blocks"),
        rs.compare_all([one, two], kernel="product"),
    )
    assert found.matched == (0, None, 1)
    assert found.without_counterpart() == (("b",), ("d",))
    assert many.layers == (("a", "c"), ("a", "c"))
    assert many.heading == "cka of product at 2 layers matched by name, 120 samples"
    assert (many.scores[0, 1], many.stderr[0, 1]) == pytest.approx(found.mean(), abs=1e-6)


def test_a_narrower_copy_is_matched_by_name():
    wide, narrow = (recorded(chain("a", "b", width=w), "a", "b") for w in (12, 5))
    assert rs.compare(wide, narrow, kernel="product").matching == Matching("name", (0, 1))


def test_a_copy_under_other_names_is_matched_by_position():
    one = recorded(chain("a", "b", "c"), "a", "b", "c")
    two = recorded(chain("a_", "b_", "c_"), "a_", "b_", "c_")
    found = rs.compare(one, two, kernel="product")
    assert found.matching == Matching("position", (0, 1, 2))
    np.testing.assert_allclose(found.by_layer()[0], 1, atol=1e-5)
    assert "Mean over layers matched by position 1;" in found.summary()
    assert set(found.to_frame().matched_by) == {"position"}
    assert rs.compare_all([one, two], kernel="product").matched_by == "position"


def test_other_architectures_are_aligned_as_before():
    one = recorded(chain("a", "b", "c"), "a", "b", "c")
    two = recorded(chain("d", "e", width=5), "d", "e")
    found = rs.compare(one, two, kernel="product")
    assert found.matched_by == "similarity"
    assert tuple(found.columns[j] for j in found.matched) == found.match().aligned
    np.testing.assert_array_equal(found.by_layer()[0], found.match().aligned_scores)
    assert found.without_counterpart() == ((), ())
    assert rs.compare_all([one, two], kernel="product").matched_by == "relative depth"
    three = recorded(chain("d", "e", "f", width=5), "d", "e", "f")
    assert (
        rs.compare_all([one, three], kernel="product").matched_by == "position"
    )  # there are no scores to go by


def test_gradients_are_compared_at_the_counterparts_of_features():
    """Features follow one order and gradients the reverse; a row is one pair of layers."""
    g = torch.Generator().manual_seed(0)
    signals = [torch.randn(60, 4, generator=g) for _ in range(4)]

    def arrays(features, gradients, names):
        parts = ([signals[i] for i in order] for order in (features, gradients))
        given = (dict(zip(names, x, strict=True)) for x in parts)
        return rs.record_arrays(*given, data_id="x", name="".join(names))

    one = arrays([0, 1], [2, 3], "ab")
    two = arrays([0, 1, 2], [1, 2, 3], "cde")
    both = rs.compare(one, two)
    assert rs.compare(one, two, kernel="gradients").matched == (1, 2)
    assert both["features"].matched == both["gradients"].matched == (0, 1)
    scores = both["gradients"].scores
    np.testing.assert_array_equal(both["gradients"].by_layer()[0], [scores[0, 0], scores[1, 1]])
    replicates = both["gradients"].replicates
    assert abs(replicates.mean(0) - both["gradients"].by_layer()[0]).max() < 0.05
    frame = both.to_frame()
    assert list(frame[frame.kernel == "gradients"].counterpart) == [*(1, 0, 0), *(0, 1, 0)]


def test_how_layers_were_matched_is_kept_in_files_and_pickles(tmp_path):
    one = recorded(chain("a", "b", "c"), "a", "b", "c")
    for names in (("a", "c"), ("d", "e", "f"), ("d", "e")):
        found = rs.compare(one, recorded(chain(*names), *names), kernel="product")
        path = found.save(tmp_path / "c.json")
        content = json.loads(path.read_text())
        assert (content["matched_by"], tuple(content["matched"])) == (
            found.matched_by,
            found.matched,
        )
        assert Comparison.load(path) == found
        assert pickle.loads(pickle.dumps(found)) == found
        other = "position" if found.matched_by == "name" else "name"
        assert replace(found, matched_by=other) != found
