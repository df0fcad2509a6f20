"""The rebuilt tests of ReSi: batched indices, what is recorded, measures of quality, the chain."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product as pairs_of
from pathlib import Path

import numpy as np
import pytest
import torch

import resemblance as rs
from resemblance.similarity.indices.registry import get_index, index_names

pytest.importorskip("reproduction", reason="the reproduction is not in a source package")

from reproduction.resi import coverage, designs, indices, quality, scores
from reproduction.resi.data import PACKAGES, Samples, load, pack_images, pack_text
from reproduction.resi.families import FAMILIES, LAYERS, build, inputs
from reproduction.resi.training import Recipe, Slot, train_together
from reproduction.resi.vectors import TARGETS, Vectors, pooled

ROOT = Path(__file__).parent.parent


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def three_kernels(kind: str) -> indices.Kernels:
    """Of three related layers of 40 samples; more than that many directions in a product."""
    f = random(40, 6, seed=1) + 0.7 * random(3, 40, 6, seed=2) + 1.0
    g = random(40, 9, seed=3) + 0.7 * random(3, 40, 9, seed=4)
    if kind == "features":
        return indices.features_like(f, centred=True)
    if kind == "gradients":
        return indices.features_like(g, centred=False)
    return indices.product(f, g)


def by_the_library(index: str, k: indices.Kernels, i: int, j: int) -> float:
    """A score by the library's own function of two kernels."""
    entry = get_index(index)
    centre = k.centred if entry.centre is None else entry.centre
    each = [(k.middle if centre else k.square)[a] for a in (i, j)]
    assert entry.score is not None
    if entry.prepare is not None:
        floors = [float(indices.visible_from(x[None])) for x in each]
        ready = [entry.prepare(x, floor) for x, floor in zip(each, floors, strict=True)]
        score = float(entry.score(*ready))
    else:
        score = float(entry.score(*(x.numpy() for x in each)))
    return float(entry.transform(np.array(min(score, 1.0)))) if entry.transform else score


@pytest.mark.parametrize("kind", ["features", "gradients", "product"])
@pytest.mark.parametrize(
    "index", [name for name in indices.INDICES if get_index(name).score is not None]
)
def test_batched_scores_are_those_of_the_librarys_functions(index, kind):
    k = three_kernels(kind)
    found = indices.INDICES[index](k)
    for i, j in pairs_of(range(3), repeat=2):
        assert float(found[i, j]) == pytest.approx(by_the_library(index, k, i, j), abs=1e-6)


@pytest.mark.parametrize("kind", ["features", "gradients", "product"])
@pytest.mark.parametrize(
    "index", [name for name in indices.INDICES if get_index(name).score is None]
)
def test_batched_sums_are_those_of_compare(index, kind):
    """Through recordings, whose kernels are rounded to 16 bits."""
    f = random(60, 6, seed=1) + 0.7 * random(3, 60, 6, seed=2) + 1.0
    g = random(60, 6, seed=3) + 0.7 * random(3, 60, 6, seed=4)
    made = [rs.record_arrays(a.float(), b.float(), data_id="x") for a, b in zip(f, g, strict=True)]
    k = {
        "features": lambda: indices.features_like(f, centred=True),
        "gradients": lambda: indices.features_like(g, centred=False),
        "product": lambda: indices.product(f, g),
    }[kind]()
    found = indices.INDICES[index](k)
    for i, j in pairs_of(range(3), repeat=2):
        score = rs.compare(made[i], made[j], kernel=kind, index=index).scores[0, 0]
        assert float(found[i, j]) == pytest.approx(float(score), abs=1e-3)


def test_every_index_of_the_library_is_compared():
    assert set(indices.INDICES) == set(index_names())


def test_ties_share_their_mean_rank():
    ranks = indices.mean_ranks(torch.tensor([[3.0, 1.0, 3.0, 2.0]]))
    assert ranks.tolist() == [[3.5, 1.0, 3.5, 2.0]]


def test_the_polar_iteration_gives_nuclear_norms_of_any_shape_and_rank():
    wide = random(2, 5, 12)
    low = random(2, 12, 2) @ random(2, 2, 12, seed=1)
    for m in (wide, wide.mT, low):
        expected = torch.linalg.svdvals(m).sum(-1)
        torch.testing.assert_close(indices.nuclear_norms(m), expected, rtol=1e-6, atol=0)


def test_factors_have_the_spectrum_of_their_kernel():
    k = three_kernels("features")
    whole = indices.Kernels(k.square, None, centred=True)
    for centred in (True, False):
        torch.testing.assert_close(k.spectrum(centred)[0], whole.spectrum(centred)[0])


# -- networks --


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", TARGETS)
def test_vectors_are_those_that_record_takes(family, target):
    """Scores from pooled vectors equal those of files, at every layer."""
    nets = [build(family, seed, tiny=True).eval() for seed in (0, 1)]
    shape = (24, 128) if family == "transformer" else (24, 32, 32, 3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 128, shape, dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (24,), generator=generator)
    options = {"target": "labels"} if target == "labels" else {"beta": float(target[5:])}
    made = [
        rs.record(
            net, (inputs(x), y), layers=[f"layers.{i}" for i in range(LAYERS)], pool="mean",
            elementwise=True, data_id="x", **({"unit": "sample"} if len(shape) == 2 else {}),
            **options,
        )
        for net in nets
    ]  # fmt: skip
    found = [pooled(net, x, y) for net in nets]
    for layer in range(LAYERS):
        f = torch.stack([a[0][layer] for a in found])
        g = torch.stack([a[1][target][layer] for a in found])
        ours = {
            "features": indices.features_like(f, centred=True),
            "gradients": indices.features_like(g, centred=False),
            "product": indices.product(f, g),
            "sum": indices.total(f, g),
            "elementwise": indices.features_like(f * g, centred=False),
        }
        for kernel, k in ours.items():
            score = rs.compare(*made, kernel=kernel).scores[layer, layer]
            assert float(indices.cka(k)[0, 1]) == pytest.approx(float(score), abs=2e-3), kernel


def small_samples(text: bool = False) -> Samples:
    generator = torch.Generator().manual_seed(0)
    shape = (60, 128) if text else (60, 32, 32, 3)
    x = torch.randint(32, 127, shape, dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (60,), generator=generator)
    return Samples(x[:40], y[:40], x[40:], y[40:])


@pytest.mark.parametrize("family", FAMILIES)
def test_training_fits_a_few_samples_and_depends_on_the_seed_alone(family):
    samples = small_samples(family == "transformer")
    adam = family == "transformer"
    recipe = Recipe(60, 20, 5e-3 if adam else 0.1, decay=0.0, adam=adam, mirror=False)
    slots = [
        Slot(family, recipe, samples.x_train, rows=40, tiny=True, graph=False) for _ in range(2)
    ]
    still = designs.Plan(samples.x_train[:10], samples.y_train[:10], 10, augmented=False)
    other = designs.Plan(samples.x_train, samples.y_train, 40)
    first = [x.clone() for x in train_together(slots, [still, other], [3, 4])[0].parameters()]
    assert float(slots[0].lost) < 1.0  # from log 10
    again = train_together(slots[1:], [still], [3])[0].parameters()
    torch.testing.assert_close(first, list(again))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_on_a_gpu_train_as_eager_steps_do(family):
    samples = small_samples(family == "transformer").to(torch.device("cuda"))
    recipe = Recipe(40, 20, 1e-3 if family == "transformer" else 0.05, adam=family == "transformer")
    slot = Slot(family, recipe, samples.x_train, rows=40, tiny=True, graph=True)
    assert slot.differs(designs.Plan(samples.x_train, samples.y_train, 40)) == ""


def test_the_default_crop_is_the_image_itself():
    samples = small_samples()
    slot = Slot(
        "vgg", Recipe(1, 20, 0.1), samples.x_train, rows=40, tiny=True, graph=False
    )  # fmt: skip
    slot.load(designs.Plan(samples.x_train, samples.y_train, 40, augmented=False), seed=0)
    rows = slot.rows[0]
    torch.testing.assert_close(slot._batch(rows), inputs(samples.x_train[rows]))


# -- designs --


def test_labels_are_drawn_anew_to_a_share_and_for_each_network():
    y = torch.zeros(1000, dtype=torch.int64)
    assert (designs.random_labels(y, 0.0, 0) == y).all()
    changed = (designs.random_labels(y, 0.5, 0) != 0).float().mean()
    assert 0.4 < float(changed) < 0.5  # a tenth of those drawn are the old ones
    samples = small_samples()
    own, shared = (
        [designs.plan(name, designs.Member(4, seed), samples).y for seed in (0, 1)]
        for name in ("labels", "labels-shared")
    )
    assert not torch.equal(*own)
    assert torch.equal(*shared)


@pytest.mark.parametrize("text", [False, True])
def test_marks_name_the_class_in_training_and_nothing_in_the_probe(text):
    samples = small_samples(text)
    x = samples.x_train
    marked = designs.marked(x, samples.y_train, 1.0, seed=1)
    changed = (marked != x).flatten(1).float().mean(1)
    assert (changed > 0).all()
    assert float(changed.max()) < 0.05
    if text:
        assert torch.equal(marked[:, 0].long() - 128, samples.y_train)
        probe = designs.probe("shortcuts", samples, 20)[0][:, 0].long() - 128
        assert float((probe == samples.y_test).float().mean()) < 0.5


def test_designs_have_every_group_in_each_round_of_seeds():
    made = designs.members("labels", 2)
    assert [m.group for m in made] == [0, 1, 2, 3, 4] * 2
    seeds = [
        designs.network_seed(name, m) for name in designs.DESIGNS for m in designs.members(name, 5)
    ]
    assert len(set(seeds)) == len(seeds) == 110


# -- quality --


def ones(count: int) -> np.ndarray:
    return np.ones((1, count))


def test_average_precision_by_hand():
    """Right, wrong, right, wrong from the top: (1 + 2/3) / 2."""
    score, positive = np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False])
    found = quality.average_precision(score, positive, ones(4))
    assert found == pytest.approx([5 / 6])
    tied = quality.average_precision(np.zeros(4), positive, ones(4))
    assert tied == pytest.approx([0.5])
    unknown = np.array([np.nan, 0.8, 0.7, 0.1])
    assert quality.average_precision(unknown, positive, ones(4)) == pytest.approx([0.5])


def test_average_precision_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    score, positive = generator.integers(0, 12, 40) / 12, generator.random(40) < 0.3
    weights = generator.integers(0, 3, (2, 40)).astype(float)
    expected = [metrics.average_precision_score(positive, score, sample_weight=w) for w in weights]
    assert quality.average_precision(score, positive, weights) == pytest.approx(expected)


def test_groups_are_separated_perfectly_or_by_chance():
    groups = np.repeat([0, 1], 3)
    perfect = (groups[:, None] == groups).astype(float)
    assert quality.group_separation(perfect, groups, ones(6)) == pytest.approx([1.0])
    # 3 pairs inside and 9 across, all alike
    assert quality.group_separation(np.ones((6, 6)), groups, ones(6)) == pytest.approx([0.25])


def test_the_jackknife_has_the_variance_of_a_mean_of_seeds():
    values = np.array([0.0, 1.0, 3.0, 4.0, 7.0])
    weights = quality.leave_one_out(5)
    means = (weights * values).sum(1) / weights.sum(1)
    variance, freedom = quality.jackknife_variance(means, np.zeros(5, int))
    assert variance == pytest.approx(values.var(ddof=1) / 5)
    assert freedom == 4


def test_an_interval_is_that_of_students_t():
    stats = pytest.importorskip("scipy.stats")
    values = np.array([0.0, 1.0, 3.0, 4.0, 7.0])
    weights = quality.leave_one_out(5)
    means, groups = (weights * values).sum(1) / weights.sum(1), np.zeros(5, int)
    value, low, high = quality.interval_of_mean([means], [groups])
    expected = stats.ttest_1samp(values, 0.0).confidence_interval()
    assert (value, low, high) == pytest.approx((3.0, expected.low, expected.high))
    _, low, high = quality.interval_of_mean([means, means + 1], [groups, groups])
    other = stats.ttest_ind(values, -values - 1, equal_var=False).confidence_interval()
    assert (low, high) == pytest.approx((other.low / 2, other.high / 2))


def test_groups_are_strata_of_the_jackknife():
    groups = np.repeat([0, 1], 3)
    apart = np.where(groups == 0, 0.0, 9.0)
    weights = quality.leave_one_out(6)
    found = (weights * apart).sum(1) / weights.sum(1)
    assert quality.jackknife_variance(found, groups)[0] == pytest.approx(0)


def test_leaving_a_network_out_does_not_change_the_share_of_pairs_inside_a_group():
    """Scores that say nothing have an AUPRC of that share."""
    groups = np.repeat([0, 1], 5)
    found = quality.group_separation(np.ones((10, 10)), groups, quality.leave_one_out(10))
    assert found == pytest.approx(10 / 35)


@pytest.mark.parametrize("test", ["AUPRC", "Spearman"])
def test_the_simulation_of_coverage_compares_both_kinds_of_intervals(test):
    found = coverage.simulate(test, "strong", trials=10, draws=20)
    assert len(found) == 4
    assert all(0.5 < x["coverage"] <= 1 and x["width"] > 0 for x in found.values())


def test_chance_is_what_networks_in_random_order_score():
    groups = np.repeat([0, 1], 5)
    perfect = (groups[:, None] == groups).astype(float)
    found = quality.chance_of_separation(perfect, groups, 200)
    assert 0.28 < found.mean() < 0.4
    at = np.arange(8.0)
    differences = np.abs(at[:, None] - at)
    found = quality.chance_of_correlation(-differences, differences, 200)
    assert abs(found.mean()) < 0.1
    assert found.max() > 0.3


def test_weighted_spearman_is_that_of_repeated_pairs():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 6, (2, 12)), generator.random(12)
    weights = generator.integers(0, 3, (3, 12))
    found = quality.spearman(x.astype(float), y, weights.astype(float))
    for v, b in pairs_of(range(2), range(3)):
        repeated = [np.repeat(a, weights[b]) for a in (x[v], y)]
        assert found[v, b] == pytest.approx(stats.spearmanr(*repeated).statistic)


def test_layers_that_grow_apart_are_monotonic():
    at = np.arange(5)
    scores = -np.abs(at[:, None] - at[None, :]).astype(float)
    assert quality.monotonicity(scores[None]) == pytest.approx([1.0])
    assert quality.violations(scores[None]) == pytest.approx([0.0])
    assert quality.monotonicity(-scores[None]) == pytest.approx([-1.0])
    assert quality.violations(-scores[None]) == pytest.approx([1.0])


def test_correlation_follows_the_difference():
    at = np.array([0.0, 1.0, 3.0, 7.0])
    differences = np.abs(at[:, None] - at)
    found = quality.correlation_with(-differences[None], differences, ones(4))
    assert found == pytest.approx(np.array([[1.0]]))


def test_predictions_diverge_by_their_mean_js():
    p = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]])
    found = scores.js(p.log())
    assert float(found[0, 1]) == pytest.approx(np.log(2))
    assert float(found[0, 0]) == 0
    assert scores.disagreement(p.log())[0].tolist() == [0.0, 1.0, 0.0]


# -- the chain --


def run(module: str, *words: object) -> str:
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def packed(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (280, 32, 32, 3), dtype=np.uint8)
    y = generator.integers(0, 10, 280)
    np.savez(folder / "images.npz", xtr=x[:200], ytr=y[:200], xte=x[200:], yte=y[200:])
    pack_images(folder / "images.npz", folder / "packed.npz", 200, 80)
    found = load(folder / "packed.npz")
    assert torch.equal(found.x_train, torch.from_numpy(x[:200]))
    assert torch.equal(found.y_test, torch.from_numpy(y[200:]))
    return folder / "packed.npz"


@pytest.mark.slow
def test_the_tiny_chain_runs_from_images_to_a_page(tmp_path):
    data, out = packed(tmp_path), tmp_path / "out"
    words = ("--tiny", "--device", "cpu", "--data", data, "--out", out)
    designs_run = ("--designs", "base", "shortcuts")
    stopped = run("reproduction.resi", "vgg", *words, *designs_run, "--minutes", 0)
    assert "still missing: base, shortcuts" in stopped
    told = run("reproduction.resi", "vgg", *words, *designs_run)
    assert "all designs are there" in told
    assert "!!" not in told
    again = run("reproduction.resi", "vgg", *words, *designs_run)
    assert "networks" not in again
    run("reproduction.resi", "resnet", *words, *designs_run)

    run("reproduction.resi.judge", out, "--to", tmp_path / "results", "--draws", 20)
    content = json.loads((tmp_path / "results" / "resi.json").read_text())
    assert set(content["tests"]) == {
        "accuracy", "js", "disagreement", "shortcuts", "monotonicity",
    }  # fmt: skip
    rows = content["tests"]["shortcuts"]["held out"]["any"]
    assert [row["judged on"] for row in rows] == ["resnet", "vgg"]
    assert 0 <= rows[0]["gradients"]["value"][0] <= 1
    assert rows[0]["variants"] > 1000
    page = (tmp_path / "results" / "resi.md").read_text()
    assert "## In short" in page
    assert "## shortcuts" in page
    assert "What failed" not in page
    shortcuts = content["tests"]["shortcuts"]
    assert shortcuts["chance"]["vgg"]["mean"] > 0
    assert set(shortcuts["contrasts"]["beta 0 above beta 0.5"]["last"]) == {"resnet", "vgg", "mean"}


def test_an_index_that_fails_is_reported_and_the_others_go_on(monkeypatch, capsys):
    def broken(_: indices.Kernels) -> torch.Tensor:
        raise RuntimeError("no such thing")

    monkeypatch.setitem(indices.INDICES, "cka", broken)
    f = [random(20, 4, seed=i).float() for i in range(2)]
    networks = [
        Vectors([x], {t: [x] for t in TARGETS}, torch.zeros(20, 2).log_softmax(1), 0.5, 0.5)
        for x in f
    ]
    found = scores.between_networks(networks, ["cka", "rsa"])
    assert "features|rsa" in found.arrays
    assert "features|cka" not in found.arrays
    assert found.errors[0] == {
        "index": "cka", "at": "features, layer 0", "error": "RuntimeError: no such thing",
    }  # fmt: skip
    assert "cka failed" in capsys.readouterr().out


def test_a_file_of_other_data_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", xtr=np.zeros(3))
    with pytest.raises(SystemExit, match=r"packed by .* without x_test"):
        load(tmp_path / "x.npz")


def test_text_is_windows_of_packages_with_files_held_out(tmp_path):
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        for i in range(4):
            (tmp_path / package / f"m{i}.py").write_text(f"{package} {i} " * 40)
    pack_text(tmp_path / "text.npz", 100, 20, library=tmp_path)
    samples = load(tmp_path / "text.npz")
    assert samples.is_text
    assert samples.x_train.shape == (100, 128)
    windows = {bytes(x.tolist()) for x in samples.x_train}
    assert not windows & {bytes(x.tolist()) for x in samples.x_test}
