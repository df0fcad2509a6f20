"""Figures of a family tree, a trajectory and two kernels, of invented scores."""

import numpy as np

import made_up
from made_up import comparison, course, trajectory
from resemblance.similarity.comparison import FullComparison
from resemblance.views.plots import plot_family_tree
from resemblance.zoo.entry import entry_for
from resemblance.zoo.family_tree import FamilyTree, build_forest


def made(count, tie):
    reps = (made_up.recorded(i, 8, name=f"n${i}") for i in range(count))
    entries = [
        entry_for(x, tags=("base",) if not i else (), size=1, trained_on=None)
        for i, x in enumerate(reps)
    ]
    near = np.full((count, count), -np.inf)
    for i in range(count - 2):
        near[i, i + 1] = near[i + 1, i] = tie
    return FamilyTree(tuple(build_forest(entries, near)), 1e-3, {})


def test_every_entry_has_a_dot_a_name_and_a_tie_to_its_parent():
    tree = made(4, 12.0)
    (axes,) = tree.plot().axes
    words = [text.get_text() for text in axes.texts]
    assert words.count("12.0 dB") == 1
    assert words.count("12.0 dB, direction unknown") == 1  # of two that are no base
    assert "n\\$0  [base]" in words
    assert "n\\$3" in words
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [tuple(line.get_xydata()[0]) for line in dots] == [(0, 0), (1, 1), (2, 2), (0, 3)]
    assert axes.get_title(loc="left") == "1 family, 1 without relatives"


def test_of_very_many_the_names_are_left_out():
    (axes,) = plot_family_tree(made(70, 3.0)).axes
    assert not axes.texts


def test_nothing_can_be_drawn_too():
    assert plot_family_tree(FamilyTree((), 1e-3, {})).axes


def test_maps_stand_side_by_side_with_rings_over_the_predictions():
    figure = trajectory().plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:4] == [
        "features, against the last; rings: settled",
        "features, against the first; rings: first divergence",
        "gradients, against the last; rings: settled",
        "gradients, against the first; rings: first divergence",
    ]
    rings = [axes.lines[0].get_xydata().tolist() for axes in figure.axes[:4]]
    assert rings[0] == [[0, 0]]  # checkpoint, layer
    assert rings[1] == [[1, 0], [2, 0]]
    assert rings[3] == [[1, 1], [2, 1]]
    assert titles[-1] == "share of predictions unlike those of"
    alone = trajectory(
        gradients=None, behaviour=None, features=course(replicates=np.ones((1, 2, 3)))
    )
    assert [axes.get_title() for axes in alone.plot().axes][1] == "features, against the first"


def test_a_map_of_each_kernel_and_both_curves():
    replicates = np.array([[0.9, 0.5, 0.4], [0.9, 0.51, 0.41], [0.91, 0.5, 0.4]])
    names = {"rows": ("a", "b", "c"), "columns": ("a", "b", "c"), "replicates": replicates}
    scores = np.diag([0.9, 0.5, 0.4])
    pair = [comparison(scores, kernel=kernel, **names) for kernel in ("features", "gradients")]
    figure = FullComparison(*pair).plot()
    first, second, curves, _ = figure.axes  # and the colour bar
    for axes, one in zip((first, second), pair, strict=True):
        assert np.array_equal(axes.images[0].get_array(), one.scores)
        assert axes.get_title("left") == one.heading
    legend = [text.get_text() for text in curves.get_legend().get_texts()]
    assert sorted(legend) == ["features", "first divergence", "gradients"]
