"""The reproduction's chain runs from data to figures, and its parts do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import resemblance as rs

pytest.importorskip("reproduction", reason="the reproduction is not in a source package")

from reproduction import images
from reproduction.nets import ResNet
from reproduction.questions import exact, fidelity, identification, pairs
from reproduction.scale import QUICK
from reproduction.scoring import Job, Plan, _score, auc
from reproduction.training import predictions, pruned, rounded, train

ROOT = Path(__file__).parent.parent
HERE = ROOT / "reproduction"
RESULTS = (
    "networks", "pairs", "identification", "rivals", "maps", "norms", "ridge", "options", "exact",
    "fidelity", "summaries",
)  # fmt: skip
needs_results = pytest.mark.skipif(
    not (HERE / "results").exists(), reason="the kept results are not here"
)


def net(seed: int = 0, architecture: str = "resnet18") -> ResNet:
    torch.manual_seed(seed)
    return ResNet(architecture, 10, width=4).eval()


def pixels(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 8, 8, 3), dtype=torch.uint8, generator=generator)


def run(folder: Path, *steps: str) -> str:
    """What the quick chain prints; results lie in folder/out."""
    command = [sys.executable, "-m", "reproduction.run", "--quick", "--device", "cpu", *steps]
    command += ["--work-dir", folder / "work", "--out-dir", folder / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_quick_chain_runs_from_data_to_figures(tmp_path):
    """In one test, as it takes minutes: pytest's workers would each run it."""
    run(tmp_path)
    out = tmp_path / "out"
    results = {name: json.loads((out / f"{name}.json").read_text()) for name in RESULTS}
    assert all(content["environment"]["quick"] for content in results.values())

    accuracies = results["networks"]["accuracies"]
    assert accuracies["cifar10/resnet18/0"]["test"] > 0.4
    assert accuracies["cifar10/resnet18/0/int8"]["test"] > 0.4
    assert accuracies["cifar10/resnet18/0/pruned-80"]["test"] < 0.4
    assert len(accuracies) == 6 + 3 + len(QUICK.checkpoints) + 11

    for name, setting in results["pairs"]["settings"].items():
        low = -1 if "debiased" in name or "RSA" in name else 0
        values = np.array([scores["mean"] for scores in setting["scores"].values()], float)
        assert np.isfinite(values).all(), name
        assert ((values >= low) & (values <= 1)).all(), name
    kept = {row["kind"]: row for row in results["fidelity"]["networks"]}
    for kernel in ("features, centred", "gradients"):
        close, far = (kept[kind]["scores"]["natural"][kernel] for kind in ("int8", "pruned-80"))
        assert np.mean(close) > 0.9 > np.mean(far)

    batches = [o for o in results["options"]["options"] if o["option"].startswith("batches")]
    assert max(o["difference"]["largest"] for o in batches) < 1e-3
    whole = [row for row in results["exact"]["CKA"] if row["estimator"] == "blocks, 64 of 128"]
    assert max(row["mean absolute"] for row in whole) < 0.1

    wanted = {"similarity", "rivals", "norms", "ratios", "ridge", "options", "accuracy", "fidelity",
              "lineage", "layer-identification", "task-identification"}  # fmt: skip
    assert wanted <= {path.stem for path in out.glob("*.png")}
    a, b = (rs.load(out / f"cifar10_resnet18_{seed}.rsm") for seed in (0, 1))
    assert rs.compare(a, b, kernel="features").by_layer()[0][0] > 0.5

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.rsm")}
    assert "pairs.json is there already" in run(tmp_path, "pairs", "deep")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.rsm")}


@pytest.mark.slow
def test_files_of_larger_images_with_more_classes_than_labels(tmp_path):
    draw = np.random.default_rng(0)
    for name, classes in (("cifar10", 10), ("cifar100", 100), ("svhn", 10)):
        labels = np.arange(300) * classes // 300  # the first 200 lack a third of the classes
        x = draw.integers(0, 256, (300, 16, 16, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", xtr=x, ytr=labels, xte=x, yte=labels)
    run(tmp_path, "ridge", "--data-dir", str(tmp_path))
    tasks = json.loads((tmp_path / "out" / "ridge.json").read_text())["tasks"]
    assert all(0 <= row["accuracy"] <= 1 for t in tasks for row in t["ridge"]["features"])


# -- the parts ------------------------------------------------------------------------------------


def test_a_row_of_networks_is_compared_like_each_pair(tmp_path):
    x = images.inputs(pixels(64))
    files = []
    for seed in range(3):
        rep = rs.record(net(seed), x, layers=net().taps, block=16, buckets=32, data_id="x")
        files.append(rep.save(tmp_path / f"{seed}.rsm"))
    plans = (Plan("product", estimator="blocks"), Plan("features", "nbs", None, "paper"))
    found = _score(Job(tuple(files), tuple(files), 3, plans))
    a, b = rs.load(files[0]), rs.load(files[2])
    for plan, scores in zip(plans, found, strict=True):
        how = {"kernel": plan.kernel, "index": plan.index, "estimator": plan.estimator}
        one = rs.compare(a, b, **how)
        assert scores.values[0, 2] == pytest.approx(one.scores[3, 3], abs=1e-9)
        assert scores.stderr[0, 2] == pytest.approx(one.stderr[3, 3], abs=1e-9)


def test_a_row_refuses_networks_on_other_samples(tmp_path):
    files = [
        rs.record(net(), images.inputs(pixels(32)), layers=["stem"], data_id=name).save(
            tmp_path / f"{name}.rsm"
        )
        for name in ("one", "other")
    ]
    with pytest.raises(ValueError, match="other samples"):
        _score(Job(tuple(files), (files[0],), 0, (Plan("features", estimator="blocks"),)))


def test_a_layer_is_found_when_it_is_most_like_itself():
    one = np.array([[1.0, 0.5, 0.4], [0.5, 1.0, 0.6], [0.4, 0.6, 1.0]])
    assert identification.found_in_twins(np.tile(one, (2, 2)), 2).tolist() == [[1.0] * 3] * 2
    wrong = one.copy()
    wrong[0, 1] = 1.5  # layer 0 of the first looks like layer 1 of the second
    scores = np.block([[one, wrong], [wrong.T, one]])
    assert identification.found_in_twins(scores, 2).tolist() == [[0, 1, 1], [1, 0, 1]]


def test_a_group_without_networks_has_no_correlation():
    """All checkpoints may have been left out, as networks without gradients are."""
    scores = {"natural": {kernel: [0.5, 0.6] for kernel in fidelity.KERNELS}}
    one = {
        "origin": "o",
        "kind": "epoch-1",
        "scores": scores,
        **dict.fromkeys(fidelity.TRUTHS, 0.1),
    }
    for known in ([], [one]):
        for row in fidelity._fidelity(known, ["o"], depth=2):
            assert row["mean"] is None
            assert row["by layer"] == [None, None]


def test_wishes_and_auc():
    level = dict(zip(("cifar10-cifar10", "cifar100-cifar100", "svhn-svhn", "cifar10-cifar100",
                      "cifar10-svhn", "cifar100-svhn"), (0.9, 0.8, 0.7, 0.6, 0.4, 0.5),
                     strict=True))  # fmt: skip
    result = pairs.judged({k: np.full((4, 1), v) for k, v in level.items()})
    assert result["same above other"] == [True]
    assert result["near above far"] == [True]
    assert result["CIFAR-10/SVHN above CIFAR-100/SVHN"] == [False]
    assert result["auc"] == [1.0]
    assert auc(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)


def test_whole_kernels_are_those_that_blocks_hold():
    x = images.inputs(pixels(32))
    whole = exact.whole_kernels(net(), x)
    rep = rs.record(net(), x, layers=net().taps, block=32, data_id="x")
    sizes = rep.block_sizes
    for i, layer in enumerate(rep):
        for kind in ("features", "gradients"):
            trace = float(whole[kind][i].trace())
            assert layer.recorded(kind).trace == pytest.approx(trace, rel=1e-4)
    assert sum(sizes) == 32
    twin = exact.whole_kernels(net(1), x)
    k, m = whole["features"][4].double(), twin["features"][4].double()
    centred = exact.cka([exact._centred(k)], [exact._centred(m)])[0, 0]
    assert centred == pytest.approx(rs.cka(k, m), abs=1e-4)
    assert exact.nbs(k, m) == pytest.approx(rs.nbs(k, m), abs=1e-6)


@pytest.mark.parametrize(("architecture", "taps"), [("resnet18", 10), ("resnet50", 18)])
def test_networks_have_their_layers(architecture, taps):
    model = net(architecture=architecture)
    assert len(model.taps) == taps
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    shortcuts = 3 if architecture == "resnet18" else 4
    assert len(convolutions) + 1 - shortcuts == int(architecture[-2:])


def test_pruning_and_rounding_change_a_copy_alone():
    model = net()
    before = [w.clone() for w in model.state_dict().values()]
    half = pruned(model, 0.5)
    weight = half.blocks[0].body[0].weight
    assert float((weight == 0).double().mean()) == pytest.approx(0.5, abs=0.01)
    few = rounded(model, 3).blocks[0].body[0].weight[0]
    assert len(few.unique()) <= 7
    fine = rounded(model, 8).blocks[0].body[0].weight
    original = model.blocks[0].body[0].weight
    assert bool((fine - original).abs().max() <= original.abs().max() / 127)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))


def test_a_teacher_takes_the_place_of_the_labels():
    x, zeros = pixels(128), torch.zeros(128, dtype=torch.long)
    teacher = net(0)
    with torch.no_grad():
        teacher.head.bias[3] = 8.0
    how = {"epochs": 4, "batch": 32, "rate": 0.05, "seed": 0}
    taught = train(net(1), "resnet18", x, zeros, teacher=teacher, **how)
    alone = train(net(1), "resnet18", x, zeros, **how)
    assert set(predictions(taught, x).argmax(1).tolist()) == {3}
    assert set(predictions(alone, x).argmax(1).tolist()) == {0}


def test_distance_of_outputs_is_zero_for_equal_and_one_for_disjoint():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    q = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert fidelity._jensen_shannon(p, q).tolist() == pytest.approx([1.0, 0.0])


@needs_results
def test_the_kept_results_are_whole_and_of_the_full_run():
    kept = HERE / "results"
    for name in (*RESULTS, "pretrained"):
        assert not json.loads((kept / f"{name}.json").read_text())["environment"]["quick"], name
    listed = json.loads((kept / "summaries.json").read_text())["files"]
    files = sorted(kept.glob("*.rsm"))
    assert {path.name: path.stat().st_size for path in files} == listed
    assert sum(listed.values()) < 30e6
    first = rs.load(files[0])
    for path in files:  # all on the same images, so that any two can be compared
        rep = rs.load(path)
        assert rep.name.replace("/", "_") == path.stem
        assert rep.data.fingerprint == first.data.fingerprint


@needs_results
def test_the_counts_of_the_readme_come_from_the_kept_results():
    done = subprocess.run(
        [sys.executable, "-m", "reproduction.claims"],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    readme = (HERE / "README.md").read_text()
    assert "| product | 6/10 | 9/10 | 0/10 | 0.846 |" in readme
    assert "6/10  9/10  0/10  AUC 0.846" in done.stdout
    assert "| 30/30 | 30/30 | 53/54 | 54/54 |" in readme
    assert "mean_embedding smallest on own test images 53/54" in done.stdout


def test_large_images_are_shrunk_to_means_of_squares():
    x = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).view(2, 4, 4, 3)
    small = images._shrunk(x, 2)
    assert small.shape == (2, 2, 2, 3)
    assert small[1, 0, 1].tolist() == x[1, :2, 2:].float().mean((0, 1)).round().tolist()
    assert images._shrunk(x, 4) is x
