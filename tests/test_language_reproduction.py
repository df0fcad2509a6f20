"""The experiment on language models runs from text to a page, and its parts do what they say."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import resemblance as rs
from little_language import usable_torchvision
from resemblance._data.hugging_face import tokenizer_info

pytest.importorskip("reproduction", reason="the reproduction is not in a source package")
pytest.importorskip("transformers")

from reproduction.language import analysis, behaviour, changes, models, scores, tables, text
from reproduction.language.clock import Clock, OutOfTime
from reproduction.language.comparing import Comparing, found_in
from reproduction.language.networks import Networks, fingerprint
from reproduction.language.scale import FULL, QUICK
from reproduction.language.training import MASKED, filling_in, next_byte, train, windows

ROOT = Path(__file__).parent.parent


def started(module: str, *words: object) -> str:
    """What a module prints that is run as a command."""
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_quick_chain_runs_from_text_to_a_page(tmp_path):
    """In one test, as it takes minutes: pytest's workers would each run it."""
    npz, out = tmp_path / "text.npz", tmp_path / "out"
    started("reproduction.language.text", "--quick", "--to", npz)
    run = ("reproduction.language", "--quick", "--device", "cpu", "--text", npz, "--out", out)
    stopped = started(*run, "--minutes", 0)
    assert "0 minutes are over" in stopped
    assert "still missing: small/0, small/0/int8" in stopped

    trained = started(*run, "--train", "small/1", "masked/0")
    assert trained.splitlines()[0].startswith("small/1: {'learnt': 'python'")
    assert {path.stem for path in (out / "facts").glob("*")} == {"small_1", "masked_0"}
    told = started(*run, "--workers", 1)
    assert "small/1: {" not in told
    assert not list(out.glob("comparing*"))
    content = json.loads((out / "language.json").read_text())
    assert content["environment"]["quick"]
    for size in content["sizes"].values():
        assert size["text"]["python"]["held-out files"] > 0
    assert set(content["sizes"]) == {"small", "large", "masked"}
    for size in ("small", "large"):
        found = {row["kind"]: row for row in content["sizes"][size]["networks"]}
        assert {"int8", "int4", "pruned-80", "twin", "tuned", "tuned-docs", "low-rank", "distilled",
                "other text", "untrained"} <= set(found)  # fmt: skip
        close, far = (
            [found[kind]["scores"][unit][kernel]["mean"] for unit in tables.UNITS
             for kernel in scores.KERNELS]
            for kind in ("int8", "untrained")
        )  # fmt: skip
        assert min(close) > 0.99 > max(far)
        assert found["int8"]["behaviour"]["kl"] < 1e-4 < found["untrained"]["behaviour"]["kl"]
        assert len(found["twin"]["scores"]["tokens"]["product"]["score"]) == (
            QUICK.networks[size].layers + 2
        )
    ways = content["sizes"]["masked"]["networks"][0]["scores"]
    assert list(ways) == ["masked", "not masked"]
    assert list(found["twin"]["scores"]) == list(scores.units(QUICK))

    before = {path: path.stat().st_mtime_ns for path in out.glob("[fns]*/*")}
    stale = out / "scores" / "small_0_int8.json"
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "base": "another"}))
    del before[stale]
    told = started(*run)
    assert "small/0/int8: KL" in told
    assert "missing" not in told
    assert before == {p: p.stat().st_mtime_ns for p in out.glob("[fns]*/*") if p != stale}

    again = tmp_path / "again.json"
    words = ("--from", out, "--to", again, "--text", npz, "--quick")
    started("reproduction.language.analysis", *words)
    assert json.loads(again.read_text())["sizes"] == json.loads(
        (out / "language.json").read_text()
    )["sizes"]  # fmt: skip

    page, figure = tmp_path / "docs" / "language.md", tmp_path / "docs" / "figures" / "language.png"
    words = ("--results", again, "--page", page, "--figure", figure)
    started("reproduction.language.tables", *words)
    lines = page.read_text().splitlines()
    assert "![Scores against KL](figures/language.png)" in lines
    assert figure.stat().st_size > 10_000
    assert sum(line.startswith("| rounded to 8 bits |") for line in lines) == 2
    assert {"## What to do", "## Masked models", "## Where a damaged block shows"} <= set(lines)
    assert "None" not in page.read_text()
    refused = subprocess.run(
        [sys.executable, "-m", "reproduction.language.tables", "--results", again],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "quick run" in refused.stderr


# -- text -----------------------------------------------------------------------------------------


def source(folder: Path, name: str, content: str) -> text.Source:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return text.Source(path, name)


def test_held_out_text_is_of_other_folders_and_files_come_once(tmp_path):
    files = [source(tmp_path, f"p/{i % 90}/{i}.py", f"x{i} = {i}\n" * 60) for i in range(180)]
    double = source(tmp_path, "p/0/again.py", "x0  =  0\n\n" * 60)
    filling = text._Filling("python", 1.0)
    filling.take((one, one.text()) for one in [*files, double])
    learnt, held = (bytes(filling.bytes(held=held)).decode() for held in (False, True))
    folders = [
        {int(line[1:].split(" ")[0]) % 90 for line in part.split("\n") if line}
        for part in (learnt, held)
    ]
    assert folders[0].isdisjoint(folders[1])
    assert len(folders[0] | folders[1]) == 90
    assert len(folders[1]) > 0
    assert double.name not in filling.taken


def test_text_is_cut_saved_and_loaded(tmp_path):
    filling = text._Filling("c", 1e-4)
    filling.take((one, one.text()) for one in [source(tmp_path, "a/b.h", "int x;\n" * 200)])
    assert len(filling.bytes(held=False)) == 600
    arrays = {kind: np.arange(5, dtype=np.uint8) for kind in text.KINDS}
    kept = text.Text(arrays, arrays, {"c": {"files": 1}})
    kept.save(tmp_path / "text.npz")
    again = text.Text.load(tmp_path / "text.npz")
    assert again.facts == kept.facts
    assert all(np.array_equal(again.held[kind], arrays[kind]) for kind in text.KINDS)


def test_docstrings_are_what_is_left_of_a_source(tmp_path):
    long = "What it is. " * 20
    body = f'"""{long}"""\n\ndef f():\n    """Short."""\n    return 1\n' + "y = 2\n" * 20
    assert text._docstrings(source(tmp_path, "m.py", body)) == long
    assert text._docstrings(source(tmp_path, "bad.py", "def f(:\n" * 60)) is None


# -- networks -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_of_text():
    usable_torchvision()
    draw = np.random.default_rng(0)
    part = {kind: draw.integers(0, 256, 4000, dtype=np.uint8) for kind in text.KINDS}
    return text.Text(part, part, {})


@pytest.fixture
def networks(bytes_of_text, tmp_path):
    return Networks(bytes_of_text, QUICK, tmp_path, torch.device("cpu"), Clock())


def test_a_network_is_loaded_as_it_was_saved(networks, bytes_of_text, tmp_path):
    for name in ("small/1", "masked/1", "large/0/distilled"):
        made = networks(name)
        again = Networks(bytes_of_text, QUICK, tmp_path, torch.device("cpu"), Clock())
        assert fingerprint(again(name)) == fingerprint(made) == networks.facts(name)["weights"]
        ids = torch.arange(20)[None]
        assert torch.equal(again(name)(ids).logits, made(ids).logits)


def test_a_network_that_two_processes_need_is_made_once(bytes_of_text, tmp_path, monkeypatch):
    made = []
    train_it = Networks._made
    monkeypatch.setattr(Networks, "_made", lambda self, x: made.append(x) or train_it(self, x))
    both = [Networks(bytes_of_text, QUICK, tmp_path, torch.device("cpu"), Clock()) for _ in "ab"]
    with ThreadPoolExecutor(2) as pool:  # locks are of files that were opened apart
        nets = list(pool.map(lambda networks: networks("small/1"), both))
    assert made == ["small/1"]
    assert fingerprint(nets[0]) == fingerprint(nets[1])
    assert both[0].from_scratch("small") == ["small/0", "small/1", "small/c"]
    assert both[0].from_scratch("masked") == ["masked/0", "masked/1"]


def test_sizes_are_those_that_are_told():
    usable_torchvision()
    with torch.device("meta"):
        found = [models.causal(FULL, size, 0) for size in ("small", "large")]
        found.append(models.masked(FULL, 0))
    millions = [sum(w.numel() for w in net.parameters()) / 1e6 for net in found]
    assert millions == pytest.approx([14.4, 59.4, 9.1], abs=0.1)
    assert [len(models.projections(net)) for net in found] == [8 * 4, 12 * 4, 6 * 4]


def test_rounding_has_a_scale_an_output_and_may_keep_to_one_block():
    usable_torchvision()
    for net in (models.causal(QUICK, "small", 0), models.masked(QUICK, 0)):
        few = changes.rounded(net, 3)
        for name, (module, axis) in models.projections(few).items():
            before = models.projections(net)[name][0].weight.detach()
            for one, was in zip(
                module.weight.detach().unbind(axis), before.unbind(axis), strict=True
            ):
                assert len(one.unique()) <= 7
                assert float(one.abs().max()) == pytest.approx(float(was.abs().max()))
        alone = changes.rounded(net, 3, block=0)
        for name, (module, _) in models.projections(alone).items():
            same = torch.equal(module.weight, models.projections(net)[name][0].weight)
            assert same == (models.block_of(name) != 0)


def test_pruning_takes_the_smallest_of_each_matrix_of_a_copy():
    usable_torchvision()
    net = models.causal(QUICK, "small", 0)
    for name, (module, _) in models.projections(changes.pruned(net, 0.5)).items():
        before = models.projections(net)[name][0].weight.detach()
        gone = module.weight == 0
        assert float(gone.double().mean()) == pytest.approx(0.5, abs=0.01)
        assert float(before[gone].abs().max()) <= float(before[~gone].abs().min())
        assert bool((before != 0).all())


def test_an_adapter_alone_is_trained_and_then_merged(bytes_of_text):
    net = models.causal(QUICK, "small", 0)
    before = {name: w.detach().clone() for name, w in net.named_parameters()}
    learnt = torch.from_numpy(bytes_of_text.learnt["c"].copy())
    touched = {f"{name}.weight" for name in models.projections(net)}
    with changes.adapted(net, 2) as weights:
        assert len(weights) == 2 * len(touched)
        train(
            net, learnt, next_byte, steps=3, rate=0.1, batch=4, context=16, seed=0, clock=Clock(),
            weights=weights,
        )  # fmt: skip
        ids = torch.arange(20)[None]
        adapted = net(ids).logits.detach()
    assert torch.allclose(net(ids).logits, adapted, atol=1e-5)
    for name, weight in net.named_parameters():
        difference = (weight.detach() - before[name]).double()
        assert bool(difference.any()) == (name in touched), name
        if name in touched:
            assert int(torch.linalg.matrix_rank(difference, rtol=1e-4)) <= 2
        assert weight.requires_grad


def test_tokens_are_bytes_and_the_mask_comes_after_them():
    usable_torchvision()
    known = models.tokenizer()
    written = "def f(x):\n\treturn 'é' # \x00\x7f\xad"
    assert known(written)["input_ids"] == list(written.encode())
    assert tokenizer_info(known).mask == models.MASK == 256
    assert tokenizer_info(known).special == {256}


# -- training and behaviour -----------------------------------------------------------------------


class Fixed(nn.Module):
    """Predicts the same distribution everywhere, and keeps what it was shown."""

    def __init__(self, p: torch.Tensor) -> None:
        super().__init__()
        self.logits, self.shown = nn.Parameter(p.log()), []

    def forward(self, input_ids):
        self.shown.append(input_ids)
        return type("Out", (), {"logits": self.logits.expand(*input_ids.shape, -1)})()


def test_training_stops_with_the_clock_and_learns_frequencies():
    text_of_two = torch.tensor([65, 65, 65, 66] * 100, dtype=torch.uint8)
    how = {"steps": 300, "rate": 0.1, "batch": 8, "context": 16, "seed": 0}
    net = Fixed(torch.full((256,), 1 / 256))
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert train(net, text_of_two, next_byte, clock=Clock(), **how) == pytest.approx(
        entropy, abs=0.05
    )
    with pytest.raises(OutOfTime):
        train(net, text_of_two, next_byte, clock=Clock(minutes=0), **how)


def test_windows_are_successive_bytes():
    rows = windows(torch.arange(200, dtype=torch.uint8), 30, 17, torch.Generator().manual_seed(0))
    assert rows.shape == (30, 17)
    assert bool((rows.diff(dim=1) == 1).all())
    assert len(rows[:, 0].unique()) > 10


def test_bytes_to_fill_in_are_mostly_masked():
    net = Fixed(torch.full((257,), 1 / 257))
    rows = torch.full((64, 201), 65)
    loss = filling_in(0)(net, rows).detach()
    assert float(loss) == pytest.approx(np.log(257), abs=1e-4)
    shown = net.shown[0]
    assert float((shown == 256).double().mean()) == pytest.approx(0.8 * MASKED, abs=0.01)
    other = (shown != 256) & (shown != 65)
    assert float(other.double().mean()) == pytest.approx(0.1 * MASKED, abs=0.005)


@pytest.mark.parametrize("predict", [behaviour.next_bytes, behaviour.filled_in()])
def test_differences_are_those_of_the_distributions(predict):
    p, q = (torch.full((257,), 1e-9).double() for _ in range(2))
    p[65], p[66], q[65], q[66] = 0.75, 0.25, 0.25, 0.75
    p, q = p / p.sum(), q / q.sum()
    rows = torch.full((70, 33), 65)
    found = behaviour.differences(Fixed(p), Fixed(q), rows, predict)
    assert found["kl"] == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert found["disagreement"] == 1
    assert found["loss"] == pytest.approx(-np.log(0.25), rel=1e-5)
    same = behaviour.differences(Fixed(p), Fixed(p), rows, predict)
    assert (same["kl"], same["disagreement"]) == (0, 0)


def test_what_is_filled_in_was_masked():
    rows = torch.arange(40).expand(3, -1)
    net = Fixed(torch.full((257,), 1 / 257))
    _, truth = behaviour.filled_in()(net, rows)
    assert bool((net.shown[0].gather(1, truth) == 256).all())  # byte i stands at place i
    assert int((net.shown[0] == 256).sum()) == truth.numel() == 3 * 6


def test_held_out_sequences_do_not_overlap():
    held = (np.arange(1000) // 10).astype(np.uint8)
    rows = behaviour.held_out(held, 100, 10)
    assert sorted(rows[:, 0].tolist()) == list(range(100))
    assert bool((rows == rows[:, :1]).all())
    with pytest.raises(ValueError, match="gather more text"):
        behaviour.held_out(held, 101, 10)


# -- scores and answers ---------------------------------------------------------------------------


def test_networks_of_other_depths_are_compared_at_relative_depths():
    x = [torch.randn(64, 5, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    deep = rs.record_arrays({f"h.{i}": one for i, one in enumerate(x)}, data_id="x")
    flat = rs.record_arrays({f"h.{i}": x[2 * i] for i in range(3)}, data_id="x")
    found = rs.compare(deep, scores.at_depths_of(deep, flat), kernel="features").by_layer()[0]
    assert found[[0, 2, 4]] == pytest.approx([1, 1, 1])
    assert max(found[[1, 3]]) < 0.5
    assert scores.at_depths_of(deep, deep) is deep


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_comparing_in_another_process_says_the_same(workers, tmp_path, capsys):
    draw = torch.Generator().manual_seed(0)
    x, y, g = (torch.randn(64, 5, generator=draw) for _ in range(3))
    base, own = (
        {way: rs.record_arrays({"h": some}, {"h": g}, data_id="x") for way in ("tokens", "mean")}
        for some in (x, x + 0.1 * y)
    )
    found = {}
    with Comparing(workers, tmp_path) as comparing:
        for name, reps in (("s/0", base), ("s/0/int8", own)):
            comparing.begin(name, "s/0", base, reps, functools.partial(found.__setitem__, name))
        bare = {way: rs.record_arrays({"h": x}, data_id="x") for way in ("tokens", "mean")}
        comparing.begin("s/0/ruin", "s/0", base, bare, functools.partial(found.__setitem__, "ruin"))
        comparing.collect()
    assert found == {"s/0": found_in(base, base), "s/0/int8": found_in(base, own)}
    assert list(found["s/0"]["scores"]) == ["tokens", "mean"]
    assert list(found["s/0"]["concentration"]) == ["tokens"]
    assert "s/0/ruin is left out: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_concentration_is_that_of_squared_norms():
    f = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    g = torch.zeros(200, 3)
    g[:, 0], g[:2, 0] = 1.0, 10.0  # one in a hundred is ten times as long
    found = scores.concentration(rs.record_arrays({"h": f}, {"h": g}, data_id="x"))
    assert found["top"] == pytest.approx([200 / 398], rel=1e-5)
    assert found["n_eff"] == pytest.approx([398**2 / (2 * 10_000 + 198)], rel=1e-5)


def test_rank_correlation_is_that_of_scipy_with_ties_too():
    draw = np.random.default_rng(0)
    for _ in range(5):
        a, b = draw.integers(0, 6, (2, 20)).astype(float)
        assert analysis.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert analysis.spearman(np.ones(5), np.arange(5.0)) is None


def test_a_difference_has_the_error_of_what_both_do_not_share():
    draw = np.random.default_rng(0)
    shared, own = draw.normal(size=(2, 30))
    each = np.array([(own.sum() - x) / 29 for x in own])  # means with one left out
    error = analysis.difference_error(list(shared + each), list(shared))
    assert error == pytest.approx(own.std(ddof=1) / 30**0.5)
    assert analysis.difference_error([0.1, 0.2], None) is None


def test_the_first_changed_layer_lies_beyond_error():
    one = {
        "layers": ["stem", "a", "b", "c"],
        "score": [1.0, 0.9995, 0.9, 0.5],
        "stderr": [0.0, 0.0, 0.05, 0.01],
    }
    row = {"kind": "int4", "scores": {"tokens": {"features": one}}}
    found = analysis._where(row, "tokens", "features")
    assert (found["first"], found["last"], found["largest step"]) == ("c", "c", "c")
    assert found["lost there"] == pytest.approx(0.4)


def test_sizes_that_were_not_measured_again_stay_with_all_that_is_known_of_them():
    def part(day, *sizes):
        return {
            "environment": {"date": day},
            "environments": [{"date": day}],
            "training": {f"{size}/0": {"seconds": day} for size in sizes},
            "sizes": {size: {"text": day} for size in sizes},
        }

    found = analysis.together(part(1, "small", "large"), part(2, "large", "masked"))
    assert list(found["sizes"].items()) == [
        ("small", {"text": 1}), ("large", {"text": 2}), ("masked", {"text": 2}),
    ]  # fmt: skip
    assert {name: one["seconds"] for name, one in found["training"].items()} == {
        "small/0": 1, "large/0": 2, "masked/0": 2,
    }  # fmt: skip
    assert found["environments"] == [{"date": 2}, {"date": 1}]
    assert analysis.together(part(1, "large"), part(2, "large")) == part(2, "large")
