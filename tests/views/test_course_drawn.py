"""The figure of a trajectory, of scores made up."""

import numpy as np

from made_up import course
from made_up import trajectory as made


def test_maps_stand_side_by_side_with_rings_over_the_predictions():
    figure = made().plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:4] == [
        "features, against the last; rings: settled",
        "features, against the first; rings: where they part",
        "gradients, against the last; rings: settled",
        "gradients, against the first; rings: where they part",
    ]
    rings = [axes.lines[0].get_xydata().tolist() for axes in figure.axes[:4]]
    assert rings[0] == [[0, 0]]  # checkpoint, layer
    assert rings[1] == [[1, 0], [2, 0]]
    assert rings[3] == [[1, 1], [2, 1]]
    assert titles[-1] == "share of predictions unlike those of"
    alone = made(gradients=None, behaviour=None, features=course(replicates=np.ones((1, 2, 3))))
    assert [axes.get_title() for axes in alone.plot().axes][1] == "features, against the first"
