"""What a summary of a trajectory says, of scores made up."""

import numpy as np

from made_up import course, trajectory


def test_a_summary_says_how_far_when_and_where():
    assert trajectory().summary().splitlines() == [
        "3 checkpoints, cka of features and gradients at 2 layers, 50 samples.",
        "Features: first and last checkpoint are 0.635 ± 0.002 alike, mean over layers; they "
        "change most from 0 to 10 (0.740 alike).",
        "First settled (0.9 alike to the last checkpoint from then on): low (at 0); last: high "
        "(not before the last).",
        "Read from the input on, features part from those of 0 at low (10 to 200).",
        "Gradients: first and last checkpoint are 0.635 ± 0.002 alike, mean over layers; they "
        "change most from 0 to 10 (0.740 alike).",
        "First settled (0.9 alike to the last checkpoint from then on): low (at 0); last: high "
        "(not before the last).",
        "Read from the output back, gradients part from those of 0 at high (10 to 200).",
        "Predicted otherwise than by the last, of 50 samples: 60 ± 6 % (0), 20 ± 2 % (10).",
        "Predicted otherwise than by the first, of 50 samples: 50 ± 5 % (10), 60 ± 6 % (200).",
    ]


def alone(**changes):
    return trajectory(features=course(**changes), gradients=None, behaviour=None).summary()


def test_layers_that_settle_together_or_not_at_all():
    scores = course().scores
    assert "All layers are settled (0.9 alike to the last" in alone(scores=scores[[0, 0]])
    assert "No layer is settled (0.9 alike to the last" in alone(scores=scores[[1, 1]])
    later = scores.copy()
    later[1, 1, 2] = later[1, 2, 1] = 0.95
    assert "low (at 0); last: high (at 10)." in alone(scores=later)


def test_copies_that_part_nowhere_and_then_somewhere():
    scores, replicates = course().scores.copy(), course().replicates.copy()
    scores[:, 0, 1] = 1
    replicates[..., 1] = 1
    said = alone(scores=scores, replicates=replicates)
    assert "features part from those of 0 nowhere (10), then at low (200)." in said
    same = alone(scores=np.ones((2, 3, 3)), replicates=np.ones((16, 2, 3)))
    assert "part from" not in same
    assert "1.000 ± 0.000 alike" in same


def test_what_is_not_known_is_left_out_or_said():
    blank = np.full((2, 3, 3), np.nan)
    said = alone(scores=blank, replicates=np.full((4, 2, 3), np.nan))
    assert "Features: no layer has a score at the first and the last checkpoint." in said
    middle = course().scores.copy()
    middle[:, 1] = middle[:, :, 1] = np.nan  # of one checkpoint nothing is known
    assert "change most" not in alone(scores=middle)
    one_group = alone(replicates=np.ones((1, 2, 3)))
    assert "are 0.635 alike, mean over layers" in one_group
    assert "Note: why." in trajectory(notes=("why",)).summary()


def test_names_are_spelt_out_and_long_lists_cut():
    assert "\x1b" not in trajectory(steps=("a\x1b[31m", "b", "c")).summary()
    many = course(
        scores=np.ones((9, 3, 3)), stderr=np.zeros((9, 3, 3)), replicates=np.ones((4, 9, 3))
    )
    names = tuple(f"l{i}" for i in range(9))
    some = many.scores.copy()
    some[0, :2, 2] = some[0, 2, :2] = 0.1
    said = trajectory(
        layers=names, features=course(**{**vars(many), "scores": some}), gradients=None
    )
    assert "l1, l2, l3, l4, l5, l6 and 2 more (at 0); last: l0 (not before" in said.summary()
