"""A zoo of either kind against a plain dictionary, with many writers, and after kill -9."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import os
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import resemblance as rs
import small
from resemblance.errors import DataError, LayerError, MismatchError, ResemblanceWarning
from resemblance.zoo import signature
from resemblance.zoo.entry import content_hash
from resemblance.zoo.signature import signatures
from zoo_workers import STORES, adds_until_killed, context, tiny, writes

POOL = [tiny(i, name=f"net {i // 2}") for i in range(6)]  # two of each name
IDS = [content_hash(rep) for rep in POOL]


# -- one thing after the other --------------------------------------------------------------------


def test_what_was_added_comes_back(zoo, tmp_path):
    rep = small.record(outputs=True, layers=["*"])
    entry = zoo.add(rep, tags=["b", "a"])
    assert (entry.id, entry.name, entry.tags) == (content_hash(rep), rep.name, ("a", "b"))
    assert zoo.get(entry.id) == rep
    assert entry.size > 1000
    assert zoo.entry(rep.name) == entry
    assert list(zoo) == zoo.list() == [entry]
    assert zoo.verify() == []
    assert repr(zoo).endswith("1 entry)")
    path = rep.renamed("from a file").save(tmp_path / "a.rsm")
    assert zoo.get(zoo.add(path).name).name == "from a file"
    assert len(zoo) == 2


def test_whatever_can_be_recorded_can_be_kept(zoo):
    every = [{}, {"elementwise": True, "keep_sums": True}, {"gradients": False}, {"buckets": 0}]
    every += [{"blocks": 0}, {"block": 1}, {"per_sample": 2}, {"max_dim": 3}, {"outputs": False}]
    for options in every:
        rep = small.record(**options)
        entry = zoo.add(rep)
        assert zoo.get(entry.id) == rep
        assert zoo.get(entry.id, layers=[0])[0] == rep[0]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
    tokens = rs.record(net, torch.randint(20, (12, 9)), unit="token", tokens=3)
    assert zoo.get(zoo.add(tokens).id) == tokens
    assert zoo.entry(tokens.name).probe.endswith(" tokens")
    assert len(zoo) == len(every) + 1
    assert zoo.verify() == []


def test_layers_are_read_alone(zoo):
    rep = small.record(layers=["*"])
    zoo.add(rep)
    for asked, at in (([1], [1]), ([rep[2].name], [2]), ([-1, 0], [0, len(rep) - 1])):
        found = zoo.get(rep.name, layers=asked)
        assert found == dataclasses.replace(rep, layers=tuple(rep[i] for i in at))
    with pytest.raises(LayerError, match="no layer 'conv9'"):
        zoo.get(rep.name, layers=["conv9"])
    with pytest.raises(LayerError, match="found none"):
        zoo.get(rep.name, layers=[])


def test_the_same_thing_is_one_entry_with_all_tags(zoo):
    rep = POOL[0]
    later = dataclasses.replace(rep, made=dataclasses.replace(rep.made, date="2031-01-01"))
    first = zoo.add(rep, tags=["a"])
    again = zoo.add(later, tags=["b"], trained_on="f" * 64)
    assert again == dataclasses.replace(first, tags=("a", "b"), trained_on="f" * 64)
    assert zoo.add(rep) == again
    assert zoo.get(rep.name) == rep  # that which came first
    assert (len(zoo), zoo.verify()) == (1, [])


def test_many_at_once_are_the_same_as_one_by_one(zoo):
    entries = zoo.add_all([*POOL, POOL[0]], tags=["x"])
    assert [entry.id for entry in entries] == [*IDS, IDS[0]]
    assert len(zoo) == len(POOL)
    assert {entry.tags for entry in zoo} == {("x",)}
    assert zoo.add_all([]) == []
    with pytest.raises(DataError, match="expected a list of"):
        zoo.add_all(POOL[0])


def test_keys(zoo):
    zoo.add_all(POOL)
    assert zoo.entry(IDS[3]).id == zoo.entry(IDS[3][:6]).id == IDS[3]
    with pytest.raises(DataError, match=f"found 2 for 'net 0'.*{IDS[0][:12]}, {IDS[1][:12]}"):
        zoo.entry("net 0")
    with pytest.raises(DataError, match=r"no entry 'net 9' in .*; nearest: net 2, net 1, net 0"):
        zoo.get("net 9")
    with pytest.raises(DataError, match="no entry"):
        zoo.entry(IDS[0][:5])  # too short
    with pytest.raises(DataError, match="no entry"):
        zoo.remove("0" * 64)
    with pytest.raises(DataError, match="found int"):
        zoo.entry(3)
    assert IDS[0] in zoo
    assert IDS[0][:8] in zoo
    assert "net 0" not in zoo  # which it does not say
    assert 3 not in zoo
    alone = zoo.add(tiny(9, name=IDS[2][:6]))
    assert zoo.entry(IDS[2][:6]) == alone  # a name goes before a beginning


def test_names_are_what_people_like(zoo):
    names = ["it's", "a/b", "../../c", '"; DROP TABLE entries', "名前", "%", "*", ""]
    for i, name in enumerate(names):
        rep = tiny(0).renamed(name)
        entry = zoo.add(rep)
        assert zoo.entry(entry.id).name == name
        if name:
            assert zoo.entry(name) == entry, i
    assert len(zoo) == len(names)


def test_lists(zoo):
    zoo.add_all(POOL[:4])
    other = zoo.add(tiny(8, data_id="other", name="far"), tags=["seldom"])
    zoo.tag(IDS[1], "seldom")
    assert [x.id for x in zoo.list(tag="seldom")] == [IDS[1], other.id]
    assert [x.id for x in zoo.list(name="net*")] == IDS[:4]
    assert [x.id for x in zoo.list(name="* 1", group=zoo.entry(IDS[0]).group)] == IDS[2:4]
    assert zoo.list(group=other.group) == [other]
    assert zoo.list(tag="never") == zoo.list(group="0" * 16) == []


def test_tags_come_and_go(zoo):
    zoo.add(POOL[0], tags=["a"])
    assert zoo.tag("net 0", "b", "c", remove=["a", "never"]).tags == ("b", "c")
    assert zoo.tag("net 0").tags == ("b", "c")
    assert zoo.tag("net 0", "b", "it's").tags == ("b", "c", "it's")
    assert zoo.tag("net 0", remove=["it's"]).tags == ("b", "c")
    with pytest.raises(DataError, match="a tag must be"):
        zoo.tag("net 0", " d")


def test_what_is_removed_at_this_moment_is_told(zoo, monkeypatch):
    entry = zoo.add(POOL[0])
    zoo.remove(entry.id)
    monkeypatch.setattr(zoo, "entry", lambda key: entry)  # as it was found just before
    for use in (zoo.get, zoo.remove, zoo.tag):
        with pytest.raises(DataError, match="has just been removed"):
            use("net 0")


def test_what_a_network_was_trained_on_is_a_key_or_an_id(zoo):
    reference = zoo.add(POOL[0])
    assert zoo.add(POOL[2], trained_on="net 0").trained_on == reference.id
    assert zoo.add(POOL[4], trained_on="0" * 64).trained_on == "0" * 64
    with pytest.raises(DataError, match="no entry 'nobody'"):
        zoo.add(POOL[5], trained_on="nobody")


def test_a_share_of_a_recording_is_refused(zoo):
    with pytest.raises(MismatchError, match=r"'net 0' is an incomplete recording.*1 of 2.*merge"):
        zoo.add(tiny(0, shard=(0, 2)))


def test_a_place_must_be_named():
    for bad in ("", None, 3):
        with pytest.raises(DataError, match="expected the folder of a zoo"):
            rs.Zoo(bad)


def test_a_zoo_that_must_be_there(place):
    with pytest.raises(DataError, match="no zoo at"):
        rs.Zoo(place, create=False)
    with rs.Zoo(place) as zoo:
        assert (len(zoo), list(zoo), zoo.verify(), "x" in zoo) == (0, [], [], False)
        with pytest.raises(DataError, match=r"no entry 'x' in .*, it is empty"):
            zoo.get("x")
        zoo.add(POOL[0])
    with rs.Zoo(place, create=False) as zoo:
        assert len(zoo) == 1


def test_a_closed_zoo_opens_again(zoo):
    zoo.add(POOL[0])
    zoo.close()
    zoo.close()
    assert len(zoo) == 1


def test_export_writes_plain_files(zoo, tmp_path):
    zoo.add_all([POOL[0], POOL[1], tiny(0, name="../../out")], tags=["a"])
    files = zoo.export(tmp_path / "out")
    assert len({file.name for file in files}) == 3
    assert all(file.parent == tmp_path / "out" for file in files)
    index = json.loads((tmp_path / "out/index.json").read_text())["entries"]
    for file, about, entry in zip(files, index, zoo, strict=True):
        assert about == {"file": file.name, **entry.to_dict()}
        assert rs.load(file) == zoo.get(entry.id)
    assert len(zoo.export(tmp_path / "one", [IDS[1]])) == 1
    for folder, keys, message in [
        (tmp_path / "out", None, "new or an empty folder"),
        (tmp_path / "new", "net 0", "expected a list of keys"),
        (tmp_path / "new", ["nobody"], "no entry 'nobody'"),
    ]:
        with pytest.raises(DataError, match=message):
            zoo.export(folder, keys)


def test_signatures_come_in_blocks_each_entry_once(zoo, monkeypatch):
    monkeypatch.setattr(signature, "AT_ONCE", 2)
    ids = [entry.id for entry in zoo.add_all(POOL)]
    group = zoo.entry(ids[0]).group
    for among in (None, ids[1:4], ids[:1], []):
        blocks = list(zoo.store.signatures(group, "features", among=among))
        found = [id for several, _ in blocks for id in several]
        assert sorted(found) == sorted(ids if among is None else among)
        assert all(len(several) == len(vectors) for several, vectors in blocks)
    own = signatures(POOL[2])["features"]
    assert zoo.store.nearest(group, "features", own, 9)[0][0] == ids[2]
    near = zoo.store.nearest(group, "features", own, 9, among=ids[3:5])
    assert {id for id, _ in near} == set(ids[3:5])
    assert list(zoo.store.signatures("0" * 16, "features", among=ids)) == []


# -- against a plain dictionary -------------------------------------------------------------------

which = st.integers(0, len(POOL) - 1)
words = st.sampled_from(["a", "b", "it's"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), which, st.sets(words)),
        st.tuples(st.just("tag"), which, st.sets(words)),
        st.tuples(st.just("untag"), which, st.sets(words)),
        st.tuples(st.just("remove"), which, st.just(None)),
        st.tuples(st.just("add all"), st.lists(which, max_size=4), st.sets(words)),
    ),
    min_size=1,
    max_size=8,
)


def do(zoo, model, step):
    """A step on a zoo and on a dictionary {id: tags} in the order of adding."""
    kind, at, tags = step
    if kind == "add all":
        zoo.add_all([POOL[i] for i in at], tags=tags)
        for i in at:
            model.setdefault(IDS[i], set()).update(tags)
        return
    id = IDS[at]
    if kind == "add":
        assert zoo.add(POOL[at], tags=tags).id == id
        model.setdefault(id, set()).update(tags)
    elif id not in model:
        with pytest.raises(DataError, match="no entry"):
            _ = zoo.remove(id) if kind == "remove" else zoo.tag(id, *tags)
    elif kind == "remove":
        assert zoo.remove(id).tags == tuple(sorted(model.pop(id)))
    elif kind == "tag":
        zoo.tag(id, *tags)
        model[id] |= tags
    else:
        zoo.tag(id, remove=tags)
        model[id] -= tags


def agrees(zoo, model):
    assert [(entry.id, set(entry.tags)) for entry in zoo] == list(model.items())
    assert len(zoo) == len(model)
    for id, rep in zip(IDS, POOL, strict=True):
        assert (id in zoo) == (id in model)
        if id in model:
            assert zoo.get(id) == rep
    for tag in ("a", "it's"):
        assert [x.id for x in zoo.list(tag=tag)] == [
            id for id, tags in model.items() if tag in tags
        ]
    names = {id: rep.name for id, rep in zip(IDS, POOL, strict=True)}
    found = [x.id for x in zoo.list(name="*[12]")]
    assert found == [id for id in model if fnmatch.fnmatch(names[id], "*[12]")]
    group = zoo.entry(next(iter(model))).group if model else "0" * 16
    near = zoo.store.nearest(group, "features", signatures(POOL[0])["features"], 99)
    assert {id for id, _ in near} == set(model)
    assert IDS[0] not in model or near[0][0] == IDS[0]
    assert zoo.verify() == []


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(steps=steps)
def test_a_zoo_is_a_dictionary_that_lasts(kind, steps):
    if kind == "lance":
        pytest.importorskip("lancedb")
    with tempfile.TemporaryDirectory() as folder:
        place = f"lance:{folder}/zoo" if kind == "lance" else f"{folder}/zoo"
        model = {}
        with rs.Zoo(place) as zoo:
            for step in steps:
                do(zoo, model, step)
        with rs.Zoo(place) as again:
            agrees(again, model)


# -- several at once ------------------------------------------------------------------------------


def test_sixteen_processes_write_at_once(place):
    """Each adds recordings of its own and some that all add, tags, and removes one."""
    own, shared = 3, range(2)
    writers = 4 if "s3:" in place else 16  # the server answers one request after the other
    start, ends, children = context(), [], []
    store = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for worker in range(writers):
        here, there = start.Pipe(duplex=False)
        child = start.Process(target=writes, args=(place, worker, own, shared, store, there))
        child.start()
        there.close()
        ends.append(here)
        children.append(child)
    kept = [id for end in ends for id in end.recv()]
    for child in children:
        child.join()
        assert child.exitcode == 0
    with rs.Zoo(place, create=False) as zoo:
        ids = {entry.id: entry for entry in zoo}
        assert len(zoo) == len(ids) == writers * (own - 1) + len(shared)
        assert set(kept) < set(ids)
        for rep in map(tiny, shared):
            assert ids[content_hash(rep)].tags == tuple(sorted(f"by {i}" for i in range(writers)))
        assert sum(entry.tags == ("first", "of its writer") for entry in zoo) == writers
        assert zoo.verify() == []
        assert all(zoo.get(id).samples == 32 for id in kept[::5])


def test_threads_share_a_zoo(zoo):
    failed = []

    def work(i):
        try:
            for k in range(3):
                entry = zoo.add(tiny(100 * i + k), tags=["t"])
                assert zoo.get(entry.id).name == entry.name
                assert entry in zoo.list(tag="t")
        except BaseException as error:  # a thread's own would be lost
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(zoo) == 12
    assert zoo.verify() == []


def test_a_reader_sees_whole_entries_or_none_while_they_come_and_go(place):
    """One writer adds and removes; whatever a reader lists loads, or has been removed."""
    stop, failed = threading.Event(), []

    def write():
        try:
            with rs.Zoo(place) as zoo:
                while not stop.is_set():
                    for rep in POOL[:3]:
                        zoo.add(rep)
                    for id in IDS[:3]:
                        zoo.remove(id)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    reads, told = 0, []
    try:
        with rs.Zoo(place) as zoo:
            begun = time.monotonic()
            while (spent := time.monotonic() - begun) < 60:
                if spent > 1.5 and reads + len(told) > 3:
                    break
                for entry in zoo:
                    try:
                        assert zoo.get(entry.id) in POOL
                        reads += 1
                    except DataError as error:
                        told.append(str(error))
                assert [x for x in zoo.verify() if x.state != "leftover"] == []
    finally:
        stop.set()
        writer.join()
    assert failed == []
    assert reads + len(told) > 3
    assert all("removed" in text or "no entry" in text for text in told)


# -- kill -9 --------------------------------------------------------------------------------------


def killed_at(place, moments):
    """Kill writers at moments, and look after each at all that was promised: their ids."""
    start, promised = context(), []
    for moment in range(moments):
        here, there = start.Pipe(duplex=False)
        child = start.Process(target=adds_until_killed, args=(place, 1000 * moment, there))
        child.start()
        there.close()
        assert here.recv_bytes() == b"begun"
        for _ in range(moment % 3):
            promised.append(here.recv_bytes().decode())
        time.sleep(moment * 0.0007 % 0.02)  # an addition takes some ten milliseconds
        child.kill()
        child.join()
        while True:
            try:
                promised.append(here.recv_bytes().decode())
            except (EOFError, OSError):
                break
        if Path(place.removeprefix("lance:")).exists():
            with rs.Zoo(place) as zoo:
                ids = {entry.id for entry in zoo}
                assert set(promised) <= ids
                assert all(zoo.get(id).samples == 32 for id in promised[-3:])
    return promised


def after_kills(place, promised):
    with rs.Zoo(place) as zoo:
        assert set(promised) <= {entry.id for entry in zoo}
        for entry in zoo:
            assert content_hash(zoo.get(entry.id)) == entry.id
        assert {damage.state for damage in zoo.verify()} <= {"leftover"}
        return zoo.verify(sweep=True)


def test_every_entry_that_was_promised_is_there_after_kill_9_at_fifty_moments(tmp_path):
    place = str(tmp_path / "zoo")
    promised = killed_at(place, 50)
    assert len(promised) > 40
    after_kills(place, promised)
    with rs.Zoo(place) as zoo:
        assert zoo.verify() == []
        assert list((tmp_path / "zoo").rglob(".*.part")) == []


@pytest.mark.parametrize("moments", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_the_same_of_lance(tmp_path, moments):
    pytest.importorskip("lancedb")
    place = f"lance:{tmp_path / 'zoo'}"
    after_kills(place, killed_at(place, moments))


@pytest.mark.parametrize("what", ["name", "probe"])
def test_a_name_that_is_no_text_is_refused_before_anything_is_written(zoo, place, what):
    """A lone surrogate, as from a file name that is not UTF-8, has no form in an index."""
    rep = tiny(0, name="net \udcff") if what == "name" else tiny(0, data_id="x\udcff")
    with pytest.raises(DataError, match=rf"cannot add.*: {what} must be valid Unicode"):
        zoo.add(rep)
    assert zoo.verify() == []
    assert len(zoo) == 0
    zoo.add(tiny(1))
    with pytest.raises(DataError, match=r"no entry '\\udcff'"):
        zoo.remove("\udcff")


def test_a_damaged_row_is_left_out_with_a_warning_and_the_others_go_on(zoo, place):
    """Of a folder and of Lance tables alike: listing, search and verify name it."""
    rep = tiny(1)  # recorded once: a recording holds when it was made
    kept, harmed = zoo.add(tiny(0)), zoo.add(rep)
    zoo.close()
    spoil(place, harmed.id)
    with pytest.warns(ResemblanceWarning, match=r"1 row of the index is damaged.*zoo verify"):
        assert zoo.list() == [kept]
    assert [entry.id for entry in zoo] == [kept.id]
    with pytest.raises(DataError, match=r"no entry 'net 1'.*1 row of the index is damaged"):
        zoo.get("net 1")
    found = zoo.search("net 0")
    assert (len(found), found.left_out["damaged"]) == (0, 1)
    assert zoo.derivatives("net 0").left_out == {"damaged": 1}
    assert [x.state for x in zoo.verify(sweep=True)] == ["damaged"]
    again = zoo.add(tiny(1))  # recorded later, so that its file may differ
    assert (zoo.verify(sweep=True), again.id) == ([], harmed.id)
    assert content_hash(zoo.get("net 1")) == harmed.id


def spoil(place, id):
    """Write facts that are no JSON into the row of an entry."""
    if place.startswith("lance:"):
        import lancedb

        table = lancedb.connect(place.removeprefix("lance:")).open_table("entries")
        table.update(where=f"id = '{id}'", values={"facts": "{"})
        return
    with contextlib.closing(sqlite3.connect(f"{place}/index.sqlite")) as db, db:
        db.execute("UPDATE entries SET facts = '{' WHERE id = ?", (id,))
