"""Search against a plain list of all comparisons, and what it says of what it left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import made_up
import resemblance as rs
from resemblance.errors import DataError, LayerError, MismatchError
from resemblance.zoo.collection import Zoo

SAMPLES = 90
NOISES = (0.05, 0.1, 0.4, 0.8, 1.6)


def network(noise, draw, *, samples=SAMPLES, layers=6, gradients=True, **options):
    """One whose layers are those of one origin, blurred."""
    f, g = made_up.related(0, samples, layers=layers)
    rng = np.random.default_rng([draw, 7])

    def blurred(vectors):
        return {k: x + noise * rng.normal(size=x.shape) for k, x in vectors.items()}

    options = {"data_id": f"data of {samples}", "buckets": 0, "name": f"n{noise:g}", **options}
    return rs.record_arrays(blurred(f), blurred(g) if gradients else None, **options)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    out = Zoo(tmp_path_factory.mktemp("zoo") / "z")
    for draw, noise in enumerate(NOISES):
        out.add(network(noise, draw), tags=["fine"] if noise < 0.3 else ["rough"])
    return out


def ranking(zoo, query, kernel, pairs):
    """Names and mean scores of counterparts, one comparison after the other."""
    found = {}
    for entry in zoo:
        scores = rs.compare(query, zoo.get(entry.id), kernel=kernel).scores
        found[entry.name] = np.mean([scores[i, j] for i, j in pairs])
    return sorted(found.items(), key=lambda x: -x[1])


@pytest.mark.parametrize("kernel", ["features", "gradients", "product"])
def test_the_order_is_that_of_all_comparisons(zoo, kernel):
    query = network(0, 99, name="query")
    found = zoo.search(query, kernel=kernel, limit=3)
    depths = [(0, 0), (2, 2), (3, 3), (5, 5)]
    expected = ranking(zoo, query, kernel, depths)[:3]
    assert [x.entry.name for x in found] == [name for name, _ in expected]
    assert [x.score for x in found] == pytest.approx([score for _, score in expected], abs=1e-6)
    assert all(0 < x.stderr < 0.1 and x.above_chance for x in found)
    assert all(x.signature == pytest.approx(x.score, abs=4 / 64) for x in found)
    assert found.matches[0].layers == (("l0", "l0"), ("l2", "l2"), ("l3", "l3"), ("l5", "l5"))
    assert (found.looked_at, found.left_out) == (5, {})


def test_the_standard_error_is_that_of_the_mean_over_depths(zoo):
    query = network(0, 99, layers=4)
    entry = zoo.search(query, limit=1).matches[0]
    other = zoo.get(entry.entry.id, layers=[0, 2, 3, 5])
    renamed = tuple(replace(x, name=f"l{i}", bare_name="") for i, x in enumerate(other))
    exact = rs.compare(query, replace(other, layers=renamed), kernel="features").mean()
    assert (entry.score, entry.stderr) == pytest.approx(exact)


def test_one_layer_is_compared_with_its_namesake_or_that_at_its_depth(zoo):
    query = network(0, 99)
    found = zoo.search(query, layer="l3", limit=2)
    assert [x.layers for x in found] == [(("l3", "l3"),)] * 2
    assert found.matches[0].matched_by == "name"
    expected = ranking(zoo, query, "features", [(3, 3)])[:2]
    assert [(x.entry.name, round(x.score, 6)) for x in found] == [
        (name, round(score, 6)) for name, score in expected
    ]
    foreign = replace(query, layers=tuple(replace(x, name=f"m{x.name}") for x in query.layers[:3]))
    found = zoo.search(foreign, layer=1, limit=1)
    assert found.layer == "ml1"
    assert found.matches[0].layers == (("ml1", "l2"),)  # half of the way, rounded to even
    assert found.matches[0].matched_by == "depth"


def test_only_the_layers_needed_are_read(zoo, monkeypatch):
    asked = []
    read = zoo.store.read
    monkeypatch.setattr(
        zoo.store, "read", lambda id, layers=None: asked.append(layers) or read(id, layers)
    )
    zoo.search("n0.05", limit=2)
    assert asked == [[0, 2, 3, 5]] * len(asked)
    asked.clear()
    zoo.search("n0.05", layer=4, limit=2)
    assert asked == [[4]] * len(asked)


def test_an_entry_asked_about_is_left_out_itself_and_a_file_is_not(zoo, tmp_path):
    found = zoo.search("n0.1", limit=9)
    assert "n0.1" not in [x.entry.name for x in found]
    assert len(found) == found.looked_at == 4
    assert found.left_out == {"the network asked about": 1}
    path = zoo.get("n0.1").save(tmp_path / "a.rsm")
    again = zoo.search(path, limit=1)
    assert (again.matches[0].entry.name, again.matches[0].score) == ("n0.1", pytest.approx(1))
    assert zoo.search(str(path), limit=1).matches == again.matches


def test_a_text_that_is_neither_entry_nor_file_is_refused(zoo):
    with pytest.raises(DataError, match=r"no entry 'n0.15'.*nearest"):
        zoo.search("n0.15")


def test_a_tag_limits_the_search(zoo):
    found = zoo.search(network(0, 99), tag="rough", limit=9)
    assert sorted(x.entry.name for x in found) == ["n0.4", "n0.8", "n1.6"]
    assert found.looked_at == 3
    assert "tagged rough" in found.summary()


def test_it_stops_where_no_other_can_be_nearer(tmp_path):
    zoo = Zoo(tmp_path / "z")
    for draw in range(30):
        zoo.add(network(0.02 if draw < 2 else 3, draw, name=f"n{draw}"))
    found = zoo.search(network(0, 99), limit=2)
    assert sorted(x.entry.name for x in found) == ["n0", "n1"]
    assert found.compared == 2
    assert found.looked_at == 30


def test_other_groups_and_other_recordings_are_counted(zoo, tmp_path):
    mixed = Zoo(tmp_path / "z")
    mixed.add(network(0.1, 1))
    mixed.add(network(0.1, 2, samples=80, name="other data"))
    mixed.add(network(0.1, 3, seed=5, name="other seed"))
    mixed.add(network(0.1, 4, gradients=False, name="no gradients"))
    found = mixed.search(network(0, 99), kernel="gradients")
    assert [x.entry.name for x in found] == ["n0.1"]
    # without gradients there is no target, so that settings differ
    assert found.left_out == {"recorded on other samples or in another way": 3}
    words = found.summary()
    assert "1 network on data of 90, 90 samples looked at" in words
    assert "Left out: 3 recorded on other samples or in another way; to search those" in words
    nothing = mixed.search(network(0, 99, samples=70))
    assert len(nothing) == nothing.looked_at == 0
    assert "None was found." in nothing.summary()


def test_a_damaged_entry_is_left_out_and_said(tmp_path):
    zoo = Zoo(tmp_path / "z")
    for draw, noise in enumerate(NOISES[:3]):
        zoo.add(network(noise, draw))
    path = sorted((tmp_path / "z" / "objects").rglob("*.rsm"))[0]
    path.write_bytes(b"nothing")
    found = zoo.search(network(0, 99))
    assert len(found) == 2
    assert found.left_out == {"damaged": 1}
    assert "Left out: 1 damaged." in found.summary()


def test_networks_of_other_depths_are_compared_at_relative_depths(zoo):
    found = zoo.search(network(0, 99, layers=1), limit=1)
    assert found.matches[0].layers == (("l0", "l0"), ("l0", "l2"), ("l0", "l3"), ("l0", "l5"))


def test_what_cannot_be_asked_says_so(zoo):
    with pytest.raises(DataError, match="kernel must be one of features, gradients, product"):
        zoo.search("n0.1", kernel="sum")
    with pytest.raises(LayerError, match="no layer 'l9'; nearest: l5"):
        zoo.search("n0.1", layer="l9")
    with pytest.raises(MismatchError, match="holds no gradients"):
        zoo.search(network(0, 9, gradients=False), kernel="product")
    with pytest.raises(DataError, match="found 'n0' without; record it again with blocks above 0"):
        zoo.search(network(0, 9, blocks=0))


def test_results_can_be_read_and_kept(zoo):
    found = zoo.search(network(0, 99, name="query\x1b"), limit=2)
    frame = found.to_frame()
    assert list(frame["name"]) == [x.entry.name for x in found]
    assert frame["above_chance"].all()
    assert found.to_dict()["matches"][0]["entry"]["name"] == found.matches[0].entry.name
    assert repr(found) == "Found(2 near 'query\\x1b', of 5 looked at)"
    assert "\x1b" not in found.summary()
    assert "cka of centred features, mean over four depths" in found.summary()
