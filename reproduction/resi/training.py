"""Several networks of one architecture, trained side by side.

On a GPU, a training step of each network is one CUDA graph, which runs on a stream of its own.
Drawing samples, cropping, both passes and the update read tables that were drawn beforehand. So the
host only launches graphs, and kernels of different networks overlap. On a CPU the same step runs
eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .designs import Plan
from .families import build, inputs

_PATTERNS = 4096  # of Gaussian noise
_PAD = 4


@dataclass(frozen=True)
class Recipe:
    """How networks are trained: SGD with Nesterov momentum, or Adam; one cycle of the rate."""

    steps: int
    batch: int
    rate: float
    decay: float = 5e-4
    adam: bool = False
    mirror: bool = True

    def rates(self) -> Tensor:  # (steps,)
        i = torch.arange(self.steps, dtype=torch.float64)
        up, down = 0.2 * self.steps, 0.8 * self.steps
        rise = self.rate * torch.minimum((i + 1) / up, (self.steps - i) / down).clamp_max(1)
        if self.adam:  # with the corrections for averages that begin at zero
            rise = rise * (1 - 0.99 ** (i + 1)).sqrt() / (1 - 0.9 ** (i + 1))
        return rise.float()


class Slot:
    """The memory in which one network at a time is trained."""

    def __init__(
        self, family: str, recipe: Recipe, x: Tensor, *, rows: int, tiny: bool, graph: bool
    ) -> None:
        self.family, self.recipe, self.tiny = family, recipe, tiny
        self.device, images = x.device, x.ndim == 4
        self.net = build(family, 0, tiny=tiny).to(self.device)
        if images and self.device.type == "cuda":
            self.net = self.net.to(memory_format=torch.channels_last)
        self.params = list(self.net.parameters())
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [torch.zeros_like(p) for p in self.params] if recipe.adam else []
        shape = (
            (rows, x.shape[1] + 2 * _PAD, x.shape[2] + 2 * _PAD, 3)
            if images
            else (rows, x.shape[1])
        )
        self.x = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=self.device)
        table = (recipe.steps, recipe.batch)
        self.rows = torch.zeros(table, dtype=torch.int64, device=self.device)
        self.crops = torch.zeros(4, *table, dtype=torch.int64, device=self.device)
        self.noise = torch.zeros(table, device=self.device)
        self.rates = recipe.rates().to(self.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.lost = torch.zeros((), device=self.device)
        self.side = x.shape[1]
        if images:
            generator = torch.Generator().manual_seed(0)
            patterns = torch.randn(
                _PATTERNS if not tiny else 8, self.side, self.side, 3, generator=generator
            )
            self.patterns = patterns.to(self.device, torch.bfloat16)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.graph = self._captured() if graph and self.stream is not None else None

    def load(self, plan: Plan, seed: int) -> None:
        """A fresh network, its samples and its tables."""
        fresh = build(self.family, seed, tiny=self.tiny)
        with torch.no_grad():
            self.net.load_state_dict(fresh.state_dict())
            torch._foreach_zero_([*self.first, *self.second, self.lost])
            self.at.zero_()
            n = len(plan.x)
            images = plan.x.ndim == 4
            self.x[:n] = F.pad(plan.x, (0, 0, *[_PAD] * 4)) if images else plan.x
            self.y[:n] = plan.y
            generator = torch.Generator().manual_seed(seed)
            steps, batch = self.rows.shape
            need = steps * batch
            orders = [
                torch.randperm(plan.draws, generator=generator)
                for _ in range(-(-need // plan.draws))
            ]
            rows = torch.cat(orders)[:need].view(steps, batch)
            if plan.versions > 1:
                rows += plan.draws * torch.randint(plan.versions, rows.shape, generator=generator)
            self.rows.copy_(rows)
            if images:
                crops = torch.full((4, steps, batch), _PAD)
                crops[2:] = 0
                if plan.augmented:
                    crops[:2] = torch.randint(2 * _PAD + 1, crops[:2].shape, generator=generator)
                    if self.recipe.mirror:
                        crops[2] = torch.randint(2, (steps, batch), generator=generator)
                crops[3] = torch.randint(len(self.patterns), (steps, batch), generator=generator)
                variance = plan.variance * torch.rand(steps, batch, generator=generator)
                self.crops.copy_(crops)
                self.noise.copy_(variance.sqrt())
        self.net.train()

    def step(self) -> None:
        """One step of training, without any word to the host."""
        rows = self.rows.index_select(0, self.at)[0]
        images, labels = self._batch(rows), self.y[rows]
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            loss = F.cross_entropy(self.net(images).float(), labels)
        grads = list(torch.autograd.grad(loss, self.params))
        with torch.no_grad():
            rate = self.rates.index_select(0, self.at)[0]
            self._update(grads, rate)
            self.lost.lerp_(loss.detach(), 0.05)
            self.at += 1

    def _batch(self, rows: Tensor) -> Tensor:
        if self.x.ndim == 2:
            return inputs(self.x[rows])
        down, across, turned, pattern = (x.index_select(0, self.at)[0] for x in self.crops)
        line = torch.arange(self.side, device=self.device)
        columns = torch.where(turned[:, None] == 1, self.side - 1 - line, line)
        grey = self.x[
            rows[:, None, None],
            (down[:, None] + line)[:, :, None],
            (across[:, None] + columns)[:, None, :],
        ].float()
        sigma = self.noise.index_select(0, self.at)[0]
        grey = grey + sigma[:, None, None, None] * self.patterns[pattern].float()
        return inputs(grey.clamp(0, 255))

    def _update(self, grads: list[Tensor], rate: Tensor) -> None:
        decay = self.recipe.decay
        if self.recipe.adam:
            torch._foreach_lerp_(self.first, grads, 0.1)
            torch._foreach_mul_(self.second, 0.99)
            torch._foreach_addcmul_(self.second, grads, grads, 0.01)
            moved = torch._foreach_sqrt(self.second)
            torch._foreach_add_(moved, 1e-8)
            moved = torch._foreach_div(self.first, moved)
        else:
            grads = torch._foreach_add(grads, self.params, alpha=decay)
            torch._foreach_mul_(self.first, 0.9)
            torch._foreach_add_(self.first, grads)
            moved = torch._foreach_add(grads, self.first, alpha=0.9)
        torch._foreach_mul_(moved, rate)
        torch._foreach_sub_(self.params, moved)

    def _captured(self) -> torch.cuda.CUDAGraph:
        self.net.train()
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
                self.at.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.step()
        torch.cuda.synchronize()
        return graph

    def differs(self, plan: Plan, steps: int = 30) -> str:
        """How the loss of the graph differs from that of the same steps run eagerly, if it does."""
        losses = []
        graph = self.graph
        for how in (graph, None):
            self.graph = how
            self.load(plan, seed=0)
            torch.cuda.synchronize()
            for _ in range(min(steps, self.recipe.steps)):
                self.advance()
            torch.cuda.synchronize()
            losses.append(float(self.lost))
        self.graph = graph
        if abs(losses[0] - losses[1]) < 0.1 * abs(losses[1]):
            return ""
        return f"after {steps} steps the loss is {losses[0]:.4f}, and {losses[1]:.4f} without them"

    def advance(self) -> None:
        if self.stream is None:
            self.step()
            return
        with torch.cuda.stream(self.stream):
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()


def train_together(
    slots: Sequence[Slot], plans: Sequence[Plan], seeds: Sequence[int]
) -> list[nn.Module]:
    """Train a network in each slot; they stay there until the slots are loaded again."""
    used = list(zip(slots, plans, seeds, strict=False))
    for slot, plan, seed in used:
        slot.load(plan, seed)
    if used[0][0].stream is not None:
        torch.cuda.synchronize()
    for _ in range(used[0][0].recipe.steps):
        for slot, _, _ in used:
            slot.advance()
    if used[0][0].stream is not None:
        torch.cuda.synchronize()
    return [slot.net.eval() for slot, _, _ in used]
