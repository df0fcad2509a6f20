"""Images as tensors."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

import shards
from resemblance._data.images import read_image, to_tensor


def test_an_image_is_cropped_to_a_square_and_normalised():
    image = read_image(io.BytesIO(shards.image((255, 0, 51), size=(30, 20))))
    raw = to_tensor(image, 16, raw=True)
    assert raw.shape == (3, 16, 16)
    assert torch.allclose(raw[:, 3, 3], torch.tensor([1.0, 0.0, 0.2]))
    assert float(to_tensor(image, 16, raw=False)[0, 0, 0]) == pytest.approx((1 - 0.485) / 0.229)


def test_an_image_that_is_cut_short_or_far_too_large_is_an_error(monkeypatch):
    with pytest.raises(OSError, match=r"truncated|incomplete|broken|cannot identify"):
        read_image(io.BytesIO(shards.image((1, 2, 3), size=(300, 200))[:-60]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises((Image.DecompressionBombWarning, Image.DecompressionBombError)):
        read_image(io.BytesIO(shards.image((1, 2, 3))))
