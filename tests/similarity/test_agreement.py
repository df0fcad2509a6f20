"""Whether networks predict the same: against their own outputs, in plain float64."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import MismatchError
from resemblance.representation.outputs import Outputs
from resemblance.similarity.agreement import Behaviour, row_divergences

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
        "kl_reverse": (np.exp(q) * (q - p)).sum(1).mean(),
        "js": js.mean(),
        "agreement_beyond_chance": ((one == two).mean() - chance) / (1 - chance),
    }
    if labels is not None:
        wrong = (one != labels) | (two != labels)
        out["shared_errors"] = (wrong & (one == two)).sum() / wrong.sum()
    return out


@pytest.mark.parametrize("samples", [300, 60])
@pytest.mark.parametrize("batch_size", [7, "auto"])
def test_everything_is_exact_up_to_1024_classes(samples, batch_size):
    one, two = pair()
    x, y = X[:samples], Y[:samples]
    a, b = (rs.record(net, (x, y), batch_size=batch_size) for net in (one, two))
    found = rs.behaviour(a, b)
    p, q = log_p(one, x), log_p(two, x)
    expected = by_hand(p, q, y.numpy())
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-5), name
        assert getattr(found, f"{name}_stderr") >= 0
    each = (np.exp(p) * (p - q)).sum(1)
    assert found.kl_quantiles == pytest.approx(np.quantile(each, [0.5, 0.9, 0.99, 1]), abs=1e-5)
    assert f"largest {each.max():.2g}" in found.summary()
    assert (found.samples, found.classes, found.lower_bounds) == (samples, 5, False)


def test_rows_are_those_of_the_blocks_in_their_order(tmp_path):
    one, _ = pair()
    rep = rs.load(rs.record(one, (X, Y), block=32, blocks=4).save(tmp_path / "a.rsm"))
    order = seeded_permutation(300, 0)[:128]
    assert np.allclose(rep.outputs.every.numpy(), log_p(one)[order], atol=1e-5)
    assert rep.outputs.labels.tolist() == Y[order].tolist()


@pytest.mark.parametrize("asked", [False, True])
def test_many_classes_give_an_unbiased_kl_and_bounds_of_js(asked, tmp_path):
    one, two = pair(Wide, 0.1)
    a = rs.record(one, X)
    b = rs.record(two, X, outputs_of=a if asked else None)
    b = rs.load(b.save(tmp_path / "b.rsm"))
    found, expected = rs.behaviour(a, b), by_hand(log_p(one), log_p(two))
    assert not found.lower_bounds
    assert found.kl_quantiles is None
    assert found.disagreement == pytest.approx(expected["disagreement"], abs=1e-6)
    noise = row_divergences(a.outputs, b.outputs).noise.square().mean(1).sqrt() / 300**0.5
    for name, error in (("kl", noise[0]), ("kl_reverse", noise[1])):
        assert getattr(found, name) == pytest.approx(expected[name], abs=3 * float(error)), name
        assert float(error) < 0.2 * getattr(found, f"{name}_stderr")
    assert 0.98 * expected["js"] < found.js <= expected["js"] + 1e-6 < found.js_upper
    assert f"JS between {found.js:.2g} and {found.js_upper:.2g} nats" in found.summary()


def test_files_without_sketches_give_lower_bounds(tmp_path):
    """Files of earlier versions have the 32 most likely classes and groups."""
    nets = pair(Wide, 0.1)
    new = [rs.record(net, X) for net in nets]
    old = [rs.load(without_sketch(rep).save(tmp_path / f"{i}.rsm")) for i, rep in enumerate(new)]
    expected = by_hand(*map(log_p, nets))
    for a, b in (old, (old[0], new[1]), (new[0], old[1])):
        found = rs.behaviour(a, b)
        assert found.lower_bounds
        assert found.js_upper is None
        assert "KL at least" in found.summary()
        for name in ("kl", "kl_reverse", "js"):
            assert 0.98 * expected[name] < getattr(found, name) <= expected[name] + 1e-6, name


def without_sketch(rep):
    """A recording as earlier versions made it."""
    outputs = rep.outputs
    few = {"top": outputs.top[:, :32], "top_log_p": outputs.top_log_p[:, :32]}
    return replace(rep, outputs=Outputs(outputs.classes, **few, groups=outputs.groups))


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
    data = networks.texts(56)
    a, b = (rs.record(net, data, tokens=3, block=8, batch_size=5) for net in (one, two))
    ids = data["input_ids"]
    with torch.no_grad():
        both = [
            torch.log_softmax(copy.deepcopy(net).double()(ids).logits, -1) for net in (one, two)
        ]
    rows = (a.rows.sequence >= 0).flatten()
    at = (a.rows.sequence.flatten()[rows], a.rows.position.flatten()[rows])
    p, q = (x[at].numpy() for x in both)
    after = torch.cat([ids[:, 1:], torch.zeros(56, 1).long()], 1)[at].numpy()
    found = rs.behaviour(a, b)
    for name, value in by_hand(p, q, after).items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-5), name
    assert (found.samples, found.sequences) == (168, 56)
    assert "168 tokens of 56 sequences" in found.summary()


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
    with pytest.raises(MismatchError, match="has no outputs"):
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
    assert "predict a different class for" in found.summary()
    assert f"(Cohen's kappa {found.behaviour.agreement_beyond_chance:.3f} ± " in found.summary()
    assert rs.Comparison.load(found.save(tmp_path / "c.json")) == found
    without = rs.compare(a, b.without_outputs(), kernel="features")
    assert without.behaviour is None
    assert "predict a different" not in without.summary()


# -- multi-label networks -------------------------------------------------------------------------


def labelled(logits, labels=None, name="one"):
    """A recording of X whose outputs are these logits of independent labels."""
    rep = rs.record(networks.seeded(networks.MLP), X, name=name, gradients=False, buckets=0)
    return replace(rep, outputs=Outputs(logits.shape[1], label_logits=logits, labels=labels))


def of_independent_labels(labels=70, size=0.7):
    z = torch.randn(300, labels, generator=torch.Generator().manual_seed(5)) * 3
    noise = torch.randn(300, labels, generator=torch.Generator().manual_seed(6))
    noise *= (torch.rand(300, 1, generator=torch.Generator().manual_seed(7)) < 0.3).float()
    return z, z + size * noise


@pytest.mark.parametrize("labels", [1, 3, 62, 70])
def test_multi_label_networks_are_compared_label_by_label(labels):
    z, w = of_independent_labels(labels)
    a, b = labelled(z), labelled(w, name="two")
    found = rs.behaviour(a, b)
    kl, js = reference.of_labels(*(torch.sigmoid(x.double()).numpy() for x in (z, w)))
    assert found.kl == pytest.approx(kl.mean(), rel=1e-9)
    assert found.js == pytest.approx(js.mean(), rel=1e-9)
    differs = ((z > 0) != (w > 0)).numpy()
    assert found.disagreement == pytest.approx(differs.any(1).mean())
    assert found.label_disagreement == pytest.approx(differs.mean(0))
    # one part is left out at a time: of a mean, the jackknife over samples is s / √n
    one = differs[:, 0]
    assert found.label_disagreement_stderr[0] == pytest.approx(one.std(ddof=1) / 300**0.5, rel=0.3)
    assert (found.classes, found.lower_bounds) == (labels, False)
    assert "different labels" in found.summary()
    assert Behaviour._from_dict(found.to_dict()) == found


def test_ids_of_label_sets_differ_where_any_label_does():
    z = torch.tensor([[1.0, -1, -1], [1, -1, -1], [-1, 1, -1], [-1, -1, -1]])
    for wide in (z, torch.nn.functional.pad(z, (0, 80), value=-1.0)):
        one, two = (Outputs(wide.shape[1], label_logits=x) for x in (wide, wide.roll(1, 0)))
        first, second = one.prediction, two.prediction
        assert (first == second).tolist() == [False, True, False, False]
        assert first.dtype == second.dtype == torch.int64
        assert one.largest_js == pytest.approx(wide.shape[1] * np.log(2))


def test_the_largest_divergence_of_labels_is_reached_where_all_are_certain():
    z = torch.full((2, 4), 200.0)
    one, two = Outputs(4, label_logits=z), Outputs(4, label_logits=-z)
    kl, _, js, _, known = row_divergences(one, two)
    assert js.tolist() == pytest.approx([one.largest_js] * 2)
    assert kl.tolist() == pytest.approx([800.0] * 2)
    assert known == "exact"
    assert Outputs(3, torch.zeros(1, 3)).largest_js == np.log(2)


def test_errors_that_multi_label_networks_share():
    labels = torch.tensor([[1, 0], [1, 0], [0, 1], [-1, 1]], dtype=torch.int16).repeat(75, 1)
    right = torch.tensor([[1.0, -1], [1, -1], [-1, 1], [1, 1]]).repeat(75, 1)
    one, two = right.clone(), right.clone()
    one[0::4, 1] = two[0::4, 1] = 1  # both are wrong in the same way
    two[1::4, 0] = -1
    one[3::4, 0] = -1  # of which nobody knows whether it is right
    found = rs.behaviour(labelled(one, labels), labelled(two, labels))
    assert found.shared_errors == pytest.approx(0.5)
    assert found.disagreement == pytest.approx(0.5)
    assert rs.behaviour(labelled(one), labelled(two)).shared_errors is None


def test_networks_of_one_class_and_of_many_labels_are_not_compared():
    one = rs.record(networks.seeded(networks.MLP), X, name="one class", gradients=False, buckets=0)
    z, _ = of_independent_labels(5)
    with pytest.raises(MismatchError, match="'many' is a multi-label network and 'one class'"):
        rs.behaviour(one, labelled(z, name="many"))
    with pytest.raises(MismatchError, match="they have 5 and 3 labels"):
        rs.behaviour(labelled(z), labelled(z[:, :3]))


def test_results_of_one_class_have_the_keys_that_they_had():
    rep = rs.record(networks.seeded(networks.MLP), X)
    found = rs.behaviour(rep, rep)
    assert found.label_disagreement is None
    assert not any("label_" in key for key in found.to_dict())
    assert Behaviour._from_dict(found.to_dict()) == found
    of_earlier_versions = {k: v for k, v in found.to_dict().items() if "reverse" not in k}
    assert Behaviour._from_dict(of_earlier_versions).kl_reverse is None


def test_a_label_that_is_certain_has_a_divergence():
    """Logits of ±inf, as float16 has them from 65,520 on: no label is NaN because of it."""
    one = torch.tensor([[float("inf"), 0.0], [-float("inf"), 0.0], [1.0, -float("inf")]])
    two = torch.tensor([[float("inf"), 1.0], [0.0, 0.0], [float("inf"), -float("inf")]])
    kl, _, js, *_ = row_divergences(*(Outputs(2, label_logits=x) for x in (one, two)))
    p, q = torch.sigmoid(one.double()).numpy(), torch.sigmoid(two.double()).numpy()
    expected = np.array([0.5 * np.log(0.5 / q[0, 1]) + 0.5 * np.log(0.5 / (1 - q[0, 1])),
                         np.log(2), np.inf])  # fmt: skip
    assert kl.numpy() == pytest.approx(expected)
    m = (p[2, 0] + 1) / 2
    third = (p[2, 0] * np.log(p[2, 0] / m) + (1 - p[2, 0]) * np.log(2) - np.log(m)) / 2
    assert js[2].item() == pytest.approx(third)


# -- outputs that are NaN -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["every", "top", "labels"])
def test_predictions_that_are_nan_are_not_compared(kind):
    if kind == "top":
        rep = rs.record(networks.seeded(Wide), X, gradients=False)
        log_p = rep.outputs.top_log_p.clone()
        log_p[[3, 8]] = torch.nan
        bad = replace(rep, outputs=replace(rep.outputs, top_log_p=log_p))
    else:
        rep = labelled(torch.randn(300, 5, generator=torch.Generator().manual_seed(2)))
        name = "label_logits" if kind == "labels" else "every"
        x = rep.outputs.label_logits.log_softmax(1) if kind == "every" else rep.outputs.label_logits
        rep = replace(rep, outputs=Outputs(5, **{name: x}))
        broken = x.clone()
        broken[[3, 8], 0] = torch.nan
        bad = replace(rep, outputs=Outputs(5, **{name: broken}))
    for pair in ((rep, bad), (bad, rep)):
        with pytest.raises(MismatchError, match="NaN for 2 of 300 samples"):
            rs.behaviour(*pair)
        with pytest.raises(MismatchError, match="NaN for 2 of 300 samples"):
            rs.check(*pair, max_disagreement=0.5)


def test_some_of_the_shards_are_not_compared():
    """A quarter of the data is no sample of what a user believes to have checked."""
    rep = rs.record(networks.seeded(networks.MLP), X, shard=(0, 4), gradients=False)
    for judge in (rs.behaviour, lambda a, b: rs.check(a, b, max_disagreement=0.5)):
        with pytest.raises(MismatchError, match="1 of 4 shards"):
            judge(rep, rep)
