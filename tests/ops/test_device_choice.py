"""Where to compute."""

from __future__ import annotations

import pytest
import torch

from resemblance._ops.device_choice import usable
from resemblance.errors import DataError


def test_a_device_may_be_given_by_name_or_as_itself():
    assert usable("cpu") == usable(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "GPU", "tpu", "", None, 3, 0.5])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(
        DataError, match="device must be cpu, cuda, cuda:1 or mps; found"
    ) as refusal:
        usable(name)
    assert str(refusal.value).endswith(repr(name))


def test_a_device_that_is_not_here_says_why():
    with pytest.raises(DataError, match=r"device 'cuda:99' cannot be used here \(.+\); use cpu"):
        usable("cuda:99")
