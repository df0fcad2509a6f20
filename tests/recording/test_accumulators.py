"""A pass's running sums: what layers share, and samples that are not finite."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
import stored
from resemblance._data.sample_hashes import SampleFingerprints
from resemblance._data.sources import Batch, Piece
from resemblance.errors import DataError, ResemblanceWarning
from resemblance.recording.accumulators import Accumulators, Origin
from resemblance.recording.config import RecordConfig
from resemblance.representation.representation import DataInfo, Made, ModelInfo

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)
IMAGES = torch.randn(40, 3, 6, 6, generator=G)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


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
    assert (found.samples, found.data.skipped) == (38, 2)
    whole = rs.record(net, VECTORS, keep_sums=True, **options)
    gone = rs.CountSketch().assign([5, 6])
    for layer, before in zip(found, whole, strict=True):
        untouched = np.setdiff1d(np.arange(512), gone[0].numpy())
        for kind in layer.kinds:
            a, b = (x.recorded(kind).sums.table[untouched] for x in (layer, before))
            assert torch.allclose(a, b, atol=1e-6)


def test_skipping_is_recording_without():
    """As a stream, where indices can be made to agree by putting the bad samples last."""
    x = torch.cat([VECTORS, with_bad(float("nan"), 0, 1)[:2]])
    for gradients in (True, False):
        found = rs.record(mlp(), [x], on_bad="skip", gradients=gradients)
        expected = rs.record(mlp(), [VECTORS], gradients=gradients)
        assert found.data.skipped == 2
        stored.assert_same(found, expected, tolerance=2e-5)


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


def test_inputs_of_varying_size_need_a_pool():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(2, 3))
    stream = [IMAGES[:8], IMAGES[:8, :, :5, :5]]
    with pytest.raises(DataError, match=r'width 32 as in the first.*found 18; .*pool="mean"'):
        rs.record(net, stream, layers="1", block=8, batch_size=8)
    assert rs.record(net, stream, layers="1", block=8, batch_size=8, pool="mean").samples == 16


def test_a_stream_shard_without_blocks():
    with pytest.raises(DataError, match="too few for 2 shards"):
        rs.record(mlp(), [VECTORS], shard=(1, 2))


# -- by hand -------------------------------------------------------------------------------------

CONFIG = RecordConfig(gradients=False, buckets=16, block=4, max_dim=None, data_id="x")
ORIGIN = Origin(
    lambda: ModelInfo("x", None, None),
    DataInfo("x", 8, "seeded", ((0, 1),)),
    Made.now(dtype="float32"),
)
ROWS = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def by_hand(batches, rows=ROWS, on_bad="raise"):
    """A pass of one layer over pieces (block, indices, starts, ends), in batches."""
    config = replace(CONFIG, on_bad=on_bad)
    sums = Accumulators(config, config.settings(4, "none"), ["layer"], ORIGIN)
    for pieces in batches:
        batch = Batch([Piece(b, np.array(i), *flags) for b, i, *flags in pieces], None)
        batch = Batch(batch.pieces, rows[batch.indices])
        sums.begin(batch, batch.samples)
        sums.consume(0, batch.samples, None)
        sums.end()
    return sums.result()


WHOLE = [[(0, [5, 2, 7, 0], True, True), (1, [1, 3, 4, 6], True, True)]]
IN_PARTS = [
    [(0, [5], True, False)],
    [(0, [2, 7], False, False)],
    [(0, [0], False, True)],
    [(1, [1, 3], True, False)],
    [(1, [4, 6], False, True)],
]


def test_pieces_become_blocks_however_they_are_batched():
    whole = by_hand(WHOLE)
    assert (whole.block_sizes, whole.block_numbers) == ((4, 4), (0, 1))
    for batches in (IN_PARTS, [[WHOLE[0][0]], *IN_PARTS[3:]], [[piece] for piece in WHOLE[0]]):
        stored.assert_same(by_hand(batches), whole, tolerance=1e-6)
    for number, rows in enumerate(([5, 2, 7, 0], [1, 3, 4, 6])):
        kernel = whole["layer"].blocks("features")[number]
        assert reference.close(kernel, reference.kernel(ROWS[rows]), 0.5 / 32767 + 1e-6)


@pytest.mark.parametrize("row", range(8))
def test_a_skipped_sample_shortens_its_own_block_wherever_it_stands(row):
    rows = ROWS.clone()
    rows[row, 1] = torch.inf
    whole, parted = (by_hand(batches, rows, "skip") for batches in (WHOLE, IN_PARTS))
    assert sorted(whole.block_sizes) == [3, 4]
    assert (whole.samples, whole.data.skipped) == (7, 1)
    stored.assert_same(parted, whole, tolerance=1e-6)


def test_the_first_bad_sample_of_a_part_is_named():
    rows = ROWS.clone()
    rows[7] = torch.nan
    for batches in (WHOLE, IN_PARTS):
        with pytest.raises(DataError, match="layer 'layer' at sample 7"):
            by_hand(batches, rows)


@pytest.mark.parametrize("batch_size", [3, 8, 24])
@pytest.mark.parametrize("bad", [(), (2, 3, 30)])
def test_places_are_kept_as_long_as_norms_are(monkeypatch, batch_size, bad):
    """Memory does not grow with the samples, and the first norms are the same."""
    how = {"block": 8, "on_bad": "skip", "batch_size": batch_size, "progress": False}
    data = with_bad(float("nan"), *bad).repeat(3, 1)
    every = rs.record(mlp(), data, data_id="x", **how)[0].features.norms
    for room in ("layer_accumulator", "accumulators"):
        monkeypatch.setattr(f"resemblance.recording.{room}.NORMS_KEPT", 20)
    seen = []
    result = Accumulators.result
    monkeypatch.setattr(Accumulators, "result", lambda s: (seen.append(s), result(s))[1])
    first = rs.record(mlp(), data, data_id="x", **how)[0].features.norms
    torch.testing.assert_close(first, every[:20], rtol=1e-5, atol=0, equal_nan=True)
    assert sum(map(len, seen[0]._places)) <= 20 + 8 + batch_size


def test_samples_that_are_still_on_their_way_as_a_pass_ends_are_counted_in(monkeypatch):
    """As on a GPU, where the latest batches are hashed later."""
    base = rs.record(mlp(), VECTORS, block=8)
    settle = SampleFingerprints.settle
    monkeypatch.setattr(SampleFingerprints, "settle", lambda self, unread=0: None)
    finish = Accumulators.finish

    def finished(self):
        monkeypatch.setattr(SampleFingerprints, "settle", settle)
        finish(self)

    monkeypatch.setattr(Accumulators, "finish", finished)
    late = rs.record(mlp(), VECTORS, block=8)
    assert late.data == base.data
    assert late.block_hashes == base.block_hashes


@pytest.mark.parametrize("options", [{}, {"blocks": 3, "block": 8}], ids=["whole", "cut"])
def test_what_a_recording_keeps_is_in_memory_of_its_own(options):
    """A view would keep, and copy or pickle, all that it is a view of."""
    rep = rs.record(networks.seeded(networks.ResNet), IMAGES, elementwise=True, **options)
    for layer in rep:
        for name, x in stored.tensors(layer).items():
            if not name.endswith("signs"):  # which all layers share
                assert x.untyped_storage().nbytes() == x.nbytes, (layer.name, name)


def scaled(scale, seed=0):
    """Recorded with a loss times `scale`, as if it was one that is compared with all others."""
    rep = rs.record(mlp(seed), VECTORS, target=lambda z, _: scale * z.logsumexp(1))
    return replace(rep, settings=replace(rep.settings, target="the same"))


def test_gradients_whose_squares_underflow_are_warned_about():
    """Gradients are about 0.01 at scale 1; float32 has squares of 1e-18, and loses those of 1e-22.

    Scores do not depend on the scale of a kernel, so those of both should be the same.
    """
    with pytest.warns(ResemblanceWarning, match=r"gradients at act1, act2 are so small.*target="):
        tiny = scaled(1e-21)
    small, usual = scaled(1e-15), scaled(1.0)  # without a warning, which would be an error
    other = scaled(1.0, seed=1)
    with warnings.catch_warnings():  # standard errors of the wrong scores are large
        warnings.simplefilter("ignore")
        scores = [rs.compare(x, other, kernel="gradients").scores for x in (usual, small, tiny)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)
    assert abs(scores[2] - scores[0]).max() > 0.01


def test_gradients_that_all_underflow_to_nothing_are_warned_about():
    with pytest.warns(ResemblanceWarning, match="gradients at act1, act2 are so small"):
        scaled(1e-25)
