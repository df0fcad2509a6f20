"""The message when a model cannot take its inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import DataError

IMAGES = torch.rand(20, 3, 8, 8)


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


class Words(nn.Embedding):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x):
        return super().forward(x)[:, :, 0]


@pytest.mark.parametrize(
    ("model", "images", "said"),
    [
        (
            conv(),
            IMAGES.double(),
            r"'0.weight', are float32 \(4, 3, 3, 3\), and an input is float64 \(3, 8, 8\); convert "
            'the inputs to float32, or record with `dtype="float32"`, which casts them',
        ),
        (conv(), (IMAGES * 255).byte(), "an input is uint8 .*to float32 and divide by 255"),
        (conv().bfloat16(), IMAGES, "bfloat16 .*float32 .*convert the inputs to bfloat16"),
        (
            conv(),
            IMAGES[:, :1],
            r"float32 \(1, 8, 8\); pass inputs in the form it expects, or pass",
        ),
        (conv(), {"pixels": IMAGES}, "unexpected keyword argument 'pixels'.*pass `call="),
        (nn.Flatten(2, 9), IMAGES, "it has no weights, and an input is float32"),
        (nn.Sequential(nn.Embedding(4, 2)), torch.full((20, 3), 9), "int64 .*pass inputs"),
        (Words(), torch.ones(20).long(), r"token ids must have the shape \(sequences, length\)"),
        (
            nn.Linear(2, 2),
            {str(i): torch.rand(20, i) for i in range(3, 9)},
            r"an input is float32 \(3,\), float32 \(4,\), float32 \(5,\), 3 more; pass inputs",
        ),
    ],
)
def test_weights_and_inputs_are_set_against_each_other(model, images, said):
    with pytest.raises(DataError, match=said) as refusal:
        rs.record(model, images)
    assert "\n" not in str(refusal.value)
    assert refusal.value.__cause__ is not None


def test_the_first_line_of_what_torch_said_is_quoted():
    with pytest.raises(DataError, match=r"\(Input type \(double\) and bias type \(float\)"):
        rs.record(conv(), IMAGES.double())


def test_every_pass_says_it():
    for run in (rs.task2vec, lambda net, x: rs.KernelClassifier(net).fit(x, [0, 1] * 10)):
        with pytest.raises(DataError, match="convert the inputs to float32"):
            run(conv(), IMAGES.double())


def test_an_error_of_ours_and_a_lack_of_memory_pass_through():
    class Full(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        rs.record(Full(2, 2), torch.rand(20, 2))

    def refuse(model, batch):
        raise DataError("ours")

    with pytest.raises(DataError, match=r"^ours$"):
        rs.record(conv(), IMAGES, call=refuse)
