"""Whether networks predict the same: against their own outputs, in plain float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance._seeded_random import shuffled
from resemblance.errors import MismatchError

G = torch.Generator().manual_seed(0)
X = torch.randn(300, 6, generator=G)
Y = torch.randint(0, 5, (300,), generator=G)


class Wide(nn.Module):
    """A head of many classes, of which few are likely."""

    def __init__(self, classes=2000, spread=14.0):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, classes)
        nn.init.normal_(self.head.weight, std=spread / 4)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def noisy(net, size=0.05):
    """A copy whose weights were moved a little."""
    other = copy.deepcopy(net)
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in other.parameters():
            weight += size * weight.std() * torch.randn(weight.shape, generator=g)
    return other


def pair(kind=networks.MLP, size=0.5):
    net = networks.seeded(kind)
    return net, noisy(net, size)


def log_p(net, x=X):
    with torch.no_grad():
        return torch.log_softmax(copy.deepcopy(net).double()(x.double()), -1).numpy()


def by_hand(p, q, labels=None):
    """All numbers in plain float64, of log-probabilities (n, classes)."""
    m = np.logaddexp(p, q) - np.log(2)
    kl = (np.exp(p) * (p - q)).sum(1)
    js = ((np.exp(p) * (p - m)).sum(1) + (np.exp(q) * (q - m)).sum(1)) / 2
    one, two = p.argmax(1), q.argmax(1)
    chance = sum((one == c).mean() * (two == c).mean() for c in range(p.shape[1]))
    out = {
        "disagreement": (one != two).mean(),
        "kl": kl.mean(),
        "js": js.mean(),
        "agreement_beyond_chance": ((one == two).mean() - chance) / (1 - chance),
    }
    if labels is not None:
        wrong = (one != labels) | (two != labels)
        out["shared_errors"] = (wrong & (one == two)).sum() / wrong.sum()
    return out


@pytest.mark.parametrize("samples", [300, 40])
@pytest.mark.parametrize("batch_size", [7, "auto"])
def test_everything_is_exact_up_to_1024_classes(samples, batch_size):
    one, two = pair()
    x, y = X[:samples], Y[:samples]
    a, b = (rs.record(net, (x, y), batch_size=batch_size) for net in (one, two))
    found = rs.behaviour(a, b)
    expected = by_hand(log_p(one, x), log_p(two, x), y.numpy())
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-5), name
        assert getattr(found, f"{name}_stderr") >= 0
    assert (found.samples, found.classes, found.lower_bounds) == (samples, 5, False)


def test_rows_are_those_of_the_blocks_in_their_order(tmp_path):
    one, _ = pair()
    rep = rs.load(rs.record(one, (X, Y), block=32, blocks=4).save(tmp_path / "a.rsm"))
    order = shuffled(300, 0)[:128]
    assert np.allclose(rep.outputs.every.numpy(), log_p(one)[order], atol=1e-5)
    assert rep.outputs.labels.tolist() == Y[order].tolist()


@pytest.mark.parametrize("asked", [False, True])
def test_many_classes_give_lower_bounds(asked):
    one, two = pair(Wide, 0.1)
    a = rs.record(one, X)
    b = rs.record(two, X, outputs_of=a if asked else None)
    found, expected = rs.behaviour(a, b), by_hand(log_p(one), log_p(two))
    assert found.lower_bounds
    assert found.disagreement == pytest.approx(expected["disagreement"], abs=1e-6)
    for name in ("kl", "js"):
        share = getattr(found, name) / expected[name]
        assert (0.99 if asked else 0.98) < share <= 1 + 1e-4, (name, share)
    if asked:
        assert rs.behaviour(a, rs.record(two, X)).kl <= found.kl + 1e-6


def test_a_network_and_itself_do_not_differ():
    for kind in (networks.MLP, Wide):
        rep = rs.record(networks.seeded(kind), X)
        found = rs.behaviour(rep, rep)
        assert found.disagreement == found.disagreement_stderr == 0
        assert found.kl == pytest.approx(0, abs=1e-6)
        assert found.js == pytest.approx(0, abs=1e-6)
        assert found.agreement_beyond_chance == 1


def test_tokens_are_compared_at_their_positions_with_the_next_as_the_right_one():
    one, two = (networks.seeded(networks.LittleForCausalLM, seed=seed) for seed in (0, 1))
    data = networks.texts(40)
    a, b = (rs.record(net, data, tokens=3, block=8, batch_size=5) for net in (one, two))
    ids = data["input_ids"]
    with torch.no_grad():
        both = [
            torch.log_softmax(copy.deepcopy(net).double()(ids).logits, -1) for net in (one, two)
        ]
    rows = (a.rows.sequence >= 0).flatten()
    at = (a.rows.sequence.flatten()[rows], a.rows.position.flatten()[rows])
    p, q = (x[at].numpy() for x in both)
    after = torch.cat([ids[:, 1:], torch.zeros(40, 1).long()], 1)[at].numpy()
    found = rs.behaviour(a, b)
    for name, value in by_hand(p, q, after).items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-5), name
    assert (found.samples, found.sequences) == (120, 40)
    assert "120 tokens of 40 sequences" in found.summary()


def test_errors_are_the_spread_over_other_samples():
    one = networks.seeded(networks.MLP)
    with torch.no_grad():  # so that all classes are predicted
        for layer in (one.fc1, one.fc2, one.head):
            layer.weight *= 4
        one.head.bias.zero_()
    two = noisy(one, 0.3)
    g = torch.Generator().manual_seed(3)
    values, errors = [], []
    for _ in range(40):
        x = torch.randn(200, 6, generator=g)
        found = rs.behaviour(*(rs.record(net, x, buckets=0) for net in (one, two)))
        values.append([found.disagreement, found.kl, found.js, found.agreement_beyond_chance])
        errors.append([found.disagreement_stderr, found.kl_stderr, found.js_stderr,
                       found.agreement_beyond_chance_stderr])  # fmt: skip
    share = np.mean(errors, 0) / np.std(values, 0, ddof=1)
    assert ((share > 0.7) & (share < 1.4)).all()


def test_errors_of_tokens_leave_out_sequences():
    """All tokens of a sequence are one: errors are those of so many sequences, not tokens."""

    class ConstantForCausalLM(networks.LittleForCausalLM):
        def forward(self, input_ids, attention_mask=None):
            n, length = input_ids.shape
            x = self.places(torch.arange(length).expand(n, length))
            return self.head(self.tokens(input_ids[:, 1]))[:, None] + 0 * x.sum(-1, keepdim=True)

    data = networks.texts(60)
    nets = [networks.seeded(ConstantForCausalLM, seed=seed) for seed in (0, 1)]
    options = {"layers": ["places"], "gradients": False}
    many, few = (
        rs.behaviour(*(rs.record(net, data, tokens=tokens, **options) for net in nets))
        for tokens in (8, 1)
    )
    assert many.kl == pytest.approx(few.kl, rel=1e-5)
    assert many.kl_stderr == pytest.approx(few.kl_stderr, rel=1e-4)


def test_shards_merge_to_the_whole():
    one, _ = pair()
    whole = rs.record(one, (X, Y), block=32, keep_sums=True)
    merged = rs.merge([rs.record(one, (X, Y), block=32, shard=(i, 3)) for i in range(3)])
    assert torch.allclose(merged.outputs.every, whole.outputs.every, atol=1e-5)
    assert torch.equal(merged.outputs.labels, whole.outputs.labels)


def test_what_cannot_be_compared_says_why():
    one, two = pair()
    a = rs.record(one, X)
    b = rs.record(two, X, outputs=False)
    assert b.outputs is None
    assert a.without_outputs().outputs is None
    with pytest.raises(MismatchError, match="has none of its outputs"):
        rs.behaviour(a, b)
    with pytest.raises(MismatchError, match="they have 5 and 7 classes"):
        rs.behaviour(a, rs.record(networks.seeded(networks.MLP, classes=7), X))
    with pytest.raises(MismatchError, match="different samples"):
        rs.behaviour(a, rs.record(two, X + 1))
    assert rs.record(one, X, target=lambda z, _: z.square().sum(1)).outputs is None


def test_a_comparison_shows_what_networks_do_beside_their_scores(tmp_path):
    one, two = pair()
    a, b = (rs.record(net, (X, Y), name=name) for net, name in ((one, "a"), (two, "b")))
    found = rs.compare(a, b, kernel="features")
    assert found.behaviour == rs.behaviour(a, b)
    assert "predict another class for" in found.summary()
    assert rs.Comparison.load(found.save(tmp_path / "c.json")) == found
    without = rs.compare(a, b.without_outputs(), kernel="features")
    assert without.behaviour is None
    assert "predict another" not in without.summary()
