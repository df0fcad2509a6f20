"""The state a model is run in, and put back from: it comes back exactly as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The module under DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner: Any = model.module
        elif hasattr(model, "_orig_mod"):
            inner = model._orig_mod
        else:
            return model
        model = inner


@contextlib.contextmanager
def untouched(model: nn.Module, *, frozen: bool = True) -> Iterator[None]:
    """Evaluation mode, parameters frozen, every module run as written; all undone at the end.

    Autocast keeps a weight that it has cast for the next batch, but only if the weight could take a
    gradient: a pass that makes none runs faster with `frozen=False`.

    Compiled code runs eagerly and transformer layers without their fused inference path, as neither
    shows what happens inside. Recurrent layers stay in training mode with dropout off, which
    computes the same and is the only mode in which cuDNN differentiates them.
    """
    modes = [(module, module.training) for module in model.modules()]
    thawed = [p for p in model.parameters() if frozen and p.requires_grad]
    recurrent = [(m, m.dropout) for m in model.modules() if isinstance(m, nn.RNNBase)]
    fused = torch.backends.mha.get_fastpath_enabled()
    with torch.compiler.set_stance("force_eager"):
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            torch.clear_autocast_cache()  # of weights as they may no longer be
            model.eval()
            for module, _ in recurrent:
                module.training, module.dropout = True, 0.0
            for parameter in thawed:
                parameter.requires_grad_(False)
            yield
        finally:
            torch.clear_autocast_cache()  # of weights cast where no graph was made
            for parameter in thawed:
                parameter.requires_grad_(True)
            for module, dropout in recurrent:
                module.dropout = dropout
            for each, training in modes:
                each.training = training
            torch.backends.mha.set_fastpath_enabled(fused)
