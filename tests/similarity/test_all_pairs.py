"""Every pair of many networks: what `compare` gives, from sums that they share."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import ResemblanceWarning
from resemblance.similarity import all_pairs as module
from resemblance.similarity.all_pairs import BlockTable, FullGramTable, compare_every_pair

pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
BOTH = ("cka", "cka-debiased")


def made(seed, samples, *, layers=("a", "b", "c"), gradients=True, constant=False, **options):
    """A network that shares a signal with the others on the same samples; one layer far off."""
    signal = np.random.default_rng(99).normal(size=(samples, 5))
    rng = np.random.default_rng(seed)

    def arrays(offset):
        out = {name: signal + rng.normal(size=signal.shape) for name in layers}
        out[layers[0]] += offset
        return out

    features = arrays(20.0)
    if constant:
        features[layers[1]][:] = 3.0
    given = (features, arrays(0.0)) if gradients else (features,)
    options = {"buckets": 0, **options}
    return rs.record_arrays(*given, data_id="probe", name=f"net{seed}", **options)


def of_tokens(seed, sequences, block=16):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    ids = torch.randint(40, (sequences, 6), generator=torch.Generator().manual_seed(1))
    kept = {"layers": ["1", "2"], "buckets": 0, "block": block}
    return rs.record(net, ids, unit="token", tokens=3, data_id="text", name=f"t{seed}", **kept)


SETS = {
    "whole": lambda: [
        made(1, 90),
        made(2, 90, layers=("a", "b")),
        made(3, 90, layers=("x", "y"), constant=True),
    ],
    "few samples in blocks": lambda: [made(i, 300, block=16, blocks=8) for i in (1, 2, 3)],
    "many samples in blocks": lambda: [made(i, 1300, block=32, blocks=30) for i in (1, 2)],
    "norms of a part": lambda: [made(i, 1100, block=40, blocks=40) for i in (1, 2)],
    "tokens of one window": lambda: [of_tokens(i, 56, block=56) for i in (1, 2)],
    "tokens of many windows": lambda: [of_tokens(i, 330) for i in (1, 2)],
}


@functools.cache
def recordings(which):
    return SETS[which]()


def assert_same(found, truth):
    assert (found.estimator, found.matched, found.models) == (
        truth.estimator,
        truth.matched,
        truth.models,
    )
    assert (found.notes, found.samples) == (truth.notes, truth.samples)
    for name in ("scores", "stderr", "chance", "chance_high", "replicates", "effective_blocks"):
        one, two = getattr(found, name), getattr(truth, name)
        assert (one is None) == (two is None), name
        if one is not None:
            np.testing.assert_allclose(one, two, atol=1e-6, rtol=0, err_msg=name)
    doubt = truth.stderr > 1e-6  # of no error at all, degrees of freedom are round-off
    np.testing.assert_allclose(found.df[doubt], truth.df[doubt], rtol=1e-3)
    for one, two in zip(found.n_eff, truth.n_eff, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*is constant on these data")
@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("kernel", ["features", "gradients", "product"])
def test_pairs_are_those_of_compare(which, kernel, monkeypatch):
    reps = recordings(which)
    truth = {
        (i, j, index): rs.compare(reps[i], reps[j], kernel=kernel, index=index)
        for i in range(len(reps))
        for j in range(i, len(reps))
        for index in BOTH
    }
    monkeypatch.setattr(module, "compare_kernel", None)  # no pair of these is compared by itself
    found, missing = compare_every_pair(reps, kernel, BOTH, {})
    assert not missing
    assert found.keys() == truth.keys()
    for key, one in found.items():
        assert_same(one, truth[key])


def test_estimators_are_those_of_compare():
    found = {
        which: compare_every_pair(recordings(which), "gradients", ("cka",), {})[0][0, 1, "cka"]
        for which in ("whole", "many samples in blocks")
    }
    assert {which: one.estimator for which, one in found.items()} == {
        "whole": "blocks",
        "many samples in blocks": "ratio",
    }


def test_more_layers_than_memory_holds_are_taken_in_groups(monkeypatch):
    reps = [made(i, 60, layers=("a", "b")) for i in range(5)]
    whole, _ = compare_every_pair(reps, "features", ("cka",), {})
    monkeypatch.setattr(module, "_LAYERS_AT_ONCE", 4)
    parts, _ = compare_every_pair(reps, "features", ("cka",), {})
    assert parts.keys() == whole.keys()
    for key, one in parts.items():
        np.testing.assert_allclose(one.scores, whole[key].scores, atol=1e-12)


def test_pairs_that_share_nothing_are_compared_one_by_one():
    reps = [made(1, 90, buckets=16), made(2, 90, buckets=16), made(3, 70, buckets=16)]
    plain = made(4, 90, gradients=False, buckets=16)
    with pytest.warns(ResemblanceWarning, match="used different samples"):
        found, missing = compare_every_pair([*reps, plain], "gradients", ("cka",), {})
    with pytest.warns(ResemblanceWarning, match="used different samples"):
        truth = rs.compare(reps[0], reps[2], kernel="gradients", unpaired=True)
    assert found[0, 1, "cka"].estimator == "blocks"
    assert found[0, 2, "cka"].estimator == "buckets"
    np.testing.assert_array_equal(found[0, 2, "cka"].scores, truth.scores)
    assert {key[:2] for key in missing} == {(0, 3), (1, 3), (2, 3), (3, 3)}
    assert "lacks" in missing[0, 3, "cka"]


def test_progress_hears_of_every_pair_once():
    heard = []
    reps = [made(i, 60, layers=("a",), gradients=i < 2) for i in range(3)]
    compare_every_pair(reps, "gradients", BOTH, {}, heard.append)
    assert sum(heard) == 6 * 2


def test_behaviour_is_handed_through():
    reps = [made(i, 60, layers=("a",)) for i in (1, 2)]
    found, _ = compare_every_pair(reps, "features", ("cka",), {(0, 1): "told"})
    assert found[0, 1, "cka"].behaviour == "told"
    assert found[0, 0, "cka"].behaviour is None


@pytest.mark.parametrize("tables", [FullGramTable, BlockTable])
def test_tables_are_made_once_for_all_pairs(tables, monkeypatch):
    made_of = []
    name = tables.__name__
    monkeypatch.setattr(module, name, lambda *given: made_of.append(given) or tables(*given))
    which = "whole" if tables is FullGramTable else "few samples in blocks"
    compare_every_pair(recordings(which)[:2], "gradients", BOTH, {})
    assert len(made_of) == 1
