"""How often `check` is wrong: wrong passes and wrong fails, over thousands of independent draws.

    OMP_NUM_THREADS=1 python -m benchmarks.gate_errors --processes 16 --part outputs
    OMP_NUM_THREADS=1 python -m benchmarks.gate_errors --processes 16 --part networks
    OMP_NUM_THREADS=1 python -m benchmarks.gate_errors --cells "kl/*/300" --draws 200

Each cell has a finite population of samples, so the true value of a threshold's quantity is known
exactly. Samples are drawn from it with replacement, and `check` judges them. Only its public
interface is used; the true values are computed here, in plain float64. There are five kinds of
cells:

- `limit`: the threshold is the true value itself, where a pass is as wrong as a fail. Neither may
  happen in more than 5 % of draws. Neighbours are taken from one pool in all draws of a cell, and
  their true value is that of all queries, given this pool.
- `chance`: two unrelated networks that meet the threshold by chance alone. Passes are wrong.
- `rare`: as `limit`, but the copy differs only on a kind of input that a draw can miss, and the
  quantity is a score or decibels. A pass states this assumption, and counts as wrong without it.
  Such cells are reported and promise nothing else.
- `power`: the true value is half of the threshold, and N = 1,000. At least 80 % must pass.
- `size`: the smallest number of samples at which 80 % pass, with the true value at half of the
  threshold.

Outputs are drawn by giving a recording other `outputs`, at thousands of checks a minute, which
decides as a recording made anew would (`tests/test_gate_errors.py`). For scores and decibels both
networks are recorded on every draw. The exit status is 1 if a promise is broken: if the lower
99 % limit of a rate of wrong verdicts exceeds 5 %, or the upper 99 % limit of a power is below
80 %. How many samples would decide an undecided check is not computed, as it takes most of the
time.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import functools
import importlib
import json
import math
import multiprocessing
import os
import pkgutil
import platform
import sys
import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resemblance as rs
import resemblance.gate
from resemblance._ops.class_sketch import row_keys
from resemblance.demo.digit_networks import pruned_copy, quantised_copy
from resemblance.recording import output_summary
from resemblance.representation.embeddings import Embeddings, directions
from resemblance.representation.outputs import Outputs
from resemblance.representation.representation import Representation
from resemblance.representation.schema import MAX_FULL_CLASSES

HERE = Path(__file__).parent
CLASSES = 10
LABELS = 5  # of multi-label networks
MANY_CLASSES, MANY_UNITS = 1100, 3000  # of which files hold sketches, and a population of these
EMBEDDED = 20_000  # samples with embeddings
POPULATION = 60_000  # samples, or tokens in sequences of 16
TOKENS = 16  # of a sequence
CAP = 1.0  # nats, at which the gate clips the KL of a row by default
MOST_WRONG, LEAST_POWER, CONFIDENCE = 0.05, 0.8, 0.99
SAMPLES = (60, 300, 1000, 10_000)
NETWORK_SAMPLES = (60, 300, 1024, 2000, 8000)
SIZES = (100, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000, 10_000, 15_000, 20_000,
         30_000, 50_000, 70_000, 100_000)  # fmt: skip
NETWORK_SIZES = (100, 200, 300, 500, 1000, 2000, 4000)
Kind = Literal["limit", "chance", "rare", "power", "size"]


@dataclass(frozen=True)
class Cell:
    """What is drawn and what is asked of it.

    Its name is kind/quantity/population@size/n, with :limit after the size where there is one.
    """

    quantity: str  # as `_asked` knows them
    population: str
    size: float  # the mean, rate or share that the population is given
    n: int
    kind: Kind = "limit"
    limit: float | None = None  # the threshold, where it is not the true value
    promised: bool = True

    @property
    def name(self) -> str:
        n = "" if self.kind == "size" else f"/{self.n}"
        limit = "" if self.limit is None else f":{self.limit:g}"
        return f"{self.kind}/{self.quantity}/{self.population}@{self.size:g}{limit}{n}"

    @property
    def group(self) -> str:
        """What is run one after the other, each within its own time."""
        kind = "networks" if self.population.startswith("networks") else "outputs"
        return f"{kind} {self.kind}" if self.kind in ("power", "size") else kind


# -- populations of outputs -----------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """What two networks predict for every sample, or token, that can be drawn."""

    base: Tensor  # (units, tokens, classes): log probabilities, or logits of labels
    copy: Tensor
    multi_label: bool = False
    related: bool = True  # else any output of the copy goes with any of the base

    def drawn(self, n: int, generator: torch.Generator) -> tuple[Representation, Representation]:
        """The recordings of so many units, drawn with replacement."""
        rows = torch.randint(len(self.base), (n,), generator=generator)
        if self.related:
            return self.recordings(rows, rows)
        return self.recordings(rows, torch.randint(len(self.copy), (n,), generator=generator))

    def recordings(self, rows: Tensor, of_copy: Tensor) -> tuple[Representation, Representation]:
        """The recordings that some of the units would give."""
        both = ((self.base, rows), (self.copy, of_copy))
        outputs = (self._outputs(x[at].transpose(0, 1)) for x, at in both)
        return with_outputs(*outputs, tokens=self.base.shape[1])

    def _outputs(self, x: Tensor) -> Outputs:  # (tokens, units, classes)
        rows, classes = x.flatten(0, 1).contiguous(), x.shape[-1]
        if self.multi_label:
            return Outputs(classes, label_logits=rows)
        if classes > MAX_FULL_CLASSES:
            keys = row_keys(0, np.arange(len(rows)))
            tables = output_summary._ClassTables(classes, rows.device)
            return Outputs(classes, **tables.summary(rows.clone(), None, keys))
        return Outputs(classes, every=rows)

    def values(self, quantity: str) -> Tensor:  # (units, tokens) float64
        """What the mean of a quantity is taken of, in plain float64."""
        one, two = self.base.double(), self.copy.double()
        if quantity == "disagreement":
            return self._predicted(one).ne(self._predicted(two)).double()
        if self.multi_label:
            sides = [(F.logsigmoid(s * one), F.logsigmoid(s * two)) for s in (1, -1)]
            log_p, log_q = (torch.stack(x, -1) for x in zip(*sides, strict=True))
        else:
            # float32 rounds probabilities, which then do not sum to one
            log_p, log_q = one.log_softmax(-1), two.log_softmax(-1)
        dims = tuple(range(2, log_p.ndim))
        if quantity == "kl":
            return (log_p.exp() * (log_p - log_q)).sum(dims).clamp(0, CAP)
        log_m = torch.logaddexp(log_p, log_q) - math.log(2)
        both = (x.exp() * (x - log_m) for x in (log_p, log_q))
        return sum(x.sum(dims) for x in both) / 2  # type: ignore[return-value]

    def truth(self, quantity: str) -> float:
        """The true value of a quantity."""
        if quantity == "kappa":
            p, q = (self._predicted(x).flatten() for x in (self.base, self.copy))
            kinds = [np.unique(x.numpy(), return_counts=True) for x in (p, q)]
            counts = [dict(zip(*x, strict=True)) for x in kinds]
            together = sum(int(n) * int(counts[1].get(c, 0)) for c, n in counts[0].items())
            chance = together / len(p) ** 2
            return (float((p == q).double().mean()) - chance) / (1 - chance)
        if "-p99" in quantity:  # as large as a value that exactly 1 % exceed
            values = self.values(quantity.removesuffix("-p99")).flatten().sort().values
            return float(values[-(len(values) // 100) - 1])
        return float(self.values(quantity).mean())

    def _predicted(self, x: Tensor) -> Tensor:  # (units, tokens)
        if self.multi_label:
            return ((x > 0).long() * 2 ** torch.arange(x.shape[-1])).sum(-1)
        return x.argmax(-1)


@dataclass(frozen=True)
class EmbeddingPopulation:
    """What two networks embed every sample as, with a pool that all draws have in common.

    Bounds of neighbours are about all queries, given the pool; so is the true value here. Vectors
    are those that files keep, rounded to float16.
    """

    base: Tensor  # (units, d)
    copy: Tensor
    pool: int  # samples from which neighbours are taken: the first ones, or 0
    related: bool = True  # else any embedding of the copy goes with any of the base

    def drawn(self, n: int, generator: torch.Generator) -> tuple[Representation, Representation]:
        """The recordings of the pool and as many queries, or of n samples, with replacement."""
        sides = []
        rows = torch.randint(self.pool, len(self.base), (n - self.pool,), generator=generator)
        for x in (self.base, self.copy):
            at = rows
            if self.pool:  # every second row is a query
                at = torch.stack([torch.arange(self.pool), rows], 1).flatten()
            if not self.related:
                at = torch.randint(len(x), (n,), generator=generator)
            sides.append(Embeddings(x[at]))
        return with_outputs(*sides)

    def truth(self, quantity: str) -> float:
        """The true value: of all queries with this pool, or the 1st percentile of cosines."""
        if quantity == "neighbours":
            return float(self.overlap(slice(self.pool, None)).mean())
        one, two = (F.normalize(x.double(), dim=1) for x in (self.base, self.copy))
        values = (one * two).sum(1).sort().values
        return float(values[len(values) // 100])  # exactly 1 % lie below

    def overlap(self, queries: slice) -> Tensor:  # (queries,)
        """The share of the 10 nearest neighbours in common (6 of a pool of 30), of each query."""
        k = min(10, self.pool // 5)
        near = []
        for x in (self.base, self.copy):
            x = F.normalize(x.double(), dim=1)
            near.append(torch.cat([(q @ x[: self.pool].T).topk(k).indices
                                   for q in x[queries].split(2000)]))  # fmt: skip
        return (near[0][:, :, None] == near[1][:, None]).any(2).double().mean(1)


def _embedded(
    name: str, size: float, quantity: str, generator: torch.Generator
) -> EmbeddingPopulation:
    """Embeddings of which a mean share of neighbours, `size`, is lost; or as many cosines small.

    All samples move alike (`even`), by lognormal amounts (`tails`), in clusters beside a common
    mean (`clusters`); or 2 % have nothing in common and the others move a little (`few`).
    """
    _, shape, pool = name.split("-")
    m, dim = int(pool), 16
    base = torch.randn(EMBEDDED + m, dim, generator=generator)
    if shape in ("clusters", "unrelated"):
        centres = 2 * torch.randn(30, dim, generator=generator)
        base = base + centres[torch.randint(30, (len(base),), generator=generator)] + 1
    noise = torch.randn(base.shape, generator=generator)
    other = torch.randn(base.shape, generator=generator)
    if shape == "tails":
        noise *= torch.randn(len(base), 1, generator=generator).mul(1.5).exp()
    if shape == "unrelated":
        return EmbeddingPopulation(directions(base), directions(other + 0.5), m, related=False)
    lost = torch.rand(len(base), 1, generator=generator) < 0.02 * (shape == "few")

    def moved(share: float) -> EmbeddingPopulation:
        two = torch.where(lost, other, base + share * noise)
        return EmbeddingPopulation(directions(base), directions(two), m)

    if quantity != "neighbours":
        return moved(size)
    low, high = 0.0, 4.0
    for _ in range(14):
        middle = (low + high) / 2
        less = 1 - float(moved(middle).overlap(slice(m, m + 4000)).mean()) < size
        low, high = (middle, high) if less else (low, middle)
    return moved(high)


def with_outputs(
    base: Outputs | Embeddings, copied: Outputs | Embeddings, *, tokens: int = 1
) -> tuple[Representation, Representation]:
    """Two recordings of a small network, with these outputs instead of their own.

    Rows of tokens are in the order of files: all sequences' first token, then the second, …
    """
    units = base.rows // tokens
    found = []
    for name, outputs in (("base", base), ("copy", copied)):
        rep = _small(tokens)
        found.append(
            replace(
                rep.renamed(name),
                outputs=outputs,
                samples=base.rows,
                block_sizes=(units,) * tokens,
                block_numbers=tuple(range(tokens)),
                block_hashes=None,
                settings=replace(rep.settings, block=units),
            )
        )
    return found[0], found[1]


@functools.cache
def _small(tokens: int) -> Representation:
    """A small recording, whose outputs are replaced."""
    quiet: dict[str, Any] = {"gradients": False, "buckets": 0, "progress": False}
    if tokens == 1:
        return rs.record(_network(), images(64, 0)[0], layers=["2"], **quiet)
    net = NextSymbol()
    return rs.record(net, _sequences(64, 0), unit="token", tokens=tokens, layers=["act"], **quiet)


@functools.cache
def population(name: str, size: float, quantity: str) -> Population | EmbeddingPopulation:
    """By name; `size` is the mean of the quantity, or the share of samples that differ."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}{size}".encode()))
    kind, _, parameter = name.partition("-")
    quantity = quantity.removesuffix("-p99")
    if kind == "embeddings":
        return _embedded(name, size, quantity, generator)
    if kind == "rate":  # a share of samples is predicted differently; classes are 10, or two
        return _relabelled(size, float(parameter or 0), 1, generator)
    if kind == "clusters":  # the same of tokens, whose sequences differ in how often
        return _relabelled(size, 0, TOKENS, generator, spread=float(parameter))
    if kind == "unrelated":  # two networks that predict the rarer of two classes so often
        return _unrelated(size, generator)
    if kind == "labels":
        return _multi_label(size, parameter, generator)
    if kind == "classes":  # more than files hold all of
        return _many_classes(size, float(parameter), generator)
    if kind == "real":
        one, two = (_log_probabilities(x) for x in _blended(parameter, quantity, size))
        return Population(one[:, None], two[:, None])
    if kind == "tokens":
        sigma, between = map(float, parameter.split("-"))
        z = torch.randn(POPULATION // TOKENS, 1, generator=generator) * between**0.5
        z = z + torch.randn(len(z), TOKENS, generator=generator) * (1 - between) ** 0.5
        return _with_values(size * (sigma * z - sigma**2 / 2).exp().double(), quantity, generator)
    if kind == "lognormal":
        sigma = float(parameter)
        places = (torch.arange(POPULATION, dtype=torch.float64) + 0.5) / POPULATION
        values = (sigma * torch.special.ndtri(places) - sigma**2 / 2).exp()
        values *= _scale(values, size, 0.6 if quantity == "js" else CAP)
        values = values.clamp(max=0.6) if quantity == "js" else values
    elif kind == "few":  # 0.2 % of the samples carry 90 %
        values = torch.full((POPULATION,), size * 0.1 / 0.998, dtype=torch.float64)
        values[: POPULATION // 500] = size * 0.9 / 0.002
    elif kind == "rare":  # all equal, but for a share that is large
        values = torch.zeros(POPULATION, dtype=torch.float64)
        values[: round(size * POPULATION)] = float(parameter)
    else:
        raise ValueError(name)
    return _with_values(values[:, None], quantity, generator)


def _scale(values: Tensor, mean: float, most: float) -> float:
    """What to multiply values by so that, clipped at `most`, they have this mean."""
    low, high = 0.0, mean
    while float((values * high).clamp(max=most).mean()) < mean:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        less = float((values * middle).clamp(max=most).mean()) < mean
        low, high = (middle, high) if less else (low, middle)
    return high


def _with_values(values: Tensor, quantity: str, generator: torch.Generator) -> Population:
    """Predictions whose KL or JS are these values, as far as 10 classes allow; (units, tokens).

    The base gives one class 99 % and the others equal parts; the copy gives that class less.
    """
    sure = torch.tensor(0.99, dtype=torch.float64)

    def divergence(log_odds: Tensor) -> Tensor:
        q = torch.sigmoid(log_odds)
        log_q, log_rest = F.logsigmoid(log_odds), F.logsigmoid(-log_odds)
        kl = sure * (sure.log() - log_q) + (1 - sure) * ((1 - sure).log() - log_rest)
        if quantity != "js":
            return kl
        m = (sure + q) / 2
        left = sure * (sure / m).log() + (1 - sure) * ((1 - sure) / (1 - m)).log()
        right = q * (log_q - m.log()) + (1 - q) * (log_rest - (1 - m).log())
        return (left + right) / 2

    low, high = torch.full_like(values, -60.0), torch.full_like(values, float(sure.logit()))
    for _ in range(60):
        middle = (low + high) / 2
        less = divergence(middle) < values
        low, high = torch.where(less, low, middle), torch.where(less, middle, high)
    log_odds = torch.where(values > 0, high, sure.logit())
    best = torch.randint(CLASSES, values.shape, generator=generator)[..., None]

    def spread_out(of_best: Tensor, of_others: Tensor) -> Tensor:
        x = (of_others - math.log(CLASSES - 1))[..., None].expand(*values.shape, CLASSES).clone()
        return x.scatter_(-1, best, of_best[..., None]).float()

    base = spread_out(sure.log().expand_as(values), (1 - sure).log().expand_as(values))
    copied = spread_out(F.logsigmoid(log_odds), F.logsigmoid(-log_odds))
    return Population(base, copied)


def _one_hot(classes: Tensor, count: int = CLASSES) -> Tensor:
    """Log probabilities of a network that is 90 % sure of each of these classes."""
    x = torch.full((*classes.shape, count), 0.1 / (count - 1))
    return x.scatter_(-1, classes[..., None], 0.9).log()


def _relabelled(
    rate: float, rarer: float, tokens: int, generator: torch.Generator, spread: float = 0.0
) -> Population:
    """Another class for a share of the rows: of all classes alike, or with two, 1 to `rarer`.

    Of tokens, a sequence's own share is beta distributed with an intraclass correlation of
    `spread`.
    """
    shape = (POPULATION // tokens, tokens)
    if rarer:
        best = (torch.rand(shape, generator=generator) < rarer).long()
    else:
        best = torch.randint(CLASSES, shape, generator=generator)
    if spread:
        a, b = (x * (1 / spread - 1) for x in (rate, 1 - rate))
        rng = np.random.default_rng(int(1e6 * spread))
        share = torch.from_numpy(rng.beta(a, b, (shape[0], 1)))
        changed = torch.rand(shape, generator=generator) < share
    else:
        order = torch.randperm(best.numel(), generator=generator).view(shape)
        changed = order < round(rate * best.numel())
    other = (best + torch.randint(1, CLASSES, shape, generator=generator)) % CLASSES
    if rarer:
        other = 1 - best
    count = 2 if rarer else CLASSES
    return Population(_one_hot(best, count), _one_hot(torch.where(changed, other, best), count))


def _unrelated(rarer: float, generator: torch.Generator) -> Population:
    """Two networks that predict one of two classes with a margin, each by its own noise."""
    shift = float(torch.special.ndtri(torch.tensor(rarer, dtype=torch.float64)))
    logits = torch.randn(2, POPULATION, 1, generator=generator) * 0.3 + 0.3 * shift
    both = torch.stack([torch.zeros_like(logits), logits], -1).log_softmax(-1)
    return Population(both[0], both[1], related=False)


def _many_classes(size: float, sigma: float, generator: torch.Generator) -> Population:
    """Logits with a part in common, which all move, each row's by a lognormal amount."""
    shape = (MANY_UNITS, 1, MANY_CLASSES)
    z = 2 * torch.randn(shape, generator=generator) + torch.randn(shape[2], generator=generator)
    moved = torch.randn(shape, generator=generator) + torch.randn(shape[2], generator=generator)
    moved *= (sigma * torch.randn(shape[:2], generator=generator)).exp()[..., None]
    scale = 0.1
    for _ in range(8):
        found = Population(z.log_softmax(-1), (z + scale * moved).log_softmax(-1))
        scale *= (size / found.truth("kl")) ** 0.5
    return found


def _multi_label(size: float, how: str, generator: torch.Generator) -> Population:
    """Labels of which some flip, with tails; or two unrelated networks, all of labels are rare."""
    shape = (POPULATION, 1, LABELS)
    base = 2 * torch.randn(shape, generator=generator)
    if how == "unrelated":
        shift = float(torch.special.ndtri(torch.tensor(size / LABELS, dtype=torch.float64)))
        two = torch.randn(2, *shape, generator=generator) * 0.3 + 0.3 * shift
        return Population(two[0], two[1], multi_label=True, related=False)
    tails = torch.randn(shape, generator=generator).exp()
    moved = size * tails * torch.randn(shape, generator=generator)
    return Population(base, base + moved.clamp(-1, 1), multi_label=True)


# -- networks -------------------------------------------------------------------------------------

_FONT = ("####.##.##.####", ".#.##..#..#.###", "###..#####..###", "###..####..####",
         "#.##.####..#..#", "####..###..####", "####..####.####", "###..#.#..#..#.",
         "####.#####.####", "####.####..####")  # fmt: skip


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Digits of a small font, (1, 8, 8), each moved, turned, scaled and noisy; and their labels."""
    generator = torch.Generator().manual_seed(seed)
    font = torch.tensor([[float(x == "#") for x in digit] for digit in _FONT]).view(10, 1, 5, 3)
    labels = torch.randint(10, (count,), generator=generator)
    angle, size = (torch.rand(2, count, generator=generator) - 0.5) * 0.8
    shift = (torch.rand(count, 2, generator=generator) - 0.5) * 0.9
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(-1, 2, 2)
    turn = turn * (1.4 + size[:, None, None])
    grid = F.affine_grid(torch.cat([turn, shift[:, :, None]], 2), [count, 1, 8, 8], False)
    drawn = F.grid_sample(F.pad(font, (1, 1, 0, 0))[labels], grid, align_corners=False)
    return drawn + 0.15 * torch.randn(drawn.shape, generator=generator), labels


def _network(classes: int = CLASSES, widths: tuple[int, int] = (32, 24)) -> nn.Sequential:
    one, two = widths
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, one), nn.ReLU(), nn.Linear(one, two), nn.ReLU(),
        nn.Linear(two, classes),
    )  # fmt: skip


class NextSymbol(nn.Module):
    """A causal network over sequences of 32 symbols that averages what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.act = nn.Embedding(32, 24), nn.ReLU()
        self.hidden, self.head = nn.Linear(48, 32), nn.Linear(32, 32)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.symbols(input_ids)
        before = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return self.head(self.act(self.hidden(torch.cat([x, before], 2))))  # type: ignore[no-any-return]


def _sequences(count: int, seed: int) -> Tensor:
    """Symbols that follow each other by rule, but for noise; each sequence has a rule of four."""
    generator = torch.Generator().manual_seed(seed)
    rules = torch.randint(32, (4, 32), generator=torch.Generator().manual_seed(99))
    rule = torch.randint(4, (count,), generator=generator)
    out = [torch.randint(32, (count,), generator=generator)]
    for _ in range(TOKENS - 1):
        noise = torch.randint(32, (count,), generator=generator)
        right = torch.rand(count, generator=generator) < 0.8
        out.append(torch.where(right, rules[rule, out[-1]], noise))
    return torch.stack(out, 1)


def _learn(net: nn.Module, loss: Callable[[Tensor], Tensor], rows: int, steps: int = 600) -> None:
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(torch.randint(rows, (64,), generator=generator)).backward()
        optimiser.step()
    net.eval()


@functools.cache
def trained(kind: str) -> nn.Module:
    """A network that has learnt the sequences, or the digits.

    A `sure` one has learnt them for long, so that a few images dominate its gradients. Layers of a
    `wide` one have more units than a sketch has columns.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "tokens":
            net: nn.Module = NextSymbol()
            ids = _sequences(4000, 1)
            _learn(net, lambda i: F.cross_entropy(net(ids[i])[:, :-1].flatten(0, 1),
                                                  ids[i][:, 1:].flatten()), len(ids))  # fmt: skip
        else:
            net = _network(widths=(600, 300) if kind == "wide" else (32, 24))
            x, y = images(5000, 1)
            steps = 6000 if kind == "sure" else 600
            _learn(net, lambda i: F.cross_entropy(net(x[i]), y[i]), len(x), steps)
    return net


@functools.cache
def data(kind: str) -> Tensor:
    """All samples that can be drawn."""
    return _sequences(POPULATION // TOKENS, 2) if kind == "tokens" else images(POPULATION, 2)[0]


def changed(kind: str, how: str) -> nn.Module:
    """A copy: int8, int4, int3, or pruned (half of the weights removed)."""
    net: Any = trained(kind)
    return pruned_copy(net, 0.5) if how == "pruned" else quantised_copy(net, int(how[3:]))


class Rarely(nn.Module):
    """A network that sees the darkest 0.5 % of inputs upside down, or none of them."""

    def __init__(self, net: nn.Module, share: float) -> None:
        super().__init__()
        self.net, darkness = copy.deepcopy(net), data("digits").mean((1, 2, 3))
        self.least = float(darkness.quantile(share)) if share else -math.inf

    def forward(self, x: Tensor) -> Tensor:
        dark = (x.mean((1, 2, 3)) <= self.least).view(-1, 1, 1, 1)
        return self.net(torch.where(dark, 4 * x.flip(2), x))


def blend(base: nn.Module, copied: nn.Module, share: float) -> nn.Module:
    """A network between two: weights base + share · (copy − base)."""
    out = copy.deepcopy(base)
    with torch.no_grad():
        for x, y in zip(out.parameters(), copied.parameters(), strict=True):
            x += share * (y - x)
    return out


@torch.no_grad()
def _log_probabilities(net: nn.Module) -> Tensor:
    return net(data("digits")).log_softmax(1)  # type: ignore[no-any-return]


@functools.cache
def _blended(how: str, quantity: str, size: float) -> tuple[nn.Module, nn.Module]:
    """The base, and the copy moved so far that the quantity has this mean."""
    base, copied = trained("digits"), changed("digits", how)
    one = _log_probabilities(base)[:, None]

    def mean(share: float) -> float:
        two = _log_probabilities(blend(base, copied, share))[:, None]
        return Population(one, two).truth(quantity)

    low, high = 0.0, 1.0
    while mean(high) < size:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < size else (low, middle)
    return base, blend(base, copied, high)


_MOST_PRODUCT = 32  # units of a layer whose product of features and gradients is spelt out
Vectors = dict[str, tuple[Tensor, Tensor]]


def vectors(net: nn.Module, x: Tensor) -> Vectors:
    """Features, and gradients of the tempered loss, by layer, of all samples (or tokens)."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, out: seen.__setitem__(name, out)

    hooks = [
        module.register_forward_hook(keep(name))
        for name, module in net.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    net = net.double()
    logits = net(x if x.dtype == torch.long else x.double())
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        aim = torch.softmax(0.5 * logits, -1)
    loss = -(aim * torch.log_softmax(logits, -1)).sum()
    found = torch.autograd.grad(loss, list(seen.values()))
    net.float()
    return {name: (f.detach().flatten(0, -2), g.flatten(0, -2))
            for (name, f), g in zip(seen.items(), found, strict=True)}  # fmt: skip


def _cka(a: Tensor, b: Tensor) -> float:  # of all pairs of samples, (N, d1), (N, d2)
    own = math.sqrt(float((a.T @ a).square().sum() * (b.T @ b).square().sum()))
    return float((a.T @ b).square().sum()) / own


def true_scores(base: Vectors, other: Vectors) -> dict[str, float]:
    """Thresholds at the true values, by the name that `check` has for them."""
    found: dict[str, list[float]] = {"gradients": [], "product": [], "features": [], "db": []}
    for name, (f1, g1) in base.items():
        f2, g2 = other[name]
        found["gradients"].append(_cka(g1, g2))
        found["features"].append(_cka(f1 - f1.mean(0), f2 - f2.mean(0)))
        if f1.shape[1] <= _MOST_PRODUCT:
            both = ((f1, g1), (f2, g2))
            one, two = ((f[:, :, None] * g[:, None]).flatten(1).float() for f, g in both)
            found["product"].append(_cka(one, two))
        noise = float((f1 - f2).square().sum() / f1.square().sum())
        found["db"].append(-10 * math.log10(noise))
    found = {k: x for k, x in found.items() if x}
    means = {f"mean:{k}": sum(x) / len(x) for k, x in found.items() if k != "db"}
    return {k: min(x) for k, x in found.items()} | means


@functools.cache
def network_truth(kind: str, how: str, size: float) -> dict[str, float]:
    """The true values of a copy."""
    base, other = network_pair(kind, how, size)
    x = data(kind)
    return true_scores(vectors(base, x), vectors(other, x))


@functools.cache
def network_pair(kind: str, how: str, size: float) -> tuple[nn.Module, nn.Module]:
    """A network and a copy; with a size, the copy is moved until gradients have that score."""
    base = trained(kind)
    if how == "rarely":
        return Rarely(base, 0.0), Rarely(base, 0.005)
    copied = changed(kind, how)
    if not size:
        return base, copied
    x = data(kind)[:20_000]
    one = vectors(base, x)

    def score(share: float) -> float:
        two = vectors(blend(base, copied, share), x)
        return min(_cka(g, two[name][1]) for name, (_, g) in one.items())

    low, high = 0.0, 1.0
    while score(high) > size:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > size else (low, middle)
    return base, blend(base, copied, high)


# -- draws ----------------------------------------------------------------------------------------


def _asked(quantity: str, limit: float) -> dict[str, Any]:
    """What `check` is given for a threshold."""
    if quantity.endswith("-p99"):
        return {f"max_{quantity.removesuffix('-p99')}": {"p99": limit}}
    if quantity in ("kappa", "neighbours"):
        return {f"min_{quantity}": limit}
    if quantity == "cosine-p01":
        return {"min_cosine": {"p01": limit}}
    if quantity == "db":
        return {"min_db": limit}
    if quantity in ("disagreement", "kl", "js"):
        return {f"max_{quantity}": limit}
    return {"min": {quantity: limit}}


def outcomes(
    cell: Cell, first: int, count: int, limits: dict[str, float] | None = None
) -> dict[str, list[str]]:
    """Statuses of some draws, by quantity. Passes of scores that name no assumption are silent."""
    seed = zlib.crc32(cell.name.encode())
    generators = [torch.Generator().manual_seed(seed + 7919 * (first + i)) for i in range(count)]
    if limits is None:
        limits = thresholds(cell)
    drawn = _of_networks if cell.population.startswith("networks") else _of_outputs
    found: dict[str, list[str]] = {}
    for generator in generators:
        for quantity, status in drawn(cell, generator, limits):
            found.setdefault(quantity, []).append(status)
    return found


def thresholds(cell: Cell) -> dict[str, float]:
    """What is asked for: the cell's own limit, or the true values."""
    if cell.limit is not None:
        return {cell.quantity: cell.limit}
    if cell.quantity == "scores":
        _, kind, how = cell.population.split("-")
        return network_truth(kind, how, cell.size)
    every = population(cell.population, cell.size, cell.quantity)
    return {cell.quantity: every.truth(cell.quantity)}


def _of_outputs(
    cell: Cell, generator: torch.Generator, limits: dict[str, float]
) -> Iterator[tuple[str, str]]:
    every = population(cell.population, cell.size, cell.quantity)
    asked = _asked(cell.quantity, limits[cell.quantity])
    (finding,) = rs.check(*every.drawn(cell.n, generator), **asked).findings
    yield cell.quantity, finding.status


def _of_networks(
    cell: Cell, generator: torch.Generator, limits: dict[str, float]
) -> Iterator[tuple[str, str]]:
    _, kind, how = cell.population.split("-")
    x = data(kind)
    x = x[torch.randint(len(x), (cell.n,), generator=generator)]
    if how == "unrelated":
        base, other = (_biased(generator) for _ in range(2))
    else:
        base, other = network_pair(kind, how, cell.size)
    how_recorded: dict[str, Any] = {"progress": False, "seed": generator.initial_seed() % 1000}
    if kind == "tokens":
        how_recorded |= {"unit": "token", "tokens": 8}
    one, two = (rs.record(net, x, layers=_layers(net), **how_recorded) for net in (base, other))
    asked = [_asked(q, limit) for q, limit in limits.items()]
    minima = {k: v for each in asked for k, v in each.get("min", {}).items()}
    others = {k: v for each in asked for k, v in each.items() if k != "min"}
    for finding in rs.check(one, two, min=minima or None, **others).findings:
        status: str = finding.status
        if status == "passed" and not any("rarer than" in x for x in finding.remarks):
            status = "passed silently"
        yield finding.threshold.name.removeprefix("min").strip(" -"), status


def _layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, nn.ReLU)]


def _biased(generator: torch.Generator) -> nn.Module:
    """An untrained network of two classes that nearly always predicts the first."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(10**9, (1,), generator=generator)))
        net = _network(2)
        with torch.no_grad():
            net[-1].bias[:] = torch.tensor([3.0, -3.0])  # type: ignore[index]
    return net.eval()


# -- cells ----------------------------------------------------------------------------------------


def cells() -> list[Cell]:
    """All cells, in the order of the table."""
    few, many = SAMPLES[:3], SAMPLES[1:]
    out = [Cell("disagreement", "rate", x, n) for x in (0.005, 0.02, 0.05, 0.2) for n in SAMPLES]
    out += [Cell("disagreement", "rate-0.1", 0.02, n) for n in SAMPLES]
    out += [Cell("disagreement", f"clusters-{spread}", x, n)
            for spread in (0.1, 0.5, 0.9) for x in (0.02, 0.1) for n in few]  # fmt: skip
    for name, size in (("rate", 0.05), ("rate-0.1", 0.05), ("rate-0.01", 0.005)):
        out += [Cell("kappa", name, size, n) for n in many]
    out += [Cell("kappa", "clusters-0.5", 0.05, n) for n in few]
    shapes = {
        "kl": (("lognormal-1", 0.02), ("lognormal-2", 0.02), ("lognormal-3", 0.02), ("few", 0.002),
               ("few", 0.02), ("rare-0.5", 0.02), ("rare-1.5", 0.006), ("rare-3", 0.002),
               ("real-int4", 0.02), ("real-pruned", 0.02), ("real-int8", 0.001)),
        "js": (("lognormal-1", 0.01), ("lognormal-2", 0.01), ("lognormal-3", 0.01), ("few", 0.001),
               ("rare-0.2", 0.02), ("rare-0.5", 0.006), ("rare-0.6", 0.002),
               ("real-int4", 0.01), ("real-pruned", 0.01)),
    }  # fmt: skip
    for quantity, populations in shapes.items():
        out += [Cell(quantity, name, size, n) for name, size in populations for n in SAMPLES]
        out += [Cell(quantity, "tokens-1.5-0.5", 0.02, n) for n in few]
        for name in ("lognormal-2", "real-int4", "tokens-1.5-0.5"):
            out += [Cell(f"{quantity}-p99", name, 0.02, n) for n in many]
    out += [Cell("kl", f"classes-{sigma:g}", 0.02, n) for sigma in (0.5, 1.0) for n in few]
    out += [Cell("kl-p99", "classes-0.5", 0.02, n) for n in (300, 1000)]
    for quantity in ("disagreement", "kappa", "kl", "js"):
        out += [Cell(quantity, "labels", 0.2, n) for n in many]
    unrelated = (
        ("disagreement", 0.01, 0.021), ("disagreement", 0.01, 0.05), ("disagreement", 0.1, 0.2),
        ("disagreement", 0.002, 0.02), ("kappa", 0.01, 0.02), ("kl", 0.01, 0.2), ("js", 0.01, 0.1),
        ("kl", 0.1, 0.2), ("js", 0.1, 0.1),
    )  # fmt: skip
    for quantity, size, limit in unrelated:
        out += [Cell(quantity, "unrelated", size, n, "chance", limit) for n in SAMPLES]
    for quantity, limit in (("disagreement", 0.05), ("kl", 0.5), ("js", 0.3)):
        out += [Cell(quantity, "labels-unrelated", 0.02, n, "chance", limit) for n in SAMPLES]
    for how in ("int4", "pruned"):
        out += [Cell("scores", f"networks-digits-{how}", 0.0, n) for n in NETWORK_SAMPLES]
    for kind in ("sure", "wide"):
        out += [Cell("scores", f"networks-{kind}-int4", 0.8, n) for n in (300, 2000)]
    out += [Cell("scores", "networks-tokens-pruned", 0.0, n) for n in (100, 300, 1000)]
    for quantity in ("gradients", "product"):
        out += [Cell(quantity, "networks-digits-unrelated", 0.0, n, "chance", 0.8)
                for n in (60, 300, 2000)]  # fmt: skip
    out += _of_embeddings()
    out += [Cell("scores", "networks-digits-rarely", 0.0, n, "rare") for n in (300, 1024, 2000)]
    return out + _powers()


def _of_embeddings() -> list[Cell]:
    """Cells of neighbours and cosines; the pool is named by its size, half of the samples."""
    out = [Cell("neighbours", f"embeddings-{shape}-{n // 2}", lost, n)
           for shape in ("even", "tails", "clusters", "few") for n in (60, 300, 1000)
           for lost in ((0.1, 0.3) if shape == "even" else (0.1,))]  # fmt: skip
    out += [Cell("neighbours", "embeddings-tails-2000", 0.1, 4000)]
    out += [Cell("cosine-p01", f"embeddings-{shape}-0", 0.2, n)
            for shape in ("even", "tails", "few") for n in (300, 1000, 4000)]  # fmt: skip
    out += [Cell("neighbours", f"embeddings-unrelated-{n // 2}", 0.0, n, "chance", limit)
            for n, limit in ((60, 0.21), (60, 0.3), (300, 0.07), (300, 0.1),
                             (1000, 0.03))]  # fmt: skip
    out += [Cell("neighbours", f"embeddings-{shape}-500", 0.05, 1000, "power", 0.9)
            for shape in ("even", "tails", "clusters")]  # fmt: skip
    out += [Cell("neighbours", f"embeddings-{shape}-{n // 2}", 0.05, n, "power", 0.9, False)
            for shape in ("even", "tails") for n in (100, 200, 300, 500)]  # fmt: skip
    return out


def _powers() -> list[Cell]:
    """Cells with the truth at half of the threshold."""
    out = [Cell("disagreement", "rate", 0.025, 1000, "power", 0.05)]
    out += [Cell("disagreement", "real-int4", 0.025, 1000, "power", 0.05)]
    names = ("lognormal-1", "lognormal-2", "real-int4", "real-int8", "real-pruned")
    for quantity, limit in (("kl", 0.05), ("js", 0.02)):
        out += [Cell(quantity, name, limit / 2, 1000, "power", limit) for name in names]
        out += [Cell(quantity, "lognormal-3", limit / 2, 1000, "power", limit, promised=False)]
    out += [Cell("kl", "classes-0.5", 0.025, 1000, "power", 0.05)]
    out += [Cell("gradients", "networks-digits-pruned", 0.9, 1000, "power", 0.8)]
    for limit in (0.05, 0.02, 0.01, 0.005):
        out += [Cell("disagreement", "rate", limit / 2, 0, "size", limit)]
    for quantity, limits in (("kl", (0.05, 0.02, 0.01, 0.005, 0.002)),
                             ("js", (0.02, 0.01, 0.005, 0.002))):  # fmt: skip
        for name in ("real-int4", "lognormal-2"):
            out += [Cell(quantity, name, limit / 2, 0, "size", limit) for limit in limits]
    for limit in (0.8, 0.9, 0.95):
        out += [Cell("gradients", "networks-digits-pruned", (1 + limit) / 2, 0, "size", limit)]
    return out


def default_draws(cell: Cell) -> int:
    """Fewer where networks run, or where `check` permutes divergences, as it does to pass."""
    if cell.population.startswith("networks"):
        return 60 if cell.kind == "size" else 300
    if cell.kind == "size":
        return 100
    if cell.population.startswith("embeddings"):
        return 60 if cell.n > 1000 and cell.quantity == "neighbours" else 300
    if cell.kind in ("chance", "power") and cell.quantity in ("kl", "js"):
        return 500
    return 1000 if cell.n >= 10_000 else 2000


# -- results --------------------------------------------------------------------------------------


def binomial_limits(hits: int, draws: int) -> tuple[float, float]:
    """One-sided 99 % limits of a rate, below and above (Clopper and Pearson's).

    >>> [round(x, 4) for x in binomial_limits(0, 100)]
    [0.0, 0.045]
    """

    from scipy.stats import beta

    low = 0.0 if hits == 0 else float(beta.ppf(1 - CONFIDENCE, hits, draws - hits + 1))
    high = 1.0 if hits == draws else float(beta.ppf(CONFIDENCE, hits + 1, draws - hits))
    return low, high


def row(cell: Cell, quantity: str, statuses: Iterable[str] | Counter[str]) -> dict[str, Any]:
    """What became of the draws of a cell: their statuses, or how often each was found."""
    counts = Counter(statuses)
    draws = counts.total()
    silent = counts["passed silently"]
    passed, failed = counts["passed"] + silent, counts["failed"]
    out: dict[str, Any] = {
        "kind": cell.kind, "quantity": quantity, "population": cell.population, "size": cell.size,
        "n": cell.n, "limit": cell.limit, "draws": draws, "passed": passed, "failed": failed,
        "silent": silent,
    }  # fmt: skip
    limits = {"passed": binomial_limits(passed, draws), "failed": binomial_limits(failed, draws)}
    out |= {f"{k}_limits": [round(x, 4) for x in limit] for k, limit in limits.items()}
    broken = []
    if cell.kind == "power":
        if cell.promised and limits["passed"][1] < LEAST_POWER:
            broken.append("power")
    elif cell.kind == "rare":
        if silent:
            broken.append("assumption")
    else:
        if limits["passed"][0] > MOST_WRONG:
            broken.append("passes")
        if cell.kind == "limit" and limits["failed"][0] > MOST_WRONG:
            broken.append("fails")
    return out | {"broken": broken}


def smallest(cell: Cell, draws: int) -> dict[str, Any]:
    """The smallest number of samples tried at which 80 % of draws pass, by bisection."""
    limits, most = thresholds(cell), math.ceil(draws * (1 - LEAST_POWER))

    def enough(n: int) -> bool:
        missed = 0
        for i in range(draws):
            (status,) = outcomes(replace(cell, n=n), i, 1, limits)[cell.quantity]
            missed += not status.startswith("passed")
            if missed > most:
                return False
        return True

    sizes = NETWORK_SIZES if cell.population.startswith("networks") else SIZES
    first, last = 0, len(sizes)
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if enough(sizes[middle]) else (middle + 1, last)
    n = sizes[last] if last < len(sizes) else 0
    return {
        "kind": "size",
        "quantity": cell.quantity,
        "population": cell.population,
        "size": cell.size,
        "limit": cell.limit,
        "draws": draws,
        "n": n,
        "broken": [],
    }


def task(what: tuple[Cell, int, int, dict[str, float] | None]) -> tuple[Cell, Any]:
    """Some draws of a cell, or a search for its number of samples."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _without_planning()
    cell, first, count, limits = what
    if cell.kind == "size":
        return cell, smallest(cell, count)
    return cell, outcomes(cell, first, count, limits)


def _without_planning() -> None:
    """Let checks not work out how many samples would decide, which says nothing of errors."""
    for name in [module.name for module in pkgutil.iter_modules(resemblance.gate.__path__)]:
        module = importlib.import_module(f"resemblance.gate.{name}")
        if hasattr(module, "samples_to_decide"):
            module.samples_to_decide = lambda *_, **__: None


def prepared(cell: Cell) -> tuple[Cell, dict[str, float]]:
    """A cell and its thresholds, which are worked out once."""
    torch.set_num_threads(1)
    return cell, thresholds(cell)


def line(found: dict[str, Any]) -> str:
    """A row as a line of the table."""
    name = f"{found['kind']:6} {found['quantity']:14} {found['population']:24} {found['size']:<7g}"
    if found["kind"] == "size":
        return f"{name} limit {found['limit']:<6g} N for 80 %: {found['n'] or 'not found'}"

    def rate(which: str) -> str:
        low, high = (100 * x for x in found[f"{which}_limits"])
        return f"{which} {100 * found[which] / found['draws']:5.1f} % ({low:.1f} to {high:.1f})"

    alarm = f"  <-- {', '.join(found['broken'])}" if found["broken"] else ""
    silent = f", {found['silent']} silent" if found["kind"] == "rare" else ""
    return (
        f"{name} n {found['n']:<6} {found['draws']:5} draws: {rate('passed')}{silent}, "
        f"{rate('failed')}{alarm}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cells", action="append", help='a pattern of names, as "limit/kl/*/300"')
    parser.add_argument("--part", choices=("outputs", "networks"), help="these cells alone")
    parser.add_argument("--draws", type=int, help="at most so many a cell")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each group of cells")
    parser.add_argument("--out", type=Path, help="a JSON file, whose other cells are kept")
    parser.add_argument("--add", action="store_true", help="continue the draws in the file")
    parser.add_argument("--list", action="store_true", help="names of cells, and no more")
    options = parser.parse_args()
    patterns = options.cells or ["*"]
    chosen = [
        cell
        for cell in cells()
        if any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)
        and cell.group.startswith(options.part or "")
    ]
    if options.list:
        print("\n".join(cell.name for cell in chosen))
        return
    out = options.out or HERE / "results" / "gate_errors.json"
    held = in_file(out) if options.add else {}
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for group in dict.fromkeys(cell.group for cell in chosen):
            some = [cell for cell in chosen if cell.group == group]
            rows += run(pool, group, some, options, held)
            if not options.cells or options.add or options.out:
                write(rows, out)
    for each in rows:
        print(line(each))
    broken = sum(bool(each["broken"]) for each in rows)
    print(f"{len(rows)} cells, {broken} with a broken promise")
    sys.exit(1 if broken else 0)


Key = tuple[Any, ...]


def key(row: dict[str, Any]) -> Key:
    """What tells a row of the file from others."""
    n = None if row["kind"] == "size" else row["n"]
    return (*(row[k] for k in ("kind", "quantity", "population", "size", "limit")), n)


def in_file(out: Path) -> dict[Key, dict[str, Any]]:
    """The rows that a file holds."""
    held = json.loads(out.read_text())["rows"] if out.exists() else []
    return {key(row): row for row in held}


def continued(cell: Cell, held: dict[Key, dict[str, Any]]) -> dict[str, Counter[str]]:
    """How often each status was found before, by quantity: draws need not be repeated."""
    found = {}
    for row in held.values():
        same = all(row[k] == getattr(cell, k) for k in ("kind", "population", "size", "limit", "n"))
        if same and cell.quantity in (row["quantity"], "scores"):
            silent = row["silent"]
            known = {"passed": row["passed"] - silent, "passed silently": silent}
            known["failed"] = row["failed"]
            known["undecided"] = row["draws"] - row["passed"] - row["failed"]
            found[row["quantity"]] = Counter(known)
    return found


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Put rows into the file, in place of those that it holds of the same cells."""
    every = in_file(out) | {key(row): row for row in rows}
    environment = {"resemblance": rs.__version__, "torch": torch.__version__,
                   "python": platform.python_version(), "cores": os.cpu_count()}  # fmt: skip
    what = "how often check passes and fails where the truth is the threshold, or half of it"
    lines = ",\n".join(json.dumps(row) for row in every.values())
    head = json.dumps({"what": what, "environment": environment}, indent=1).removesuffix("\n}")
    out.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


def run(
    pool: Any,
    group: str,
    some: Sequence[Cell],
    options: argparse.Namespace,
    held: dict[Key, dict[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of a group of cells: draws of all of them in turn, until the time is over."""
    began = time.monotonic()
    draws = {cell: min(options.draws or 10**9, default_draws(cell)) for cell in some}
    at_once = 5 if group.startswith("networks") else 50
    found = {cell: continued(cell, held) for cell in some}
    known = {cell: min((c.total() for c in found[cell].values()), default=0) for cell in some}
    limits = dict(pool.imap_unordered(prepared, some))
    tasks: list[tuple[Cell, int, int, dict[str, float] | None]] = []
    for more in range(0, max(draws.values()), at_once):
        for cell in some:
            first = known[cell] + more
            if cell.kind == "size":
                tasks += [(cell, 0, draws[cell], None)] if more == 0 else []
            elif first < draws[cell]:
                tasks.append((cell, first, min(at_once, draws[cell] - first), limits[cell]))
    rows = []
    waiting: deque[Any] = deque()

    def collect() -> None:
        cell, result = waiting.popleft().get()
        if cell.kind == "size":
            rows.append(result)
            return
        for quantity, statuses in result.items():
            found[cell].setdefault(quantity, Counter()).update(statuses)

    for each in tasks:
        if time.monotonic() - began > options.seconds:
            break
        waiting.append(pool.apply_async(task, (each,)))
        if len(waiting) > 2 * options.processes:  # so that little is left to do at the end
            collect()
    while waiting:
        collect()
    print(f"{group}: {time.monotonic() - began:.0f} s", flush=True)
    return rows + [row(c, q, x) for c in some for q, x in found[c].items()]


if __name__ == "__main__":
    main()
