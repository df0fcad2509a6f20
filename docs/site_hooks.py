"""What the site's build adds to MkDocs: links out of docs/, and pages that load nothing.

The pages are also read in the repository, where a link such as `../../CONTRIBUTING.md` works. On
the site it leads to the same file in the repository at `repo_url`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files that are not on the site lead to the repository."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def elsewhere(match: re.Match[str]) -> str:
        target = match[1]
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = path.startswith("docs/") and not path.endswith(".py")
        if "://" in target or on_site or not (ROOT / path).exists():
            return target  # MkDocs warns of what is not there
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/main/{path}"

    parts = FENCE.split(markdown)  # every second one is a block of code
    parts[::2] = [LINK.sub(elsewhere, part) for part in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, **_: Any) -> str:
    """The theme would ask the repository's host for stars and forks on every page."""
    return output.replace(' data-md-component="source"', "")
