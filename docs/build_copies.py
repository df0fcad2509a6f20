"""Write docs/evidence/copies.md from benchmarks/results/copies.json: python docs/build_copies.py

Sentences that conclude something name the condition they rest on, and are refused if a new result
does not meet it.
"""

# ruff: noqa: E501

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resemblance._utils import formatting

HERE = Path(__file__).parent
RESULT = HERE.parent / "benchmarks/results/copies.json"
WHAT = {"digits": "right, upright and turned", "language": "loss, code and manual"}
VERDICTS = {"passed": "passes", "failed": "fails", "undecided": "undecided"}
Row = dict[str, Any]

HEAD = """# Copies as they are made today

You rounded, pruned, distilled, merged, tuned or averaged a network. This page does all of that to two small networks, and shows two commands for each: one that records the copy, and one that sets it beside its base or judges it. The numbers are what these commands said."""

SHORT = """## In short

| you made the copy by | look at | and know that |
|---|---|---|
| rounding to 8 bits | disagreement, or KL of a language model | it should be next to none, and gradients above 0.99 |
| rounding to 4 bits or fewer | gradients, and KL | features hardly move; rounding hurts from 4 bits down |
| real int8 layers | predictions and dB, with `--features-only` | they have no backward pass, so gradients are not there |
| pruning | gradients, then disagreement | features stay near 1 while predictions go |
| distilling | predictions, beside a network of that size that was trained without a teacher | it has coordinates of its own: no dB, and layers that mean something else by the same name |
| LoRA, or tuning to other data | predictions on the *old* data, and dB layer by layer | it is meant to differ; the question is how much it forgot |
| training on with the same data | predictions | gradients part long before predictions do: leave `--min gradients` out |
| averaging weights | whether the two share coordinates, *before* you average | without them the average is worth nothing |

[The reference](../reference/check.md) has all thresholds, [how to read scores](../understand/scores.md) what each number is."""

MAKING = """## The two networks

**Digits**: three convolutions and a hidden layer, trained on 797 of scikit-learn's handwritten digits and recorded on the other 1,000. **Language**: a Llama of four layers, half a million weights and 1,024 tokens, trained on the source code of Python's library and recorded on files that it has not seen: 16 tokens each of 256 sequences. All is made, recorded and judged in {minutes} minutes of one core by

```console
python -m benchmarks.copies --out copies
```

which leaves networks and recordings in `copies/digits` and `copies/language`. The commands below run there. Each base is recorded once:

```console
# in copies/digits
{digits}
# in copies/language
{language}
```

In the tables, *features* and *gradients* are CKA, mean over layers; *dB* is the largest change of any layer's features (40 is 1 %, 20 is 10 %, 0 as large as the features), for copies that share their base's coordinates; *KL* is that of the copy's predictions from the base's. The last columns say how good a copy is, at home and elsewhere (the base: {good}), and what `check` says of

```console
resemblance check base.rsm COPY.rsm {for_digits}
resemblance check base.rsm COPY.rsm {for_language}
```

The words of [the guide](../start/guide.md#the-words) say what each of these is."""


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
            f"| {network} | features | gradients | dB | predicted otherwise | KL, nats | {WHAT[network]} | check |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(row) for row in rows),
        ]
        return "\n".join(lines)

    def tables(self, section: str) -> str:
        return "\n\n".join(self.table(network, section) for network in WHAT)

    def commands(self, name: str, then: str = "compare") -> str:
        """How a copy of each network is recorded, and what is asked of it then."""
        rows = [self.rows[network, name] for network in WHAT if (network, name) in self.rows]
        lines = [f"# in copies/{r['network']}\n{r['record']}\n{r[then]}" for r in rows]
        return console("\n".join(lines))


def _line(row: Row) -> str:
    alike = row["alike"]
    gradients = "not recorded"
    if "gradients" in alike:
        gradients = formatting.join_error(
            formatting.format_score(*alike["gradients"], significant=1)
        )
    decibels = f"{row['decibels']:.0f}" if row["decibels"] is not None else "not shared"
    cells = [
        f"`{row['name']}`: {row['story']}",
        _score(alike["features"][0]),
        gradients,
        decibels.replace("-", "−"),
        otherwise(row),
        f"{row['kl']:#.2g}".replace("e-0", "e-"),
        good(row),
        VERDICTS[row["verdict"]],
    ]
    return f"| {' | '.join(cells)} |"


def _score(value: float) -> str:
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def otherwise(row: Row) -> str:
    """The share of samples that a copy predicts otherwise."""
    share, error = 100 * row["disagreement"], 100 * row["disagreement_stderr"]
    return f"{share:.1f} ± {error:.1f} %" if share else f"none of {row['samples']:,}"


def percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"


def good(row: Row) -> str:
    """How good a network is, at home and elsewhere."""
    if row["network"] == "digits":
        return f"{percent(row['at_home'], 1)}, {percent(row['elsewhere'], 1)}"
    return f"{row['at_home']:.2f}, {row['elsewhere']:.2f}"


def carried(row: Row) -> int | None:
    """How many samples carry the gradients, where they are too few for error bars."""
    found = re.search(r"equivalent of (\d+) samples", row["judged"])
    return int(found[1]) if found else None


def claim(holds: bool, text: str) -> str:
    """A sentence that the result bears out."""
    if not holds:
        raise SystemExit(f"the result does not bear out: {text}")
    return text


def console(text: str) -> str:
    """What one types, as a block."""
    return f"```console\n{text}\n```"


def printed(text: str) -> str:
    """What a command printed, as a block."""
    return f"```text\n{text.strip()}\n```"


def judged(row: Row) -> str:
    """The paragraph of `check`, in lines of a page."""
    return printed("\n".join(textwrap.wrap(row["judged"].split("\nNote:")[0], 96)))


def order(of: list[float]) -> list[int]:
    return sorted(range(len(of)), key=of.__getitem__)


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's ρ, of numbers without ties."""
    ranks = [{at: rank for rank, at in enumerate(order(x))} for x in (one, other)]
    n = len(one)
    return 1 - 6 * sum((ranks[0][i] - ranks[1][i]) ** 2 for i in range(n)) / (n**3 - n)


# -- the page ------------------------------------------------------------------------------------


def making(of: Results) -> str:
    bases = {network: of.row(network, "base") for network in WHAT}
    samples = {network: row["samples"] for network, row in bases.items()}
    claim(samples == {"digits": 1000, "language": 4096}, "recorded on 1,000 and 16 × 256 samples")
    thresholds = {n: of.row(n, "int4")["check"].split(".rsm ", 2)[2] for n in WHAT}
    return MAKING.format(
        minutes=-(-of.content["processor_seconds"] // 60),
        digits=bases["digits"]["record"],
        language=bases["language"]["record"],
        good=f"{good(bases['digits'])}; {good(bases['language'])} nats",
        for_digits=thresholds["digits"],
        for_language=thresholds["language"],
    )


def few_carry(of: Results) -> Iterator[str]:
    """What to know of the error bars."""
    counts = {r["name"]: carried(r) for r in of.copies("digits") if "gradients" in r["alike"]}
    sure = claim(
        None not in counts.values()
        and {counts["int8"], counts["int4"], counts["pruned-50"]} == {60}
        and min(x for x in counts.values() if x is not None) == 40,
        "The digit network knows its 797 images by heart and is sure of nearly every new one, so its gradients live on the few that it finds hard: [n_eff](../start/guide.md#n_eff) is 60 of 1,000 samples, and 40 with the copy that was trained on. Every comparison of its gradients comes with that warning, and its ± is a guess. Shares of predictions are not concerned: their bounds are exact.",
    )
    unsure = claim(
        all(carried(r) is None for r in of.copies("language"))
        and of.row("language", "base")["at_home"] > 3.5,
        "Of the language model none does: with a loss of 3.8 nats it is sure of hardly any token, so all of them count.",
    )
    yield f"**Some error bars here cannot be trusted.** {sure} {unsure}"


def rounded(of: Results) -> Iterator[str]:
    row, gradients = of.row, of.gradients
    yield "## Rounded: int8, int4, int3"
    yield "Each row of a weight matrix, or filter, rounded to equal steps around zero and kept in float, as weight-only quantisation does. Embeddings stay as they are."
    yield of.commands("int4")
    yield "Of the digit network, `compare` says:"
    yield printed(row("digits", "int4")["compared"])
    yield of.tables("rounded")
    yield "- " + claim(
        all(row(n, "int8")["verdict"] == "passed" and gradients(n, "int8") > 0.999 for n in WHAT),
        "**8 bits cost nothing that can be seen**: gradients above 0.999, some 45 dB, and both copies pass.",
    )
    yield "- " + claim(
        row("digits", "int4")["verdict"] == "passed"
        and row("language", "int4")["verdict"] == "failed"
        and 0.01 < row("language", "int4")["kl"] < 0.0125
        and 0.008 < of.lost("language", "int4") < 0.009,
        "**4 bits are the border.** The digit network keeps its predictions; the language model misses a KL of 0.01 by little, and its loss rises by 0.008 nats. Whether that may ship is for you to say: the threshold is where you say it.",
    )
    yield "- " + claim(
        row("digits", "int3")["verdict"] == row("language", "int3")["verdict"] == "failed"
        and round(of.features("digits", "int3"), 3) == 0.996
        and gradients("digits", "int3") < 0.5
        and round(1000 * of.lost("digits", "int3")) == 8
        and row("digits", "int3")["disagreement"] == 0.016,
        "**At 3 bits both fail.** The digit network shows why accuracy is no test: it lost less than a point of it, and features are at 0.996, but gradients fell by half. It answers 16 images otherwise, and only 8 fewer are right.",
    )
    yield "- " + claim(
        row("language", "int4")["disagreement"] > 0.1 and row("language", "int8")["kl"] < 1e-4,
        "**Of a language model ask KL rather than disagreement.** Its likeliest token often leads by a hair, so 11 % of tokens change at 4 bits: the base gave those that it chose 12 % on average, and those that the copy chose 11 %. KL says how much probability moved.",
    )
    yield f"`dynamic` has its linear layers in torch's own int8, which have no backward pass. Predictions and features are recorded without:\n\n{of.commands('dynamic', 'check')}"
    yield judged(row("digits", "dynamic"))
    yield claim(
        row("digits", "dynamic")["parting"] == "act4",
        "`compare` finds that features part at `act4`, after the first linear layer: the convolutions before it were not touched. One thing to know: such layers scale what they are given by the largest number in the *batch*, so what they predict depends on the batch size. Recorded in batches of 8 to 1,000, this copy differed from its base on none to two of the 1,000 images. Record with the batch size that you will ship (`--batch-size`).",
    )


def pruned(of: Results) -> Iterator[str]:
    row, gradients = of.row, of.gradients
    yield "## Pruned"
    yield "The smallest weights of each layer set to zero, and nothing retrained."
    yield of.commands("pruned-50", "check")
    yield "Of the digit network, `check` says:"
    yield judged(row("digits", "pruned-50"))
    yield of.tables("pruned")
    yield "- " + claim(
        all(of.features(n, "pruned-50") > 0.975 for n in WHAT)
        and all(row(n, "pruned-50")["verdict"] == "failed" for n in WHAT)
        and abs(of.lost("digits", "pruned-50") - 0.021) < 1e-6
        and row("digits", "pruned-50")["disagreement"] == 0.04,
        "**Features do not notice that half of the weights are gone** (0.98). Gradients do, and so do predictions: the digit network is right 2 points less often, and answers 4 % of images otherwise.",
    )
    yield "- " + claim(
        row("digits", "pruned-20")["verdict"] == "undecided"
        and "about 3,100 samples would decide" in row("digits", "pruned-20")["judged"]
        and row("digits", "pruned-20")["disagreement"]
        == row("digits", "int4")["disagreement"]
        == 0.005
        and row("language", "pruned-20")["verdict"] == "passed",
        "**20 % are free, if it can be proved.** On digits it changes as many predictions as 4 bits do, but `check` does not let it pass: gradients of 0.84 lie too near to 0.8 to be told from it with 1,000 samples. It asks for about 3,100. That is status 3, neither a pass nor a fail.",
    )
    yield "- " + claim(
        [round(gradients(n, "pruned-50"), 2) for n in WHAT] == [0.08, 0.84]
        and [round(row(n, "pruned-50")["kl"], 2) for n in WHAT] == [0.08, 0.06]
        and [round(gradients(n, "twin"), 2) for n in WHAT] == [0.06, 0.54],
        "**A threshold for gradients is for one kind of network.** Half of the weights leave the language model's at 0.84 and the digit network's at 0.08, though KL is of one size (0.06 and 0.08 nats). The digit network's gradients come from the few images that it finds hard, and those a damaged copy takes otherwise first: the 4 % that it answers otherwise have 40 % of the base's gradients, squared. So set a threshold between copies that you know: a good one (int8: 1.00 in both) and a network that is no copy at all (the twin below: 0.06 and 0.54).",
    )
    yield "Where does it change? `compare` says it of the language model:"
    yield console(row("language", "pruned-50")["compare"])
    yield printed(row("language", "pruned-50")["compared"])
    yield claim(
        row("language", "pruned-50")["parting"] == "model.layers.0"
        and "model.embed_tokens  1 " in row("language", "pruned-50")["compared"],
        "Features are exact up to the embedding, which was not pruned, and part at the first layer that was; from there on all are about 11 dB. Gradients are read from the right end: near 1 at the head, and less with every layer they flow back through.",
    )


def distilled(of: Results) -> Iterator[str]:
    row = of.row
    yield "## Distilled"
    yield "A smaller network learns the base's predictions: on digits one with three eighths of the channels from new weights, at temperature 2; in language one of two layers that begins as the second and the fourth layer of its teacher. Beside each stand a network of that size that had no teacher, and a *twin*: the base's own size, from another seed."
    yield of.commands("distilled", "check")
    yield "Of the language model, `check` says:"
    yield judged(row("language", "distilled"))
    yield of.tables("distilled")
    yield "- " + claim(
        all(row(n, x)["verdict"] == "failed" for n in WHAT for x in ("distilled", "twin")),
        "**It is no copy, and no check for copies passes it.** Nor does a twin pass, which is as good as the base. Ask for what you need of a student: its accuracy, and a disagreement that is less than a twin's.",
    )
    yield "- " + claim(
        row("digits", "distilled")["kl"] > row("digits", "labelled")["kl"]
        and row("language", "distilled")["kl"] > row("language", "from-text")["kl"],
        "**Neither student is nearer to its teacher than a network that never saw it.** That is a finding about how they were taught, and reason enough to put the untaught one beside them. On digits, the teacher is certain of images that it knows by heart, so at temperature 2 its answers are the labels again. Taught with noise on the images (0.3) at temperature 4, the student's KL was 0.03 and 0.04 with two seeds, instead of 0.10 and 0.19. In language the student had a third of the steps at half the rate; taught as long as the others were trained, it came to 0.10 instead of 0.42. (Tried apart from the table.)",
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
        "**No shared coordinates**, except for the student of language, which began with its teacher's embedding (12 dB there, 1 dB at its worst layer). Without dB, `--min-db` fails by rule.",
    )
    yield "- " + claim(
        "without a counterpart" in row("language", "distilled")["judged"],
        "**Layers of one name need not be the same.** The student's `model.layers.1` began as the base's `model.layers.3`, and is set beside the base's `model.layers.1`, its namesake (features 0.60). `resemblance compare base.rsm distilled.rsm --map` shows all pairs: it is most like `model.layers.3` (0.83). For students, read the map.",
    )


def adapted(of: Results) -> Iterator[str]:
    row = of.row
    base = {n: row(n, "base") for n in WHAT}
    yield "## LoRA, merged"
    yield "An adapter of rank 4 at most layers, trained on other data (digits turned by a quarter; the pages of Python's manual), then merged into the weights. An adapter that is not merged is recorded as well: layers are found by the names they had."
    yield of.commands("lora")
    yield of.tables("lora")
    learnt = {n: row(n, "lora")["elsewhere"] - base[n]["elsewhere"] for n in WHAT}
    yield "- " + claim(
        round(learnt["language"], 2) == -0.17
        and round(of.lost("language", "lora"), 2) == 0.09
        and round(row("language", "lora")["kl"], 2) == 0.10,
        "**What it cost is read on the old data.** The language model gains 0.17 nats on the manual and gives up 0.09 on code; KL is 0.10. To know what it *gained*, record both on the new data too.",
    )
    yield "- " + claim(
        row("language", "lora")["parting"] == "model.layers.0",
        "**Where**: the embedding has no adapter and is untouched, and features move further with every layer (18 dB after the first, 12 before the head).",
    )
    yield "- " + claim(
        round(of.gradients("digits", "lora"), 3) == 0.006 and of.gradients("digits", "twin") > 0.05,
        "**Gradients at chance mean another network.** Those of the adapted digit network (0.006) are less like the base's than a twin's are (0.06). The base gives less than 90 % to its answer for 3 % of images, the adapted network for 96 %: a few images carry the gradients of one, all of them those of the other.",
    )
    yield "## Fine-tuned"
    yield "All weights trained for a short time: on the same data (`tuned`), or on the other (`tuned-away`)."
    yield of.commands("tuned", "check")
    yield "Of the language model, `check` says:"
    yield judged(row("language", "tuned"))
    yield of.tables("tuned")
    yield "- " + claim(
        round(of.lost("language", "tuned"), 2) == -0.03
        and round(row("language", "tuned")["kl"], 2) == 0.05
        and row("language", "tuned")["verdict"] == "failed"
        and of.lost("digits", "tuned") > 0,
        "**`check` asks whether a copy is the same, not whether it is better.** Trained on, the language model is better by 0.03 nats and fails, as its predictions moved by 0.05. If a copy is meant to improve, let accuracy judge it, and `compare` say where it changed.",
    )
    yield "- " + claim(
        0.375 < of.gradients("digits", "tuned") < of.gradients("digits", "int3")
        and row("digits", "tuned")["decibels"] < row("digits", "int3")["decibels"]
        and row("digits", "tuned")["disagreement"] < row("digits", "int3")["disagreement"]
        and of.features("digits", "tuned") > 0.995
        and round(row("digits", "tuned")["decibels"], 1) == 8.9,
        "**Training on moves gradients and sizes first.** The tuned digit network has gradients of 0.38 and a change of 9 dB, both worse than at 3 bits, yet it answers fewer images otherwise (1.1 %). It has grown surer: its last features are longer by a third, in the same direction (their cosine is 0.990), and its gradients rest on 40 images instead of 60. For a copy that was trained, ask `--max-disagreement` or `--max-kl`.",
    )
    yield "- " + claim(
        all(row(n, "tuned-away")["kl"] > row(n, "lora")["kl"] for n in WHAT)
        and row("digits", "tuned-away")["elsewhere"] > row("digits", "lora")["elsewhere"] + 0.3
        and row("language", "tuned-away")["elsewhere"] < row("language", "lora")["elsewhere"] - 0.4,
        "**Tuning all weights learns more and forgets more** than the adapter did, on both networks; KL on the old data has the order.",
    )


def averaged(of: Results) -> Iterator[str]:
    row = of.row
    yield "## Averaged"
    yield "The mean of the weights of two tuned copies, `tuned` and one that saw the data in another order; and that of base and twin."
    yield of.commands("averaged")
    yield of.tables("averaged")
    yield "- " + claim(
        all(row(n, "averaged")["kl"] < row(n, "tuned")["kl"] for n in WHAT)
        and all(of.lost(n, "averaged") <= of.lost(n, "tuned") for n in WHAT),
        "**An average of two tuned copies is nearer to the base than `tuned` is, and no worse**, on both networks.",
    )
    yield "- " + claim(
        not any(row(n, "twin")["shared"] for n in WHAT)
        and round(100 * of.lost("digits", "averaged-twins")) == 21
        and round(of.lost("language", "averaged-twins"), 1) == 1.6,
        "**An average of networks that share no coordinates is worth nothing**: 21 points of accuracy lost, and 1.6 nats. You could have known: `resemblance compare base.rsm twin.rsm` has no column `dB`, as their units have nothing to do with each other. Ask that before you average.",
    )


def throughout(of: Results) -> Iterator[str]:
    yield "## What held throughout"
    found = {}
    for network in WHAT:
        rows = [r for r in of.copies(network) if "gradients" in r["alike"]]
        kl = [r["kl"] for r in rows]
        found[network] = [
            rank_correlation([-r["alike"][kernel][0] for r in rows], kl)
            for kernel in ("features", "gradients")
        ]
    said = "; ".join(f"{n}: {x[0]:.2f} and {x[1]:.2f}" for n, x in found.items())
    yield "- " + claim(
        min(min(x) for x in found.values()) > 0.95,
        f"**Every number puts the copies in nearly the order of what they do.** Spearman's ρ of KL with features and with gradients, 14 copies each: {said}. By order alone features do as well as gradients here; of the ResNets in [choosing a kernel](../understand/kernels.md) they did not (0.85 against 0.93).",
    )
    small = [r for r in of.copies("digits") if r["shared"] and r["disagreement"] <= 0.04]
    small = [r for r in small if "gradients" in r["alike"]]
    lows = [min(r["alike"][kernel][0] for r in small) for kernel in ("features", "gradients")]
    yield "- " + claim(
        lows[0] > 0.98 and lows[1] < 0.1,
        f"**By size they do not.** Digit copies with up to 4 % of other predictions have features from {lows[0]:.2f} to 1.00 and gradients from {lows[1]:.2f} to 1.00. A threshold for features would have to be set in the third decimal.",
    )
    harmed = [r for r in of.copies("language") if r["section"] in ("rounded", "pruned")]
    off = [abs(of.lost("language", r["name"]) - r["kl"]) for r in harmed]
    yield "- " + claim(
        all(x < 0.004 + 0.05 * r["kl"] for x, r in zip(off, harmed, strict=True)),
        "**For a language model that was rounded or pruned, KL is the loss it adds**, to 0.004 nats and 5 %, and it needs no labels: 0.059 against 0.058 for half of the weights, 0.70 against 0.67 for 80 %. Not so for one that was trained on, whose loss may fall.",
    )
    untouched = ("int8", "int4", "int3", "pruned-20", "pruned-50", "pruned-80", "lora")
    yield "- " + claim(
        all(of.row("language", x)["parting"] == "model.layers.0" for x in untouched)
        and of.row("language", "tuned")["parting"] == "model.embed_tokens"
        and of.row("digits", "dynamic")["parting"] == "act4"
        and of.row("digits", "int8")["parting"] is None
        and of.row("digits", "tuned")["parting"] == "act2"
        and of.row("digits", "pruned-50")["parting"] == "act1",
        "**Where they part says what was changed.** Language models whose embedding was left alone part after it, tuned ones at it; `dynamic` parts at the first linear layer. Digit copies that were changed everywhere part at their first layer, or at the first that moved by more than a ten-thousandth: `tuned` at the second, `int8` nowhere.",
    )
    yield "- Beyond 1,024 tokens or classes KL is an [unbiased estimate](../understand/scores.md#what-the-networks-do), whose noise is part of its standard error. Record a copy with `--outputs-of base.rsm` to make it smaller."
    libraries = of.content["libraries"]
    versions = ", ".join(f"{name} {libraries[name]}" for name in sorted(libraries))
    yield f"Made by `python docs/build_copies.py` from `benchmarks/results/copies.json`, with torch {of.content['environment']['torch'].split('+')[0]}, {versions}. Run again on the same machine, it gave the same numbers to the last digit."


SECTIONS: tuple[Callable[[Results], Iterator[str]], ...] = (
    few_carry, rounded, pruned, distilled, adapted, averaged, throughout,
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
