"""The demo of a zoo, trained less: it is filled, linked, and asked."""

from __future__ import annotations

import pytest

from resemblance import Zoo
from resemblance.demo import digit_networks, zoo_demo
from resemblance.errors import DataError

pytestmark = pytest.mark.slow  # they share one demo, which takes a quarter of a minute


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The demo's folder and the lines it printed, after six epochs instead of twenty."""
    out = tmp_path_factory.mktemp("demo")
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digit_networks, "EPOCHS", 6)
        zoo_demo.run(out, say=lines.append)
    return out, lines


def test_the_zoo_holds_every_network_and_the_data_it_learned_from(told):
    out, _ = told
    with Zoo(out / "zoo", create=False) as zoo:
        assert len(zoo) == digit_networks.NETWORK_COUNT + 1 + 3
        assert zoo.verify() == []
        linked = {entry.name: entry.trained_on for entry in zoo if entry.trained_on is not None}
        assert len(linked) == digit_networks.NETWORK_COUNT  # all but the untrained one
        assert linked["turned"] != linked["twin-1"]
        assert zoo.entry(linked["turned"]).name == "twin-2 on turned training digits"


def test_the_family_and_the_recommendation_are_told(told):
    out, lines = told
    text = "\n".join(lines)
    assert "├─ twin-1-int8" in text
    assert "Start from " in text
    assert "and 7 more." in text
    assert "distance of its training data" in text
    assert all(len(line) <= 80 for line in lines if "#view" not in line and str(out) not in line)


def test_the_query_is_there_for_the_page(told):
    out, lines = told
    query = lines[-1].rpartition("=")[2]
    with Zoo(out / "zoo") as zoo:
        assert zoo.entry(query).tags == ("query",)


def test_a_zoo_that_is_there_is_left_alone(told):
    out, _ = told
    with pytest.raises(DataError, match="name another folder"):
        zoo_demo.run(out, say=print)
