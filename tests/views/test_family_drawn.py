"""The figure of a family tree, of entries made up."""

import numpy as np

import made_up
from resemblance.views.family_drawn import drawn
from resemblance.zoo.entry import described
from resemblance.zoo.family_tree import FamilyTree, hung


def made(count, tie):
    reps = (made_up.recorded(i, 8, name=f"n${i}") for i in range(count))
    entries = [
        described(x, tags=("base",) if not i else (), size=1, trained_on=None)
        for i, x in enumerate(reps)
    ]
    near = np.full((count, count), -np.inf)
    for i in range(count - 2):
        near[i, i + 1] = near[i + 1, i] = tie
    return FamilyTree(tuple(hung(entries, near)), 1e-3, {})


def test_every_entry_has_a_dot_a_name_and_a_tie_to_its_parent():
    tree = made(4, 12.0)
    (axes,) = tree.plot().axes
    words = [text.get_text() for text in axes.texts]
    assert words.count("12.0 dB") == 2
    assert "n\\$0  [base]" in words
    assert "n\\$3" in words
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [tuple(line.get_xydata()[0]) for line in dots] == [(0, 0), (1, 1), (2, 2), (0, 3)]
    assert axes.get_title(loc="left") == "1 family, 1 without relatives"


def test_of_very_many_the_names_are_left_out():
    (axes,) = drawn(made(70, 3.0)).axes
    assert not axes.texts


def test_nothing_can_be_drawn_too():
    assert drawn(FamilyTree((), 1e-3, {})).axes
