"""Copies as they are made today: what the commands say of each. Behind docs/evidence/copies.md.

    OMP_NUM_THREADS=1 python -m benchmarks.copies [--out copies] [--quick]

A network for handwritten digits and a small Llama for Python's source code are trained, and copied:
rounded, pruned, distilled, given a LoRA adapter that is merged, tuned, averaged. Each is recorded
by `resemblance record`, set beside its base by `resemblance compare` and judged by `resemblance
check`, by the very words that stand in the result, in the folder where networks and recordings are
left. Writes results/copies.json; `python docs/build_copies.py` makes the page of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import resemblance as rs
from resemblance.cli.main import main as resemblance
from resemblance.errors import ResemblanceWarning

from . import digit_copies, digits, language_copies
from .copied_network import Copied

THRESHOLDS = {
    "digits": ("--max-disagreement", "0.02", "--min", "gradients=0.8"),
    "language": ("--max-kl", "0.01", "--min", "gradients=0.8"),
}
SHOWN = ("int4", "pruned-50")  # whose tables are kept as printed
DATA = {
    "digits": ("--data", "networks.py:unseen"),
    "language": (
        *("--data", "unseen.txt", "--length", str(language_copies.LENGTH)),
        *("--limit", str(language_copies.SEQUENCES)),
    ),
}
MADE = {"digits": digit_copies.made, "language": language_copies.made}


def command(words: Sequence[str]) -> tuple[str, int]:
    """What `resemblance` prints in this process, and its exit status."""
    printed, aside = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(aside):
        try:
            resemblance(words)
        except SystemExit as done:
            status = int(done.code or 0)
    if status in (2, 70):
        raise RuntimeError(f"resemblance {' '.join(words)}: {aside.getvalue()}")
    return printed.getvalue(), status


def measured(copied: Copied, *few: str) -> dict[str, Any]:
    """Record a copy in this folder, and set it beside base.rsm: commands, and what they said.

    `few` are words of `resemblance record` that leave out most of the data.
    """
    file, base = f"{copied.name}.rsm", copied.section == "base"
    record = ("record", *copied.model, *DATA[copied.network], "-o", file)
    command((*record, "--name", copied.name, *few))
    row: dict[str, Any] = asdict(copied) | {"record": " ".join(("resemblance", *record))}
    row |= {"samples": rs.load(file).samples, "megabytes": Path(file).stat().st_size / 1e6}
    if base:
        return row
    compare = ("compare", "base.rsm", file)
    thresholds = THRESHOLDS[copied.network]
    thresholds = thresholds[:2] if "--features-only" in copied.model else thresholds
    check = ("check", "base.rsm", file, *thresholds)
    row["compare"] = " ".join(("resemblance", *compare))
    if copied.name in SHOWN:
        row["compared"] = command(compare)[0]
    found = json.loads(command((*compare, "--json", "-"))[0])
    verdict = json.loads(command((*check, "--json", "-"))[0])
    row |= {"check": " ".join(("resemblance", *check)), "verdict": verdict["status"]}
    row["judged"] = verdict["summary"]
    kernels = [kernel for kernel in ("features", "gradients") if found[kernel]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # the command has told of it
        row["alike"] = {k: rs.compare("base.rsm", file, kernel=k).mean() for k in kernels}
    row |= {key: found["behaviour"][key] for key in ("disagreement", "disagreement_stderr")}
    row |= {key: found["behaviour"][key] for key in ("kl", "kl_stderr")}
    moved = found["coordinates"]
    row["shared"] = bool(moved and moved["shared"])
    changed = [x for x in moved["decibels"][0] if x is not None] if row["shared"] else []
    row["decibels"] = min(changed, default=None)
    row["parting"] = found["parting"]["features"] and found["parting"]["features"]["layer"]
    return row


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Commands name files beside them; tables are as wide as a page shows."""
    before = Path.cwd(), os.environ.get("COLUMNS")
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ["COLUMNS"] = "80"
    try:
        yield
    finally:
        os.chdir(before[0])
        os.environ.pop("COLUMNS")
        if before[1] is not None:
            os.environ["COLUMNS"] = before[1]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("copies"), help="folder for networks")
    parser.add_argument("--quick", action="store_true", help="train next to nothing, keep nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    few = ("--limit", "40") if options.quick else ()
    rows, begun = [], time.process_time()
    for network, made in MADE.items():
        with inside(options.out / network):
            for copied in made(Path(), quick=options.quick):
                rows.append(measured(copied, *few))
                print(f"{time.process_time() - begun:5.0f} s  {network}: {copied.name}", flush=True)
    libraries = {name: version(name) for name in ("transformers", "tokenizers", "peft")}
    result: dict[str, Any] = {
        "libraries": libraries,
        "processor_seconds": round(time.process_time() - begun),
    }
    result["rows"] = rows
    if not options.quick:
        print(digits.write("copies", result))
    return result


if __name__ == "__main__":
    main()
