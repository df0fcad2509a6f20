"""The pass: every number against the reference, what must not matter, and what is refused."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import little_language
import networks
import reference
import resemblance as rs
import stored
from cases import named
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import ResemblanceWarning

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
    order = seeded_permutation(40, 3)
    assert rep.layer_names == layers
    assert rep.block_sizes == (8, 8, 8)
    for layer in rep:
        f, g = (x.reshape(40, -1) for x in exact[layer.name])
        expected = reference.moments(f, g, elementwise=True)
        # ⟨f, g⟩ has both signs: its sum is as exact as ‖f‖‖g‖, not as itself
        inner = pytest.approx(expected.pop("inner"), abs=1e-6 * np.sqrt(40 * expected["product"]))
        assert layer.products.inner == inner
        found = {key: value for key, value in stored.moments(layer).items() if key != "inner"}
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
                # half a step of the int16 packing, and float32, in units of what is packed
                exact_block = reference.kernel(x[rows])
                mean = reference.kernel(x[rows].mean(0, keepdims=True)).item()
                scale = np.sqrt(np.diag(exact_block)) + np.sqrt(mean)
                error = np.abs(block.numpy() - exact_block)
                assert (error <= (0.5 / 32767 + 1e-5) * np.outer(scale, scale)).all()


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
    order = seeded_permutation(40, 0)[:8]
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
    rows = seeded_permutation(40, 0)[:8]
    expected = reference.kernel(exact["act1"][1][rows])
    assert reference.close(rep["act1"].blocks("gradients")[0], expected, 0.5 / 32767 + 1e-5)


def test_features_alone_are_the_features_of_the_full_pass():
    both, alone = (rs.record(mlp(), VECTORS, gradients=flag) for flag in (True, False))
    for a, b in zip(both, alone, strict=True):
        assert b.kinds == ("features",)
        assert torch.equal(a.blocks("features"), b.blocks("features"))
        assert torch.equal(a.buckets("features"), b.buckets("features"))


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
    stored.assert_same(found, expected, tolerance=2e-5)


def test_equal_batch_sizes_are_equal_bit_for_bit():
    expected = rs.record(mlp(), VECTORS)
    stored.assert_same(rs.record(mlp(), VECTORS.numpy()), expected)
    stored.assert_same(rs.record(mlp(), TensorDataset(VECTORS)), expected)
    loader = DataLoader(TensorDataset(VECTORS, torch.zeros(40)), batch_size=7, shuffle=True)
    stored.assert_same(rs.record(mlp(), loader), expected)


@FEW
@given(cuts=st.lists(st.integers(1, 20), min_size=1, max_size=6), batch_size=st.integers(1, 60))
def test_batches_of_a_stream_do_not_matter(cuts, batch_size):
    x = torch.randn(sum(cuts), 6, generator=torch.Generator().manual_seed(1))
    expected = rs.record(mlp(), [x], block=8, buckets=16)
    found = rs.record(mlp(), iter(x.split(cuts)), block=8, buckets=16, batch_size=batch_size)
    stored.assert_same(found, expected, tolerance=2e-5)


def test_buckets_do_not_depend_on_the_order_of_samples_but_on_their_index():
    """A stream in index order and a data set in seeded order hold the same buckets."""
    data_set = rs.record(mlp(), VECTORS, max_dim=None)
    stream = rs.record(mlp(), [VECTORS], max_dim=None)
    assert data_set.data.fingerprint == stream.data.fingerprint
    for a, b in zip(data_set, stream, strict=True):
        for kind in a.kinds:
            assert reference.close(a.buckets(kind), b.buckets(kind).numpy(), 1e-5)


def test_fingerprint_tells_the_order_and_the_samples():
    base = rs.record(mlp(), VECTORS).data.fingerprint
    assert rs.record(mlp(seed=1), VECTORS, seed=0).data.fingerprint == base
    assert rs.record(mlp(), VECTORS.flip(0)).data.fingerprint != base
    assert rs.record(mlp(), VECTORS[:39]).data.fingerprint != base
    assert rs.record(mlp(), VECTORS + 1e-3).data.fingerprint != base


def test_data_id_stands_for_the_samples():
    a = rs.record(mlp(), VECTORS, data_id="probe")
    b = rs.record(mlp(), VECTORS * 2, data_id="probe")
    assert a.data.fingerprint == b.data.fingerprint
    assert a.data.id == "probe"
    assert rs.record(mlp(), VECTORS, data_id="other").data.fingerprint != a.data.fingerprint
    assert rs.record(mlp(), VECTORS[:39], data_id="probe").data.fingerprint != a.data.fingerprint


def test_another_seed_gives_another_order_and_another_sketch():
    a, b = (rs.record(mlp(), VECTORS, seed=seed)["act1"] for seed in (0, 1))
    assert not torch.equal(a.blocks("features"), b.blocks("features"))
    assert not torch.equal(a.buckets("features"), b.buckets("features"))
    assert a.features.trace == pytest.approx(b.features.trace, rel=1e-6)


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
        stored.assert_same(found, expected, tolerance=2e-5)
    called = rs.record(
        model,
        data,
        pool="mean",
        call=lambda net, batch: {"logits": net(batch["input_ids"], batch["attention_mask"])},
    )
    stored.assert_same(called, expected)


def test_a_model_that_writes_into_its_input():
    class Greedy(networks.MLP):
        def forward(self, x):
            return super().forward(x.mul_(2.0))

    x = VECTORS.clone()
    found = rs.record(networks.seeded(Greedy), x)
    assert torch.equal(x, VECTORS)
    doubled = rs.record(mlp(), VECTORS * 2)
    assert torch.equal(found["act1"].blocks("features"), doubled["act1"].blocks("features"))
    assert found.data.fingerprint == rs.record(mlp(), VECTORS).data.fingerprint


# -- batches below a block ------------------------------------------------------------------------

ORDER = seeded_permutation(40, 0)  # five blocks of eight
EXACT = VECTORS.double()  # the model's own round-off is then far below a step of the packing


def bad_at(*places):
    x = EXACT.clone()
    x[[int(ORDER[place]) for place in places]] = float("nan")
    return x


class LastChannels(nn.Sequential):
    """Convolutions whose outputs lie in memory with their channels last."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(80, 3))
        self.to(memory_format=torch.channels_last)


PARTED = {
    "gradients": (networks.MLP, EXACT, {}),
    "features": (networks.MLP, EXACT, {"gradients": False}),
    "features before an in-place layer": (
        networks.MLP,
        EXACT,
        {"gradients": False, "layers": ["fc1", "act1"]},
    ),
    "elementwise": (networks.MLP, EXACT, {"elementwise": True}),
    "few blocks": (networks.MLP, EXACT, {"blocks": 2}),
    "no blocks": (networks.MLP, EXACT, {"blocks": 0}),
    "no buckets": (networks.MLP, EXACT, {"buckets": 0}),
    "stream": (networks.MLP, [*EXACT.split(9)], {}),
    "stream of features": (networks.MLP, [*EXACT.split(9)], {"gradients": False}),
    "shard": (networks.MLP, EXACT, {"shard": (1, 2)}),
    "stream shard": (networks.MLP, [*EXACT.split(9)], {"shard": (1, 2)}),
    "channels last": (
        LastChannels,
        IMAGES.double().to(memory_format=torch.channels_last),
        {"layers": ["1"], "elementwise": True},
    ),
    "tokens": (networks.Transformer, networks.tokens(40), {"pool": "mean"}),
    "a loader": (networks.MLP, DataLoader(TensorDataset(EXACT), batch_size=5), {}),
    "bad in the middle": (networks.MLP, bad_at(11), {"on_bad": "skip"}),
    "bad at the start": (networks.MLP, bad_at(8, 9, 10, 11), {"on_bad": "skip"}),
    "bad at the end": (networks.MLP, bad_at(12, 13, 14, 15), {"on_bad": "skip"}),
    "bad at the end, features": (
        networks.MLP,
        bad_at(12, 13, 14, 15),
        {"on_bad": "skip", "gradients": False},
    ),
    "a bad block": (networks.MLP, bad_at(*range(8, 16)), {"on_bad": "skip"}),
    "bad at the very end": (networks.MLP, bad_at(36, 37, 38, 39), {"on_bad": "skip"}),
}


BELOW_A_BLOCK = (1, 3, 4)  # batch sizes


@pytest.mark.parametrize("parted", PARTED)
def test_a_batch_below_a_block_gives_what_whole_blocks_give(parted):
    kind, data, options = PARTED[parted]
    options = {"block": 8, "buckets": 16, "data_id": "x", **options}
    net = networks.seeded(kind).double()
    whole = rs.record(net, data, batch_size=8, **options)
    for batch_size in BELOW_A_BLOCK:
        with named(batch_size=batch_size):
            assert_close(rs.record(net, data, batch_size=batch_size, **options), whole)


def assert_close(found, whole):
    """Equal up to the round-off of sums in a different order."""
    assert (found.samples, found.settings) == (whole.samples, whole.settings)
    assert (found.block_sizes, found.block_numbers) == (whole.block_sizes, whole.block_numbers)
    assert found.data == whole.data
    for one, two in zip(found, whole, strict=True):
        assert one.shape == two.shape
        # sums of terms of both signs are as exact as their terms
        size = max(map(abs, stored.moments(two).values()))
        assert stored.moments(one) == pytest.approx(stored.moments(two), rel=1e-5, abs=1e-6 * size)
        for kind in two.kinds:
            if whole.settings.buckets:
                assert reference.close(one.buckets(kind), two.buckets(kind).numpy(), 1e-5)
            if whole.settings.blocks:
                assert one.blocks(kind).shape == two.blocks(kind).shape
                for x, y in zip(one.blocks(kind), two.blocks(kind), strict=True):
                    assert float((x - y).norm()) <= 1e-5 * float(y.norm())


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")  # of 96 samples
@pytest.mark.parametrize("options", [{}, {"gradients": False}, {"elementwise": True}], ids=str)
def test_scores_do_not_depend_on_a_batch_below_a_block(options):
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(4))
    kernels = ["features"]
    if options.get("gradients", True):
        kernels += ["gradients", "product"]
    if options.get("elementwise"):
        kernels += ["elementwise"]
    options = {"block": 16, "buckets": 32, **options}
    other = rs.record(mlp(seed=1), x, **options)
    whole, *parted = (rs.record(mlp(), x, batch_size=n, **options) for n in (128, *BELOW_A_BLOCK))
    for kernel in kernels:
        for index in ("cka", "nbs"):
            expected = rs.compare(whole, other, kernel=kernel, index=index)
            for batch_size, rep in zip(BELOW_A_BLOCK, parted, strict=True):
                found = rs.compare(rep, other, kernel=kernel, index=index)
                with named(kernel=kernel, index=index, batch_size=batch_size):
                    assert np.abs(found.scores - expected.scores).max() < 1e-5
                    assert np.abs(found.stderr - expected.stderr).max() < 1e-5


def test_shards_of_parted_blocks_merge_to_one_pass():
    options = {"block": 8, "buckets": 16}
    parts = [rs.record(mlp(), VECTORS, batch_size=3, shard=(i, 2), **options) for i in range(2)]
    whole = rs.record(mlp(), VECTORS, **options)
    stored.assert_same(rs.merge(parts), whole, tolerance=2e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 8, 20])
def test_a_model_never_runs_on_more_samples_than_asked_for(batch_size):
    seen = []

    def call(net, batch):
        seen.append(len(batch))
        return net(batch)

    rs.record(mlp(), VECTORS, block=8, batch_size=batch_size, call=call)
    assert seen.pop(0) == 2  # what runs
    assert seen.pop(0) == 2  # whether it gives the same again
    assert max(seen) <= batch_size
    assert sum(seen) == 40


# -- other bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_samples(n):
    rep = rs.record(mlp(), VECTORS[:n])
    assert rep.samples == n < rep.settings.buckets
    assert rep.block_sizes == (n,)
    assert float(rep["act1"].buckets("features").trace()) == pytest.approx(
        rep["act1"].features.trace, rel=1e-5
    )


def test_fewer_than_fifty_samples_are_recorded_with_a_warning_at_the_callers_line():
    with pytest.warns(ResemblanceWarning, match="only 49 samples: below 50") as caught:
        rs.record(mlp(), torch.randn(49, 6), gradients=False)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rs.record(mlp(), torch.randn(50, 6), gradients=False)
        rs.record(mlp(), torch.randn(60, 6), gradients=False, shard=(0, 2))  # part of enough


def test_tokens_are_counted_by_their_sequences():
    words = torch.randint(5, 300, (49, 8))
    with pytest.warns(ResemblanceWarning, match="only 49 sequences"):
        rs.record(little_language.gpt2(), words, tokens=4, gradients=False)


def test_padding_and_flatten_warn_at_the_callers_line():
    net = networks.seeded(networks.Transformer)
    with pytest.warns(
        ResemblanceWarning, match='sequences are padded and `pool="flatten"`'
    ) as caught:
        rs.record(net, networks.tokens(40), unit="sample")
    assert caught[0].filename == __file__


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
    assert [layer.shape for layer in last] == [(5, 6, 6), (4, 4, 4)]
    for one, two in zip(plain, last, strict=True):
        assert two.products.inner_squared == pytest.approx(one.products.inner_squared, rel=1e-4)
        for kind in ("features", "gradients", "elementwise"):
            expected = one.blocks(kind)
            # int16 entries: within a rounding of each other
            assert float((two.blocks(kind) - expected).norm() / expected.norm()) < 1e-3
