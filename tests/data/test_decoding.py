"""Rows decode the requested columns and nothing else; images become tensors."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

import shards
from resemblance._data.decoding import (
    Row,
    approximate_bytes,
    default_sample,
    image_to_tensor,
    input_field,
    read_image,
    row_label,
)
from resemblance.errors import DataError

PICTURE = shards.image((255, 0, 0))


def row(**fields):
    return Row("a/1", "a/1 in s.tar", fields)


def test_a_row_is_a_mapping_of_decoded_fields():
    found = row(
        jpg=("image", PICTURE),
        npy=("array", shards.npy(np.arange(3))),
        cls=("label", b" 7\n"),
        txt=("text", "zwölf".encode()),
        json=("json", b'{"a": [1]}'),
        bin=("other", b"\0"),
    )
    assert found["jpg"].size == (9, 7)
    assert found["npy"].tolist() == [0, 1, 2]
    assert (found["cls"], found["txt"], found["json"]) == (7, "zwölf", {"a": [1]})
    assert (found["bin"], found["__key__"]) == (b"\0", "a/1")
    assert list(found) == ["jpg", "npy", "cls", "txt", "json", "bin", "__key__"]
    assert len(found) == 7
    assert approximate_bytes(found.encoded) > len(PICTURE)
    with pytest.raises(KeyError):
        found["png"]
    assert list(Row(None, "5", {"x": ("array", [1])})) == ["x"]
    assert Row(None, "5", {}).get("__key__") is None


def test_nothing_is_decoded_until_it_is_asked_for():
    found = row(
        npy=("array", shards.npy(np.ones(4))), jpg=("other", b"no image"), cls=("label", b"x")
    )
    inputs, label = default_sample(found)
    assert torch.equal(inputs, torch.ones(4))
    assert label == "x"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("image", b"no image"),
        ("image", PICTURE[:40]),
        ("array", b"\x93NUMPY"),
        ("array", shards.npy(np.array([{}], object))),
        ("json", b"{"),
        ("text", b"\xff\xfe\xfa"),
    ],
)
def test_a_damaged_field_says_which_it_is(kind, content):
    with pytest.raises(DataError, match=r"cannot read 'f' of sample a/1 in s\.tar \("):
        row(f=(kind, content))["f"]


def test_what_a_model_is_shown():
    picture, text = ("image", PICTURE), ("text", b"words")
    assert input_field(row(txt=text, png=picture)) == "png"
    assert input_field(row(txt=text)) == "txt"
    assert input_field(row(left=picture, image=picture)) == "image"
    with pytest.raises(DataError, match="several fields of one kind: left, right"):
        input_field(row(left=picture, right=picture))
    with pytest.raises(DataError, match="holds cls; expected an image"):
        input_field(row(cls=("label", b"1")))
    with pytest.raises(DataError, match="holds nothing"):
        input_field(row())
    with pytest.raises(DataError, match="is text; tokenize"):
        default_sample(row(txt=text))


def test_labels_are_fields_or_in_the_json():
    assert row_label(row(cls=("label", b"-3"))) == -3
    assert row_label(row(json=("json", b'{"label": "cat", "id": 4}'))) == "cat"
    assert row_label(row(json=("json", b'{"label": [1, 2]}'))) is None
    assert row_label(row(json=("json", b"[1]"))) is None
    assert row_label(row()) is None


def test_numbers_as_models_take_them():
    bytes_of_pixels = np.full((4, 5, 3), 255, np.uint8)
    assert default_sample(row(npy=("array", shards.npy(bytes_of_pixels)))).shape == (3, 4, 5)
    assert float(default_sample(row(npy=("array", shards.npy(bytes_of_pixels)))).max()) == 1.0
    assert default_sample(row(x=("array", shards.npy(np.ones(3, ">f8"))))).dtype == torch.float32
    assert default_sample(row(x=("array", [1, 2]))).dtype == torch.int64
    for wrong in (np.array(["a"]), np.float32(1)):
        with pytest.raises(DataError, match="expected an array of numbers"):
            default_sample(row(x=("array", shards.npy(wrong))))
    tokens = default_sample(row(input_ids=("array", [5, 6]), attention_mask=("array", [1, 1])))
    assert tokens["input_ids"].tolist() == [5, 6]
    assert sorted(tokens) == ["attention_mask", "input_ids"]


def test_images_come_as_bytes_as_structs_and_as_they_are():
    raws = (PICTURE, {"bytes": PICTURE, "path": "x.png"}, Image.new("RGB", (9, 7), (255, 0, 0)))
    for raw in raws:
        found = default_sample(row(image=("image", raw)), size=8, raw=True)
        assert torch.equal(found[:, 0, 0], torch.tensor([1.0, 0, 0]))


def test_an_image_is_cropped_to_a_square_and_normalised():
    image = read_image(io.BytesIO(shards.image((255, 0, 51), size=(30, 20))))
    raw = image_to_tensor(image, 16, raw=True)
    assert raw.shape == (3, 16, 16)
    assert torch.allclose(raw[:, 3, 3], torch.tensor([1.0, 0.0, 0.2]))
    assert float(image_to_tensor(image, 16, raw=False)[0, 0, 0]) == pytest.approx(
        (1 - 0.485) / 0.229
    )


def test_an_image_that_is_cut_short_or_far_too_large_is_an_error(monkeypatch):
    with pytest.raises(OSError, match=r"truncated|incomplete|broken|cannot identify"):
        read_image(io.BytesIO(shards.image((1, 2, 3), size=(300, 200))[:-60]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises((Image.DecompressionBombWarning, Image.DecompressionBombError)):
        read_image(io.BytesIO(shards.image((1, 2, 3))))
