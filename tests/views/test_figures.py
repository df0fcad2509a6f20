"""Figures: orientation, labels, values, and nothing shown or left behind."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from made_up import comparison
from resemblance.errors import DataError
from resemblance.similarity.comparison_matrix import average_linkage, leaf_order
from resemblance.views import plots as plot


def texts(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_rows_run_down_and_columns_across():
    scores = [[0.11, 0.22, 0.33], [0.44, 0.55, 0.66]]
    figure = comparison(scores).plot()
    assert isinstance(figure, Figure)
    axes = figure.axes[0]
    assert texts(axes.yaxis) == ["r0", "r1"]
    assert texts(axes.xaxis) == ["c0", "c1", "c2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("two", "one")
    assert axes.yaxis_inverted()  # the first layer on top
    np.testing.assert_array_equal(axes.images[0].get_array(), scores)
    assert axes.images[0].get_cmap().name == "viridis"
    assert axes.images[0].get_clim() == (0, 1)
    where = {text.get_text(): text.get_position() for text in axes.texts}
    assert where["0.33"] == (2, 0)
    assert where["0.44"] == (0, 1)


def test_the_curve_has_error_bars_and_a_chance_band():
    chance = np.full((2, 2), 0.1)
    figure = comparison(
        np.eye(2), columns=("r0", "r1"), chance=chance, chance_high=chance + 0.05
    ).plot()
    axes = figure.axes[1]
    assert texts(axes.xaxis) == ["r0", "r1"]
    assert axes.get_title(loc="left") == "layers matched by name"
    bars = axes.containers[0].lines[2][0].get_segments()
    assert np.ptp(bars[0][:, 1]) == pytest.approx(0.04)  # two standard errors to either side
    assert axes.get_legend().get_texts()[0].get_text() == "chance (mean to 95 %)"
    assert "cka of centred features" in figure.get_suptitle()


def test_the_curve_says_how_layers_were_matched_and_no_chance_needs_no_legend():
    axes = comparison([[0.5, 0.6]]).plot().axes[1]
    assert axes.get_title(loc="left") == "layers matched by similarity"
    assert axes.get_legend() is None


def test_negative_scores_stay_in_view():
    assert comparison([[-0.3]], index="rsa").plot().axes[1].get_ylim()[0] <= -0.3


def test_nan_is_left_blank():
    axes = comparison([[np.nan, 0.5]]).plot().axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.50"]


def test_many_layers_lose_values_then_names_but_no_row():
    scores = np.random.default_rng(0).uniform(size=(80, 40))
    axes = comparison(scores).plot().axes[0]
    assert not axes.texts
    assert axes.images[0].get_array().shape == (80, 40)
    assert len(texts(axes.yaxis)) <= 32
    assert texts(axes.yaxis)[1] == "r3"


def test_long_names_lose_their_middle():
    name = "encoder.layers.11.attention.output.dense"
    short = plot.shorten_name(name)
    assert len(short) <= 28
    assert short.startswith("encoder.")
    assert short.endswith("output.dense")
    assert plot.shorten_name("head") == "head"


def test_figures_can_be_written_and_touch_no_global_state(tmp_path):
    before = dict(mpl.rcParams)
    comparison(np.eye(3)).plot().savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    assert dict(mpl.rcParams) == before
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_the_dendrogram_joins_leaves_at_their_heights():
    scores = np.array([[1, 0.9, 0.2], [0.9, 1, 0.2], [0.2, 0.2, 1]])
    links = np.array([[0, 1, 0.1, 2], [2, 3, 0.8, 3]])
    figure = plot.clustered_heatmap(scores, ["a", "b", "c"], [2, 0, 1], links, "title")
    tree, axes = figure.axes[:2]
    joint = tree.lines[0].get_xydata()
    assert joint[:, 0].tolist() == [0, 0.1, 0.1, 0]
    assert joint[:, 1].tolist() == [1, 1, 2, 2]  # leaves a and b stand second and third
    assert texts(axes.yaxis) == ["c", "a", "b"]
    np.testing.assert_array_equal(axes.images[0].get_array()[0], [1, 0.2, 0.2])


# -- files ---------------------------------------------------------------------------------------


def test_a_picture_has_the_format_of_its_ending(tmp_path):
    starts = {"a.png": b"\x89PNG", "a.PDF": b"%PDF", "a.svg": b"<?xml", "a.jpg": b"\xff\xd8"}
    for name, start in starts.items():
        path = plot.picture_path(tmp_path / name)
        assert plot.save_figure(plot.new_figure(1, 1), path) == tmp_path / name
        assert path.read_bytes().startswith(start)


def test_a_picture_without_an_ending_is_a_png(tmp_path):
    assert plot.picture_path(tmp_path / "a") == tmp_path / "a.png"


def test_a_format_that_matplotlib_does_not_have_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.foo: \.foo is no format.* one of .*, pdf, .*, svg,"):
        plot.picture_path(tmp_path / "a.foo")


NAMES = ("net$x$", "cost$", r"a\$b", "_hidden", "esc\x1b[31m\n", "net[v2] $\\frac{$")


def drawn(figure):
    """Every text of a figure, as it is drawn; formulas would raise or vanish."""
    figure.canvas.draw()
    found = []
    for text in figure.findobj(Text):
        shown, formula = text._preprocess_math(text.get_text())
        assert not formula, shown
        found.append(shown)
    return found


def test_names_are_drawn_as_they_are():
    expected = {"net$x$", "cost$", r"a\$b", "_hidden", r"esc\x1b[31m\n", "net[v2] $\\frac{$"}
    scores = np.eye(len(NAMES))
    one = comparison(scores, rows=NAMES, columns=NAMES, models=("m$1$", "m$2"))
    assert expected | {"m$1$", "m$2"} <= set(drawn(one.plot()))
    links = average_linkage(1 - scores)
    map_of_models = plot.clustered_heatmap(scores, NAMES, leaf_order(links), links, "cka at l$1$")
    assert expected | {"cka at l$1$"} <= set(drawn(map_of_models))


def test_a_legend_names_every_network():
    figure = plot.new_figure(3, 3)
    axes = figure.subplots()
    for name in NAMES:
        plot.draw_curve(axes, np.ones(2), np.zeros(2), ("l$1$", "l2"), label=name)
    axes.legend()
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [text.strip() for text in texts] == [plot.escape_label(name) for name in NAMES]
    assert {"l$1$", " _hidden"} <= set(drawn(figure))
