"""Draw figures/report-1280.png and report-390.png: the report of the demo's networks in a browser.

resemblance demo --out demo
python docs/build_report_figures.py demo
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import resemblance as rs

NAMES = ("twin-1", "twin-1-int8", "twin-1-int4", "twin-1-tuned", "twin-1-pruned", "twin-2")
OTHERS = ("twin-3", "odd-even", "untrained")
FIGURES = Path(__file__).parent / "figures"
SIZES = {1280: 2935, 390: 2590}  # the width of a window, and how much of the page is drawn
COLOURS = 256


def main() -> None:
    """Write both figures from the folder of a demo."""
    files = [Path(sys.argv[1]) / f"{name}.rsm" for name in (*NAMES, *OTHERS)]
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        warnings.simplefilter("ignore")  # of few samples, which the page says too
        page = rs.report(files, Path(folder) / "page.html", title="Nine small networks on digits")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for width, height in SIZES.items():
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.goto(f"{page.as_uri()}#a=0&b={NAMES.index('twin-1-pruned')}")
            tab.wait_for_selector("html[data-ready]", state="attached")
            picture = FIGURES / f"report-{width}.png"
            clip = {"x": 0, "y": 0, "width": width, "height": height}
            tab.screenshot(path=picture, full_page=True, clip=clip)
            Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
