"""Many copies of one network: the table, its order, its figure and its command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import resemblance as rs
from resemblance.errors import DataError, MismatchError

X = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))


def network(noise: float = 0.0, classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, classes))
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(noise * torch.randn_like(weight))
    return net


@pytest.fixture(scope="module")
def base() -> rs.Representation:
    return rs.record(network(), X, name="base")


@pytest.fixture(scope="module")
def others() -> list[rs.Representation]:
    return [
        rs.record(network(0.1), X, name="far"),
        rs.record(network(classes=4), X, name="other-classes"),
        rs.record(network(0.001), X, name="near"),
        rs.record(network(0.01), X, name="features-only", gradients=False),
    ]


def test_rows_hold_what_each_comparison_holds(
    base: rs.Representation, others: list[rs.Representation]
) -> None:
    found = rs.copies(base, others)
    assert found.name == ("near", "features-only", "far", "other-classes")
    assert (found.base, found.samples, found.sequences) == ("base", 400, None)
    by_name = {rep.name: rep for rep in others}
    for i, name in enumerate(found.name):
        full = rs.compare(base, by_name[name])
        assert (found.features[i], found.features_stderr[i]) == full.features.mean()
        if full.gradients is None:
            assert math.isnan(found.gradients[i])
        else:
            assert (found.gradients[i], found.gradients_stderr[i]) == full.gradients.mean()
        if full.behaviour is None:
            assert math.isnan(found.disagreement[i])
            continue
        assert found.disagreement[i] == full.behaviour.disagreement
        assert found.kl[i] == full.behaviour.kl
        drift = rs.coordinates(base, by_name[name])
        assert found.decibels[i] == drift.decibels[0].min()
        assert found.layer[i] == drift.layers[int(drift.decibels[0].argmin())]
    assert found.verdict == ("", "", "", "")


def test_each_copy_gets_a_verdict_where_thresholds_are_given(
    base: rs.Representation, others: list[rs.Representation]
) -> None:
    near, far = others[2], others[0]
    found = rs.copies(base, [far, near], max_disagreement=0.05, min_db=30)
    expected = [rs.check(base, rep, max_disagreement=0.05, min_db=30).status for rep in (near, far)]
    assert list(found.verdict) == expected
    assert set(expected) > {"failed"}


def test_what_cannot_be_answered(base: rs.Representation, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no copies to compare"):
        rs.copies(base, [])
    other = rs.record(network(), X[:300], name="fewer")
    with pytest.raises(MismatchError, match="'fewer' was recorded on different samples than"):
        rs.copies(base, [other])
    path = other.save(tmp_path / "fewer.rsm")
    with pytest.raises(MismatchError, match=rf"{path} was recorded on different samples than"):
        rs.copies(base, [path])


def test_the_figure_has_the_nearest_by_gradients_on_top(
    base: rs.Representation, others: list[rs.Representation]
) -> None:
    found = rs.copies(base, others)
    scores, shares = found.plot().axes
    names = [label.get_text() for label in scores.get_yticklabels()]
    assert names[0] == "features-only"  # without gradients, at the bottom
    assert names[-1] == "near"
    features, gradients = ([bar.get_width() for bar in bars] for bars in scores.containers[1::2])
    rows = [found.name.index(name) for name in names]
    assert features == [found.features[row] for row in rows]
    assert gradients[1:] == [found.gradients[row] for row in rows][1:]
    texts = {round(text.get_position()[1]): text.get_text() for text in shares.texts}
    assert texts[names.index("other-classes")] == "not comparable"
    share = found.disagreement[found.name.index("far")]
    assert texts[names.index("far")] == f"{100 * share:.1f} %"


def test_outputs_alone_have_no_features_to_compare(base: rs.Representation) -> None:
    traced = rs.record(torch.jit.trace(network(0.01), X[:2]), X, gradients=False, name="traced")
    plain = rs.record(network(0.02), X, gradients=False, name="plain")
    found = rs.copies(base, [plain, traced])
    assert found.name == ("traced", "plain")
    assert math.isnan(found.features[0])
    assert found.features[1] > 0.9
    scores, _ = found.plot().axes
    assert [label.get_text() for label in scores.get_yticklabels()] == ["plain", "traced"]
    assert [text.get_text() for text in scores.get_legend().texts] == ["features (centred CKA)"]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_command_prints_a_table(
    base: rs.Representation,
    others: list[rs.Representation],
    run: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for rep in (base, *others):
        rep.save(folder / f"{rep.name}.rsm")
    files = [f"{rep.name}.rsm" for rep in others]
    limits = ("--max-disagreement", 0.05, "--min-db", 30)
    status, out, err = run("copies", "base.rsm", *files, *limits, "--png", "c.png")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    rows = {line.split()[0]: line for line in lines if line}
    assert "passed" in rows["near"] or "undecided" in rows["near"]
    assert "failed" in rows["far"]
    assert rows["other-classes"].endswith("not comparable")
    assert (folder / "c.png").stat().st_size > 10_000
    status, out, err = run("copies", "base.rsm", *files, "--json", "-")
    assert json.loads(out)["name"] == ["near", "features-only", "far", "other-classes"]


def test_a_warning_is_said_once_with_the_copies_that_it_is_about() -> None:
    """Few samples are of all copies, a few that dominate are of some."""
    few = [rs.record(network(0.1 * i), X[:40], name=f"net{i}") for i in range(3)]
    with pytest.warns(UserWarning, match="only 40 samples") as said:
        rs.copies(few[0], few[1:], min="features=0.5")
    assert [str(w.message)[:4] for w in said] == ["only"]
    x = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    heavy = torch.where(torch.arange(600)[:, None] < 5, 30 * x, x)
    reps = [
        rs.record_arrays(y, data_id="x", name=name)
        for name, y in (("base", x), ("near", x + 0.1 * x.roll(1, 1)), ("heavy", heavy))
    ]
    with pytest.warns(UserWarning, match="may be too small") as said:
        rs.copies(reps[0], reps[1:])
    assert [str(w.message).partition(":")[0] for w in said] == ["heavy"]
