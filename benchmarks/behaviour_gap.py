"""How far the divergences of large vocabularies, known from below, lie under the true ones.

    OMP_NUM_THREADS=1 python -m benchmarks.behaviour_gap

Beyond 1,024 classes a file keeps the 32 likeliest and the probability of 256 groups of the others.
Networks here are linear on 64 features, with a bias that falls by rank as word frequencies do
(Zipf), in four sharpnesses, which set how many classes share the probability; copies have noise on
all weights, or weights rounded to few bits. KL and JS from two files are held against those of all
classes, in float64; once as recorded apart, once with `outputs_of`.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resemblance as rs

CLASSES = (4_000, 50_000)
SHARPNESS = (0.1, 0.5, 1.0, 2.0)
CHANGES = {"noise 1 %": 0.01, "noise 10 %": 0.1, "noise 50 %": 0.5, "4 bits": 4, "3 bits": 3}
SAMPLES = 512
RESULTS = Path(__file__).parent / "results" / "behaviour_gap.json"


def network(classes: int, sharpness: float) -> nn.Sequential:
    torch.manual_seed(0)
    head = nn.Linear(64, classes)
    with torch.no_grad():
        head.weight.normal_().mul_(sharpness)
        head.bias.copy_(-torch.log(torch.arange(1, classes + 1.0))[torch.randperm(classes)])
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), head)


def changed(net: nn.Sequential, change: str) -> nn.Sequential:
    torch.manual_seed(1)
    copy = network(net[-1].out_features, 1.0)
    copy.load_state_dict(net.state_dict())
    how = CHANGES[change]
    with torch.no_grad():
        for weight in copy.parameters():
            if change.startswith("noise"):
                weight += how * weight.std() * torch.randn_like(weight)
            elif weight.ndim > 1:
                step = weight.abs().amax() / (2 ** (how - 1) - 1)
                weight.copy_((weight / step).round() * step)
    return copy


def truth(one: nn.Module, two: nn.Module, x: Tensor) -> dict[str, float]:
    """Mean KL(one‖two) and JS of all classes, and the entropy of the first, in nats."""
    kl = js = entropy = 0.0
    with torch.no_grad():
        for some in x.split(64):
            p, q = (F.log_softmax(net(some).double(), -1) for net in (one, two))
            m = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, dtype=torch.float64))
            kl += float((p.exp() * (p - q)).sum())
            js += float((p.exp() * (p - m) + q.exp() * (q - m)).sum()) / 2
            entropy -= float((p.exp() * p).sum())
    return {"kl": kl / len(x), "js": js / len(x), "entropy": entropy / len(x)}


def row(classes: int, sharpness: float, change: str, x: Tensor) -> dict[str, Any]:
    base = network(classes, sharpness)
    copy = changed(base, change)
    options: dict[str, Any] = {"gradients": False, "buckets": 0, "progress": False}
    a = rs.record(base, x, name="base", **options)
    exact = truth(base, copy, x)
    out: dict[str, Any] = {"classes": classes, "change": change}
    out |= {key: float(f"{value:.4g}") for key, value in exact.items()}
    for name, more in (("apart", {}), ("outputs_of", {"outputs_of": a})):
        found = rs.behaviour(a, rs.record(copy, x, name="copy", **options, **more))
        out[name] = {key: round(getattr(found, key) / exact[key], 4) for key in ("kl", "js")}
    print(out, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()
    x = torch.randn(options.samples, 64, generator=torch.Generator().manual_seed(2))
    rows = [
        row(classes, sharpness, change, x)
        for classes in CLASSES
        for sharpness in SHARPNESS
        for change in CHANGES
    ]
    environment = {
        "resemblance": rs.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    content = {"environment": environment, "samples": options.samples, "rows": rows}
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
