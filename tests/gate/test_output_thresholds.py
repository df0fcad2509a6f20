"""Thresholds on outputs: recordings with made-up outputs whose truth is known, and real ones."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
from digit_copies import recorded
from resemblance.errors import DataError, MismatchError
from resemblance.gate.output_thresholds import OutputThresholds, _clipping_bias
from resemblance.representation.outputs import Outputs


@functools.cache
def template(n):
    """A recording of n samples, whose outputs are replaced."""
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    net = networks.seeded(lambda: nn.Sequential(nn.Linear(4, 3)))
    return rs.record(net, x, layers=["0"], gradients=False, buckets=0)


def predicting(logits, name="net"):
    log_p = torch.as_tensor(np.asarray(logits, float)).log_softmax(1).float()
    outputs = Outputs(log_p.shape[1], every=log_p)
    return replace(template(len(log_p)).renamed(name), outputs=outputs)


def of_classes(classes, count=3, name="net"):
    """A network that is sure of a class for each sample."""
    return predicting(8 * np.eye(count)[classes], name)


def of_labels(logits, name="net"):
    logits = torch.as_tensor(np.asarray(logits, float)).float()
    outputs = Outputs(logits.shape[1], label_logits=logits)
    return replace(template(len(logits)).renamed(name), outputs=outputs)


@functools.cache
def language_model(seed=0, sequences=60):
    net = networks.seeded(networks.LittleForCausalLM, seed=seed)
    return rs.record(net, networks.texts(sequences), tokens=3, block=8)


def one(a, b, **asked):
    (finding,) = rs.check(a, b, **asked).findings
    return finding


# -- what is measured ---------------------------------------------------------------------------


def test_tokens_are_gathered_by_their_sequence():
    a, b = (language_model(seed, 61) for seed in (0, 1))
    found, expected = OutputThresholds(a, b), rs.behaviour(a, b)
    assert found._rows.shape == (61, 3)
    assert found._disagreement.mean() == pytest.approx(expected.disagreement)
    for name in ("kl", "js"):
        assert float(getattr(found._divergences, name).mean()) == pytest.approx(
            getattr(expected, name)
        )
    rows = (a.rows.sequence >= 0).flatten()
    sequence = a.rows.sequence.flatten()[rows]
    differs = (a.outputs.prediction != b.outputs.prediction).double()
    each = torch.zeros(61, dtype=torch.float64).index_add_(0, sequence, differs) / 3
    assert np.sort(found._disagreement) == pytest.approx(each.sort().values.numpy())


def test_outputs_that_were_not_kept():
    rep = rs.record(networks.seeded(networks.MLP), torch.randn(60, 6), outputs=False)
    with pytest.raises(MismatchError, match=r"has no outputs.*thresholds on layers need"):
        rs.check(rep, rep, max_kl=0.1)


# -- divergences --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "share"), [(60, 0.02), (300, 0.006)])
@pytest.mark.parametrize("name", ["max_kl", "max_js"])
def test_a_change_too_rare_to_be_drawn_does_not_pass(n, share, name):
    """A copy that equals its base except on a few inputs, with a limit at half of the true value.

    Three draws in ten of 60 samples, and one in six of 300, have no such input.
    """
    generator, passed, unseen = np.random.default_rng(0), 0, 0
    limit = share * {"max_kl": 1.0, "max_js": np.log(2)}[name] / 2
    for _ in range(40):
        classes = generator.integers(0, 3, n)
        rare = generator.random(n) < share
        other = np.where(rare, (classes + 1) % 3, classes)
        found = one(of_classes(classes), of_classes(other), **{name: limit})
        passed += found.status == "passed"
        unseen += not rare.any()
    assert unseen >= 4
    assert passed <= 2  # 5 % of 40


def test_kl_is_capped_and_says_how_often():
    """A tenth of the samples have a KL of about 8, which counts as the cap."""
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 3, 400)
    other = np.where(np.arange(400) % 10 == 0, (classes + 1) % 3, classes)
    a, b = of_classes(classes), of_classes(other)
    finding = one(a, b, max_kl=0.2)
    assert rs.behaviour(a, b).kl > 0.7
    assert finding.measured == pytest.approx(0.1)
    assert finding.status == "passed"
    (remark,) = finding.remarks
    assert "capped at 1 nat, exceeded by 10 % of samples" in remark
    assert one(a, b, max_kl=0.2, kl_cap=4).measured == pytest.approx(0.4)
    assert one(a, b, max_kl=0.2, kl_cap=4).status == "failed"


def test_no_sample_can_show_a_divergence_below_what_so_many_can_prove():
    """Zeros alone: 3.3 / 0.02 samples would do."""
    rep = of_classes(np.arange(100) % 3)
    finding = one(rep, rep, max_kl=0.02)
    assert (finding.status, finding.samples_needed) == ("undecided", 170)
    assert one(of_classes(np.arange(170) % 3), of_classes(np.arange(170) % 3), max_kl=0.02)


def test_a_limit_beyond_the_largest_possible_js_is_a_mistake():
    rep = of_classes(np.arange(60) % 3)
    for limit in (0.7, "p99=0.7"):
        with pytest.raises(DataError, match=r"max-js.* must be below 0\.6931 nats"):
            rs.check(rep, rep, max_js=limit)
    labels = of_labels(np.random.default_rng(0).normal(size=(60, 3)))
    assert one(labels, labels, max_js=0.7).status == "passed"  # of at most 3 log 2


@pytest.mark.parametrize(("n", "status"), [(298, "undecided"), (299, "passed")])
def test_a_99th_percentile_needs_299_samples(n, status):
    rep = of_classes(np.arange(n) % 3)
    for name in ("max_kl", "max_js"):
        finding = one(rep, rep, **{name: {"p99": 0.05}})
        assert finding.status == status
        assert finding.samples_needed == (300 if n == 298 else None)


def test_a_percentile_is_judged_by_the_share_of_samples_above_it():
    classes = np.arange(1000) % 3
    a = of_classes(classes)
    for changed, status in ((10, "undecided"), (2, "passed"), (25, "failed")):
        other = np.where(np.arange(1000) < changed, (classes + 1) % 3, classes)
        finding = one(a, of_classes(other), max_kl="p99=0.05")
        assert (finding.status, finding.measured) == (status, changed / 1000)
        # exact binomial bounds: 0.05 = P(X <= 2) of 1,000 at a rate of 0.629 %
        assert changed != 2 or finding.high == pytest.approx(0.00628, abs=2e-5)
    assert "p99 of these samples is 7.99 nats" in finding.remarks[0]
    assert "share of samples with KL above 0.05 nats is 2.5 %" in finding.text("samples")
    assert "limit: at most 1 % of samples" in finding.text("samples")


def test_tokens_are_capped_before_they_are_averaged_over_a_sequence():
    a, b = language_model(0), language_model(1)
    kl = OutputThresholds(a, b)._divergences.kl.numpy()
    cap = float(np.median(kl))
    finding = one(a, b, max_kl=cap / 2, kl_cap=cap)
    assert finding.measured == pytest.approx(np.minimum(kl, cap).mean())
    assert "exceeded by 50 %" in finding.remarks[0]


# -- divergences of more classes than files hold all of -------------------------------------------


@functools.cache
def many_logits(n, size):
    """Logits of 3,000 classes, and of a copy in which each row and all together are moved."""
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 3000, generator=generator) + torch.randn(3000, generator=generator)
    moved = torch.randn(n, 3000, generator=generator)
    return z, z + size * (0.8 * moved + 0.6 * moved[:1])


@functools.cache
def of_many_classes(n, size):
    """Recordings of both, and the true KL of each row."""
    both = many_logits(n, size)
    rows = torch.arange(n)[:, None]
    reps = (rs.record_arrays(rows, outputs=x, buckets=0, data_id="rows") for x in both)
    return *reps, reference.divergences(*(x.double().log_softmax(1) for x in both))


def test_a_near_copy_passes_a_far_one_fails_and_one_between_is_undecided():
    for size, status, code in ((0.1, "passed", 0), (0.31, "undecided", 3), (0.8, "failed", 1)):
        a, b, true = of_many_classes(500, size)
        verdict = rs.check(a, b, max_kl=0.05)
        (finding,) = verdict.findings
        assert (finding.status, verdict.exit_status) == (status, code)
        assert finding.low < true[0].mean() < finding.high
        assert finding.measured == pytest.approx(rs.behaviour(a, b).kl, rel=0.02)
        assert "estimate from sketches" in finding.text("samples")
    assert one(*of_many_classes(500, 0.31)[:2], max_kl=0.05).samples_needed > 500


def test_js_is_judged_by_its_bounds():
    for size, status in ((0.1, "passed"), (0.45, "undecided"), (1.5, "failed")):
        a, b, true = of_many_classes(500, size)
        finding = one(a, b, max_js=0.02)
        assert finding.status == status
        assert finding.low < true[2].mean() < finding.high
        assert "JS lies between" in finding.remarks[0]


def test_a_percentile_is_withheld_where_the_noise_of_rows_is_larger():
    a, b, true = of_many_classes(500, 0.31)
    clear = one(a, b, max_kl="p90=0.3")
    assert clear.status == "passed"
    noisy = one(a, b, max_kl=f"p90={np.quantile(true[0], 0.9):.4f}")
    assert noisy.status == "undecided"
    assert "is estimated to ±" in noisy.why("samples")
    assert noisy.samples_needed is None
    assert one(a, b, max_kl="p90=0.005").status == "failed"
    few = one(*of_many_classes(20, 0.31)[:2], max_kl="p90=0.3")
    assert (few.status, few.samples_needed > 20) == ("undecided", True)


def test_clipping_noisy_values_is_allowed_for():
    """What clipping at the cap takes off the mean of noisy values is added to the bound."""
    generator = torch.Generator().manual_seed(0)
    for true, noise in ((0.2, 0.3), (0.9, 0.3), (0.99, 2.0)):
        values = true + noise * torch.randn(200_000, generator=generator, dtype=torch.float64)
        lost = true - float(values.clamp(max=1).mean())
        found = _clipping_bias(values, torch.full_like(values, noise), 1.0)
        assert lost - 1e-3 <= found <= 0.6 * noise
    exact = torch.tensor([0.2, 0.9], dtype=torch.float64)
    assert _clipping_bias(exact, torch.zeros_like(exact), 1.0) < 1e-12


def test_unrelated_networks_of_many_classes_do_not_pass():
    """Two networks that say the same for all samples, but for noise."""
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(3000, generator=generator)
    both = (z + 0.05 * torch.randn(300, 3000, generator=generator) for _ in range(2))
    rows = torch.arange(300)[:, None]
    a, b = (rs.record_arrays(rows, outputs=x, buckets=0, data_id="rows") for x in both)
    finding = one(a, b, max_kl=0.05)
    assert finding.status == "undecided"
    assert "not significantly related" in finding.why("samples")


# -- chance -------------------------------------------------------------------------------------


def biased(seed, x):
    """An untrained two-class network that nearly always predicts the first class."""
    net = networks.seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), seed=seed
    )
    with torch.no_grad():
        net[2].weight *= 0.2
        net[2].bias[:] = torch.tensor([1.0, -1.0])
        gap = net(x)[:, 0] - net(x)[:, 1]
        net[2].bias[0] -= gap.sort().values[2] + 1e-4  # but for three samples
    return rs.record(net, x, name=f"net {seed}", gradients=False)


def test_unrelated_networks_biased_to_one_class_do_not_pass():
    x = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
    a, b = biased(0, x), biased(1, x)
    assert rs.behaviour(a, b).disagreement <= 0.01
    finding = one(a, b, max_disagreement=0.03)
    assert (finding.status, finding.samples_needed) == ("undecided", None)
    assert finding.high < 0.03
    assert "agreement is not significantly above chance" in finding.reason
    assert "unrelated networks" in finding.reason
    assert one(a, b, min_kappa=0.5).status != "passed"


def test_a_network_that_predicts_one_class_proves_nothing():
    classes = np.zeros(400, int)
    finding = one(of_classes(classes, name="dull"), of_classes(classes), max_disagreement=0.05)
    assert finding.status == "undecided"
    assert "'dull' predicts the same class for every sample" in finding.reason
    finding = one(of_classes(classes), of_classes(classes), min_kappa=0.5)
    assert (finding.status, finding.measured) == ("undecided", None)
    collapsed = one(of_classes(np.arange(400) % 2), of_classes(classes), max_disagreement=0.05)
    assert collapsed.status == "failed"


def test_a_copy_that_finds_the_rare_class_passes():
    """One sample in a hundred of it: a chance of 1 in 4,950 · 98 · … to be the same by luck."""
    rare = (np.arange(500) % 100 == 0).astype(int)
    assert one(of_classes(rare), of_classes(rare), max_disagreement=0.01).status == "passed"


@pytest.mark.parametrize("name", ["max_kl", "max_js"])
def test_unrelated_networks_with_nearly_constant_predictions_do_not_pass(name):
    generator = np.random.default_rng(0)
    a, b = (predicting([4.0, 0, 0] + 0.1 * generator.normal(size=(500, 3))) for _ in range(2))
    finding = one(a, b, **{name: 0.02})
    assert finding.status == "undecided"
    assert finding.high < 0.02
    assert "not significantly related" in finding.reason
    near = predicting(np.asarray(a.outputs.every) + 0.01 * generator.normal(size=(500, 3)))
    assert one(a, near, **{name: 0.02}).status == "passed"
    constant = predicting(np.tile([4.0, 0, 0], (500, 1)))
    assert one(constant, constant, **{name: 0.02}).status == "undecided"


def test_unrelated_multi_label_networks_with_rare_labels_do_not_pass():
    generator = np.random.default_rng(0)
    a, b = (of_labels(np.where(generator.random((600, 4)) < 0.002, 3.0, -3.0)) for _ in range(2))
    finding = one(a, b, max_disagreement=0.05)
    assert finding.high < 0.05
    assert finding.status == "undecided"
    assert "above chance" in finding.reason
    assert one(a, a, max_disagreement=0.05).status == "passed"


def test_sequences_of_unrelated_language_models_do_not_pass():
    """Both nearly always predict one token, one of 180 tokens is another one."""
    base = language_model()
    generator, reps = np.random.default_rng(0), []
    for _ in range(2):
        log_p = torch.full((180, 23), -20.0)
        log_p[:, 5] = 0
        log_p[torch.from_numpy(generator.permutation(180)[:1]), 7] = 5.0
        outputs = Outputs(23, every=log_p.log_softmax(1))
        reps.append(replace(base, outputs=outputs))
    finding = one(*reps, max_disagreement=0.15)
    assert finding.high < 0.15
    assert (finding.status, finding.samples_needed) == ("undecided", None)
    assert one(base, base, max_disagreement=0.15).status == "passed"


def test_chance_agreement_is_found_no_more_often_than_one_time_in_twenty():
    """Two-class networks without relation, of which one in twenty samples is the rare class."""
    generator, passed = np.random.default_rng(0), 0
    for _ in range(100):
        a, b = (of_classes((generator.random(150) < 0.05).astype(int), 2) for _ in range(2))
        passed += one(a, b, max_disagreement=0.2).status == "passed"
    # 5 % of 100, and three standard deviations
    assert passed <= 11


# -- kappa --------------------------------------------------------------------------------------


def kappa(p, q):
    """Cohen's kappa from the table of both networks' classes."""
    table = np.zeros((3, 3))
    for i, j in zip(p, q, strict=True):
        table[i, j] += 1 / len(p)
    chance = table.sum(1) @ table.sum(0)
    return (np.trace(table) - chance) / (1 - chance)


def test_kappa_is_cohens():
    generator = np.random.default_rng(0)
    p = generator.choice(3, 400, p=[0.6, 0.3, 0.1])
    q = np.where(generator.random(400) < 0.1, generator.integers(0, 3, 400), p)
    found = one(of_classes(p), of_classes(q), min_kappa=0.5)
    assert found.measured == pytest.approx(kappa(p, q))
    assert found.low < found.measured < found.high
    assert found.status == "passed"
    assert (
        f"Cohen's kappa {kappa(p, q):.3f}"
        in one(of_classes(p), of_classes(q), max_disagreement=0.2).remarks
    )
    assert one(of_classes(p), of_classes(q), min_kappa=0.97).status == "failed"


def test_kappa_without_a_disagreement_is_not_certain():
    """d is at most 1 − 0.04^(1/100), against chance of at least 50 pairs' lower bound."""
    rep = of_classes(np.arange(100) % 3)
    finding = one(rep, rep, min_kappa=0.99)
    assert (finding.status, finding.measured) == ("undecided", 1.0)
    most = 1 - 0.04 ** (1 / 100)
    assert 1 - most / (2 / 3) > finding.low > 1 - most / 0.4
    assert 400 <= finding.samples_needed <= 700  # 3.2 / 0.01 over chance of a little less than 2/3


@pytest.mark.parametrize("frequent", [1 / 3, 0.9])
def test_bounds_of_kappa_hold(frequent):
    """Classes that are redrawn for 15 % of the samples: a kappa of 0.85 in the population."""
    shares = np.array([frequent, (1 - frequent) / 2, (1 - frequent) / 2])
    generator, missed = np.random.default_rng(0), np.zeros(2)
    for _ in range(100):
        p = generator.choice(3, 200, p=shares)
        q = np.where(generator.random(200) < 0.15, generator.choice(3, 200, p=shares), p)
        found = one(of_classes(p), of_classes(q), min_kappa=0.85)
        missed += [found.low > 0.85, found.high < 0.85]
    assert (missed <= 11).all()  # 5 % of 100, and three standard deviations


def test_kappa_of_tokens_is_bounded_by_their_sequences():
    a = language_model()
    finding = one(a, a, min_kappa=0.5)
    assert (finding.status, finding.measured) == ("passed", 1.0)
    assert finding.low < 1 - (1 - 0.04 ** (1 / 60))  # no surer than 60 samples


# -- how many samples would decide --------------------------------------------------------------


def test_as_many_samples_as_are_said_to_decide_do_so_four_times_in_five():
    generator = np.random.default_rng(0)

    def drawn(n):
        classes = generator.integers(0, 3, n)
        other = np.where(generator.random(n) < 0.02, (classes + 1) % 3, classes)
        return of_classes(classes), of_classes(other)

    classes = np.arange(200) % 3
    recorded_pair = (
        of_classes(classes),
        of_classes(np.where(np.arange(200) < 4, (classes + 1) % 3, classes)),
    )
    needed = one(*recorded_pair, max_disagreement=0.04).samples_needed
    share = np.mean([
        one(*drawn(needed), max_disagreement=0.04).status != "undecided" for _ in range(100)
    ])  # fmt: skip
    assert share == pytest.approx(0.8, abs=0.12)  # three standard deviations


def test_measures_of_real_copies_pass_and_fail():
    a = recorded()
    asked = {"max_kl": {"mean": 0.05, "p95": 0.2}, "max_js": 0.02, "min_kappa": 0.9}
    assert rs.check(a, recorded("int8"), **asked).status == "passed"
    assert rs.check(a, recorded("pruned"), **asked).status == "failed"


def test_a_mean_out_of_reach_says_how_many_samples_or_which_cap_could_show_it():
    """No 60 zeros show a mean below 0.055 at a cap of 1."""
    z = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    rep = rs.record_arrays(outputs=z[:60], data_id="x")
    finding = rs.check(rep, rep, max_kl=0.02).findings[0]
    assert finding.status == "undecided"
    said = r"60 samples can show no mean below 0\.05\d nats; with `kl_cap=(.*)` they can"
    (cap,) = re.fullmatch(said, finding.remarks[0]).groups()
    assert rs.check(rep, rep, max_kl=0.02, kl_cap=float(cap)).status == "passed"
    many = rs.record_arrays(outputs=z[: finding.samples_needed], data_id="x")
    assert rs.check(many, many, max_kl=0.02).status == "passed"
    assert not any("can show" in x for x in rs.check(rep, rep, max_kl=0.1).findings[0].remarks)
    assert rs.check(rep, rep, max_js=0.01).findings[0].remarks == ()  # what would decide is said
