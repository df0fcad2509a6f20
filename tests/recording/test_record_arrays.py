"""Representations of arrays that come from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import networks
import reference
import resemblance as rs
import stored
from resemblance.errors import DataError, ResemblanceWarning, TargetError

G = torch.Generator().manual_seed(0)
VECTORS = torch.randn(40, 6, generator=G)


def mlp(seed=0):
    return networks.seeded(networks.MLP, seed=seed)


def test_the_size_of_a_representation_does_not_grow_with_samples():
    x = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32)
    small, large = (
        rs.record_arrays(x[:n], data_id="x", block=16, blocks=8, buckets=32) for n in (400, 4000)
    )
    before, after = (stored.tensors(rep["features"]) for rep in (small, large))
    assert before.keys() == after.keys()
    for key, tensor in before.items():  # but for the norm of each sample, which is bounded as well
        assert tensor.shape == after[key].shape or key == "features.norms"


def test_arrays_give_what_the_pass_gives():
    net = mlp().eval()
    seen = {"act1": [], "act2": []}
    for name in seen:
        getattr(net, name).register_forward_hook(
            lambda _, __, out, name=name: seen[name].append(out.clone())
        )
    with torch.no_grad():
        net(VECTORS)
    features = {name: value[0] for name, value in seen.items()}
    expected = rs.record(mlp(), VECTORS, gradients=False, data_id="probe")
    for arrays in (features, {k: v.numpy() for k, v in features.items()}):
        stored.assert_same(rs.record_arrays(arrays, data_id="probe"), expected, tolerance=2e-5)


def test_arrays_with_gradients_match_the_reference(tmp_path):
    rng = np.random.default_rng(0)
    f, g = rng.normal(size=(2, 40, 3, 2)).astype(np.float32)
    np.save(tmp_path / "f.npy", f)
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    rep = rs.record_arrays({"a": mapped}, {"a": g}, data_id="x", elementwise=True, target="mine")
    assert rep.settings.target == "mine"
    assert stored.moments(rep["a"]) == pytest.approx(
        reference.moments(f, g, elementwise=True), rel=1e-5
    )
    h, s = (part.numpy() for part in rs.CountSketch().assign(range(40)))
    by_hand = reference.algorithm_1(g.reshape(40, -1), h, s, 512)
    assert reference.close(rep["a"].buckets("gradients"), by_hand, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_arrays_of_any_dtype(dtype):
    x = (VECTORS * 10).to(dtype).requires_grad_(dtype.is_floating_point)
    rep = rs.record_arrays(x, data_id="x")
    expected = float((x.detach().double() ** 2).sum())
    assert rep["features"].features.trace == pytest.approx(expected, rel=1e-5)
    assert rep.made.dtype == str(dtype).removeprefix("torch.")
    one_column = rs.record_arrays(x.detach()[:, 0], data_id="x")
    assert one_column["features"].dim == 1


class LaidOut(np.ndarray):
    """An array that says how it lies in memory, as those of JAX do."""

    layout = "row by row"


def test_arrays_with_a_layout_of_their_own_are_dense():
    plain = rs.record_arrays(np.ones((60, 3)), data_id="x", name="a")
    other = rs.record_arrays(np.ones((60, 3)).view(LaidOut), data_id="x", name="a")
    assert other.layers == plain.layers


def test_array_shards_and_bad_rows():
    x = VECTORS.clone()
    whole = rs.record_arrays(x, data_id="x", block=8)
    parts = [rs.record_arrays(x, data_id="x", block=8, shard=(i, 2)) for i in range(2)]
    stored.assert_same(rs.merge(parts), whole, tolerance=2e-5)
    x[3] = float("nan")
    assert rs.record_arrays(x, data_id="x", on_bad="skip").data.skipped == 1
    x[7] *= 1e25  # finite, but its square is not
    assert rs.record_arrays(x, data_id="x", on_bad="skip").data.skipped == 2
    with pytest.raises(DataError, match="layer 'features' at sample 3"):
        rs.record_arrays(x, data_id="x")


@pytest.mark.parametrize(
    ("features", "gradients", "message"),
    [
        ({}, None, "arrays of equal length, found none"),
        ({"a": VECTORS, "b": VECTORS[:3]}, None, "arrays of equal length, found {'a': 40, 'b': 3}"),
        ({"a": VECTORS}, {"b": VECTORS}, "gradients of the same layers"),
        (VECTORS, VECTORS[:, :2], r"found {'features': \(40, 2\)} for {'features': \(40, 6\)}"),
        (VECTORS[:0], None, "the data set is empty"),
    ],
)
def test_arrays_that_cannot_be(features, gradients, message):
    with pytest.raises(DataError, match=message):
        rs.record_arrays(features, gradients, data_id="x")


# -- outputs --------------------------------------------------------------------------------------


def _network_and_data():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x, y = torch.randn(700, 6), torch.arange(700) % 4
    with torch.no_grad():
        return net, x, y, net(x)


@pytest.mark.parametrize("features", [True, False])
def test_outputs_from_elsewhere_are_compared_with_a_recorded_network(features, tmp_path):
    net, x, y, z = _network_and_data()
    a = rs.record(net, (x, y), data_id="d", gradients=False)
    moved = z + 0.5 * torch.randn_like(z)
    given = {"features": {"1": net[:2](x).detach()}} if features else {}
    b = rs.record_arrays(**given, outputs=moved.numpy(), labels=y.numpy(), data_id="d", name="b")
    assert b.layer_names == (["1"] if features else ["outputs"])
    found = rs.behaviour(a, b)
    assert found.disagreement == (z.argmax(1) != moved.argmax(1)).double().mean().item()
    kl = torch.nn.functional.kl_div(
        moved.double().log_softmax(1), z.double().log_softmax(1), reduction="batchmean",
        log_target=True,
    )  # fmt: skip
    assert found.kl == pytest.approx(kl.item(), rel=1e-5)
    right = z.argmax(1) == y, moved.argmax(1) == y
    flips = rs.flips(a, b)
    assert flips.directions["right to wrong"] == int((right[0] & ~right[1]).sum())
    assert rs.check(a, b, max_disagreement=0.001).status == "failed"
    b.save(tmp_path / "b.rsm")
    assert rs.load(tmp_path / "b.rsm") == b


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_the_command_records_a_file_of_arrays(ending, run, folder):
    net, x, y, z = _network_and_data()
    rs.record(net, (x, y), data_id="d", gradients=False, name="base").save(folder / "base.rsm")
    arrays = {"outputs": z, "labels": y, "features.1": net[:2](x).detach()}
    if ending == "npz":
        np.savez(folder / "out.npz", **{key: array.numpy() for key, array in arrays.items()})
    else:
        save_file(arrays, folder / "out.safetensors")
    words = ("record", "--arrays", f"out.{ending}", "--data-id", "d", "-o", "out.rsm")
    assert run(*words)[0] == 0
    found = rs.load(folder / "out.rsm")
    expected = rs.record_arrays(arrays["features.1"], outputs=z, labels=y, data_id="d", name="out")
    assert found.layer_names == ["1"]
    assert torch.equal(found.outputs.every, expected.outputs.every)
    assert torch.equal(found.outputs.labels, expected.outputs.labels)
    status, out, _ = run("check", "base.rsm", "out.rsm", "--max-disagreement", 0.02)
    assert (status, "out passes as a copy of" in out) == (0, True)


def test_the_command_says_that_a_file_holds_outputs_only(run, folder):
    np.savez(folder / "out.npz", outputs=np.random.default_rng(0).normal(size=(60, 4)))
    status, out, _ = run("record", "--arrays", "out.npz", "--data-id", "d", "-o", "o.rsm")
    assert (status, out.split(", ")[1]) == (0, "outputs only")


def test_the_command_says_what_is_wrong_with_a_file_of_arrays(refused, folder):
    np.savez(folder / "x.npz", x=np.zeros((4, 2)))
    np.savez(folder / "out.npz", outputs=np.zeros((60, 2)))
    (folder / "bad.npz").write_bytes(b"no")
    end = ("--data-id", "d", "-o", "o.rsm")
    assert "holds 'x'; expected outputs, labels" in refused("record", "--arrays", "x.npz", *end)
    assert "not a readable .npz" in refused("record", "--arrays", "bad.npz", *end)
    assert "no file at none.npz" in refused("record", "--arrays", "none.npz", *end)
    assert "arrays need --data-id" in refused("record", "--arrays", "out.npz", "-o", "o.rsm")
    assert "nothing to record: give --model and --data, or --arrays" in refused(
        "record", "-o", "o.rsm"
    )
    for option in (("--model", "nets.py:small"), ("--beta", 0.3), ("--features-only",)):
        said = refused("record", "--arrays", "out.npz", *option, *end)
        assert said.startswith(f"{option[0]} has no effect with --arrays")


def test_outputs_may_be_probabilities_of_labels():
    net, x, _, z = _network_and_data()
    y = (z > 0).long()
    a = rs.record(net, (x, y), data_id="d", gradients=False, logits="sigmoid")
    b = rs.record_arrays(outputs=z.sigmoid(), labels=y, data_id="d", logits="sigmoid-probabilities")
    assert rs.behaviour(a, b).disagreement == 0
    assert rs.behaviour(a, b).js < 1e-9


def test_probabilities_that_were_floored_are_reported():
    p = _network_and_data()[3].softmax(1)
    p[3] = torch.tensor([1.0, 0, 0, 0])
    with pytest.warns(ResemblanceWarning, match=r"3 of 2,800 probabilities are below 1e-07"):
        rs.record_arrays(outputs=p, data_id="d", logits="probabilities")


def test_outputs_that_are_not_what_they_are_said_to_be_are_refused():
    z = _network_and_data()[3]
    with pytest.raises(TargetError, match='Pass `logits="probabilities"`'):
        rs.record_arrays(outputs=z.softmax(1), data_id="d")
    with pytest.raises(TargetError, match='Pass `logits="sigmoid-probabilities"`'):
        rs.record_arrays(outputs=z.sigmoid(), data_id="d")
    with pytest.raises(TargetError, match="outside"):
        rs.record_arrays(outputs=z, data_id="d", logits="probabilities")
    late = z.softmax(1)
    late[-1] = 3.0  # seen in some later batch
    with pytest.raises(TargetError, match=r"do not sum to one|outside"):
        rs.record_arrays(outputs=late, data_id="d", logits="probabilities", batch_size=32)


def test_what_is_missing_or_of_another_length_is_named():
    z = _network_and_data()[3]
    with pytest.raises(DataError, match="expected features or outputs"):
        rs.record_arrays(data_id="d")
    with pytest.raises(DataError, match="'outputs': 700, 'labels': 3"):
        rs.record_arrays(outputs=z, labels=np.zeros(3, int), data_id="d")
    with pytest.raises(DataError, match=r"one prediction for each sample.*\(700, 3, 4\)"):
        rs.record_arrays(outputs=z[:, None].repeat(1, 3, 1), data_id="d")
    bad = z.clone()
    bad[5, 1] = torch.nan
    with pytest.raises(DataError, match="NaN or Inf"):
        rs.record_arrays(outputs=bad, data_id="d")
    kept = rs.record_arrays(outputs=bad, data_id="d", on_bad="skip")
    assert (kept.samples, kept.outputs.rows) == (699, 699)
