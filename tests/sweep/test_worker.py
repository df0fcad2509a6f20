"""What a worker does with a pair: records it once, shares open data, outlives failures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import resemblance as rs
import shards
from little_language import SENTENCES, gpt2, saved, tokenizer
from noting_networks import notes
from optional_libraries import needs
from resemblance._models import compile
from resemblance.errors import DataError
from resemblance.sweep.run_sweep import SweepLocation
from resemblance.sweep.worker import SharedData, Worker


@pytest.fixture(autouse=True)
def _back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from where a worker goes


def test_a_pair_is_recorded_once(made, tmp_path):
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    (pair,) = asked.pairs
    first, second = Worker(place).done(pair), Worker(place).done(pair)
    assert (first.state, second.state) == ("recorded", "there")
    assert [what for what, _ in notes(tmp_path)] == ["x", "one"]
    found = rs.load(place.results.result(pair.name))
    assert (found.name, found.model.address, found.samples) == ("nets-one", "nets.py:one", 96)
    assert (found.settings.buckets, found.settings.block) == (16, 16)
    assert place.results.holds(pair)


def test_a_failure_is_an_outcome(made):
    asked, place = made("models: [nets.py:bad, nets.py:none]\ndata: {x: nets.py:x}")
    worker = Worker(place)
    bad, none = map(worker.done, asked.pairs)
    assert (bad.state, bad.error) == ("again", "ValueError: no luck with this one")
    assert bad.seconds > 0
    assert "in bad\n" in bad.trace
    assert none.error.startswith("nets.py has no function 'none'")
    assert (bad.state, none.state) == ("again", "failed")


def test_a_pair_that_another_process_is_at(made):
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    (pair,) = asked.pairs
    with place.results.claimed(pair):
        assert Worker(place).done(pair).state == "busy"


def test_a_checkpoint_is_taken_up_and_removed(made, tmp_path):
    """What an interrupted pass left is in the result; of few samples there is none to leave."""
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:many}\ncheckpoint: true")
    with open(tmp_path / "nets.py", "a") as file:
        file.write("\n\ndef many():\n    return torch.rand(2048, 6)\n")
    (pair,) = asked.pairs
    path = place.results.checkpoint(pair.name)
    path.write_bytes(b"not a checkpoint")
    broken = Worker(place).done(pair)
    assert broken.state == "failed"
    assert str(path) in broken.error  # so it was read
    path.unlink()
    assert Worker(place).done(pair).state == "recorded"
    assert not path.exists()


def test_warnings_come_with_the_outcome(made, tmp_path):
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    with open(tmp_path / "nets.py", "a") as file:
        file.write(
            "\n\ndef warns():\n"
            "    from resemblance.errors import warn\n"
            "    for _ in range(2):\n"
            "        warn('look out')\n"
            "    return one()\n"
        )
    (pair,) = asked.pairs
    wanted = replace(pair.wanted, model="nets.py:warns")
    assert Worker(place).done(replace(pair, wanted=wanted)).warnings == ("look out",)


def test_a_machine_without_the_folder(made):
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    elsewhere = SweepLocation(Path("/nowhere/at/all"), place.results)
    found = Worker(elsewhere).done(asked.pairs[0])
    assert "needs a shared file system" in found.error


def test_addresses_are_relative_to_the_file(made, tmp_path, monkeypatch):
    asked, place = made("models: nets.py:one\ndata: {x: nets.py:x}")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert Worker(place).done(asked.pairs[0]).state == "recorded"
    assert os.getcwd() == str(tmp_path)


def test_shards_are_data_with_a_buffer(made, tmp_path):
    x = torch.rand(96, 6).numpy()
    shards.write_arrays(tmp_path / "tar", x)
    asked, place = made("models: nets.py:one\ndata: {t: {data: tar, buffer: 20}}")
    worker = Worker(place)
    (pair,) = asked.pairs
    assert (pair.wanted.buffer, worker.done(pair).state) == (20, "recorded")
    found = rs.load(place.results.result(pair.name))
    assert (found.data.order, found.samples) == ("keyed", 96)


def test_all_weights_of_an_architecture_share_one_compiled_graph(made, tmp_path):
    """And a recording that is there counts as the same, compiled or not."""
    for seed in range(3):
        torch.manual_seed(seed)
        state = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).state_dict()
        torch.save(state, tmp_path / f"{seed}.pt")
    asked, place = made("models: [{model: nets.py:one, weights: '*.pt'}]\ndata: {x: nets.py:x}")
    there = set(compile._programs)
    worker = Worker(place)
    for pair in asked.pairs:
        options = {**pair.options, "batch_size": 32, "compile": True}
        done = worker.done(replace(pair, options=options))
        assert (done.state, done.warnings) == ("recorded", ())
        assert place.results.holds(pair)
    assert len(set(compile._programs) - there) == 1


def test_one_data_set_is_held_at_a_time(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: [nets.py:one, nets.py:two]\ndata: [nets.py:x, nets.py:y]")
    one_x, two_x, one_y, two_y = asked.pairs
    shared = SharedData()
    assert shared.of(one_x) is shared.of(two_x)
    y = shared.of(two_y)
    assert shared.of(one_y) is y
    assert not torch.equal(y, shared.of(one_x))  # opened anew
    assert [what for what, _ in notes(tmp_path)] == ["x", "y", "x"]


def test_other_options_are_other_data(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: nets.py:one\ndata: {a: nets.py:x, b: {data: nets.py:x, limit: 9}}")
    shared = SharedData()
    assert [len(shared.of(pair)) for pair in asked.pairs] == [96, 9]


def test_what_can_be_read_once_is_read_again(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: [nets.py:one, nets.py:two]\ndata: nets.py:stream")
    shared = SharedData()
    assert [sum(map(len, shared.of(pair))) for pair in asked.pairs] == [96, 96]


@needs("transformers")
def test_networks_share_tokens_if_their_tokenizers_make_the_same(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a", gpt2(), tokenizer())
    saved(tmp_path / "b", gpt2(seed=1), tokenizer())
    saved(tmp_path / "c", gpt2(), tokenizer(vocabulary=280))
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES))
    asked, _ = made("models: [hf:a, hf:b, hf:c, nets.py:one]\ndata: {t: {data: t.txt, length: 8}}")
    a, b, c, none = asked.pairs
    shared = SharedData()
    of_a = shared.of(a)
    assert shared.of(b) is of_a
    assert shared.of(c) is not of_a
    with pytest.raises(DataError, match="only models hf:NAME and gguf:FILE have a tokenizer"):
        shared.of(none)
