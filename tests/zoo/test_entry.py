"""What identifies a recording and its group, and the exact search that stores share."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

import made_up
import resemblance as rs
import small
from resemblance.errors import DataError
from resemblance.zoo.entry import (
    Entry,
    content_hash,
    describe_mismatch,
    entry_for,
    gradients_of,
    group_of,
    is_digest,
    is_id_prefix,
    probe_of,
    validate_tags,
)
from resemblance.zoo.signature import exact_nearest, signatures
from zoo_workers import tiny


def entry_of(rep, **changes):
    return entry_for(rep, **{"tags": (), "size": 1, "trained_on": None, **changes})


def test_a_recording_made_or_saved_again_has_the_same_identity(tmp_path):
    rep = small.record(outputs=True)
    again = small.record(outputs=True)
    again = dataclasses.replace(again, made=dataclasses.replace(rep.made, date="2001-01-01"))
    loaded = rs.load(rep.save(tmp_path / "a.rsm"))
    assert content_hash(rep) == content_hash(again) == content_hash(loaded)
    assert is_digest(content_hash(rep))


def test_whatever_else_differs_makes_another_identity():
    rep = tiny(0)
    features = rep[0].features
    one_number = dataclasses.replace(
        features, norms=torch.nextafter(features.norms, torch.tensor(9.0))
    )
    other_layer = dataclasses.replace(rep[0], features=one_number)
    others = [
        rep.renamed("another"),
        tiny(0, seed=1),
        dataclasses.replace(rep, layers=rep.layers[::-1]),
        dataclasses.replace(rep, layers=rep.layers[:1]),
        dataclasses.replace(rep, layers=(other_layer, rep[1])),
        dataclasses.replace(rep, model=dataclasses.replace(rep.model, address="hf:x")),
    ]
    ids = {content_hash(x) for x in (rep, *others)}
    assert len(ids) == len(others) + 1


def test_a_field_that_is_as_it_is_by_default_leaves_an_identity_as_it_was():
    """So that a later version can add one."""
    rep = tiny(0)

    @dataclasses.dataclass(frozen=True)
    class ModelInfo:  # as a later version may have it
        name: str
        fingerprint: str | None
        parameters: int | None
        weights: str | None = None
        address: str | None = None
        tokenizer: str | None = None
        classes: tuple[str, ...] | None = None
        licence: str | None = None

    later = dataclasses.replace(rep, model=ModelInfo(**vars(rep.model)))
    other = dataclasses.replace(rep, model=ModelInfo(**vars(rep.model), licence="MIT"))
    assert content_hash(rep) == content_hash(later) != content_hash(other)


def test_a_group_is_of_samples_and_settings_not_of_networks():
    assert group_of(tiny(0)) == group_of(tiny(1, layers=3, name="x"))
    assert re.fullmatch("[0-9a-f]{16}", group_of(tiny(0)))
    others = [tiny(0, data_id="other"), tiny(0, n=48), tiny(0, seed=1), tiny(0, block=8)]
    assert len({group_of(rep) for rep in (tiny(0), *others)}) == 5


def test_pools_and_tokenizers_part_groups_and_targets_do_not():
    rep = small.record()
    tokens = dataclasses.replace(rep.settings, unit="token")
    spoken = [
        dataclasses.replace(
            rep, settings=tokens, model=dataclasses.replace(rep.model, tokenizer=name)
        )
        for name in ("a", "b")
    ]
    others = [small.record(pool="mean"), *spoken]
    assert len({group_of(x) for x in (rep, *others)}) == 4
    for same in (small.record(beta=0.3), small.record(gradients=False)):
        assert group_of(same) == group_of(rep)
    named = dataclasses.replace(rep, model=dataclasses.replace(rep.model, tokenizer="a"))
    assert group_of(rep) == group_of(named)  # samples are no tokens


def test_tokens_and_the_order_of_streams_part_groups():
    rep = tiny(0)
    every = [rep]
    for tokens in (2, 3):
        every.append(
            dataclasses.replace(rep, settings=dataclasses.replace(rep.settings, tokens=tokens))
        )
    keyed = dataclasses.replace(rep.data, order="keyed")
    for hashes in (("a", "b"), ("b", "a")):
        every.append(dataclasses.replace(rep, data=keyed, block_hashes=hashes))
    assert len({group_of(x) for x in every}) == 5
    named = [dataclasses.replace(rep, block_hashes=hashes) for hashes in (("a",), ("b",))]
    assert group_of(named[0]) == group_of(named[1])  # as preprocessing may differ


def test_what_gradients_are_of_is_known_of_an_entry():
    reps = [small.record(), small.record(beta=0.3), small.record(gradients=False)]
    known = [entry_of(rep).gradients for rep in reps]
    assert known == [gradients_of(rep) for rep in reps]
    assert known[1:] == ["tempered, beta 0.3", None]
    assert known[0].startswith("tempered, beta 0.")
    assert known[0] != known[1]
    given = made_up.recorded(0, 12)
    assert gradients_of(given) == given.settings.target


def test_an_entry_is_told_by_its_recording_and_comes_back_from_json():
    rep = small.record(outputs=True)
    entry = entry_of(rep, tags=("a", "b"), trained_on="0" * 64)
    assert (entry.name, entry.samples, entry.layers) == (rep.name, 60, tuple(rep.layer_names))
    assert entry.classes == rep.outputs.classes
    assert entry.parameters == rep.model.parameters > 0
    assert entry.weights == rep.model.weights
    assert Entry.from_dict({**entry.to_dict(), "of a later version": 1}) == entry
    stored = {kernel: x.tobytes() for kernel, x in signatures(rep).items()}
    assert describe_mismatch(entry, rep, stored) == ""
    altered = dataclasses.replace(entry, samples=61)
    assert "the index disagrees with its recording" in describe_mismatch(altered, rep, stored)
    assert describe_mismatch(entry, rep, {}).endswith(f"recording's: {', '.join(stored)}")


def test_a_probe_in_words():
    assert probe_of(tiny(0)) == "tiny, 32 samples"
    assert re.fullmatch(r"data [0-9a-f]{12}, 60 samples", probe_of(small.record()))


def test_tags_are_sorted_and_checked():
    assert validate_tags(["b", "a", "b"]) == ("a", "b")
    for bad, found in [
        ("vision", "list of tags"),
        (3, "list of tags"),
        ([""], "1 to 200"),
        ([" a"], "without spaces"),
        (["a\nb"], "printable"),
        (["x" * 201], "1 to 200"),
        ([3], "must be text; found int"),
    ]:
        with pytest.raises(DataError, match=found):
            validate_tags(bad)


def test_what_may_be_an_id():
    assert is_id_prefix("0af")
    assert not is_id_prefix("0AF")
    assert not is_digest("0af")


def test_the_nearest_are_those_of_a_plain_sort():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 12)).astype(np.float16)
    query = rng.normal(size=12)
    exact = vectors.astype(float) @ query
    exact /= np.linalg.norm(vectors.astype(float), axis=1) * np.linalg.norm(query)
    ids = [str(i) for i in range(50)]
    blocks = [(ids[i : i + 7], vectors[i : i + 7]) for i in range(0, 50, 7)]
    found = exact_nearest(blocks, query, 8)
    order = np.argsort(-exact)[:8]
    assert [id for id, _ in found] == [ids[i] for i in order]
    assert [x for _, x in found] == pytest.approx(exact[order], abs=1e-5)  # float32
    assert len(exact_nearest(blocks, query, 99)) == 50


def test_equals_keep_their_order():
    one = np.ones((1, 4), np.float16)
    blocks = [(["a"], one), (["b"], 2 * one)]
    assert [id for id, _ in exact_nearest(blocks, one[0], 3)] == ["a", "b"]


def test_nothing_and_zeros_have_no_direction():
    zero = np.zeros((1, 4), np.float16)
    assert exact_nearest([], np.ones(4), 3) == []
    assert exact_nearest([(["a"], zero)], np.ones(4), 3) == [("a", 0.0)]
    assert exact_nearest([(["a"], zero + 1)], zero[0], 3) == [("a", 0.0)]
