"""Trajectory: text, views, tables, figures and files, of invented scores."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from made_up import course, trajectory
from made_up import trajectory as made
from resemblance.errors import DataError, FormatError
from resemblance.representation.notes import Note
from resemblance.similarity.trajectory import Trajectory


def test_views_are_rows_of_the_scores():
    found = course()
    assert found.against_first()[0].tolist() == [[1, 0.98, 0.97], [1, 0.5, 0.3]]
    assert found.against_last()[0].tolist() == [[0.97, 0.99, 1], [0.3, 0.6, 1]]
    assert found.pace()[0].tolist() == [[0.98, 0.99], [0.5, 0.6]]
    for view in (found.against_first, found.against_last, found.pace):
        assert (view()[1] == 0.01).all()


def test_a_layer_is_settled_once_it_stays_alike_beyond_two_errors():
    assert course().settled() == (0, 2)
    assert course().settled(0.95) == (0, 2)  # 0.97 less 0.02
    assert course().settled(0.96) == (1, 2)
    assert course().settled(0.5) == (0, 1)
    back = course().scores.copy()
    back[0, 1, 2] = 0.5  # it leaves again
    assert course(scores=back.swapaxes(1, 2)).settled() == (2, 2)
    blank = course().scores.copy()
    blank[1, 0] = blank[1, :, 0] = np.nan
    assert course(scores=blank).settled() == (0, None)
    for level in (0, 1.5, np.nan):
        with pytest.raises(DataError, match="`level` must be between 0 and 1"):
            course().settled(level)


def test_each_checkpoint_but_the_first_parts_somewhere_or_nowhere():
    at = made().parting()
    assert [each.layer for each in at] == ["low", "low"]
    assert [each.fall for each in at] == pytest.approx([0.02, 0.03])
    assert [each.layer for each in made().parting(least=0.1)] == ["high", "high"]
    back = made().parting("gradients")
    assert [each.direction for each in back] == ["from the output back"] * 2
    assert [each.layer for each in back] == ["high", "high"]
    for asked, of in (("gradients", made(gradients=None)), ("product", made())):
        with pytest.raises(DataError, match=f"where those were recorded; found '{asked}'"):
            of.parting(asked)


def test_a_frame_has_a_row_for_each_kernel_layer_and_pair():
    pytest.importorskip("pandas")
    frame = made().to_frame()
    assert list(frame) == ["kernel", "layer", "i", "j", "step_i", "step_j", "score", "stderr"]
    assert len(frame) == 2 * 2 * 3 * 3
    row = frame[(frame.kernel == "gradients") & (frame.layer == "high")]
    row = row[(row.i == 1) & (row.j == 2)].iloc[0]
    assert (row.step_i, row.step_j, row.score, row.stderr) == (10, 200, 0.6, 0.01)
    assert set(made(gradients=None).to_frame().kernel) == {"features"}


def test_save_and_load_give_the_same_trajectory(tmp_path):
    blank = course(scores=np.full((2, 3, 3), np.nan))
    changes = ({}, {"gradients": None, "behaviour": None}, {"steps": ("a", 0.5, 3), "tokens": 5})
    for found in (
        *(made(**each) for each in changes),
        made(features=blank, notes=(Note("a note"),)),
    ):
        path = found.save(tmp_path / "t.json")
        assert Trajectory.load(path) == found
        json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-5],
        lambda text: text.replace('"trajectory": 1', '"trajectory": 3'),
        lambda text: text.replace('"kernel": "gradients"', '"kernel": "features"'),
        lambda text: text.replace('"estimator": "blocks"', '"estimator": "guess"'),
        lambda text: re.sub(r'"steps": \[[^]]*\]', '"steps": [1, 2]', text),
        lambda text: re.sub(r'"steps": \[[^]]*\]', '"steps": [1, 2, null]', text),
        lambda text: re.sub(r'"layers": \[[^]]*\]', '"layers": ["low"]', text),
        lambda text: text.replace('"matched_by": "name"', '"matched_by": "luck"'),
        lambda text: text.replace('"start"', '"begin"', 1),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = made().save(tmp_path / "t.json")
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    with pytest.raises(FormatError, match=r"is not a trajectory written by Trajectory\.save"):
        Trajectory.load(path)


def test_it_shows_itself_in_one_line():
    assert repr(made()) == (
        "Trajectory(0.635 from first to last, 3 checkpoints, "
        "cka of features and gradients at 2 layers, 50 samples)"
    )
    assert "50 tokens of 10 sequences" in made(tokens=5).heading
    assert made() == replace(made())
    assert made() != made(samples=51)


def test_a_summary_says_how_far_when_and_where():
    assert trajectory().summary().splitlines() == [
        "3 checkpoints, cka of features and gradients at 2 layers, 50 samples.",
        "Features: similarity of first and last checkpoint 0.635 ± 0.002, mean over layers; "
        "neighbouring checkpoints differ most between 0 and 10 (similarity 0.740).",
        "First settled (similarity to the last checkpoint at least 0.9 from then on): low (at 0); "
        "last: high (not before the last).",
        "First layer at which features diverge from checkpoint 0: layer low (checkpoints 10 to "
        "200).",
        "Gradients: similarity of first and last checkpoint 0.635 ± 0.002, mean over layers; "
        "neighbouring checkpoints differ most between 0 and 10 (similarity 0.740).",
        "First settled (similarity to the last checkpoint at least 0.9 from then on): low (at 0); "
        "last: high (not before the last).",
        "First layer at which gradients diverge from checkpoint 0, going back from the output: "
        "layer high (checkpoints 10 to 200).",
        "Predictions that differ from those of the last checkpoint (50 samples): 60 ± 6 % (0), "
        "20 ± 2 % (10).",
        "Predictions that differ from those of the first checkpoint (50 samples): 50 ± 5 % (10), "
        "60 ± 6 % (200).",
    ]


def alone(**changes):
    return trajectory(features=course(**changes), gradients=None, behaviour=None).summary()


def test_layers_that_settle_together_or_not_at_all():
    scores = course().scores
    assert "All layers are settled (similarity to the last" in alone(scores=scores[[0, 0]])
    assert "No layer is settled (similarity to the last" in alone(scores=scores[[1, 1]])
    later = scores.copy()
    later[1, 1, 2] = later[1, 2, 1] = 0.95
    assert "low (at 0); last: high (at 10)." in alone(scores=later)


def test_copies_that_part_nowhere_and_then_somewhere():
    scores, replicates = course().scores.copy(), course().replicates.copy()
    scores[:, 0, 1] = 1
    replicates[..., 1] = 1
    said = alone(scores=scores, replicates=replicates)
    assert (
        "diverge from checkpoint 0: no layer (checkpoint 10); layer low (checkpoint 200)." in said
    )
    same = alone(scores=np.ones((2, 3, 3)), replicates=np.ones((16, 2, 3)))
    assert "diverge from" not in same
    assert "1.000 ± 0.000, mean over layers" in same


def test_what_is_not_known_is_left_out_or_said():
    blank = np.full((2, 3, 3), np.nan)
    said = alone(scores=blank, replicates=np.full((4, 2, 3), np.nan))
    assert "Features: no layer has a score at both the first and the last checkpoint." in said
    middle = course().scores.copy()
    middle[:, 1] = middle[:, :, 1] = np.nan  # of one checkpoint nothing is known
    assert "differ most" not in alone(scores=middle)
    one_group = alone(replicates=np.ones((1, 2, 3)))
    assert "last checkpoint 0.635, mean over layers" in one_group
    assert "Note: why." in trajectory(notes=("why",)).summary()


def test_names_are_spelt_out_and_long_lists_cut():
    assert "\x1b" not in trajectory(steps=("a\x1b[31m", "b", "c")).summary()
    many = course(
        scores=np.ones((11, 3, 3)), stderr=np.zeros((11, 3, 3)), replicates=np.ones((4, 11, 3))
    )
    names = tuple(f"l{i}" for i in range(11))
    some = many.scores.copy()
    some[0, :2, 2] = some[0, 2, :2] = 0.1
    said = trajectory(
        layers=names, features=course(**{**vars(many), "scores": some}), gradients=None
    )
    assert "l7, l8 and 2 more (at 0); last: l0 (not before" in said.summary()
