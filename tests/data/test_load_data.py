"""Data by name: streams, real libraries without a network, and the user's own functions."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch

import little_language
import resemblance as rs
import shards
from optional_libraries import needs
from resemblance._data.load_data import call_user_function, load_data, load_digits_data, named_rows
from resemblance._data.make_source import make_source
from resemblance._data.sources import Share
from resemblance._data.streams import Stream
from resemblance._data.text import TextOptions
from resemblance._models.loading import load_model
from resemblance.errors import DataError, FormatError

COLOURS = [(i * 20, 5, 2) for i in range(12)]


@pytest.fixture
def pictures(tmp_path):
    """Two shards of six images with labels, one of which is damaged."""
    for number in range(2):
        members = []
        for i in range(6 * number, 6 * number + 6):
            content = b"no image" if i == 7 else shards.image(COLOURS[i])
            members += [(f"{i:03}.png", content), (f"{i:03}.cls", str(i % 3).encode())]
        shards.write_tar(tmp_path / f"s-{number}.tar", members)
    return tmp_path


def run_of(data):
    batches = list(make_source(data, seed=0, block=4).batches(4, Share()))
    return torch.cat([b.samples[0] for b in batches]), torch.cat([b.samples[1] for b in batches])


def test_shards_are_images_with_labels(pictures):
    data = load_data(f"{pictures}/s-{{0..1}}.tar", size=8, raw=True, skip_bad=True)
    assert isinstance(data, Stream)
    x, y = run_of(data)
    assert x.shape == (12, 3, 8, 8)
    bad = x.isnan().flatten(1).all(1)
    assert bad.sum() == 1
    found = sorted(
        (round(float(v[0, 0, 0]) * 255), int(k)) for v, k in zip(x[~bad], y[~bad], strict=True)
    )
    assert found == [(c[0], i % 3) for i, c in enumerate(COLOURS) if i != 7]
    with pytest.raises(DataError, match=r"cannot read 'png' of sample 007 in .*s-1\.tar"):
        run_of(load_data(str(pictures), size=8))


def test_limit_and_buffer_are_those_of_the_stream(pictures):
    (pictures / "s-1.tar").unlink()
    data = load_data(str(pictures), size=8, raw=True, limit=4, buffer=1)
    assert (data.buffer, data.limit) == (1, 4)
    x, _ = run_of(data)
    assert [round(float(v[0, 0, 0]) * 255) for v in x] == [0, 20, 40, 60]


def test_where_nothing_can_be_read_that_is_said(tmp_path):
    shards.write_tar(tmp_path / "s.tar", [("1.png", b"x"), ("2.png", b"y")])
    with pytest.raises(DataError, match="none of the 2 samples can be read"):
        make_source(load_data(str(tmp_path), skip_bad=True), seed=0, block=4)
    shards.write_tar(tmp_path / "s.tar", [])
    with pytest.raises(DataError, match="holds no samples"):
        load_data(str(tmp_path))


def test_other_names_are_no_streams(tmp_path):
    for spec in ("digits", "hf:x.tar", "file.py:name.tar", str(tmp_path), "missing.npz"):
        assert named_rows(spec) is None
    with pytest.raises(DataError, match=r"no shard at 'missing\.tar'"):
        named_rows("missing.tar")


@needs("pyarrow")
def test_parquet_files_of_numbers_and_of_images(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    shards.write_parquet(tmp_path / "numbers", x, label=[i % 2 for i in range(20)])
    found, labels = run_of(load_data(str(tmp_path / "numbers")))
    assert sorted(found[:, 0].tolist()) == sorted(x[:, 0].tolist())
    assert int(labels.sum()) == 10
    table = {"image": [{"bytes": shards.image(c), "path": None} for c in COLOURS]}
    pq.write_table(pa.table({**table, "label": list(range(12))}), tmp_path / "one.parquet")
    found, labels = run_of(load_data(str(tmp_path / "one.parquet"), size=8, raw=True))
    assert (found[:, 0, 0, 0] * 255).round().int().tolist() == [20 * i for i in labels.tolist()]


@needs("transformers")
@pytest.mark.parametrize("kind", ["tar", "parquet", "hf-stream"])
def test_text_is_read_as_that_of_files_is(tmp_path, kind):
    little_language.saved(tmp_path / "model", little_language.gpt2(), little_language.tokenizer())
    lines = [*little_language.SENTENCES][:20]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "data").mkdir()
    spec = str(tmp_path / "data")
    if kind == "tar":
        members = [(f"{i}.txt", line.encode()) for i, line in enumerate(lines)]
        shards.write_tar(tmp_path / "data" / "s.tar", members)
    else:
        datasets = pytest.importorskip("datasets")
        table = datasets.Dataset.from_dict({"text": lines})
        table.to_parquet(tmp_path / "data" / "a.parquet")
        if kind == "hf-stream":
            table.save_to_disk(tmp_path / "saved")
            spec = f"hf-stream:{tmp_path / 'saved'}"
    how = {"model": f"hf:{tmp_path / 'model'}", "text": TextOptions(packing="each")}
    found = load_data(spec, **how).dataset
    plain = load_data(str(tmp_path / "text.txt"), **how).dataset
    assert np.array_equal(found.tokens, plain.tokens)
    assert "sequences, one a text" in found.summary
    with pytest.raises(DataError, match="has no field 'review'; nearest"):
        load_data(spec, model=how["model"], text=TextOptions(field="review"))


@needs("transformers")
def test_samples_without_the_text_of_a_shard_are_empty(tmp_path):
    little_language.saved(tmp_path / "model", little_language.gpt2(), little_language.tokenizer())
    first = little_language.TEXTS[0].encode()
    members = [("0.txt", first), ("1.cls", b"1"), ("2.txt", b"a b")]
    shards.write_tar(tmp_path / "s.tar", members)
    how = {"model": f"hf:{tmp_path / 'model'}", "text": TextOptions(packing="each")}
    found = load_data(str(tmp_path / "s.tar"), **how).dataset
    assert len(found) == 2
    assert "1 empty left out" in found.summary


@needs("datasets")
def test_a_streaming_data_set_of_images_or_of_numbers(tmp_path):
    import datasets
    from PIL import Image

    table = datasets.Dataset.from_dict(
        {"image": [Image.new("RGB", (9, 7), c) for c in COLOURS], "label": list(range(12))}
    )
    datasets.DatasetDict({"train": table.select([0]), "test": table}).save_to_disk(tmp_path / "d")
    found, labels = run_of(load_data(f"hf-stream:{tmp_path / 'd'}", size=8, raw=True))
    assert (found[:, 0, 0, 0] * 255).round().int().tolist() == [20 * i for i in labels.tolist()]
    assert len(found) == 12
    datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 5, "words": [["a"]] * 5}).save_to_disk(
        tmp_path / "n"
    )
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    data = load_data(f"hf-stream:{tmp_path / 'n'}")
    assert rs.record(net, data, block=2, progress=False, gradients=False).samples == 5
    with pytest.raises(DataError, match=r"no folder at .*nowhere"):
        load_data(f"hf-stream:{tmp_path / 'nowhere'}")


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
    with pytest.raises(DataError, match=r"words \(text\) is text, and only models"):
        load_data(f"hf:{tmp_path / 'words'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no Hugging Face data set at"):
        load_data(f"hf:{tmp_path / 'empty'}")


def test_digits_are_the_real_ones():
    images, labels = load_digits_data()
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


def test_files_of_arrays(tmp_path):
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
    np.save(tmp_path / "one.npy", pixels)
    (x,) = load_data(str(tmp_path / "one.npy"))
    assert torch.equal(x, load_data(str(tmp_path / "images.npz"))[0])
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(FormatError, match=r"not a readable \.npz"):
        load_data(str(tmp_path / "bad.npz"))


def test_the_probe_of_images_comes_in_any_size_and_to_a_limit():
    from resemblance._data import probe_samples

    plain = load_data("probe:images", size=8, raw=True)
    assert len(plain) == probe_samples.NUM_IMAGES
    assert torch.equal(
        load_data("probe:noise", size=8, raw=True)[2], probe_samples.noise_image(2, 8)
    )
    assert torch.equal(plain[5], probe_samples.probe_image(5, 8))
    usual = load_data("probe:images", size=8, limit=3)
    assert len(usual) == 3
    assert float(usual[0][0, 0, 0]) == pytest.approx((float(plain[0][0, 0, 0]) - 0.485) / 0.229)
    with pytest.raises(DataError, match="no probe 'probe:sounds'; expected probe:images, probe"):
        load_data("probe:sounds")


@needs("transformers")
def test_a_text_of_the_probe_is_a_sequence_with_any_tokenizer(tmp_path):
    import little_language
    from resemblance._data import probe_samples
    from resemblance._data.text import TextOptions, tokenized_text_of

    folder = little_language.saved(
        tmp_path / "m", little_language.gpt2(), little_language.tokenizer()
    )
    data = load_data("probe:text", model=f"hf:{folder}", limit=6, text=TextOptions(length=24))
    found = tokenized_text_of(data)
    assert len(found) == 6
    for number in range(6):
        every = found.tokenizer(probe_samples.probe_text(number))["input_ids"]
        assert found[number]["input_ids"].tolist() == every[:24]
    packed = TextOptions(length=24, packing="packed")
    assert len(tokenized_text_of(load_data("probe:text", model=f"hf:{folder}", text=packed))) > 6
    with pytest.raises(DataError, match="probe:text is text, and only models hf:NAME and gguf"):
        load_data("probe:text")


def test_samples_of_a_probe_have_a_name_unless_they_are_packed():
    from resemblance._data.load_data import samples_name
    from resemblance._data.text import TextOptions

    assert samples_name("probe:images", TextOptions()) == "probe:images"
    assert samples_name("probe:text", TextOptions()) == "probe:text"
    assert samples_name("probe:text", TextOptions(packing="packed")) is None
    assert samples_name("digits", TextOptions()) is None


PROGRAM = """
from beside import value

class Thing:
    pass

def make():
    return Thing()

def answer():
    return value

number = 3
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("value = 42\n")
    (tmp_path / "mine.py").write_text(PROGRAM)
    yield str(tmp_path / "mine.py")
    for name in ("beside", "_user_mine"):
        sys.modules.pop(name, None)


def test_a_function_is_called_and_finds_what_lies_beside_it(program):
    before = list(sys.path)
    assert call_user_function(f"{program}:answer") == 42
    assert sys.path == before


def test_what_it_makes_can_be_sent_to_worker_processes(program):
    made = call_user_function(f"{program}:make")
    assert type(pickle.loads(pickle.dumps(made))) is type(made)


@pytest.mark.parametrize("name", ["answr", "number"])
def test_a_name_that_is_no_function_lists_the_nearest(program, name):
    with pytest.raises(DataError, match=f"has no function '{name}'; it has .*(answer|make)"):
        call_user_function(f"{program}:{name}")


def test_a_program_that_fails_leaves_the_path_as_it_was(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    before = list(sys.path)
    with pytest.raises(ZeroDivisionError):
        call_user_function(f"{tmp_path}/broken.py:net")
    assert sys.path == before
    sys.modules.pop("_user_broken", None)


def test_a_file_that_is_not_there():
    for run in (call_user_function, load_model):
        with pytest.raises(DataError, match=r"no file at gone\.py"):
            run("gone.py:net")
