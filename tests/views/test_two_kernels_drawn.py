"""One figure of two kernels: a map of each, and both curves with what they are of."""

from __future__ import annotations

import numpy as np

from made_up import comparison
from resemblance.views.two_kernels_drawn import drawn


def test_a_map_of_each_kernel_and_both_curves():
    replicates = np.array([[0.9, 0.5, 0.4], [0.9, 0.51, 0.41], [0.91, 0.5, 0.4]])
    names = {"rows": ("a", "b", "c"), "columns": ("a", "b", "c"), "replicates": replicates}
    scores = np.diag([0.9, 0.5, 0.4])
    pair = [comparison(scores, kernel=kernel, **names) for kernel in ("features", "gradients")]
    figure = drawn(pair)
    first, second, curves, _ = figure.axes  # and the colour bar
    for axes, one in zip((first, second), pair, strict=True):
        assert np.array_equal(axes.images[0].get_array(), one.scores)
        assert axes.get_title("left") == one.heading
    legend = [text.get_text() for text in curves.get_legend().get_texts()]
    assert sorted(legend) == ["features", "gradients", "where they part"]
