"""How well scores rank sources, and what following them costs, for `benchmarks.recommend`.

For each target, sources are ranked by a score and by what fine-tuning from them reached (mean of
two seeds): weighted Kendall τ, and regret, the accuracy by which the score's first choice falls
short of the best. Means over targets have bootstrap intervals over targets and sources, drawn
together for all scores, so that differences are paired. Combinations are fitted on the other
targets; pairs are scores in standard deviations over sources, added. Layers are judged by the
probes at all layers, expected accuracies by the probe at the layer chosen. `joint` reads the
results of several collections, draws targets and sources of each, and averages over collections,
each with the same weight.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import weightedtau

from resemblance.transfer.recommendation import expected_probe, wilson_interval
from resemblance.transfer.transferability import LAYER_SCORES, CandidateScores, starting_layer

from .digits import HERE, write
from .recommend_networks import Collection
from .recommend_scores import table

if TYPE_CHECKING:
    from .recommend import Setting

_DRAWS = 1000
_TEST = 1000  # images by which accuracies are measured
ONE_PASS = (
    *(f"{score}, {where}" for score in ("ridge", "log_me") for where in ("last", "best", "mean")),
    *("shrunk_h_score, last", "h_score, last", "leep", "nce"),
)


_SINGLE = {  # scores of which pairs are judged
    "ridge": "ridge, best",
    "log_me": "log_me, best",
    "leep": "leep",
    "linear probe": "linear probe",
}
PAIRS = {
    f"{a} and {b}, best": (_SINGLE[a], _SINGLE[b]) for a, b in itertools.combinations(_SINGLE, 2)
}
_JOINT = (  # scores that are kept for each source, and judged over collections
    *_SINGLE.values(),
    *PAIRS,
    *("ridge, last", "log_me, last", "shrunk_h_score, last", "nce"),
    *("log_ratio, middle", "log_ratio, last", "mean_embedding, last"),
)
_BASES = {  # that differences are taken from
    "ridge": "ridge, best",
    "log_me": "log_me, best",
    "pair": "ridge and log_me, best",
}


@dataclass(frozen=True)
class Target:
    """One target: what each source reached, and each score of it."""

    name: str
    fit: int  # images
    sources: list[str]
    tuned: np.ndarray  # (sources, 2)
    probes: list[dict[str, float]]
    lines: list[dict[str, Any]]  # of scores
    scores: dict[str, np.ndarray]  # each (sources,)

    @property
    def truth(self) -> np.ndarray:
        return self.tuned.mean(1)


def judge(setting: Setting) -> None:
    about = {name: _about(setting, name) for name in setting.sources}
    targets = _targets(setting, about)
    for held in targets:
        others = [target for target in targets if target is not held]
        held.scores.update({kind: fit(others, held) for kind, fit in _COMBINED.items()})
        held.scores.update({pair: _added(held, names) for pair, names in PAIRS.items()})
    other = [_other_data(target, setting.all) for target in targets]
    result = {
        "form": setting.form,
        "collection": setting.collection,
        "quick": setting.quick,
        "sources": about,
        "targets": {target.name: _of_target(target) for target in targets},
        "mean": _means(targets),
        "mean_other_data": _means(other) if all(len(x.sources) > 4 for x in other) else {},
        "mean_of_probes": _means([_by_probes(x) for x in targets]) if setting.probed else {},
        "ceiling": _ceiling(targets) if targets[0].tuned.shape[1] > 1 else {},
        "layers": _layers(targets) if setting.probed else {},
        "expected": _expected(targets) if setting.probed else {},
        "seconds": _seconds(targets),
    }
    if setting.quick:
        (setting.work / "recommend.json").write_text(json.dumps(result, indent=1) + "\n")
    else:
        print(write(setting.result, result))
    _show(result)


def joint(names: Sequence[str]) -> None:
    """Scores over collections, from the results of each; writes results/recommend_joint.json."""
    collections = {}
    for name in names:
        kept = json.loads((HERE / "results" / f"{name}.json").read_text())
        collections[name] = [_read_target(*item) for item in kept["targets"].items()]
    rng = np.random.default_rng(0)
    measured: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name, targets in collections.items():
        measured[name] = {
            what: _drawn(targets, _JOINT, measure, int(rng.integers(2**31)))
            for what, measure in (("tau", taus), ("regret", regrets))
        }
    together = {
        what: tuple(np.mean([own[what][i] for own in measured.values()], 0) for i in (0, 1))
        for what in ("tau", "regret")
    }
    result = {
        "collections": {
            name: {"targets": len(targets), "sources": len(targets[0].sources)}
            for name, targets in collections.items()
        },
        "scores": len(_JOINT),
        "joint": _compared(_JOINT, together),  # type: ignore[arg-type]
        **{name: _compared(_JOINT, own) for name, own in measured.items()},
    }
    print(write("recommend_joint", result))
    for name in ("joint", *collections):
        _show_means(name, result[name])  # type: ignore[arg-type]


def _read_target(name: str, kept: dict[str, Any]) -> Target:
    truth = np.array([*kept["fine_tuned"].values()])
    scores = {score: np.array(values, dtype=float) for score, values in kept["scores"].items()}
    return Target(name, 0, [*kept["fine_tuned"]], truth[:, None], [], [], scores)


def _about(setting: Setting, name: str) -> dict[str, Any]:
    return dict(torch.load(setting.weights(name), weights_only=True)["about"])


def _targets(setting: Setting, about: dict[str, Any]) -> list[Target]:
    """Those of which every source is through."""
    from .recommend import lines

    pairs = {(x["source"], x["target"]): x for x in lines(setting.work / "pairs.jsonl")}
    scores = {(x["source"], x["target"]): x for x in lines(setting.work / "scores.jsonl")}
    out = []
    for name in setting.targets:
        keys = [(source, name) for source in setting.sources]
        if not all(key in pairs and key in scores for key in keys):
            print(f"{name}: not all pairs are there, left out")
            continue
        own = [scores[key] for key in keys]
        out.append(
            Target(
                name,
                setting.all.targets[name].fit,
                setting.sources,
                np.array([[x["test"] for x in pairs[key]["tuned"]] for key in keys]),
                [pairs[key]["probes"] for key in keys],
                own,
                table(own, about),
            )
        )
    return out


def _other_data(target: Target, every: Collection) -> Target:
    """Without sources that were trained on images of the target's own data set."""
    own, plans = every.targets[target.name].data, every.sources
    kept = [i for i, s in enumerate(target.sources) if plans[s].data != own]
    return _some(target, np.array(kept, dtype=int))


def _by_probes(target: Target) -> Target:
    """With the best linear probe of a source as the truth, instead of fine-tuning."""
    best = np.array([[max(own.values())] for own in target.probes])
    return replace(target, tuned=best)


def _some(target: Target, rows: np.ndarray) -> Target:
    return Target(
        target.name,
        target.fit,
        [target.sources[i] for i in rows],
        target.tuned[rows],
        [target.probes[i] for i in rows] if target.probes else [],
        [target.lines[i] for i in rows] if target.lines else [],
        {name: values[rows] for name, values in target.scores.items()},
    )


# -- scores against the truth --------------------------------------------------------------------


def tau(values: np.ndarray, truth: np.ndarray) -> float:
    """Weighted Kendall τ; what has no value is ranked last."""
    low = np.nanmin(values) - 1 if np.isfinite(values).any() else 0.0
    found = weightedtau(np.nan_to_num(values, nan=low), truth)[0]
    return 0.0 if math.isnan(found) else float(found)


def regret(values: np.ndarray, truth: np.ndarray) -> float:
    """What the first choice falls short of the best; of equals, the mean."""
    return float(regrets(values[None], truth)[0])


def taus(values: np.ndarray, truth: np.ndarray) -> np.ndarray:  # (scores, n), (n,) -> (scores,)
    """`tau` of many scores at once, by the formula of `scipy.stats.weightedtau`."""
    low = np.nanmin(values, 1, keepdims=True, initial=0.0) - 1
    x, y = np.where(np.isnan(values), low, values), np.broadcast_to(truth, values.shape)
    signs = [np.sign(z[:, :, None] - z[:, None, :]) for z in (x, y)]
    total = 0.0
    for first, second in ((x, y), (y, x)):
        order = np.lexsort((second, first), axis=1)[:, ::-1]
        weights = np.empty_like(x)
        np.put_along_axis(weights, order, 1 / np.arange(1.0, x.shape[1] + 1)[None], 1)
        both = weights[:, :, None] + weights[:, None, :]
        sums = [(both * z).sum((1, 2)) for z in (signs[0] * signs[1], *map(np.abs, signs))]
        with np.errstate(invalid="ignore"):
            total = total + sums[0] / np.sqrt(sums[1] * sums[2])
    return np.nan_to_num(np.asarray(total) / 2)


def regrets(values: np.ndarray, truth: np.ndarray) -> np.ndarray:  # (scores, n), (n,) -> (scores,)
    values = np.nan_to_num(values, nan=-np.inf)
    best = values == values.max(1, keepdims=True)
    return np.asarray(truth.max() - (best * truth).sum(1) / best.sum(1))


def _of_target(target: Target) -> dict[str, Any]:
    return {
        "fine_tuned": dict(zip(target.sources, target.truth.round(4).tolist(), strict=True)),
        "probes": dict(zip(target.sources, target.probes, strict=True)),
        "scores": {
            name: [float(f"{x:.6g}") if np.isfinite(x) else None for x in target.scores[name]]
            for name in _JOINT
        },
        "chance_regret": float(target.truth.max() - target.truth.mean()),
        "tau": {name: tau(values, target.truth) for name, values in target.scores.items()},
        "regret": {name: regret(values, target.truth) for name, values in target.scores.items()},
    }


def _means(targets: Sequence[Target]) -> dict[str, dict[str, Any]]:
    """Of each score: means over targets, intervals, and differences from leave-one-out ridge."""
    names = list(targets[0].scores)
    found = {
        "tau": _drawn(targets, names, taus),
        "regret": _drawn(targets, names, regrets),
    }
    return _compared(names, found)


def _compared(
    names: Sequence[str], found: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, dict[str, Any]]:
    """Each score's means, their intervals, and paired differences from three."""
    out: dict[str, dict[str, Any]] = {name: {} for name in names}
    for what, (value, drawn) in found.items():
        for i, name in enumerate(names):
            out[name][what] = float(value[i])
            out[name][f"{what}_interval"] = _interval(drawn[:, i])
            for short, base in _BASES.items():
                at = names.index(base)
                out[name][f"{what}_less_{short}"] = float(value[i] - value[at])
                out[name][f"{what}_less_{short}_interval"] = _interval(drawn[:, i] - drawn[:, at])
    return dict(sorted(out.items(), key=lambda item: -item[1]["tau"]))


def _drawn(
    targets: Sequence[Target],
    names: Sequence[str],
    measure: Callable[[np.ndarray, np.ndarray], np.ndarray],
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # (scores,), (draws, scores)
    values = [np.stack([target.scores[name] for name in names]) for target in targets]

    def mean(chosen: Iterable[int], uniform: np.ndarray | None) -> np.ndarray:
        found = []
        for i in chosen:
            n = len(targets[i].sources)
            # sources drawn with replacement, the same for all targets that have the same ones
            rows = np.arange(n) if uniform is None else (uniform[:n] * n).astype(int)
            found.append(measure(values[i][:, rows], targets[i].truth[rows]))
        return np.asarray(np.mean(found, 0))

    rng, count = np.random.default_rng(seed), len(targets)
    most = max(len(target.sources) for target in targets)
    draws = [mean(rng.integers(0, count, count), rng.random(most)) for _ in range(_DRAWS)]
    return mean(range(count), None), np.array(draws)


def _interval(values: np.ndarray) -> list[float]:
    return [float(x) for x in np.quantile(values, [0.025, 0.975])]


def _ceiling(targets: Sequence[Target]) -> dict[str, float]:
    """How well one seed's fine-tuning ranks another's: no score can be asked for more."""
    both = [(t.tuned[:, a], t.tuned[:, b]) for t in targets for a, b in ((0, 1), (1, 0))]
    return {
        "tau": float(np.mean([tau(x, y) for x, y in both])),
        "regret": float(np.mean([regret(x, y) for x, y in both])),
    }


# -- combinations, fitted on other targets ---------------------------------------------------------


def _standard(values: np.ndarray) -> np.ndarray:
    values = np.nan_to_num(values, nan=np.nanmin(values))
    return (values - values.mean()) / max(values.std(), 1e-12)


def _features(target: Target) -> np.ndarray:  # (sources, scores)
    return np.stack([_standard(target.scores[name]) for name in ONE_PASS], 1)


def _fitted(others: Sequence[Target], held: Target) -> np.ndarray:
    """Ridge regression of standardised accuracies on standardised scores."""
    x = np.concatenate([_features(target) for target in others])
    y = np.concatenate([_standard(target.truth) for target in others])
    penalty = 0.1 * len(x)
    weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
    return np.asarray(_features(held) @ weights)


def _chosen(others: Sequence[Target], held: Target) -> np.ndarray:
    """The one score that ranked best on the others."""
    means = {n: np.mean([tau(t.scores[n], t.truth) for t in others]) for n in ONE_PASS}
    return held.scores[max(means, key=lambda name: means[name])]


def _average(others: Sequence[Target], held: Target) -> np.ndarray:
    """The mean of standardised scores, nothing fitted."""
    return np.asarray(_features(held).mean(1))


def _added(target: Target, names: Sequence[str]) -> np.ndarray:
    return np.asarray(sum(_standard(target.scores[name]) for name in names))


_COMBINED = {
    "combination, fitted on other targets": _fitted,
    "best score of other targets": _chosen,
    "mean of all of one pass": _average,
}


# -- layers and expected accuracies ----------------------------------------------------------------


def _layers(targets: Sequence[Target]) -> dict[str, Any]:
    """How far the probe at a chosen layer is below the best probe, over all pairs, and by how much
    less than at ridge's layer: draws of targets and sources are the same for all ways to choose."""
    ways = list(_picks(targets[0].lines[0]))
    short = np.array([[_short(*pair) for pair in _pairs(target)] for target in targets])
    rng, (many, sources, _) = np.random.default_rng(0), short.shape
    draws = np.array(
        [
            short[rng.integers(0, many, many)][:, rng.integers(0, sources, sources)].mean((0, 1))
            for _ in range(_DRAWS)
        ]
    )  # (draws, ways)
    base = ways.index("ridge")
    return {
        way: {
            "short": float(short[..., i].mean()),
            "interval": _interval(draws[:, i]),
            "best": float((short[..., i] <= 1e-9).mean()),
            "less_ridge": float((short[..., i] - short[..., base]).mean()),
            "less_ridge_interval": _interval(draws[:, i] - draws[:, base]),
        }
        for i, way in enumerate(ways)
    }


def _pairs(target: Target) -> Iterable[tuple[dict[str, float], dict[str, Any]]]:
    return zip(target.probes, target.lines, strict=True)


def _short(probes: dict[str, float], line: dict[str, Any]) -> list[float]:  # of each way
    return [max(probes.values()) - probes[layer] for layer in _picks(line).values()]


def _picks(line: dict[str, Any]) -> dict[str, str]:
    """The layer that each way to choose one takes; of equals, the later."""
    names = list(line["layers"])
    picks = {"last": names[-1], "middle": names[len(names) // 2]}
    along = {s: np.array([line["layers"][name][s] for name in names]) for s in LAYER_SCORES}
    along["ridge and log_me"] = _standard(along["ridge"]) + _standard(along["log_me"])
    for way, values in along.items():
        picks[way] = names[np.flatnonzero(values == values.max())[-1]]
    return picks


def _logit(p: float, n: int) -> float:
    p = min(max(p, 0.5 / n), 1 - 0.5 / n)
    return math.log(p / (1 - p))


def _expected(targets: Sequence[Target]) -> dict[str, Any]:
    """Shift and spread of a probe's log odds about leave-one-out ridge, and how often they hold."""
    rows = [(target.name, *_chosen_layers(target)) for target in targets]

    def fitted(names: Iterable[str]) -> tuple[float, float]:
        found, noise = [], []
        for name, shares, reached, n in rows:
            if name not in names:
                continue
            for p, q in zip(shares, reached, strict=True):
                found.append(_logit(q, _TEST) - _logit(p, n))
                low, high = wilson_interval(p, n)
                wide = (_logit(high, n) - _logit(low, n)) / 2 / 1.96
                q = min(max(q, 0.5 / _TEST), 1 - 0.5 / _TEST)
                noise.append(wide**2 + 1 / (_TEST * q * (1 - q)))
        spread = max(0.0, float(np.var(found) - np.mean(noise)))
        return float(np.mean(found)), math.sqrt(spread)

    every = [name for name, *_ in rows]
    shift, spread = fitted(every)
    held, plain, width = [], [], []
    for name, shares, reached, n in rows:
        own = fitted([other for other in every if other != name])
        for p, q in zip(shares, reached, strict=True):
            found = expected_probe(p, n, shift=own[0], spread=own[1])
            held.append(found.low <= q <= found.high)
            width.append(found.high - found.low)
            plain.append(wilson_interval(p, n)[0] <= q <= wilson_interval(p, n)[1])
    away = [q - p for _, shares, reached, _ in rows for p, q in zip(shares, reached, strict=True)]
    return {
        "shift": shift,
        "spread": spread,
        "coverage_left_one_target_out": float(np.mean(held)),
        "coverage_of_wilson_alone": float(np.mean(plain)),
        "mean_width": float(np.mean(width)),
        "probe_less_ridge_mean": float(np.mean(away)),
        "probe_less_ridge_sd": float(np.std(away)),
        "by_target": {
            name: float(np.mean([q - p for p, q in zip(shares, reached, strict=True)]))
            for name, shares, reached, _ in rows
        },
    }


def _chosen_layers(target: Target) -> tuple[list[float], list[float], int]:
    """Leave-one-out accuracy and the probe's, at the layer to start from, of each source."""
    shares, reached = [], []
    for probes, line in _pairs(target):
        layer = starting_layer(CandidateScores(line["layers"], line["outputs"]))
        shares.append(line["layers"][layer]["ridge"])
        reached.append(probes[layer])
    return shares, reached, target.fit


def _seconds(targets: Sequence[Target]) -> dict[str, float]:
    """Median processor seconds, over the pairs that were timed."""
    timed = [line["seconds"] for target in targets for line in target.lines if line.get("seconds")]
    if not timed:
        return {}
    return {key: float(np.median([x[key] for x in timed])) for key in timed[0]}


def _show(result: dict[str, Any]) -> None:
    for part in ("mean", "mean_other_data", "mean_of_probes"):
        _show_means(part, result[part])
    for part in ("ceiling", "layers", "expected", "seconds"):
        print(f"\n{part}: {json.dumps(result[part], indent=1)}")


def _show_means(part: str, means: dict[str, dict[str, Any]]) -> None:
    print(f"\n{part}: weighted τ, regret")
    for name, own in means.items():
        low, high = own["tau_interval"]
        less_low, less_high = own["tau_less_ridge_interval"]
        print(
            f"  {name:40s} {own['tau']:6.3f} ({low:.2f} to {high:.2f}) {own['regret']:.4f} "
            f"less ridge {own['tau_less_ridge']:+.3f} ({less_low:+.2f} to {less_high:+.2f})"
        )
