"""Whether `record(compile=True)` gives the scores of the pass as written, on trained networks.

    python -m benchmarks.compiled_scores [NETWORK ...]    # others stay in the file as they are

Twins of a ResNet, a vision transformer and a language model (which reads images pixel by pixel) are
trained on handwritten digits. Each is recorded as written and compiled, in float32 and under
autocast to bfloat16, and one twin's layers are compared with the other's by either recording: the
largest difference of a score over layers, by itself and in standard errors of the score. Beside it,
how far bfloat16 as written lies from float32. Runs on a GPU where there is one, else on the CPU.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resemblance as rs
from reproduction.nets import ResNet

from . import digits

KERNELS = ("features", "gradients", "product")
LEVELS = 17  # values of a pixel, which are the tokens
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resnet() -> nn.Module:
    return ResNet("resnet18", 10, width=16)


def transformer() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=16, patch_size=4, num_classes=10, embed_dim=96, depth=6, num_heads=4
    )


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = {"vocab_size": LEVELS, "n_positions": 64, "bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**tokens, n_embd=96, n_layer=4, n_head=4))


def of_class(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(x), y)


def of_next_pixel(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return net(input_ids=x, labels=x).loss


def trained(
    build: Callable[[], nn.Module], loss: Callable[..., Tensor], x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, float]:
    """A network after a few epochs, and the mean loss in the last of them."""
    torch.manual_seed(seed)
    net = build().to(DEVICE).train()
    epochs = 8
    optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
    losses: list[float] = []
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            found = loss(net, x[batch].to(DEVICE), y[batch].to(DEVICE))
            found.backward()
            optimiser.step()
            losses.append(found.item())
    return net.eval(), float(np.mean(losses[-len(losses) // epochs :]))


def apart(
    one: list[rs.Representation], two: list[rs.Representation]
) -> dict[str, dict[str, float]]:
    """Between the scores of two pairs of recordings: the most over layers, kernel by kernel."""
    out = {}
    for kernel in KERNELS:
        a, b = (rs.compare(*pair, kernel=kernel) for pair in (one, two))
        scores = np.abs(a.scores - b.scores).diagonal()
        errors = scores / np.maximum(a.stderr.diagonal(), 1e-12)
        out[kernel] = {
            "score": float(f"{np.nanmax(scores):.2g}"),
            "standard errors": round(float(np.nanmax(errors)), 3),
        }
    return out


def measured(build: Callable[[], nn.Module], loss: Callable[..., Tensor]) -> dict[str, Any]:
    images, y = digits.load()
    x: Tensor = nn.functional.interpolate(images, scale_factor=2).expand(-1, 3, -1, -1)
    if loss is of_next_pixel:
        x = (16 * images.flatten(1)).round().long()
    twins, losses = zip(*(trained(build, loss, x, y, seed) for seed in (0, 1)), strict=True)
    options = {"batch_size": 128, "block": 64, "progress": False, "data_id": "digits"}

    def recorded(dtype: torch.dtype, compiled: bool) -> list[rs.Representation]:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return [rs.record(net, x, compile=compiled, **options) for net in twins]

    both = {
        (dtype, compiled): recorded(dtype, compiled)
        for dtype in (torch.float32, torch.bfloat16)
        for compiled in (False, True)
    }
    single, half = torch.float32, torch.bfloat16
    return {
        "loss": [round(value, 3) for value in losses],
        "layers": len(both[single, False][0]),
        "float32, compiled": apart(both[single, False], both[single, True]),
        "bfloat16, compiled": apart(both[half, False], both[half, True]),
        "bfloat16 as written, from float32": apart(both[single, False], both[half, False]),
    }


NETWORKS = {
    "ResNet-18, 16 channels": (resnet, of_class),
    "vision transformer": (transformer, of_class),
    "language model": (language_model, of_next_pixel),
}


def main() -> None:
    warnings.filterwarnings("error", message=".*as written.*")  # or nothing is measured
    warnings.filterwarnings("ignore", message=".*standard errors may be too small")
    file = digits.HERE / "results/compiled_scores.json"
    held = json.loads(file.read_text()) if file.exists() else {}
    result: dict[str, Any] = {name: held[name] for name in NETWORKS if name in held}
    for name in sys.argv[1:] or NETWORKS:
        result[name] = measured(*NETWORKS[name])
        print(name, result[name], flush=True)
        digits.write(file.stem, {"device": str(DEVICE), **result})


if __name__ == "__main__":
    main()
