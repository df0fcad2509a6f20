"""The files of a zoo in a folder, and what becomes of it when they are damaged."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resemblance as rs
from resemblance.errors import DataError, FormatError, ResemblanceWarning
from resemblance.representation.file_format import representation_bytes
from resemblance.zoo import folder_store, sqlite_index
from resemblance.zoo.folder_store import FolderStore, HashedFiles
from resemblance.zoo.signature import signature_checksums, signatures
from resemblance.zoo.zoo import Zoo
from zoo_workers import adds_with_little_room, context, tiny

REP, OTHER = tiny(0), tiny(1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "zoo"


@pytest.fixture
def zoo(folder):
    with rs.Zoo(folder) as found:
        found.add(REP, tags=["a"])
        yield found


def test_an_entry_that_is_removed_and_added_anew_while_it_is_verified_is_whole(
    zoo, folder, monkeypatch
):
    """Its file may be away at the moment at which it is read, and its row back afterwards."""
    (entry,) = zoo

    def loaded(*_):
        zoo.remove(entry.id)
        time.sleep(0.002)  # times are in milliseconds
        zoo.add(REP)
        raise FormatError("as where the file is away")

    before = the_file(folder)
    monkeypatch.setattr(FolderStore, "_loaded", loaded)
    assert [damage for damage in zoo.verify() if damage.state != "leftover"] == []
    assert the_file(folder) == before


def the_file(folder):
    (found,) = folder.glob("objects/*/*.rsm")
    return found


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(bytes(content))


def edit(folder, statement, *values):
    with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as db, db:
        db.execute(statement, values)


def states(zoo, **options):
    return [(damage.state, damage.where) for damage in zoo.verify(**options)]


@contextlib.contextmanager
def ordinary_user():
    """Root may write anywhere, so be somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


# -- the layout -----------------------------------------------------------------------------------


def test_a_file_goes_by_its_own_hash_and_can_be_read_by_itself(zoo, folder):
    path = the_file(folder)
    assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.parent.name == path.stem[:2]
    assert rs.load(path) == REP
    zoo.close()
    assert sorted(x.name for x in folder.iterdir()) == ["index.sqlite", "objects"]


def test_a_removed_entry_leaves_nothing(zoo, folder):
    zoo.remove(REP.name)
    assert list(folder.glob("objects/*/*")) == []
    with sqlite3.connect(folder / "index.sqlite") as db:
        for table in ("entries", "tags", "signatures"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    db.close()


def test_nothing_is_made_before_something_is_added(folder):
    zoo = rs.Zoo(folder)
    assert len(zoo) == 0
    with pytest.raises(DataError, match="no entry"):
        zoo.tag("x", "y")
    assert not folder.exists()


# -- damage ---------------------------------------------------------------------------------------


def test_no_flipped_byte_is_served(zoo, folder):
    """Wherever it is in the file, and whether all or the layer with the byte is read."""
    path, whole = the_file(folder), the_file(folder).read_bytes()
    for at in (0, 9, 200, len(whole) // 2, len(whole) - 1):
        flip(path, at)
        with pytest.raises(FormatError, match=rf"entry 'net 0' \({zoo.entry('net 0').id[:12]}\)"):
            zoo.get("net 0")
        served = []
        for i in range(2):
            with contextlib.suppress(FormatError):
                served.append(zoo.get("net 0", layers=[i])[0] == REP[i])
        assert all(served)
        assert len(served) < 2
        assert states(zoo) == [("damaged", str(path.relative_to(folder)))]
        path.write_bytes(whole)
    assert zoo.verify() == []


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_truncated_file_is_not_served(zoo, folder, left):
    path = the_file(folder)
    path.write_bytes(path.read_bytes()[:left])
    for layers in (None, [0]):
        with pytest.raises(FormatError, match="bytes differ from those that were added"):
            zoo.get("net 0", layers=layers)
    assert [state for state, _ in states(zoo)] == ["damaged"]


def test_a_missing_file_is_told(zoo, folder):
    the_file(folder).unlink()
    for layers in (None, [0]):
        with pytest.raises(FormatError, match=r"is missing; add the recording again, or remove"):
            zoo.get("net 0", layers=layers)
    (damage,) = zoo.verify()
    assert (damage.state, damage.entry) == ("missing", zoo.entry("net 0"))
    zoo.remove("net 0")
    assert zoo.verify() == []


def test_another_recording_in_its_place_is_not_served(zoo, folder, tmp_path):
    shutil.copy(OTHER.save(tmp_path / "b.rsm"), the_file(folder))
    for layers in (None, [0]):
        with pytest.raises(FormatError, match="bytes differ from those that were added"):
            zoo.get("net 0", layers=layers)


@pytest.mark.parametrize("harm", ["flipped", "missing", "truncated"])
def test_adding_it_again_repairs_an_entry(zoo, folder, harm):
    path = the_file(folder)
    before = zoo.entry("net 0")
    if harm == "flipped":
        flip(path, 300)
    elif harm == "missing":
        shutil.rmtree(folder / "objects")
    else:
        path.write_bytes(path.read_bytes()[:50])
    again = tiny(0)  # made at another time, so that its bytes may be others
    assert zoo.add(again, tags=["b"]).tags == ("a", "b")
    assert zoo.get("net 0") in (REP, again)
    assert zoo.entry("net 0").added == before.added
    assert zoo.verify() == []


def test_an_index_that_says_something_else_than_the_file_is_told(zoo, folder):
    with sqlite3.connect(folder / "index.sqlite") as db:
        db.execute(
            "UPDATE entries SET facts = replace(facts, '\"samples\": 32', '\"samples\": 33')"
        )
    db.close()
    (damage,) = zoo.verify()
    assert (damage.state, damage.where) == ("damaged", "index.sqlite, row 1")
    assert "checksum" in damage.words


@pytest.mark.parametrize("key", ["$.check", "$.signatures"])
def test_a_row_without_its_checksums_is_damaged(zoo, folder, key):
    edit(folder, f"UPDATE entries SET facts = json_remove(facts, '{key}')")
    assert [state for state, _ in states(zoo)] == ["damaged"]
    with pytest.raises(DataError, match="1 row of the index is damaged"):
        zoo.get("net 0")
    zoo.add(REP)
    assert zoo.verify() == []


def test_signatures_of_something_else_are_told(zoo, folder):
    """Also where their checksums are their own, as somebody would write them who edits an index."""
    row = zoo.store._found(zoo.entry("net 0").id)
    vectors = signatures(OTHER)
    with zoo.store._index.writing() as db:
        forged = dataclasses.replace(row, signatures=signature_checksums(vectors))
        sqlite_index.write_row(db, forged, vectors)
    (damage,) = zoo.verify()
    assert damage.words == "its signatures differ from its recording's: features"
    with zoo.store._index.writing() as db:
        entry = dataclasses.replace(row.entry, samples=33)
        sqlite_index.write_row(db, dataclasses.replace(row, entry=entry), signatures(REP))
    (damage,) = zoo.verify()
    assert damage.words == "the index disagrees with its recording"
    zoo.remove("net 0")
    assert zoo.add(REP).tags == ()
    assert zoo.verify() == []


def test_leftovers_and_foreign_files_are_told_apart_and_only_the_first_are_swept(zoo, folder):
    place = folder / "objects"
    left = [place / "aa" / f"{'a' * 64}.rsm", place / "aa/.resemblance-0123456789abcdef.part"]
    foreign = [place / "notes.txt", place / "aa/b.rsm", place / "ab" / f"{'a' * 64}.rsm"]
    for path in (*left, *foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    expected = {("leftover", str(x.relative_to(folder))) for x in left}
    expected |= {("foreign", str(x.relative_to(folder))) for x in foreign}
    assert set(states(zoo)) == set(states(zoo, sweep=True)) == expected
    assert {state for state, _ in states(zoo)} == {"foreign"}
    assert all(path.exists() for path in foreign)
    assert zoo.get("net 0") == REP


def test_a_half_removed_entry_is_a_leftover(zoo, folder):
    path, content = the_file(folder), the_file(folder).read_bytes()
    zoo.remove("net 0")
    path.write_bytes(content)  # as if the process had died before it removed the file
    assert "net 0" not in zoo
    assert states(zoo) == [("leftover", str(path.relative_to(folder)))]
    zoo.add(REP)
    assert zoo.get("net 0") == REP
    zoo.verify(sweep=True)
    assert zoo.verify() == []


def test_a_file_that_was_swept_before_it_was_entered_is_written_again(zoo, folder):
    """A sweep may take the file of a live writer, which looks again under the lock."""
    store = zoo.store
    assert isinstance(store, FolderStore)
    new = zoo._new_recording(OTHER, (), None)
    file = store._files.write(representation_bytes(OTHER))
    assert [state for state, _ in states(zoo, sweep=True)] == ["leftover"]
    with store._index.writing() as db:
        store._enter(db, new, file, [])
    assert zoo.get(OTHER.name) == OTHER
    assert zoo.verify() == []


def test_of_two_writers_of_the_same_the_slower_leaves_no_file(zoo, folder):
    """Both write a file, which differ in when they were made; one is entered."""
    store = zoo.store
    assert isinstance(store, FolderStore)
    zoo.remove("net 0")
    later = dataclasses.replace(REP, made=dataclasses.replace(REP.made, date="2031-01-01"))
    first, second = (zoo._new_recording(rep, (), None) for rep in (REP, later))
    files = [store._files.write(representation_bytes(x.rep)) for x in (first, second)]
    for new, file in zip((first, second), files, strict=True):
        unused = []
        with store._index.writing() as db:
            store._enter(db, new, file, unused)
        store._remove_unused(unused)
    assert len(zoo) == 1
    assert zoo.verify() == []


def test_a_file_has_its_name_on_the_disk_before_it_is_entered(zoo, monkeypatch):
    done = []
    sync, enter = folder_store.sync_folder, FolderStore._enter
    monkeypatch.setattr(folder_store, "sync_folder", lambda x: (done.append(x), sync(x)))
    monkeypatch.setattr(FolderStore, "_enter", lambda *x: (done.append("entered"), enter(*x))[1])
    zoo.add(OTHER)
    path = zoo.store._files.path(zoo.store._found(zoo.entry(OTHER.name).id).file.digest)
    assert path.parent in done[: done.index("entered")]


def test_what_is_entered_while_files_are_listed_is_no_leftover(zoo, monkeypatch):
    listed = HashedFiles.listed
    monkeypatch.setattr(HashedFiles, "listed", lambda files: (zoo.add(OTHER), listed(files))[1])
    assert zoo.verify(sweep=True) == []
    assert zoo.get(OTHER.name) == OTHER


def test_a_file_that_was_entered_before_it_is_swept_stays(zoo, folder):
    zoo.store._remove_unused([the_file(folder).stem])  # found before it was entered
    assert zoo.get("net 0") == REP


# -- the index ------------------------------------------------------------------------------------


def test_a_deleted_index_is_told_and_the_recordings_can_be_added_elsewhere(zoo, folder, tmp_path):
    zoo.close()
    (folder / "index.sqlite").unlink()
    for use in (lambda: rs.Zoo(folder), lambda: len(zoo), lambda: zoo.add(OTHER)):
        with pytest.raises(FormatError, match=r"recordings but no index\.sqlite.*zoo add NEW"):
            use()
    with rs.Zoo(tmp_path / "new") as new:
        new.add_all(sorted(folder.glob("objects/*/*.rsm")))
        assert new.get("net 0") == REP


def test_an_index_deleted_while_it_is_open_is_missed(zoo, folder):
    (folder / "index.sqlite").unlink()
    with pytest.raises(FormatError, match="the index was removed"):
        zoo.add(OTHER)


def test_an_index_put_back_while_it_is_open_is_taken_up(zoo, folder):
    zoo.close()
    shutil.copy(folder / "index.sqlite", folder.parent / "backup")
    zoo.add(OTHER)
    zoo.close()
    assert len(zoo) == 2
    os.replace(folder.parent / "backup", folder / "index.sqlite")
    for rest in ("-wal", "-shm"):
        (folder / f"index.sqlite{rest}").unlink(missing_ok=True)
    assert len(zoo) == 1
    assert [state for state, _ in states(zoo)] == ["leftover"]


@pytest.mark.parametrize("use", ["remove", "get", "add"])
def test_no_row_leads_out_of_the_zoo(zoo, folder, use):
    """A digest that is a path must neither be read nor removed."""
    victim = folder.parent / "elsewhere" / "victim.rsm"
    victim.parent.mkdir()
    OTHER.save(victim)
    edit(folder, "UPDATE entries SET digest = '../elsewhere/victim'")
    (folder / "objects" / "..").mkdir(exist_ok=True)
    if use == "add":
        zoo.add(REP)
    else:
        with pytest.raises(DataError, match=r"no entry 'net 0'.*1 row of the index is damaged"):
            getattr(zoo, use)("net 0")
    with pytest.raises(FormatError, match="64 hexadecimal digits"):
        zoo.store._files.path("../elsewhere/victim")
    assert victim.exists()


ROWS = 3
COLUMNS = {
    "entries": ("number", "id", "name", "grp", "digest", "head", "facts"),
    "tags": ("number", "tag"),
    "signatures": ("number", "grp", "kernel", "vector"),
}
CELLS = [(table, column) for table, names in COLUMNS.items() for column in names]
VALUES = st.one_of(
    st.sampled_from(["", "{", "{}", "[]", "null", "net 1", "../victim", "0" * 64, "\x00", "b"]),
    st.sampled_from([b"", b"\xff\xfe", bytes(8192), bytes([0, 124]) * 4096]),
    st.integers(-1, 9),
    st.text(max_size=20),
    st.binary(max_size=40),
)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A zoo of three entries, and what it answers."""
    folder = tmp_path_factory.mktemp("cells") / "zoo"
    with rs.Zoo(folder) as zoo:
        for i in range(ROWS):
            zoo.add(tiny(i), tags=[f"tag {i}"])
        ids = [entry.id for entry in zoo]
        near = {id: zoo.search(id, limit=9).matches for id in ids}
    return folder, near


@pytest.mark.parametrize(("table", "column"), CELLS)
@settings(max_examples=5, deadline=None)
@given(row=st.integers(0, ROWS - 1), value=VALUES, as_text=st.booleans())
def test_an_edit_of_any_cell_is_reported_and_answers_stay_right(
    three, table, column, row, value, as_text
):
    folder, near = three
    with tempfile.TemporaryDirectory() as name:
        place = shutil.copytree(folder, Path(name, "zoo"))
        new = "CAST(? AS TEXT)" if as_text else "?"
        which = f"number IN (SELECT number FROM {table} LIMIT 1 OFFSET {row})"
        try:
            edit(place, f"UPDATE {table} SET {column} = {new} WHERE {which}", value)
        except (sqlite3.IntegrityError, UnicodeEncodeError):
            return  # the index refuses it by itself
        same = dump(place) == dump(folder)
        with Zoo(place, create=False) as zoo, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResemblanceWarning)
            entries, damage = zoo.list(), zoo.verify()
            assert same or damage, "an edit went unnoticed"
            for entry in entries:  # whatever is still listed is still right
                assert zoo.get(entry.id).name == entry.name
                found = zoo.search(entry.id, limit=9)
                expected = {x.entry.id: x.score for x in near[entry.id]}
                assert {x.entry.id: x.score for x in found}.items() <= expected.items()
                lost = ROWS - 1 - len(found)
                assert found.left_out.get("damaged", 0) >= lost or OTHER_GROUP in found.left_out
            for i in range(ROWS):  # adding the recordings again repairs all that is listed
                zoo.add(tiny(i))
            zoo.derivatives(f"net {row}")
            zoo.family_tree()


OTHER_GROUP = "recorded on different samples or with different settings"


def dump(place):
    with contextlib.closing(sqlite3.connect(place / "index.sqlite")) as db:
        db.text_factory = bytes
        return [db.execute(f"SELECT * FROM {table}").fetchall() for table in COLUMNS]


# -- places ---------------------------------------------------------------------------------------


def test_places_that_cannot_be_a_zoo(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("x")
    with pytest.raises(DataError, match="found a file at"):
        rs.Zoo(tmp_path / "file")
    with pytest.raises(DataError, match="is neither a zoo nor empty"):
        rs.Zoo(tmp_path / "full")
    with pytest.raises(DataError, match=r"found a file at .*, or above it"):
        rs.Zoo(tmp_path / "file/zoo")
    (tmp_path / "empty").mkdir()
    with rs.Zoo(tmp_path / "empty") as zoo:
        zoo.add(REP)


def test_a_folder_that_may_only_be_read_can_be_read():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name, "zoo")
        with rs.Zoo(place) as zoo:
            zoo.add(REP, tags=["a"])
        for path in (Path(name), place, *place.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with ordinary_user(), Zoo(place) as zoo:
            assert [entry.tags for entry in zoo] == [("a",)]
            assert zoo.get("net 0") == REP
            assert zoo.verify() == []
            for write in (
                lambda: zoo.add(OTHER),
                lambda: zoo.add(REP, tags=["b"]),
                lambda: zoo.remove("net 0"),
                lambda: zoo.tag("net 0", "b"),
            ):
                with pytest.raises(DataError, match=r"may be written to|writable"):
                    write()
            assert zoo.entry("net 0").tags == ("a",)
            with pytest.raises(DataError, match="cannot create the folder"):
                Zoo(Path(name, "new")).add(OTHER)
        for path in (Path(name), place, *place.rglob("*")):
            path.chmod(0o777)


@pytest.mark.parametrize("room", [3_000, 20_000])
def test_a_full_disk_is_told_and_nothing_is_broken(zoo, folder, room):
    """Room for no file, and for a file but not for the index's log."""
    zoo.close()
    start = context()
    here, there = start.Pipe(duplex=False)
    child = start.Process(target=adds_with_little_room, args=(str(folder), room, there))
    child.start()
    there.close()
    refused, _, _ = here.recv(), here.recv(), here.recv()
    child.join()
    assert isinstance(refused, DataError)
    assert "has room" in str(refused)
    assert len(zoo) == 2
    assert zoo.get("net 0") == REP
    assert zoo.get("net 2").samples == 32
    assert zoo.verify() == []


def test_a_folder_that_may_be_entered_but_not_read_is_written_to():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o333)
        with ordinary_user():
            folder_store.sync_folder(Path(name))


def test_a_forked_child_opens_the_index_anew(zoo, folder):
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            zoo.tag("net 0", "by the child")
            status = 0 if zoo.get("net 0") == REP else 2
        os._exit(status)
    zoo.tag("net 0", "by the parent")
    zoo.close()
    assert os.waitpid(child, 0)[1] == 0
    assert zoo.entry("net 0").tags == ("a", "by the child", "by the parent")
