"""What is asked of recordings."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from little_zoo import NASTY, network, recorded

from resemblance import Zoo, compare
from resemblance.errors import FormatError
from resemblance.views import report
from resemblance.web import queries

# few samples carry these kernels, of which a worker does not speak
pytestmark = pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")


@pytest.fixture
def zoo(little):
    with Zoo(little.place) as opened:
        yield opened


def test_a_pair_is_what_the_report_shows(zoo, little):
    a, b = little.id("base"), little.id("tuned")
    found = queries.pair_report(zoo, a, b)
    truth, numbers = report.report_contents([zoo.get(a), zoo.get(b)])
    assert found["numbers"] == numbers
    assert found["ids"] == [a, b]
    assert found["content"]["overview"] == truth["overview"]
    json.dumps(found, allow_nan=False)


def test_one_network_is_compared_with_itself(zoo, little):
    content = queries.pair_report(zoo, little.id("base"), little.id("base"))["content"]
    assert [x["name"] for x in content["models"]] == ["base"]


def test_names_are_spelt_out(zoo, little):
    found = json.dumps(
        queries.pair_report(zoo, little.id(NASTY), little.id("base")), ensure_ascii=False
    )
    assert "\x1b" not in found
    assert "\u202e" not in found


def test_nearest_networks_are_those_of_search(zoo, little):
    found = queries.nearest_entries(zoo, little.id("base"), "features", 3)
    truth = zoo.search("base", limit=3)
    assert [x["entry"]["id"] for x in found["matches"]] == [x.entry.id for x in truth]
    assert found["matches"][0]["entry"]["name"] == "tuned"
    assert found["words"].startswith("Most similar to base")
    json.dumps(found, allow_nan=False)


def test_copies_lie_together_on_the_map(zoo, little):
    found = queries.zoo_map(zoo, little.group, "features")
    places = {x["id"]: np.array([x["x"], x["y"]]) for x in found["points"]}
    assert len(places) == 7
    far = {
        name: np.linalg.norm(places[little.id("base")] - places[little.id(name)])
        for name in ("tuned", "stranger")
    }
    score = float(compare(zoo.get("base"), zoo.get("stranger"), kernel="product").scores[0, 0])
    assert score < 0.9  # so that they lie apart
    assert far["tuned"] < far["stranger"] / 5
    assert queries.zoo_map(zoo, "0" * 16, "features")["points"] == []


def test_of_very_many_some_are_drawn(zoo, little, monkeypatch):
    monkeypatch.setattr(queries, "MOST_POINTS", 3)
    found = queries.zoo_map(zoo, little.group, "features")
    assert len(found["points"]) == 3
    assert found["left_out"] == 4


def test_gradients_of_another_target_are_on_no_map_with_others(own):
    with Zoo(own.place) as zoo:
        before = queries.zoo_map(zoo, own.group, "gradients")
        other = zoo.add(recorded(network(7), "of another beta", beta=0.0))
        alone = zoo.add(recorded(network(8), "of features alone", gradients=False))
        assert other.group == alone.group == own.group
        found = queries.zoo_map(zoo, own.group, "gradients")
        seen = {x["id"] for x in queries.zoo_map(zoo, own.group, "features")["points"]}
    assert found == {**before, "left_out": 1}
    assert {other.id, alone.id} < seen


def test_data_are_set_against_those_that_entries_learned_from(zoo, little):
    found = queries.entries_by_data(zoo, little.id("base"), 5)
    (first,) = found["by_data"]
    assert first["entry"]["name"] == "learned elsewhere"
    assert 0 <= first["distance"] < 0.5  # both are samples of one distribution
    other = queries.entries_by_data(zoo, little.id("stranger"), 5)
    assert other["by_data"] == []
    assert other["skipped"][0]["count"] == other["linked"] == 1
    assert "they are of different networks" in other["skipped"][0]["why"]


def test_a_reference_that_is_not_there_is_said(own):
    with Zoo(own.place) as zoo:
        zoo.remove("base on other samples")
        found = queries.entries_by_data(zoo, own.id("base"), 5)
    assert "not in this zoo" in found["skipped"][0]["why"]


def test_relatives_are_those_of_the_zoo(zoo, little):
    found = queries.related_entries(zoo, little.id("base"), 5)
    assert [x["entry"]["name"] for x in found["relatives"]] == ["tuned", "tuned further"]
    assert found["words"].startswith("Networks that share an ancestor with base")


def test_a_recording_is_added_once_it_was_read(own, tmp_path):
    path = tmp_path / "new.rsm"
    recorded(network(7), "new").save(path)
    with Zoo(own.place) as zoo:
        found = queries.add_upload(zoo, str(path), ["sent"])
        assert zoo.entry("new").id == found["id"]
        assert found["tags"] == ["sent"]


def test_what_is_no_recording_is_not_added_and_its_place_not_told(own, tmp_path):
    path = tmp_path / "damaged.rsm"
    recorded(network(7), "new").save(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with Zoo(own.place) as zoo:
        with pytest.raises(FormatError, match="the file is damaged") as refusal:
            queries.add_upload(zoo, str(path), [])
        assert str(tmp_path) not in str(refusal.value)
        assert len(zoo) == 8


@pytest.mark.parametrize("part", ["name", "layers", "address", "bare_name", "shape", "shards"])
def test_names_that_would_fill_a_page_are_refused(own, tmp_path, part, monkeypatch):
    path = tmp_path / "long.rsm"
    rep = recorded(network(7), "x" * 301 if part == "name" else "x")
    if part == "layers":
        monkeypatch.setattr(queries, "_MOST_LAYERS", 1)
    if part == "address":
        rep = replace(rep, model=replace(rep.model, address="x" * 301))
    if part == "bare_name":
        rep = replace(rep, layers=tuple(replace(x, bare_name="x" * 301) for x in rep))
    if part == "shape":
        rep = replace(rep, layers=tuple(replace(x, shape=(1,) * 17) for x in rep))
    if part == "shards":
        many = tuple((i, 70_000) for i in range(70_000))
        rep = replace(rep, data=replace(rep.data, shards=many))
    rep.save(path)
    with Zoo(own.place) as zoo, pytest.raises(FormatError, match=r"expected|must be"):
        queries.add_upload(zoo, str(path), [])
