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
        "```console\nresemblance record --model hf:BASE --data text.txt -o base.rsm\n"
        "resemblance record --model hf:COPY --data text.txt -o copy.rsm\n"
        "resemblance compare base.rsm copy.rsm --kernel gradients\n```",
        "## What to do",
        _advice(content, sizes),
        f"![Scores against KL]({figure})",
        "Means over layers, with bars of two standard errors. Filled points are copies, which "
        "began with the base's weights. Hollow points are unrelated networks.",
        "## All networks",
        "The samples are tokens. Scores are CKA, mean over layers, ± standard error. KL is "
        "KL(base‖network) in nats per byte. *Top byte differs* is the share of positions whose "
        "most likely byte changes. Both are over all positions of "
        f"{content['scale']['sequences']} held-out sequences.",
        *(_networks(content, size) for size in sizes),
        "## Which samples to record",
        _units(content, sizes),
        "## Where a damaged block shows",
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
        f"{content['training'][f'{size}/0']['parameters'] / 1e6:.3g} million parameters (loss "
        f"{content['sizes'][size]['loss']:.2f} nats per byte on held-out text)"
        for size in sizes
    )
    missing = " ".join(
        f"For the {size} one there are no results yet for: {_listed(map(label, kinds))}."
        for size in sizes
        if (kinds := _not_measured(content, sizes, size))
    )
    return (
        "This page shows how scores of language models relate to KL, and which samples and kernel "
        "to choose. It compares byte-level GPT-2s, trained on Python source code, with copies of "
        "them, a twin (a network from a different seed), a network trained on C headers, an "
        f"untrained one and a student. The bases have {nets}. {missing + ' ' if missing else ''}"
        f"All saw the same {scale['sequences']} held-out sequences of {scale['context']} bytes.\n\n"
        "`python -m reproduction.language` repeats the measurement, and "
        "`python -m reproduction.language.tables` writes this page from its results "
        f"({place['device']}, torch {place['torch']}, {place['date']})."
    )


def _not_measured(content: Content, sizes: Sequence[str], size: str) -> list[str]:
    """Kinds of networks that another size has; a block alone has other numbers in each."""
    kinds = {
        other: {row["kind"].partition("@")[0] + "@" * ("@" in row["kind"]) for row in rows}
        for other, rows in ((x, content["sizes"][x]["networks"]) for x in sizes)
    }
    return sorted(set().union(*kinds.values()) - kinds[size])


def _advice(content: Content, sizes: Sequence[str]) -> str:
    apart = _worst_separations(content, sizes)
    first = content["sizes"][sizes[0]]
    twin = _by_kind(content, sizes[0]).get("twin")
    twins = [row for size in sizes if (row := _by_kind(content, size).get("twin"))]
    kernels = [
        (
            kernel,
            _number(_find(first["ranking"], "tokens", kernel)["all"]),
            _number(_find(first["range"], "tokens", kernel)["span"], 2),
            _with_error(twin["scores"]["tokens"][kernel]) if twin else "none",
        )
        for kernel in KERNELS
    ]
    units = [
        (
            unit,
            _listed(_number(row["scores"][unit]["gradients"]["mean"], 2) for row in twins),
            f"{apart[unit]:.0f}",
        )
        for unit in UNITS
    ]
    return "\n\n".join([
        "**Record tokens**, the default for language models. A twin shares nothing with its base "
        "but the training text, and its gradient CKA should be low. Over the mean of a sequence, "
        "or over all its positions at once, it is as high as that of a copy. The last column is "
        "the smallest difference between an 8-bit copy, a 4-bit copy and a twin, with the best "
        "kernel, in standard errors.",
        table(("sample", "gradient CKA of twins", "smallest difference"), units),
        "**Use gradients.** All three kernels rank networks as KL does (Spearman's ρ, tokens). "
        "Gradients have the widest range between the closest copy and the farthest.",
        table(("kernel", "ρ with KL", "range over copies", "twin"), kernels),
        "**Compare a score with references.** A copy at the level of the twin is, by this kernel, "
        "no closer to its base than an unrelated network. Also record an 8-bit copy, to see how "
        "high the score of a close copy is.",
        "**Measure KL as well**, which two recordings also give "
        "([predictions](../understand/scores.md)). Scores then say at which layer it arises.",
    ])  # fmt: skip


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
        "Scores are CKA, mean over layers. ρ is Spearman's correlation with KL, over copies and "
        "over all networks. The last columns are the difference between two networks and the range "
        "over all copies, in standard errors of the difference."
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
    how = table(("sample", "options of `record`"), [(u, _option(content, u)) for u in UNITS])
    return "\n\n".join([*parts, how])


def _where(content: Content, sizes: Sequence[str]) -> str:
    text = (
        f"The first and last layer whose score is below 1 by more than {ERRORS} standard errors "
        f"and by more than {LEAST:g}, for tokens. Features before a damaged block cannot change. "
        "Gradients there can, because they come from the layers after it."
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
        "share of the top 1 %",
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
    differences = table(
        ("difference of gradient CKA, in standard errors", *ways),
        [
            (f"{a} and {b}", *(f"{apart[way][a, b]:.1f}" for way in ways))
            for a, b in apart["masked"]
        ],
    )
    gains = [
        apart["masked"][pair] / max(apart["not masked"][pair], 1e-9) for pair in apart["masked"]
    ]
    if gains and min(gains) >= NEEDED:
        verdict = (
            "Masking separates networks better: pass `tokenizer=`, so that drawn tokens are masked."
        )
    elif gains and max(gains) <= 1 / NEEDED:
        verdict = "Recordings without masks separate networks better here."
    else:
        verdict = "Masking is not needed to separate these networks."
    loss = found["loss"]
    known = found["text"].get("python", {}).get("nats a byte by frequency")
    weak = (
        f" It has learnt little more than byte frequencies, which alone give {known:.2f}, so these "
        "results are about a network that hardly uses its context."
        if known is not None and loss > 0.8 * known
        else ""
    )
    return "\n\n".join([
        f"A ModernBERT over bytes ({loss:.2f} nats per masked byte on held-out text).{weak} It is "
        "recorded with the drawn tokens masked, as `record` does if it has the tokenizer, and "
        "without masks. n_eff and the share of Σ ‖g‖² in the top 1 % of tokens are those of the "
        "base, smallest and largest over layers.",
        table(head, rows),
        differences,
        f"{verdict} The criterion is {NEEDED:g} times the difference, for every pair.",
    ])  # fmt: skip


def _training(content: Content) -> str:
    head = ("network", "text", "steps", "MB seen", "learning rate", "final loss", "seconds")
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
        f"{gathered}, collected from the packages installed when a size was measured. AdamW, "
        f"cosine schedule, bfloat16, context {scale['context']}. Weights of the projections in all "
        "blocks are rounded symmetrically with one scale per output row, and pruned by magnitude "
        f"per matrix. `low-rank` is an adapter of rank {scale['rank']} on all of them, merged. "
        "`distilled` is a small network trained on the base's predictions, whose loss is KL. "
        "Recordings are float32.",
        table(head, rows),
    ])  # fmt: skip


def label(kind: str) -> str:
    """What a kind of network is called on the page.

    >>> label("int3@4"), label("pruned-35")
    ('block 4 alone rounded to 3 bits', '35 % of the weights pruned')
    """
    names = {
        "twin": "twin, from a different seed", "other text": "trained on C headers",
        "tuned": "trained further on the same text",
        "tuned-docs": "trained further on documentation",
        "low-rank": "adapter trained on documentation, merged",
        "distilled": "distilled into a small student",
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
