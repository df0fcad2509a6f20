"""Which source network for a new, small data set? Scores against the accuracy of fine-tuning.

    python -m benchmarks.transfer

Sources are small networks trained on tasks cut from one half of the digits: other labels, other
seeds, shorter training, random labels, none at all. Targets are small labelled tasks from the
other half. Each source is fine-tuned on each target (all weights, new head, two seeds), and its
test accuracy after 15 epochs and after 75, when it fits its images, is ranked against scores that
need no training; weighted Kendall τ, mean over targets. Targets run in two processes.

First, the other question: one network (digits 0 to 4) on several data sets, and how ‖μ‖ grows with
their distance. Writes results/transfer.json and docs/figures/adaptation.png.
"""

from __future__ import annotations

import multiprocessing
import warnings
from typing import Any

import numpy as np
import torch
from scipy.stats import weightedtau
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from resemblance import record
from resemblance.analysis.adaptation import adaptation
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.analysis.layer_vectors import PassConfig, visit_batches
from resemblance.errors import ResemblanceWarning

from .digits import HERE, NAMES, accuracy, load, network, train, write

LAST, MIDDLE = "10", "6"


def sources(x: Tensor, y: Tensor) -> dict[str, nn.Sequential]:
    """Networks by name, from one half of the digits."""
    random = torch.randint(10, y.shape, generator=torch.Generator().manual_seed(5))
    plans: dict[str, tuple[Tensor, Tensor, int]] = {  # mask, labels, epochs
        "all ten": (y >= 0, y, 12),
        "all ten, again": (y >= 0, y, 12),
        "all ten, 1 epoch": (y >= 0, y, 1),
        "all ten, 3 epochs": (y >= 0, y, 3),
        "0 to 4": (y < 5, y, 12),
        "5 to 9": (y > 4, y - 5, 12),
        "parity": (y >= 0, y % 2, 12),
        "above 4": (y >= 0, (y > 4).long(), 12),
        "0 or 1": (y < 2, y, 12),
        "3, 5 or 8": ((y == 3) | (y == 5) | (y == 8), (y - 3) // 2, 12),
        "brightness": (y >= 0, _quarter(x.flatten(1).mean(1)), 12),
        "random labels": (y >= 0, random, 12),
        "random labels, long": (y >= 0, random, 40),
        "untrained": (y >= 0, y, 0),
    }
    out = {}
    for seed, (name, (mask, labels, epochs)) in enumerate(plans.items()):
        model = network(max(2, int(labels[mask].max()) + 1), seed=seed)
        out[name] = train(model, x[mask], labels[mask], epochs=epochs, seed=seed)
    return out


def _quarter(values: Tensor) -> Tensor:
    return (values[:, None] > values.quantile(torch.tensor([0.25, 0.5, 0.75]))).sum(1)


def targets(x: Tensor, y: Tensor) -> dict[str, tuple[Any, Any]]:
    """(fit, test) by name, from the other half."""
    turned, noisy = x.rot90(1, (2, 3)), x + 0.3 * _noise(x)
    out = {}
    for name, images, mask, labels, count in (
        ("ten digits, 100 images", x, y >= 0, y, 100),
        ("5 to 9, 50 images", x, y > 4, y - 5, 50),
        ("turned by 90°, 200 images", turned, y >= 0, y, 200),
        ("noisy, 200 images", noisy, y >= 0, y, 200),
        ("parity, 100 images", x, y >= 0, y % 2, 100),
    ):
        a, b = images[mask], labels[mask]
        out[name] = ((a[:count], b[:count]), (a[-400:], b[-400:]))
    return out


def _noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


def fine_tuned(source: nn.Sequential, fit: Any, test: Any) -> dict[str, float]:
    """Test accuracy early and late, and how well the late one fits its own images."""
    scores = []
    for seed in range(2):
        model = network(int(fit[1].max()) + 1, seed=100 + seed)
        body = {k: v for k, v in source.state_dict().items() if not k.startswith("11.")}
        model.load_state_dict(body, strict=False)
        train(model, *fit, epochs=15, seed=seed, rate=1e-3)
        early = accuracy(model, *test)
        train(model, *fit, epochs=60, seed=seed + 10, rate=1e-3)
        scores.append((early, accuracy(model, *test), accuracy(model, *fit)))
    return dict(zip(("early", "late", "late_on_own"), np.mean(scores, 0).tolist(), strict=True))


# -- rival scores, from features (n, d) and labels -----------------------------------------------


def features_of(model: nn.Module, x: Tensor, layer: str) -> np.ndarray:
    parts: list[tuple[np.ndarray, Tensor]] = []
    visit_batches(
        model, x, layer, PassConfig(), lambda i, _, v: parts.append((i, v[layer]["features"]))
    )
    back = np.argsort(np.concatenate([i for i, _ in parts]))
    return torch.cat([f for _, f in parts])[back].double().numpy()


def h_score(f: np.ndarray, y: np.ndarray) -> float:
    """tr(cov(f)⁻¹ cov(E[f|y])), Bao et al. 2019."""
    f = f - f.mean(0)
    means = np.stack([f[y == c].mean(0) for c in np.unique(y)])[np.searchsorted(np.unique(y), y)]
    return float(
        np.trace(np.linalg.pinv(f.T @ f / len(f), rcond=1e-3) @ (means.T @ means / len(f)))
    )


def log_me(f: np.ndarray, y: np.ndarray) -> float:
    """The evidence of a Bayesian linear model at its best two precisions, You et al. 2021."""
    n, d = f.shape
    u, s, _ = np.linalg.svd(f, full_matrices=False)
    lam = s**2
    out = []
    for c in np.unique(y):
        t = (y == c).astype(float)
        z2 = (u.T @ t) ** 2
        rest = t @ t - z2.sum()
        a, b = 1.0, 1.0
        for _ in range(100):
            gamma = (b * lam / (a + b * lam)).sum()
            m2 = (b**2 * lam * z2 / (a + b * lam) ** 2).sum()
            res = (z2 * (a / (a + b * lam)) ** 2).sum() + rest
            a, b = gamma / max(m2, 1e-12), (n - gamma) / max(res, 1e-12)
        gamma_free = d - len(lam)
        out.append(
            (d * np.log(a) + n * np.log(b) - b * res - a * m2 - n * np.log(2 * np.pi)) / 2
            - (np.log(a + b * lam).sum() + gamma_free * np.log(a)) / 2
        )
    return float(np.mean(out) / n)


@torch.no_grad()
def leep(model: nn.Module, x: Tensor, y: np.ndarray) -> float:
    """The likelihood of labels through the source's own predictions, Nguyen et al. 2020."""
    p = model(x).softmax(1).double().numpy()
    joint = np.stack([p[y == c].sum(0) for c in np.unique(y)]) / len(y)
    conditional = joint / joint.sum(0, keepdims=True)
    likely = p @ conditional.T
    return float(np.log(likely[np.arange(len(y)), np.searchsorted(np.unique(y), y)]).mean())


def linear_probe(f: np.ndarray, y: np.ndarray) -> float:
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
    return float(cross_val_score(probe, f, y, cv=5).mean())


def scores(model: nn.Module, fit: Any) -> dict[str, float]:
    x, y = fit
    labels, last = y.numpy(), features_of(model, x, LAST)
    loo = leave_one_out(model, fit, layers=[MIDDLE, LAST]).accuracies
    product = leave_one_out(model, fit, layers=[LAST], kernel="product").accuracies
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResemblanceWarning)  # ‖μ‖² below zero is NaN, ranked last
        table = adaptation(record(model, x, layers=list(NAMES), progress=False))
    at = {layer: i for i, layer in enumerate(table.layers)}
    return {
        "leave-one-out, last layer": loo[LAST],
        "leave-one-out, middle layer": loo[MIDDLE],
        "leave-one-out of the product, last layer": product[LAST],
        "H-score": h_score(last, labels),
        "linear probe": linear_probe(last, labels),
        "LogME": log_me(last, labels),
        "LEEP": leep(model, x, labels),
        "-log ratio, last layer": -float(table["log_ratio"][at[LAST]]),
        "-log ratio, middle layer": -float(table["log_ratio"][at[MIDDLE]]),
        "-mean embedding, last layer": -float(table["mean_embedding"][at[LAST]]),
    }


def one_network_on_several_data(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Its own digits, unseen; digits it does not know; the same turned, noisy, and noise alone."""
    own = x[y < 5]
    data = {
        "0 to 4": own,
        "5 to 9": x[y > 4],
        "0 to 4, turned": own.rot90(1, (2, 3)),
        "0 to 4, noisy": own + 0.3 * _noise(own),
        "noise": _noise(own).abs().clamp_max(1),
    }
    tables = [
        adaptation(record(model, images[:400], layers=list(NAMES), name="0 to 4", data_id=name))
        for name, images in data.items()
    ]
    picture = tables[0].plot(*tables[1:], column="mean_embedding")
    picture.axes[0].set_xticks(range(len(NAMES)), list(NAMES.values()), rotation=0)
    picture.savefig(HERE.parent / "docs" / "figures" / "adaptation.png", dpi=130)
    for table in tables:
        print(f"  {table.data}: {np.round(table['mean_embedding'], 4)}", flush=True)
    return {table.data: table.to_dict() for table in tables}


def one_target(job: tuple[str, Any, Any, dict[str, nn.Sequential]]) -> tuple[str, dict[str, Any]]:
    name, fit, test, models = job
    torch.set_num_threads(1)
    tuned = {source: fine_tuned(model, fit, test) for source, model in models.items()}
    table = {source: scores(model, fit) for source, model in models.items()}
    result: dict[str, Any] = {"fine_tuned": tuned, "scores": table}
    for when in ("early", "late"):
        truth = np.array([each[when] for each in tuned.values()])
        tau = {}
        for key in next(iter(table.values())):
            values = np.nan_to_num([row[key] for row in table.values()], nan=-1e9)
            tau[key] = float(weightedtau(values, truth)[0])
        result[f"tau_{when}"] = tau
        print(f"{name}, {when}: {truth.min():.3f} to {truth.max():.3f}", flush=True)
        print("  ", {k: round(v, 2) for k, v in tau.items()}, flush=True)
    return name, result


def main() -> None:
    torch.set_num_threads(1)
    x, y = load()
    models = sources(x[:900], y[:900])
    print(f"{len(models)} sources", flush=True)
    several = one_network_on_several_data(models["0 to 4"], x[900:], y[900:])
    jobs = [(name, *split, models) for name, split in targets(x[900:], y[900:]).items()]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        result = dict(pool.imap(one_target, jobs))
    mean = {
        when: {
            key: float(np.mean([r[f"tau_{when}"][key] for r in result.values()]))
            for key in next(iter(result.values()))["tau_late"]
        }
        for when in ("early", "late")
    }
    print("mean", {w: {k: round(v, 2) for k, v in m.items()} for w, m in mean.items()})
    print(write("transfer", {"one_network": several, "mean_weighted_tau": mean, "targets": result}))


if __name__ == "__main__":
    main()
