"""Search against a plain list of all comparisons, and one network scored against many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import made_up
import resemblance as rs
from resemblance.errors import DataError, LayerError, MismatchError
from resemblance.similarity.jackknife import are_unreliable
from resemblance.zoo import search
from resemblance.zoo.search import score_many
from resemblance.zoo.zoo import Zoo

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
    assert all(x.signature == pytest.approx(x.score, abs=4 / 32) for x in found)
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
    assert found.left_out == {"the query itself": 1}
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


@pytest.mark.parametrize(
    ("layer", "draws"), [(None, (60, 68)), ("l2", (69, 75)), ("l5", (60, 64)), ("l4", (60, 61))]
)
def test_the_nearest_of_many_that_are_nearly_alike_is_found(tmp_path, layer, draws):
    """Of draws at which a search that trusts signatures takes another; l4 is between two depths."""
    zoo = Zoo(tmp_path / "z")
    zoo.add_all(network(1, i, name=f"n{i}") for i in range(16))
    for draw in draws:
        query = network(0.5, draw)
        every = zoo.search(query, layer=layer, limit=16)
        assert every.compared == 16
        assert zoo.search(query, layer=layer, limit=1).matches[0].entry == every.matches[0].entry


def test_a_search_at_one_layer_stops_too(tmp_path):
    zoo = Zoo(tmp_path / "z")
    zoo.add_all(network(0.02 if i < 2 else 9, i, name=f"n{i}") for i in range(16))
    assert zoo.search(network(0, 99), layer="l3", limit=2).compared == 2
    assert zoo.search(network(0, 99), layer="l4", limit=2).compared == 16


def test_other_groups_and_other_recordings_are_counted(tmp_path):
    mixed = Zoo(tmp_path / "z")
    mixed.add(network(0.1, 1))
    mixed.add(network(0.1, 2, samples=80, name="other data"))
    mixed.add(network(0.1, 3, seed=5, name="other seed"))
    found = mixed.search(network(0, 99))
    assert [x.entry.name for x in found] == ["n0.1"]
    assert found.left_out == {"recorded on different samples or with different settings": 2}
    words = found.summary()
    assert "1 network on data of 90, 90 samples examined" in words
    assert (
        "Skipped: 2 recorded on different samples or with different settings; to search those"
        in words
    )
    nothing = mixed.search(network(0, 99, samples=70))
    assert len(nothing) == nothing.looked_at == 0
    assert "No matches." in nothing.summary()


def of_target(rep, target):
    return replace(rep, settings=replace(rep.settings, target=target))


@pytest.fixture
def targets(place):
    """Entries with gradients of two targets, and one without any."""
    with Zoo(place) as out:
        out.add(network(0.4, 1, name="same"), tags=["a"])
        out.add(of_target(network(0.1, 2, name="another"), "another"), tags=["a"])
        out.add(network(0.1, 3, gradients=False, name="none"))
        yield out


def test_features_are_searched_whatever_gradients_were_recorded(targets):
    for query in (network(0, 99), network(0, 99, gradients=False)):
        found = targets.search(query)
        assert {x.entry.name for x in found} == {"same", "another", "none"}
        assert found.matches[2].entry.name == "same"  # the roughest
        assert (found.looked_at, found.left_out) == (3, {})
    assert [x.entry.name for x in targets.search("none", tag="a")] == ["another", "same"]


@pytest.mark.parametrize("kernel", ["gradients", "product"])
def test_gradients_are_searched_where_they_are_of_one_target(targets, kernel):
    found = targets.search(network(0, 99), kernel=kernel, limit=1)
    assert [x.entry.name for x in found] == ["same"]
    assert found.looked_at == 1
    assert found.left_out == {
        "recorded without gradients": 1,
        "with gradients of a different target or beta": 1,
    }
    assert "1 recorded without gradients" in found.summary()
    found = targets.search("another", kernel=kernel)
    assert (len(found), found.looked_at) == (0, 0)


def test_other_targets_do_not_crowd_out_those_that_count(tmp_path):
    """Candidates are few, so that entries that cannot be compared must not be among them."""
    zoo = Zoo(tmp_path / "z")
    zoo.add_all(of_target(network(0.01, i, name=f"near {i}"), "another") for i in range(20))
    zoo.add(network(0.5, 99, name="far"))
    found = zoo.search(network(0, 98), kernel="gradients", limit=1)
    assert [x.entry.name for x in found] == ["far"]


def test_samples_in_another_order_under_the_same_name_are_left_out(tmp_path):
    """Which no group knows of, as data go by their name."""
    zoo = Zoo(tmp_path / "z")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.randn(60, 4)
    for name, data in (("as it was", x), ("turned", x.flip(0))):
        zoo.add(rs.record(net, data, data_id="x", name=name))
    found = zoo.search(rs.record(net, x, data_id="x", name="query"))
    assert [x.entry.name for x in found] == ["as it was"]
    assert found.left_out == {"recorded on different samples or with different settings": 1}
    assert (found.looked_at, found.compared) == (2, 1)


@pytest.mark.parametrize("use", ["search", "derivatives", "family_tree"])
def test_what_is_removed_meanwhile_is_passed_over(tmp_path, monkeypatch, use):
    zoo = Zoo(tmp_path / "z")
    zoo.add_all(network(noise, i) for i, noise in enumerate(NOISES[:3]))
    query = network(0, 99)
    listed = zoo.store.listed()[0]
    zoo.remove("n0.1")
    monkeypatch.setattr(zoo.store, "listed", lambda **_: (listed, []))  # as it was just before
    monkeypatch.setattr(zoo.store, "nearest", lambda *_, **__: [(x.id, 1.0) for x in listed])
    found = zoo.family_tree() if use == "family_tree" else getattr(zoo, use)(query)
    assert "n0.1" not in {x.entry.name for x in found}
    assert "damaged" not in found.left_out
    assert (len(found) if use == "family_tree" else found.looked_at) >= 2


def test_a_network_without_a_score_comes_last_and_stops_nothing(tmp_path):
    zoo = Zoo(tmp_path / "z")
    f, g = made_up.related(0, SAMPLES, layers=6)
    flat = {name: np.ones_like(x) for name, x in f.items()}
    constant = rs.record_arrays(flat, g, data_id=f"data of {SAMPLES}", buckets=0, name="constant")
    zoo.add(constant)
    zoo.add_all(network(noise, i) for i, noise in enumerate(NOISES))
    found = zoo.search(network(0, 99), limit=6)
    assert [x.entry.name for x in found][-1] == "constant"
    assert np.isnan(found.matches[-1].score)
    assert found.to_dict()["matches"][-1]["score"] is None
    assert [x.entry.name for x in zoo.search(network(0, 99), limit=2)] == ["n0.05", "n0.1"]


def test_a_damaged_entry_is_left_out_and_said(tmp_path):
    zoo = Zoo(tmp_path / "z")
    for draw, noise in enumerate(NOISES[:3]):
        zoo.add(network(noise, draw))
    path = sorted((tmp_path / "z" / "objects").rglob("*.rsm"))[0]
    path.write_bytes(b"nothing")
    found = zoo.search(network(0, 99))
    assert len(found) == 2
    assert found.left_out == {"damaged": 1}
    assert "Skipped: 1 damaged." in found.summary()


def test_networks_of_other_depths_are_compared_at_relative_depths(zoo):
    found = zoo.search(network(0, 99, layers=1), limit=1)
    assert found.matches[0].layers == (("l0", "l0"), ("l0", "l2"), ("l0", "l3"), ("l0", "l5"))


def test_what_cannot_be_asked_says_so(zoo):
    with pytest.raises(DataError, match="`kernel` must be one of features, gradients, product"):
        zoo.search("n0.1", kernel="sum")
    with pytest.raises(LayerError, match="no layer 'l9'; nearest: l5"):
        zoo.search("n0.1", layer="l9")
    with pytest.raises(MismatchError, match="'product' needs gradients, and 'n0' was recorded"):
        zoo.search(network(0, 9, gradients=False), kernel="product")
    with pytest.raises(DataError, match="'n0' has no blocks, which search needs"):
        zoo.search(network(0, 9, blocks=0))


def test_results_can_be_read_and_kept(zoo):
    found = zoo.search(network(0, 99, name="query\x1b"), limit=2)
    frame = found.to_frame()
    assert list(frame["name"]) == [x.entry.name for x in found]
    assert frame["above_chance"].all()
    assert found.to_dict()["matches"][0]["entry"]["name"] == found.matches[0].entry.name
    assert repr(found) == "SearchResult(2 nearest to 'query\\x1b', of 5; 1.000 at most)"
    assert "\x1b" not in found.summary()
    assert "cka of centred features, mean over four depths" in found.summary()


KERNELS = ("features", "gradients", "product")


def made(seed, samples, **options):
    f, g = made_up.related(seed, samples, layers=3)
    options = {"buckets": 0, "data_id": "probe", "name": f"net {seed}", **options}
    return rs.record_arrays(f, g, **options)


def of_tokens(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    ids = torch.randint(40, (60, 6), generator=torch.Generator().manual_seed(1))
    kept = {"layers": ["1", "2"], "buckets": 0, "block": 16}
    return rs.record(net, ids, unit="token", tokens=3, data_id="text", name=f"t{seed}", **kept)


SETS = {
    "whole": lambda: [made(i, 90) for i in range(4)],
    "one layer": lambda: [replace(x, layers=x.layers[:1]) for x in (made(1, 90), made(2, 90))],
    "blocks": lambda: [made(i, 300, block=16, blocks=8) for i in range(3)],
    "norms": lambda: [made(i, 1300, block=32, blocks=30) for i in range(3)],
    "one layer of norms": lambda: [
        replace(x, layers=x.layers[:1])
        for x in (made(i, 1300, block=32, blocks=30) for i in (1, 2))
    ],
    "tokens": lambda: [of_tokens(i) for i in range(3)],
}


def by_itself(query, other, kernel):
    """Score, standard error, chance and doubt of two networks, by `compare`."""
    found = rs.compare(query, other, kernel=kernel)
    mean, error = found.mean() if len(query) > 1 else (found.scores[0, 0], found.stderr[0, 0])
    chance = [x.diagonal().mean() for x in (found.chance, found.chance_high)]
    return mean, error, *chance, are_unreliable(query, found).diagonal().any()


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_are_those_of_compare(which, kernel, monkeypatch):
    query, *others = SETS[which]()
    truth = [by_itself(query, other, kernel) for other in others]
    monkeypatch.setattr(search, "compare", None)  # none of these is compared by itself
    found = score_many(query, others, kernel)
    for one, (score, error, chance, high, doubtful) in zip(found, truth, strict=True):
        assert (one.score, one.stderr) == pytest.approx((score, error), abs=1e-6)
        # 256 draws know a standard deviation to 4 %; skewness moves the level as much again
        assert one.chance_high - chance == pytest.approx(high - chance, rel=0.25)
        assert one.doubtful == doubtful


def test_the_level_of_chance_is_that_of_permutations():
    """Which 5 % of permuted pairings exceed, on kernels computed plainly."""
    n, rng = 60, np.random.default_rng(0)
    x, y = rng.normal(size=(n, 3)), rng.exponential(size=(n, 4))
    reps = [rs.record_arrays({"l": v}, data_id="x", buckets=0) for v in (x, y)]
    (found,) = score_many(reps[0], reps[1:], "features")
    k, other = ((v - v.mean(0)) @ (v - v.mean(0)).T for v in (x, y))
    norms = np.linalg.norm(k) * np.linalg.norm(other)
    drawn = []
    for _ in range(4000):
        order = rng.permutation(n)
        drawn.append((k * other[np.ix_(order, order)]).sum() / norms)
    above = np.mean(np.array(drawn) > found.chance_high)
    assert 0.035 < above < 0.065  # 4,000 draws have a standard error of 0.0035


def test_what_shares_no_sums_is_compared_by_itself(monkeypatch):
    """Here, a network that holds the kernel of all samples at one of its layers alone."""
    query, one, two = (made(i, 90, block=16) for i in range(3))
    blocks = replace(two[1].features, whole=None, blocks=two[1].packed_blocks("features"))
    mixed = replace(two, layers=(two[0], replace(two[1], features=blocks), two[2]))
    asked = []
    compare = search.compare
    monkeypatch.setattr(
        search,
        "compare",
        lambda a, b, **x: asked.append(b.name) or compare(a, b, **x),
    )
    found = score_many(query, [one, mixed], "features")
    assert asked == ["net 2"]
    truth = rs.compare(query, mixed, kernel="features")
    assert (found[1].score, found[1].stderr) == pytest.approx(truth.mean())
    assert found[1].chance_high == pytest.approx(truth.chance_high.diagonal().mean())
    assert found[0] == score_many(query, [one], "features")[0]


def test_samples_that_do_not_match_have_no_score():
    query, other = made(0, 90), made(1, 90)
    target = replace(other, settings=replace(other.settings, target="another"))
    assert score_many(query, [other, made(2, 80)], "features")[1] is None
    assert score_many(query, [target], "features")[0] is not None
    assert score_many(query, [target], "gradients") == [None]
    assert score_many(query, [], "features") == []
