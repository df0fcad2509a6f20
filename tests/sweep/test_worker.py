"""What a worker does with a pair: record it once, and outlive whatever goes wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import resemblance as rs
import shards
from noting_networks import notes
from resemblance._model import compiled_capture
from resemblance.sweep.worker import Place, Worker


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
    assert (bad.state, bad.error) == ("failed", "ValueError: no luck with this one")
    assert "in bad\n" in bad.trace
    assert none.error.startswith("nets.py has no function 'none'")
    assert (bad.again, none.again) == (True, False)


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
    elsewhere = Place(Path("/nowhere/at/all"), place.results)
    found = Worker(elsewhere).done(asked.pairs[0])
    assert "needs a file system that all of them have" in found.error


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
    there = set(compiled_capture._programs)
    worker = Worker(place)
    for pair in asked.pairs:
        options = {**pair.options, "batch_size": 32, "compile": True}
        done = worker.done(replace(pair, options=options))
        assert (done.state, done.warnings) == ("recorded", ())
        assert place.results.holds(pair)
    assert len(set(compiled_capture._programs) - there) == 1
