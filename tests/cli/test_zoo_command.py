"""`resemblance zoo`: tables that fit, keys that stay, one line for a likely mistake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import made_up
import resemblance as rs
from zoo_workers import tiny

ENTRY_KEYS = ["id", "name", "tags", "added", "group", "probe", "samples", "layers", "kinds"]
ENTRY_KEYS += ["classes", "parameters", "weights", "address", "size", "trained_on", "gradients"]
LONG = "a network with a name that is much longer than any table has room for " * 2


@pytest.fixture
def files(folder, monkeypatch):
    """Four related networks, and one on other data."""
    monkeypatch.setenv("COLUMNS", "80")
    for i in range(4):
        made_up.recorded(i, 40, name=f"net {i}").save(f"{i}.rsm")
    tiny(9, name="far").save("far.rsm")
    return [f"{i}.rsm" for i in range(4)]


@pytest.fixture
def full(run, files):
    assert run("zoo", "add", "zoo", *files, "--tag", "mine")[0] == 0
    return run


def fits(out):
    assert all(len(line) <= 80 for line in out.splitlines()), out
    return out


def of_json(run, *words):
    status, out, err = run("zoo", *words, "--json", "-")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("place", ["zoo", "lance:zoo"])
def test_a_zoo_from_the_first_addition_to_its_export(run, files, place):
    if place.startswith("lance"):
        pytest.importorskip("lancedb")
    status, out, _ = run("zoo", "add", place, *files, "--tag", "mine", "--tag", "b")
    assert status == 0
    assert f"Added 4 entries to {place}, which now has 4." in fits(out)
    assert "b, mine" in out
    status, out, _ = run("zoo", "add", place, "3.rsm", "far.rsm")
    assert "Added 1 entry to" in fits(out)
    status, out, _ = run("zoo", "list", place)
    assert "5 entries, in 2 groups recorded on different samples" in fits(out)
    assert "On data of 40, 40 samples (group " in out
    assert "1 of 5 entries." in run("zoo", "list", place, "--name", "f*")[1]
    status, out, _ = run("zoo", "tag", place, "far", "odd", "--remove", "mine")
    assert (status, out.split(": ")[1]) == (0, "odd\n")
    assert run("zoo", "tag", place, "far", "--remove", "odd")[1].endswith(": no tags\n")
    assert run("zoo", "verify", place)[:2] == (0, "5 of 5 entries are intact.\n")
    status, out, _ = run("zoo", "export", place, "out", "far", "net 0")
    assert (status, out) == (0, "out: 2 recordings, and index.json\n")
    assert len(list(Path("out").glob("*.rsm"))) == 2
    status, out, _ = run("zoo", "remove", place, "far", "net 1")
    assert status == 0
    assert out.startswith("removed far (")
    assert len(rs.Zoo(place)) == 3


def test_search_shows_scores_with_errors_and_what_was_left_out(full):
    full("zoo", "add", "zoo", "far.rsm")
    for query in ("net 0", "0.rsm"):
        status, out, err = full("zoo", "search", "zoo", query, "--limit", 2)
        assert (status, err) == (0, "")
        lines = fits(out).splitlines()
        assert lines[0].startswith("Most similar to net 0 (cka of centred features")
        at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["network", "id"])
        assert lines[at].split() == ["network", "id", "score", "chance", "tags"]
        assert " ± " in lines[at + 3]  # the first may be the network itself
        assert "1 recorded on different samples or with different settings" in " ".join(out.split())
    found = of_json(full, "search", "zoo", "net 0", "--kernel", "product", "--tag", "mine")
    assert {match["entry"]["name"] for match in found["matches"]} == {"net 1", "net 2", "net 3"}
    assert found["kernel"] == "product"


def test_keys_of_json_stay(full):
    (entry, *_) = of_json(full, "list", "zoo")
    assert list(entry) == ENTRY_KEYS
    (again,) = of_json(full, "add", "zoo", "0.rsm")
    assert list(again) == ENTRY_KEYS
    assert list(of_json(full, "tag", "zoo", "net 0", "x")) == ENTRY_KEYS
    assert [list(x) for x in of_json(full, "remove", "zoo", "net 0")] == [ENTRY_KEYS]
    assert of_json(full, "verify", "zoo") == []
    files = of_json(full, "export", "zoo", "out")
    assert [rs.load(file).name for file in files] == ["net 1", "net 2", "net 3"]


def test_derivatives_and_the_tree(full):
    found = of_json(full, "derivatives", "zoo", "net 0")
    assert found["query"] == "net 0"
    status, out, _ = full("zoo", "derivatives", "zoo", "net 0")
    assert status == 0
    assert fits(out).startswith("Networks that share an ancestor with net 0: ")
    status, out, _ = full("zoo", "tree", "zoo")
    assert status == 0
    assert all(f"net {i}" in fits(out) for i in range(4))
    assert isinstance(of_json(full, "tree", "zoo"), dict)


def test_what_came_before_a_mistake_is_added_and_said(run, files):
    status, out, err = run("zoo", "add", "zoo", "0.rsm", "1.rsm", "none.rsm", "2.rsm")
    assert status == 2
    assert out == "Added: 0.rsm, 1.rsm.\n"
    assert "none.rsm" in err
    assert run("zoo", "list", "zoo")[1].endswith("2 entries.\n")


def test_addresses_are_shown_whole_and_names_give_way(run, files):
    run("zoo", "add", "zoo", "0.rsm")
    with rs.Zoo("zoo") as zoo:
        rep = tiny(1).renamed(LONG)
        address = "hf:somebody/something-of-some-length"
        model = {**vars(rep.model), "address": address}
        zoo.add(type(rep)(**{**vars(rep), "model": type(rep.model)(**model)}), tags=["t" * 90])
    status, out, _ = run("zoo", "list", "zoo", "--addresses")
    assert status == 0
    assert address in fits(out)
    assert "–" in out
    fits(run("zoo", "list", "zoo")[1])


def test_verify_says_what_is_damaged_with_its_exit_status(full):
    status, out, _ = full("zoo", "verify", "zoo")
    assert (status, out) == (0, "4 of 4 entries are intact.\n")
    paths = sorted(Path("zoo").glob("objects/*/*.rsm"))
    paths[0].write_bytes(b"x" + paths[0].read_bytes()[1:])
    paths[1].unlink()
    Path("zoo/objects/aa").mkdir(exist_ok=True)
    Path("zoo/objects/aa", f"{'a' * 64}.rsm").write_bytes(b"x")
    Path("zoo/objects/notes").write_text("x")
    status, out, _ = full("zoo", "verify", "zoo")
    assert status == 1
    assert [out.count(f"\n{state} ") for state in ("damaged", "missing", "foreign")] == [1, 1, 1]
    assert "2 of 4 entries are intact." in fits(out)
    assert "--sweep removes them" in " ".join(out.split())
    assert "add those recordings again, or remove them" in " ".join(out.split())
    status, out, _ = full("zoo", "verify", "zoo", "--sweep", "--json", "-")
    found = json.loads(out)
    assert status == 1
    assert [list(x) for x in found] == [["state", "where", "words", "entry"]] * 4
    status, out, _ = full("zoo", "verify", "zoo")
    assert "leftover" not in out
    full("zoo", "add", "zoo", *[f"{i}.rsm" for i in range(4)])
    assert full("zoo", "verify", "zoo")[0] == 0  # what is foreign does no harm


def test_mistakes_are_one_line(refused, files):
    assert "no zoo at zoo" in refused("zoo", "list", "zoo")
    assert "no zoo at zoo" in refused("zoo", "search", "zoo", "0.rsm")
    assert "found a file at 0.rsm" in refused("zoo", "add", "0.rsm", "1.rsm")
    assert "no file at gone.rsm" in refused("zoo", "add", "zoo", "gone.rsm")
    assert "a tag must be" in refused("zoo", "add", "zoo", "0.rsm", "--tag", " x")
    assert "Missing argument" in refused("zoo", "add", "zoo")
    assert not Path("zoo").exists()


def test_mistakes_in_a_zoo_are_one_line(full, refused):
    assert "no entry 'nett 0' in zoo; nearest: net 0" in refused("zoo", "tag", "zoo", "nett 0", "x")
    assert "no entry 'nobody'" in refused("zoo", "remove", "zoo", "net 0", "nobody")
    assert len(rs.Zoo("zoo")) == 4  # none was removed
    assert "kernel must be one of" in refused("zoo", "search", "zoo", "net 0", "--kernel", "sum")
    assert "new or an empty folder" in refused("zoo", "export", "zoo", "zoo")
    shutil.copy("far.rsm", next(Path("zoo").glob("objects/*/*.rsm")))
    assert "damaged" in refused("zoo", "export", "zoo", "out")
