"""The server of a zoo: what it answers, what it refuses, and how its page behaves in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import re
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from little_zoo import NASTY, Filled, network, recorded
from served_zoo import Served, serving
from starlette.exceptions import HTTPException

from axe import violations
from resemblance import Zoo, behaviour, compare
from resemblance.errors import DataError
from resemblance.web.application import application, load_page_files
from resemblance.web.security import SECURITY_HEADERS
from resemblance.web.worker_pool import WorkerPool, answer_query, busy_error

LIMIT = 4  # MiB
TOKEN = "a-token-of-enough-letters"
ALLOWED = {"authorization": f"Bearer {TOKEN}"}
SENT = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def there(little: Filled, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The zoo that is served, to which tests may add."""
    place = tmp_path_factory.mktemp("served") / "little"
    shutil.copytree(little.place, place)
    return Filled(place, little.entries)


@pytest.fixture(scope="module")
def server(there: Filled) -> Iterator[Served]:
    options = ("--upload-limit", str(LIMIT))
    with serving(there.place, *options, RESEMBLANCE_TOKEN=TOKEN) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=60, headers=ALLOWED) as opened:
        yield opened


def got(client: httpx.Client, path: str, **query: Any) -> Any:
    found = client.get(path, params=query)
    assert found.status_code == 200, found.text
    return found.json()


# -- what is answered ---------------------------------------------------------------------------


def test_the_zoo_and_its_entries(client: httpx.Client, there: Filled) -> None:
    zoo = got(client, "/api/zoo")
    assert zoo["name"] == "little"
    assert zoo["groups"][0]["group"] == there.group
    found = got(client, "/api/entries", find="tuned", sort="name", limit=1)
    assert found["total"] == 2
    assert [x["name"] for x in found["entries"]] == ["tuned"]
    entry = got(client, f"/api/entries/{there.id('learned elsewhere')}")
    assert entry["trained_on_name"] == "base on other samples"
    assert entry["layers"] == ["1", "3"]


def test_answers_about_recordings(client: httpx.Client, there: Filled) -> None:
    a, b = there.id("base"), there.id("tuned")
    content = got(client, "/api/pair", a=a, b=b)["content"]
    assert got(client, "/api/pair", a=b, b=a)["content"] == content
    with Zoo(there.place) as zoo:
        truth = compare(zoo.get(a), zoo.get(b), kernel="features").mean()[0]
    shown = next(x for x in content["overview"] if (x["kernel"], x["index"]) == ("features", "cka"))
    assert shown["scores"][0][1] == pytest.approx(truth, abs=1e-4)
    near = got(client, f"/api/entries/{a}/nearest", kernel="gradients", limit=2)
    assert near["matches"][0]["entry"]["id"] == b
    with Zoo(there.place) as zoo:
        differ = behaviour(zoo.get(a), zoo.get(b)).disagreement
    assert near["matches"][0]["disagreement"] == pytest.approx(differ)
    assert len(got(client, "/api/map", group=there.group)["points"]) >= 7
    families = got(client, "/api/families", group=there.group)
    assert [x["entry"]["name"] for x in families["members"][:3]] == [
        "base",
        "tuned",
        "tuned further",
    ]
    assert got(client, f"/api/entries/{a}/relatives")["relatives"][0]["entry"]["id"] == b
    advice = got(client, "/api/recommend", query=a)
    assert advice["by_data"][0]["entry"]["name"] == "learned elsewhere"
    assert advice["alike"]["matches"][0]["entry"]["id"] == b
    lost = got(client, "/api/recommend", query=there.id("base on other samples"))
    assert lost["alike"]["matches"] == []
    assert lost["alike"]["looked_at"] == 0


def test_the_page_is_fixed_files_that_a_browser_may_keep(client: httpx.Client) -> None:
    first = client.get("/")
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    again = client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/static/charts.js").headers["content-type"].startswith("text/javascript")


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/entries/" + "0" * 64, 404),
        ("/api/entries/base", 422),
        ("/api/entries/..%2f..%2fetc%2fpasswd", 404),
        ("/api/entries/" + "0" * 63 + "%0a", 422),
        ("/api/pair?a=x&b=y", 422),
        ("/api/pair?a=" + "0" * 64 + "&b=" + "0" * 64, 404),
        ("/api/map?group=..%2f..", 422),
        ("/api/families?group=" + "0" * 16, 422),
        ("/api/entries?limit=100000", 422),
        ("/api/entries?find=" + "x" * 201, 422),
        ("/static/..%2f..%2fpyproject.toml", 404),
        ("/static/zoo.html", 404),
        ("/docs", 404),
        ("/api/zoo/", 404),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_line(
    client: httpx.Client, path: str, status: int
) -> None:
    found = client.get(path)
    assert found.status_code == status
    assert set(found.json()) == {"error"}
    assert "Traceback" not in found.text
    for name, value in SECURITY_HEADERS.items():
        assert found.headers[name] == value


def test_every_answer_carries_the_headers_and_none_allows_other_origins(
    client: httpx.Client,
) -> None:
    for path in ("/", "/static/zoo.js", "/api/zoo", "/gone", "/api/openapi.json"):
        found = client.get(path, headers={"origin": "http://evil.com"})
        for name, value in SECURITY_HEADERS.items():
            assert found.headers[name] == value
        assert not [name for name in found.headers if name.startswith("access-control")]
        assert "server" not in found.headers


def test_a_foreign_name_is_not_answered(client: httpx.Client) -> None:
    assert client.get("/api/zoo", headers={"host": "evil.com"}).status_code == 421


# -- what strangers send --------------------------------------------------------------------------


def with_header(header: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + rest


class Code:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("/tmp/resemblance-was-here", "w"))


def hostile() -> dict[str, bytes]:
    deep = "[" * 200_000 + "]" * 200_000
    tensor = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
    return {
        "a header longer than any file": struct.pack("<Q", 2**62) + b"{}",
        "a tensor larger than any memory": with_header(
            json.dumps({"0.features.x": tensor}).encode()
        ),
        "a pickle": pickle.dumps(Code()),
        "deep JSON": with_header(json.dumps({"__metadata__": {"resemblance": deep}}).encode()),
        "deep JSON as the header": with_header(deep.encode()),
        "nothing known": b"\x00" * 1000,
    }


@pytest.mark.parametrize("name", sorted(hostile()))
def test_a_hostile_file_is_refused_as_data_in_a_line(
    name: str, own: Filled, tmp_path: Path
) -> None:
    path = tmp_path / "recording.rsm"
    path.write_bytes(hostile()[name])
    with Zoo(own.place) as zoo:
        found = answer_query(zoo, {"ask": "add", "of": {"path": str(path), "tags": []}})
        assert len(zoo) == 8
    assert set(found) == {"error"}  # and no fault of the program
    assert len(found["error"]) < 500
    assert str(tmp_path) not in found["error"]
    assert not Path("/tmp/resemblance-was-here").exists()


def test_uploads_are_refused_before_they_are_read(client: httpx.Client, there: Filled) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(LIMIT * 16 + 1):
            yield b"x" * 2**16

    for body in (b"x" * (LIMIT * 2**20 + 1), endless()):
        found = client.post("/api/recordings", content=body, headers=SENT)
        assert found.status_code == 413
        assert "at most 4 MiB" in found.json()["error"]
    assert client.post("/api/recordings", content=b"", headers=SENT).status_code == 422
    assert client.post("/api/recordings", files={"file": b"x"}).status_code == 415
    assert client.post("/api/recordings?tag=%07", content=b"x", headers=SENT).status_code == 422
    foreign = {**SENT, "origin": "http://evil.com"}
    assert client.post("/api/recordings", content=b"x", headers=foreign).status_code == 403
    assert client.put("/api/recordings", content=b"x", headers=SENT).status_code == 405
    assert len(Zoo(there.place)) == got(client, "/api/zoo")["entries"]


@pytest.mark.slow
def test_nothing_in_the_interface_ends_in_a_fault(server: Served, there: Filled) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    schema = schemathesis.openapi.from_url(f"{server.address}api/openapi.json", headers=ALLOWED)
    ids = st.sampled_from([entry.id for entry in there.entries.values()])
    groups, often = st.just(there.group), st.booleans()
    seen = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        few = operation.method == "post"  # each takes a process
        calm = settings(
            max_examples=2 if few else 10,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )

        @calm
        @given(operation.as_strategy(), st.data())
        def holds(case: Any, data: Any) -> None:
            for part in (case.path_parameters, case.query):
                for name in ("id", "a", "b", "query", "group"):
                    if part and name in part and data.draw(often):
                        part[name] = data.draw(groups if name == "group" else ids)
            response = case.call(timeout=60, headers=ALLOWED)
            seen.add((case.method, case.path))
            assert response.status_code < 500, (case.as_curl_command(), response.text)

        holds()
    assert len(seen) == 10


# -- in a browser -------------------------------------------------------------------------------


class Opened:
    """The page in a tab, with what it asked for and complained of."""

    def __init__(
        self, browser: Any, address: str, width: int = 1280, scheme: str = "light", **more: Any
    ) -> None:
        viewport = {"width": width, "height": 900}
        self.tab = browser.new_page(viewport=viewport, color_scheme=scheme, **more)
        self.tab.goto(f"{address}?token={TOKEN}")  # which leaves a cookie
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.address = address

    def go(self, **of: str) -> Any:
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.address}#{'&'.join(f'{key}={value}' for key, value in of.items())}")
        self.ready()
        return self.tab

    def ready(self) -> None:
        self.tab.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)


@pytest.fixture
def opened(browser: Any, server: Served) -> Iterator[Opened]:
    one = Opened(browser, server.address)
    yield one
    one.tab.close()


def eventually(tab: Any, script: str, seconds: float = 60) -> None:
    """Wait until an expression holds; the page itself may evaluate no text."""
    end = time.monotonic() + seconds
    while not tab.evaluate(script):
        assert time.monotonic() < end, script
        tab.wait_for_timeout(50)


def rows(tab: Any, table: str) -> list[str]:
    found = tab.evaluate(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[0].innerText)"
    )
    assert isinstance(found, list)
    return found


def every_view(there: Filled) -> list[dict[str, str]]:
    a, b = there.id("base"), there.id("tuned")
    return [
        {"view": "map"},
        {"view": "entry", "id": there.id(NASTY)},
        {"view": "pair", "a": a, "b": b},
        {"view": "families", "group": there.group},
        {"view": "recommend", "query": a},
        {"view": "upload"},
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_breaks_a_rule_of_axe(
    browser: Any, server: Served, there: Filled, width: int, scheme: str
) -> None:
    one = Opened(browser, server.address, width, scheme)
    found = {view["view"]: violations(one.go(**view)) for view in every_view(there)}
    assert not any(found.values()), found
    one.tab.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_asks_nobody_else_and_does_not_complain(
    browser: Any, server: Served, there: Filled, width: int, scheme: str
) -> None:
    one = Opened(browser, server.address, width, scheme)
    for view in every_view(there):
        tab = one.go(**view)
        assert tab.is_hidden("#problem"), tab.inner_text("#problem")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, view
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
        assert (brightness > 128) == (scheme == "light")
    assert one.complaints == []
    own = (server.address, "about:blank", "data:,")
    assert [url for url in one.requests if not url.startswith(own)] == []
    one.tab.close()


def test_the_map_shows_networks_by_shape_and_opens_them(opened: Opened, there: Filled) -> None:
    tab = opened.go(view="map")
    points = tab.locator("#map .point")
    assert points.count() == 7
    kinds = tab.evaluate(
        "[...document.querySelectorAll('#map .point')].map(p => p.tagName + p.classList[1])"
    )
    assert len(set(kinds)) >= 4  # shape and colour by tag
    assert "unnamed" not in tab.inner_text("#map-keys")
    tab.hover(f"#map .point[data-id='{there.id('stranger')}']")
    assert "stranger" in tab.inner_text("#tip")
    tab.focus("#map .point[tabindex='0']")
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#map .point[tabindex='0']").count() == 1
    tab.click(f"#map .point[data-id='{there.id('stranger')}']")
    tab.wait_for_selector("#nearest tbody tr")
    assert tab.inner_text("#entry-title") == "stranger"
    tab.go_back()
    opened.ready()
    assert tab.is_visible("#map")


def test_the_map_labels_the_base_and_is_zoomed_by_buttons_keys_and_wheel(opened: Opened) -> None:
    tab = opened.go(view="map")
    gap = """() => {
      const [a, b] = ["base, base", "tuned further"].map((name) =>
        document.querySelector(`#map [aria-label="${name}"]`).getBoundingClientRect());
      return Math.hypot(a.x - b.x, a.y - b.y);
    }"""
    assert tab.text_content("#map text.base") == "base"
    whole = tab.evaluate(gap)
    assert tab.is_disabled("#map-zoom button[data-by='0.5']")
    tab.click("#map-zoom button[data-by='2']")
    assert tab.text_content("#map text.base") == "base"  # which is in the middle now
    assert tab.evaluate(gap) > 1.2 * whole
    tab.focus("#map .point.base")
    tab.keyboard.press("+")
    assert tab.evaluate("document.activeElement.classList.contains('base')")
    assert tab.evaluate(gap) > 2.4 * whole
    tab.keyboard.press("0")
    assert tab.evaluate(gap) == pytest.approx(whole)
    tab.hover("#map .point.base")
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -200)
    tab.keyboard.up("Control")
    eventually(tab, "!document.querySelector('#map-zoom button[data-by=\\'0.5\\']').disabled")
    assert tab.evaluate("document.querySelectorAll('#map .point').length") <= 7


def test_networks_are_searched_sorted_and_the_address_keeps_it(
    opened: Opened, browser: Any, there: Filled
) -> None:
    tab = opened.go(view="map")
    tab.fill("#find", "tuned")
    eventually(tab, "document.querySelectorAll('#list tbody tr').length === 2")
    tab.select_option("#sort", "name")
    eventually(tab, "document.querySelector('#list tbody th').innerText === 'tuned'")
    assert rows(tab, "list") == ["tuned", "tuned further"]
    assert tab.locator("#map .point.faded").count() == 5
    shared = Opened(browser, opened.address)
    shared.tab.goto("about:blank")
    shared.tab.goto(tab.url)
    shared.ready()
    assert rows(shared.tab, "list") == ["tuned", "tuned further"]
    assert shared.tab.input_value("#find") == "tuned"
    shared.tab.close()
    tab.fill("#find", "")
    eventually(tab, "document.querySelectorAll('#list tbody tr').length > 2")
    tab.click("#map-keys button:has-text('wide')")
    eventually(tab, "document.querySelectorAll('#list tbody tr').length === 2")
    assert rows(tab, "list") == ["learned elsewhere", "wide stranger"]
    tab.fill("#find", "no such network")
    eventually(tab, "document.querySelector('#found').innerText === 'No network matches.'")


def test_a_pair_has_its_layer_map_errors_chance_behaviour_and_coordinates(
    opened: Opened, there: Filled
) -> None:
    a, b = there.id("base"), there.id("tuned further")
    tab = opened.go(view="pair", a=a, b=b)
    with Zoo(there.place) as zoo:
        reps = zoo.get(a), zoo.get(b)
    truth = compare(*reps, kernel="features")
    tab.hover("#maps-features .cell[data-i='1'][data-j='0']")
    tip = tab.inner_text("#tip")
    assert f"{truth.scores[1, 0]:.3f} ± " in tip
    assert "chance 0." in tip
    forward, back = behaviour(*reps).summary(), behaviour(*reversed(reps)).summary()
    assert forward != back  # as KL depends on the order
    assert tab.inner_text("#card-words") == forward
    assert "Their units are in the same order" in tab.inner_text("#notes")
    assert "[object Object]" not in tab.inner_text("#notes")
    assert "Features drift, dB" in tab.inner_text("#matches")
    tab.check("input[name=index][value=cka-debiased]")
    tab.check("input[name=show][value=product]")
    assert "index=cka-debiased" in tab.url
    assert "show=product" in tab.url
    tab.click("#swap")
    eventually(tab, "document.querySelector('#card-title').innerText.startsWith('tuned further')")
    opened.ready()
    assert tab.inner_text("#card-words") == back
    assert "From tuned further to base" in tab.inner_text("#notes")
    assert f"a={b}" in tab.url
    assert tab.is_checked("input[name=show][value=product]")
    tab.click("#values-box summary")
    eventually(tab, "document.querySelectorAll('#values tbody tr').length === 4")
    with tab.expect_download() as download:
        tab.click(".downloads[data-kernel=product]")
    assert download.value.suggested_filename == "tuned_further-base-product-cka-debiased.json"
    assert opened.complaints == []


def test_one_network_with_itself_and_pairs_that_are_none(opened: Opened, there: Filled) -> None:
    tab = opened.go(view="pair", a=there.id("base"), b=there.id("base"))
    assert tab.inner_text("#layers-title") == "Layer by layer: base with itself"
    tab = opened.go(view="pair", a=there.id("base"), b="0" * 64)
    assert "no entry 000000000000" in tab.inner_text("#problem")
    tab = opened.go(view="pair", a="x")
    assert "names no pair" in tab.inner_text("#problem")
    tab = opened.go(view="entry", id="0" * 64)
    assert "no entry 000000000000" in tab.inner_text("#problem")
    assert tab.is_hidden("#entry-body")
    tab = opened.go(view="constructor", group="x", kernel="__proto__", sort="toString")
    assert tab.is_visible("#map")


def test_a_network_has_its_neighbours_and_relatives(opened: Opened, there: Filled) -> None:
    tab = opened.go(view="entry", id=there.id("base"))
    tab.wait_for_selector("#relatives tbody tr")
    assert rows(tab, "nearest")[0] == "tuned"
    assert rows(tab, "relatives") == ["tuned", "tuned further"]
    tab.check("input[name=near-kernel][value=product]")
    eventually(tab, "document.querySelector('#nearest-words').innerText.includes('product')")
    assert "kernel=product" in tab.url
    tab.select_option("#other", there.id("stranger"))
    tab.wait_for_selector("#maps-features .cell")
    assert tab.inner_text("#layers-title") == "Layer by layer: base and stranger"


def test_whoever_follows_a_link_begins_at_its_head(opened: Opened, there: Filled) -> None:
    opened.tab.emulate_media(reduced_motion="reduce")  # or it scrolls for a while
    tab = opened.go(view="map")
    tab.set_viewport_size({"width": 1280, "height": 300})
    link = tab.locator("#list tbody th a").last
    link.focus()
    assert tab.evaluate("scrollY") > 0
    link.press("Enter")
    tab.wait_for_selector("#nearest tbody tr")
    assert tab.evaluate("[scrollY, document.activeElement.id]") == [0, "main"]


def test_what_others_add_is_there_at_the_next_view_and_an_empty_zoo_says_so(
    opened: Opened,
) -> None:
    tab = opened.go(view="upload")
    told = {"name": "new", "version": "1", "read_only": False, "upload_limit": 1}
    nothing = {**told, "entries": 0, "groups": [], "tags": []}
    tab.route("**/api/zoo", lambda route: route.fulfill(json=nothing))
    for view in ("Map", "Families", "Recommend"):
        tab.click(f"#views a:has-text('{view}')")
        eventually(tab, "document.querySelector('#empty').offsetParent !== null")
        assert tab.inner_text("#summary") == "No recordings yet."
    tab.click("#empty a")
    tab.wait_for_selector("#upload")
    assert tab.is_hidden("#empty")


def test_families_and_recommendations(opened: Opened, there: Filled) -> None:
    tab = opened.go(view="families", group=there.group)
    assert tab.inner_text("#families > li > a").strip() == "base"
    assert tab.locator("#families li").count() == 3
    assert "stranger" in tab.inner_text("#families-alone")
    tab = opened.go(view="recommend")
    assert tab.is_hidden("#recommend-body")
    tab.select_option("#query", there.id("base"))
    tab.wait_for_selector("#by-data tbody tr")
    assert rows(tab, "by-data") == ["learned elsewhere"]
    assert rows(tab, "alike")[0] == "tuned"
    assert f"query={there.id('base')}" in tab.url


def test_a_good_a_damaged_and_a_hostile_file_are_sent(
    opened: Opened, there: Filled, tmp_path: Path
) -> None:
    good, damaged, large = (tmp_path / f"{name}.rsm" for name in ("good", "damaged", "large"))
    name = f"{NASTY} sent"
    recorded(network(11), name).save(good)
    content = bytearray(good.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    large.write_bytes(b"0" * (LIMIT * 2**20 + 1))

    def sent(path: Path) -> str:
        tab.set_input_files("#file", path)
        tab.click("#send")
        eventually(tab, "!document.querySelector('#upload-status').innerText.includes('…')")
        return str(tab.inner_text("#upload-status"))

    tab = opened.go(view="upload")
    assert "the limit is 4.0 MiB" in sent(large)
    assert sent(damaged).startswith("Not added: the file is damaged")
    tab.fill("#upload-tags", "sent, <b>bold</b>")
    assert sent(good).startswith(r"Added <script>alert(1)</script>\x1b[31m\u202e sent.")
    with Zoo(there.place) as zoo:
        assert zoo.entry(name).tags == ("<b>bold</b>", "sent")
        assert len(zoo) == 9
    tab.click("#upload-status a")
    tab.wait_for_selector("#nearest tbody tr")
    assert tab.inner_text("#entry-title") == r"<script>alert(1)</script>\x1b[31m\u202e sent"
    assert [x for x in opened.complaints if "422" not in x] == []  # of the damaged one


def apart(act: Any, *given: Any, **more: Any) -> Any:
    """In a thread of its own: the browser's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act, *given, **more).result()


def test_a_browser_needs_the_token_in_the_address_once(
    browser: Any, server: Served, client: httpx.Client
) -> None:
    for path in ("", "static/zoo.js", "api/zoo", "api/openapi.json", "gone"):
        assert httpx.get(f"{server.address}{path}").status_code == 401
    tab = browser.new_page()
    assert tab.goto(server.address).status == 401
    tab.goto(f"{server.address}?token={TOKEN}")
    tab.wait_for_selector("#list tbody tr")
    assert "token" not in tab.url
    assert tab.evaluate("document.cookie") == ""  # no script can read it
    tab.reload()
    tab.wait_for_selector("#list tbody tr")
    tab.close()


def test_what_is_read_only_takes_no_files(little: Filled) -> None:
    async def ask() -> tuple[dict[str, Any], int]:
        with Zoo(little.place) as zoo:
            app = application(zoo, WorkerPool(str(little.place)), read_only=True)  # never started
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                zoo_said = (await client.get("/api/zoo")).json()
                sent = await client.post("/api/recordings", content=b"x", headers=SENT)
                return zoo_said, sent.status_code

    said, status = apart(asyncio.run, ask())
    assert said["read_only"]
    assert said["upload_limit"] == 0
    assert status == 404


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (busy_error("wait"), 503),
        (HTTPException(500, "x"), 500),
        (HTTPException(422, "x"), 422),
        (ValueError("secret"), 500),
    ],
)
def test_errors_of_workers_have_a_status_and_a_line(
    little: Filled, error: Exception, status: int
) -> None:
    class Failing(WorkerPool):
        def ask(self, what: str, **of: Any) -> Any:
            raise error

    async def ask() -> httpx.Response:
        with Zoo(little.place) as zoo:
            app = application(zoo, Failing(str(little.place)))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.get(f"/api/map?group={little.group}")

    found = apart(asyncio.run, ask())
    assert found.status_code == status
    assert set(found.json()) == {"error"}
    assert "secret" not in found.text
    assert ("retry-after" in found.headers) == (status == 503)


def test_where_the_zoo_is_is_not_told(little: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> httpx.Response:
        with Zoo(little.place) as zoo:

            def listed(**_: Any) -> Any:
                raise DataError(f"{zoo.store.where}/index.sqlite is damaged")

            monkeypatch.setattr(zoo.store, "listed", listed)
            transport = httpx.ASGITransport(application(zoo, WorkerPool(str(little.place))))
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.get("/api/zoo")

    found = apart(asyncio.run, ask())
    assert (found.status_code, found.json()) == (
        503,
        {"error": "the zoo/index.sqlite is damaged"},
    )


def test_when_too_many_wait_the_next_is_told_at_once(
    little: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(WorkerPool):
        def ask(self, what: str, **of: Any) -> Any:
            begun.set()
            assert go.wait(30)
            return {}

    async def ask() -> list[int]:
        with Zoo(little.place) as zoo:
            transport = httpx.ASGITransport(application(zoo, Slow(str(little.place))))
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                path = f"/api/map?group={little.group}"
                first = asyncio.create_task(client.get(path))
                await asyncio.to_thread(begun.wait, 30)
                second = await client.get(f"{path}&kernel=gradients")
                go.set()
                return [(await first).status_code, second.status_code]

    monkeypatch.setattr("resemblance.web.application._WAITING", 1)
    assert apart(asyncio.run, ask()) == [200, 503]


def test_a_sender_that_goes_away_is_no_fault(little: Filled) -> None:
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        with Zoo(little.place) as zoo:
            scope = {"type": "http", "method": "POST", "path": "/api/recordings"}
            scope |= {
                "query_string": b"",
                "headers": [(k.encode(), v.encode()) for k, v in SENT.items()],
            }
            await application(zoo, WorkerPool(str(little.place)))(
                scope, receive, send
            )  # and no error

    apart(asyncio.run, ask())
    assert sent[0]["status"] == 400


@pytest.mark.slow
def test_a_load_is_held_for_some_seconds() -> None:
    serve = pytest.importorskip("benchmarks.serve")
    found = apart(serve.measured, networks=3, clients=32, seconds=5)
    assert found["answers_once"]["errors"] == found["load"]["errors"] == 0
    assert found["load"]["requests_per_second"] > 20  # thousands in a minute, on any machine


def test_a_zoo_that_vanishes_is_missed_and_none_is_made_in_its_place(own: Filled) -> None:
    """Whoever asks is told; an upload must not begin an empty zoo at the old address."""
    body = recording_of("late", own.place.parent)
    with serving(own.place) as started, httpx.Client(base_url=started.address) as client:
        assert got(client, "/api/zoo")["entries"] == 8
        own.place.rename(own.place.parent / "elsewhere")
        time.sleep(2)  # entries are read anew after a second
        for path in ("/api/zoo", "/api/entries"):
            found = client.get(path)
            assert found.status_code == 503
            assert "moved or removed" in found.json()["error"]
            assert str(own.place) not in found.text
        sent = client.post("/api/recordings", content=body, headers=SENT, timeout=60)
        assert sent.status_code in (422, 503)
        assert "moved or removed" in sent.json()["error"]
        assert not own.place.exists()
        (own.place.parent / "elsewhere").rename(own.place)
        time.sleep(2)
        assert got(client, "/api/zoo")["entries"] == 8


def recording_of(name: str, folder: Path) -> bytes:
    path: Path = recorded(network(9), name).save(folder / "sent.rsm")
    return path.read_bytes()


def test_the_page_is_told_of_damaged_rows(own: Filled) -> None:
    with contextlib.closing(sqlite3.connect(own.place / "index.sqlite")) as db, db:
        db.execute("UPDATE entries SET facts = '{' WHERE name = 'stranger'")

    async def ask() -> Any:
        with Zoo(own.place) as zoo:
            transport = httpx.ASGITransport(application(zoo, WorkerPool(str(own.place))))
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return (await client.get("/api/zoo")).json()

    about = apart(asyncio.run, ask())
    assert about["entries"] == 7
    assert "1 row of the index is damaged" in about["damaged"]


def test_the_page_names_only_files_that_there_are():
    files = load_page_files()
    page = files["page"].body.decode()
    assert "{{" not in page
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert named
    assert {f"/static/{name}" for name in files if name != "page"} == set(named)


def test_nothing_stands_inline_that_the_policy_forbids():
    page = load_page_files()["page"].body.decode()
    assert "<style" not in page
    assert not re.search(r"\sstyle=|\son\w+=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize("name", ["charts.js", "pair.js", "zoo.js"])
def test_scripts_never_turn_text_into_markup(name):
    text = load_page_files()[name].body.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|"
        r"setAttribute\(\"style|srcdoc|https?://(?!www\.w3\.org/2000/svg)",
        text,
    )


def test_a_tag_tells_one_content_from_another():
    files = load_page_files()
    assert len({file.headers["etag"] for file in files.values()}) == len(files)
    assert re.fullmatch(r'"[0-9a-f]{24}"', files["page"].headers["etag"])
