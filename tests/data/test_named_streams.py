"""Streams by name, as the command is given them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import little_language
import resemblance as rs
import shards
from optional_libraries import needs
from resemblance._data.named_data import load_data
from resemblance._data.named_streams import rows_named
from resemblance._data.shares import Share
from resemblance._data.sources import source
from resemblance._data.streams import Stream
from resemblance._data.tokenized_text import TextOptions
from resemblance.errors import DataError

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
    batches = list(source(data, seed=0, block=4).batches(4, Share()))
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
        source(load_data(str(tmp_path), skip_bad=True), seed=0, block=4)
    shards.write_tar(tmp_path / "s.tar", [])
    with pytest.raises(DataError, match="holds no samples"):
        load_data(str(tmp_path))


def test_other_names_are_no_streams(tmp_path):
    for spec in ("digits", "hf:x.tar", "file.py:name.tar", str(tmp_path), "missing.npz"):
        assert rows_named(spec) is None
    with pytest.raises(DataError, match=r"no shard at 'missing\.tar'"):
        rows_named("missing.tar")


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
    with pytest.raises(DataError, match="no Hugging Face data set at"):
        load_data(f"hf-stream:{tmp_path / 'nowhere'}")
