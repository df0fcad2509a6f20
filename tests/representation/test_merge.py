"""Shards recorded apart become one pass."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import networks
import reference
import resemblance as rs
import stored
from resemblance.errors import MismatchError
from resemblance.representation.merge import join_parts
from small import SMALL, VECTORS, record


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
    stored.assert_identical(merged, rs.merge(shards))  # bit for bit, whatever the order
    assert merged.complete
    assert not merged.mergeable
    for field in ("samples", "block_sizes", "block_numbers", "settings"):
        assert getattr(merged, field) == getattr(whole, field)
    assert merged.data.fingerprint == whole.data.fingerprint
    for a, b in zip(merged, whole, strict=True):
        assert stored.moments(a) == pytest.approx(stored.moments(b), rel=1e-5, abs=1e-9)
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
    stored.assert_identical(rs.merge(loaded), rs.merge(shards))


def test_merging_streams_and_features_alone():
    for options in ({"gradients": False}, {"buckets": 0}, {"buckets": 0, "gradients": False}):
        parts = [record([VECTORS], shard=(i, 2), **options) for i in range(2)]
        merged, whole = rs.merge(parts), record([VECTORS], **options)
        assert merged.samples == 60
        assert torch.allclose(
            merged["act1"].blocks("features"), whole["act1"].blocks("features"), rtol=1e-4
        )


def test_merging_one_keeps_what_it_has(rep):
    stored.assert_identical(rs.merge([rep]), rep)
    kept = record(keep_sums=True)
    assert rs.merge([kept], keep_sums=True).mergeable
    assert not rs.merge([kept]).mergeable


def test_sums_can_be_kept_through_a_merge():
    merged = rs.merge([record(shard=(i, 2)) for i in range(2)], keep_sums=True)
    whole = record(keep_sums=True)
    sums = [x["act1"].features.sums.table for x in (merged, whole)]
    assert torch.allclose(*sums, atol=1e-5)


def test_skipped_samples_are_counted_over_shards():
    x = VECTORS.clone()
    x[[3, 40]] = float("nan")
    merged = rs.merge([record(x, shard=(i, 3), on_bad="skip") for i in range(3)])
    whole = record(x, on_bad="skip")
    assert (merged.samples, merged.data.skipped) == (58, 2)
    assert merged.data.fingerprint == whole.data.fingerprint


def under_autocast(**options):
    with torch.autocast("cpu", torch.bfloat16):
        return record(**options)


def read_twice(**options):
    part = record(**options)
    return replace(part, made=replace(part.made, logits="sigmoid"))


def in_half(**options):
    net = networks.seeded(networks.MLP).bfloat16()
    return rs.record(net, VECTORS.bfloat16(), **SMALL | options)


def trained_further(**options):
    part = record(**options)  # by a step too small for the hash that reads some of each weight
    return replace(part, model=replace(part.model, weights="0" * 16))


def refused():
    """What cannot be merged with record(shard=(0, 2)), and the words that say why."""
    return {
        "twice": (record(shard=(0, 2)), r"shards overlap: \[\(0, 2\)\] appear more than once"),
        "seed": (record(shard=(1, 2), seed=1), "setting seed differs (0 and 1)"),
        "buckets": (record(shard=(1, 2), buckets=32), "setting buckets differs (16 and 32)"),
        "beta": (record(shard=(1, 2), beta=0.3), "setting beta differs (0.5 and 0.3)"),
        "pool": (record(shard=(1, 2), pool="mean"), "setting pool differs"),
        "model": (record(shard=(1, 2), seed_of_model=1), "model weights differs"),
        "one weight": (trained_further(shard=(1, 2)), "model weights differs"),
        "autocast": (under_autocast(shard=(1, 2)), "autocast differs (None and 'bfloat16')"),
        "dtype": (in_half(shard=(1, 2)), "dtype of the weights differs ('float32' and 'bfloat16')"),
        "logits": (read_twice(shard=(1, 2)), "how logits are read differs"),
        "layers": (record(shard=(1, 2), layers="act1"), "layers differs"),
        "shards": (record(shard=(1, 3)), "number of shards differs (2 and 3)"),
        "total": (record(VECTORS[:59], shard=(1, 2)), "samples in all differs (60 and 59)"),
        "id": (record(shard=(1, 2), data_id="x"), "data_id differs (None and 'x')"),
        "samples": (record(VECTORS + 1, shard=(1, 2)), "samples of the data differs"),
        "order": (record(VECTORS.flip(0), shard=(1, 2)), "samples of the data differs"),
        "labels": (
            record((VECTORS, torch.arange(60) % 3), shard=(1, 2)),
            "samples of the data differs",
        ),
        "outputs": (
            record(shard=(1, 2), outputs=False),
            "what the network returns differs ('predictions kept' and 'left out')",
        ),
        "sums": (record(shard=(1, 2)).without_sums(), "has no accumulators"),
    }


def test_what_is_no_shard_of_one_pass_is_refused_with_the_difference():
    first = record(shard=(0, 2))
    for other, message in refused().values():
        for pair in itertools.permutations([first, other]):
            swapped = re.sub(
                r"\((\S+|'.+') and (\S+|'.+')\)$", r"\\((\1 and \2|\2 and \1)\\)", message
            )
            with pytest.raises(MismatchError, match=swapped):
                rs.merge(pair)


def shard_said_to_be(part, number):
    return replace(part, data=replace(part.data, shards=((number, 2),)))


@pytest.mark.parametrize("blocks", [0, 64])
def test_shards_with_edited_numbers_are_refused(blocks):
    """Of 60 samples in blocks of 4, the first of two shards holds 32 and the second 28."""
    first, second = (record(shard=(i, 2), blocks=blocks) for i in range(2))
    skipped = replace(second, data=replace(second.data, skipped=1))
    wrong = [shard_said_to_be(first, 1), replace(second, samples=29), skipped]
    if blocks:
        wrong.append(replace(second, block_numbers=first.block_numbers[:7]))
    for other in wrong:
        for parts in itertools.permutations([first, other]):
            with pytest.raises(MismatchError, match="record it again"):
                rs.merge(parts)


def test_a_lone_shard_with_edited_numbers_is_refused():
    with pytest.raises(MismatchError, match=r"holds 33 samples.* hold 32"):
        rs.merge([replace(record(shard=(0, 2)), samples=33)])


def test_parts_of_a_stream_with_a_block_in_common_are_refused():
    """Of a stream, nobody knows how many samples there are."""
    first, second = (record([VECTORS], shard=(i, 2)) for i in range(2))
    assert rs.merge([first, second]).complete
    with pytest.raises(MismatchError, match=r"block . of 'MLP' does not belong to shards"):
        rs.merge([shard_said_to_be(second, 0), shard_said_to_be(first, 1)])
    with pytest.raises(MismatchError, match="block 0 of 'MLP' is in more than one shard"):
        join_parts([first, first])


def test_shards_of_tokens_are_counted_in_sequences():
    net, texts = networks.seeded(networks.LittleForCausalLM), networks.texts(30)
    options = {"tokens": 3, "block": 4, "layers": ["blocks.0"]}
    shards = [rs.record(net, texts, shard=(i, 2), **options) for i in range(2)]
    assert rs.merge(shards).samples == 90
    with pytest.raises(MismatchError, match="record it again"):
        rs.merge([shards[0], shard_said_to_be(shards[0], 1)])


def test_nothing_to_merge():
    with pytest.raises(MismatchError, match="nothing to merge"):
        rs.merge([])


def test_a_shard_from_an_older_file_lacks_a_hash_and_merges():
    first, second = (record(shard=(i, 2)) for i in range(2))
    older = replace(second, model=replace(second.model, weights=None))
    assert rs.merge([first, older]).complete


def test_samples_that_have_a_name_may_be_made_otherwise_in_each_shard(tmp_path):
    """As where preprocessing draws, or differs between machines."""
    parts = [record(VECTORS + i / 100, shard=(i, 2), data_id="x") for i in range(2)]
    assert rs.merge(parts).complete
    assert [part.data.first for part in parts] == [None, None]


def test_a_whole_recording_knows_no_first_samples():
    parts = [record(shard=(i, 3)) for i in range(3)]
    assert parts[0].data.first == parts[1].data.first == rs.merge(parts[:2]).data.first
    assert rs.merge(parts).data.first is record().data.first is None


def test_shards_from_other_devices_merge():
    first, second = (record(shard=(i, 2)) for i in range(2))
    assert rs.merge([first, replace(second, made=replace(second.made, device="cuda:0"))]).complete


def test_means_that_were_taken_off_go_with_their_blocks():
    x = torch.randn(96, 10, generator=torch.Generator().manual_seed(0))
    x = x + 3 * torch.arange(96)[:, None] / 96 + 2  # a mean of its own in every block
    make = {"data_id": "x", "block": 8, "blocks": 9, "keep_sums": True}
    whole = rs.record_arrays(x, **make)
    merged = rs.merge([rs.record_arrays(x, shard=(i, 3), **make) for i in (2, 0, 1)])
    blocks = [rep[0].features.blocks for rep in (merged, whole)]
    assert torch.allclose(blocks[0].offset, blocks[1].offset, rtol=1e-5)
    assert torch.allclose(*(rep[0].blocks("features") for rep in (merged, whole)), rtol=1e-4)


@pytest.mark.parametrize(
    ("option", "functions"),
    [
        ("pool", (lambda x: x[:, :3], lambda x: x[:, 1:4])),
        ("target", (lambda z, _: z.logsumexp(1), lambda z, _: z.square().sum(1))),
    ],
)
def test_shards_made_with_different_functions_of_one_name_are_refused(option, functions):
    parts = [record(shard=(i, 2), **{option: function}) for i, function in enumerate(functions)]
    with pytest.raises(MismatchError, match=f"setting {option} differs"):
        rs.merge(parts)
    wholes = [record(**{option: function}) for function in functions]
    with pytest.raises(MismatchError, match=f"{option} differs"):
        rs.compare(*wholes, kernel="product")
    same = [record(shard=(i, 2), **{option: functions[0]}) for i in range(2)]
    assert rs.merge(same).complete


def test_shards_of_data_that_changed_in_between_are_refused():
    """In any sample, or label, of 60: of larger data 64 samples are compared."""
    labels = torch.arange(60) % 3
    first = record((VECTORS, labels), shard=(0, 2))
    for row in (7, 33, 59):
        x, y = VECTORS.clone(), labels.clone()
        x[row] += 1
        y[row] = 2 - y[row] // 2
        for data in ((x, labels), (VECTORS, y)):
            with pytest.raises(MismatchError, match="samples of the data differs"):
                rs.merge([first, record(data, shard=(1, 2))])


def test_a_function_that_an_older_file_names_without_a_hash_agrees_by_name():
    parts = [record(shard=(i, 2), pool=lambda x: x[:, :3]) for i in range(2)]
    older = replace(parts[1].settings, pool=parts[1].settings.pool.rpartition(" ")[0])
    assert rs.merge([parts[0], replace(parts[1], settings=older)]).complete
    renamed = replace(parts[1].settings, pool="function pooled")
    with pytest.raises(MismatchError, match="setting pool differs"):
        rs.merge([parts[0], replace(parts[1], settings=renamed)])
