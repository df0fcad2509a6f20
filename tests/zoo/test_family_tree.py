"""Forests from ties made up, and of a real zoo."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import digit_copies
import made_up
import resemblance as rs
from resemblance.errors import DataError
from resemblance.zoo import family_tree as module
from resemblance.zoo.entry import entry_for
from resemblance.zoo.family_tree import FamilyTree, build_forest, family_tree, format_decibels
from resemblance.zoo.zoo import Zoo
from zoo_workers import tiny


@functools.cache
def entry(name, *tags):
    return entry_for(made_up.recorded(0, 12, name=name), tags=tags, size=1, trained_on=None)


def ties(count, **decibels):  # ab=3: between the first and the second
    out = np.full((count, count), -np.inf)
    for (a, b), value in decibels.items():
        i, j = "abcdefgh".index(a), "abcdefgh".index(b)
        out[i, j] = out[j, i] = value
    return out


def named(kin):
    return [(x.entry.name, None if x.parent is None else kin[x.parent].entry.name) for x in kin]


def test_copies_hang_from_what_they_moved_least_from():
    entries = [entry(name) for name in "abcde"]
    # c is a copy of b, which is a copy of a, and d of a; e is alone
    near = ties(5, ab=20, bc=15, ac=12, ad=18, bd=14, cd=9)
    kin = build_forest(entries, near)
    assert named(kin) == [("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", None)]
    assert [x.depth for x in kin] == [0, 1, 2, 1, 0]
    assert [x.decibels for x in kin[1:4]] == [20, 15, 18]
    assert np.isnan(kin[0].decibels)


def test_the_sum_of_ties_is_the_largest_there_is():
    rng = np.random.default_rng(0)
    for _ in range(20):
        near = np.triu(rng.uniform(0, 30, (5, 5)), 1)
        near = near + near.T
        np.fill_diagonal(near, -np.inf)
        found = sum(x.decibels for x in build_forest([entry(x) for x in "abcde"], near)[1:])
        assert found == pytest.approx(_best(near))


def _best(near):
    """Of all trees, by leaving every entry but one a parent each (Prüfer would be faster)."""
    from itertools import product

    best = -np.inf
    for parents in product(range(5), repeat=4):  # of entries 1 to 4
        if any(p == i for i, p in enumerate(parents, 1)) or not _reaches(parents):
            continue
        best = max(best, sum(near[i, p] for i, p in enumerate(parents, 1)))
    return best


def _reaches(parents):
    for i in range(1, 5):
        for _ in range(5):
            i = parents[i - 1] if i else 0
        if i:
            return False
    return True


def test_a_tagged_base_never_hangs_from_a_copy():
    near = ties(3, ab=20, bc=20, ac=10)
    assert (
        build_forest([entry(x) for x in "abc"], near)[0].entry.name == "b"
    )  # nearest to all others
    assert build_forest([entry("a", "base"), entry("b"), entry("c")], near)[0].entry.name == "a"
    both = [entry("a", "base"), entry("b"), entry("c", "base")]
    assert named(build_forest(both, near)) == [("a", None), ("b", "a"), ("c", "a")]
    apart = ties(3, ab=20, bc=25)  # two bases of one merged copy, which are not related
    assert named(build_forest(both, apart)) == [("a", None), ("c", None), ("b", "c")]


@pytest.mark.parametrize("tags", [[], ["a"], ["b"], ["a", "c"], ["a", "b", "c", "d"]])
def test_the_direction_is_known_only_from_a_base_to_what_has_no_tag(tags):
    near = ties(4, ab=20, bc=15, cd=12, ac=11, bd=10)
    kin = build_forest([entry(x, *(["base"] if x in tags else [])) for x in "abcd"], near)
    for x in kin:
        above = None if x.parent is None else kin[x.parent].entry
        known = above is not None and "base" in above.tags and "base" not in x.entry.tags
        assert x.direction == (None if above is None else "tagged" if known else "unknown")
        assert ("direction unknown" in x.words) == (x.direction == "unknown")
        assert above is None or "base" not in x.entry.tags or "base" in above.tags
    assert len(kin) == 4


def test_the_largest_family_comes_first():
    kin = build_forest([entry(x) for x in "abcd"], ties(4, bc=5, cd=5))
    assert named(kin) == [("c", None), ("b", "c"), ("d", "c"), ("a", None)]


def tree():
    entries = [entry("a", "base"), entry("b\x1b"), entry("c"), entry("d")]
    near = ties(4, ab=200, bc=15.04)
    return FamilyTree(tuple(build_forest(entries, near)), 1e-3, {"damaged": 2})


def test_a_terminal_shows_who_hangs_from_whom():
    lines = tree().to_text().splitlines()
    ids = [x.entry.id[:8] for x in tree()]
    assert lines[0] == f"a ({ids[0]})  [base]"
    assert lines[1] == f"└─ b\\x1b ({ids[1]})  equal features"
    assert lines[2] == f"   └─ c ({ids[2]})  15.0 dB, direction unknown"
    assert lines[3] == f"d ({ids[3]})"
    assert lines[4].startswith("1 family, 1 without relatives.")
    assert lines[5] == "Skipped: 2 damaged."


def test_branches_stay_joined():
    entries = [entry(x) for x in "abcd"]
    text = FamilyTree(tuple(build_forest(entries, ties(4, ab=9, ac=8, bd=7))), 1e-3, {}).to_text()
    # a and b are related to two each; a's ties are the stronger ones
    assert [line[:3] for line in text.splitlines()[:4]] == ["a (", "├─ ", "│  ", "└─ "]


def test_a_tree_can_be_read_and_kept():
    frame = tree().to_frame()
    assert list(frame["depth"]) == [0, 1, 2, 0]
    assert frame["parent"][1] == frame["id"][0]
    kept = tree().to_dict()
    assert [x["parent"] for x in kept["members"]] == [None, 0, 1, None]
    assert kept["members"][0]["decibels"] is None
    assert repr(tree()) == "FamilyTree(4 entries: 1 family, 1 without relatives)"
    assert format_decibels(20) == "20.0 dB"


def test_the_tree_of_a_real_zoo(tmp_path):
    zoo = Zoo(tmp_path / "z")
    x, _ = digit_copies.unseen()
    nets = {
        "origin": digit_copies.trained(),
        "int8": digit_copies.rounded(8),
        "pruned": digit_copies.pruned(0.6),
    }
    for name, net in nets.items():
        zoo.add(rs.record(net, x[:300], name=name, gradients=False, layers=["2", "4", "5"]))
    rng = np.random.default_rng(0)
    zoo.add(rs.record_arrays({"l": rng.normal(size=(50, 8))}, name="stranger", data_id="x"))
    found = zoo.family_tree()
    by_name = {x.entry.name: x for x in found}
    assert by_name["stranger"].is_root
    # which of the two that hardly differ comes first is a guess
    first, second = sorted(("origin", "int8"), key=lambda name: by_name[name].depth)
    assert by_name[first].is_root
    assert by_name[second].decibels > 30 > by_name["pruned"].decibels
    one = family_tree(zoo, group=zoo.entry("stranger").group)
    assert [x.entry.name for x in one] == ["stranger"]
    with pytest.raises(
        DataError, match=f"no group '00' in .*nearest: .*{one.members[0].entry.group}"
    ):
        family_tree(zoo, group="00")
    with pytest.raises(DataError, match=r"no group '00' in .*; it is empty"):
        family_tree(Zoo(tmp_path / "nothing"), group="00")
    files = {rs.load(path).name: path for path in (tmp_path / "z" / "objects").rglob("*.rsm")}
    files["pruned"].write_bytes(b"")
    assert zoo.family_tree().left_out == {"damaged": 1}


def test_networks_that_cannot_be_related_stand_alone(tmp_path):
    """Of logits alone, without a sketch, and features of which one has gradients."""
    zoo = Zoo(tmp_path / "z")
    x, _ = digit_copies.unseen()
    net = digit_copies.trained()
    for name, options in {
        "logits": {"layers": ["5"], "gradients": False},
        "features": {"layers": ["2", "4"], "gradients": False},
        "both": {"layers": ["2", "4"]},
    }.items():
        zoo.add(rs.record(net, x[:100], name=name, **options))
    zoo.add(tiny(0))
    found = zoo.family_tree()
    assert found.counts() == (1, 2)
    assert {x.entry.name for x in found.members[:2]} == {"features", "both"}
    assert found.members[1].decibels > 100  # the same network


def test_a_tree_of_very_many_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 1)
    zoo = Zoo(tmp_path / "z")
    zoo.add_all(made_up.recorded(seed, 12, name=f"n{seed}") for seed in range(2))
    with pytest.raises(DataError, match="expected at most 1 entries of one group, found 2"):
        zoo.family_tree()
