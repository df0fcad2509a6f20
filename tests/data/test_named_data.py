"""Models and data by name, from real libraries, without a network."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance._data.named_data import ImageFolder, digits, load_data
from resemblance._model.named_models import load_model, load_weights
from resemblance.errors import DataError, FormatError


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}, which is not installed")


@pytest.fixture
def torchvision():
    """torchvision, also where its compiled operators do not load."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision

        torchvision._kept = library  # the operators live as long as this
    return torchvision


@needs("torchvision")
def test_a_torchvision_model_is_built_and_recorded(torchvision):
    net = load_model("torchvision:resnet18")
    rep = rs.record(net, torch.randn(16, 3, 64, 64), block=8)
    assert rep.layer_names == [
        "maxpool",
        *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)),
        "fc:in",
    ]


@needs("torchvision")
def test_an_unknown_torchvision_model_names_the_nearest(torchvision):
    with pytest.raises(DataError, match="no model 'resnet17'; nearest: resnet1"):
        load_model("torchvision:resnet17")


@needs("timm")
def test_a_timm_model_is_built_and_recorded(torchvision):
    net = load_model("timm:vit_tiny_patch16_224")
    rep = rs.record(net, torch.randn(4, 3, 224, 224), layers="auto", pool="mean", block=4)
    assert rep.layer_names[1:-1] == [f"blocks.{i}" for i in range(12)]
    with pytest.raises(DataError, match="timm has no model"):
        load_model("timm:vit_of_the_future")


@needs("transformers")
def test_a_hugging_face_folder_is_loaded_and_recorded(torchvision, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=12)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    net = load_model(f"hf:{tmp_path / 'gpt'}")
    ids = torch.randint(0, 50, (20, 12))
    mask = (torch.arange(12) < torch.randint(4, 12, (20, 1))).long()
    rep = rs.record(net, {"input_ids": ids, "attention_mask": mask}, pool="mean")
    assert [n for n in rep.layer_names if ".h." in n] == ["transformer.h.0", "transformer.h.1"]
    with pytest.raises(DataError, match="no Hugging Face model at"):
        load_model(f"hf:{tmp_path / 'nowhere'}")


@needs("datasets")
def test_a_hugging_face_data_set_is_read_from_disk(tmp_path):
    import datasets
    from PIL import Image

    pictures = [Image.new("RGB", (9, 7), (i, 2 * i, 3 * i)) for i in range(6)]
    table = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 3})
    table.save_to_disk(tmp_path / "pictures")
    data = load_data(f"hf:{tmp_path / 'pictures'}", size=8, raw=True)
    assert len(data) == 6
    assert data[5].shape == (3, 8, 8)
    assert torch.allclose(data[5][:, 0, 0], torch.tensor([5.0, 10, 15]) / 255)
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "words")
    with pytest.raises(DataError, match="found columns text"):
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
    data = ImageFolder(tmp_path, size=16, raw=True, skip_bad=False)
    assert [p.name for p in data.paths] == ["a.png", "b.png", "c.jpg"]
    assert data.labels == [0, 0, 1]
    assert torch.equal(data[0][0][:, 0, 0], torch.tensor([1.0, 0, 0]))
    usual = ImageFolder(tmp_path, size=16, raw=False, skip_bad=False)
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


def test_weights_in_a_checkpoint_and_what_is_refused(tmp_path):
    net = nn.Linear(2, 3)
    torch.save({"state_dict": nn.Linear(2, 3).state_dict(), "epoch": 3}, tmp_path / "c.pt")
    load_weights(net, str(tmp_path / "c.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="holds list; expected a dict of tensors"):
        load_weights(net, str(tmp_path / "list.pt"))
    torch.save({**net.state_dict(), "more": torch.ones(1)}, tmp_path / "more.pt")
    with pytest.raises(FormatError, match="1 unknown, such as more"):
        load_weights(net, str(tmp_path / "more.pt"))
    with pytest.raises(FormatError, match="no weights at"):
        load_weights(net, str(tmp_path / "gone.pt"))


def test_a_file_that_is_not_there():
    with pytest.raises(DataError, match=r"no file at gone\.py"):
        load_model("gone.py:net")
