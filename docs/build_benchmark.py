"""Write docs/evidence/benchmark.md from the results of reproduction.resi.

    python docs/build_benchmark.py [--figure docs/figures/benchmark.png]

A sentence that concludes something names the condition that it depends on, and the script stops if
a new result does not meet it.
"""

# ruff: noqa: E501

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "reproduction/results/resi"
PAGE = HERE / "evidence/benchmark.md"
FAMILIES = {"resnet": "ResNet", "vgg": "VGG", "transformer": "transformer"}
TESTS = {
    "accuracy": "accuracy difference",
    "js": "JS of predictions",
    "disagreement": "disagreement",
    "labels": "random labels, each network its own",
    "labels-shared": "random labels, shared in a group",
    "shortcuts": "shortcuts",
    "augmentation": "augmentation",
    "monotonicity": "layer monotonicity",
}
PLACES = {"last": "last", "mean": "mean"}
DEFAULT = ("features", "cka")
GRADIENTS = ("gradients, beta 0.5", "cka")
CORRELATIONS = ("accuracy", "js", "disagreement")
Interval = Sequence[float]


def claim(holds: bool, sentence: str) -> str:
    if not holds:
        raise SystemExit(f"the result does not bear out: {sentence}")
    return sentence


def number(x: float | None) -> str:
    return "–" if x is None else f"{x:.2f}".replace("-0.00", "0.00").replace("-", "−")


def signed(x: float) -> str:
    text = number(x)
    return text if text.startswith("−") or text == "0.00" else f"+{text}"


def interval(v: Interval, *, sign: bool = False) -> str:
    return f"{(signed if sign else number)(v[0])} ({number(v[1])} to {number(v[2])})"


def variant(entry: dict[str, Any]) -> str:
    kernel, _, target = entry["kernel"].partition(", ")
    target = target.replace("beta ", "β = ")
    return f"{kernel}{f' ({target})' if target else ''}, `{entry['index']}`"


def excludes_zero(v: Interval) -> int:
    """1 if the interval is above 0, -1 if below, else 0; to the two digits that are shown."""
    return int(round(v[1], 2) > 0) - int(round(v[2], 2) < 0)


class Results:
    """The content of resi.json."""

    def __init__(self, content: dict[str, Any], coverage: dict[str, Any]) -> None:
        self.content, self.coverage = content, coverage
        self.tests: dict[str, Any] = content["tests"]

    def families(self, test: str) -> list[str]:
        return [f for f in FAMILIES if f in self.tests[test]["tables"]]

    def row(self, test: str, place: str, family: str) -> dict[str, Any]:
        rows = self.tests[test]["held out"][place]
        return next(r for r in rows if r["judged on"] == family)

    def held_out(self, test: str, place: str, family: str = "mean") -> list[float]:
        return self.tests[test]["gradients above features"][place][family]

    def above_default(self, test: str, place: str) -> list[float]:
        return self.tests[test]["gradients above default"][place]["mean"]

    def contrast(self, test: str, name: str, place: str, family: str = "mean") -> list[float]:
        return self.tests[test]["contrasts"][name][place][family]

    def value(self, test: str, family: str, kernel: str, index: str, place: str) -> list[float]:
        cell = self.tests[test]["tables"][family][kernel][index]
        return cell["value" if test == "monotonicity" else place]

    def mean(self, test: str, kernel: str, index: str, place: str) -> float | None:
        each = [self.value(test, f, kernel, index, place)[0] for f in self.families(test)]
        return None if None in each else sum(each) / len(each)

    def by_layer(self, test: str, kernel: str, index: str) -> list[float]:
        each = [self.tests[test]["tables"][f][kernel][index]["layers"] for f in self.families(test)]
        return [sum(x) / len(x) for x in zip(*each, strict=True)]

    def ceiling(self, test: str, family: str) -> list[float]:
        return self.row(test, "last", family)["ceiling"]

    def base(self, family: str) -> dict[str, Any]:
        return self.content["networks"][family]["base"]

    def spread_and_sampling_error(self, family: str) -> tuple[float, float]:
        """Standard deviation of accuracies over seeds, and the standard error of one of them."""
        accuracy = self.base(family)["accuracy"]
        mean = sum(accuracy) / len(accuracy)
        variance = sum((x - mean) ** 2 for x in accuracy) / (len(accuracy) - 1)
        return variance**0.5, (mean * (1 - mean) / self.base(family)["test samples"]) ** 0.5


HEAD = """# Benchmark of similarity measures

With this page you can see which kernel and which index follow known differences between networks, and by how much they differ. [Which measure for which question](../understand/measures.md) has the conclusions on one screen.

Six tests of ReSi (Klabunde et al. 2024, [arXiv 2408.00531](https://arxiv.org/abs/2408.00531)) were rebuilt for three families of small networks: a ResNet on CIFAR-10, a VGG on SVHN, a transformer on source code. Every index of the library was applied to features, gradients, their product, sum and elementwise product."""

TESTS_TABLE = """| test | networks | a good measure | chance |
|---|---|---|---|
| accuracy difference, JS of predictions, disagreement | ten seeds, 45 pairs | falls as the difference grows (Spearman's ρ) | 0, 95 % within ±{spread:.2f} |
| random labels | five groups of five seeds, with 0 to 100 % random labels, drawn for each network or once for a group | is higher inside a group (AUPRC) | {chance:.2f}, 95 % below {high:.2f} |
| shortcuts | five groups of five, with a mark in the input that names the class for 0 to 100 % of the samples | the same | the same |
| augmentation | five groups of five, with no to strong noise on the inputs | the same | the same |
| layer monotonicity | ten seeds | falls with the distance of layers (Spearman's ρ) | 0 |"""

READ = """Chance is what networks in random order score. Brackets are 95 % intervals over networks (a jackknife with Student's t). *Held out* means: the variant (kernel, target and index) was chosen on the other families and is judged on this one. Shared random labels have two families, so the choice rests on one. *Mean* over families takes the three families as they are, and says nothing of a fourth.

![Values of default and held-out measures in each test and family](../figures/benchmark.png)"""


def tests_table(of: Results) -> str:
    every = [x for t in TESTS for x in of.tests[t]["chance"].values() if x]
    correlated = [x for t in CORRELATIONS for x in of.tests[t]["chance"].values()]
    separated = [x for x in every if x not in correlated]
    return TESTS_TABLE.format(
        spread=max(max(x["high"], -x["low"]) for x in correlated),
        chance=sum(x["mean"] for x in separated) / len(separated),
        high=max(x["high"] for x in separated),
    )


def held_out_table(of: Results, tests: Sequence[tuple[str, str]]) -> str:
    """Held-out values of features, then with gradients, of each family."""
    lines = [
        "| test | layers | " + " | ".join(FAMILIES.values()) + " | difference, mean of families |",
        "|---|---|" + "---|" * (len(FAMILIES) + 1),
    ]
    for test, place in tests:
        cells = []
        for family in FAMILIES:
            if family not in of.families(test):
                cells.append("–")
                continue
            row = of.row(test, place, family)
            mark = {1: " ↑", 0: "", -1: " ↓"}[excludes_zero(row["gradients above features"])]
            cells.append(
                f"{number(row['features']['value'][0])} → {number(row['gradients']['value'][0])}{mark}"
            )
        layers = "all pairs" if test == "monotonicity" else place
        difference = interval(of.held_out(test, place), sign=True)
        lines.append(f"| {TESTS[test]} | {layers} | {' | '.join(cells)} | {difference} |")
    return "\n".join(lines)


EVERY = [(test, place) for test in TESTS if test != "monotonicity" for place in PLACES]


def in_short(of: Results) -> Iterator[str]:
    yield "## In short"
    same = [
        ("accuracy", "last"),
        ("accuracy", "mean"),
        ("augmentation", "last"),
        ("augmentation", "mean"),
        ("shortcuts", "last"),
        ("shortcuts", "mean"),
        ("monotonicity", "any"),
    ]
    better = [
        ("js", "last"),
        ("disagreement", "last"),
        ("disagreement", "mean"),
        ("labels-shared", "mean"),
    ]
    yield claim(
        not any(excludes_zero(of.held_out(*x)) for x in same)
        and excludes_zero(of.held_out("labels", "last")) < 0
        and all(excludes_zero(of.held_out(*x)) > 0 for x in better),
        "- **Gradients lose** where every network learnt random labels of its own, at the last layer.\n"
        "- **Gradients make no clear difference** for accuracy, augmentation, shortcuts and the distance of layers.\n"
        "- **Gradients win** for what networks predict (JS and disagreement, partly by construction), and where groups share random labels.\n"
        "- No measure follows accuracy or augmentation well.",
    )
    yield held_out_table(of, [*EVERY, ("monotonicity", "any")])
    differences = [
        of.row(t, p, f)["gradients above features"] for t, p in EVERY for f in of.families(t)
    ]
    up = sum(excludes_zero(v) > 0 for v in differences)
    down = sum(excludes_zero(v) < 0 for v in differences)
    variants = {of.row(t, "last", f)["variants"] for t, _ in EVERY for f in of.families(t)}
    (tried,) = variants
    yield f"Each cell: the held-out variant among features → the held-out variant among those that use gradients (15 and {tried - 15} variants, at the last layer or in the mean over six layers). ↑ and ↓ mark differences whose 95 % interval excludes 0: {up} and {down} of {len(differences)}. About {0.05 * len(differences):.0f} would without any true difference."


def losses(of: Results) -> Iterator[str]:
    yield "## Where gradients lose or make no difference"
    own = of.held_out("labels", "last")
    rows = {f: of.row("labels", "last", f) for f in FAMILIES}
    mean = of.held_out("labels", "mean")
    cka = of.contrast("labels", "gradients above features", "last")
    yield claim(
        excludes_zero(own) < 0
        and all(r["features"]["index"] == "spectral" for r in rows.values())
        and min(rows[f]["features"]["value"][0] for f in ("resnet", "vgg")) > 0.7
        and not excludes_zero(mean)
        and not excludes_zero(cka),
        "- **Random labels, each network its own: gradients lose at the last layer.** `spectral` on features has "
        + ", ".join(f"{number(rows[f]['features']['value'][0])} ({FAMILIES[f]})" for f in FAMILIES)
        + f"; the mean difference is {interval(own, sign=True)}. `spectral` pairs no samples and sees only how variance is spread, which random labels presumably change. It is among the worst indices in most other tests. In the mean over layers the difference is {interval(mean, sign=True)}, and with CKA on both sides {interval(cka, sign=True)}.",
    )
    ceiling = [of.row("shortcuts", "last", f)["features"]["value"][0] for f in FAMILIES]
    last = of.held_out("shortcuts", "last")
    yield claim(
        min(ceiling) > 0.98 and not excludes_zero(last),
        f"- **Shortcuts: nothing is left to win at the last layer.** Neighbours of features (`mutual-knn` or `jaccard`) score {number(min(ceiling))} to {number(max(ceiling))}. Feature CKA has {number(of.mean('shortcuts', 'features', 'cka', 'last'))}.",
    )
    yield claim(
        not any(
            excludes_zero(of.row("augmentation", p, f)["gradients above features"])
            for p in PLACES
            for f in FAMILIES
        ),
        f"- **Augmentation: no difference.** The differences are {interval(of.held_out('augmentation', 'last'), sign=True)} at the last layer and {interval(of.held_out('augmentation', 'mean'), sign=True)} in the mean. The best fixed variant of features, `procrustes` at the last layer, has {number(of.mean('augmentation', 'features', 'procrustes', 'last'))}.",
    )
    noise = {f: of.spread_and_sampling_error(f) for f in FAMILIES}
    js = [of.ceiling("accuracy", f)[0] for f in FAMILIES]
    yield claim(
        max(js) < 0.3
        and all(s < 1.6 * e for s, e in noise.values())
        and not any(
            excludes_zero(of.row("accuracy", p, f)["gradients above features"]) > 0
            for p in PLACES
            for f in FAMILIES
        ),
        "- **Accuracy difference: nothing works, and little could.** Accuracies of the ten seeds have a standard deviation of "
        + ", ".join(f"{100 * noise[f][0]:.1f} %" for f in FAMILIES)
        + f" ({', '.join(FAMILIES.values())}), and the sampling error of "
        + ", ".join(f"{100 * noise[f][1]:.1f} %" for f in FAMILIES)
        + f" from the 4,000 test samples is about as large. Even the predictions' own JS correlates with the differences at {number(min(js))} to {number(max(js))} only, which is within chance.",
    )
    mono = {
        i: of.mean("monotonicity", "features", i, "value")
        for i in of.tests["js"]["tables"]["vgg"]["features"]
    }
    bad = {i for i, v in mono.items() if v is not None and v < 0.97}
    yield claim(
        bad == {"cca", "svcca", "spectral"},
        f"- **Layer monotonicity: solved by nearly every index**, on features and gradients. The exceptions are `cca` ({number(mono['cca'])}), `svcca` ({number(mono['svcca'])}) and `spectral` ({number(mono['spectral'])}).",
    )


def wins(of: Results) -> Iterator[str]:
    yield "## Where gradients win"
    js = of.held_out("js", "last")
    values = {f: of.row("js", "last", f) for f in FAMILIES}
    default = of.contrast("js", "gradients above features", "last")
    over = of.contrast("js", "gradients above features", "mean")
    alone = [
        FAMILIES[f] for f in FAMILIES if excludes_zero(values[f]["gradients above features"]) > 0
    ]
    yield claim(
        excludes_zero(js) > 0
        and all(
            values[f]["features"]["value"][0] < of.tests["js"]["chance"][f]["high"] + 0.12
            for f in FAMILIES
        )
        and {variant(values[f]["gradients"]) for f in FAMILIES}
        == {"sum (β = 0), `nbs`", "sum (β = 0), `procrustes`"}
        and excludes_zero(of.above_default("js", "last")) > 0
        and alone == ["VGG"]
        and not excludes_zero(default)
        and excludes_zero(over) > 0,
        "- **JS of predictions.** At the last layer, held-out variants with gradients have "
        + ", ".join(number(values[f]["gradients"]["value"][0]) for f in FAMILIES)
        + ", those of features "
        + ", ".join(number(values[f]["features"]["value"][0]) for f in FAMILIES)
        + f": {interval(js, sign=True)} in the mean of families, and with an interval above 0 for VGG alone. Those of features hardly leave the range of chance. The variants chosen are `nbs` and `procrustes` of the sum kernel with β = 0. They are above feature CKA, the default, by {interval(of.above_default('js', 'last'), sign=True)}. With CKA and β = 0.5, the defaults, the difference is {interval(default, sign=True)} at the last layer and {interval(over, sign=True)} in the mean over layers.",
    )
    disagreement = [of.held_out("disagreement", p) for p in PLACES]
    single = [
        FAMILIES[f]
        for f in FAMILIES
        if excludes_zero(of.row("disagreement", "last", f)["gradients above features"]) > 0
    ]
    yield claim(
        all(excludes_zero(v) > 0 for v in disagreement) and single == ["VGG"],
        f"- **Disagreement.** The same direction: {interval(disagreement[0], sign=True)} at the last layer, {interval(disagreement[1], sign=True)} in the mean over layers. Again VGG's interval alone is above 0.",
    )
    shared = of.held_out("labels-shared", "mean")
    labels = of.contrast("labels-shared", "labels above beta 0.5", "mean")
    yield claim(
        excludes_zero(shared) > 0
        and excludes_zero(labels) > 0
        and min(
            of.value("labels-shared", f, "gradients, labels", "cka", "last")[0]
            for f in of.families("labels-shared")
        )
        > 0.99,
        f"- **Random labels shared in a group** (two families). CKA of gradients of the true labels' loss scores 1.00 on both, features {number(of.mean('labels-shared', 'features', 'cka', 'last'))} at the last layer and {number(of.mean('labels-shared', 'features', 'cka', 'mean'))} in the mean over layers, predictions' JS "
        + " and ".join(
            number(of.ceiling("labels-shared", f)[0]) for f in of.families("labels-shared")
        )
        + f'. This needs recordings with `target="labels"`: with β = 0.5 the mean over layers is lower by {interval(labels)}.',
    )
    cka = of.contrast("shortcuts", "gradients above features", "mean")
    knn = of.contrast("shortcuts", "mutual-knn above cka, features", "mean")
    held = of.held_out("shortcuts", "mean")
    yield claim(
        excludes_zero(cka) > 0 and excludes_zero(knn) > 0 and not excludes_zero(held),
        f"- **Shortcuts, in the mean over layers, with CKA**: {interval(cka, sign=True)}. But `mutual-knn` of features gains as much ({interval(knn, sign=True)}), and held-out variants do not differ ({interval(held, sign=True)}).",
    )
    layers = {k: of.by_layer("js", k, "cka") for k in ("features", "gradients, beta 0.5")}
    yield claim(
        layers["gradients, beta 0.5"][0] < 0.3
        and layers["gradients, beta 0.5"][4] > layers["features"][5],
        "**Much of this is by construction.** The gradient at the last layer is Wᵀ(p − q): the predictions p, seen through the classifier W. So a correlation with JS of predictions is expected there, and with logits at hand the JS itself is the better measure: `compare` reports it. Earlier layers see p through more of the network. CKA, mean of families, correlation with JS:",
    )
    yield "\n".join(
        [
            "| | first layer | 2 | 3 | 4 | 5 | last layer |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {name} | "
                + " | ".join(number(x) for x in of.by_layer("js", kernel, "cka"))
                + " |"
                for name, kernel in (
                    ("features", "features"),
                    ("gradients, β = 0.5", "gradients, beta 0.5"),
                    ("gradients, β = 0", "gradients, beta 0"),
                )
            ),
        ]
    )


CONTRASTS = {
    "gradients above features": "gradients (β = 0.5) − features, CKA",
    "product above features": "product (β = 0.5) − features, CKA",
    "beta 0 above beta 0.5": "β = 0 − β = 0.5, CKA of gradients",
    "labels above beta 0.5": "true labels − β = 0.5, CKA of gradients",
    "mutual-knn above cka, features": "`mutual-knn` − `cka`, features",
    "procrustes above cka, features": "`procrustes` − `cka`, features",
    "mutual-knn above cka, gradients": "`mutual-knn` − `cka`, gradients",
    "procrustes above cka, gradients": "`procrustes` − `cka`, gradients",
}


def contrasts(of: Results) -> Iterator[str]:
    yield "## Without choosing a variant"
    yield "Two variants each, mean of families. The first column compares the library's defaults. **Bold**: the interval excludes 0."
    lines = [
        "| test | layers | " + " | ".join(list(CONTRASTS.values())[:4]) + " |",
        "|---|---|" + "---|" * 4,
    ]
    more = [
        "| test | layers | " + " | ".join(list(CONTRASTS.values())[4:]) + " |",
        "|---|---|" + "---|" * 4,
    ]
    for test, place in EVERY:
        cells = []
        for name in CONTRASTS:
            v = of.contrast(test, name, place)
            text = interval(v, sign=True)
            cells.append(f"**{text}**" if excludes_zero(v) else text)
        lines.append(f"| {TESTS[test]} | {place} | {' | '.join(cells[:4])} |")
        more.append(f"| {TESTS[test]} | {place} | {' | '.join(cells[4:])} |")
    yield "\n".join(lines)
    yield "\n".join(more)
    regression, procrustes = (
        of.contrast("js", f"beta 0 above beta 0.5, {i}", "last")
        for i in ("linear-regression", "procrustes")
    )
    zero = [of.contrast(t, "beta 0 above beta 0.5", p) for t, p in EVERY]
    yield claim(
        not any(excludes_zero(v) > 0 for v in zero)
        and sum(excludes_zero(v) < 0 for v in zero) >= 3,
        f"- **β = 0.5 stays the default.** With CKA, β = 0 is better in none of {len(zero)} lines and clearly worse in {sum(excludes_zero(v) < 0 for v in zero)}. With `linear-regression` it is better by {interval(regression)} at the last layer on JS of predictions, with `procrustes` by {interval(procrustes)}, and in the mean over layers it is not ({interval(of.contrast('js', 'beta 0 above beta 0.5, linear-regression', 'mean'), sign=True)} and {interval(of.contrast('js', 'beta 0 above beta 0.5, procrustes', 'mean'), sign=True)}).",
    )
    near = [of.contrast("shortcuts", "mutual-knn above cka, features", p) for p in PLACES]
    worse = of.contrast("labels-shared", "mutual-knn above cka, features", "last")
    yield claim(
        all(excludes_zero(v) > 0 for v in near) and excludes_zero(worse) < 0,
        "- **`mutual-knn` of features is better than CKA for shortcuts**, at the last layer and in the mean over layers, and worse for shared random labels at the last layer. Of gradients, it is worse than CKA for random labels.",
    )
    other = [of.contrast(t, "procrustes above cka, features", p) for t, p in EVERY]
    yield claim(
        not any(excludes_zero(v) < 0 for v in other)
        and sum(excludes_zero(v) > 0 for v in other) >= 3,
        f"- **`procrustes` of features is never clearly worse than CKA** and clearly better in {sum(excludes_zero(v) > 0 for v in other)} of {len(other)} lines. The gains are small but for shortcuts, and it needs recordings of at most 1,024 samples.",
    )


def by_question(of: Results) -> str:
    """The table of docs/understand/measures.md."""

    def row(question: str, measure: str, test: str, contrast: str, kernel: str, index: str) -> str:
        cells = (
            question,
            measure,
            number(of.mean(test, kernel, index, "last")),
            number(of.mean(test, *DEFAULT, "last")),
            interval(of.contrast(test, contrast, "last"), sign=True),
        )
        return f"| {' | '.join(cells)} |"

    kernels = of.tests["js"]["tables"]["vgg"]
    best = max(of.mean("augmentation", k, i, "last") or 0 for k in kernels for i in kernels[k])
    return "\n".join(
        [
            "| question | measure, at the last layer | result | feature CKA | difference |",
            "|---|---|---|---|---|",
            row(
                "do they predict alike? (JS)",
                "CKA of gradients",
                "js",
                "gradients above features",
                *GRADIENTS,
            ),
            row(
                "the same classes? (disagreement)",
                "CKA of gradients",
                "disagreement",
                "gradients above features",
                *GRADIENTS,
            ),
            row(
                "did they learn the same shortcut?",
                "`mutual-knn` of features",
                "shortcuts",
                "mutual-knn above cka, features",
                "features",
                "mutual-knn",
            ),
            row(
                "did they learn the same wrong labels?",
                'CKA of gradients, `target="labels"`',
                "labels-shared",
                "gradients of labels above features",
                "gradients, labels",
                "cka",
            ),
            row(
                "as large a share of wrong labels?",
                "`spectral` of features",
                "labels",
                "spectral above cka, features",
                "features",
                "spectral",
            ),
            claim(
                best < 0.51,
                f"| were they trained with the same noise? | none is good | at most {number(best)} | {number(of.mean('augmentation', *DEFAULT, 'last'))} | |",
            ),
            f"| are they equally accurate? | none: measure it | | {number(of.mean('accuracy', *DEFAULT, 'last'))} | |",
        ]
    )


def what_follows(of: Results) -> Iterator[str]:
    yield "## What follows"
    default = [of.contrast(t, "gradients above features", p) for t, p in EVERY]
    yield claim(
        not any(excludes_zero(v) < 0 for v in default)
        and sum(excludes_zero(v) > 0 for v in default) >= 4,
        f"**The defaults stay: CKA of features and of gradients (β = 0.5), side by side, with the predictions.** In none of {len(default)} lines above is gradient CKA clearly worse than feature CKA, in {sum(excludes_zero(v) > 0 for v in default)} it is clearly better, and it costs one backward pass. But features say where networks diverge and which layers correspond ([measures](../understand/measures.md#what-was-measured)), which gradients do not, so neither replaces the other. No other index is better than CKA throughout. `procrustes` is better for features, worse for gradients of networks with random labels, and refused beyond 1,024 samples. `mutual-knn` is better for shortcuts and worse for shared random labels. The held-out winner on JS of predictions, the sum kernel with β = 0, needs recordings with another β, and with CKA β = 0 is worse in several lines. So an index is recommended for a question, and none becomes a new default.",
    )


def chosen_table(of: Results) -> Iterator[str]:
    yield "## What was chosen"
    tried = of.row("js", "last", "vgg")["variants"]
    any_layer = of.row("js", "any", "vgg")["variants"]
    yield f"At the last layer. *Rank* is the place of the held-out variant with gradients among all {tried} variants on that family. *Best there* is the best of the {tried} on that same family. It is optimistic, because it was chosen where it is judged, and is no result. With single layers free to choose there are {any_layer:,} variants ([all tables](../../reproduction/results/resi/resi.md))."
    lines = [
        "| test | judged on | chosen among features | chosen with gradients | rank | best there (optimistic) | predictions' JS |",
        "|---|---|---|---|---|---|---|",
    ]
    for test in TESTS:
        for family in of.families(test):
            if test == "monotonicity":
                continue
            row = of.row(test, "last", family)
            one, two, best = row["features"], row["gradients"], row["best here (optimistic)"]
            js = "its ground truth" if test == "js" else interval(row["ceiling"])
            lines.append(
                f"| {TESTS[test]} | {FAMILIES[family]} | `{one['index']}`: {interval(one['value'])} | {variant(two)}: {interval(two['value'])} | {two['rank']} | {variant(best)}: {number(best['value'][0])} | {js} |"
            )
    yield "\n".join(lines)


def all_indices(of: Results) -> Iterator[str]:
    yield "## Every index"
    yield "Features / gradients (β = 0.5), mean of families. No choice was made, but reading the best line of a column off this table is one."
    for place, words in (("last", "Last layer"), ("mean", "Mean over layers")):
        tests = [t for t in TESTS if t != "accuracy" and (place == "last" or t != "monotonicity")]
        lines = [
            f"| {words} | " + " | ".join(TESTS[t] for t in tests) + " |",
            "|---|" + "---|" * len(tests),
        ]
        for index in of.tests["js"]["tables"]["vgg"]["features"]:
            cells = (
                " / ".join(
                    number(of.mean(t, k, index, place)) for k in ("features", "gradients, beta 0.5")
                )
                for t in tests
            )
            lines.append(f"| `{index}` | " + " | ".join(cells) + " |")
        yield "\n".join(lines)


def limits(of: Results) -> Iterator[str]:
    covered = [
        x["coverage"]
        for k, v in of.coverage.items()
        if isinstance(v, dict)
        for n, x in v.items()
        if "jackknife" in n
    ]
    bootstrap = [
        x["coverage"]
        for k, v in of.coverage.items()
        if k.startswith("AUPRC")
        for n, x in v.items()
        if n == "value, bootstrap"
    ]
    yield "## Limits"
    yield "\n".join(
        [
            "- Three families are no sample of families. They are small (32 to 128 channels, or five blocks of width 128), trained for 10 epochs on 18,000 samples, and reach "
            + ", ".join(
                f"{100 * sum(of.base(f)['accuracy']) / len(of.base(f)['accuracy']):.0f} %"
                for f in FAMILIES
            )
            + " accuracy ("
            + ", ".join(FAMILIES.values())
            + "). All results are on 512 test samples.",
            claim(
                min(covered) > 0.93 and min(bootstrap) < 0.9,
                f"- There are five seeds in a group. In a simulation of networks like these, 95 % intervals of the jackknife held the true value in {100 * min(covered):.0f} to {100 * max(covered):.0f} % of cases. Percentiles of a bootstrap over networks held the AUPRC in only {100 * min(bootstrap):.0f} to {100 * max(bootstrap):.0f} %, so they are not used here. Intervals of differences are rather too wide (`python -m reproduction.resi.coverage`).",
            ),
            "- Intervals hold the chosen variant fixed, and are not corrected for the number of tests. They are symmetric, so they can pass 1. An estimate of 1.00 has an interval without width, because no network that is left out changes it.",
            "- Variants are many and alike: `procrustes` and `nbs` of features have the same order at a single layer, as have `cka` and `cka-debiased` nearly.",
            "- Each strength of the shortcuts and of the shared random labels was drawn once, so groups differ in that draw as well as in strength.",
            "- The transformer was not trained with shared random labels.",
            "- cuDNN is not bitwise deterministic: networks trained again from the same seeds differ slightly.",
        ]
    )
    yield """Where this differs from ReSi, which has 14 architectures and seven data sets of graphs, language and vision:

- Networks are small and trained briefly, and there are no graphs.
- Networks with random labels see a quarter of the samples for 40 epochs without augmentation, so that they memorise.
- Positions and tokens are averaged before layers are compared.
- `linear-regression` and `cknna`, which are not symmetric, are averaged over both directions.
- `rsa-kendall` takes 4,096 random distances.
- Gradients, and their combinations with features, are not part of ReSi."""


CLOSE = """## Run it again

Networks were trained, recorded and compared on one H200 in 11.4 minutes (199 s ResNet, 143 s VGG, 340 s transformer). Networks are not kept, and the files of scores (21 MB) are not part of the repository: the first six lines make them anew.

```console
python -m reproduction.resi.data DIR/cifar10.npz cifar10.npz
python -m reproduction.resi.data DIR/svhn.npz svhn.npz
python -m reproduction.resi.data --text text.npz
python -m reproduction.resi resnet --data cifar10.npz --out OUT
python -m reproduction.resi vgg --data svhn.npz --out OUT
python -m reproduction.resi transformer --data text.npz --out OUT
python -m reproduction.resi.judge OUT --to reproduction/results/resi
python docs/build_benchmark.py --figure docs/figures/benchmark.png
```

The last two lines take about a minute on a CPU. [The reproduction](../../reproduction/README.md) says what the steps do."""


def results() -> Results:
    names = ("resi.json", "coverage.json")
    return Results(*(json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in names))


def page() -> str:
    """The whole page."""
    of = results()
    parts = [HEAD, tests_table(of), READ]
    for section in (
        in_short,
        losses,
        wins,
        contrasts,
        what_follows,
        chosen_table,
        all_indices,
        limits,
    ):
        parts += section(of)
    parts.append(CLOSE)
    text = parts[0]
    for before, after in itertools.pairwise(parts):
        text += "\n" if before.startswith("- ") and after.startswith("- ") else "\n\n"
        text += after
    return text + "\n"


def figure(path: Path) -> None:
    """Default and held-out measures at the last layer, by test and family."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    of = results()
    tests = [t for t in TESTS if t != "monotonicity"]
    fig, axes = plt.subplots(2, 4, figsize=(13, 6.2), layout="constrained")
    kinds = {
        "features, CKA (default)": (
            "#4c78a8",
            "o",
            lambda t, f: of.value(t, f, "features", "cka", "last"),
        ),
        "features, chosen on the other families": (
            "#4c78a8",
            "D",
            lambda t, f: of.row(t, "last", f)["features"]["value"],
        ),
        "gradients, CKA, β = 0.5 (default)": (
            "#e45756",
            "o",
            lambda t, f: of.value(t, f, "gradients, beta 0.5", "cka", "last"),
        ),
        "with gradients, chosen on the other families": (
            "#e45756",
            "D",
            lambda t, f: of.row(t, "last", f)["gradients"]["value"],
        ),
        "JS of predictions (needs logits)": ("#555555", "x", lambda t, f: of.ceiling(t, f)),
    }
    for axis, test in zip(axes.flat, tests, strict=False):
        families = of.families(test)
        for at, family in enumerate(families):
            chance = of.tests[test]["chance"][family]
            axis.fill_between(
                [at - 0.42, at + 0.42], chance["low"], chance["high"], color="#dddddd", lw=0,
                label="chance (95 %)" if at == 0 else None,
            )  # fmt: skip
            for i, (name, (colour, marker, value)) in enumerate(kinds.items()):
                v, low, high = value(test, family)
                x = at + 0.16 * (i - 2)
                axis.plot([x, x], [low, high], color=colour, lw=1)
                axis.plot(
                    x, v, marker, color=colour, ms=5, mfc="white" if marker == "o" else colour,
                    label=name if at == 0 else None,
                )  # fmt: skip
        axis.set_xticks(range(len(families)), [FAMILIES[f] for f in families])
        axis.set_title(TESTS[test], fontsize=10)
        axis.set_ylim((-1.05, 1.12) if test in CORRELATIONS else (0, 1.12))
        axis.set_ylabel("Spearman's ρ" if test in CORRELATIONS else "AUPRC", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    last = axes.flat[-1]
    last.axis("off")
    last.legend(*axes.flat[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=9)
    fig.suptitle("Last layer; bars are 95 % intervals over networks", fontsize=11)
    fig.savefig(path, dpi=90)
    plt.close(fig)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    if options.figure is not None:
        figure(options.figure)
