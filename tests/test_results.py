"""Every result class: one line, summary, table, JSON, file, equality and figure, by the base."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import resemblance as rs
from made_up import comparison, trajectory
from resemblance.errors import FormatError, MissingExtra
from resemblance.gate.thresholds import Threshold
from resemblance.gate.verdict import Finding, Verdict
from resemblance.similarity.results import Plotted, Result, StoredResult, plain
from resemblance.transfer.candidates import ExcludedCandidate
from resemblance.transfer.recommendation import ExpectedAccuracy, RankedCandidate, Recommendation
from resemblance.transfer.transferability import CandidateScores

NAMES = (
    "KernelComparison", "FullComparison", "ComparisonMatrix", "Trajectory", "Behaviour",
    "EmbeddingBehaviour",
    "Flips", "Copies", "Coordinates", "Verdict", "Adaptation", "FisherRao", "TaskEmbedding",
    "Recommendation", "SearchResult", "Descents", "FamilyTree", "Sensitivity",
)  # fmt: skip


def recommendation():
    scores = CandidateScores({"1": {"ridge": 0.6}, "3": {"ridge": float("nan")}}, {"leep": -1.0})
    likely = ExpectedAccuracy(0.8, 0.7, 0.9)
    best = RankedCandidate(
        1, "net", None, 0.6, "1", likely, scores, None, 100, 1.25, ("it is good",)
    )
    gone = (ExcludedCandidate("gone", "no network was passed for it"),)
    return Recommendation((best,), gone, "ridge", 10, 10, 2, "none", ("A note.",), 3.0)


def verdict():
    rate = Threshold("disagreement", 0.02)
    findings = (
        Finding(rate, "failed", 0.05, 0.031, 0.07),
        Finding(Threshold("decibels", 20.0), "passed", float("inf"), 30.0, float("inf"), "fc"),
    )
    return Verdict("net", "net-int8", 400, None, findings, notes=("one layer was skipped",))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One of each class, by its name."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=generator)
    reps, nets = [], []
    for seed, name in enumerate(("base", "copy", "other")):
        torch.manual_seed(seed if name == "other" else 0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
        with torch.no_grad():
            net[0].weight *= 0.99 if name == "copy" else 1
        nets.append(net)
        reps.append(rs.record(net, x, name=name))
    both = {"data_id": "x", "logits": "none"}
    embedded = [rs.record_arrays(outputs=y, **both) for y in (x, 0.9 * x + 0.1)]
    zoo = rs.Zoo(tmp_path_factory.mktemp("zoo") / "z")
    zoo.add_all(reps)
    scores = np.array([[0.5, np.nan], [0.25, 0.75]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.errors.ResemblanceWarning)  # of so few samples
        matrix, adapted = rs.compare_all(reps), rs.adaptation(reps[0])
    found = [
        comparison(scores, columns=("r0", "r1"), notes=(rs.Note("é"),)),
        rs.compare(reps[0], reps[1]),
        matrix,
        trajectory(notes=(rs.Note("two"),)),
        rs.behaviour(reps[0], reps[2]),
        rs.behaviour(*embedded),
        rs.flips(reps[0], reps[2]),
        rs.copies(reps[0], reps[1:]),
        rs.coordinates(reps[0], reps[1]),
        verdict(),
        adapted,
        rs.fisher_rao(reps[0]),
        rs.task2vec(net, x, name="task"),
        recommendation(),
        zoo.search(reps[0]),
        zoo.derivatives(reps[0]),
        zoo.family_tree(),
        rs.sensitivity(*nets[:2], x, keep=1),
    ]
    return {type(one).__name__: one for one in found}


def test_there_is_one_of_every_class(results):
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    bases = {"Result", "StoredResult", "Comparison"}
    known = {kind.__name__ for kind in below(Result)} - bases
    assert known == set(results) == set(NAMES)
    assert known <= set(rs.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_one_line_shows_the_class_and_a_number(results, name):
    line = repr(results[name])
    assert line.startswith(f"{name}(")
    assert line.endswith(")")
    assert any(x.isdigit() for x in line)
    assert "\n" not in line


@pytest.mark.parametrize("name", NAMES)
def test_print_shows_a_table_and_the_summary(results, name):
    one = results[name]
    table, _, rest = str(one).partition("\n\n")
    head, *rows = table.splitlines()
    assert rest == one.summary()
    assert set(head.split("  ")[0].split()) <= set(one._table())
    assert len(rows) == min(len(next(iter(one._table().values()))), 16 + (len(rows) == 17))
    assert any(x.isdigit() for x in "".join(rows)) or name == "FamilyTree"


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_has_sentences_and_every_note(results, name):
    lines = results[name].summary().splitlines()
    assert lines
    assert all(line.endswith(".") or line[0].isalnum() for line in lines)
    assert all(any(note in line for line in lines) for note in getattr(results[name], "notes", ()))


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_columns_that_the_class_describes(results, name):
    frame = results[name].to_frame()
    assert len(frame) > 0
    words = (type(results[name]).__doc__ or "").replace("`", " ").replace(",", " ").split()
    described = {word.strip(".:()") for word in words}
    columns = set(frame.columns) - {"ridge", "leep"}  # scores are not fixed
    ends = {column.removesuffix("_stderr") for column in columns}
    if name == "Adaptation":
        assert set(results[name].columns) | {"n_eff"} == columns
    else:
        assert ends <= described, ends - described


@pytest.mark.parametrize("name", NAMES)
def test_a_class_describes_every_field(results, name):
    said = inspect.getdoc(type(results[name])).partition("Attributes:")[2]
    for field in fields(results[name]):
        assert f"    {field.name}: " in said, field.name


@pytest.mark.parametrize("name", NAMES)
def test_equality_is_by_content(results, name):
    one = results[name]
    assert one == replace(one)
    assert one != "something else"
    if name != "Verdict":  # which holds no array and no mapping
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"TaskEmbedding"}))
def test_a_file_is_strict_json_of_the_content(results, name, tmp_path):
    one = results[name]
    path = one.save(tmp_path / "one.json")
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    kind = next(iter(kept))
    assert kept == {kind: 1, **one.to_dict()}
    if isinstance(one, StoredResult):
        assert type(one).load(path) == one
        first, text = f'"{kind}": 1', path.read_text()
        other_versions = [text.replace(first, f'"{kind}": {version}') for version in (2, "true")]
        for damaged in ("", "{", "3", "[]", "{}", "[" * 100_000, *other_versions):
            path.write_text(damaged)
            with pytest.raises(FormatError, match=f"is not a {kind} written by {name}.save"):
                type(one).load(path)
        with pytest.raises(FormatError, match="No such file"):
            type(one).load(tmp_path / "none.json")


def test_a_task_embedding_is_a_file_of_tensors(results, tmp_path):
    one = results["TaskEmbedding"]
    assert rs.TaskEmbedding.load(one.save(tmp_path / "one.task")) == one
    assert json.dumps(one.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_results_with_a_figure_draw_it(results, name):
    one = results[name]
    if isinstance(one, Plotted) or name == "Adaptation":
        assert isinstance(one.plot(), Figure)
    else:
        assert not hasattr(one, "plot")


def test_what_has_no_figure_is_refused():
    from resemblance.views.plots import plot_result

    with pytest.raises(NotImplementedError):
        plot_result(object())


def test_a_result_must_say_what_is_its_own():
    for part in ("_text", "_sentences", "_columns"):
        with pytest.raises(NotImplementedError):
            getattr(Result(), part)()


def test_a_missing_pandas_says_what_to_install(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[frames\]'"):
        results["KernelComparison"].to_frame()


def test_plain_values_are_what_json_holds():
    value = {"a": (np.float64("inf"), np.arange(2), torch.ones(1)), "b": None, "c": "x"}
    assert plain(value) == {"a": [None, [0, 1], [1.0]], "b": None, "c": "x"}
