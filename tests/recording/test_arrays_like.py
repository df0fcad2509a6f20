"""Arrays with the rows of another recording, as another engine computed them."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import little_language
import resemblance as rs
from resemblance.errors import DataError, ResemblanceWarning

IDS = torch.randint(1, 300, (330, 20), generator=torch.Generator().manual_seed(0))


def rounded(net: nn.Module) -> nn.Module:
    """A copy whose weights have three bits."""
    with torch.no_grad():
        for weight in (w for w in net.parameters() if w.ndim == 2):
            step = weight.abs().max() / 4
            weight.copy_((weight / step).round() * step)
    return net


def run_in_numpy(net: nn.Module, ids: np.ndarray) -> np.ndarray:  # (length,) -> (length, classes)
    """Logits of a GPT-2 for one sequence, without PyTorch."""
    w = {name: x.numpy() for name, x in net.state_dict().items()}
    heads, length = net.config.n_head, len(ids)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:length]
    for i in range(net.config.n_layer):
        at = f"transformer.h.{i}"
        qkv = linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").reshape(length, 3, heads, -1)
        q, k, v = qkv.transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores[:, np.triu_indices(length, 1)[0], np.triu_indices(length, 1)[1]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(length, -1)
        x = x + linear(mixed, f"{at}.attn.c_proj")
        h = linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{at}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["lm_head.weight"].T


def divergence(p: Tensor, q: Tensor) -> Tensor:  # logits (rows, classes)
    log_p, log_q = F.log_softmax(p.double(), -1), F.log_softmax(q.double(), -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize("vocabulary", [300, 2000])
def test_a_language_model_run_elsewhere_at_the_positions_of_its_base(run, folder, vocabulary):
    base, copy = (little_language.gpt2(vocabulary).eval() for _ in range(2))
    rep = rs.record(base, IDS, tokens=4, block=32, blocks=24, name="base", gradients=False)
    rep.save(folder / "base.rsm")
    assert rep.samples > sum(rep.block_sizes)  # it has seen more than its blocks hold

    assert run("samples", "base.rsm", "-o", "drawn.csv")[0] == 0
    with open("drawn.csv") as file:
        drawn = [(int(row["index"]), int(row["position"])) for row in csv.DictReader(file)]
    rounded(copy)
    logits = np.empty((len(drawn), vocabulary), np.float32)
    for row, (sequence, position) in enumerate(drawn):
        logits[row] = run_in_numpy(copy, IDS[sequence].numpy())[position]
    np.savez("elsewhere.npz", outputs=logits)
    words = ("record", "--arrays", "elsewhere.npz", "--like", "base.rsm", "-o", "elsewhere.rsm")
    status, _, err = run(*words)
    assert status == 0, err
    assert "are assumed to be in the order" in err

    sequences, positions = torch.tensor(drawn).T
    assert len(set(drawn)) == len(drawn) == 24 * 32
    with torch.no_grad():
        one, two = (net(IDS).logits[sequences, positions] for net in (base, copy))
    differ = one.argmax(-1) != two.argmax(-1)
    assert 0.05 < differ.double().mean() < 0.95
    elsewhere = rs.load("elsewhere.rsm")
    found = rs.behaviour(rep, elsewhere)
    assert found.disagreement == differ.double().mean().item()
    assert found.sequences == 24 * 32 // 4
    kl = divergence(one, two)
    flips = rs.flips(rep, elsewhere)
    assert set(zip(flips.index, flips.position, strict=True)) == {
        pair for pair, other in zip(drawn, differ, strict=True) if other
    }
    next_token = [int(IDS[s, p + 1]) if p < 19 else -1 for s, p in drawn]
    labels = dict(zip(drawn, next_token, strict=True))
    assert [labels[at] for at in zip(flips.index, flips.position, strict=True)] == list(flips.label)
    if vocabulary == 300:
        assert found.kl == pytest.approx(kl.mean().item(), rel=1e-4)
        by_token = dict(zip(drawn, kl.tolist(), strict=True))
        at = zip(flips.index, flips.position, strict=True)
        assert flips.kl == pytest.approx([by_token[pair] for pair in at], rel=1e-3, abs=1e-6)
    # exactly what a recording of the copy in PyTorch would have stored
    direct = rs.record(
        copy, IDS, tokens=4, block=32, blocks=24, gradients=False, outputs_of=rep, name="copy"
    )
    same = rs.behaviour(direct, elsewhere)
    assert (same.disagreement, same.kl) == (0, pytest.approx(0, abs=1e-6))
    assert rs.behaviour(rep, direct).kl == pytest.approx(found.kl, rel=1e-3)
    verdict = rs.check(rep, elsewhere, max_disagreement=0.001)
    assert verdict.status == "failed"


@pytest.mark.parametrize("samples", [300, 700])  # fewer and more than the blocks hold
def test_samples_run_elsewhere_in_the_order_of_the_base(samples, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x, y = torch.randn(samples, 6), torch.arange(samples) % 4
    base = rs.record(net, (x, y), block=32, blocks=16, name="base")
    index = base.sample_numbers()["index"]
    assert len(index) == min(samples, 512)
    assert sorted(set(index)) == sorted(index)
    with torch.no_grad():
        outputs = net(x[index]) + 0.3 * torch.randn(len(index), 4)
    copy = rs.record_arrays(outputs=outputs, like=base, batch_size=50)
    copy.save(tmp_path / "copy.rsm")
    assert rs.load(tmp_path / "copy.rsm") == copy
    with torch.no_grad():
        truth = net(x[index])
    found = rs.behaviour(base, copy)
    assert found.disagreement == pytest.approx(
        (truth.argmax(1) != outputs.argmax(1)).double().mean().item(), abs=1e-12
    )
    assert found.kl == pytest.approx(divergence(truth, outputs).mean().item(), rel=1e-4)
    right = truth.argmax(1) == y[index], outputs.argmax(1) == y[index]
    directions = rs.flips(base, copy).directions
    assert directions["right to wrong"] == int((right[0] & ~right[1]).sum())
    assert rs.compare(base, copy).behaviour is not None


def test_features_and_gradients_of_the_samples_of_a_base():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(300, 6)
    base = rs.record(net, x, block=32)
    index = base.sample_numbers()["index"]
    f = net[:2](x[index]).detach().requires_grad_()
    z = net[2](f)
    with torch.no_grad():  # of the tempered target: its loss has this gradient at the logits
        at_logits = z.softmax(1) - (z / 2).softmax(1)
    g = torch.autograd.grad(z, f, at_logits)[0]
    features = {"1": f.detach().numpy()}
    copy = rs.record_arrays(features, {"1": g.numpy()}, outputs=z.detach(), like=base)
    assert copy.settings == base.settings
    for estimator in ("blocks", "buckets"):
        for kernel in ("features", "gradients", "product"):
            found = rs.compare(base, copy, kernel=kernel, estimator=estimator)
            assert found.scores == pytest.approx(1, abs=1e-4)
    assert (rs.coordinates(base, copy).decibels > 80).all()


def test_rows_that_cannot_be_those_of_the_base_are_refused(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x, y = torch.randn(300, 6), torch.arange(300) % 4
    base = rs.record(net, (x, y), gradients=False, name="base")
    index = base.sample_numbers()["index"]
    z = net(x[index]).detach()
    for given, message in (
        ({}, "`data_id`.*or `like`.*found neither"),
        ({"like": base, "data_id": "d"}, "found both"),
        ({"like": base, "seed": 1}, "`seed` is taken from the recording in `like`"),
    ):
        with pytest.raises(DataError, match=message):
            rs.record_arrays(outputs=z, **given)
    with pytest.raises(DataError, match=r"expected 300 rows, one for each sample.*found 299"):
        rs.record_arrays(outputs=z[:299], like=base)
    with pytest.raises(DataError, match=r"expected 4 columns.*found 3"):
        rs.record_arrays(outputs=z[:, :3], like=base)
    with pytest.raises(DataError, match=r"labels differ from those of 'base'.*in the order"):
        rs.record_arrays(outputs=z, labels=y, like=base)
    assert rs.record_arrays(outputs=z, labels=y[index], like=base).outputs.labels is not None
    few = rs.record(net, (x, y), gradients=False, block=16, blocks=4)
    rows = few.sample_numbers()["index"]
    with pytest.raises(DataError, match="enough for outputs, but not for features"):
        rs.record_arrays(x[rows], outputs=z[:64], like=few)
    x[3] = torch.nan
    skipped = rs.record(net, x, on_bad="skip", gradients=False)
    with pytest.raises(DataError, match="not known which samples"):
        rs.record_arrays(outputs=z[:299], like=skipped)


def test_tokens_without_labels_have_none_to_compare(folder):
    with pytest.warns(ResemblanceWarning, match="not masked"):
        base = rs.record(little_language.bert().eval(), IDS[:40], tokens=2)
    z = np.zeros((80, 300), np.float32)
    with pytest.raises(DataError, match="labels of tokens are taken from `like`"):
        rs.record_arrays(outputs=z, labels=np.zeros(80, int), like=base)


def test_the_command_prints_the_samples(run, refused, folder):
    run("record", "--model", "nets.py:small", "--data", "digits", "-o", "a.rsm")
    status, out, _ = run("samples", "a.rsm")
    lines = out.split()
    assert (status, lines[0], len(lines)) == (0, "index", 1798)
    assert list(map(int, lines[1:])) == rs.load("a.rsm").sample_numbers()["index"].tolist()
    np.savez("out.npz", outputs=np.zeros((5, 10)))
    words = ("record", "--arrays", "out.npz", "--like", "a.rsm", "-o", "o.rsm")
    assert "expected 1,797 rows" in refused(*words)
    assert "--like requires --arrays" in refused("record", "--like", "a.rsm", "-o", "o.rsm")
    assert "--seed is taken from the recording in --like" in refused(*words, "--seed", 3)
    assert "--data-id" in refused("record", "--arrays", "out.npz", "-o", "o.rsm")


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_rows_of_a_stream_and_of_merged_shards():
    net, x = small_network(), torch.randn(600, 6)
    how = {"gradients": False, "block": 32}
    shards = [rs.record(net, x, shard=(i, 2), **how) for i in range(2)]
    stream = rs.record(net, (batch for batch in x.split(50)), blocks=8, **how)
    assert stream.sample_numbers()["index"].tolist() == list(range(256))
    for base in (stream, rs.merge(shards)):
        outputs = net(x[base.sample_numbers()["index"]]).detach()
        found = rs.behaviour(base, rs.record_arrays(outputs=outputs, like=base))
        assert (found.disagreement, found.kl) == (0, pytest.approx(0, abs=1e-9))
    with pytest.raises(DataError, match="in shards that are not merged"):
        rs.record_arrays(outputs=net(x).detach(), like=shards[0])


def test_rows_of_samples_with_keys_are_not_known():
    def batches():
        for i in range(4):
            x = torch.randn(50, 6)
            yield {"__key__": [f"{i}-{j}" for j in range(50)], "input": x}

    base = rs.record(small_network(), batches(), gradients=False)
    assert base.data.order == "keyed"
    assert set(base.sample_numbers()["index"].tolist()) == {-1}
    with pytest.raises(DataError, match="known by keys"):
        rs.record_arrays(outputs=np.zeros((200, 4)), like=base)


def test_labels_of_a_multi_label_base():
    net, x = small_network(), torch.randn(300, 6)
    y = (net(x) > 0).long()
    base = rs.record(net, (x, y), logits="sigmoid", gradients=False)
    rows = base.sample_numbers()["index"]
    how = {"logits": "sigmoid-probabilities", "like": base}
    outputs = net(x[rows]).sigmoid().detach()
    copy = rs.record_arrays(outputs=outputs, labels=y[rows], **how)
    assert rs.behaviour(base, copy).disagreement == 0
    with pytest.raises(DataError, match="labels differ"):
        rs.record_arrays(outputs=outputs, labels=y, **how)
