"""Representations as files: nothing lost, every key documented; paths in place of recordings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
import stored
from resemblance.errors import DataError, FormatError, LayerError
from resemblance.representation import tensor_file
from resemblance.representation.file_format import representation_bytes
from resemblance.representation.outputs import Outputs
from resemblance.representation.representation import as_representation, as_representations
from small import record


def test_content_is_what_save_writes(tmp_path):
    rep = record()
    path = tmp_path / "net.rsm"
    path.write_bytes(representation_bytes(rep))
    assert rs.load(path) == rep
    assert path.stat().st_size == rep.save(tmp_path / "b.rsm").stat().st_size


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"elementwise": True, "keep_sums": True},
        {"gradients": False},
        {"buckets": 0},
        {"blocks": 0},
        {"block": 1},
        {"per_sample": 2},
        {"max_dim": 3},
        {"shard": (1, 3)},
    ],
    ids=str,
)
def test_saving_and_loading_changes_nothing(tmp_path, options):
    rep = record(**options)
    path = rep.save(tmp_path / "net.rsm")
    back = rs.load(str(path))
    stored.assert_identical(back, rep)
    assert back.made == rep.made
    assert (back.complete, back.mergeable) == (rep.complete, rep.mergeable)


class Images(nn.Module):
    """A layer of images, with channels last where the network itself has them so."""

    def __init__(self, channels, *, last):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, channels, 3), last
        self.images, self.head = nn.Identity(), nn.Linear(channels, 4)

    def forward(self, x):
        x = self.conv(x)
        if self.last:
            return self.head(self.images(x.permute(0, 2, 3, 1)).mean((1, 2)))
        return self.head(self.images(x).mean((2, 3)))


@pytest.mark.parametrize("max_dim", [100, 7, 4, None])
@pytest.mark.parametrize("channels", [1, 5, 8])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_shards_of_wide_images_are_merged_from_their_files(tmp_path, max_dim, channels, last):
    """Channels are folded apart: accumulators are narrower where they do not divide `max_dim`."""
    net, x = networks.seeded(Images, channels, last=last), torch.randn(40, 3, 9, 9)
    options = {"layers": ["images"], "max_dim": max_dim, "buckets": 16, "elementwise": True}
    parts = [rs.record(net, x, shard=(i, 2), **options) for i in range(2)]
    paths = [part.save(tmp_path / f"{i}.rsm") for i, part in enumerate(parts)]
    for part, path in zip(parts, paths, strict=True):
        stored.assert_identical(rs.load(path), part)
    assert rs.merge(paths) == rs.merge(parts)


@pytest.mark.parametrize("layers", [["act2"], "act2", [1], [-1], 1, np.int64(1), ("act2", 1)])
def test_some_layers_can_be_read_alone(tmp_path, rep, layers):
    found = rs.load(rep.save(tmp_path / "net.rsm"), layers=layers)
    assert found == dataclasses.replace(rep, layers=rep.layers[1:])


def test_layers_that_are_read_alone_come_in_their_order(tmp_path, rep):
    assert rs.load(rep.save(tmp_path / "net.rsm"), layers=["act2", "act1"]) == rep


@pytest.mark.parametrize("layers", ["act3", ["act1", "act3"], 2, [-3], True, 0.5, [None], []])
def test_layers_that_are_not_in_a_file_are_an_error(tmp_path, rep, layers):
    path = rep.save(tmp_path / "net.rsm")
    with pytest.raises(LayerError, match=r"no layer .*; nearest: act|found none"):
        rs.load(path, layers=layers)


def documented():
    """What the code on the page defines."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text(
        encoding="utf-8"
    )
    found: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(snippet, found)
    return found


@pytest.mark.parametrize("parts", ["blocks", "whole"])
def test_the_reader_in_the_documentation_reads_the_file(tmp_path, parts):
    rep = record(blocks=12) if parts == "blocks" else record()
    assert (rep[0].features.whole is None) == (parts == "blocks")
    reader = documented()
    header, tensors = reader["read"](rep.save(tmp_path / "net.rsm"))
    assert header["format"] == tensor_file.DEFAULT_FORMAT
    assert header["settings"] == dataclasses.asdict(rep.settings)
    for i, layer in enumerate(rep):
        assert header["layers"][i]["moments"] == stored.moments(layer)
        named = {"name", "bare_name", "shape", "channels_last", "dim", "folded", "moments"}
        assert set(header["layers"][i]) == named
        for kind in layer.kinds:
            buckets = reader["buckets"](tensors, i, kind)
            assert np.allclose(buckets, layer.buckets(kind), rtol=1e-12)
            c, r = tensors["signs"].astype(float), tensors[f"{i}.{kind}.buckets.mean"]
            mean = header["layers"][i]["moments"][f"mean_{kind}"]
            centred = buckets - np.outer(r, c) - np.outer(c, r) + mean * np.outer(c, c)
            assert np.allclose(centred, layer.buckets(kind, centre=True), rtol=1e-6, atol=1e-9)
            if f"{i}.{kind}.whole.triangle" in tensors:
                (expected,) = layer.blocks(kind, whole=True)
                found = reader["block"](tensors, i, kind, part="whole")
                assert np.allclose(found, expected, rtol=1e-12)
            for b, expected in enumerate(layer.blocks(kind) if parts == "blocks" else ()):
                n = rep.block_sizes[b]
                found = reader["block"](tensors, i, kind, b)[:n, :n]
                assert np.allclose(found, expected[:n, :n], rtol=1e-12)


@pytest.mark.parametrize("per_sample", [1, 2])
@pytest.mark.parametrize(
    ("shape", "max_dim"),
    [
        ((200,), None),
        ((3000,), 1000),
        ((9001,), 16),
        ((5, 43, 43), 8192),
        ((16, 30, 20), 96),
        ((300, 6, 6), 100),
    ],
    ids=str,
)
def test_samples_and_features_go_where_the_documentation_says(shape, max_dim, per_sample):
    say, seed, buckets = documented(), 2**63 + 5, 64
    x = np.random.default_rng(0).normal(size=(30, *shape)).astype(np.float32)
    options = {"buckets": buckets, "per_sample": per_sample, "max_dim": max_dim, "seed": seed}
    net = nn.Sequential(nn.Identity(), nn.Flatten())
    rep = rs.record(
        net, torch.from_numpy(x), layers=["0"], gradients=False, keep_sums=True, **options
    )
    layer, rows, dim = rep[0], x.reshape(30, -1), int(np.prod(shape))
    channels = shape[0] if len(shape) > 2 else 1
    row, sign = say["bucket"](np.arange(30), 128, seed)
    column, of_feature = say["column"](dim, seed, channels)
    sketch = np.zeros((128, 256))
    np.add.at(sketch, (row[:, None], column), rows * sign[:, None] * of_feature)
    assert np.abs(layer.features.sketch.table.numpy() - sketch).max() < 1e-4
    slot, of_feature = say["fold"](dim, max_dim or dim, seed, channels)
    sums = np.zeros((buckets, int(slot.max()) + 1))
    for part in range(per_sample):
        at, sign = say["bucket"](np.arange(30), buckets, seed, part, per_sample)
        np.add.at(sums, (at[:, None], slot), rows * sign[:, None] * of_feature)
    assert layer.features.sums.table.shape == sums.shape
    assert np.abs(layer.features.sums.table.numpy() - sums).max() < 1e-3
    order = np.argsort(say["bits"](seed, 2, np.arange(30)))
    assert np.allclose(layer.features.norms, (rows[order] ** 2).sum(1), rtol=1e-5)


def multi_label(rep, labels=3):
    """The recording with the outputs of a network of independent labels."""
    z = torch.randn(sum(rep.block_sizes), labels, generator=torch.Generator().manual_seed(0))
    right = (z > 0.1).to(torch.int16)
    return dataclasses.replace(rep, outputs=Outputs(labels, label_logits=z, labels=right))


@pytest.mark.parametrize("labels", [1, 3, 1100])
def test_outputs_of_multi_label_networks_have_a_format_of_their_own(tmp_path, labels):
    rep = multi_label(record(), labels)
    path = rep.save(tmp_path / "net.rsm")
    header, tensors = tensor_file.read_tensors(path)
    assert (header["format"], header["labels"], header["classes"]) == (3, labels, None)
    assert tensors["outputs.label_logits"].shape == (rep.samples, labels)
    assert rs.load(path) == rep
    assert rs.load(path, layers=[0]).outputs == rep.outputs
    read, arrays = documented()["read"](path)
    assert read == header
    assert np.array_equal(arrays["outputs.label_logits"], rep.outputs.label_logits)
    for other in (record(), rep.without_outputs()):
        assert tensor_file.read_tensors(other.save(path))[0]["format"] == 2


def test_every_name_in_a_file_is_in_the_documentation(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text(
        encoding="utf-8"
    )
    names: set[str] = set()
    plain = [record(**x) for x in ({"elementwise": True, "keep_sums": True}, {"blocks": 12})]
    for rep in (multi_label(plain[0]), *plain):
        header, tensors = tensor_file.read_tensors(rep.save(tmp_path / "net.rsm"))
        names |= {name.split(".", 2)[-1] for name in tensors} | set(header)
    names |= {key for part in ("settings", "model", "data", "made") for key in header[part]}
    names |= set(header["layers"][0]) | set(header["layers"][0]["moments"])
    assert [name for name in names if f"`{name}`" not in text] == []


def test_a_ten_layer_network_at_the_defaults_stays_under_33_mb(tmp_path):
    x = np.random.default_rng(0).normal(size=(8200, 3)).astype(np.float32)
    layers = {f"layer{i}": x for i in range(10)}
    path = rs.record_arrays(layers, layers, data_id="x").save(tmp_path / "ten.rsm")
    assert 25e6 < path.stat().st_size < 33e6


@pytest.fixture
def file(rep, tmp_path):
    return rep.save(tmp_path / "a.rsm")


def test_a_representation_is_itself_and_a_path_is_read(rep, file):
    assert as_representation(rep) is rep
    for path in (file, str(file)):
        assert as_representation(path) == rep
    assert as_representations(each for each in (rep, file)) == [rep, rep]


def test_every_reader_takes_a_path(rep, file, tmp_path):
    kept = rs.record_arrays(  # with sums, for the classifier
        {"act1": [[0.0, 1.0], [1.0, 0.0]] * 10}, data_id="x", keep_sums=True, buckets=8
    )
    sums = str(kept.save(tmp_path / "sums.rsm"))
    assert rs.compare(str(file), file, kernel="product") == rs.compare(rep, rep, kernel="product")
    assert rs.compare_all([str(file), rep], kernel="product") == rs.compare_all(
        [rep, rep], kernel="product"
    )
    assert rs.adaptation(file) == rs.adaptation(rep)
    assert rs.fisher_rao(file) == rs.fisher_rao(rep)
    assert rs.merge([file]) == rs.merge([rep])
    assert rs.report([file], tmp_path / "page.html").is_file()
    import torch

    net = torch.nn.Identity()
    fitted = rs.KernelClassifier(net, alpha=1.0).fit_representation(sums, [0, 1] * 10)
    assert fitted.n_samples_ == 20


@pytest.mark.parametrize("given", [None, 3, [], {"a": 1}])
def test_anything_else_is_refused_with_what_it_was(given):
    kind = type(given).__name__
    with pytest.raises(DataError, match=f"expected a Representation or the path.*found {kind}"):
        as_representation(given)


@pytest.mark.parametrize("given", [None, 3, {"a": 1}])
def test_several_are_in_a_list(given):
    with pytest.raises(DataError, match=f"a list of .*, found {type(given).__name__}; write"):
        as_representations(given)


def test_one_where_several_are_expected(rep):
    with pytest.raises(DataError, match=r"found one Representation; write \[a, b\]"):
        as_representations(rep)
    for path in ("a.rsm", Path("a.rsm")):
        with pytest.raises(DataError, match=r"found the path 'a\.rsm'; write \[a, b\]"):
            as_representations(path)


def test_a_file_that_is_not_there(rep):
    with pytest.raises(FormatError, match=r"no file at gone\.rsm"):
        as_representations([rep, "gone.rsm"])
