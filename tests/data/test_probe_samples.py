"""The probes of the package: the same for everyone, and structured enough to be of use."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from resemblance._data import probe_samples

# Zoos of strangers meet in these very bytes: they never change.
IMAGES = "b245d0078b0d1ef7f27ff215c50859668fccee522ac0f7a67d3a6216e9720f1a"
NOISE = "6b4e36c1aeddf9b5f1a27c4e58fd7ea78d0387431acf1f26f3ad1ca15c4ff6d4"
TEXTS = "24a47d03ded7f1b92d5d02152a44a4b8a1ec18ce2f0e0ff3f9869210ba944250"


def images(count, size):
    return torch.stack([probe_samples.probe_image(i, size) for i in range(count)])


def test_images_are_what_they_always_were():
    pixels = (images(32, 16) * 255).round().byte()
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest() == IMAGES
    pixels = (
        (torch.stack([probe_samples.noise_image(i, 32) for i in range(4)]) * 255).round().byte()
    )
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest() == NOISE


def test_texts_are_what_they_always_were():
    joined = "\0".join(map(probe_samples.probe_text, range(probe_samples.NUM_TEXTS)))
    assert hashlib.sha256(joined.encode()).hexdigest() == TEXTS


def test_an_image_is_a_function_of_its_number_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert torch.equal(images(9, 8)[8], probe_samples.probe_image(8, 8))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_image_can_be_had_in_any_size():
    for number in range(16):
        small, large = (probe_samples.probe_image(number, size) for size in (32, 96))
        means = torch.nn.functional.avg_pool2d(large, 3)
        # edges and the finest grain differ, the picture does not
        assert float((means - small).abs().mean()) < 0.06


def test_images_are_in_range_in_colour_and_unlike_each_other():
    x = images(64, 16)
    assert 0 <= float(x.min()) < 0.05
    assert 0.95 < float(x.max()) <= 1
    flat = x.flatten(1)
    assert float(flat.std(1).min()) > 0.02  # none is blank
    alike = np.corrcoef(flat.numpy())[np.triu_indices(64, 1)]
    assert alike.max() < 0.98
    # many directions: a probe of rank one would make every network like every other
    spectrum = torch.linalg.svdvals(flat - flat.mean(0)).square()
    assert float(spectrum.sum() ** 2 / spectrum.square().sum()) > 6


def test_noise_has_no_structure_and_is_one_picture_in_any_size():
    x = torch.stack([probe_samples.noise_image(number, 32) for number in range(24)])
    assert float(x.mean()) == pytest.approx(0.5, abs=0.01)
    neighbours = np.corrcoef(x[..., :-1].flatten(), x[..., 1:].flatten())[0, 1]
    assert abs(neighbours) < 0.02  # 5 of 1/√70,000
    large = probe_samples.noise_image(3, 64)
    assert torch.equal(large[:, ::2, ::2], x[3])


def test_texts_are_of_three_kinds_and_of_a_length_that_models_take():
    found = [probe_samples.probe_text(i) for i in range(60)]
    assert all(text.startswith("def ") for text in found[1::3])
    assert all(any(sign.isdigit() for sign in text) for text in found[2::3])
    assert len(set(found)) == 60
    words = [
        len(text.split()) for text in map(probe_samples.probe_text, range(probe_samples.NUM_TEXTS))
    ]
    assert (min(words), max(words)) == (34, 112)
    assert all(text.isascii() for text in found)


@pytest.mark.parametrize("kind", probe_samples.IMAGE_KINDS)
def test_every_kind_of_field_varies_and_stays_near_its_range(kind):
    at = (np.arange(12) + 0.5) / 12
    plane = np.meshgrid(at, at)
    for number in range(4):
        field = kind(tuple(plane), probe_samples._SampleRandom(number, 5))
        assert field.shape == (12, 12)
        assert field.std() > 0.01
        assert -1 < field.min() < field.max() < 2
