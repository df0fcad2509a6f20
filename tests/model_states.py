"""Everything about a model and the process that a pass must leave as it was."""

from __future__ import annotations

import torch
from torch import nn

import networks


def snapshot(model):
    hooks = [
        (tuple(m._forward_hooks), tuple(m._forward_pre_hooks), tuple(m._backward_hooks))
        for m in model.modules()
    ]
    return {
        "modes": [m.training for m in model.modules()],
        "grad flags": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "values": [v.clone() for v in model.state_dict().values()],
        "hooks": hooks,
        "dropout": [m.dropout for m in model.modules() if isinstance(m, nn.RNNBase)],
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "generator": torch.get_rng_state(),
    }


def assert_unchanged(before, after):
    for key in before:
        if isinstance(before[key], torch.Tensor):
            assert torch.equal(before[key], after[key]), key
            continue
        if not isinstance(before[key], list):
            assert before[key] == after[key], key
            continue
        for one, two in zip(before[key], after[key], strict=True):
            same = torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
            assert same, key


def unusual(kind, /, *args, **kwargs):
    """A model in a state worth keeping: mixed modes, some frozen, some with grads, a hook."""
    model = networks.seeded(kind, *args, **kwargs).train()
    next(iter(model.children())).eval()
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 3 != 0)
        if i % 2:
            parameter.grad = torch.ones_like(parameter)
    list(model.children())[-1].register_forward_hook(lambda *_: None)
    return model
