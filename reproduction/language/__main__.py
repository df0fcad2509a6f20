"""Language models, measured: from text to one file of results.

    python -m reproduction.language --text FILE --out FOLDER                  all; wants a GPU
    python -m reproduction.language --text FILE --out FOLDER --minutes 9      goes on another time
    python -m reproduction.language --text FILE --out FOLDER small masked     some sizes alone
    python -m reproduction.language --text FILE --out FOLDER --train small/1  beside another run
    python -m reproduction.language --text FILE --out FOLDER --quick          tiny, on a CPU

`reproduction.language.text` gathers FILE. FOLDER gets `networks`, `facts` of their training,
`scores` of each against its base, and `language.json`; what is there already is not made again.
Sizes do not need each other's networks, so that each may be measured by a process or a machine of
its own: `facts` and `scores` are all that is to be brought together. Networks that need no other
may be trained by more processes (`--train`); where one is still at it, a run that needs the network
waits for it. `reproduction.language.tables` makes a page of the results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from . import analysis
from .clock import Clock, OutOfTime
from .comparing import Comparing
from .measuring import Measuring
from .networks import Networks
from .scale import FULL, QUICK, STAGES
from .text import Text


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.language",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sizes", nargs="*", help=f"of {', '.join(STAGES)}; none means all")
    parser.add_argument("--text", type=Path, required=True, help="from reproduction.language.text")
    parser.add_argument("--out", type=Path, required=True, help="networks, scores, results")
    parser.add_argument("--quick", action="store_true", help="tiny networks, few sequences")
    parser.add_argument("--minutes", type=float, help="stop after so many; start again to go on")
    parser.add_argument("--workers", type=int, help="processes that compare; 3 beside a GPU")
    parser.add_argument("--train", nargs="+", default=[], metavar="NETWORK", help="nothing else")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(words)
    unknown = set(chosen.sizes) - set(STAGES)
    if unknown:
        parser.error(f"no such size: {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    clock, text = Clock(chosen.minutes), Text.load(chosen.text)
    scale, device = QUICK if chosen.quick else FULL, torch.device(chosen.device)
    networks = Networks(text, scale, chosen.out, device, clock)
    known = [name for size in STAGES for name in networks.from_scratch(size)]
    if other := set(chosen.train) - set(known):
        parser.error(f"cannot train {', '.join(sorted(other))} alone, only {', '.join(known)}")
    if device.type == "cuda":  # threads that wait for each other take cores from other processes
        torch.set_num_threads(1)
    workers = (3 if device.type == "cuda" else 0) if chosen.workers is None else chosen.workers
    with Comparing(0 if chosen.train else workers, chosen.out) as comparing:
        measuring = Measuring(networks, text, chosen.out, comparing)
        try:
            for name in chosen.train:
                networks(name)
            for size in [] if chosen.train else chosen.sizes or STAGES:
                start = time.perf_counter()
                measuring.measure(size)
                print(f"-- {size}: {time.perf_counter() - start:.1f} s", flush=True)
        except OutOfTime:
            print(f"-- {chosen.minutes:g} minutes are over; start again to go on", flush=True)
    if chosen.train:
        return
    for size in STAGES:
        if left := measuring.missing(size):
            print(f"still missing: {', '.join(left)}", flush=True)
    analysis.write(chosen.out, chosen.out / "language.json", scale, text.described())


if __name__ == "__main__":
    main()
