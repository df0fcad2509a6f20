"""The documentation as a site: built with strict links, it leads nowhere else and loads nothing."""

from __future__ import annotations

import http.server
import os
import posixpath
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
ROOT = Path(__file__).resolve().parent.parent
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
NOT_LOADED = {"canonical", "next", "prev", "edit"}  # kinds of <link> that name a page

if not (ROOT / "mkdocs.yml").exists() or not (ROOT / "docs/figures").exists():
    pytest.skip("the figures are not in a source package", allow_module_level=True)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            if (tag, name) in LOADS and name in values and values.get("rel") not in NOT_LOADED:
                self.loads.append(values[name])


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Page]:
    """Every page by its path in the site."""
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


def lands_on(page: str, link: str) -> str:
    """The file in the site that a link of a page leads to."""
    path = unquote(urlsplit(link).path)
    if path.startswith("/"):  # on the page that is shown where none is found
        return posixpath.normpath(path.lstrip("/") or "index.html")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    folder = path.endswith("/") or path in (".", "..") or "." not in posixpath.basename(target)
    return posixpath.normpath(posixpath.join(target, "index.html")) if folder else target


def test_every_page_is_in_the_navigation_and_built(site, pages):
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert ("index.html" if path == "index" else f"{path}/index.html") in pages
    for notebook in (ROOT / "docs/notebooks").glob("*.ipynb"):
        assert f"notebooks/{notebook.stem}/index.html" in pages


def test_links_lead_to_pages_and_places_on_the_site(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme or (name == "404.html" and link == "/."):
                continue
            target, place = lands_on(name, link), unquote(urlsplit(link).fragment)
            there = (site / target).exists()
            if not there or (place and target in pages and place not in pages[target].places):
                broken.append(f"{name}: {link}")
    assert not broken


def test_links_that_leave_the_site_lead_to_files_of_the_repository(pages):
    (repository,) = re.findall(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)
    found = {
        link.removeprefix(repository).partition("#")[0]
        for page in pages.values()
        for link in page.links
        if link.startswith(f"{repository}/")
    }
    assert "/blob/main/CONTRIBUTING.md" in found
    for link in found:
        _, kind, branch, path = link.split("/", 3)
        assert branch == "main"
        assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file(), link


def test_pages_load_nothing_from_elsewhere(site, pages):
    for name, page in pages.items():
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{name} loads {address}"
            assert (site / lands_on(name, address)).exists(), f"{name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style


def test_a_link_that_leads_nowhere_and_an_unlisted_page_fail_the_build(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for entry in ROOT.iterdir():  # which links out of docs/ lead to
        if not (tmp_path / entry.name).exists() and not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    page = tmp_path / "docs/index.md"
    page.write_text(page.read_text() + "\n[nowhere](start/nowhere.md)\n")
    (tmp_path / "docs/start/unlisted.md").write_text("# Unlisted\n")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode != 0
    assert built.stderr.count("WARNING") == 2, built.stderr
    assert "- start/unlisted.md" in built.stderr
    assert "'start/nowhere.md'" in built.stderr


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    quiet = ("gpu", "background-networking", "component-update", "sync")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *(f"--disable-{x}" for x in quiet)]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(site):
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_a_browser_asks_nobody_else_and_finds_words(browser, address):
    page = browser.new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in ("", "reference/api/recording/", "evidence/copies/"):
        page.goto(address + name, wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type("disagreement")
    page.wait_for_selector(".md-search-result__item a")
    page.close()
    assert not errors
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
