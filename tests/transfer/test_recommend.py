"""`recommend` end to end: a dict, a zoo, labels or none, a budget of candidates or time."""

import dataclasses
import math

import pytest
import torch
from candidate_networks import filled, network, task
from torch import nn

import resemblance as rs
from resemblance.errors import DataError
from resemblance.transfer import transferability
from resemblance.transfer.logme import log_me
from resemblance.transfer.recommend import Budget
from resemblance.transfer.transferability import ALL_SCORES

X, Y = task()


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("no such thing\nand more of it")


def networks():
    return {"blind": network(0, blind=True), "sees": network(0), "other": network(1)}


def test_the_network_that_sees_what_matters_comes_first_and_the_blind_one_last():
    found = rs.recommend(networks(), X, Y)
    assert found.best.name in ("sees", "other")
    assert found.ranked[-1].name == "blind"
    assert [one.rank for one in found] == [1, 2, 3]
    assert (found.samples, found.total, found.classes) == (240, 240, 4)
    for one in found:
        assert one.expected.low < one.expected.value < one.expected.high
        assert one.layer in ("1", "3")
        assert one.seconds > 0
    assert found.best.expected.low > found["blind"].expected.value
    assert "not significantly different from the first" not in found["blind"].reasons
    for one in found:
        along = one.scores.along("ridge")
        assert f"{along[one.layer]:.0%} of labels" in one.reasons[0]
        assert ("its last layer" in one.reasons[1]) == (one.layer != "3")


def test_fits_to_these_samples_reach_on_others_what_is_expected():
    """As often as the interval says, up to chance: 9 of 12 are there one time in fifty at 0.95."""
    held = 0
    for seed in range(12):
        x, y = task(seed)
        found = rs.recommend({"sees": network(0)}, x, y, layers=["1"]).best
        reached = [
            rs.KernelClassifier(network(0), layer="1").fit(x, y).score(*task(100 * seed + k))
            for k in range(1, 4)
        ]
        held += found.expected.low <= sum(reached) / 3 <= found.expected.high
    assert held >= 9


def test_labels_in_the_data_are_those_given_apart():
    one, two = rs.recommend(networks(), X, Y), rs.recommend(networks(), (X, Y))
    assert [a.name for a in one] == [b.name for b in two]
    assert one.best.scores == two.best.scores


def test_without_labels_there_is_an_error_before_anything_is_run():
    ran = []
    with pytest.raises(DataError, match="a few hundred are enough"):
        rs.recommend({"a": lambda: ran.append(1)}, X)
    assert not ran


def test_of_two_on_which_ridge_and_log_me_disagree_the_one_to_expect_more_of_comes_first(
    monkeypatch,
):
    """LogME turned round: both values are zero then."""
    monkeypatch.setitem(transferability.LAYER_SCORES, "log_me", lambda f, y: -log_me(f, y))
    found = rs.recommend({"blind": network(0, blind=True), "sees": network(0)}, X, Y, layers=["1"])
    assert [one.value for one in found] == [0, 0]
    assert [one.name for one in found] == ["sees", "blind"]


@pytest.mark.parametrize("score", ALL_SCORES)
def test_any_score_ranks(score):
    found = rs.recommend(networks(), X, Y, score=score)
    assert found.score == score
    values = [one.value for one in found]
    assert values == sorted(values, reverse=True)
    assert all(map(math.isfinite, values))
    assert all(one.expected is not None for one in found)


def test_of_equals_the_smaller_comes_first():
    large = network(0)
    large.register_parameter("idle", nn.Parameter(torch.zeros(99)))
    found = rs.recommend({"large": large, "small": network(0)}, X, Y)
    assert found[0].value == found[1].value
    assert [one.name for one in found] == ["small", "large"]
    assert "not significantly different from the first" in found["large"].reasons


def test_a_network_whose_layers_are_dead_is_not_recommended():
    dead = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    nn.init.constant_(dead[0].bias, -1e6)
    found = rs.recommend({"dead": dead, "sees": network(0)}, X, Y)
    assert [one.name for one in found] == ["sees", "dead"]


def test_one_that_fails_does_not_stop_the_others():
    def absent():
        raise OSError("no such file")

    def leaves():
        raise SystemExit("usage: train.py")

    tried = {"broken": Broken(), "absent": absent, "leaves": leaves, "sees": network(0)}
    found = rs.recommend(tried, X, Y)
    assert [one.name for one in found] == ["sees"]
    whys = {one.name: one.why for one in found.left_out}
    assert "no such thing" in whys["broken"]
    assert whys["absent"] == "OSError: no such file"
    assert whys["leaves"] == "SystemExit: usage: train.py"
    assert "broken was skipped" in found.summary()
    with pytest.raises(DataError, match="no candidate could be run"):
        rs.recommend({"broken": Broken()}, X, Y)


def test_a_score_that_one_cannot_have_puts_it_last():
    mute = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    found = rs.recommend({"mute": mute, "blind": network(0, blind=True)}, X, Y, score="leep")
    assert [one.name for one in found] == ["blind", "mute"]
    assert found.to_dict()["ranked"][1]["value"] is None


def test_a_budget_is_kept_and_said():
    found = rs.recommend(networks(), X, Y, budget=2)
    assert len(found) == 2
    assert found.left_out[0].why == "the budget of 2 candidates was spent"
    assert rs.recommend(networks(), X, Y, budget="1h").left_out == ()
    failed = rs.recommend({"broken": Broken(), "sees": network(0)}, X, Y, budget=1)
    assert [one.name for one in failed] == ["sees"]  # what fails does not count


def test_samples_are_drawn_by_class_and_counted():
    found = rs.recommend(networks(), X, Y, samples=100)
    assert (found.samples, found.total) == (100, 240)
    assert "100 labelled samples drawn of 240" in found.summary()
    again, other = (rs.recommend(networks(), X, Y, samples=100, seed=seed) for seed in (0, 1))
    assert found.best.scores == again.best.scores != other.best.scores


def test_models_are_left_as_they_were():
    net = network(0).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    rs.recommend({"a": net}, X, Y)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


# -- with a zoo ----------------------------------------------------------------------------------


def test_a_zoo_ranks_what_models_gives_and_says_what_it_left_out(tmp_path):
    own = networks()
    zoo, entries = filled(tmp_path / "zoo", own, X)
    zoo.close()
    del own["other"]
    found = rs.recommend(tmp_path / "zoo", X, Y, models=own)
    assert [one.name for one in found] == ["sees", "blind"]
    assert found["sees"].id == entries["sees"].id
    assert [one.name for one in found.left_out] == ["other"]


def test_a_first_look_sets_the_nearest_training_data_first(tmp_path):
    """Of a hundred candidates those come first whose training data are like these."""
    own, reference = networks(), network(9)
    data = {"sees": X + 2, "blind": X + 0.1}
    with rs.Zoo(tmp_path / "zoo") as zoo:
        for name, net in own.items():
            link = None
            if name in data:
                seen = rs.record(reference, data[name], name=f"{name}'s data", progress=False)
                link = zoo.add(seen).id
            zoo.add(rs.record(net, X, name=name, progress=False), trained_on=link)
        found = rs.recommend(zoo, X, Y, models=_by(own), reference=reference, budget=1)
        assert [one.name for one in found] == ["blind"]
        assert found.best.distance < 0.1
        assert any(
            "2 of 3 candidates were first ranked by their training data; not other." in note
            for note in found.notes
        )
        recorded = rs.record(reference, X, progress=False)
        again = rs.recommend(zoo, X, Y, models=_by(own), reference=recorded, budget=2)
        assert {one.name for one in again} == {"blind", "sees"}
        assert again["sees"].distance > again["blind"].distance
        other = rs.recommend(zoo, X, Y, models=_by(own), reference=network(8))
        assert any("of different networks" in note for note in other.notes)
        assert all(one.distance is None for one in other)
        unasked = rs.recommend(zoo, X, Y, models=_by(own))
        assert any("Pass `reference`" in note for note in unasked.notes)


def _by(own):
    return lambda entry: own.get(entry.name)


def test_a_link_to_what_is_gone_is_said(tmp_path):
    own, reference = networks(), network(9)
    with rs.Zoo(tmp_path / "zoo") as zoo:
        link = zoo.add(rs.record(reference, X + 1, name="data", progress=False)).id
        zoo.add(rs.record(own["sees"], X, name="sees", progress=False), trained_on=link)
        zoo.remove(link)
        found = rs.recommend(zoo, X, Y, models={"sees": own["sees"]}, reference=reference)
        assert any("sees (" in note for note in found.notes)
        assert found.best.distance is None


def test_a_reference_without_links_is_said(tmp_path):
    own = networks()
    zoo, _ = filled(tmp_path / "zoo", own, X)
    with zoo:
        for found in (
            rs.recommend(zoo, X, Y, models=own, reference=network(9)),
            rs.recommend(zoo, X, Y, models=own),
            rs.recommend(own, X, Y, reference=network(9)),
        ):
            assert any("No candidate is linked" in note for note in found.notes)
    assert not any("linked" in note for note in rs.recommend(own, X, Y).notes)


def test_what_is_shown_is_never_run(tmp_path):
    """An address in a zoo is code of a stranger's."""
    mark = tmp_path / "was run"
    code = f"open({str(mark)!r}, 'w').close()\ndef make():\n    return None\n"
    (tmp_path / "evil.py").write_text(code)
    rep = rs.record(network(0), X, name="evil", progress=False)
    address = f"{tmp_path / 'evil.py'}:make"
    with rs.Zoo(tmp_path / "zoo") as zoo:
        zoo.add(dataclasses.replace(rep, model=dataclasses.replace(rep.model, address=address)))
        zoo.add(rs.record(network(1), X, name="good", progress=False))
        found = rs.recommend(zoo, X, Y, models={"good": network(1)})
        assert not mark.exists()
        assert address in found.left_out[0].why
        trusted = rs.recommend(zoo, X, Y, models={"good": network(1)}, trust=[address])
        assert mark.exists()
        assert "expected a torch.nn.Module" in trusted.left_out[0].why


def test_mistakes_are_told_before_anything_is_run():
    ran = []

    def make():
        ran.append(1)
        return network(0)

    for wrong in ({"budget": "soon"}, {"score": "best"}, {"samples": 1}, {"seed": -1}):
        with pytest.raises(DataError):
            rs.recommend({"a": make}, X, Y, **wrong)
    assert not ran


def test_a_whole_number_is_candidates_and_a_unit_makes_it_time():
    assert Budget.of(3).candidates == Budget.of("3").candidates == 3
    assert [Budget.of(text).seconds for text in ("90s", "2 m", "0.5h")] == [90, 120, 1800]
    said = [Budget.of(x).text for x in (3, 1, "90s")]
    assert said == ["3 candidates", "1 candidate", "90 seconds"]
    assert Budget.of(None).text == "none"


def test_candidates_are_counted_and_time_is_measured_after_the_first():
    assert [Budget.of(2).spent(n) for n in range(4)] == [False, False, True, True]
    over = Budget(seconds=1e-9, began=0.0)
    assert [over.spent(n) for n in (0, 1)] == [False, True]
    assert not Budget.of(None).spent(100)
    assert not Budget.of("1h").spent(100)


@pytest.mark.parametrize("given", [0, -1, 2.5, "0s", "soon", "3 days", True])
def test_what_is_neither_is_refused(given):
    with pytest.raises(DataError, match="`budget` must be a number of candidates"):
        Budget.of(given)
