"""What a zoo holds, as it was a moment ago."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from little_zoo import NASTY

from resemblance import Zoo
from resemblance.web.shelf import Holding, Shelf, in_a_list, spelt_out


def test_entries_are_found_by_words_tags_and_groups(little):
    with Zoo(little.place) as zoo:
        held = Shelf(zoo).now()
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
        held = Shelf(zoo).now()
    assert (held.groups[0]["group"], held.groups[0]["count"]) == (little.group, 7)
    assert held.tags[0] == {"tag": "small", "count": 4}


def test_it_is_read_anew_after_a_while_or_when_told(own):
    with Zoo(own.place) as zoo:
        slow, quick = Shelf(zoo, fresh=1000), Shelf(zoo, fresh=-1)
        first, state = slow.now(), slow.now().state
        zoo.tag("base", "new")
        assert slow.now() is first
        assert "new" in quick.now().by_id[own.id("base")].tags
        assert quick.now() is quick.now()  # which did not change
        slow.forget()
        assert slow.now().state != state


def test_what_a_screen_would_obey_is_spelt_out(little):
    shown = in_a_list(little.entries[NASTY])
    assert shown["name"] == r"<script>alert(1)</script>\x1b[31m\u202e"
    assert shown["layers"] == 2
    json.dumps(shown)
    assert spelt_out({"a\n": ["\ud800", 1, None, float("nan")]}) == {
        "a\\n": ["\\ud800", 1, None, None]
    }


def test_tags_of_a_zoo_from_elsewhere_are_spelt_out(little):
    odd = replace(little.entries["base"], tags=("\u202egat",))
    assert Holding((odd,)).tags == [{"tag": r"\u202egat", "count": 1}]


def test_a_zoo_that_is_slow_to_list_is_not_listed_all_the_time():
    class Slow:
        asked = 0

        def list(self):
            self.asked += 1
            time.sleep(0.05)
            return []

    zoo = Slow()
    shelf, end = Shelf(zoo, fresh=0.0), time.monotonic() + 0.3
    while time.monotonic() < end:
        shelf.now()
    assert zoo.asked == 1
