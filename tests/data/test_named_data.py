"""Data by name, from real libraries, without a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from optional_libraries import needs
from resemblance._data.named_data import digits, load_data
from resemblance.errors import DataError, FormatError


@needs("datasets")
def test_a_hugging_face_data_set_is_read_from_disk(tmp_path):
    import datasets
    from PIL import Image

    pictures = [Image.new("RGB", (9, 7), (i, 2 * i, 3 * i)) for i in range(6)]
    table = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 3})
    table.save_to_disk(tmp_path / "pictures")
    data = load_data(f"hf:{tmp_path / 'pictures'}", size=8, raw=True)
    assert len(data) == 6
    plain = load_data(str(tmp_path / "pictures"), size=8, raw=True, limit=4)  # known by its files
    assert len(plain) == 4
    assert torch.equal(plain[3], data[3])
    assert data[5].shape == (3, 8, 8)
    assert torch.allclose(data[5][:, 0, 0], torch.tensor([5.0, 10, 15]) / 255)
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "words")
    with pytest.raises(DataError, match=r"words \(text\) holds text, which needs a model hf:NAME"):
        load_data(f"hf:{tmp_path / 'words'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no Hugging Face data set at"):
        load_data(f"hf:{tmp_path / 'empty'}")


def test_digits_are_the_real_ones():
    images, labels = digits()
    assert images.shape == (1797, 1, 8, 8)
    assert float(images.max()) == 1.0
    assert labels.bincount().min() > 170


def test_images_are_sorted_labelled_by_folder_and_normalised(tmp_path):
    from PIL import Image

    for name in ("cats/b.png", "cats/a.png", "dogs/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (30, 20), (255, 0, 0)).save(tmp_path / name)
    data = load_data(str(tmp_path), size=16, raw=True)
    assert [(path.name, label) for path, label in data.rows] == [
        ("a.png", 0),
        ("b.png", 0),
        ("c.jpg", 1),
    ]
    assert [label for _, label in data] == [0, 0, 1]
    assert torch.equal(data[0][0][:, 0, 0], torch.tensor([1.0, 0, 0]))
    usual = load_data(str(tmp_path), size=16)
    assert usual[0][0][0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)


def test_npz_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (5, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "images.npz", xtr=pixels[:3], xte=pixels, yte=np.arange(5))
    x, y = load_data(str(tmp_path / "images.npz"))
    assert x.shape == (5, 3, 4, 4)
    assert torch.equal(y, torch.arange(5))
    assert float(x[0, 1, 2, 3]) == pytest.approx(pixels[0, 2, 3, 1] / 255)
    np.savez(tmp_path / "one.npz", anything=np.ones((3, 2)))
    (x,) = load_data(str(tmp_path / "one.npz"))
    assert x.dtype == torch.float32
    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    with pytest.raises(DataError, match=r"holds a, b; expected x \(and y\)"):
        load_data(str(tmp_path / "two.npz"))
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(FormatError, match=r"not a readable \.npz"):
        load_data(str(tmp_path / "bad.npz"))


def test_the_probe_of_images_comes_in_any_size_and_to_a_limit():
    from resemblance._data import probe_samples

    plain = load_data("probe:images", size=8, raw=True)
    assert len(plain) == probe_samples.IMAGES
    assert torch.equal(load_data("probe:noise", size=8, raw=True)[2], probe_samples.noise(2, 8))
    assert torch.equal(plain[5], probe_samples.image(5, 8))
    usual = load_data("probe:images", size=8, limit=3)
    assert len(usual) == 3
    assert float(usual[0][0, 0, 0]) == pytest.approx((float(plain[0][0, 0, 0]) - 0.485) / 0.229)
    with pytest.raises(DataError, match="no probe 'probe:sounds'; expected probe:images, probe"):
        load_data("probe:sounds")


@needs("transformers")
def test_a_text_of_the_probe_is_a_sequence_with_any_tokenizer(tmp_path):
    import little_language
    from resemblance._data import probe_samples
    from resemblance._data.tokenized_text import TextOptions, sequences_in

    folder = little_language.saved(
        tmp_path / "m", little_language.gpt2(), little_language.tokenizer()
    )
    data = load_data("probe:text", model=f"hf:{folder}", limit=6, text=TextOptions(length=24))
    found = sequences_in(data)
    assert len(found) == 6
    for number in range(6):
        every = found.tokenizer(probe_samples.text(number))["input_ids"]
        assert found[number]["input_ids"].tolist() == every[:24]
    packed = TextOptions(length=24, packing="packed")
    assert len(sequences_in(load_data("probe:text", model=f"hf:{folder}", text=packed))) > 6
    with pytest.raises(DataError, match="probe:text holds text, which needs a model hf:NAME"):
        load_data("probe:text")


def test_samples_of_a_probe_have_a_name_unless_they_are_packed():
    from resemblance._data.named_data import named_samples
    from resemblance._data.tokenized_text import TextOptions

    assert named_samples("probe:images", TextOptions()) == "probe:images"
    assert named_samples("probe:text", TextOptions()) == "probe:text"
    assert named_samples("probe:text", TextOptions(packing="packed")) is None
    assert named_samples("digits", TextOptions()) is None
