"""What a zoo holds, kept for a moment, and answers that are kept."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from little_zoo import NASTY
from starlette.exceptions import HTTPException

from resemblance import Zoo
from resemblance.errors import DataError
from resemblance.web.cache import (
    ENTRY_OVERHEAD,
    AnswerCache,
    EntryCache,
    ZooSnapshot,
    entry_summary,
    hide_zoo_path,
    json_safe,
)
from zoo_workers import tiny


def test_entries_are_found_by_words_tags_and_groups(little):
    with Zoo(little.place) as zoo:
        held = EntryCache(zoo).now()
    assert [x.name for x in held.found("STRANGER", sort="name")] == ["stranger", "wide stranger"]
    assert [x.name for x in held.found("wide str")] == ["wide stranger"]
    assert [x.name for x in held.found("copy", tag="small", sort="name")] == [
        "tuned",
        "tuned further",
    ]
    assert {x.name for x in held.found(group=little.group)} == {*little.entries} - {
        "base on other samples"
    }
    assert [x.id for x in held.found(little.id("base")[:12])] == [little.id("base")]
    assert held.found("no such word") == []
    assert next(iter(held.found(sort="added"))).name == "learned elsewhere"  # the newest
    assert held.found(sort="parameters")[0].name == "wide stranger"


def test_groups_and_tags_are_counted(little):
    with Zoo(little.place) as zoo:
        held = EntryCache(zoo).now()
    assert (held.groups[0]["group"], held.groups[0]["count"]) == (little.group, 7)
    assert held.tags[0] == {"tag": "small", "count": 4}


def test_it_is_read_anew_after_a_while_or_when_told(own):
    with Zoo(own.place) as zoo:
        slow, quick = EntryCache(zoo, fresh=1000), EntryCache(zoo, fresh=-1)
        first, state = slow.now(), slow.now().state
        zoo.tag("base", "new")
        assert slow.now() is first
        assert "new" in quick.now().by_id[own.id("base")].tags
        assert quick.now() is quick.now()  # which did not change
        slow.forget()
        assert slow.now().state != state


def test_what_a_screen_would_obey_is_spelt_out(little):
    shown = entry_summary(little.entries[NASTY])
    assert shown["name"] == r"<script>alert(1)</script>\x1b[31m\u202e"
    assert shown["layers"] == 2
    json.dumps(shown)
    assert json_safe({"a\n": ["\ud800", 1, None, float("nan")]}) == {
        "a\\n": ["\\ud800", 1, None, None]
    }


def test_tags_of_a_zoo_from_elsewhere_are_spelt_out(little):
    odd = replace(little.entries["base"], tags=("\u202egat",))
    assert ZooSnapshot((odd,)).tags == [{"tag": r"\u202egat", "count": 1}]


def test_a_zoo_that_is_slow_to_list_is_not_listed_all_the_time():
    class Slow:
        asked = 0

        @property
        def store(self):
            return self

        def listed(self):
            self.asked += 1
            time.sleep(0.05)
            return [], []

    zoo = Slow()
    shelf, end = EntryCache(zoo, fresh=0.0), time.monotonic() + 0.3
    while time.monotonic() < end:
        shelf.now()
    assert zoo.asked == 1


def test_no_form_of_a_zoos_place_is_told(tmp_path):
    """As Lance writes it: without a slash before it, or quoted as in a URL."""
    place = tmp_path / "a zoo"
    with Zoo(place) as zoo:
        quoted = str(place).replace(" ", "%20")
        for form in (f"{place}", f"lance:{place}", f"{place}"[1:], f"file://{quoted}", quoted[1:]):
            said = hide_zoo_path(
                DataError(f"cannot read {form}/entries.lance: no such file"), zoo.store.where
            )
            assert "a zoo" not in said.replace("the zoo", "")
            assert str(tmp_path)[1:] not in said


@pytest.mark.parametrize("harm", ["damaged", "removed"])
def test_errors_of_lance_do_not_tell_the_place(tmp_path, harm):
    pytest.importorskip("lancedb")
    place = tmp_path / "secret" / "tables"
    with Zoo(f"lance:{place}") as zoo:
        zoo.add(tiny(0))
    with Zoo(f"lance:{place}", create=False) as zoo:
        len(zoo)
        if harm == "removed":
            shutil.rmtree(place)
        for path in place.glob("entries.lance/**/*"):
            if path.is_file():
                path.write_bytes(b"damaged")
        with pytest.raises(HTTPException) as error:
            EntryCache(zoo).now()
        assert "secret" not in hide_zoo_path(error.value, zoo.store.where)
        if harm == "removed":
            with pytest.raises(DataError, match="no zoo at"):
                zoo.add(tiny(1))
            assert not place.exists()


def test_damaged_rows_are_counted_and_not_shown(tmp_path):
    with Zoo(tmp_path / "zoo") as zoo:
        zoo.add_all([tiny(0), tiny(1)])
        with contextlib.closing(sqlite3.connect(tmp_path / "zoo/index.sqlite")) as db, db:
            db.execute("UPDATE entries SET facts = '{' WHERE name = 'net 1'")
        held = EntryCache(zoo).now()
    assert ([entry.name for entry in held.entries], held.damaged) == (["net 0"], 1)


def test_those_who_ask_the_same_at_once_share_one_answer():
    kept, made = AnswerCache(), []
    begun, go = threading.Event(), threading.Event()

    def make():
        made.append(1)
        begun.set()
        assert go.wait(10)
        return b"x"

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(kept.of, "a", make)
        assert begun.wait(10)
        others = [pool.submit(kept.of, "a", make) for _ in range(7)]
        go.set()
        assert {x.result(10) for x in (first, *others)} == {b"x"}
    assert len(made) == 1


def test_an_error_is_not_kept():
    kept = AnswerCache()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.of("a", fail)
    assert kept.of("a", lambda: b"yes") == b"yes"


def test_those_not_asked_for_the_longest_give_way():
    kept = AnswerCache(room=4 * (ENTRY_OVERHEAD + 10))
    for key in "abcd":
        kept.of(key, lambda: b"0" * 10)
    assert len(kept) == 4
    kept.of("a", lambda: b"!")
    kept.of("e", lambda: b"0" * 10)
    assert kept.of("a", lambda: b"new") == b"0" * 10
    assert kept.of("b", lambda: b"new") == b"new"


def test_one_that_would_take_most_of_the_room_is_not_kept():
    kept = AnswerCache(room=4 * (ENTRY_OVERHEAD + 10))
    assert kept.of("a", lambda: b"0" * 11) == b"0" * 11
    assert len(kept) == 0


def test_questions_take_room_even_if_their_answers_are_empty():
    kept = AnswerCache(room=100 * ENTRY_OVERHEAD)
    for word in range(1000):  # as somebody who searches for ever other words
        kept.of(word, lambda: b"")
    assert len(kept) == 100
