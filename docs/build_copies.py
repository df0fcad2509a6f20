"""Write docs/evidence/copies.md from benchmarks/results/copies.json: python docs/build_copies.py

Sentences that conclude something name the condition they rest on, and are refused if a new result
does not meet it.
"""

# ruff: noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resemblance._utils import formatting

HERE = Path(__file__).parent
RESULT = HERE.parent / "benchmarks/results/copies.json"
WHAT = {"digits": "accuracy, upright and rotated", "language": "loss, code and manual"}
VERDICTS = {"passed": "passes", "failed": "fails", "undecided": "undecided"}
Row = dict[str, Any]

HEAD = """# Copies of two networks

This page shows what `check` and `compare` report for copies of two small networks: quantised, pruned, distilled, fine-tuned, with LoRA, and averaged. Use it to choose what to measure for a copy of your own. [Quantised and pruned copies](../how-to/copies.md) shows the commands."""

SHORT = """## In short

| you made the copy by | measure | because |
|---|---|---|
| quantising to 8 bits | disagreement, or KL for a language model | both should be close to 0, and gradient CKA above 0.99 |
| quantising to 4 bits or fewer | gradient CKA and KL | feature CKA hardly changes |
| int8 kernels | predictions and dB, with `--features-only` | they have no backward pass, so there are no gradients |
| pruning | gradient CKA, then disagreement | feature CKA stays close to 1 while predictions change |
| distilling | predictions, beside a network of the same size that was trained without a teacher | units are in a different order, so there is no dB, and layers of the same name may do different things |
| LoRA, or fine-tuning on other data | predictions on the *old* data, and dB by layer | it is meant to differ, and the question is how much it forgot |
| more training on the same data | predictions | gradients diverge long before predictions do: do not use `--min gradients` |
| averaging weights | whether the networks have the same unit order, *before* averaging | otherwise the average is useless |

[The reference](../reference/check.md) has all thresholds. [Scores](../understand/scores.md) says what each number means."""

MAKING = """## The two networks

| | digits | language |
|---|---|---|
| network | three convolutions and a hidden layer | a Llama with four layers, half a million weights and 1,024 tokens |
| trained on | 797 of scikit-learn's handwritten digits | the source code of Python's standard library |
| recorded on | the other 1,000 digits | unseen files: 16 tokens each of 256 sequences |
| quality, on the task and elsewhere | accuracy on upright and rotated digits: {good_digits} | loss on code and on Python's manual: {good_language} nats |
| check | `{for_digits}` | `{for_language}` |

One command trains, records and checks all of them, in {minutes} minutes of one core:

```console
python -m benchmarks.copies --out copies
```

Networks and recordings are then in `copies/digits` and `copies/language`, and each copy was recorded and compared there as these were:

```console
{commands}
```

| column | meaning |
|---|---|
| features, gradients | CKA, mean over layers, ± standard error |
| dB | SQNR of features at the layer with the lowest: 40 is a relative error of 1 %, 20 of 10 %, 0 of 100 %; – where units are in a different order |
| disagreement | share of samples for which a different class or token is predicted |
| KL | mean KL(base‖copy) in nats |
| check | the verdict of `check` with the thresholds above |"""


class Results:
    """The rows of the result, by network and name."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.rows = {(row["network"], row["name"]): row for row in content["rows"]}

    def row(self, network: str, name: str) -> Row:
        return self.rows[network, name]

    def copies(self, network: str) -> list[Row]:
        return [r for (of, _), r in self.rows.items() if of == network and "verdict" in r]

    def gradients(self, network: str, name: str) -> float:
        return self.row(network, name)["alike"]["gradients"][0]

    def features(self, network: str, name: str) -> float:
        return self.row(network, name)["alike"]["features"][0]

    def lost(self, network: str, name: str) -> float:
        """Of accuracy or loss at home, since the base; positive if the copy is worse."""
        change = self.row(network, name)["at_home"] - self.row(network, "base")["at_home"]
        return -change if network == "digits" else change

    def table(self, network: str, section: str) -> str:
        """The copies of a section, a line each."""
        rows = [r for r in self.copies(network) if r["section"] == section]
        lines = [
            f"| {network} | features | gradients | dB | disagreement | KL | {WHAT[network]} | check |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in rows),
        ]
        return "\n".join(lines)

    def tables(self, section: str) -> str:
        return "\n\n".join(self.table(network, section) for network in WHAT)


def _line(row: Row) -> str:
    alike = row["alike"]
    gradients = "none"
    if "gradients" in alike:
        gradients = formatting.join_error(
            formatting.format_score(*alike["gradients"], significant=1)
        )
    decibels = f"{row['decibels']:.0f}" if row["decibels"] is not None else "–"
    cells = [
        f"`{row['name']}`: {row['story'].replace('turned', 'rotated')}",
        _score(alike["features"][0]),
        gradients,
        decibels.replace("-", "−"),
        disagreement(row),
        f"{row['kl']:#.2g}".replace("e-0", "e-"),
        good(row),
        VERDICTS[row["verdict"]],
    ]
    return f"| {' | '.join(cells)} |"


def _score(value: float) -> str:
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def disagreement(row: Row) -> str:
    """The share of samples that a copy predicts differently."""
    share, error = 100 * row["disagreement"], 100 * row["disagreement_stderr"]
    return f"{share:.1f} ± {error:.1f} %" if share else f"none of {row['samples']:,}"


def percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"


def good(row: Row) -> str:
    """How good a network is, at home and elsewhere."""
    if row["network"] == "digits":
        return f"{percent(row['at_home'], 1)}, {percent(row['elsewhere'], 1)}"
    return f"{row['at_home']:.2f}, {row['elsewhere']:.2f}"


def effective(row: Row) -> int | None:
    """The effective sample size of the gradients, where it is too small for standard errors."""
    found = re.search(r"(?:equivalent of|n_eff\) is) (\d+)", row["judged"])
    return int(found[1]) if found else None


def claim(holds: bool, text: str) -> str:
    """A sentence that the result bears out."""
    if not holds:
        raise SystemExit(f"the result does not bear out: {text}")
    return text


def order(of: list[float]) -> list[int]:
    return sorted(range(len(of)), key=of.__getitem__)


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's ρ, of numbers without ties."""
    ranks = [{at: rank for rank, at in enumerate(order(x))} for x in (one, other)]
    n = len(one)
    return 1 - 6 * sum((ranks[0][i] - ranks[1][i]) ** 2 for i in range(n)) / (n**3 - n)


# -- the page ------------------------------------------------------------------------------------


def making(of: Results) -> str:
    """The networks, and how their copies were recorded and compared."""
    bases = {network: of.row(network, "base") for network in WHAT}
    samples = {network: row["samples"] for network, row in bases.items()}
    claim(samples == {"digits": 1000, "language": 4096}, "recorded on 1,000 and 16 × 256 samples")
    thresholds = {n: of.row(n, "int4")["check"].split(".rsm ", 2)[2] for n in WHAT}
    int4 = of.row("digits", "int4")
    steps = (bases["digits"]["record"], int4["record"], int4["compare"], int4["check"])
    return MAKING.format(
        minutes=-(-of.content["processor_seconds"] // 60),
        commands="\n".join(steps),
        good_digits=good(bases["digits"]),
        good_language=good(bases["language"]),
        for_digits=thresholds["digits"],
        for_language=thresholds["language"],
    )


def standard_errors(of: Results) -> Iterator[str]:
    """Which standard errors are too small."""
    sizes = {r["name"]: effective(r) for r in of.copies("digits") if "gradients" in r["alike"]}
    yield "**Standard errors of the digit network's gradients are too small.** " + claim(
        None not in sizes.values()
        and {sizes["int8"], sizes["int4"], sizes["pruned-50"]} == {60}
        and min(x for x in sizes.values() if x is not None) == 40,
        "It is certain of nearly every image, so a few hard images dominate its gradients: the effective sample size ([n_eff](../understand/scores.md#n_eff)) is 60 of 1,000, and 40 for the copy that was trained further. Each comparison warns of it. Disagreement is not affected, because its bounds are exact.",
    )
    yield claim(
        all(effective(r) is None for r in of.copies("language"))
        and of.row("language", "base")["at_home"] > 3.5,
        "The language model, with a loss of 3.8 nats, is certain of hardly any token, so no warning is given.",
    )


def quantised(of: Results) -> Iterator[str]:
    """Rounded weights, and int8 kernels."""
    row, gradients = of.row, of.gradients
    yield "## Quantised: int8, int4, int3"
    yield "Each row of a weight matrix, or filter, is rounded to equal steps around zero and kept in float, as in weight-only quantisation. Embeddings are not rounded. `dynamic` has its linear layers in PyTorch's dynamic int8, which has no backward pass, and is recorded with `--features-only`."
    yield of.tables("rounded")
    yield "- " + claim(
        all(row(n, "int8")["verdict"] == "passed" and gradients(n, "int8") > 0.999 for n in WHAT),
        "**8 bits change next to nothing.** Gradient CKA is above 0.999, drift is about 45 dB, and both copies pass.",
    )
    yield "- " + claim(
        row("digits", "int4")["verdict"] == "passed"
        and row("language", "int4")["verdict"] == "failed"
        and 0.01 < row("language", "int4")["kl"] < 0.0125
        and 0.008 < of.lost("language", "int4") < 0.009,
        "**4 bits are the limit.** The digit network keeps its predictions. The language model slightly exceeds the allowed KL of 0.01, and its loss rises by 0.008 nats.",
    )
    yield "- " + claim(
        row("digits", "int3")["verdict"] == row("language", "int3")["verdict"] == "failed"
        and round(of.features("digits", "int3"), 3) == 0.996
        and gradients("digits", "int3") < 0.5
        and round(1000 * of.lost("digits", "int3")) == 8
        and row("digits", "int3")["disagreement"] == 0.016,
        "**At 3 bits both fail, and accuracy does not show why.** The digit network loses less than a point of accuracy and its feature CKA is 0.996, but gradient CKA has fallen by half. 16 predictions change, and only 8 fewer are correct.",
    )
    yield "- " + claim(
        row("language", "int4")["disagreement"] > 0.1 and row("language", "int8")["kl"] < 1e-4,
        "**For a language model, use KL rather than disagreement.** At 4 bits 11 % of the top tokens change, because the top token often leads by little. KL says how much probability moved.",
    )
    yield "- " + claim(
        row("digits", "dynamic")["parting"] == "act4",
        "**Dynamic int8 depends on the batch.** Activations are scaled by the largest value in the batch, so predictions depend on the batch size: between none and two of the 1,000 differ from the base's, for batches of 8 to 1,000. Record with the batch size that you will ship (`--batch-size`). `compare` finds the first drop at `act4`, after the first linear layer.",
    )


def pruned(of: Results) -> Iterator[str]:
    """Magnitude pruning."""
    row, gradients = of.row, of.gradients
    yield "## Pruned"
    yield "The smallest weights of each layer are set to zero, without retraining."
    yield of.tables("pruned")
    yield "- " + claim(
        all(of.features(n, "pruned-50") > 0.975 for n in WHAT)
        and all(row(n, "pruned-50")["verdict"] == "failed" for n in WHAT)
        and abs(of.lost("digits", "pruned-50") - 0.021) < 1e-6
        and row("digits", "pruned-50")["disagreement"] == 0.04,
        "**Feature CKA does not show that half of the weights are gone** (0.98). Gradient CKA does, and so do predictions: the digit network loses 2 points of accuracy and predicts a different class for 4 % of images.",
    )
    yield "- " + claim(
        row("digits", "pruned-20")["verdict"] == "undecided"
        and "about 3,100 samples would decide" in row("digits", "pruned-20")["judged"]
        and row("digits", "pruned-20")["disagreement"]
        == row("digits", "int4")["disagreement"]
        == 0.005
        and row("language", "pruned-20")["verdict"] == "passed",
        "**Undecided is a verdict.** With 20 % of the weights pruned, gradient CKA of the digit network is 0.84, too close to the threshold of 0.8 for 1,000 samples. `check` asks for about 3,100.",
    )
    yield "- " + claim(
        [round(gradients(n, "pruned-50"), 2) for n in WHAT] == [0.08, 0.84]
        and [round(row(n, "pruned-50")["kl"], 2) for n in WHAT] == [0.08, 0.06]
        and [round(gradients(n, "twin"), 2) for n in WHAT] == [0.06, 0.54],
        "**A threshold for gradients holds for one network.** With half of the weights pruned, gradient CKA is 0.84 for the language model and 0.08 for the digit network, at a similar KL (0.06 and 0.08 nats). Choose the threshold between a copy that is known to be good (int8: 1.00 for both) and an unrelated network (the twin below: 0.54 and 0.06).",
    )
    yield "- " + claim(
        row("language", "pruned-50")["parting"] == "model.layers.0"
        and "model.embed_tokens  1 " in row("language", "pruned-50")["compared"],
        "**`compare` finds where it begins.** The embedding of the language model was not pruned, and its features are equal. They first diverge at `model.layers.0`, and every later layer is at about 11 dB.",
    )


def distilled(of: Results) -> Iterator[str]:
    """Students, and networks without a teacher beside them."""
    row = of.row
    yield "## Distilled"
    yield "A smaller network learns the base's predictions. For digits it has three eighths of the channels, new weights, and a temperature of 2. For language it has two layers, initialised from the second and fourth layer of its teacher. Beside each are a network of the same size trained without a teacher, and a *twin*, a network of the base's size from a different seed."
    yield of.tables("distilled")
    yield "- " + claim(
        all(row(n, x)["verdict"] == "failed" for n in WHAT for x in ("distilled", "twin")),
        "**A student is not a copy, and no check for copies passes it.** A twin fails as well, although it is as good as the base. For a student, check its accuracy, and that it disagrees less than a twin does.",
    )
    yield "- " + claim(
        row("digits", "distilled")["kl"] > row("digits", "labelled")["kl"]
        and row("language", "distilled")["kl"] > row("language", "from-text")["kl"],
        "**Neither student is closer to its teacher than a network without a teacher.** The reason is how they were taught: on digits the teacher is so certain that its predictions equal the labels, and the language student was trained for a third of the steps. Always compare a student with an untaught network.",
    )
    yield "- " + claim(
        not any(
            row(n, x)["shared"]
            for n, x in (
                ("digits", "distilled"),
                ("digits", "twin"),
                ("language", "from-text"),
                ("language", "twin"),
            )
        )
        and row("language", "distilled")["shared"],
        "**Networks with a different unit order have no dB**, and fail `--min-db`. The language student has one, because it began with its teacher's embedding (12 dB there).",
    )
    yield "- " + claim(
        "without a counterpart" in row("language", "distilled")["judged"],
        "**Layers of the same name may not correspond.** `model.layers.1` of the language student began as `model.layers.3` of the base, and is compared with `model.layers.1` by name. For students, look at all pairs of layers with `compare --map`.",
    )


def tuned(of: Results) -> Iterator[str]:
    """Copies that were trained further."""
    row = of.row
    base = {n: row(n, "base") for n in WHAT}
    yield "## LoRA, merged"
    yield "An adapter of rank 4 at most layers is trained on other data (digits rotated by a quarter turn; Python's manual) and merged into the weights."
    yield of.tables("lora")
    learnt = {n: row(n, "lora")["elsewhere"] - base[n]["elsewhere"] for n in WHAT}
    yield "- " + claim(
        round(learnt["language"], 2) == -0.17
        and round(of.lost("language", "lora"), 2) == 0.09
        and round(row("language", "lora")["kl"], 2) == 0.10,
        "**Recordings on the old data show what is forgotten.** The language model's loss falls by 0.17 nats on the manual and rises by 0.09 on code, at a KL of 0.10. Record on the new data to see what it gained.",
    )
    yield "- " + claim(
        row("language", "lora")["parting"] == "model.layers.0",
        "**The first layer that diverges is the first one with an adapter**: `model.layers.0` at 18 dB, down to 12 dB before the head.",
    )
    yield "- " + claim(
        round(of.gradients("digits", "lora"), 3) == 0.006 and of.gradients("digits", "twin") > 0.05,
        "**Gradient CKA at the chance level** (0.006 for the adapted digit network, less than for a twin) means that the two networks are certain of different samples. The base has a confidence below 90 % for 3 % of the images, the adapted network for 96 %.",
    )
    yield "## Fine-tuned"
    yield "All weights are trained for a short time, on the same data (`tuned`) or on the other data (`tuned-away`)."
    yield of.tables("tuned")
    yield "- " + claim(
        round(of.lost("language", "tuned"), 2) == -0.03
        and round(row("language", "tuned")["kl"], 2) == 0.05
        and row("language", "tuned")["verdict"] == "failed"
        and of.lost("digits", "tuned") > 0,
        "**`check` says whether a copy is the same, not whether it is better.** With more training, the language model's loss falls by 0.03 nats, and it fails with a KL of 0.05. Judge a copy that should improve by its accuracy, and use `compare` to see where it changed.",
    )
    yield "- " + claim(
        0.375 < of.gradients("digits", "tuned") < of.gradients("digits", "int3")
        and row("digits", "tuned")["decibels"] < row("digits", "int3")["decibels"]
        and row("digits", "tuned")["disagreement"] < row("digits", "int3")["disagreement"]
        and of.features("digits", "tuned") > 0.995
        and round(row("digits", "tuned")["decibels"], 1) == 8.9,
        "**Training changes gradients and magnitudes first.** The tuned digit network has a gradient CKA of 0.38 and 9 dB, both worse than at 3 bits, but fewer predictions change (1.1 %). It has become more certain. For a copy that was trained, use `--max-disagreement` or `--max-kl`.",
    )
    yield "- " + claim(
        all(row(n, "tuned-away")["kl"] > row(n, "lora")["kl"] for n in WHAT)
        and row("digits", "tuned-away")["elsewhere"] > row("digits", "lora")["elsewhere"] + 0.3
        and row("language", "tuned-away")["elsewhere"] < row("language", "lora")["elsewhere"] - 0.4,
        "**Training all weights learns more and forgets more** than the adapter, for both networks, and KL on the old data ranks them.",
    )


def averaged(of: Results) -> Iterator[str]:
    """Means of weights."""
    row = of.row
    yield "## Averaged"
    yield "The mean of the weights of `tuned` and a second copy tuned on the same data in a different order; and the mean of base and twin."
    yield of.tables("averaged")
    yield "- " + claim(
        all(row(n, "averaged")["kl"] < row(n, "tuned")["kl"] for n in WHAT)
        and all(of.lost(n, "averaged") <= of.lost(n, "tuned") for n in WHAT),
        "**The average of two tuned copies is closer to the base than `tuned`, and not worse**, for both networks.",
    )
    yield "- " + claim(
        not any(row(n, "twin")["shared"] for n in WHAT)
        and round(100 * of.lost("digits", "averaged-twins")) == 21
        and round(of.lost("language", "averaged-twins"), 1) == 1.6,
        "**Averaging networks whose units are not aligned destroys them**: 21 points of accuracy, and 1.6 nats. Before averaging, run `compare`: without a column `dB`, the units are not aligned.",
    )


def overall(of: Results) -> Iterator[str]:
    """What holds for all copies."""
    yield "## Over all copies"
    found = {}
    for network in WHAT:
        rows = [r for r in of.copies(network) if "gradients" in r["alike"]]
        kl = [r["kl"] for r in rows]
        found[network] = [
            rank_correlation([-r["alike"][kernel][0] for r in rows], kl)
            for kernel in ("features", "gradients")
        ]
    claim(min(min(x) for x in found.values()) > 0.95, "both kernels rank copies as KL does")
    yield "**Both kernels rank copies nearly as KL does.** Spearman's ρ with KL, over 14 copies each:"
    lines = [f"| {n} | {x[0]:.2f} | {x[1]:.2f} |" for n, x in found.items()]
    yield "\n".join(["| | feature CKA | gradient CKA |", "|---|---|---|", *lines])
    small = [r for r in of.copies("digits") if r["shared"] and r["disagreement"] <= 0.04]
    small = [r for r in small if "gradients" in r["alike"]]
    lows = [min(r["alike"][kernel][0] for r in small) for kernel in ("features", "gradients")]
    yield claim(
        lows[0] > 0.98 and lows[1] < 0.1,
        f"**Their ranges differ.** Copies of the digit network with a disagreement of up to 4 % have feature CKA from {lows[0]:.2f} to 1.00 and gradient CKA from {lows[1]:.2f} to 1.00. A threshold for features would have to be set in the third decimal.",
    )
    harmed = [r for r in of.copies("language") if r["section"] in ("rounded", "pruned")]
    off = [abs(of.lost("language", r["name"]) - r["kl"]) for r in harmed]
    yield claim(
        all(x < 0.004 + 0.05 * r["kl"] for x, r in zip(off, harmed, strict=True)),
        "**For a quantised or pruned language model, KL is the loss it adds**, to within 0.004 nats and 5 %, and it needs no labels. This does not hold for copies that were trained further, whose loss may fall.",
    )
    untouched = ("int8", "int4", "int3", "pruned-20", "pruned-50", "pruned-80", "lora")
    yield claim(
        all(of.row("language", x)["parting"] == "model.layers.0" for x in untouched)
        and of.row("language", "tuned")["parting"] == "model.embed_tokens"
        and of.row("digits", "dynamic")["parting"] == "act4"
        and of.row("digits", "int8")["parting"] is None
        and of.row("digits", "tuned")["parting"] == "act2"
        and of.row("digits", "pruned-50")["parting"] == "act1",
        "**The first layer that diverges shows what was changed.** Language models whose embedding was not changed diverge after it, tuned ones at it. `dynamic` diverges at the first linear layer, and `int8` of the digit network at none.",
    )
    libraries = of.content["libraries"]
    versions = ", ".join(f"{name} {libraries[name]}" for name in sorted(libraries))
    yield f"Written by `python docs/build_copies.py` from `benchmarks/results/copies.json`, with torch {of.content['environment']['torch'].split('+')[0]}, {versions}. A second run on the same machine gave the same numbers."


SECTIONS: tuple[Callable[[Results], Iterator[str]], ...] = (
    standard_errors, quantised, pruned, distilled, tuned, averaged, overall,
)  # fmt: skip


def page() -> str:
    """The whole page."""
    of = Results(json.loads(RESULT.read_text(encoding="utf-8")))
    parts = [HEAD, SHORT, making(of)]
    for section in SECTIONS:
        parts += section(of)
    text = "\n\n".join(parts) + "\n"
    return re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", text)


if __name__ == "__main__":
    (HERE / "evidence/copies.md").write_text(page(), encoding="utf-8")
