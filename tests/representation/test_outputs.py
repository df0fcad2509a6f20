"""What a network predicted, as records."""

from __future__ import annotations

import torch

from resemblance.representation.outputs import CLASS_GROUPS, Outputs, class_groups, join_outputs


def made(rows, classes=5, **more):
    g = torch.Generator().manual_seed(rows)
    return Outputs(classes, torch.log_softmax(torch.randn(rows, classes, generator=g), 1), **more)


def test_groups_depend_on_the_class_alone_and_are_alike_in_size():
    few, many = class_groups(2000), class_groups(50_000)
    assert torch.equal(few, many[:2000])
    counts = torch.bincount(many, minlength=CLASS_GROUPS)
    assert int(counts.min()) > 120  # of 195 on average
    assert int(counts.max()) < 280


def test_rows_are_joined_in_an_order():
    a, b = made(2, labels=torch.tensor([1, 2])), made(3, labels=torch.tensor([3, 4, 0]))
    found = join_outputs([a, b], torch.tensor([4, 0, 1, 2, 3]))
    assert found.labels.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(found.every[0], b.every[2])
    assert found.rows == 5


def test_what_is_not_known_of_all_is_not_known():
    assert join_outputs([made(2), None], torch.arange(2)) is None
    assert join_outputs([made(2), made(2, classes=4)], torch.arange(4)) is None
    labelled = made(2, labels=torch.zeros(2).long())
    assert join_outputs([labelled, made(3)], torch.arange(5)).labels is None


def test_the_prediction_is_the_likeliest_class():
    one = made(4)
    assert torch.equal(one.prediction, one.every.argmax(1))
    top = torch.tensor([[7, 3], [2, 9]])
    assert Outputs(2000, top=top, top_log_p=torch.zeros(2, 2)).prediction.tolist() == [7, 2]
