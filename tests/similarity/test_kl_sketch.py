"""KL from sketches over classes, against exact sums in float64."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import networks
import reference
import resemblance as rs
from resemblance._ops.class_sketch import CLASS_BUCKETS, class_places
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import FormatError
from resemblance.recording import checkpoints
from resemblance.representation.outputs import Outputs
from resemblance.similarity.agreement import row_divergences

CLASSES = 3000


def logits(rows, spread=2.5, common=1.0, seed=0):
    """Logits with a part that all rows have in common, as frequent tokens give them."""
    generator = torch.Generator().manual_seed(seed)
    shared = common * torch.randn(CLASSES, generator=generator)
    return shared + spread * torch.randn(rows, CLASSES, generator=generator)


def near(z, size, seed=1):
    """Logits of a copy: each moved a little, and all rows in a common direction."""
    moved = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed))
    return z + size * (0.8 * moved + 0.6 * moved[:1])


def recorded(z, seed=0):
    features = torch.arange(len(z))[:, None]
    return rs.record_arrays(features, outputs=z, seed=seed, buckets=0, data_id="rows")


def outputs(z, seed=0):
    return recorded(z, seed).outputs


def in_order(z, seed=0):
    return z[seeded_permutation(len(z), seed)]


@pytest.mark.parametrize("asked", [False, True])
def test_an_estimate_is_that_of_the_plain_formula(asked):
    z = logits(20)
    w = near(z, 0.7)
    one, two = outputs(z), outputs(w)
    if asked:
        log_q = in_order(w).log_softmax(1)
        two = replace(two, others=one.top, others_log_p=log_q.gather(1, one.top))
    found = row_divergences(one, two)
    assert found.known == "estimated"
    buckets, signs = class_places(torch.arange(CLASSES).expand(20, -1), one.sketch_key, CLASSES)
    for i, (p, q) in enumerate(zip(in_order(z), in_order(w), strict=True)):
        sketch = np.zeros((CLASS_BUCKETS, CLASSES))
        sketch[buckets[i], np.arange(CLASSES)] = signs[i]
        listed = one.top[i].tolist()
        listed = listed if asked else list(set(listed) & set(two.top[i].tolist()))
        rows = p.double().log_softmax(0).numpy(), q.double().log_softmax(0).numpy()
        # what float16 rounds of the sketches
        bound = {"abs": 5e-3 * float(found.noise[:, i].max()) + 1e-5}
        expected = reference.sketched_kl(*rows, listed, sketch)
        assert float(found.kl[i]) == pytest.approx(expected, **bound)
        expected = reference.sketched_kl(*rows[::-1], listed, sketch)
        assert float(found.reverse[i]) == pytest.approx(expected, **bound)


@pytest.mark.parametrize("size", [0.1, 1.0])
def test_estimates_have_no_bias_and_the_noise_that_they_state(size):
    """Over 60 seeds of the sketch, each another order and other signs, on 30 rows."""
    z = logits(30)
    w = near(z, size)
    true = reference.divergences(*(x.double().log_softmax(1) for x in (z, w)))
    errors, noise = [], []
    for seed in range(60):
        found = row_divergences(outputs(z, seed), outputs(w, seed))
        order = in_order(torch.arange(30), seed).numpy()
        errors.append(torch.stack([found.kl, found.reverse]).numpy() - true[:2, order])
        noise.append(found.noise.numpy())
        assert (found.js.numpy() <= true[2, order] + 1e-6).all()
    errors, noise = np.stack(errors), np.stack(noise)  # (seeds, 2, rows)
    means, size_of_error = errors.mean(2), np.sqrt((noise**2).mean())
    assert (np.abs(means.mean(0)) < 3.5 * size_of_error / np.sqrt(60 * 30)).all()
    # classes have no error with themselves, of which a bucket has six here
    assert np.sqrt((errors**2).mean()) == pytest.approx(size_of_error * (5 / 6) ** 0.5, rel=0.1)
    # means over rows err as if rows were independent, though all have a direction in common
    ratio = means.std(0) / (errors.std(0).mean(1) / 30**0.5)
    assert ratio == pytest.approx([1, 1], abs=0.3)


def test_two_standard_errors_cover_the_kl_of_the_population():
    """Draws of 100 rows of 1,000, with signs of their own; standard errors leave rows out."""
    z = logits(1000, spread=1.5)
    w = near(z, 0.4)
    true = reference.divergences(*(x.double().log_softmax(1) for x in (z, w)))[0].mean()
    generator, covered = torch.Generator().manual_seed(2), []
    for seed in range(30):
        rows = torch.randint(1000, (100,), generator=generator)
        found = rs.behaviour(*(recorded(x[rows], seed) for x in (z, w)))
        covered.append(abs(found.kl - true) <= 2 * found.kl_stderr)
    assert np.mean(covered) >= 0.83  # of 0.95, less three standard errors


def test_a_network_and_itself_have_a_kl_of_zero():
    one = outputs(logits(50))
    found = row_divergences(one, one)
    assert found.kl.abs().max() == found.noise.max() == 0
    assert found.known == "estimated"


def test_probabilities_of_zero_count_as_60_nats_below():
    z = logits(40, spread=1.0)
    w = z.clone()
    w[:, 5::50] = -torch.inf  # a fiftieth of the classes is masked out
    a, b = outputs(z), outputs(w)
    found = row_divergences(a, b)
    p, q = (np.maximum(in_order(x).double().log_softmax(1).numpy(), -60) for x in (z, w))
    expected, reverse, _ = reference.divergences(p, q)
    assert float(found.kl.mean()) == pytest.approx(
        expected.mean(), abs=4 * float(found.noise[0].square().mean().sqrt()) / 40**0.5
    )
    assert found.kl.isfinite().all()
    assert float(found.reverse.mean()) == pytest.approx(
        reverse.mean(), abs=4 * float(found.noise[1].square().mean().sqrt()) / 40**0.5
    )


def test_other_signs_give_bounds_alone():
    """Sketches of other seeds, or of other samples, say nothing of each other."""
    z = logits(30)
    one = outputs(z)
    for two in (replace(one, sketch_key=one.sketch_key + 1), without_sketch(one)):
        assert row_divergences(one, two).known == "bounded"
    found = row_divergences(one, one, estimate=False)
    assert (found.known, found.noise.max()) == ("bounded", 0)


def without_sketch(one):
    return Outputs(one.classes, top=one.top, top_log_p=one.top_log_p, groups=one.groups)


# -- files --------------------------------------------------------------------------------------


class Head(nn.Module):
    """A network of 1,100 classes."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 1100)
        nn.init.normal_(self.head.weight, std=2.0)

    def forward(self, x):
        return self.head(self.body(x).tanh())


X = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
OPTIONS = {"block": 8, "gradients": False, "buckets": 0, "progress": False}


def test_shards_skips_and_resumed_passes_have_the_rows_of_one_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_MIN_PASS_TO_WRITE_TIME", 0)
    net = networks.seeded(Head)
    whole = rs.record(net, X, **OPTIONS)
    parts = [rs.record(net, X, shard=(i, 3), batch_size=8 * (i + 1), **OPTIONS) for i in range(3)]
    paths = [part.save(tmp_path / f"{i}.rsm") for i, part in enumerate(parts)]
    assert close(rs.merge(paths[::-1]).outputs, whole.outputs)
    file = tmp_path / "c"
    with pytest.raises(RuntimeError, match="stop"):
        rs.record(Stopping(net), X, checkpoint=(file, 0), name="Head", batch_size=8, **OPTIONS)
    resumed = rs.record(Stopping(net, 999), X, checkpoint=(file, 0), name="Head", **OPTIONS)
    assert close(resumed.outputs, whole.outputs)
    bad = X.clone()
    bad[7] = torch.nan
    skipped = rs.record(net, bad, on_bad="skip", **OPTIONS).outputs
    keys = set(whole.outputs.sketch_key.tolist())
    assert len(keys - set(skipped.sketch_key.tolist())) == 1
    assert not set(skipped.sketch_key.tolist()) - keys


class Stopping(nn.Module):
    """Stops after so many batches."""

    def __init__(self, net, batches=9):
        super().__init__()
        self.net, self.left = net, batches

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("stop")
        return self.net(x)


def close(one, two):
    tensors = two.tensors()
    assert one.tensors().keys() == tensors.keys()
    for name, x in one.tensors().items():
        exactly = not x.is_floating_point()
        tolerance = 0 if exactly else 1e-2 if name.startswith("sketch") else 1e-5
        assert torch.allclose(x.double(), tensors[name].double(), atol=tolerance, rtol=0), name
    return True


def test_tokens_have_signs_of_their_own_which_do_not_depend_on_batches(tmp_path):
    nets = [networks.seeded(networks.LittleForCausalLM, 1100, seed=i) for i in (0, 1)]
    data = networks.texts(40)
    how = {"tokens": 3, "block": 8, "gradients": False, "progress": False}
    a, b = (rs.record(net, data, batch_size=n, **how) for net, n in zip(nets, (5, 40), strict=True))
    assert len(set(a.outputs.sketch_key.tolist())) == 120
    found = rs.behaviour(a.save(tmp_path / "a.rsm"), b.save(tmp_path / "b.rsm"))
    rows = (a.rows.sequence >= 0).flatten()
    at = (a.rows.sequence.flatten()[rows], a.rows.position.flatten()[rows])
    with torch.no_grad():
        both = [copy.deepcopy(net).double()(data["input_ids"]).logits[at] for net in nets]
    true = reference.divergences(*(x.log_softmax(-1) for x in both)).mean(1)
    noise = row_divergences(a.outputs, b.outputs).noise.square().mean(1).sqrt() / 120**0.5
    assert found.kl == pytest.approx(true[0], abs=3 * float(noise[0]))
    assert found.kl_reverse == pytest.approx(true[1], abs=3 * float(noise[1]))
    assert found.js <= true[2] + 1e-6 <= found.js_upper + 3 * float(noise.max())


def test_files_keep_sketches_in_format_3(tmp_path):
    rep = rs.record(networks.seeded(Head), X, **OPTIONS)
    path = rep.save(tmp_path / "a.rsm")
    assert rs.load(path) == rep == pickle.loads(pickle.dumps(rep))
    assert rs.load(path).save(tmp_path / "b.rsm").read_bytes() == path.read_bytes()
    kept = sum(x.nbytes for x in rep.outputs.tensors().values()) / rep.outputs.rows
    assert kept == 64 * 12 + 256 * 4 + 2 * 512 * 2 + 4 + 8
    bare = rep.without_outputs()
    assert rs.load(bare.save(tmp_path / "c.rsm")) == bare
    old = replace(rep, outputs=without_sketch(rep.outputs))
    with pytest.raises(FormatError, match=r"outputs.top must be I64 \[150, 32\]"):
        rs.load(old.save(tmp_path / "d.rsm"))  # no version kept 64 without sketches


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"sketch_key": torch.full((150,), -1)}, "sketch_key must hold 32 bits"),
        ({"sketch_p": torch.full((150, 512), torch.inf).half()}, "sketch_p holds values"),
        ({"sketch_log_p": torch.zeros(150, 511).half()}, r"sketch_log_p must be F16 \[150, 512\]"),
        ({"mean_log_p": None}, "mean_log_p is missing"),
        ({"others": torch.zeros(150, 7).long()}, r"others must be I64 \[150, 64\]"),
    ],
)
def test_sketches_that_cannot_be_are_refused(tmp_path, edit, words):
    rep = rs.record(networks.seeded(Head), X, **OPTIONS)
    path = replace(rep, outputs=replace(rep.outputs, **edit)).save(tmp_path / "a.rsm")
    with pytest.raises(FormatError, match=words):
        rs.load(path)


def test_shards_of_which_one_is_from_before_there_were_sketches_keep_bounds(tmp_path):
    net = networks.seeded(Head)
    new, other = (rs.record(net, X, shard=(i, 2), **OPTIONS) for i in (0, 1))
    few = {name: getattr(other.outputs, name)[:, :32] for name in ("top", "top_log_p")}
    old = replace(other, outputs=Outputs(1100, **few, groups=other.outputs.groups))
    merged = rs.merge([new, old])
    assert merged.outputs.top.shape == (150, 32)
    assert rs.load(merged.save(tmp_path / "a.rsm")) == merged
    assert rs.behaviour(merged, merged).lower_bounds
