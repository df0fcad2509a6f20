"""A page for practitioners, made of the results: every number on it comes from the file.

python -m reproduction.language.tables       docs/evidence/language-models.md and its figure
python -m reproduction.language.tables --results FILE --page FILE --figure FILE
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .analysis import ERRORS, LEAST, PAIRS
from .figures import draw
from .scale import SIZES
from .scores import KERNELS

ROOT = Path(__file__).resolve().parents[2]
UNITS = {  # as recorded, and how
    "tokens": '`unit="token"`, {tokens} of a sequence',
    "one token": '`unit="token", tokens=1`',
    "last token": '`unit="sample", pool="last"`',
    "mean": '`unit="sample", pool="mean"`',
    "whole sequence": '`unit="sample"`, all positions side by side',
}
NEEDED = 1.25  # masking is called needed where it sets networks apart by so many times more
Content = dict[str, Any]


def page(content: Content, figure: str) -> str:
    """The whole page; `figure` is where its picture lies."""
    sizes = [size for size in SIZES if size in content["sizes"]]
    parts = [
        "# Language models",
        _measured(content, sizes),
        "## What to do",
        _advice(content, sizes),
        "```console\nresemblance record --model hf:BASE --data text.txt -o base.rsm\n"
        "resemblance record --model hf:COPY --data text.txt -o copy.rsm\n"
        "resemblance compare base.rsm copy.rsm --kernel gradients\n```",
        f"![Scores against KL]({figure})",
        "Mean over layers, bars of two standard errors. Filled: copies, which began with the "
        "base's weights. Hollow: networks that did not.",
        "## Copies and strangers",
        "Samples are tokens; mean of CKA over layers ± standard error. KL(base‖network) in nats a "
        "byte, and the share of positions whose most likely byte differs, over all positions of "
        f"{content['scale']['sequences']} held-out sequences.",
        *(_networks(content, size) for size in sizes),
        "## What a sample is",
        _units(content, sizes),
        "## Where a change shows",
        _where(content, sizes),
    ]
    if "masked" in content["sizes"]:
        parts += ["## Masked models", _masking(content)]
    parts += ["## How it was trained", _training(content)]
    return "\n\n".join(part for part in parts if part) + "\n"


# -- sentences ------------------------------------------------------------------------------------


def _measured(content: Content, sizes: Sequence[str]) -> str:
    place, scale = content["environment"], content["scale"]
    nets = " and ".join(
        f"{content['training'][f'{size}/0']['parameters'] / 1e6:.3g} million parameters "
        f"({content['sizes'][size]['loss']:.2f} nats a byte on held-out text)"
        for size in sizes
    )
    missing = " ".join(
        f"Of the {size} one there are no results yet for these: {_listed(map(label, kinds))}."
        for size in sizes
        if (kinds := _not_measured(content, sizes, size))
    )
    return (
        f"Measured on byte-level GPT-2s of {nets}, trained on Python source. Beside each base: "
        "copies of it, a twin from another seed, one trained on C headers, an untrained one and a "
        f"student. {missing + ' ' if missing else ''}All of a size saw the same "
        f"{scale['sequences']} held-out sequences of {scale['context']} bytes. "
        "`python -m reproduction.language` repeats it "
        f"({place['device']}, torch {place['torch']}, {place['date']}); this page is "
        "made of its results by `reproduction.language.tables`."
    )


def _not_measured(content: Content, sizes: Sequence[str], size: str) -> list[str]:
    """Kinds of networks that another size has; a block alone has other numbers in each."""
    kinds = {
        other: {row["kind"].partition("@")[0] + "@" * ("@" in row["kind"]) for row in rows}
        for other, rows in ((x, content["sizes"][x]["networks"]) for x in sizes)
    }
    return sorted(set().union(*kinds.values()) - kinds[size])


def _advice(content: Content, sizes: Sequence[str]) -> str:
    units = _worst_separations(content, sizes)
    apart = ", ".join(f"{unit} {value:.0f}" for unit, value in units.items())
    first = content["sizes"][sizes[0]]
    ranked, spans = (
        ", ".join(
            f"{kernel} {_number(_find(first[key], 'tokens', kernel)[what], digits)}"
            for kernel in KERNELS
        )
        for key, what, digits in (("ranking", "all", 3), ("range", "span", 2))
    )
    twin = _by_kind(content, sizes[0]).get("twin")
    twins = [_by_kind(content, size).get("twin") for size in sizes]
    lines = [
        "**Record tokens**, which is what `record` does with a language model. "
        + "Gradients of a twin, which shares its base's text and nothing else, by kind of sample: "
        + "; ".join(
            f"{unit} "
            + " and ".join(_number(t["scores"][unit]["gradients"]["mean"], 2) for t in twins if t)
            for unit in UNITS
        )
        + ". Over a mean or over all positions at once a stranger looks like a copy. That is a "
        "matter of range, not of noise: how many standard errors of their difference lie between "
        "an 8-bit copy, a 4-bit copy and a twin, in the worst case over pairs and sizes and with "
        f"the best kernel of each kind of sample: {apart}.",
        "**Choose the kernel.** Spearman's ρ of 1 − score with KL over all networks, for tokens: "
        f"{ranked}. By rank they say the same; from the closest copy to the farthest their scores "
        f"fall by: {spans}. Gradients leave most room between a good copy and a bad one.",
    ]
    if twin:
        scores = ", ".join(f"{k} {_with_error(twin['scores']['tokens'][k])}" for k in KERNELS)
        lines.append(
            f"**Read a score against references.** An independent twin has {scores}: a copy at "
            "that level is, to that kernel, as unlike its base as a network trained anew. Record "
            "an 8-bit copy as well, for how high a close copy scores."
        )
    lines.append(
        "**For networks with the same tokens, measure KL too.** Two recordings give it as well "
        "([behaviour](../understand/scores.md)), for the tokens that they drew; which layer it "
        "comes from is what scores by layer say."
    )
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def _listed(words: Iterable[str]) -> str:
    """Words in a sentence.

    >>> _listed(["one", "two", "three"])
    'one, two and three'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _option(content: Content, unit: str) -> str:
    """How `record` is told to take such samples."""
    return UNITS[unit].format(tokens=content["scale"]["tokens"])


def _worst_separations(content: Content, sizes: Sequence[str]) -> dict[str, float]:
    """Of each unit, the fewest standard errors between a pair, with the unit's best kernel."""
    out = {}
    for unit in UNITS:
        best = []
        for size in sizes:
            for pair in PAIRS:
                found = [
                    row["errors"] or 0.0
                    for row in content["sizes"][size]["separation"]
                    if row["unit"] == unit and row["pair"] == list(pair)
                ]
                best += [max(found)] if found else []
        out[unit] = min(best, default=0.0)
    return out


# -- tables ---------------------------------------------------------------------------------------


def _networks(content: Content, size: str) -> str:
    million = content["training"][f"{size}/0"]["parameters"] / 1e6
    head = (f"{million:.3g} million parameters", "KL", "top byte differs", *KERNELS)
    rows = [
        (
            label(row["kind"]), _short(row["behaviour"]["kl"]),
            f"{100 * row['behaviour']['disagreement']:.1f} %",
            *(_with_error(row["scores"]["tokens"][kernel]) for kernel in KERNELS),
        )
        for row in content["sizes"][size]["networks"]
    ]  # fmt: skip
    return table(head, rows)


def _units(content: Content, sizes: Sequence[str]) -> str:
    parts = [
        "Mean of CKA over layers; ρ is Spearman's with KL over copies and over all networks; the "
        "last columns say how many standard errors of their difference lie between two networks, "
        "and how many the scores of all copies span."
    ]
    named = ("int8", "int4", "pruned-50", "twin")
    for size in sizes:
        found, by_kind = content["sizes"][size], _by_kind(content, size)
        kinds = [kind for kind in named if kind in by_kind]
        pairs = [pair for pair in PAIRS if set(pair) <= set(by_kind)][:2]
        head = (
            f"{size}: samples", "kernel", *kinds, "ρ copies", "ρ all",
            *(f"{a} to {b}" for a, b in pairs), "span of copies",
        )  # fmt: skip
        rows = []
        for unit in UNITS:
            for kernel in KERNELS:
                ranking, span = (_find(found[key], unit, kernel) for key in ("ranking", "range"))
                rows.append((
                    unit, kernel,
                    *(_number(by_kind[kind]["scores"][unit][kernel]["mean"]) for kind in kinds),
                    _number(ranking["copies"]), _number(ranking["all"]),
                    *(_errors(found, unit, kernel, pair) for pair in pairs),
                    _number(span["errors"], 0),
                ))  # fmt: skip
        parts.append(table(head, rows))
    how = "; ".join(f"{unit}: {_option(content, unit)}" for unit in UNITS)
    return "\n\n".join([*parts, f"As options of `record`: {how}."])


def _where(content: Content, sizes: Sequence[str]) -> str:
    text = (
        f"The first layer from the input whose score is below 1 by more than {ERRORS} standard "
        f"errors and by more than {LEAST:g}, and the last, for tokens. Features "
        "before a damaged block cannot change; gradients there can, as they come from what follows."
    )
    parts = []
    for size in sizes:
        rows = []
        for row in content["sizes"][size]["networks"]:
            if "@" in row["kind"]:
                cells = []
                for kernel in KERNELS:
                    one = next(
                        w for w in content["sizes"][size]["where"]
                        if w["kind"] == row["kind"] and w["kernel"] == kernel
                    )  # fmt: skip
                    cells.append(f"`{one['first']}` to `{one['last']}`" if one["first"] else "none")
                rows.append((label(row["kind"]), _short(row["behaviour"]["kl"]), *cells))
        if rows:
            parts.append(table((size, "KL", *KERNELS), rows))
    return "\n\n".join([text, *parts]) if parts else ""


def _masking(content: Content) -> str:
    found = content["sizes"]["masked"]
    concentration = found["concentration"]
    ways = ("masked", "not masked")
    kinds = [row["kind"] for row in found["networks"]]
    head = (
        "drawn tokens",
        "n_eff",
        "carried by the top 1 %",
        "kernel",
        *map(label, kinds),
        "ρ all",
    )
    rows = []
    for way in ways:
        one = concentration[way]
        for kernel in KERNELS:
            scores = [row["scores"][way][kernel]["mean"] for row in found["networks"]]
            rows.append((
                way, f"{min(one['n_eff']):,.0f} to {max(one['n_eff']):,.0f} of {one['samples']:,}",
                f"{100 * min(one['top']):.0f} to {100 * max(one['top']):.0f} %", kernel,
                *map(_number, scores),
                _number(_find(found["ranking"], way, kernel)["all"]),
            ))  # fmt: skip
    apart = {
        way: {
            tuple(row["pair"]): row["errors"] or 0.0
            for row in found["separation"]
            if row["unit"] == way and row["kernel"] == "gradients"
        }
        for way in ways
    }
    told = "; ".join(
        f"{a} and {b} {apart['masked'][a, b]:.1f} and {apart['not masked'][a, b]:.1f}"
        for a, b in apart["masked"]
    )
    gains = [
        apart["masked"][pair] / max(apart["not masked"][pair], 1e-9) for pair in apart["masked"]
    ]
    if gains and min(gains) >= NEEDED:
        verdict = "Masking is worth its while: pass `tokenizer=`, so that drawn tokens are masked."
    elif gains and max(gains) <= 1 / NEEDED:
        verdict = "Recordings without masks tell networks apart better here."
    else:
        verdict = "By this measure masking is not needed to tell networks apart."
    loss = found["loss"]
    known = found["text"].get("python", {}).get("nats a byte by frequency")
    weak = (
        f" It has learnt little more than how frequent bytes are, which alone gives {known:.2f}: "
        "what is said here is of a network that makes little of its context."
        if known is not None and loss > 0.8 * known
        else ""
    )
    return "\n\n".join([
        f"A ModernBERT over bytes ({loss:.2f} nats a masked byte on held-out text).{weak} Recorded "
        "with the drawn tokens masked, as `record` does if it has the tokenizer, and as they are. "
        "n_eff and the share of Σ ‖g‖² that the top 1 % of tokens carry are the base's, smallest "
        "and largest over layers.",
        table(head, rows),
        f"Standard errors of gradients' scores between pairs, masked and not: {told or 'none'}. "
        f"{verdict} (It is called needed where every pair lies {NEEDED:g} times as far apart.)",
    ])  # fmt: skip


def _training(content: Content) -> str:
    head = ("network", "text", "steps", "MB seen", "rate", "loss at the end", "seconds")
    rows = [
        (
            f"`{name}`", one["learnt"], f"{one['steps']:,}", f"{one['bytes'] / 1e6:.1f}",
            f"{one['rate']:.2g}", f"{one['loss']:.3f}", f"{one['seconds']:.0f}",
        )
        for name, one in content["training"].items()
    ]  # fmt: skip
    scale = content["scale"]
    files = {size: part["text"].get("python", {}) for size, part in content["sizes"].items()}
    known = [f"{one['files']:,} files ({size})" for size, one in files.items() if one]
    gathered = f"Python source of {_listed(known)}" if known else "Python source"
    return "\n\n".join([
        f"{gathered}, gathered from the packages that were installed when a size "
        f"was measured. AdamW, a cosine of the rate, bfloat16, context {scale['context']}. Weights "
        "are rounded symmetrically with a scale an output row and pruned by magnitude matrix by "
        "matrix, in the "
        f"projections of all blocks. `low-rank` is an adapter of rank {scale['rank']} on all of "
        "them, merged; `distilled` is a small network that learnt the base's predictions, whose "
        "loss is KL. Recordings are float32.",
        table(head, rows),
    ])  # fmt: skip


def label(kind: str) -> str:
    """What a kind of network is called on the page.

    >>> label("int3@4"), label("pruned-35")
    ('block 4 alone rounded to 3 bits', '35 % of the weights pruned')
    """
    names = {
        "twin": "twin from another seed", "other text": "trained on C headers",
        "tuned": "trained further on the same text",
        "tuned-docs": "trained further on documentation",
        "low-rank": "adapter trained on documentation, merged",
        "distilled": "a small student of it",
    }  # fmt: skip
    if kind.startswith("pruned-"):
        return f"{kind.removeprefix('pruned-')} % of the weights pruned"
    if kind.startswith("int"):
        bits, _, block = kind.removeprefix("int").partition("@")
        if kind.endswith("@"):
            return f"single blocks rounded to {bits} bits"
        return f"block {block} alone rounded to {bits} bits" if block else f"rounded to {bits} bits"
    return names.get(kind, kind)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _by_kind(content: Content, size: str) -> dict[str, Any]:
    return {row["kind"]: row for row in content["sizes"][size]["networks"]}


def _find(rows: Iterable[Content], unit: str, kernel: str) -> Content:
    return next(row for row in rows if (row["unit"], row["kernel"]) == (unit, kernel))


def _errors(found: Content, unit: str, kernel: str, pair: tuple[str, str]) -> str:
    asked = (unit, kernel, list(pair))
    for row in found["separation"]:
        if (row["unit"], row["kernel"], row["pair"]) == asked:
            return _number(row["errors"], 1)
    return "none"


def _with_error(one: Content) -> str:
    if one["mean"] is None:
        return "none"
    error = one["mean stderr"]
    return f"{one['mean']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _number(value: float | None, digits: int = 3) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _short(value: float) -> str:
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = ROOT / "reproduction" / "results" / "language.json"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/evidence/language-models.md")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "language.png")
    chosen = parser.parse_args(words)
    content = json.loads(chosen.results.read_text())
    if content["environment"]["quick"] and chosen.page.resolve().is_relative_to(ROOT / "docs"):
        parser.error("these are results of a quick run, which say nothing; name another --page")
    draw(content, chosen.figure)
    where = os.path.relpath(chosen.figure.resolve(), chosen.page.resolve().parent)
    chosen.page.write_text(page(content, Path(where).as_posix()))
    print(f"wrote {chosen.page} and {chosen.figure}", flush=True)


if __name__ == "__main__":
    main()
