"""The pass: every number against the reference, what must not matter, and what is refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import networks
import reference
import resemblance as rs
from resemblance._seeded_hash import shuffled
from resemblance.errors import DataError, MismatchError, ResemblanceWarning

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)
IMAGES = torch.randn(40, 3, 6, 6, generator=G)
IDS = torch.randint(0, 9, (40, 4), generator=G)
FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


def one_by_one(batch):
    if isinstance(batch, dict):
        return [{k: v[n : n + 1] for k, v in batch.items()} for n in range(40)]
    return list(batch.split(1))


def assert_same(a, b, tolerance=0.0):
    """Equal entry by entry: bit for bit, or to a tolerance relative to √(K_ii K_jj)."""
    assert a.layer_names == b.layer_names
    assert (a.samples, a.settings) == (b.samples, b.settings)
    assert (a.block_sizes, a.block_numbers) == (b.block_sizes, b.block_numbers)
    assert a.data["fingerprint"] == b.data["fingerprint"]
    for one, two in zip(a, b, strict=True):
        assert one.moments == pytest.approx(dict(two.moments), rel=tolerance, abs=tolerance)
        assert one.tensors.keys() == two.tensors.keys()
        if tolerance == 0:
            for key in one.tensors:
                assert torch.equal(one.tensors[key], two.tensors[key]), (one.name, key)
            continue
        for kind in one.kinds:
            assert reference.close(one.buckets(kind), two.buckets(kind).numpy(), tolerance)
            for x, y in zip(one.blocks(kind), two.blocks(kind), strict=True):
                assert reference.close(x, y.numpy(), tolerance + 1 / 32767)


# -- every entry against the reference -----------------------------------------------------------

CASES = {
    "mlp": (networks.MLP, VECTORS, ["fc1", "act1", "act2", "head"]),
    "resnet": (networks.ResNet, IMAGES, ["bn1", "relu", "layer1.0", "layer1.1", "pool"]),
    "transformer": (networks.Transformer, networks.tokens(40), ["embed", "layers.0", "layers.1"]),
    "rnn": (networks.Recurrent, IDS, ["embed", "rnn", "head"]),
}


@pytest.mark.parametrize("per_sample", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_bucket_block_and_moment_matches_the_reference(case, per_sample):
    kind, data, layers = CASES[case]
    model = networks.seeded(kind).double()
    inputs = data.double() if isinstance(data, torch.Tensor) and data.is_floating_point() else data
    with pytest.warns(ResemblanceWarning) if case == "transformer" else _nothing():
        rep = rs.record(
            model,
            inputs,
            layers=layers,
            elementwise=True,
            buckets=32,
            per_sample=per_sample,
            seed=3,
            max_dim=None,
            blocks=3,
        )
    exact = reference.features_and_gradients(model, one_by_one(data), reference.tempered(0.5))
    sketch = rs.CountSketch(32, 3, per_sample)
    h, s = (part.numpy() for part in sketch.assign(range(40)))
    order = shuffled(40, 3)
    assert rep.layer_names == layers
    assert rep.block_sizes == (8, 8, 8)
    for layer in rep:
        f, g = (x.reshape(40, -1) for x in exact[layer.name])
        expected = reference.moments(f, g, elementwise=True)
        # ⟨f, g⟩ has both signs: its sum is as exact as ‖f‖‖g‖, not as itself
        inner = pytest.approx(expected.pop("inner"), abs=1e-6 * np.sqrt(40 * expected["product"]))
        assert layer.moments["inner"] == inner
        found = {key: value for key, value in layer.moments.items() if key != "inner"}
        assert found == pytest.approx(expected, rel=1e-5)
        for name, x in (("features", f), ("gradients", g), ("elementwise", f * g)):
            by_hand = reference.algorithm_1(x, h, s, 32)
            assert reference.close(layer.buckets(name), by_hand, 1e-5)
            centred = reference.algorithm_1(reference.centred(x), h, s, 32)
            # centring subtracts: its error is in units of what was there before
            scale = np.sqrt(np.outer(np.diag(by_hand), np.diag(by_hand)))
            scale += float(x.mean(0) @ x.mean(0)) * np.abs(np.outer(c := _signs(h, s), c))
            found = layer.buckets(name, centre=True).numpy()
            assert (np.abs(found - centred) <= 1e-5 * scale + 1e-300).all()
            for b, block in enumerate(layer.blocks(name)):
                rows = order[8 * b : 8 * (b + 1)]
                # half a step of the int16 packing, and float32
                assert reference.close(block, reference.kernel(x[rows]), 0.5 / 32767 + 1e-5)


def _signs(h, s):
    c = np.zeros(32)
    np.add.at(c, h.flatten(), s.flatten().astype(np.float64))
    return c


class _nothing:  # noqa: N801 - reads as a statement
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_pooled_tokens_match_the_reference(pool):
    data = networks.tokens(40)
    model = networks.seeded(networks.Transformer).double()
    rep = rs.record(model, data, pool=pool, layers=["layers.0"], buckets=0)
    f, g = reference.features_and_gradients(model, one_by_one(data), reference.tempered(0.5))[
        "layers.0"
    ]
    lengths = data["attention_mask"].sum(1).tolist()
    rows = {
        "mean": lambda x, n, gradient: x[n, : lengths[n]].sum(0) / (1 if gradient else lengths[n]),
        "first": lambda x, n, gradient: x[n, 0],
        "last": lambda x, n, gradient: x[n, lengths[n] - 1],
    }[pool]
    order = shuffled(40, 0)[:8]
    for kind, x in (("features", f), ("gradients", g)):
        expected = np.stack([rows(x, n, kind == "gradients") for n in order])
        found = rep["layers.0"].blocks(kind)[0]
        assert reference.close(found, reference.kernel(expected), 0.5 / 32767 + 1e-5)


def test_labels_match_the_reference():
    y = torch.arange(40) % 5
    model = mlp().double()
    rep = rs.record(model, (VECTORS.double(), y), target="labels", layers="act1", buckets=0)
    labels = iter(y.repeat_interleave(5))  # the reference asks once for each of five layers
    exact = reference.features_and_gradients(
        model, one_by_one(VECTORS), lambda z, _: -torch.log_softmax(z, 1)[0, next(labels)]
    )
    rows = shuffled(40, 0)[:8]
    expected = reference.kernel(exact["act1"][1][rows])
    assert reference.close(rep["act1"].blocks("gradients")[0], expected, 0.5 / 32767 + 1e-5)


def test_features_alone_are_the_features_of_the_full_pass():
    both, alone = (rs.record(mlp(), VECTORS, gradients=flag) for flag in (True, False))
    for a, b in zip(both, alone, strict=True):
        assert b.kinds == ("features",)
        assert torch.equal(a.blocks("features"), b.blocks("features"))
        assert torch.equal(a.buckets("features"), b.buckets("features"))


def test_wide_layers_are_folded_for_buckets_alone():
    folded, exact = (
        rs.record(networks.seeded(networks.ResNet), IMAGES, layers="relu", max_dim=width)["relu"]
        for width in (64, None)
    )
    assert (folded.folded, exact.folded) == (True, False)
    assert torch.equal(folded.blocks("features"), exact.blocks("features"))
    difference = folded.buckets("features") - exact.buckets("features")
    # one inner product is off by about ‖x‖‖y‖/√64
    assert 0.0 < float(difference.norm() / exact.buckets("features").norm()) < 0.3


def test_accumulators_of_any_layer_stay_below_64_mib_by_default():
    assert rs.record(mlp(), VECTORS).settings.max_dim == 8192
    for buckets in (100, 1000, 16):
        rep = rs.record(mlp(), VECTORS, buckets=buckets, elementwise=True)
        assert 3 * 4 * buckets * rep.settings.max_dim <= 64 * 2**20


def test_without_buckets_or_blocks():
    no_buckets = rs.record(mlp(), VECTORS, buckets=0)
    no_blocks = rs.record(mlp(), VECTORS, blocks=0)
    assert no_blocks.block_sizes == ()
    with pytest.raises(
        MismatchError, match=r"'act1' holds no 'features.buckets.triangle'.*buckets"
    ):
        no_buckets["act1"].buckets("features")
    with pytest.raises(MismatchError, match=r"'act1' holds no 'features.blocks.diagonal'.*blocks"):
        no_blocks["act1"].blocks("features")


# -- what must not matter ------------------------------------------------------------------------


@FEW
@given(
    n=st.integers(1, 60),
    batch_sizes=st.tuples(st.integers(1, 80), st.integers(1, 80)),
    loader=st.integers(1, 70),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
)
def test_batch_size_loader_and_shuffling_do_not_matter(n, batch_sizes, loader, shuffle, seed):
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
    options = {"seed": seed, "buckets": 16, "block": 9}
    expected = rs.record(mlp(), x, batch_size=batch_sizes[0], **options)
    held = DataLoader(TensorDataset(x), batch_size=loader, shuffle=shuffle)
    found = rs.record(mlp(), held, batch_size=batch_sizes[1], **options)
    # BLAS sums a batch of another size in another order: float32 round-off is all that may differ
    assert_same(found, expected, tolerance=2e-5)


def test_equal_batch_sizes_are_equal_bit_for_bit():
    expected = rs.record(mlp(), VECTORS)
    assert_same(rs.record(mlp(), VECTORS.numpy()), expected)
    assert_same(rs.record(mlp(), TensorDataset(VECTORS)), expected)
    loader = DataLoader(TensorDataset(VECTORS, torch.zeros(40)), batch_size=7, shuffle=True)
    assert_same(rs.record(mlp(), loader), expected)


@FEW
@given(cuts=st.lists(st.integers(1, 20), min_size=1, max_size=6), batch_size=st.integers(1, 60))
def test_batches_of_a_stream_do_not_matter(cuts, batch_size):
    x = torch.randn(sum(cuts), 6, generator=torch.Generator().manual_seed(1))
    expected = rs.record(mlp(), [x], block=8, buckets=16)
    found = rs.record(mlp(), iter(x.split(cuts)), block=8, buckets=16, batch_size=batch_size)
    assert_same(found, expected, tolerance=2e-5)


def test_buckets_do_not_depend_on_the_order_of_samples_but_on_their_index():
    """A stream in index order and a data set in seeded order hold the same buckets."""
    data_set = rs.record(mlp(), VECTORS, max_dim=None)
    stream = rs.record(mlp(), [VECTORS], max_dim=None)
    assert data_set.data["fingerprint"] == stream.data["fingerprint"]
    for a, b in zip(data_set, stream, strict=True):
        for kind in a.kinds:
            assert reference.close(a.buckets(kind), b.buckets(kind).numpy(), 1e-5)


def test_fingerprint_tells_the_order_and_the_samples():
    base = rs.record(mlp(), VECTORS).data["fingerprint"]
    assert rs.record(mlp(seed=1), VECTORS, seed=0).data["fingerprint"] == base
    assert rs.record(mlp(), VECTORS.flip(0)).data["fingerprint"] != base
    assert rs.record(mlp(), VECTORS[:39]).data["fingerprint"] != base
    assert rs.record(mlp(), VECTORS + 1e-3).data["fingerprint"] != base


def test_data_id_stands_for_the_samples():
    a = rs.record(mlp(), VECTORS, data_id="probe")
    b = rs.record(mlp(), VECTORS * 2, data_id="probe")
    assert a.data["fingerprint"] == b.data["fingerprint"]
    assert a.data["id"] == "probe"
    assert rs.record(mlp(), VECTORS, data_id="other").data["fingerprint"] != a.data["fingerprint"]
    assert (
        rs.record(mlp(), VECTORS[:39], data_id="probe").data["fingerprint"] != a.data["fingerprint"]
    )


def test_another_seed_gives_another_order_and_another_sketch():
    a, b = (rs.record(mlp(), VECTORS, seed=seed)["act1"] for seed in (0, 1))
    assert not torch.equal(a.blocks("features"), b.blocks("features"))
    assert not torch.equal(a.buckets("features"), b.buckets("features"))
    assert a.moments["trace_features"] == pytest.approx(b.moments["trace_features"], rel=1e-6)


def test_a_dict_of_inputs_a_call_and_dynamic_padding():
    data = networks.tokens(40, length=6)
    model = networks.seeded(networks.Transformer, classes=3)

    class Rows:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            length = int(data["attention_mask"][index].sum())
            return {key: value[index, :length] for key, value in data.items()}

    def pad(rows):
        return {
            key: nn.utils.rnn.pad_sequence([row[key] for row in rows], batch_first=True)
            for key in rows[0]
        }

    expected = rs.record(model, data, pool="mean")
    for batch_size in (8, 128):
        loader = DataLoader(Rows(), batch_size=4, collate_fn=pad)
        found = rs.record(model, loader, pool="mean", batch_size=batch_size)
        assert_same(found, expected, tolerance=2e-5)
    called = rs.record(
        model,
        data,
        pool="mean",
        call=lambda net, batch: {"logits": net(batch["input_ids"], batch["attention_mask"])},
    )
    assert_same(called, expected)


def test_a_model_that_writes_into_its_input():
    class Greedy(networks.MLP):
        def forward(self, x):
            return super().forward(x.mul_(2.0))

    x = VECTORS.clone()
    found = rs.record(networks.seeded(Greedy), x)
    assert torch.equal(x, VECTORS)
    doubled = rs.record(mlp(), VECTORS * 2)
    assert torch.equal(found["act1"].blocks("features"), doubled["act1"].blocks("features"))
    assert found.data["fingerprint"] == rs.record(mlp(), VECTORS).data["fingerprint"]


# -- bias of the estimators over seeds ------------------------------------------------------------

SMALL = np.random.default_rng(1).normal(0.5, 1.0, (48, 3))
SEEDS = 300


@pytest.fixture(scope="module")
def over_seeds():
    return [
        rs.record_arrays(
            SMALL, data_id="x", seed=seed, buckets=8, block=8, blocks=2, keep_sums=True
        )
        for seed in range(SEEDS)
    ]


def assert_unbiased(values, expected):
    """The mean over seeds within five standard errors of what it estimates."""
    values = np.stack(values)
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    assert (np.abs(values.mean(0) - expected) <= 5 * error + 1e-9).all()


def test_the_sketch_is_unbiased_for_second_moments(over_seeds):
    """E F̃ᵀF̃ = FᵀF, hence E Tr K̃ = Tr K."""
    sums = [rep["features"].tensors["features.sums"].double().numpy() for rep in over_seeds]
    assert_unbiased([s.T @ s for s in sums], SMALL.T @ SMALL)
    traces = [float(rep["features"].buckets("features").trace()) for rep in over_seeds]
    assert_unbiased(traces, np.trace(SMALL @ SMALL.T))


def test_the_centred_sketch_is_unbiased_for_centred_moments(over_seeds):
    x = SMALL - SMALL.mean(0)
    traces = [float(r["features"].buckets("features", centre=True).trace()) for r in over_seeds]
    assert_unbiased(traces, np.trace(x @ x.T))


def test_blocks_are_unbiased_for_the_mean_of_the_kernel(over_seeds):
    """Off-diagonal entries of random blocks average to those of all pairs, as a U-statistic."""
    kernel = SMALL @ SMALL.T
    n = len(SMALL)
    expected = (kernel.sum() - np.trace(kernel)) / (n * (n - 1))
    found = [float(rep["features"].triangles("features")[0].mean()) for rep in over_seeds]
    assert_unbiased(found, expected)


# -- bad samples ---------------------------------------------------------------------------------


class Fragile(networks.MLP):
    """Divides by what is zero for one sample, between its layers."""

    def forward(self, x):
        hidden = self.act1(self.fc1(x))
        return self.head(self.act2(self.fc2(hidden / (x[:, :1] != 7))))


def with_bad(value, *rows):
    x = VECTORS.clone()
    for row in rows:
        x[row, 0] = value
    return x


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_bad_input_is_named_with_its_first_layer(value):
    with pytest.raises(DataError, match=r"in the features of layer 'act1' at sample 17; repair"):
        rs.record(mlp(), with_bad(value, 17))


def test_a_value_that_goes_bad_inside_is_named_where_it_did():
    with pytest.raises(DataError, match=r"in the features of layer 'act2' at sample 5"):
        rs.record(networks.seeded(Fragile), with_bad(7.0, 5))


def test_a_bad_gradient_is_named_where_it_began():
    def target(outputs, batch):
        return outputs.sum(1) * torch.where(batch[:, 0] == 7, float("inf"), 1.0)

    with pytest.raises(DataError, match=r"in the gradients of layer 'act2' at sample 9"):
        rs.record(mlp(), with_bad(7.0, 9), target=target)


def test_a_norm_beyond_float32_is_refused_rather_than_stored_as_infinity():
    with pytest.raises(DataError, match="a norm beyond float32"):
        rs.record(mlp(), with_bad(-1e25, 3), gradients=False)


@pytest.mark.parametrize("gradients", [True, False])
def test_skipped_samples_leave_everything_else_as_it_was(gradients):
    """Indices keep their places, so the sketch of the others stays; blocks lose a row."""
    net = networks.seeded(Fragile)
    options = {"gradients": gradients, "max_dim": None, "blocks": 0, "layers": ["fc1", "act2"]}
    found = rs.record(net, with_bad(7.0, 5, 6), on_bad="skip", keep_sums=True, **options)
    assert (found.samples, found.data["skipped"]) == (38, 2)
    whole = rs.record(net, VECTORS, keep_sums=True, **options)
    gone = rs.CountSketch().assign([5, 6])
    for layer, before in zip(found, whole, strict=True):
        untouched = np.setdiff1d(np.arange(512), gone[0].numpy())
        for kind in layer.kinds:
            a, b = (x.tensors[f"{kind}.sums"][untouched] for x in (layer, before))
            assert torch.allclose(a, b, atol=1e-6)


def test_skipping_is_recording_without():
    """As a stream, where indices can be made to agree by putting the bad samples last."""
    x = torch.cat([VECTORS, with_bad(float("nan"), 0, 1)[:2]])
    for gradients in (True, False):
        found = rs.record(mlp(), [x], on_bad="skip", gradients=gradients)
        expected = rs.record(mlp(), [VECTORS], gradients=gradients)
        assert found.data["skipped"] == 2
        assert_same(found, expected, tolerance=2e-5)


def test_blocks_that_lose_samples_are_shorter():
    rep = rs.record(mlp(), with_bad(float("nan"), *range(20)), on_bad="skip", block=10)
    assert sum(rep.block_sizes) == rep.samples == 20
    for size, kernel in zip(rep.block_sizes, rep["act1"].blocks("features"), strict=True):
        assert (kernel.diagonal()[:size] > 0).all()
        assert not kernel[size:].any()


def test_all_samples_bad():
    with pytest.raises(DataError, match="nothing was recorded: every sample was skipped"):
        rs.record(mlp(), torch.full((20, 6), float("nan")), on_bad="skip")


def test_skipping_with_in_place_layers_keeps_the_value_at_the_tap():
    """Held features must not be views of memory that the network writes over."""
    net = mlp()
    skip, plain = (
        rs.record(net, VECTORS, layers="fc1", gradients=False, on_bad=on_bad)
        for on_bad in ("skip", "raise")
    )
    assert torch.equal(skip["fc1"].blocks("features"), plain["fc1"].blocks("features"))


# -- other bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad": "ignore"}, 'on_bad must be "raise" or "skip"; found \'ignore\''),
        ({"batch_size": 0}, "batch_size must be 1 or more; found 0"),
        ({"batch_size": "large"}, "batch_size must be 1 or more; found 'large'"),
        ({"shard": (2, 2)}, r"shard must be \(i, n\) with 0 <= i < n; found \(2, 2\)"),
        ({"block": 0}, "block must be 1 or more and blocks 0 or more; found 0, 64"),
        ({"blocks": -1}, "found 128, -1"),
        ({"buckets": 10, "per_sample": 3}, "positive multiple of per_sample"),
        ({"max_dim": 0}, 'max_dim must be "auto", None or a positive width; found 0'),
        ({"max_dim": "wide"}, "found 'wide'"),
        ({"elementwise": True, "gradients": False}, "elementwise=True needs gradients"),
        ({"pool": "max"}, "pool must be one of"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        rs.record(mlp(), VECTORS, **options)


def test_something_that_is_not_a_model():
    with pytest.raises(DataError, match=r"expected a torch\.nn\.Module, found function"):
        rs.record(lambda x: x, VECTORS)


def test_buffers_made_in_inference_mode_are_refused():
    net = networks.seeded(networks.ResNet)
    with torch.inference_mode():
        net.bn1.running_mean = torch.zeros(3)
    with pytest.raises(DataError, match=r"made inside torch\.inference_mode"):
        rs.record(net, IMAGES)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_samples(n):
    rep = rs.record(mlp(), VECTORS[:n])
    assert rep.samples == n < rep.settings.buckets
    assert rep.block_sizes == (n,)
    assert float(rep["act1"].buckets("features").trace()) == pytest.approx(
        rep["act1"].moments["trace_features"], rel=1e-5
    )


def test_inputs_of_varying_size_need_a_pool():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(2, 3))
    stream = [IMAGES[:8], IMAGES[:8, :, :5, :5]]
    with pytest.raises(DataError, match=r'width 32 as in the first.*found 18; .*pool="mean"'):
        rs.record(net, stream, layers="1", block=8, batch_size=8)
    assert rs.record(net, stream, layers="1", block=8, batch_size=8, pool="mean").samples == 16


def test_padding_and_flatten_warn_at_the_callers_line():
    net = networks.seeded(networks.Transformer)
    with pytest.warns(
        ResemblanceWarning, match='sequences are padded and pool="flatten"'
    ) as caught:
        rs.record(net, networks.tokens(40))
    assert caught[0].filename == __file__


def test_a_stream_shard_without_blocks():
    with pytest.raises(DataError, match="this shard of the stream holds no block"):
        rs.record(mlp(), [VECTORS], shard=(1, 2))


def test_an_interrupted_pass_leaves_nothing_behind(tmp_path):
    def stream():
        yield VECTORS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rs.record(mlp(), stream(), block=8, batch_size=8).save(tmp_path / "a.rsm")
    assert list(tmp_path.iterdir()) == []


# -- memory --------------------------------------------------------------------------------------


def test_batches_are_let_go_as_the_stream_goes_on():
    alive: list[weakref.ref] = []

    def stream():
        generator = torch.Generator().manual_seed(0)
        for _ in range(60):
            batch = torch.randn(16, 6, generator=generator)
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            # at most the batch in hand, those waiting for a block to fill, and the trial's
            assert sum(ref() is not None for ref in alive) <= 5

    rs.record(mlp(), stream(), block=32, blocks=4, batch_size=32)
    assert len(alive) == 60


@pytest.mark.parametrize("gradients", [True, False])
def test_no_tensor_is_left_to_the_garbage_collector(gradients):
    """It comes by seldom: what waits for it fills the memory of a GPU."""
    gc.collect()
    gc.disable()
    try:
        rs.record(mlp(), VECTORS, gradients=gradients, block=8, batch_size=8, on_bad="skip")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [tuple(x.shape) for x in gc.garbage if isinstance(x, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


def test_the_size_of_a_representation_does_not_grow_with_samples():
    x = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32)
    small, large = (
        rs.record_arrays(x[:n], data_id="x", block=16, blocks=8, buckets=32) for n in (400, 4000)
    )
    for key, tensor in small["features"].tensors.items():
        assert tensor.shape == large["features"].tensors[key].shape


# -- arrays --------------------------------------------------------------------------------------


def test_arrays_give_what_the_pass_gives():
    net = mlp().eval()
    stored = {"act1": [], "act2": []}
    for name in stored:
        getattr(net, name).register_forward_hook(
            lambda _, __, out, name=name: stored[name].append(out.clone())
        )
    with torch.no_grad():
        net(VECTORS)
    features = {name: value[0] for name, value in stored.items()}
    expected = rs.record(mlp(), VECTORS, gradients=False, data_id="probe")
    for arrays in (features, {k: v.numpy() for k, v in features.items()}):
        assert_same(rs.record_arrays(arrays, data_id="probe"), expected, tolerance=2e-5)


def test_arrays_with_gradients_match_the_reference(tmp_path):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 40, 3, 2)).astype(np.float32)
    np.save(tmp_path / "f.npy", f)
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    rep = rs.record_arrays({"a": mapped}, {"a": g}, data_id="x", elementwise=True, target="mine")
    assert rep.settings.target == "mine"
    assert dict(rep["a"].moments) == pytest.approx(
        reference.moments(f, g, elementwise=True), rel=1e-5
    )
    h, s = (part.numpy() for part in rs.CountSketch().assign(range(40)))
    by_hand = reference.algorithm_1(g.reshape(40, -1), h, s, 512)
    assert reference.close(rep["a"].buckets("gradients"), by_hand, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_arrays_of_any_dtype(dtype):
    x = (VECTORS * 10).to(dtype).requires_grad_(dtype.is_floating_point)
    rep = rs.record_arrays(x, data_id="x")
    expected = float((x.detach().double() ** 2).sum())
    assert rep["features"].moments["trace_features"] == pytest.approx(expected, rel=1e-5)
    assert rep.made["dtype"] == str(dtype).removeprefix("torch.")
    one_column = rs.record_arrays(x.detach()[:, 0], data_id="x")
    assert one_column["features"].dim == 1


def test_array_shards_and_bad_rows():
    x = VECTORS.clone()
    whole = rs.record_arrays(x, data_id="x", block=8)
    parts = [rs.record_arrays(x, data_id="x", block=8, shard=(i, 2)) for i in range(2)]
    assert_same(rs.merge(parts), whole, tolerance=2e-5)
    x[3] = float("nan")
    assert rs.record_arrays(x, data_id="x", on_bad="skip").data["skipped"] == 1
    with pytest.raises(DataError, match="layer 'features' at sample 3"):
        rs.record_arrays(x, data_id="x")


@pytest.mark.parametrize(
    ("features", "gradients", "message"),
    [
        ({}, None, "arrays of one length, found none"),
        ({"a": VECTORS, "b": VECTORS[:3]}, None, "arrays of one length, found {'a': 40, 'b': 3}"),
        ({"a": VECTORS}, {"b": VECTORS}, "gradients of the same layers"),
        (VECTORS, VECTORS[:, :2], r"found {'features': \(40, 2\)} for {'features': \(40, 6\)}"),
        (VECTORS[:0], None, "the data set is empty"),
    ],
)
def test_arrays_that_cannot_be(features, gradients, message):
    with pytest.raises(DataError, match=message):
        rs.record_arrays(features, gradients, data_id="x")


def test_channels_last_gradients_keep_the_order_of_their_features():
    """Features are read as they lie in memory; ⟨f, g⟩ and f ∘ g show whether gradients are too."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )
    images = torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    options = {"layers": ["1", "2"], "elementwise": True}
    plain = rs.record(net, images, **options)
    last = rs.record(net.to(memory_format=torch.channels_last), images, **options)
    assert [layer.shape for layer in last] == [(6, 6, 5), (4, 4, 4)]
    for one, two in zip(plain, last, strict=True):
        assert two.moments["inner_squared"] == pytest.approx(one.moments["inner_squared"], rel=1e-4)
        for kind in ("features", "gradients", "elementwise"):
            expected = one.blocks(kind)
            # int16 entries: within a rounding of each other
            assert float((two.blocks(kind) - expected).norm() / expected.norm()) < 1e-3
