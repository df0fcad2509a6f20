"""Everything public is a value: it goes through another process, copies, and compares."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
import pickle

import pytest
import torch

import networks
import resemblance as rs

X = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
Y = [i % 3 for i in range(80)]


def values(seed: int = 0) -> dict[str, object]:
    """One of each kind of result that the package hands out."""
    nets = [networks.seeded(networks.MLP, seed=seed + i) for i in range(2)]
    options = {"keep_sums": True, "elementwise": True, "buckets": 16}
    a, b = (rs.record(net, X, **options) for net in nets)
    comparison = rs.compare(a, b, kernel="features")
    return {
        "Representation": a,
        "Layer": a[0],
        "Comparison": comparison,
        "Match": comparison.match(),
        "ComparisonMatrix": rs.compare_all([a, b], kernel="features"),
        "Trajectory": rs.trajectory([a, b]),
        "Coordinates": rs.coordinates(a, b),
        "Sensitivity": rs.sensitivity(*nets, X),
        "Verdict": rs.check(a, b, max_disagreement=0.1, min="features=0.5"),
        "Adaptation": rs.adaptation(a, kernel="features"),
        "FisherRao": rs.fisher_rao(a),
        "TaskEmbedding": rs.task2vec(nets[0], X[:16]),
        "CountSketch": rs.CountSketch(16, seed),
        "ResemblanceError": None,
    }


HASHABLE = {"CountSketch", "Match", "Verdict"}  # hold numbers and names alone
VALUES = {name: value for name, value in values().items() if value is not None}


def sent_back(values: dict[str, object]) -> dict[str, object]:
    return values


@pytest.fixture(scope="module")
def through_a_process() -> dict[str, object]:
    """The values as a spawned process, which imports everything anew, sends them back."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(sent_back, VALUES).result(timeout=120)


@pytest.mark.parametrize("name", VALUES)
def test_through_a_spawned_process_and_back(name, through_a_process):
    assert type(through_a_process[name]) is type(VALUES[name])
    assert through_a_process[name] == VALUES[name]


@pytest.mark.parametrize("name", VALUES)
def test_copies_are_equal_and_others_are_not(name):
    assert copy.deepcopy(VALUES[name]) == VALUES[name]
    assert copy.copy(VALUES[name]) == VALUES[name]
    assert values(seed=5)[name] != VALUES[name] or name == "Match"
    assert VALUES[name] != "something else"


@pytest.mark.parametrize("name", VALUES)
def test_what_holds_arrays_says_that_it_cannot_be_hashed(name):
    if name in HASHABLE:
        assert {VALUES[name], copy.deepcopy(VALUES[name])} == {VALUES[name]}
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(VALUES[name])


def test_a_fitted_classifier_goes_through_pickle():
    """Estimators are compared by identity, as scikit-learn's are."""
    machine = rs.KernelClassifier(networks.seeded(networks.MLP)).fit(X, Y)
    again = pickle.loads(pickle.dumps(machine))
    assert (again.decision_function(X) == machine.decision_function(X)).all()
    assert again != machine
    assert len({machine, again}) == 2


def test_errors_go_through_pickle():
    error = pickle.loads(pickle.dumps(rs.ResemblanceError("why")))
    assert str(error) == "why"
