"""Names in little room: what all begin with goes, then the middle; they stay apart if they can."""

from __future__ import annotations

import pytest

from resemblance.cli.short_names import cells, shared_prefix, shortened

LONG = [
    f"base_model.model.model.layers.{i}.{part}"
    for i in range(32)
    for part in ("self_attn.o_proj", "mlp.down_proj")
]


def test_what_all_names_begin_with_ends_in_a_dot_and_leaves_something_of_each():
    assert shared_prefix(LONG) == "base_model.model.model.layers."
    assert shared_prefix(["a.b", "a.b.c"]) == "a."
    assert shared_prefix(["ab.c", "ax.c"]) == ""
    assert shared_prefix(["a.b"]) == ""


@pytest.mark.parametrize("room", [1, 2, 7, 16, 20, 30])
def test_names_are_no_wider_than_there_is_room(room):
    for names in (LONG, ["层" * 20, "короткое"]):
        assert max(map(cells, shortened(names, room))) <= room


def test_names_stay_apart_where_that_can_be():
    names = [name.removeprefix("base_model.model.model.layers.") for name in LONG]
    assert len(set(shortened(names, 8))) == len(names)
    assert shortened(["block.1.attention", "block.2.attention"], 12) == [
        "block.1…tion",
        "block.2…tion",
    ]


def test_names_that_fit_are_left_alone():
    assert shortened(["conv1", "layer1.0"], 8) == ["conv1", "layer1.0"]
