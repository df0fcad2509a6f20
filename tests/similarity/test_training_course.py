"""Trajectory: views, tables, figures and files of scores made up."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from made_up import course
from made_up import trajectory as made
from resemblance.errors import DataError, FormatError
from resemblance.similarity.training_course import Trajectory


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
        with pytest.raises(DataError, match="level must lie between 0 and 1"):
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
    for found in (*(made(**each) for each in changes), made(features=blank, notes=("a note",))):
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
        "Trajectory(3 checkpoints, cka of features and gradients at 2 layers, 50 samples)"
    )
    assert "50 tokens of 10 sequences" in made(tokens=5).heading
    assert made() == replace(made())
    assert made() != made(samples=51)
