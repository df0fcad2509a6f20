"""The files of the page, read once: no path of a request is ever looked up on the disk.

Style sheet and charts are those of the report; parts of its page are put into this one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from ..views.report_page import FRAGMENTS, page_asset

_SHARED = ("report.css", "charts.js", "pair.js")
_OWN = ("zoo.css", "zoo.js")
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True)
class PageFile:
    """A file that the server gives as it is."""

    content: bytes
    kind: str

    @property
    def tag(self) -> str:
        """What a browser may ask with whether it has changed."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:24]}"'


@lru_cache(maxsize=1)
def page_files() -> dict[str, PageFile]:
    """By name; the page itself is "page"."""
    texts = {name: page_asset(name) for name in _SHARED} | {name: _own(name) for name in _OWN}
    found = {
        name: PageFile(text.encode(), _KINDS[name.rpartition(".")[2]])
        for name, text in texts.items()
    }
    parts = {name: page_asset(f"{name}.html").rstrip() for name in FRAGMENTS}
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _own("zoo.html"))
    return {**found, "page": PageFile(page.encode(), "text/html; charset=utf-8")}


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")
