"""The frozen summary, its file and its merging."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import networks
import reference
import resemblance as rs
from resemblance import _atomic_files as files
from resemblance.errors import FormatError, LayerError, MismatchError
from resemblance.representation import container
from resemblance.representation.representation import difference

VECTORS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
SMALL = {"block": 4, "blocks": 64, "buckets": 16}


def record(data=VECTORS, seed_of_model=0, **options):
    return rs.record(networks.seeded(networks.MLP, seed=seed_of_model), data, **SMALL | options)


@pytest.fixture(scope="module")
def rep():
    return record(elementwise=True, name="net", data_id="probe")


def assert_same(a, b):
    for field in dataclasses.fields(a):
        if field.name not in ("layers", "made"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    for one, two in zip(a, b, strict=True):
        for field in ("name", "shape", "dim", "folded"):
            assert getattr(one, field) == getattr(two, field)
        assert dict(one.moments) == dict(two.moments)
        assert one.tensors.keys() == two.tensors.keys()
        for key in one.tensors:
            assert torch.equal(one.tensors[key], two.tensors[key]), key


# -- reading -------------------------------------------------------------------------------------


def test_access_by_name_number_and_iteration(rep):
    assert rep.layer_names == ["act1", "act2"]
    assert rep["act2"] is rep[1] is rep[-1] is list(rep)[1]
    assert len(rep) == 2
    assert rep.name == "net"
    assert rep.renamed("other").name == "other"
    assert rep["act1"].kinds == ("features", "gradients", "elementwise")
    assert (rep["act1"].shape, rep["act1"].dim) == ((7,), 7)
    assert repr(rep) == "Representation('net', 2 layers, 60 samples, 15 blocks of 4, 16 buckets)"


def test_missing_layers_and_kinds_say_what_to_do(rep):
    with pytest.raises(LayerError, match="no layer 'act3' in this Representation; nearest: act"):
        rep["act3"]
    features = record(gradients=False)["act1"]
    with pytest.raises(MismatchError, match=r"holds no gradients.*record again with gradients on"):
        features.blocks("gradients")
    with pytest.raises(MismatchError, match=r"holds no elementwise.*elementwise=True"):
        record()["act1"].buckets("elementwise")


def test_frozen(rep):
    with pytest.raises(dataclasses.FrozenInstanceError):
        rep.samples = 3
    with pytest.raises(TypeError):
        rep.data["id"] = "other"
    with pytest.raises(TypeError):
        rep["act1"].moments["inner"] = 0.0
    rep["act1"].blocks("features").zero_()  # what accessors give is a copy
    rep["act1"].triangles("features")[1].zero_()
    rep["act1"].buckets("features").zero_()
    assert rep["act1"].blocks("features").any()
    assert rep["act1"].buckets("features").any()


def test_representations_can_be_compared_by_identity_and_hashed(rep):
    assert rep == rep
    assert rep != record()
    assert len({rep, rep}) == 1


def test_difference_names_the_first_setting():
    a, b = record(), record(seed=1)
    assert difference(a, a, ["seed", "block"]) is None
    assert difference(a, b, ["block", "seed"]) == "seed differs: 0 in 'MLP', 1 in 'MLP'"


def test_settings_from_numpy_numbers_can_be_saved(tmp_path):
    rep = record(seed=np.int64(3), beta=np.float32(0.25), block=np.int32(4), shard=(np.int64(0), 2))
    assert rs.load(rep.save(tmp_path / "a.rsm")).settings == rep.settings


# -- the file ------------------------------------------------------------------------------------


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
    assert_same(back, rep)
    assert back.made == rep.made
    assert (back.complete, back.mergeable) == (rep.complete, rep.mergeable)


def test_the_reader_in_the_documentation_reads_the_file(tmp_path, rep):
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    reader: dict = {}
    exec(snippet, reader)
    header, tensors = reader["read"](rep.save(tmp_path / "net.rsm"))
    assert header["format"] == container.FORMAT
    assert header["settings"] == dataclasses.asdict(rep.settings)
    for i, layer in enumerate(rep):
        assert header["layers"][i]["moments"] == dict(layer.moments)
        assert set(header["layers"][i]) == {"name", "shape", "dim", "folded", "moments"}
        for kind in layer.kinds:
            buckets = reader["buckets"](tensors, i, kind)
            assert np.allclose(buckets, layer.buckets(kind), rtol=1e-12)
            c, r = tensors["signs"].astype(float), tensors[f"{i}.{kind}.buckets.mean"]
            mean = header["layers"][i]["moments"][f"mean_{kind}"]
            centred = buckets - np.outer(r, c) - np.outer(c, r) + mean * np.outer(c, c)
            assert np.allclose(centred, layer.buckets(kind, centre=True), rtol=1e-6, atol=1e-9)
            for b, expected in enumerate(layer.blocks(kind)):
                assert np.allclose(reader["block"](tensors, i, kind, b), expected, rtol=1e-12)


def test_every_name_in_a_file_is_in_the_documentation(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    header, tensors = container.read(
        record(elementwise=True, keep_sums=True).save(tmp_path / "net.rsm")
    )
    names = {name.split(".", 2)[-1] for name in tensors} | set(header)
    names |= {key for part in ("settings", "model", "data", "made") for key in header[part]}
    names |= set(header["layers"][0]) | set(header["layers"][0]["moments"])
    assert [name for name in names if f"`{name}`" not in text] == []


def test_a_ten_layer_network_at_the_defaults_stays_under_30_mb(tmp_path):
    x = np.random.default_rng(0).normal(size=(8200, 3)).astype(np.float32)
    layers = {f"layer{i}": x for i in range(10)}
    path = rs.record_arrays(layers, layers, data_id="x").save(tmp_path / "ten.rsm")
    assert 25e6 < path.stat().st_size < 30e6


def test_any_damaged_byte_is_noticed(tmp_path, rep):
    path = rep.save(tmp_path / "net.rsm")
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    places = {0, 7, 8, 9, len(content) - 1, *generator.integers(0, len(content), 60).tolist()}
    places |= {content.index(b'"crc32') + 12, content.index(b"trace_features") + 20}
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 0x05
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"damaged|not one of this package's|newer"):
            rs.load(path)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, rep, length):
    path = rep.save(tmp_path / "net.rsm")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FormatError, match="damaged, truncated or not a Representation"):
        rs.load(path)


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"no file at .*missing\.rsm"):
        rs.load(tmp_path / "missing.rsm")
    (tmp_path / "text.rsm").write_text("hello, hello, hello")
    with pytest.raises(FormatError, match="damaged, truncated or not a Representation"):
        rs.load(tmp_path / "text.rsm")
    save_file({"weight": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(FormatError, match="a safetensors file, but not one of this package's"):
        rs.load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize("header", ["[]", "{}", "not json", '{"format": "x"}'])
def test_a_header_that_is_none_is_damage(tmp_path, header):
    path = tmp_path / "odd.rsm"
    save_file({"signs": torch.zeros(3)}, path, {"resemblance": header})
    with pytest.raises(FormatError, match="is damaged: its checksum does not match"):
        rs.load(path)


def test_a_newer_format_is_refused(tmp_path, rep, monkeypatch):
    monkeypatch.setattr(container, "FORMAT", 2)
    path = rep.save(tmp_path / "net.rsm")
    monkeypatch.undo()
    with pytest.raises(
        FormatError, match=r"has format 2, newer than this version reads .1.; upgrade"
    ):
        rs.load(path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path, rep, monkeypatch, step, error
):
    path = record().save(tmp_path / "net.rsm")
    before = path.read_bytes()

    def fail(*_):
        raise error("no")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(error, match="no"):
        rep.save(path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["net.rsm"]
    assert path.read_bytes() == before


def test_saving_into_a_missing_folder_is_the_systems_error(tmp_path, rep):
    with pytest.raises(FileNotFoundError):
        rep.save(tmp_path / "missing" / "net.rsm")


def test_a_saved_file_can_be_read_by_others(tmp_path, rep):
    assert os.stat(rep.save(tmp_path / "net.rsm")).st_mode & 0o444 == 0o444


# -- merging -------------------------------------------------------------------------------------


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    n=st.integers(1, 5),
    blocks=st.sampled_from([0, 2, 64]),
    elementwise=st.booleans(),
    per_sample=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_shards_merged_in_any_order_are_one_pass(n, blocks, elementwise, per_sample, data):
    options = {"blocks": blocks, "elementwise": elementwise, "per_sample": per_sample}
    whole = record(**options)
    shards = [record(shard=(i, n), **options) for i in range(n)]
    order = data.draw(st.permutations(shards))
    merged = rs.merge(order)
    assert_same(merged, rs.merge(shards))  # bit for bit, whatever the order
    assert merged.complete
    assert not merged.mergeable
    for field in ("samples", "block_sizes", "block_numbers", "settings"):
        assert getattr(merged, field) == getattr(whole, field)
    assert merged.data["fingerprint"] == whole.data["fingerprint"]
    for a, b in zip(merged, whole, strict=True):
        assert dict(a.moments) == pytest.approx(dict(b.moments), rel=1e-5, abs=1e-9)
        assert a.tensors.keys() == b.tensors.keys()
        for kind in a.kinds:
            assert reference.close(a.buckets(kind), b.buckets(kind).numpy(), 1e-5)
            if blocks:
                assert torch.allclose(a.blocks(kind), b.blocks(kind), rtol=1e-4, atol=1e-4)


def test_merging_a_few_at_a_time():
    shards = [record(shard=(i, 4)) for i in range(4)]
    half = rs.merge([shards[3], shards[1]])
    assert not half.complete
    assert half.mergeable
    whole, stepwise = rs.merge(shards), rs.merge([shards[2], half, shards[0]])
    for a, b in zip(whole, stepwise, strict=True):
        assert reference.close(b.buckets("features"), a.buckets("features").numpy(), 1e-6)
        assert torch.equal(a.blocks("features"), b.blocks("features"))
    assert stepwise.data == whole.data


def test_merging_through_files(tmp_path):
    shards = [record(shard=(i, 2)) for i in range(2)]
    loaded = [rs.load(part.save(tmp_path / f"{i}.rsm")) for i, part in enumerate(shards)]
    assert_same(rs.merge(loaded), rs.merge(shards))


def test_merging_streams_and_features_alone():
    for options in ({"gradients": False}, {"buckets": 0}, {"buckets": 0, "gradients": False}):
        parts = [record([VECTORS], shard=(i, 2), **options) for i in range(2)]
        merged, whole = rs.merge(parts), record([VECTORS], **options)
        assert merged.samples == 60
        assert torch.allclose(
            merged["act1"].blocks("features"), whole["act1"].blocks("features"), rtol=1e-4
        )


def test_merging_one_keeps_what_it_has(rep):
    assert_same(rs.merge([rep]), rep)
    kept = record(keep_sums=True)
    assert rs.merge([kept], keep_sums=True).mergeable
    assert not rs.merge([kept]).mergeable


def test_sums_can_be_kept_through_a_merge():
    merged = rs.merge([record(shard=(i, 2)) for i in range(2)], keep_sums=True)
    whole = record(keep_sums=True)
    sums = [x["act1"].tensors["features.sums"] for x in (merged, whole)]
    assert torch.allclose(*sums, atol=1e-5)


def test_skipped_samples_are_counted_over_shards():
    x = VECTORS.clone()
    x[[3, 40]] = float("nan")
    merged = rs.merge([record(x, shard=(i, 3), on_bad="skip") for i in range(3)])
    whole = record(x, on_bad="skip")
    assert (merged.samples, merged.data["skipped"]) == (58, 2)
    assert merged.data["fingerprint"] == whole.data["fingerprint"]


def refused():
    """What cannot be merged with record(shard=(0, 2)), and the words that say why."""
    return {
        "twice": (record(shard=(0, 2)), r"shards overlap: \[\(0, 2\)\] came more than once"),
        "seed": (record(shard=(1, 2), seed=1), "setting seed differs, 0 and 1"),
        "buckets": (record(shard=(1, 2), buckets=32), "setting buckets differs, 16 and 32"),
        "beta": (record(shard=(1, 2), beta=0.3), "setting beta differs, 0.5 and 0.3"),
        "pool": (record(shard=(1, 2), pool="mean"), "setting pool differs"),
        "model": (record(shard=(1, 2), seed_of_model=1), "model weights differs"),
        "layers": (record(shard=(1, 2), layers="act1"), "layers differs"),
        "shards": (record(shard=(1, 3)), "number of shards differs, 2 and 3"),
        "total": (record(VECTORS[:59], shard=(1, 2)), "samples in all differs, 60 and 59"),
        "id": (record(shard=(1, 2), data_id="x"), "data_id differs, None and 'x'"),
        "sums": (record(shard=(1, 2)).without_sums(), "dropped its accumulators"),
    }


def test_what_is_no_shard_of_one_pass_is_refused_with_the_difference():
    first = record(shard=(0, 2))
    for other, message in refused().values():
        for pair in itertools.permutations([first, other]):
            swapped = re.sub(r"(\S+) and (\S+)$", r"(\1 and \2|\2 and \1)", message)
            with pytest.raises(MismatchError, match=swapped):
                rs.merge(pair)


def test_nothing_to_merge():
    with pytest.raises(MismatchError, match="nothing to merge"):
        rs.merge([])
