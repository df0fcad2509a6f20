"""The report page: what is embedded in it, and how it behaves in a browser."""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import page_numbers
from axe import violations
from resemblance import behaviour, coordinates, record, record_arrays
from resemblance.errors import DataError, MismatchError, ResemblanceWarning
from resemblance.representation.representation import Representation
from resemblance.similarity.compare import compare
from resemblance.similarity.comparison import Comparison
from resemblance.views import report as report_module
from resemblance.views import score_encoding
from resemblance.views.report import report

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


def read(path: Path, part: str) -> str:
    text = path.read_text(encoding="utf-8")
    found = re.search(rf'<script type="application/octet-stream" id="{part}">(.*?)</script>', text)
    assert found is not None
    return found[1]


def embedded(path: Path) -> dict[str, Any]:
    content = json.loads(zlib.decompress(base64.b64decode(read(path, "data"))))
    assert isinstance(content, dict)
    return content


def contents(reps: list[Representation], **options: Any) -> dict[str, Any]:
    return report_module.report_contents(reps, **options)[0]


def the(content: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    return next(
        entry
        for entry in content["comparisons"]
        if all(entry[key] == value for key, value in wanted.items())
    )


def unpack(content: dict[str, Any], numbers: str) -> dict[tuple[Any, ...], dict[str, np.ndarray]]:
    """Scores, chance levels and standard errors of every comparison, as the page reads them."""
    every = content["comparisons"]
    sizes = [tuple(len(content["models"][e[side]]["layers"]) for side in "ab") for e in every]
    wide = sum(a * b * (3 if e["chance"] else 1) for e, (a, b) in zip(every, sizes, strict=True))
    codes, steps = page_numbers.unpack_tables(numbers, wide)
    out, at, errors = {}, 0, 0
    for entry, shape in zip(every, sizes, strict=True):
        size, tables = shape[0] * shape[1], {}
        for name in ("scores", "chance", "chance_high")[: 3 if entry["chance"] else 1]:
            part = codes[at : at + size].reshape(shape)
            tables[name] = page_numbers.decode_scores(part)
            at += size
        step = steps[errors : errors + size].reshape(shape).astype(float)
        known = np.where(
            step == 0, 0.0, 10.0 ** (-6 * (1 - (step - 1) / score_encoding.ERROR_STEPS))
        )
        tables["stderr"] = np.where(step == 255, np.nan, known)
        errors += size
        out[entry["a"], entry["b"], entry["kernel"], entry["index"]] = tables
    assert at == wide
    assert errors == len(steps)
    return out


# -- what is embedded ---------------------------------------------------------------------------


def test_embedded_numbers_are_those_of_compare(reps: list[Representation], page: Path) -> None:
    content = embedded(page)
    numbers = unpack(content, read(page, "numbers"))
    assert len(numbers) == 6 * 3 * 2  # pairs, kernels, indices
    for (a, b, kernel, index), found in numbers.items():
        truth = compare(reps[a], reps[b], kernel=kernel, index=index)
        assert truth.chance is not None
        np.testing.assert_allclose(found["scores"], truth.scores, atol=0.00051, rtol=0)
        np.testing.assert_allclose(found["chance"], truth.chance, atol=0.00051, rtol=0)
        np.testing.assert_allclose(found["stderr"], truth.stderr, atol=1e-6, rtol=0.03)
        entry = the(content, a=a, b=b, kernel=kernel, index=index)
        assert entry["samples"] == [64, 64]
        assert entry["notes"] == list(truth.notes)
        assert entry["carried"] == truth.carried_by()
        mean = truth.mean()
        assert entry["mean"] == pytest.approx(mean, abs=1e-5)


def test_counterparts_are_given_both_ways(reps: list[Representation], page: Path) -> None:
    content = embedded(page)
    same = the(content, a=0, b=1, kernel="product", index="cka")
    assert (same["by"], same["matched"]) == ("name", [[0, 1, 2], [0, 1, 2]])
    entry = the(content, a=0, b=2, kernel="product", index="cka")
    assert (entry["by"], entry["matched"]) == ("name", [[0, 1, None], [0, 1]])
    other = made("other", seed=4, layers=("x", "y"))
    there = compare(reps[0], other, kernel="features").match().aligned
    back = compare(other, reps[0], kernel="features").match().aligned
    content = contents([reps[0], other])
    for kernel in content["kernels"]:  # a layer has one counterpart, whatever the kernel
        entry = the(content, a=0, b=1, kernel=kernel, index="cka")
        assert entry["by"] == "similarity"
        assert [other.layer_names[i] for i in entry["matched"][0]] == list(there)
        assert [LAYERS[i] for i in entry["matched"][1]] == list(back)
    means = compare(reps[0], other)["gradients"].mean()
    assert the(content, a=0, b=1, kernel="gradients", index="cka")["mean"] == pytest.approx(
        means, abs=1e-5
    )


def test_a_pair_has_where_it_parts_and_what_carries_it(
    reps: list[Representation], page: Path
) -> None:
    content = embedded(page)
    for kernel in ("features", "gradients"):
        truth = compare(reps[0], reps[1], kernel=kernel)
        entry = the(content, a=0, b=1, kernel=kernel, index="cka")
        parting = truth.parting()
        assert entry["parting"][0] == parting.position
        assert entry["parting"][1] == parting.sentence
        assert truth.n_eff is not None
        least = np.minimum(*truth.n_eff)
        assert entry["n_eff"] == [round(x) for x in least]
        assert entry["doubtful"] == []
    assert "parting" not in the(content, a=0, b=1, kernel="product", index="cka")
    assert "parting" not in the(content, a=0, b=0, kernel="features", index="cka")


def test_the_mean_of_a_near_copy_stays_below_one() -> None:
    x, noise = torch.randn(2, 64, 6, generator=torch.Generator().manual_seed(0))
    near = [record_arrays(f, data_id="x", name=n) for n, f in (("a", x), ("b", x + 1e-4 * noise))]
    content, _ = report_module.report_contents(near)
    assert all(0.9999 < one["scores"][0][1] < 1 for one in content["overview"])


def test_overview_is_the_mean_over_counterpart_layers(
    reps: list[Representation], page: Path
) -> None:
    content = embedded(page)
    [overview] = [
        one for one in content["overview"] if (one["kernel"], one["index"]) == ("features", "cka")
    ]
    mean, error = compare(reps[0], reps[1], kernel="features").mean()
    assert overview["scores"][0][1] == overview["scores"][1][0] == pytest.approx(mean, abs=1e-4)
    assert overview["stderr"][0][1] == overview["stderr"][1][0] == pytest.approx(error, abs=1e-4)
    assert sorted(content["order"]["cka"]["order"]) == [0, 1, 2]
    assert len(content["order"]["cka"]["links"]) == 2


def test_undefined_scores_survive_packing(tmp_path: Path) -> None:
    flat = np.ones((64, 3))
    varied = np.random.default_rng(0).normal(size=(64, 3))
    rep = record_arrays({"flat": flat, "varied": varied}, data_id="probe", name="net")
    with pytest.warns(ResemblanceWarning, match="'flat' of 'net' is constant"):
        path = report([rep], tmp_path / "report.html")
    found = unpack(embedded(path), read(path, "numbers"))[0, 0, "features", "cka"]
    assert np.isnan(found["scores"]).tolist() == [[True, True], [True, False]]
    assert np.isnan(found["chance_high"][0]).all()
    assert found["scores"][1, 1] == 1


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    every = [made(f"network-{i}", seed=i, layers=("only",), samples=60) for i in range(30)]
    return report(every, tmp_path_factory.mktemp("thirty") / "report.html")


@pytest.mark.slow
def test_thirty_networks_of_twenty_layers_take_under_three_megabytes(tmp_path: Path) -> None:
    layers = tuple(f"features.stage{i // 5}.block{i % 5}.conv" for i in range(20))
    # of few samples: noise that little can compress
    every = [made(f"network-{i}", seed=i, layers=layers, samples=60) for i in range(30)]
    path = report(every, tmp_path / "report.html")
    content = embedded(path)
    assert len(content["comparisons"]) == 465 * 3
    assert content["indices"] == ["cka"]  # of twelve networks at most, debiased CKA as well
    assert path.stat().st_size < 3_000_000


def test_names_are_escaped_everywhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 3  # the page's own
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


def test_one_network_is_compared_with_itself(reps: list[Representation], tmp_path: Path) -> None:
    path = report(reps[:1], tmp_path / "report.html")
    content = embedded(path)
    assert content["title"] == "Layers of first"
    assert "its layers compared with each other on 64 samples" in content["summary"]
    assert {(c["a"], c["b"]) for c in content["comparisons"]} == {(0, 0)}
    scores = unpack(content, read(path, "numbers"))[0, 0, "features", "cka"]["scores"]
    assert np.diag(scores).tolist() == [1, 1, 1]


def test_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one recording"):
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
    assert "plain" in content["behaviour"][0]["why"] or "first" in content["behaviour"][0]["why"]


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
    with pytest.warns(ResemblanceWarning, match="used different samples") as caught:
        content = contents([reps[0], other])
    assert len(caught) == 1  # though every comparison says so
    assert content["unpaired"]
    assert "recorded on different samples (64 to 80 each)" in content["summary"]
    entry = the(content, a=0, b=1)
    assert not entry["paired"]
    assert entry["estimator"] == "buckets"
    assert not entry["chance"]
    assert content["indices"] == ["cka"]


def test_networks_that_cannot_be_compared_at_all_are_refused(reps: list[Representation]) -> None:
    reseeded = record_arrays(np.ones((64, 2)), data_id="probe", buckets=32, seed=1)
    with pytest.raises(MismatchError, match="seed differs"):
        contents([reps[0], reseeded])


def test_summary_and_provenance_say_what_was_compared(page: Path) -> None:
    content = embedded(page)
    assert content["summary"] == "Three networks compared on the same 64 samples."
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
        self.tab.wait_for_selector("html[data-ready]", state="attached")

    def cells(self, host: str = "maps-features") -> list[str]:
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


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_axe_is_broken(browser: Any, page: Path, width: int, scheme: str) -> None:
    one = Opened(browser, page, width, scheme)
    assert violations(one.tab) == []
    one.close()


def levels(page: Path, *key: Any) -> dict[str, np.ndarray]:
    return unpack(embedded(page), read(page, "numbers"))[key]


def test_hover_shows_what_compare_gives(
    opened: Opened, page: Path, reps: list[Representation]
) -> None:
    for kernel in ("features", "gradients"):  # both are there without asking
        truth = compare(reps[0], reps[1], kernel=kernel)
        assert truth.chance is not None
        high = levels(page, 0, 1, kernel, "cka")["chance_high"]
        opened.tab.hover(f"#maps-{kernel} .cell[data-i='1'][data-j='2']")
        tip = opened.tab.inner_text("#tip")
        assert f"conv2 × {LAYERS[2]}" in tip
        error = re.search(rf"{truth.scores[1, 2]:.3f} ± ([\d.]+)", tip)
        assert error is not None
        assert float(error[1]) == pytest.approx(truth.stderr[1, 2], rel=0.03, abs=0.0005)
        assert f"chance {truth.chance[1, 2]:.3f}, 95 % level {high[1, 2]:.3f}" in tip


def test_switches_change_the_maps(opened: Opened, reps: list[Representation]) -> None:
    assert opened.tab.is_visible("#maps-gradients")
    seen = {tuple(opened.cells() + opened.cells("overview-features"))}
    opened.tab.check("input[name=index][value=cka-debiased]")
    truth = compare(reps[0], reps[1], kernel="features", index="cka-debiased")
    assert f": {truth.scores[0, 0]:.3f} ± ".replace("-", "−") in opened.cells()[0]
    seen.add(tuple(opened.cells() + opened.cells("overview-features")))
    opened.tab.check("input[name=show][value=product]")
    assert not opened.tab.is_visible("#maps-features")
    assert not opened.tab.is_visible("#overview-gradients")
    seen.add(tuple(opened.cells("maps-product") + opened.cells("overview-product")))
    assert len(seen) == 3
    assert opened.complaints == []


def test_arrow_keys_move_through_the_map(opened: Opened) -> None:
    def focused() -> list[str]:
        found = opened.tab.evaluate("(({i, j}) => [i, j])(document.activeElement.dataset)")
        assert isinstance(found, list)
        return found

    opened.tab.focus("#maps-gradients .cell[tabindex='0']")
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
    assert opened.tab.locator("#maps-gradients .cell[tabindex='0']").count() == 1
    opened.tab.keyboard.press("Escape")
    assert not opened.tab.is_visible("#tip")


def test_a_pair_is_chosen_by_key_by_click_and_by_list(
    opened: Opened, page: Path, reps: list[Representation]
) -> None:
    order = embedded(page)["order"]["cka"]["order"]
    row, column = order.index(2), order.index(0)
    opened.tab.focus(f"#overview-features .cell[data-i='{row}'][data-j='{column}']")
    opened.tab.keyboard.press("Enter")
    assert opened.tab.inner_text("#layers-title") == "Layer by layer: third and first"
    assert opened.tab.evaluate("document.activeElement.closest('#overview-features') !== null")
    assert len(opened.cells()) == 2 * 3
    # a turned pair is the same comparison, read the other way
    truth = compare(reps[0], reps[2], kernel="features")
    assert f": {truth.scores[2, 1]:.3f} ±" in opened.cells()[1 * 3 + 2]
    opened.tab.click(f"#overview-gradients .cell[data-i='{column}'][data-j='{column}']")
    assert opened.tab.inner_text("#layers-title") == "Layer by layer: first with itself"
    opened.tab.select_option("#column", "1")
    assert NASTY.replace("\u2028", " ") in opened.tab.inner_text("#layers-title").replace(
        "\u2028", " "
    )
    assert opened.complaints == []


def test_a_pair_shows_means_where_it_parts_and_what_it_rests_on(
    opened: Opened, reps: list[Representation]
) -> None:
    notes = opened.tab.inner_text("#notes")
    for kernel, at in (("features", 0), ("gradients", 1)):
        truth = compare(reps[0], reps[1], kernel=kernel)
        mean, error = truth.mean()
        shown = opened.tab.locator("#tiles .much").nth(at).inner_text()
        assert [float(x) for x in shown.split(" ± ")] == pytest.approx([mean, error], abs=0.006)
        assert f"{kernel.capitalize()}: {truth.carried_by()}." in notes
        parting = truth.parting()
        assert parting.sentence in notes
        marks = opened.tab.locator(f"#curve circle.ring.s-{kernel}").count()
        assert marks == (1 if parting.found else 0)
    assert opened.tab.locator("#curve .dot.s-features").count() == 3
    assert opened.tab.locator("#curve .dot.s-gradients").count() == 3


def test_a_pair_says_how_layers_were_matched_and_which_were_not(
    opened: Opened, reps: list[Representation]
) -> None:
    tab = opened.tab
    assert "matched by name" in tab.inner_text("#curve-title")
    assert "Mean over layers matched by name, with" in tab.inner_text(".card .gloss")
    assert "without a counterpart" not in tab.inner_text("#notes")
    mean = compare(reps[0], reps[2], kernel="features").mean()[0]
    for row, column, left_out in (("0", "2", "–"), ("2", "0", "conv2")):
        tab.select_option("#row", row)
        tab.select_option("#column", column)
        assert f"Layers of first without a counterpart: {LAYERS[2]}." in tab.inner_text("#notes")
        last = tab.locator("#matches tbody tr").last.inner_text().split("\t")
        assert last[1] == left_out
        shown = tab.locator("#tiles .much").first.inner_text().split(" ± ")[0]
        assert float(shown) == pytest.approx(mean, abs=0.006)
    assert opened.complaints == []


def test_download_is_read_by_comparison_load(
    opened: Opened, page: Path, reps: list[Representation], tmp_path: Path
) -> None:
    for kernel in ("features", "product"):
        with opened.tab.expect_download() as download:
            opened.tab.click(f"#downloads [data-kernel={kernel}]")
        path = tmp_path / "comparison.json"
        download.value.save_as(path)
        found, truth = Comparison.load(path), compare(reps[0], reps[1], kernel=kernel)
        np.testing.assert_allclose(found.scores, truth.scores, atol=0.00051)
        np.testing.assert_allclose(found.stderr, truth.stderr, rtol=0.03, atol=1e-6)
        np.testing.assert_allclose(found.chance, truth.chance, atol=0.00051)
        assert (found.models, found.rows, found.columns) == (
            truth.models,
            truth.rows,
            truth.columns,
        )
        assert (found.kernel, found.estimator, found.samples) == (kernel, "blocks", (64, 64))
        assert found.matching == truth.matching
        assert "to three decimals" in found.notes[-1]


def test_values_are_there_as_text(opened: Opened, reps: list[Representation]) -> None:
    opened.tab.click("#values-box summary")
    rows = opened.tab.locator("#values tbody tr")
    rows.first.wait_for()  # the table is filled once the browser says that it is open
    assert rows.count() == 9
    truth = [compare(reps[0], reps[1], kernel=kernel) for kernel in ("features", "gradients")]
    row = rows.nth(5).inner_text().split("\t")
    assert row[:3] == [LAYERS[1], LAYERS[2], f"{truth[0].scores[1, 2]:.3f}"]
    assert row[6] == f"{truth[1].scores[1, 2]:.3f}"
    assert opened.tab.locator("#matches tbody tr").count() == 3
    assert opened.tab.locator("#adaptation-table tbody tr").count() == 3


def names_shown(tab: Any, host: str = "overview-features") -> list[str]:
    found = tab.evaluate(f"[...document.querySelectorAll('#{host} .name.row')].map(n => n.title)")
    assert isinstance(found, list)
    return found


def test_networks_are_searched_and_sorted(browser: Any, thirty: Path) -> None:
    one = Opened(browser, thirty)
    tab = one.tab
    assert len(names_shown(tab)) == 30
    tab.select_option("#sort", "name")
    assert names_shown(tab) == [f"network-{i}" for i in range(30)]  # 2 before 10
    tab.select_option("#row", "7")
    tab.select_option("#sort", "near")
    assert "similarity to network-7" in tab.inner_text("#sort")
    scores = {
        kernel: next(o for o in embedded(thirty)["overview"] if o["kernel"] == kernel)["scores"][7]
        for kernel in ("features", "gradients")
    }
    both = np.mean(list(scores.values()), 0)
    both[7] = 2
    assert names_shown(tab) == [f"network-{i}" for i in np.argsort(-both, kind="stable")]
    tab.focus("#find")
    tab.keyboard.type("NETWORK 2")
    assert {*names_shown(tab)} == {f"network-{i}" for i in (2, 12, *range(20, 30))}
    assert len(names_shown(tab, "overview-gradients")) == 12
    assert tab.inner_text("#found") == "12 of 30 networks"
    assert tab.evaluate("document.activeElement.id") == "find"
    tab.keyboard.press("Enter")  # does not leave the page
    tab.keyboard.type("x")
    assert not tab.is_visible("#overview-features")
    assert "No name contains" in tab.inner_text("#found")
    assert one.complaints == []
    tab.set_viewport_size({"width": 390, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    one.close()


def test_error_bars_that_cannot_be_trusted_are_marked_and_warned_of_once(
    browser: Any, tmp_path: Path
) -> None:
    heavy = np.ones((64, 1))
    heavy[:3] = 30.0  # three samples carry the gradients
    rng = np.random.default_rng(0)
    drawn = [[{"a": rng.normal(size=(64, 6))} for _ in range(2)] for _ in range(3)]
    reps = [
        record_arrays(f, {"a": g["a"] * heavy}, data_id="probe", name=f"net{i}", buckets=0)
        for i, (f, g) in enumerate(drawn)
    ]
    with pytest.warns(ResemblanceWarning, match="standard errors may be too small") as caught:
        path = report(reps, tmp_path / "report.html")
    assert len(caught) == 1
    assert "in 12 of 36 comparisons" in str(caught[0].message)  # gradients and product, two indices
    content = embedded(path)
    assert the(content, a=0, b=1, kernel="gradients", index="cka")["doubtful"] == [0]
    one = Opened(browser, path)
    assert one.tab.locator("#curve .dot.hollow").count() == 1
    assert one.tab.locator("#curve .dot.hollow.s-gradients").count() == 1
    assert "⚠ 3" in one.tab.locator("#matches tbody tr").first.inner_text()
    assert "hollow" in one.tab.inner_text("#curve-keys")
    one.close()


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Representation]]:
    steps = [made(f"step-{i}", seed=i) for i in range(4)]
    path = tmp_path_factory.mktemp("course") / "report.html"
    return report(steps, path, in_order=True), steps


def test_checkpoints_in_order_show_their_course(
    browser: Any, course: tuple[Path, list[Representation]]
) -> None:
    path, steps = course
    assert embedded(path)["title"] == "From step-0 to step-3"
    one = Opened(browser, path)
    assert one.tab.input_value("#sort") == "given"
    assert len(one.cells("course-maps-gradients")) == 3 * 3  # layers, steps
    cell = "#course-maps-features .cell[data-i='1'][data-j='2']"
    for against, reference, width in (("previous", 2, 3), ("first", 0, 4), ("last", 3, 4)):
        one.tab.check(f"input[name=against][value={against}]")
        assert len(one.cells("course-maps-features")) == 3 * width
        later = 3 if against == "previous" else 2
        truth = compare(steps[reference], steps[later], kernel="features")
        assert f": {truth.scores[1, 1]:.3f} ±" in one.tab.get_attribute(cell, "aria-label")
    one.tab.focus(cell)
    one.tab.keyboard.press("Enter")
    assert one.tab.inner_text("#layers-title") == "Layer by layer: step-3 and step-2"
    assert "Features change most from" in one.tab.inner_text("#course-words")
    assert one.complaints == []
    one.close()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Representation]]:
    """Networks that predict: one, a copy of it that moved, and one of other classes."""
    torch.manual_seed(0)

    def net(classes: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 40), nn.Linear(40, classes))

    origin, other = net(5), net(3)
    moved = copy.deepcopy(origin)
    with torch.no_grad():
        moved[2].weight += 0.05 * torch.randn(40, 40)
    nets = {"origin": origin, "moved": moved, "other": other}
    x = torch.randn(200, 8)
    reps = [record(n, x, name=name, data_id="x", progress=False) for name, n in nets.items()]
    return report(reps, tmp_path_factory.mktemp("copies") / "report.html"), reps


def test_predictions_and_coordinates_are_shown_where_they_can_be(
    browser: Any, copies: tuple[Path, list[Representation]]
) -> None:
    path, reps = copies
    one = Opened(browser, path)
    tab = one.tab
    told = behaviour(*reps[:2])
    assert tab.inner_text("#card-words") == told.summary()
    labels = one.cells("overview-predictions")
    assert any("origin and moved: " in x and "different predicted class" in x for x in labels)
    assert any("they have 5 and 3 classes" in x for x in labels)
    assert "they have 5 and 3 classes" in tab.inner_text("#no-predictions")
    moved = coordinates(*reps[:2])
    assert moved.shared
    assert "Their units are in the same order. From origin to moved" in tab.inner_text("#notes")
    heads = tab.locator("#matches thead th").all_inner_texts()
    row = tab.locator("#matches tbody tr").nth(1).inner_text().split("\t")
    layer = moved.layers.index(row[0])
    assert row[heads.index("Features drift, dB")] == f"{moved.decibels[0, layer]:.1f}"
    room = "(table) => table.scrollWidth <= table.parentElement.clientWidth"
    assert tab.locator("#matches").evaluate(room), "a wide window shows every column of a copy"
    tab.click("#swap")  # KL and decibels depend on the order
    back = behaviour(reps[1], reps[0])
    assert told.summary() != back.summary()
    assert tab.inner_text("#card-words") == back.summary()
    moved = coordinates(reps[1], reps[0])
    assert "From moved to origin" in tab.inner_text("#notes")
    row = next(
        cells
        for cells in (x.split("\t") for x in tab.locator("#matches tbody tr").all_inner_texts())
        if cells[0] == "2"  # the layer whose weights were changed
    )
    expected = moved.decibels[0, moved.layers.index("2")]
    assert row[heads.index("Features drift, dB")] == f"{expected:.1f}"
    tab.click("#swap")
    tab.select_option("#column", "2")
    assert "Predictions cannot be compared, because they have 5 and 3" in tab.inner_text(
        "#card-words"
    )
    assert "the same order" not in tab.inner_text("#notes")
    assert one.complaints == []
    one.close()


def test_prints_in_light_colours_without_controls(browser: Any, page: Path) -> None:
    one = Opened(browser, page, scheme="dark")
    one.tab.emulate_media(media="print", color_scheme="dark")
    assert not one.tab.is_visible("#controls")
    assert not one.tab.is_visible("#downloads")
    assert not one.tab.is_visible("#models-tools")
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
    assert (one.tab.locator("#overview figure").count() > 0) == (case != "one")
    assert one.tab.is_visible("#unpaired") == (case == "unpaired")
    if case == "blank":
        one.tab.select_option("#column", "1")
        assert one.tab.is_visible("#maps-features")
        assert not one.tab.is_visible("#maps-gradients")
        assert "'plain' lacks" in one.tab.inner_text("#heading")
        one.tab.check("input[name=show][value=product]")
        assert "'plain' lacks" in one.tab.inner_text("#heading")
        assert not one.tab.is_visible("#pair-body")
        assert one.complaints == []
    one.close()


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_compared(tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*r\.html: its folder does not exist"):
        report([], tmp_path / "no/r.html")
