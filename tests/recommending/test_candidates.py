"""Which networks take part: of a dict, of a zoo, by address only if trusted."""

import dataclasses

import pytest
from candidate_networks import filled, network, task
from torch import nn

import resemblance as rs
from resemblance.errors import DataError, MismatchError
from resemblance.recommending.candidates import Candidate, gathered, linked

X, _ = task()


@pytest.fixture
def zoo(tmp_path):
    networks = {"one": network(1), "two": network(2)}
    opened, entries = filled(tmp_path / "zoo", networks, X)
    with opened:
        yield opened, networks, entries


def names(field):
    return [one.name for one in field.candidates]


def test_a_dict_is_taken_as_it_is():
    field = gathered({"a": network(0), "b": network})
    assert names(field) == ["a", "b"]
    assert all(isinstance(one.load(), nn.Module) for one in field.candidates)
    with pytest.raises(DataError, match="a dict names its networks itself"):
        gathered({"a": network(0)}, {"a": network(0)})
    with pytest.raises(DataError, match="empty dict"):
        gathered({})
    with pytest.raises(DataError, match="found int"):
        gathered(3)


def test_models_names_entries_by_name_id_or_function(zoo):
    opened, networks, entries = zoo
    by_name = gathered(opened, networks)
    by_id = gathered(opened, {entries[k].id[:10]: net for k, net in networks.items()})
    by_function = gathered(opened, lambda entry: networks[entry.name])
    assert sorted(names(by_name)) == sorted(names(by_id)) == sorted(names(by_function))
    assert by_name.left_out == []
    for one in by_name.candidates:
        assert one.load() is networks[one.name]
        assert linked(one) is None


def test_an_entry_without_a_network_is_left_out_and_said(zoo):
    opened, networks, _ = zoo
    field = gathered(opened, {"two": networks["two"]})
    assert names(field) == ["two"]
    assert [(one.name, one.why) for one in field.left_out] == [
        ("one", "models has no network for it")
    ]
    assert len(gathered(opened).left_out) == 2


def test_an_address_is_run_only_if_it_is_repeated(zoo, tmp_path):
    opened, _, _ = zoo
    (tmp_path / "net.py").write_text("raise SystemExit('was run')\n")
    address = f"{tmp_path / 'net.py'}:make"
    rep = rs.record(network(7), X, name="three", progress=False)
    opened.add(dataclasses.replace(rep, model=dataclasses.replace(rep.model, address=address)))
    why = {one.name: one.why for one in gathered(opened).left_out}
    assert f"its address {address!r} is run only if trust repeats it" in why["three"]
    for trust in (address, [address]):
        (found,) = gathered(opened, trust=trust).candidates
        with pytest.raises(SystemExit, match="was run"):
            found.load()
    (found,) = gathered(opened, trust={address: lambda: network(7)}).candidates
    assert found.load().state_dict().keys() == network(7).state_dict().keys()  # made, not loaded
    for other in ([str(tmp_path)], f"{address}s", [f"{address}s"]):  # not even by a letter
        assert not gathered(opened, trust=other).candidates


def test_a_network_of_other_weights_is_refused(zoo):
    opened, _, _ = zoo
    one = next(c for c in gathered(opened, {"one": network(5)}).candidates)
    with pytest.raises(MismatchError, match="has other weights than the one recorded"):
        one.load()


def test_one_network_on_two_probes_is_one_candidate(zoo):
    opened, networks, _ = zoo
    opened.add(rs.record(networks["one"], X[:100], name="one", progress=False))
    for models in (networks, lambda entry: networks[entry.name]):
        field = gathered(opened, models)
        assert sorted(names(field)) == ["one", "two"]
        assert field.left_out == []


def test_recordings_of_training_data_are_no_candidates(zoo):
    opened, networks, _ = zoo
    data = opened.add(rs.record(network(8), X + 1, name="data of three", progress=False))
    seen = rs.record(network(3), X, name="three", progress=False)
    opened.add(seen, trained_on=data.id)
    field = gathered(opened, {**networks, "three": network(3)})
    assert sorted(names(field)) == ["one", "three", "two"]
    assert field.left_out == []


def test_names_that_several_have_are_told_apart(zoo):
    opened, networks, _ = zoo
    other = network(9)
    opened.add(rs.record(other, X, name="one", progress=False))
    with pytest.raises(DataError, match="has 2 entries; name one by its id"):
        gathered(opened, networks)
    found = names(gathered(opened, lambda entry: network()))
    assert len(set(found)) == 3
    with pytest.raises(DataError, match="of which the zoo has no entry; nearest: two"):
        gathered(opened, {"tow": network()})
    with pytest.raises(DataError, match="models must be a dict"):
        gathered(opened, 3)


def test_a_zoo_is_known_by_its_folder(zoo, tmp_path):
    _, networks, _ = zoo
    assert len(gathered(tmp_path / "zoo", networks).candidates) == 2
    rs.Zoo(tmp_path / "empty").close()
    with pytest.raises(DataError):
        gathered(tmp_path / "empty")


def test_a_candidate_may_be_an_address_of_the_callers(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    assert isinstance(Candidate("a", f"{tmp_path / 'net.py'}:make").load(), nn.Linear)
