"""axe-core's rules for accessible pages, run in a browser's tab.

axe-core is a package of npm and no part of this repository: `npm install --no-save axe-core@4` in
the root of the clone puts it into `node_modules`. Without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).resolve().parents[1] / "node_modules/axe-core/axe.min.js"


def violations(tab: Any) -> list[str]:
    """What axe-core finds wrong with the page in a tab, all of it opened."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm install --no-save axe-core@4")
    tab.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    found = tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert len(found["passes"]) > 10  # rules that had something to check
    return [f"{x['id']}: {x['nodes'][0]['html'][:200]}" for x in found["violations"]]
