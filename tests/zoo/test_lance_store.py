"""A zoo in Lance tables: damage, and copies.

What zoos of both kinds must do is in test_zoo.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError
from resemblance.zoo import lance_store, lance_tables
from resemblance.zoo.entry import NewRecording, entry_for
from resemblance.zoo.signature import signatures
from zoo_workers import tiny

pytest.importorskip("lancedb")
REP, OTHER = tiny(0), tiny(1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def zoo(folder):
    with rs.Zoo(f"lance:{folder}") as found:
        found.add(REP, tags=["a"])
        yield found


def files(folder, table):
    return sorted(folder.glob(f"{table}.lance/data/*"))


def states(zoo, **options):
    return [damage.state for damage in zoo.verify(**options)]


def reopened(folder):
    return rs.Zoo(f"lance:{folder}")


# -- damage ---------------------------------------------------------------------------------------


def test_no_flipped_byte_is_served(zoo, folder):
    """Of layers, what is read is what was added or an error; some of Lance's bytes mean nothing."""
    (path,) = files(folder, "layers")
    whole, told = path.read_bytes(), 0
    for at in np.linspace(0, len(whole) - 1, 25).astype(int):
        content = bytearray(whole)
        content[at] ^= 0x10
        path.write_bytes(bytes(content))
        with reopened(folder) as again:
            try:
                assert again.get("net 0") == REP
            except FormatError as error:
                assert "'net 0'" in str(error)  # noqa: PT017 - it need not be raised
                assert states(again)[-1] in ("damaged", "missing")
                told += 1
    assert told > 12
    path.write_bytes(whole)
    assert reopened(folder).verify() == []


@pytest.mark.parametrize("table", ["layers", "entries", "tags"])
@pytest.mark.parametrize("harm", ["truncated", "deleted", "emptied"])
def test_damaged_tables_are_told(zoo, folder, table, harm):
    (path,) = files(folder, table)
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 100 if harm == "truncated" else 0])
    with reopened(folder) as again:
        use = again.get if table == "layers" else again.entry
        with pytest.raises(FormatError, match=r"lance:"):
            use("net 0")


def test_a_file_that_lance_cannot_read_stops_its_table_and_is_told(zoo, folder):
    (path,) = files(folder, "layers")
    zoo.add(OTHER)
    path.write_bytes(path.read_bytes()[:100])
    with reopened(folder) as again:
        assert len(again) == 2
        for name in ("net 0", "net 1"):
            with pytest.raises(FormatError, match=f"entry '{name}'"):
                again.get(name)
        assert states(again) == ["index", "damaged", "damaged"]


def test_what_an_entry_says_is_compared_with_its_layers(zoo):
    id = zoo.entry("net 0").id
    (copy,) = zoo.store._copies([id])
    entry = dataclasses.replace(copy.entry, samples=33)
    facts = lance_tables.copy_facts(dataclasses.replace(copy, entry=entry))
    zoo.store._tables.update("entries", "true", {"facts": facts})
    (damage,) = zoo.verify()
    assert (damage.state, damage.words[:19]) == ("damaged", "the index disagrees")


def test_missing_layers_are_told_and_added_again(zoo):
    zoo.store._tables.delete("layers", "position = 1")
    assert zoo.get("net 0", layers=[0])[0] == REP[0]
    with pytest.raises(FormatError, match=r"'net 0'.*l1 is missing"):
        zoo.get("net 0")
    assert states(zoo) == ["missing"]
    before = zoo.entry("net 0")
    assert zoo.add(REP, tags=["b"]).tags == ("a", "b")
    assert zoo.get("net 0") == REP
    assert zoo.verify() == []
    assert dataclasses.replace(zoo.entry("net 0"), tags=("a",), added=before.added) == before


# -- copies ---------------------------------------------------------------------------------------


def test_two_copies_are_one_entry(zoo):
    """As two writers leave it that added the same thing at once."""
    id = zoo.entry("net 0").id
    later = dataclasses.replace(REP, made=dataclasses.replace(REP.made, date="2031-01-01"))
    entry = entry_for(later, tags=(), size=0, trained_on=None)
    zoo.store._write({lance_tables.new_copy_name(): NewRecording(entry, later, signatures(later))})
    assert len(zoo.store._copies([id])) == 2
    assert [x.id for x in zoo] == [id]
    assert len(zoo) == 1
    assert zoo.get("net 0") in (REP, later)
    assert zoo.tag("net 0", "c").tags == ("a", "c")
    assert zoo.tag("net 0", remove=["a"]).tags == ("c",)
    assert zoo.verify() == []
    (name, _) = (copy.name for copy in zoo.store._copies([id]))
    zoo.store._tables.delete("layers", f"copy = '{name}'")
    assert zoo.get("net 0") in (REP, later)  # the other one is whole
    assert zoo.remove("net 0").id == id
    assert (len(zoo), zoo.verify()) == (0, [])


def test_leftovers_are_swept_when_they_are_old(zoo, monkeypatch):
    for name in (f"{1:016x}{'0' * 16}", lance_tables.new_copy_name()):
        zoo.store._tables.add("layers", [{"copy": name, "position": 0, "content": b"x"}])
    assert states(zoo, sweep=True) == ["leftover"] * 2
    assert states(zoo) == ["leftover"]  # which may be on its way
    monkeypatch.setattr(lance_store, "_YOUNG", 0.0)
    time.sleep(0.01)
    zoo.verify(sweep=True)
    assert zoo.verify() == []
    assert zoo.get("net 0") == REP


# -- places ---------------------------------------------------------------------------------------


def test_places_that_cannot_be_a_zoo(tmp_path):
    (tmp_path / "file").write_text("x")
    with rs.Zoo(tmp_path / "plain") as zoo:
        zoo.add(REP)
    for place, message in [
        ("", "after lance:, found nothing"),
        (tmp_path / "file", "found a file at"),
        (tmp_path / "plain", "open it without lance:"),
    ]:
        with pytest.raises(DataError, match=message):
            rs.Zoo(f"lance:{place}")


def test_no_file_of_the_temporary_folder_stays(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    Path(tmp_path / "t").mkdir()
    with contextlib.suppress(FormatError):
        zoo.get("net 0")
    assert list(Path(tmp_path / "t").iterdir()) == []
