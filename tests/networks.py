"""Tiny networks for tests, each a chain of named stages.

`stages(batch)` gives the same computation as `forward`, as (layer name, function) pairs, so that
a reference can cut the network at any layer without hooks.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width=7, classes=5, inputs=6):
        super().__init__()
        self.fc1, self.act1 = nn.Linear(inputs, width), nn.ReLU(inplace=True)
        self.fc2, self.act2 = nn.Linear(width, width + 1), nn.GELU()
        self.head = nn.Linear(width + 1, classes)

    def stages(self, batch=None):
        return [(name, getattr(self, name)) for name in ("fc1", "act1", "fc2", "act2", "head")]

    def forward(self, x):
        for _, stage in self.stages():
            x = stage(x)
        return x


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, channels=3, blocks=2, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):  # statistics that are not the identity
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.uniform_(module.weight, 0.5, 1.5)

    def stages(self, batch=None):
        named = [("conv1", self.conv1), ("bn1", self.bn1), ("relu", self.relu)]
        named += [(f"layer1.{i}", block) for i, block in enumerate(self.layer1)]
        return [*named, ("pool", self.pool), ("fc", lambda x: self.fc(x.flatten(1)))]

    def forward(self, x):
        for _, stage in self.stages():
            x = stage(x)
        return x


class Transformer(nn.Module):
    """Token logits, or with `classes` a mean over tokens that are not padding."""

    def __init__(self, vocabulary=11, width=8, layers=2, classes=None):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 12, dropout=0.1, batch_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.classes = classes
        self.head = nn.Linear(width, classes or vocabulary)

    def stages(self, batch):
        mask = batch["attention_mask"]
        padding = mask == 0

        def layer(module):
            return lambda x: module(x, src_key_padding_mask=padding)

        def head(x):
            if self.classes is not None:
                x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return self.head(x)

        named = [(f"layers.{i}", layer(module)) for i, module in enumerate(self.layers)]
        return [("embed", self.embed), *named, ("norm", self.norm), ("head", head)]

    def forward(self, input_ids, attention_mask):
        x = input_ids
        for _, stage in self.stages({"attention_mask": attention_mask}):
            x = stage(x)
        return x


class Recurrent(nn.Module):
    """Embedding, GRU, and a head on the mean output or the last state."""

    def __init__(self, batch_first=True, last_state=False, kind=nn.GRU, classes=4):
        super().__init__()
        self.batch_first, self.last_state = batch_first, last_state
        self.embed = nn.Embedding(9, 5)
        self.rnn = kind(5, 6, num_layers=2, dropout=0.3, batch_first=batch_first)
        self.head = nn.Linear(6, classes)

    def stages(self, batch=None):
        """Batch first throughout; for reference only."""

        def run(x):
            return self.rnn(x if self.batch_first else x.transpose(0, 1))[0].transpose(
                0, 0 if self.batch_first else 1
            )

        return [("embed", self.embed), ("rnn", run), ("head", lambda x: self.head(x.mean(1)))]

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        out, state = self.rnn(x)
        if self.last_state:
            return self.head((state[0] if isinstance(state, tuple) else state)[-1])
        return self.head(out.mean(1 if self.batch_first else 0))


class Functional(nn.Module):
    """Activations as functions: no module marks them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc1 = nn.Linear(18, 6)
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu_(self.conv(x)).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


def tokens(count, length=6, seed=0, vocabulary=11):
    """A dict of padded token sequences with their mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (count, length), generator=generator)
    lengths = torch.randint(2, length + 1, (count, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def seeded(network, /, *args, seed=0, **kwargs):
    """A network whose weights depend on the seed alone; no global generator is left changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(*args, **kwargs)


class LittleForCausalLM(nn.Module):
    """A causal language model that counts positions from its first column, with two blocks."""

    def __init__(self, vocabulary=23, width=12, blocks=2, length=40):
        super().__init__()
        self.config = SimpleNamespace(bos_token_id=1, eos_token_id=[2, 3], pad_token_id=0)
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids, attention_mask=None):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.head(x))


class CausalBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(x)


def texts(count=20, longest=14, seed=0, side="right", vocabulary=23):
    """Sequences of other lengths that begin with 1 and end in 2, padded with 0 on one side."""
    g = torch.Generator().manual_seed(seed)
    ids, mask = torch.zeros(2, count, longest, dtype=torch.long).unbind()
    for row, real in zip(ids, mask, strict=True):
        n = int(torch.randint(5, longest + 1, (1,), generator=g))
        inside = torch.randint(4, vocabulary, (n - 2,), generator=g)
        text = torch.cat([torch.tensor([1]), inside, torch.tensor([2])])
        at = slice(0, n) if side == "right" else slice(longest - n, longest)
        row[at], real[at] = text, 1
    return {"input_ids": ids, "attention_mask": mask}
