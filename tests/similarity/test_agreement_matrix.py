"""What many networks predict: the numbers of `behaviour`, pair by pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import FormatError
from resemblance.representation.outputs import Outputs
from resemblance.similarity import agreement_matrix as many
from resemblance.similarity.agreement_matrix import BehaviourMatrix, behaviour_matrix

X = torch.randn(230, 6, generator=torch.Generator().manual_seed(0))
NUMBERS = ("disagreement", "js")


class Wide(torch.nn.Module):
    """So many classes that files keep the likeliest, and groups of the others."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 1100)

    def forward(self, x):
        return self.head(4 * self.body(x).tanh())


def recorded(kind, count, **options):
    nets = [networks.seeded(kind, seed=i) for i in range(count)]
    return [rs.record(net, X, buckets=0, name=f"{i}", **options) for i, net in enumerate(nets)]


def agree(found, reps, pairs):
    for i, j in pairs:
        one = rs.behaviour(reps[i], reps[j])
        for name in NUMBERS:
            for key in (name, f"{name}_stderr"):
                assert getattr(found, key)[i, j] == pytest.approx(getattr(one, key), abs=1e-12)
                assert getattr(found, key)[i, j] == getattr(found, key)[j, i]
        assert found.lower_bounds == (one.lower_bounds or one.js_upper is not None)  # of js


@pytest.fixture(scope="module")
def plain():
    return recorded(networks.MLP, 3)


def test_all_pairs_have_the_numbers_of_behaviour(plain, monkeypatch):
    found = behaviour_matrix(plain)
    agree(found, plain, [(0, 1), (1, 2), (2, 0)])
    assert found.samples == 230
    assert found.sequences is None
    assert not found.missing
    assert (np.diag(found.disagreement) == 0).all()
    assert (np.diag(found.js) == 0).all()
    monkeypatch.setattr(many, "_AT_ONCE", 100)  # a few rows at a time
    np.testing.assert_allclose(behaviour_matrix(plain).js, found.js, atol=1e-14)


def test_disagreement_is_counted(plain):
    found = behaviour_matrix(plain)
    with torch.no_grad():
        one, two = (networks.seeded(networks.MLP, seed=i)(X.clone()).argmax(1) for i in (0, 2))
    assert found.disagreement[0, 2] == pytest.approx(float((one != two).double().mean()))


def test_many_classes_give_lower_bounds():
    reps = recorded(Wide, 3)
    assert reps[0].outputs.every is None
    agree(behaviour_matrix(reps), reps, [(0, 1), (2, 1)])


def test_tokens_are_left_out_with_their_sequences():
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 9)

        def forward(self, ids):
            return self.head(self.table(ids))

    ids = torch.randint(9, (60, 8), generator=torch.Generator().manual_seed(0))
    nets = [networks.seeded(Reader, seed=i) for i in range(2)]
    reps = [rs.record(net, ids, unit="token", tokens=3, buckets=0) for net in nets]
    found = behaviour_matrix(reps)
    agree(found, reps, [(0, 1)])
    assert (found.samples, found.sequences) == (180, 60)


def test_reasons_are_given_where_outputs_do_not_agree(plain):
    wide = recorded(Wide, 1)[0].renamed("wide")
    bare = plain[2].without_outputs().renamed("bare")
    reps = [plain[0], wide, bare, plain[1]]
    found = behaviour_matrix(reps)
    agree(found, reps, [(0, 3)])
    assert np.isnan(found.js[0, 1])
    assert np.isnan(found.disagreement[2]).all()
    assert found.why_not(0, 3) is None
    assert found.why_not(0, 1) == "they have 5 and 1,100 classes"
    assert found.why_not(1, 2) == "'bare' has no outputs"
    first, second = found.missing
    assert first.startswith("No predictions are stored for bare: ")
    assert second.endswith("same number of classes: 5 classes (0, 1); 1,100 classes (wide).")


def test_what_costs_too_much_is_left_out_with_a_word(plain, monkeypatch):
    monkeypatch.setattr(many, "_MAX_COST", 3 * 230 * 5 - 1)
    found = behaviour_matrix(plain)
    assert np.isnan(found.js).all()
    assert np.isfinite(found.disagreement).all()
    assert "Use `behaviour` for two networks" in found.missing[0]
    monkeypatch.setattr(many, "_MAX_COST", 3 * 230 * 5)
    assert np.isfinite(behaviour_matrix(plain).js).all()


@pytest.mark.filterwarnings("ignore:only 1 sample")
def test_one_sample_has_no_error():
    nets = [networks.seeded(networks.MLP, seed=i) for i in range(2)]
    outputs = [rs.record(net, X[:1], buckets=0).outputs for net in nets]
    found = many._disagreement_matrix(outputs, torch.zeros(1, dtype=torch.int64))
    assert np.isnan(found[1]).all()


def test_it_is_read_as_it_was_written(plain):
    found = behaviour_matrix([*plain, plain[0].without_outputs()])
    assert BehaviourMatrix._from_dict(found.to_dict()) == found
    for change in ({"js": [[1.0]]}, {"classes": [5]}):
        with pytest.raises(ValueError, match=r"classes|reshape"):
            BehaviourMatrix._from_dict({**found.to_dict(), **change})
    with pytest.raises(FormatError, match=r"^samples must be"):
        BehaviourMatrix._from_dict({**found.to_dict(), "samples": -1})


def test_multi_label_networks_are_compared_among_themselves(plain):
    g = torch.Generator().manual_seed(4)
    logits = [3 * torch.randn(230, 70, generator=g) for _ in range(2)]
    logits.append(logits[0] + 0.05 * torch.randn(230, 70, generator=g))
    outputs = [Outputs(70, label_logits=z) for z in logits]
    reps = [replace(rep, outputs=x) for rep, x in zip(plain, outputs, strict=True)]
    found = behaviour_matrix(reps)
    agree(found, reps, [(0, 1), (1, 2), (2, 0)])
    assert 0.1 < found.disagreement[0, 2] < 0.9
    assert found.multi_label == (True,) * 3
    assert BehaviourMatrix._from_dict(found.to_dict()) == found
    mixed = behaviour_matrix([reps[0], plain[1], replace(plain[2], outputs=outputs[1])])
    assert mixed.why_not(0, 1) == "they have 70 labels and 5 classes"
    assert mixed.why_not(0, 2) is None
    assert np.isnan(mixed.disagreement[0, 1])
    assert "70 labels (0, 2); 5 classes (1)" in mixed.missing[0]


def test_tables_that_were_saved_before_there_were_multi_label_networks_load(plain):
    found = behaviour_matrix(plain)
    content = found.to_dict()
    assert content.pop("multi_label") == []
    assert BehaviourMatrix._from_dict(content) == found
    with pytest.raises(ValueError, match="must be of 3 models"):
        BehaviourMatrix._from_dict({**content, "multi_label": [True]})
