"""Flips against the networks' own outputs, in float64."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import resemblance as rs
from optional_libraries import usable_torchvision
from resemblance.errors import DataError


def network(seed: int, outputs: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def noisy(net: nn.Module, scale: float) -> nn.Module:
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(scale * torch.randn_like(weight))
    return net


@pytest.mark.parametrize("samples", [300, 3000])
def test_flips_are_those_of_the_networks(samples: int) -> None:
    x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(samples) % 4
    a, b = network(0), noisy(network(0), 0.1)
    found = rs.flips(rs.record(a, (x, y), blocks=16), rs.record(b, (x, y), blocks=16))
    with torch.no_grad():
        p, q = (net(x).double().softmax(1) for net in (a, b))
    kept = set(found.index) if samples > 2048 else None  # blocks of some samples
    differ = (p.argmax(1) != q.argmax(1)).nonzero().flatten().tolist()
    if kept is None:
        assert sorted(found.index) == differ
        assert found.samples == samples
    assert set(found.index) <= set(differ)
    assert found.index
    rows = list(found.index)
    one, two = p[rows], q[rows]
    at = torch.arange(len(rows))
    assert found.class_a == tuple(one.argmax(1).tolist())
    assert found.class_b == tuple(two.argmax(1).tolist())
    assert found.label == tuple(y[rows].tolist())
    assert found.confidence_a == pytest.approx(one.amax(1).tolist(), abs=1e-5)
    assert found.confidence_b == pytest.approx(two.amax(1).tolist(), abs=1e-5)
    margin = one.amax(1) - one[at, two.argmax(1)]
    assert found.margin_a == pytest.approx(margin.tolist(), abs=1e-5)
    kl = (one * (one.log() - two.log())).sum(1)
    assert found.kl == pytest.approx(kl.tolist(), abs=1e-5)
    assert list(found.kl) == sorted(found.kl, reverse=True)
    assert set(found.position) == {-1}
    if kept is None:
        every = (p * (p.log() - q.log())).sum(1).numpy()
        expected = np.quantile(every, [0.5, 0.9, 0.99, 1])
        assert found.kl_quantiles == pytest.approx(expected, abs=1e-5)
    right = one.argmax(1) == y[rows], two.argmax(1) == y[rows]
    worse, better = int((right[0] & ~right[1]).sum()), int((~right[0] & right[1]).sum())
    assert found.directions.get("right to wrong", 0) == worse
    assert found.directions.get("wrong to right", 0) == better
    test = scipy.stats.binomtest(worse, worse + better)
    assert found.mcnemar == pytest.approx(test.pvalue)
    ties = (margin < 0.1) & (two.amax(1) - two[at, one.argmax(1)] < 0.1)
    assert found.near_tie == tuple(ties.tolist())
    assert str(len(rows)) in found.summary()


def test_a_summary_without_near_ties_says_none():
    z = torch.tensor([[4.0, 0.0, 0.0]]).repeat(60, 1)
    other = torch.where(torch.arange(60)[:, None] < 5, z.roll(1, 1), z)
    one, two = (rs.record_arrays(outputs=x, data_id="x") for x in (z, other))
    assert "5 of 60 samples; none of these are near-ties." in rs.flips(one, two).summary()


def test_labels_of_a_multi_label_network_flip_one_by_one() -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    y = (torch.rand(200, 5, generator=torch.Generator().manual_seed(1)) < 0.5).long()
    a, b = network(0, 5), noisy(network(0, 5), 0.2)
    reps = [rs.record(net, (x, y), logits="sigmoid") for net in (a, b)]
    found = rs.flips(*reps)
    with torch.no_grad():
        z, w = a(x), b(x)
    rows, labels = ((z > 0) != (w > 0)).nonzero(as_tuple=True)
    frame = found.to_frame()
    which = frame[["class_a", "class_b"]].max(axis=1)
    assert sorted(zip(frame["index"], which, strict=True)) == sorted(
        zip(rows.tolist(), labels.tolist(), strict=True)
    )
    predicted = frame.class_a >= 0
    confident = frame.confidence_a > 0.5
    assert (predicted == confident).all()


def test_tokens_are_numbered_by_sequence_and_position() -> None:
    usable_torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    a, b = (transformers.GPT2LMHeadModel(config) for _ in range(2))
    ids = torch.randint(1, 50, (300, 16), generator=torch.Generator().manual_seed(0))
    reps = [rs.record(net.eval(), ids, tokens=4, block=32, gradients=False) for net in (a, b)]
    found = rs.flips(*reps)
    with torch.no_grad():
        one, two = (net(ids).logits for net in (a, b))
    at = list(found.index), list(found.position)
    assert len(set(found.position)) == 16
    assert found.class_a == tuple(one.argmax(-1)[at].tolist())
    assert found.class_b == tuple(two.argmax(-1)[at].tolist())
    after = torch.cat([ids[:, 1:], torch.full((300, 1), -1)], 1)  # nothing follows the last
    assert found.label == tuple(after[at].tolist())


def test_without_numbers_the_index_is_not_known() -> None:
    x = torch.randn(200, 6)
    x[3] = torch.nan
    reps = [rs.record(network(seed), x, on_bad="skip") for seed in (0, 1)]
    assert set(rs.flips(*reps).index) == {-1}


def test_written_as_csv(tmp_path: Path) -> None:
    x = torch.randn(100, 6)
    found = rs.flips(rs.record(network(0), x), rs.record(network(1), x))
    with found.save_csv(tmp_path / "flips.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == list(found.index)
    assert [float(row["kl"]) for row in rows] == list(found.kl)
    assert rows[0]["near_tie"] in ("True", "False")


def test_classes_have_the_names_that_are_given() -> None:
    x = torch.randn(200, 6)
    reps = [rs.record(network(seed), x, gradients=False) for seed in (0, 1)]
    plain, named = rs.flips(*reps), rs.flips(*reps, classes=["ant", "bee", "cow", "dog"])
    assert set(plain.name_a + plain.name_b) == {""}
    assert named.class_a == plain.class_a
    words = ("ant", "bee", "cow", "dog")
    assert named.name_a == tuple(words[i] for i in plain.class_a)
    assert named.name_b == tuple(words[i] for i in plain.class_b)
    for given in (["ant"], "abcd"):
        with pytest.raises(DataError, match="`classes` must be 4 names"):
            rs.flips(*reps, classes=given)


def test_classes_have_the_names_of_the_models_configuration(tmp_path: Path) -> None:
    usable_torchvision()
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 16, "image_size": 8, "patch_size": 4}
    x = torch.randn(100, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    reps = []
    for i, names in enumerate(({0: "cat", 1: "dog", 2: "owl"}, None)):
        torch.manual_seed(i)
        labels = {"num_labels": 3} if names is None else {"id2label": names}
        config = transformers.ViTConfig(**shape, **more, **labels)
        net = transformers.ViTForImageClassification(config).eval()
        net.classifier.weight.data *= 100
        reps.append(rs.record(net, x, gradients=False))
    assert reps[0].model.classes == ("cat", "dog", "owl")
    assert reps[1].model.classes is None  # LABEL_0 and so on
    loaded = rs.load(reps[0].save(tmp_path / "a.rsm"))
    assert loaded == reps[0]
    for pair in ((loaded, reps[1]), (reps[1], loaded)):
        found = rs.flips(*pair)
        assert found.index
        assert found.name_b == tuple(("cat", "dog", "owl")[i] for i in found.class_b)


def test_the_command_writes_names_of_classes(run: Any, refused: Any, folder: Path) -> None:
    x = torch.randn(200, 6)
    for seed, name in enumerate("ab"):
        rs.record(network(seed), x, gradients=False, name=name).save(folder / f"{name}.rsm")
    (folder / "names.txt").write_text("ant\nbee\ncow\ndog\n")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    how = ("--flips", "f.csv", "--classes", "names.txt")
    assert run("compare", "a.rsm", "b.rsm", *how)[0] == 0
    rows = list(csv.DictReader((folder / "f.csv").read_text().splitlines()))
    assert {row["name_a"] for row in rows} <= {"ant", "bee", "cow", "dog"}
    assert all(["ant", "bee", "cow", "dog"][int(row["class_a"])] == row["name_a"] for row in rows)
    (folder / "f.csv").unlink()
    assert run("check", "a.rsm", "b.rsm", "--max-disagreement", 0.1, *how)[0] == 1
    assert "ant" in (folder / "f.csv").read_text()
    words = ("compare", "a.rsm", "b.rsm")
    assert "give both" in refused(*words, "--classes", "names.txt")
    assert "not UTF-8 text" in refused(*words, "--flips", "g.csv", "--classes", "bytes.txt")
