"""How exact changes in shared coordinates are, token by token: copies of a little Llama.

    python -m benchmarks.copies --out copies                # makes the networks, in nine minutes
    OMP_NUM_THREADS=1 python -m benchmarks.coordinates_language --copies copies [--sketches 10]

Base and copies are recorded as a user would, 16 tokens each of 128 sequences, with one seed after
the other: each draws other tokens and makes another sketch. Features and gradients of all positions
are taken in float64 by plain autograd, and those that a recording says it drew give the true change
and cosine of each layer, against which estimates are set. Writes results/coordinates_language.json.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resemblance as rs
from resemblance import Representation
from resemblance.errors import ResemblanceWarning

from . import digits
from .coordinates import BETA, Vectors, error_of, overall, short, truth

SEQUENCES, LENGTH, BATCH = 128, 96, 16
COPIES = (
    *("int8", "int4", "int3", "pruned-20", "pruned-50", "pruned-80"),
    *("lora", "tuned", "tuned-away", "averaged"),
)


def network(folder: Path) -> nn.Module:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder).eval()


def text(folder: Path) -> Tensor:  # (sequences, length)
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder / "base")
    unseen = (folder / "unseen.txt").read_text(encoding="utf-8")
    return torch.tensor(tokens(unseen)["input_ids"][: SEQUENCES * LENGTH]).view(-1, LENGTH)


def every_position(model: nn.Module, ids: Tensor, layers: Sequence[str]) -> Vectors:
    """Features and gradients (sequences, length, width) in float64, the loss that of a sequence."""
    model = model.double()
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            found = output[0] if isinstance(output, tuple) else output
            seen[name] = found if found.requires_grad else found.requires_grad_()

        return hook

    hooks = [model.get_submodule(name).register_forward_hook(keep(name)) for name in layers]
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in layers}
    for batch in ids.split(BATCH):
        z = model(input_ids=batch).logits
        wanted = torch.softmax(BETA * z.detach(), -1)
        loss = -(wanted * torch.log_softmax(z, -1)).sum()
        found = torch.autograd.grad(loss, [seen[name] for name in layers])
        for name, gradient in zip(layers, found, strict=True):
            parts[name].append((seen[name].detach().numpy(), gradient.numpy()))
    for hook in hooks:
        hook.remove()
    model.float()
    return {
        name: (np.concatenate([f for f, _ in pairs]), np.concatenate([g for _, g in pairs]))
        for name, pairs in parts.items()
    }


def drawn(every: Vectors, rep: Representation) -> Vectors:
    """The tokens that a recording is of."""
    assert rep.rows is not None
    at = rep.rows.sequence.numpy().ravel(), rep.rows.position.numpy().ravel()
    assert (at[0] >= 0).all(), "blocks hold all tokens"
    assert len(at[0]) == rep.samples
    return {name: (f[at], g[at]) for name, (f, g) in every.items()}


def recorded(model: nn.Module, ids: Tensor, layers: Sequence[str], seed: int) -> Representation:
    return rs.record(model, ids, layers=list(layers), beta=BETA, seed=seed, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--copies", type=Path, default=Path("copies"))
    parser.add_argument("--sketches", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResemblanceWarning)  # of tokenizers that are not given
    folder = options.copies / "language"
    base, ids = network(folder / "base"), text(folder)
    depth = base.config.num_hidden_layers
    layers = [
        "model.embed_tokens",
        *(f"model.layers.{i}" for i in range(depth)),
        "model.norm",
    ]
    origins = [recorded(base, ids, layers, seed) for seed in range(options.sketches)]
    plain = every_position(base, ids, layers)
    rows = []
    for name in COPIES:
        other = network(folder / name)
        found = [rs.coordinates(a, recorded(other, ids, layers, i)) for i, a in enumerate(origins)]
        moved = every_position(other, ids, layers)
        true = [truth(drawn(plain, rep), drawn(moved, rep), layers) for rep in origins]
        rows += [{"change": name, **row} for row in accuracy(found, true, layers)]
        print(name, flush=True)
    result = {
        "sketches": options.sketches,
        "tokens": origins[0].samples,
        "sequences": len(ids),
        "overall": overall(rows),
        "shared": all(row["shared"] for row in rows),
        "rows": short(rows),
    }
    print(result["overall"], result["shared"], sep="\n")
    digits.write("coordinates_language", result)


def accuracy(
    found: Sequence[Any], true: Sequence[dict[str, np.ndarray]], layers: Sequence[str]
) -> list[dict[str, Any]]:
    """Estimates of one change, each against the truth of its own tokens, layer by layer."""
    rows = []
    for i, j in np.ndindex(2, len(layers)):
        if not all(np.isfinite(x["decibels"][i, j]) for x in true):
            continue  # nothing changed there
        row: dict[str, Any] = {"kind": found[0].kinds[i], "layer": layers[j]}
        row["rank"] = float(np.mean([x["rank"][i, j] for x in true]))
        for column in ("decibels", "cosine", "mean_share"):
            exact = np.array([x[column][i, j] for x in true])
            row[column] = error_of(column, found, exact, (i, j))
        row["shared"] = all(x.shared for x in found)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
