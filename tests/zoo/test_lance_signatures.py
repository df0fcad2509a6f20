"""Signatures in Lance tables: an index finds nearly what an exact search does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import resemblance as rs
from resemblance.zoo.entry import NewRecording, entry_for
from resemblance.zoo.signature import DEPTHS, WIDTH, exact_nearest
from zoo_workers import tiny

pytest.importorskip("lancedb")
REP = tiny(0)


def made_up_zoo(folder, count, vectors):
    """Entries with signatures that are given, without recordings worth reading."""
    zoo = rs.Zoo(f"lance:{folder}")
    entry = entry_for(REP, tags=(), size=0, trained_on=None)
    news = {
        f"{i:032x}": NewRecording(
            dataclasses.replace(entry, id=f"{i:064x}"), REP, {"features": vectors[i]}
        )
        for i in range(count)
    }
    zoo.store._write(news)
    return zoo, entry.group


def test_the_nearest_by_an_index_are_nearly_those_of_an_exact_search(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, DEPTHS * WIDTH))
    vectors = centres[np.arange(400) % 20] + rng.normal(size=(400, DEPTHS * WIDTH))
    vectors = vectors.astype(np.float16)
    zoo, group = made_up_zoo(tmp_path / "zoo", 400, vectors)
    store = zoo.store
    ids = [f"{i:064x}" for i in range(400)]
    exact = exact_nearest([(ids, vectors)], vectors[3], 20)
    assert store.nearest(group, "features", vectors[3], 20) == exact
    assert not store.has_signature_index("features")
    store.index_signatures(at_least=1000)
    assert not store.has_signature_index("features")
    store.index_signatures(at_least=300)
    assert store.has_signature_index("features")
    assert not store.has_signature_index("gradients")
    found = store.nearest(group, "features", vectors[3], 20)
    assert found[0] == exact[0]
    assert len({id for id, _ in found} & {id for id, _ in exact}) >= 16
    cosines = dict(exact_nearest([(ids, vectors)], vectors[3], 400))
    assert all(cosine == pytest.approx(cosines[id], abs=1e-6) for id, cosine in found)
    some = exact_nearest([(ids[:50], vectors[:50])], vectors[3], 40)
    assert store.nearest(group, "features", vectors[3], 40, among=ids[:50]) == some
    assert store.nearest("0" * 16, "features", vectors[3], 5) == []
    assert store.nearest(group, "gradients", vectors[3], 5) == []
    assert store.nearest(group, "another", vectors[3], 5) == []


def test_an_entry_of_two_copies_has_one_signature(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(3, DEPTHS * WIDTH)).astype(np.float16)
    zoo, group = made_up_zoo(tmp_path / "zoo", 3, vectors)
    ((entry,), _) = zoo.store.listed(id=f"{1:064x}")
    zoo.store._write({"f" * 32: NewRecording(entry, REP, {"features": vectors[1]})})
    found = [id for ids, _ in zoo.store.signatures(group, "features") for id in ids]
    assert sorted(found) == [f"{i:064x}" for i in range(3)]
    among = [f"{2:064x}", "another"]
    ((ids, rows),) = zoo.store.signatures(group, "features", among=among)
    assert ids == among[:1]
    assert (rows == vectors[2:]).all()
