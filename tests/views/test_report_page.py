"""The report page: what is embedded in it, and how it behaves in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resemblance import record_arrays
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.representation.representation import Representation
from resemblance.similarity.comparison import Comparison
from resemblance.similarity.two_networks import compare
from resemblance.views import report_page
from resemblance.views.report_page import contents, report

NASTY = "</script><script>alert(1)</script> & \"quoted\" 'twice' {{data}} \u2028<!--"
LAYERS = ("conv1", "conv2", 'a<b>&"c"')


def made(
    name: str,
    *,
    seed: int,
    layers: tuple[str, ...] = LAYERS,
    samples: int = 64,
    data_id: str = "probe",
    gradients: bool = True,
    **options: Any,
) -> Representation:
    """A network whose layers share a signal with every other network on the same data."""
    signal = np.random.default_rng(99).normal(size=(samples, 6))
    noise = np.random.default_rng(seed)

    def arrays() -> dict[str, np.ndarray]:
        return {layer: signal + noise.normal(size=signal.shape) for layer in layers}

    given = (arrays(), arrays()) if gradients else (arrays(),)
    return record_arrays(*given, data_id=data_id, name=name, buckets=32, **options)


@pytest.fixture(scope="module")
def reps() -> list[Representation]:
    return [made("first", seed=1), made(NASTY, seed=2), made("third", seed=3, layers=LAYERS[:2])]


@pytest.fixture(scope="module")
def page(reps: list[Representation], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(reps, tmp_path_factory.mktemp("report") / "report.html")


def embedded(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    content = json.loads(found[1])
    assert isinstance(content, dict)
    return content


def unpack(content: dict[str, Any], position: int) -> dict[str, np.ndarray | None]:
    """Scores, standard errors and chance levels of the comparison at a position in `contents`.

    They are off what `compare` gave by at most half of 1/65534 of each part's range.
    """
    entry = content["comparisons"][position]
    numbers = np.frombuffer(base64.b64decode(content["numbers"]), "<u2")
    shape = tuple(len(content["models"][entry[side]]["layers"]) for side in "ab")
    size = shape[0] * shape[1]
    out: dict[str, np.ndarray | None] = dict.fromkeys(report_page._PARTS)
    for i, (name, (low, step)) in enumerate(zip(out, entry["ranges"], strict=False)):
        part = numbers[entry["at"] + i * size :][:size]
        values = np.where(part == report_page._MISSING, np.nan, low + step * part.astype(float))
        out[name] = values.reshape(shape)
    return out


def position(content: dict[str, Any], **wanted: Any) -> int:
    return next(
        i
        for i, entry in enumerate(content["comparisons"])
        if all(entry[key] == value for key, value in wanted.items())
    )


# -- what is embedded ---------------------------------------------------------------------------


def test_embedded_numbers_are_those_of_compare(reps: list[Representation], page: Path) -> None:
    content = embedded(page)
    assert len(content["comparisons"]) == 6 * 3 * 2  # pairs, kernels, indices
    for a, b, kernel, index in ((0, 1, "product", "cka"), (0, 2, "features", "cka-debiased")):
        at = position(content, a=a, b=b, kernel=kernel, index=index)
        truth, found = compare(reps[a], reps[b], kernel=kernel, index=index), unpack(content, at)
        for name, values in found.items():
            np.testing.assert_allclose(values, getattr(truth, name), atol=1 / 65535, rtol=0)
        assert content["comparisons"][at]["samples"] == [64, 64]


def test_counterparts_are_given_both_ways(reps: list[Representation], page: Path) -> None:
    content = embedded(page)
    same = content["comparisons"][position(content, a=0, b=1, kernel="product", index="cka")]
    assert (same["matched_by"], same["matched"]) == ("name", [[0, 1, 2], [0, 1, 2]])
    entry = content["comparisons"][position(content, a=0, b=2, kernel="product", index="cka")]
    assert (entry["matched_by"], entry["matched"]) == ("name", [[0, 1, None], [0, 1]])
    other = made("other", seed=4, layers=("x", "y"))
    content = contents([reps[0], other])
    entry = content["comparisons"][position(content, a=0, b=1, kernel="product", index="cka")]
    assert entry["matched_by"] == "similarity"
    there = compare(reps[0], other).match().aligned
    back = compare(other, reps[0]).match().aligned
    assert [other.layer_names[i] for i in entry["matched"][0]] == list(there)
    assert [LAYERS[i] for i in entry["matched"][1]] == list(back)


def test_overview_is_the_mean_over_counterpart_layers(
    reps: list[Representation], page: Path
) -> None:
    content = embedded(page)
    [overview] = [
        one for one in content["overview"] if (one["kernel"], one["index"]) == ("features", "cka")
    ]
    found = compare(reps[0], reps[1], kernel="features")
    mean, error = found.mean()
    assert overview["scores"][0][1] == overview["scores"][1][0] == pytest.approx(mean, abs=1e-5)
    assert overview["stderr"][0][1] == overview["stderr"][1][0] == pytest.approx(error, abs=1e-5)
    [entry] = [
        one
        for one in content["comparisons"]
        if (one["a"], one["b"], one["kernel"], one["index"]) == (0, 1, "features", "cka")
    ]
    assert entry["mean"] == pytest.approx([mean, error], abs=1e-5)
    assert entry["carried"] == found.carried_by()
    assert "samples (n_eff)" in entry["carried"]
    assert sorted(overview["order"]) == [0, 1, 2]
    assert len(overview["links"]) == 2


def test_undefined_scores_survive_packing(
    reps: list[Representation], page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holed(*args: Any, **options: Any) -> Comparison:
        found = compare(*args, **options)
        scores = found.scores.copy()
        scores[0] = np.nan
        return replace(found, scores=scores, stderr=np.full_like(scores, np.nan))

    monkeypatch.setattr(report_page, "compare", holed)
    content = contents(reps[2:])
    found = unpack(content, 0)
    assert found["scores"] is not None
    assert found["stderr"] is not None
    assert np.isnan(found["scores"][0]).all()
    assert np.isfinite(found["scores"][1]).all()
    assert np.isnan(found["stderr"]).all()
    json.dumps(content, allow_nan=False)


@pytest.mark.filterwarnings("ignore:.*error bars cannot be trusted")  # of 32 samples
def test_ten_networks_of_twenty_layers_take_under_two_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = tuple(f"features.stage{i // 5}.block{i % 5}.conv" for i in range(20))
    ten = [made(f"network-{i}", seed=i, layers=layers, samples=32) for i in range(10)]
    generator = np.random.default_rng(0)
    one = compare(ten[0], ten[1])

    def noise(a: Representation, b: Representation, **options: str) -> Comparison:
        # numbers that nothing can compress, without the minutes that 330 comparisons take
        parts = dict(zip(report_page._PARTS, generator.random((4, 20, 20)), strict=True))
        return replace(one, models=(a.name, b.name), **options, **parts)

    monkeypatch.setattr(report_page, "compare", noise)
    path = report(ten, tmp_path / "report.html")
    assert len(embedded(path)["comparisons"]) == 55 * 6
    assert path.stat().st_size < 2_000_000


def test_names_are_escaped_everywhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 2  # the page's own two
    assert "<script>alert" not in text
    assert "<!--" not in text
    assert embedded(page)["models"][1]["name"] == NASTY
    assert embedded(page)["models"][0]["layers"] == list(LAYERS)


def test_a_name_that_is_no_text_is_written(tmp_path: Path) -> None:
    name = "net\udc80\x1b"  # a byte of a file name that is not UTF-8, and a control
    path = report([made(name, seed=1)], tmp_path / "report.html")
    assert embedded(path)["models"][0]["name"] == name
    assert "\x1b" not in path.read_text(encoding="utf-8")


def test_page_refers_to_nothing_outside(page: Path) -> None:
    markup = re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert "default-src 'none'" in markup
    addresses = re.findall(r'(?:src|href)="([^"]*)"', markup)
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "url(" not in markup
    assert "@import" not in markup


def test_one_network_is_compared_with_itself(reps: list[Representation]) -> None:
    content = contents(reps[:1])
    assert content["title"] == "The layers of first"
    assert "its layers compared with each other on 64 samples" in content["summary"]
    assert {(c["a"], c["b"]) for c in content["comparisons"]} == {(0, 0)}
    scores = unpack(content, 0)["scores"]
    assert scores is not None
    np.testing.assert_allclose(np.diag(scores), 1, atol=1e-4)


def test_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one Representation"):
        report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_equal_names_are_told_apart() -> None:
    few = {"layers": ("only",), "gradients": False}
    same = [made(name, seed=i, **few) for i, name in enumerate(["net", "net", "net #2", "net"])]
    content = contents(same, title="Four")
    assert [m["name"] for m in content["models"]] == ["net", "net #2", "net #2 #2", "net #3"]
    assert content["title"] == "Four"


def test_features_alone_offer_features_alone(reps: list[Representation]) -> None:
    plain = made("plain", seed=7, gradients=False)
    content = contents([reps[0], plain])
    assert content["kernels"] == ["features"]
    assert content["indices"] == ["cka", "cka-debiased"]
    assert content["adaptation"][1] is None
    assert content["adaptation"][0]["log_ratio"][0] is not None


def test_a_pair_without_gradients_is_left_blank_with_the_reason(reps: list[Representation]) -> None:
    content = contents([reps[0], reps[2], made("plain", seed=7, gradients=False)])
    assert content["kernels"] == ["features", "gradients", "product"]
    why = {(m["a"], m["b"], m["kernel"]): m["why"] for m in content["missing"]}
    assert "'plain' lacks" in why[0, 2, "product"]
    [overview] = [
        one for one in content["overview"] if (one["kernel"], one["index"]) == ("product", "cka")
    ]
    assert overview["scores"][0][2] is None


def test_unpaired_networks_are_said_to_be(reps: list[Representation]) -> None:
    other = made("elsewhere", seed=5, samples=80, data_id="other")
    with pytest.warns(ResemblanceWarning, match="saw different samples") as caught:
        content = contents([reps[0], other])
    assert len(caught) == 1  # though every comparison says so
    assert content["unpaired"]
    assert "not all on the same samples (64 to 80 each)" in content["summary"]
    entry = content["comparisons"][position(content, a=0, b=1)]
    assert not entry["paired"]
    assert entry["estimator"] == "buckets"
    assert unpack(content, position(content, a=0, b=1))["chance"] is None
    assert content["indices"] == ["cka"]


def test_networks_that_cannot_be_compared_at_all_are_refused(reps: list[Representation]) -> None:
    reseeded = record_arrays(np.ones((64, 2)), data_id="probe", buckets=32, seed=1)
    with pytest.raises(MismatchError, match="seed differs"):
        contents([reps[0], reseeded])


def test_summary_and_provenance_say_what_was_compared(page: Path) -> None:
    content = embedded(page)
    assert (
        content["summary"] == "Three networks compared on the same 64 samples, paired one to one."
    )
    assert not content["unpaired"]
    provenance = content["models"][0]["provenance"]
    assert provenance["samples"] == "64"
    assert provenance["data"] == "probe"
    assert provenance["seed"] == "0"
    assert {"data fingerprint", "blocks", "target", "torch", "resemblance", "date"} <= {*provenance}


def test_progress_is_shown_when_wanted(
    reps: list[Representation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(reps[2:], tmp_path / "quiet.html", progress=False)
    assert capsys.readouterr() == ("", "")
    report(reps[2:], tmp_path / "loud.html", progress=True)
    assert "comparing" in capsys.readouterr().err


# -- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    quiet = ("background-networking", "component-update", "sync", "gpu")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *(f"--disable-{x}" for x in quiet)]
        )
        yield browser
        browser.close()


class Opened:
    """A page in a tab, with what it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.tab = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(path.as_uri())

    def cells(self, host: str = "map") -> list[str]:
        labels = f"[...document.querySelectorAll('#{host} .cell')].map(c => c.ariaLabel)"
        found = self.tab.evaluate(labels)
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        self.tab.close()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Opened]:
    one = Opened(browser, page)
    yield one
    one.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_from_disk_alone_and_fits(browser: Any, page: Path, width: int, scheme: str) -> None:
    one = Opened(browser, page, width, scheme)
    one.tab.wait_for_timeout(100)
    assert one.requests == [page.as_uri()]
    assert one.complaints == []
    assert one.tab.evaluate("document.documentElement.scrollWidth") <= width
    ground = one.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (brightness > 128) == (scheme == "light")
    one.tab.click("#theme")
    assert one.tab.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    one.close()


def test_hover_shows_what_compare_gives(opened: Opened, reps: list[Representation]) -> None:
    truth = compare(reps[0], reps[1])
    assert truth.chance is not None
    assert truth.chance_high is not None
    opened.tab.hover("#map .cell[data-i='1'][data-j='2']")
    tip = opened.tab.inner_text("#tip")
    assert f"conv2 × {LAYERS[2]}" in tip
    assert f"{truth.scores[1, 2]:.3f} ± {truth.stderr[1, 2]:.3f}" in tip
    assert f"chance {truth.chance[1, 2]:.3f}, 95 % level {truth.chance_high[1, 2]:.3f}" in tip


def test_switches_change_the_maps(opened: Opened, reps: list[Representation]) -> None:
    seen = {tuple(opened.cells() + opened.cells("overview"))}
    for kernel, index in (("features", "cka"), ("features", "cka-debiased"), ("gradients", "cka")):
        opened.tab.check(f"input[name=kernel][value={kernel}]")
        opened.tab.check(f"input[name=index][value={index}]")
        truth = compare(reps[0], reps[1], kernel=kernel, index=index)
        shown = f"{truth.scores[0, 0]:.3f}".replace("-", "−")
        assert f": {shown} ± {truth.stderr[0, 0]:.3f}" in opened.cells()[0]
        seen.add(tuple(opened.cells() + opened.cells("overview")))
    assert len(seen) == 4
    assert opened.complaints == []


def test_arrow_keys_move_through_the_map(opened: Opened) -> None:
    def focused() -> list[str]:
        found = opened.tab.evaluate("(({i, j}) => [i, j])(document.activeElement.dataset)")
        assert isinstance(found, list)
        return found

    opened.tab.focus("#map .cell[tabindex='0']")
    assert focused() == ["0", "0"]
    for key, where in (
        ("ArrowRight", ["0", "1"]),
        ("ArrowDown", ["1", "1"]),
        ("End", ["1", "2"]),
        ("ArrowRight", ["1", "2"]),
        ("Control+Home", ["0", "0"]),
        ("ArrowUp", ["0", "0"]),
    ):
        opened.tab.keyboard.press(key)
        assert focused() == where
        assert opened.tab.is_visible("#tip")
    assert opened.tab.locator("#map .cell[tabindex='0']").count() == 1
    opened.tab.keyboard.press("Escape")
    assert not opened.tab.is_visible("#tip")


def test_a_pair_is_chosen_by_key_by_click_and_by_list(
    opened: Opened, reps: list[Representation]
) -> None:
    order = next(
        one["order"]
        for one in opened.tab.evaluate("JSON.parse(document.getElementById('data').text).overview")
        if (one["kernel"], one["index"]) == ("product", "cka")
    )
    row, column = order.index(2), order.index(0)
    opened.tab.focus(f"#overview .cell[data-i='{row}'][data-j='{column}']")
    opened.tab.keyboard.press("Enter")
    assert opened.tab.inner_text("#layers-title") == "Layer by layer: third and first"
    assert len(opened.cells()) == 2 * 3
    # a turned pair is the same comparison, read the other way
    truth = compare(reps[0], reps[2])
    assert f": {truth.scores[2, 1]:.3f} ±" in opened.cells()[1 * 3 + 2]
    opened.tab.click(f"#overview .cell[data-i='{column}'][data-j='{column}']")
    assert opened.tab.inner_text("#layers-title") == "Layer by layer: first with itself"
    opened.tab.select_option("#column", "1")
    assert NASTY.replace("\u2028", " ") in opened.tab.inner_text("#layers-title").replace(
        "\u2028", " "
    )
    assert opened.complaints == []


def test_a_pair_shows_its_mean_with_error_and_what_it_rests_on(
    opened: Opened, reps: list[Representation]
) -> None:
    truth = compare(reps[0], reps[1])
    mean, error = truth.mean()
    assert f"Mean over layers {mean:.2f} ± {error:.2f}" in opened.tab.inner_text("#card-words")
    assert f"{truth.carried_by()}." in opened.tab.inner_text("#notes")


def test_a_pair_says_how_layers_were_matched_and_which_were_not(
    opened: Opened, reps: list[Representation]
) -> None:
    tab = opened.tab
    assert "matched by name" in tab.inner_text("#curve-title")
    assert "Mean over layers matched by name, with" in tab.inner_text(".card .gloss")
    assert "Without a counterpart" not in tab.inner_text("#notes")
    mean = compare(reps[0], reps[2]).mean()[0]
    for row, column, left_out in (("0", "2", "–"), ("2", "0", "conv2")):
        tab.select_option("#row", row)
        tab.select_option("#column", column)
        assert f"Without a counterpart, of first: {LAYERS[2]}." in tab.inner_text("#notes")
        last = tab.locator("#matches tbody tr").last.inner_text().split("\t")
        assert last[1] == left_out
        assert f"Mean over layers {mean:.2f} ±" in tab.inner_text("#card-words")
    assert opened.complaints == []


def test_download_is_read_by_comparison_load(
    opened: Opened, reps: list[Representation], tmp_path: Path
) -> None:
    with opened.tab.expect_download() as download:
        opened.tab.click("#download")
    path = tmp_path / "comparison.json"
    download.value.save_as(path)
    found, truth = Comparison.load(path), compare(reps[0], reps[1])
    np.testing.assert_allclose(found.scores, truth.scores, atol=1 / 65535)
    assert (found.models, found.rows, found.columns) == (truth.models, truth.rows, truth.columns)
    assert (found.kernel, found.estimator, found.samples) == ("product", "blocks", (64, 64))
    assert found.matching == truth.matching


def test_values_are_there_as_text(opened: Opened, reps: list[Representation]) -> None:
    opened.tab.click("#values-box summary")
    rows = opened.tab.locator("#values tbody tr")
    rows.first.wait_for()  # the table is filled once the browser says that it is open
    assert rows.count() == 9
    truth = compare(reps[0], reps[1])
    assert rows.nth(5).inner_text().split("\t")[:3] == [
        LAYERS[1],
        LAYERS[2],
        f"{truth.scores[1, 2]:.4f}",
    ]
    assert opened.tab.locator("#matches tbody tr").count() == 3
    assert opened.tab.locator("#adaptation-table tbody tr").count() == 3


def test_prints_in_light_colours_without_controls(browser: Any, page: Path) -> None:
    one = Opened(browser, page, scheme="dark")
    one.tab.emulate_media(media="print", color_scheme="dark")
    assert not one.tab.is_visible("#controls")
    assert not one.tab.is_visible("#download")
    assert one.tab.evaluate("getComputedStyle(document.body).color") == "rgb(28, 35, 48)"
    assert one.tab.pdf(format="A4").startswith(b"%PDF")
    one.close()


@pytest.mark.parametrize("case", ["one", "unpaired", "blank"])
def test_unusual_sets_open_without_complaint(
    browser: Any, reps: list[Representation], tmp_path: Path, case: str
) -> None:
    sets = {
        "one": [made("alone", seed=1, layers=("only",))],
        "unpaired": [reps[2], made("elsewhere", seed=5, layers=("x",), data_id="other")],
        "blank": [reps[2], made("plain", seed=7, layers=("x",), gradients=False), reps[2]],
    }
    if case == "unpaired":
        with pytest.warns(ResemblanceWarning, match="different samples"):
            path = report(sets[case], tmp_path / "report.html")
    else:
        path = report(sets[case], tmp_path / "report.html")
    one = Opened(browser, path, 390)
    assert one.complaints == []
    assert one.tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert one.tab.is_visible("#overview") == (case != "one")
    assert one.tab.is_visible("#unpaired") == (case == "unpaired")
    if case == "blank":
        one.tab.select_option("#column", "1")
        assert "'plain' lacks" in one.tab.inner_text("#heading")
        assert not one.tab.is_visible("#map")
        assert one.complaints == []
    one.close()


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_compared(tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*r\.html: its folder does not exist"):
        report([], tmp_path / "no/r.html")
