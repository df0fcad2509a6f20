"""A pass that is cut short anywhere goes on where its checkpoint is, and ends the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import little_language
import resemblance as rs
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.recording import checkpoints
from resemblance.representation.file_format import load_with_checkpoint

TOTAL = 1100
X = torch.randn(TOTAL, 12, generator=torch.Generator().manual_seed(0))
OPTIONS = {"block": 50, "blocks": 9, "buckets": 128, "name": "net", "progress": False}


def net(classes=4):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 9), nn.Linear(9, classes))


class CutError(Exception):
    pass


class Images(Dataset):
    """Samples that can be had so many times, each after a moment."""

    def __init__(self, limit=10**9, wait=0.0, bad=()):
        self.left, self.wait, self.bad, self.given = limit, wait, bad, 0

    def __len__(self):
        return TOTAL

    def __getitem__(self, i):
        self.left -= 1
        self.given += 1
        if self.left < 0:
            raise CutError
        time.sleep(self.wait)
        return X[i] * (torch.nan if i in self.bad else 1)


class Stream(IterableDataset):
    def __init__(self, limit=TOTAL):
        self.limit = limit

    def __iter__(self):
        for i in range(TOTAL):
            if i >= self.limit:
                raise CutError
            yield X[i]


def assert_same(a, b):
    """All that is compared, to round-off; sums are added in another order."""
    assert (a.samples, a.block_sizes, a.block_numbers) == (
        b.samples,
        b.block_sizes,
        b.block_numbers,
    )
    assert (a.block_hashes, a.label_hashes) == (b.block_hashes, b.label_hashes)
    assert (a.data, a.model, a.settings) == (b.data, b.model, b.settings)
    for one, two in zip(a, b, strict=True):
        for kind in one.kinds:
            x, y = one.recorded(kind), two.recorded(kind)
            assert x.trace == pytest.approx(y.trace, rel=1e-6)
            # the network itself rounds as it is batched
            torch.testing.assert_close(x.norms, y.norms, equal_nan=True, rtol=1e-5, atol=1e-9)
            torch.testing.assert_close(x.sketch.table, y.sketch.table, rtol=1e-4, atol=1e-5)
            # correlations are kept in 16 bits, of which round-off may move the last
            _close(one.blocks(kind), two.blocks(kind), 1e-4)
            _close(one.buckets(kind), two.buckets(kind), 1e-5)
            assert x.sums is None
            assert y.sums is None
    assert (a.outputs is None) == (b.outputs is None)
    if a.embeddings is not None:
        torch.testing.assert_close(a.embeddings.vectors, b.embeddings.vectors, rtol=0, atol=1e-3)
    elif a.outputs is not None:
        assert rs.behaviour(a, b).kl < 1e-7


def _close(one, two, tolerance):
    torch.testing.assert_close(one, two, rtol=0, atol=tolerance * float(one.abs().max()))


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every block, whatever it costs."""
    monkeypatch.setattr(checkpoints, "_MIN_PASS_TO_WRITE_TIME", 0)


@pytest.fixture(scope="module")
def whole():
    return rs.record(net(), Images(), **OPTIONS)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("cuts", "batch_size"),
    [
        ((3,), 50),
        ((52,), 20),
        ((400, 560), 50),
        ((400, 560), 130),
        ((100, 100, 100, 100, 300), 20),
        ((100, 100, 100, 100, 300), 130),
        ((1099,), 50),
    ],
)
def test_a_pass_that_is_cut_short_goes_on(tmp_path, whole, cuts, batch_size):
    file = (tmp_path / "c", 0)
    for limit in cuts:
        with pytest.raises((CutError, DataError)):
            rs.record(net(), Images(limit), batch_size=batch_size, checkpoint=file, **OPTIONS)
    recorded = load_with_checkpoint(file[0])[0].samples if file[0].exists() else 0
    assert recorded or sum(cuts) < 100
    last = Images()
    found = rs.record(net(), last, batch_size=batch_size, checkpoint=file, **OPTIONS)
    assert_same(whole, found)
    # of what was recorded, eight blocks at most are read again; and the trial's two samples
    assert last.given <= 2 + TOTAL - recorded + min(recorded, 8 * 50)


@pytest.mark.usefixtures("often")
def test_without_an_interruption_and_once_more_when_it_is_done(tmp_path, whole):
    file = (tmp_path / "c", 0)
    assert_same(whole, rs.record(net(), Images(), checkpoint=file, **OPTIONS))
    again = Images()
    assert_same(whole, rs.record(net(), again, checkpoint=file, **OPTIONS))
    assert again.given <= 2 + 8 * 50  # the trial, and the blocks that are read again


@pytest.mark.usefixtures("often")
def test_a_stream_is_read_again_and_says_so(tmp_path):
    one = rs.record(net(), Stream(), **OPTIONS)
    with pytest.raises(CutError):
        rs.record(net(), Stream(700), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    with pytest.warns(ResemblanceWarning, match="read again from the start, and the 1. blocks"):
        two = rs.record(net(), Stream(), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    assert_same(one, two)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("limit", [260, 900])
def test_skipped_samples_are_counted_once(tmp_path, limit):
    how = {**OPTIONS, "on_bad": "skip"}
    bad = [*range(0, TOTAL, 7)]
    one = rs.record(net(), Images(bad=bad), **how)
    with pytest.raises((CutError, DataError)):
        rs.record(net(), Images(limit, bad=bad), checkpoint=(tmp_path / "c", 0), **how)
    assert_same(one, rs.record(net(), Images(bad=bad), checkpoint=(tmp_path / "c", 0), **how))
    assert one.data.skipped == len(bad)


@pytest.mark.usefixtures("often")
def test_shards_and_accumulators(tmp_path, whole):
    parts = []
    for i in range(2):
        file = (tmp_path / f"c{i}", 0)
        with pytest.raises((CutError, DataError)):
            rs.record(net(), Images(300), shard=(i, 2), checkpoint=file, **OPTIONS)
        parts.append(rs.record(net(), Images(), shard=(i, 2), checkpoint=file, **OPTIONS))
        assert parts[-1].mergeable
    merged = rs.merge(parts)
    assert_same(whole, replace(merged, data=replace(merged.data, shards=((0, 1),))))
    with pytest.raises(MismatchError, match="different recording: shard was"):
        rs.record(net(), Images(), shard=(0, 2), checkpoint=tmp_path / "c1", **OPTIONS)


@pytest.mark.usefixtures("often")
def test_tokens(tmp_path):
    model = little_language.gpt2()
    ids = torch.randint(1, 300, (160, 20), generator=torch.Generator().manual_seed(0))
    how = {"tokens": 3, "block": 20, "blocks": 4, "name": "gpt", "progress": False}
    one = rs.record(model, ids, **how)

    class Halfway(Dataset):
        left = 90

        def __len__(self):
            return len(ids)

        def __getitem__(self, i):
            self.left -= 1
            if self.left < 0:
                raise CutError
            return ids[i]

    with pytest.raises((CutError, DataError)):
        rs.record(model, Halfway(), checkpoint=(tmp_path / "c", 0), **how)
    two = rs.record(model, ids, checkpoint=(tmp_path / "c", 0), **how)
    assert_same(one, two)
    assert torch.equal(one.rows.position, two.rows.position)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seed": 5}, "setting seed was 0 and is now 5"),
        ({"beta": 0.7}, "setting beta"),
        ({"layers": "0"}, "layers was"),
        ({"data_id": "x"}, "data_id was None and is now 'x'"),
    ],
)
def test_another_pass_is_refused(tmp_path, changed, what):
    with pytest.raises((CutError, DataError)):
        rs.record(net(), Images(300), checkpoint=(tmp_path / "c", 0), **OPTIONS)
    with pytest.raises(MismatchError, match=what):
        rs.record(net(), Images(), checkpoint=(tmp_path / "c", 0), **{**OPTIONS, **changed})


FUNCTIONS = {  # of one name, each pair of which computes something else
    "call": (lambda model, x: model(x), lambda model, x: model(2 * x)),
    "logits": (lambda z: z, lambda z: z[:, :3]),
    "pool": (lambda x: x.flatten(1), lambda x: x.flatten(1)[:, :5]),
    "target": (lambda z, _: z.logsumexp(1), lambda z, _: z.square().sum(1)),
}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("option", FUNCTIONS)
def test_a_function_that_changed_is_refused(tmp_path, whole, option):
    file, (one, two) = (tmp_path / "c", 0), FUNCTIONS[option]
    with pytest.raises((CutError, DataError)):
        rs.record(net(), Images(300), checkpoint=file, **OPTIONS, **{option: one})
    for other in (two, None):
        changed = {} if other is None else {option: other}
        with pytest.raises(MismatchError, match=rf"{option} was 'function .*' and is now"):
            rs.record(net(), Images(), checkpoint=file, **OPTIONS, **changed)
    found = rs.record(net(), Images(), checkpoint=file, **OPTIONS, **{option: one})
    assert_same(found, rs.record(net(), Images(), **OPTIONS, **{option: one}))


@pytest.mark.usefixtures("often")
def test_a_different_base_for_outputs_is_refused(tmp_path, whole):
    base = rs.record(net(9), Images(), **OPTIONS)
    with pytest.raises((CutError, DataError)):
        rs.record(net(), Images(300), checkpoint=(tmp_path / "c", 0), outputs_of=whole, **OPTIONS)
    with pytest.raises(MismatchError, match="outputs_of was"):
        rs.record(net(), Images(), checkpoint=(tmp_path / "c", 0), outputs_of=base, **OPTIONS)


@pytest.mark.usefixtures("often")
def test_other_weights_and_other_samples_are_refused(tmp_path):
    file = (tmp_path / "c", 0)
    with pytest.raises((CutError, DataError)):
        rs.record(net(), Images(300), checkpoint=file, **OPTIONS)
    other = net()
    other[0].weight.data[0, 0] += 1
    with pytest.raises(MismatchError, match="model weights was"):
        rs.record(other, Images(), checkpoint=file, **OPTIONS)
    with pytest.raises(MismatchError, match="first samples was"):
        rs.record(net(), X + 1, checkpoint=file, **OPTIONS)


def test_small_data_are_recorded_in_one_go(tmp_path):
    found = rs.record(net(), X[:300], checkpoint=tmp_path / "c", name="net")
    assert found == rs.record(net(), X[:300], name="net") or found.layers[0].features.whole
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("first", [7, 98])
def test_writing_takes_a_fiftieth_of_the_time_at_most(tmp_path, monkeypatch, first):
    """On a clock of our own: a batch takes one second, a checkpoint two, as is expected or not."""
    now, written = [0.0], []
    monkeypatch.setattr(checkpoints.Accumulators, "nbytes", 1e8 if first == 98 else 0)
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            now[0] += 1.0
            return self.net(x)

    def write(self, progress):
        now[0] += 2.0
        written.append(now[0])

    monkeypatch.setattr(checkpoints.CheckpointFiles, "write", write)
    rs.record(Slow(), X.repeat(10, 1), batch_size=50, checkpoint=(tmp_path / "c", 7), **OPTIONS)
    apart = np.diff(written)
    assert first <= written[0] <= first + 2 + 5  # and what the trial took
    assert len(apart)
    assert apart.min() >= 7
    assert 2 * len(apart) / apart.sum() <= 1 / 50
    if first == 98:  # as was expected of the first
        assert 2 * len(written) / written[-1] <= 1 / 50


# -- kill -9 ------------------------------------------------------------------------------------


def killed_again_and_again(folder, moments):
    """In a process of its own: forks that record, the first of each two killed after a moment."""
    torch.set_num_threads(1)
    checkpoints._MIN_PASS_TO_WRITE_TIME = 0

    def recording(place):
        child = os.fork()
        if not child:
            images = Images(wait=0.0005)
            found = rs.record(net(), images, checkpoint=(place / "c", 0), **OPTIONS)
            found.save(place / "done.rsm")
            os._exit(0)
        return child

    rs.record(net(), X, gradients=False, **OPTIONS)  # so that everything is imported
    (Path(folder) / "unharmed").mkdir()
    began = time.monotonic()
    os.waitpid(recording(Path(folder) / "unharmed"), 0)
    long = time.monotonic() - began
    for i in range(moments):
        place = Path(folder) / str(i)
        place.mkdir()
        first = recording(place)
        time.sleep(long * (i + 0.5) / moments)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        (place / "killed").write_text(str((place / "c").exists()))
        assert os.waitpid(recording(place), 0)[1] == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_twenty_moments_it_ends_the_same_each_time(tmp_path, whole):
    code = f"import {__name__} as t; t.killed_again_and_again({str(tmp_path)!r}, 20)"
    path = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    assert run.returncode == 0
    for i in range(20):
        assert_same(whole, rs.load(tmp_path / str(i) / "done.rsm"))
    seen = {(tmp_path / str(i) / "killed").read_text() for i in range(20)}
    assert "True" in seen  # some had a checkpoint when they were killed
