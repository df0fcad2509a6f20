"""Images as tensors: read by Pillow, resized and cropped to a square, in [0, 1] or normalised."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Per-channel mean and standard deviation of ImageNet, which published image models expect.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_image(file: Path | IO[bytes]) -> Any:
    """A PIL image, read to its end; one that is far too large to be one is an error."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file) as image:
            image.load()
            return image


def to_tensor(image: Any, size: int, raw: bool) -> Tensor:  # -> (3, size, size)
    """A PIL image, resized and cropped to a square, in [0, 1] or normalised."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(fitted).copy()).permute(2, 0, 1).float() / 255
    return pixels if raw else normalised(pixels)


def normalised(pixels: Tensor) -> Tensor:  # (3, height, width) in [0, 1]
    """Pixels as published image models expect them."""
    return (pixels - torch.tensor(_MEAN)[:, None, None]) / torch.tensor(_STD)[:, None, None]
