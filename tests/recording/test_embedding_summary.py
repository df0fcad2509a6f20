"""Embeddings that a recording keeps: whose outputs, of which samples, in shards and after skips."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import resemblance as rs
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.representation.embeddings import directions, embedded_blocks
from resemblance.representation.schema import MAX_DIMENSIONS

X = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))


class Encoder(nn.Module):
    """Embeddings of length one, or other outputs."""

    def __init__(self, then=lambda z: F.normalize(z, dim=-1), dim=8):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, dim))
        self.then = then

    def forward(self, x):
        return self.then(self.net(x))


class Hidden(nn.Module):
    """Hidden states of sequences, in a mapping as language models have them."""

    def __init__(self):
        super().__init__()
        self.words, self.act = nn.Embedding(30, 8), nn.Tanh()

    def forward(self, input_ids, attention_mask=None):
        return {"last_hidden_state": self.act(self.words(input_ids))}


def record(net=None, x=X, **how):
    return rs.record(net or Encoder(), x, **{"gradients": False, "progress": False, **how})


def in_order(rep):
    from resemblance._utils.hashing import seeded_permutation

    return np.asarray(seeded_permutation(len(X), seed=rep.settings.seed))


def cosines_with(vectors, expected):
    return F.cosine_similarity(vectors.double(), expected.detach().double(), dim=1)


def test_vectors_of_length_one_are_kept_in_the_seeded_order():
    rep = record()
    assert rep.made.logits == "none"
    assert rep.predictions is None
    kept = rep.embeddings.vectors
    assert (kept.dtype, tuple(kept.shape)) == (torch.float16, (200, 8))
    expected = Encoder()(X[in_order(rep)]).detach()
    assert float((kept.float() - expected).abs().max()) < 5e-4  # half a step of float16 at 1


def test_a_loss_of_ones_own_keeps_them_beside_gradients():
    rep = rs.record(Encoder(), X, target=lambda z, batch: z[:, 0].square(), progress=False)
    assert rep.embeddings == record().embeddings
    assert rep[0].gradients is not None


@pytest.mark.parametrize(
    "then",
    [
        lambda z: 7 * z,
        lambda z: {"sentence_embedding": z, "token_embeddings": z[:, None]},
        lambda z: {"image_embeds": z},
        lambda z: (z, z + 1),
        lambda z: 1e6 * z.double(),
        lambda z: z.bfloat16(),
    ],
)
def test_outputs_that_are_said_to_be_no_predictions_are_embeddings(then):
    rep = record(Encoder(then), logits="none")
    expected = Encoder(lambda z: z)(X[in_order(rep)])
    assert float(cosines_with(rep.embeddings.vectors, expected).min()) > 0.9999


@pytest.mark.parametrize(
    "then",
    [
        lambda z: z[:, :1],
        lambda z: z[:, None],
        lambda z: {"text_embeds": z, "image_embeds": z},
        lambda z: {"logits": z},
        lambda z: z.argmax(1),
        lambda z: 1.0 * z.flatten()[:40],
    ],
)
def test_what_is_not_one_vector_a_sample_is_not_kept(then):
    assert record(Encoder(then), logits="none").outputs is None


def test_hidden_states_are_not_flattened():
    ids = torch.randint(1, 30, (60, 7), generator=torch.Generator().manual_seed(0))
    assert record(Hidden(), {"input_ids": ids}, logits="none", layers=["act"]).outputs is None


def test_pooling_without_hidden_states_says_that_no_embeddings_are_stored():
    with pytest.warns(UserWarning, match="no embeddings are stored: `pool='mean'` reads them off"):
        rep = record(Encoder(lambda z: {"logits": z}), pool="mean", logits="none")
    assert rep.embeddings is None


def test_predictions_stay_predictions():
    rep = record(Encoder(lambda z: z))
    assert rep.embeddings is None
    assert rep.predictions.classes == 8
    assert record(outputs=False).outputs is None
    assert record().without_outputs().embeddings is None


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_hidden_states_become_one_vector_by_pool(pool):
    """Of real tokens: padding does not count, as in the layers of a recording."""
    ids = torch.randint(1, 30, (60, 7), generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(60) % 7 + 1
    mask = (torch.arange(7) < lengths[:, None]).long()
    net = Hidden()
    batch = {"input_ids": ids, "attention_mask": mask}
    rep = record(net, batch, pool=pool, logits="none", layers=["act"])
    from resemblance._utils.hashing import seeded_permutation

    order = np.asarray(seeded_permutation(60, seed=0))
    states = net(ids)["last_hidden_state"].detach()
    pooled = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "last": lambda x: x[-1]}[pool]
    expected = torch.stack([pooled(states[i, : lengths[i]]) for i in order.tolist()])
    assert float(cosines_with(rep.embeddings.vectors, expected).min()) > 0.9999


def test_only_the_first_blocks_are_kept():
    net, x = Encoder(), torch.randn(5000, 12)
    rep = record(net, x, buckets=0, block=128)
    assert embedded_blocks(128) == 32
    assert (sum(rep.block_sizes), rep.embeddings.rows) == (5000, 4096)
    few = record(net, x, buckets=0, block=1000, blocks=2)
    assert few.embeddings.rows == 2000
    assert embedded_blocks(5000) == 1


def test_shards_merge_to_what_one_pass_keeps():
    whole = record(block=16)
    parts = [record(block=16, shard=(i, 3)) for i in range(3)]
    assert rs.merge(parts[::-1]).embeddings == whole.embeddings


def test_a_shard_of_later_blocks_alone_merges_as_well(tmp_path):
    net, x = Encoder(), torch.randn(8200, 12)
    how = {"buckets": 1, "block": 4096}
    parts = [record(net, x, shard=(i, 3), **how) for i in range(3)]
    assert [part.embeddings.rows for part in parts] == [4096, 0, 0]
    paths = [part.save(tmp_path / f"{i}.rsm") for i, part in enumerate(parts)]
    merged = rs.merge(paths)
    assert merged.embeddings == parts[0].embeddings
    assert tuple(rs.load(paths[1]).embeddings.vectors.shape) == (0, 8)


def test_shards_that_keep_different_things_are_refused():
    one = record(block=16, shard=(0, 2))
    with pytest.raises(MismatchError, match="'embeddings kept' and 'left out'"):
        rs.merge([one, record(block=16, shard=(1, 2), outputs=False)])


def test_samples_that_are_skipped_are_left_out():
    bad = X.clone()
    bad[[3, 77]] = torch.nan
    rep = record(x=bad, on_bad="skip")
    order = [i for i in in_order(rep).tolist() if i not in (3, 77)]
    assert rep.embeddings.rows == 198
    expected = Encoder()(X[order]).detach()
    assert float((rep.embeddings.vectors.float() - expected).abs().max()) < 5e-4


def test_embeddings_that_are_not_finite_are_refused_or_skipped():
    """Finite features, and an output that overflows for one sample."""
    most = Encoder(lambda z: z)(X)[:, 0].amax().detach() - 1e-5
    net = Encoder(lambda z: torch.where(z[:, :1] > most, torch.inf, z))
    with pytest.raises(DataError, match="NaN or Inf in the model's outputs"):
        record(net, logits="none", batch_size=200)
    assert record(net, logits="none", batch_size=200, on_bad="skip").embeddings.rows == 199


def test_a_resumed_pass_keeps_what_a_whole_one_does(tmp_path):
    class Ends(Encoder):
        calls = 0

        def forward(self, x):
            Ends.calls += len(x) == 16
            if Ends.calls == 6:
                raise RuntimeError("stopped")
            return super().forward(x)

    x = torch.randn(1200, 12, generator=torch.Generator().manual_seed(1))
    how = {"block": 16, "batch_size": 16, "checkpoint": (tmp_path / "pass", 0.0)}
    with pytest.raises(RuntimeError, match="stopped"):
        record(Ends(), x, **how)
    Ends.calls = 100
    assert record(Ends(), x, **how).embeddings == record(x=x, block=16).embeddings


def test_arrays_of_embeddings_are_recorded():
    vectors = Encoder()(X).detach()
    by_values = rs.record_arrays(outputs=vectors.numpy(), data_id="x")
    named = rs.record_arrays(outputs=3 * vectors, logits="none", data_id="x")
    order = torch.from_numpy(in_order(named))
    assert named.made.logits == by_values.made.logits == "none"
    for rep in (by_values, named):
        assert torch.allclose(rep.embeddings.vectors.float(), vectors[order], atol=5e-4)
    rounded = (127 * vectors).round().to(torch.int8)
    eight = rs.record_arrays(outputs=rounded, logits="none", data_id="x")
    assert float(cosines_with(eight.embeddings.vectors, vectors[order]).min()) > 0.999
    with pytest.raises(DataError, match="expected an array"):
        rs.record_arrays(outputs=vectors[:, :1], logits="none", data_id="x")


def test_very_wide_outputs_are_left_out_with_a_warning():
    wide = Encoder(dim=MAX_DIMENSIONS + 1)
    with pytest.warns(ResemblanceWarning, match="up to 16,384 dimensions, found 16,385"):
        assert record(wide, X[:60], layers=["net.1"]).outputs is None


def test_recordings_with_embeddings_pickle():
    rep = record()
    assert pickle.loads(pickle.dumps(rep)) == rep


def test_directions_hold_any_scale():
    x = torch.tensor([[3e30, 4e30], [3e-40, 4e-40], [0, 0], [-0.3, 0.4]], dtype=torch.float32)
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0, 0], [-0.6, 0.8]])
    assert torch.allclose(directions(x).float(), expected, atol=5e-4)
