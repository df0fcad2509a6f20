"""Estimates from blocks: exact in one, and accurate on trained networks over real digits."""

import numpy as np
import pytest
import torch
from torch import nn

import reference_compare as reference
import resemblance as rs
from made_up import recorded, related
from resemblance.errors import MismatchError
from resemblance.similarity import block_estimator as from_blocks
from resemblance.similarity.kernels import CompareConfig
from resemblance.similarity.stored_kernels import round_off_level

KERNELS = ("features", "gradients", "product", "sum", "elementwise")
EXACT = {
    "cka": reference.cka,
    "cka-debiased": reference.cka_debiased,
    "rsa": lambda a, b, centred: reference.rsa(a, b),
}


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("index", EXACT)
@pytest.mark.parametrize("name", [*KERNELS, "transport"])
def test_one_block_of_all_samples_is_exact(name, index, centre):
    n = 15  # few enough for a single block
    a, b = recorded(0, n), recorded(1, n)
    assert a.block_sizes == (n,)
    both = [related(seed, n) for seed in (0, 1)]
    if name == "transport":  # needs full rank to have a plain formula
        both = [related(seed, n, d=40) for seed in (0, 1)]
        a, b = (rs.record_arrays(f, g, data_id="wide", buckets=0) for f, g in both)
    k1, k2 = (reference.kernel(name, f["l0"], g["l0"]) for f, g in both)
    found = rs.compare(a, b, kernel=name, index=index, centre=centre, estimator="blocks")
    expected = EXACT[index](k1, k2, centred=centre)
    # 16-bit correlations are good to 1.5e-5 each
    assert found.scores[0, 0] == pytest.approx(expected, abs=2e-4)
    assert (found.stderr > 0).all()  # single samples are left out
    low, high = found.interval()
    assert ((low <= found.scores) & (found.scores <= high)).all()


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa", "nbs", "spectral"])
@pytest.mark.parametrize("name", [*KERNELS, "transport"])
def test_a_network_is_exactly_like_itself(name, index):
    a = recorded(0, 100)
    for centre in (False, True):
        found = rs.compare(a, a, kernel=name, index=index, centre=centre, estimator="blocks")
        np.testing.assert_allclose(np.diag(found.scores), 1, atol=1e-6)
        np.testing.assert_allclose(np.diag(found.stderr), 0, atol=1e-6)
        assert np.all((found.scores <= 1) & (found.scores >= -1))


def test_blocks_of_unequal_size_are_unbiased_on_average():
    n = 130  # 16 blocks of 9, the last of 4
    (f1, _), (f2, _) = related(0, n), related(1, n)
    k1, k2 = f1["l0"] @ f1["l0"].T, f2["l0"] @ f2["l0"].T
    found = []
    for seed in range(40):
        a, b = (rs.record_arrays(f, data_id="x", seed=seed, buckets=0, block=9) for f in (f1, f2))
        assert len(set(a.block_sizes)) == 2
        found.append(rs.compare(a, b, kernel="features").scores[0, 0])
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - reference.cka(k1, k2, centred=True)) < 3 * error + 0.003


def test_a_large_mean_does_not_hurt_centred_scores():
    n = 1003  # blocks of 63 and a last one of 58: shares of pairs, triples and quadruples differ
    (f1, _), (f2, _) = related(0, n), related(1, n)
    exact = reference.cka(*(f["l0"] @ f["l0"].T for f in (f1, f2)), centred=True)
    for mean in (0.0, 20.0):  # a mean of 20 spreads: 16-bit rounding still lies well below
        a, b = (rs.record_arrays({"l0": f["l0"] + mean}, data_id="x", buckets=0) for f in (f1, f2))
        found = rs.compare(a, b, kernel="features")
        assert found.scores[0, 0] == pytest.approx(exact, abs=0.02)
        assert found.stderr[0, 0] < 0.03


def test_blocks_too_small_to_centre_are_refused():
    f, _ = related(0, 40)
    a = rs.record_arrays(f, data_id="x", block=3, blocks=10, buckets=0)
    assert max(a.block_sizes) == 3
    with pytest.raises(MismatchError, match="blocks of at least 4 samples, found at most 3"):
        rs.compare(a, a, kernel="features")
    plain = rs.compare(a, a, kernel="features", centre=False)
    np.testing.assert_allclose(np.diag(plain.scores), 1, atol=1e-6)


def test_three_samples_in_all_need_no_quadruples():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    a, b = (rs.record_arrays(z, data_id="x", buckets=0) for z in (x, y))
    found = rs.compare(a, b, kernel="features")
    assert found.scores[0, 0] == pytest.approx(
        reference.cka(x @ x.T, y @ y.T, centred=True), abs=1e-3
    )


def test_short_blocks_have_no_weight_once_centred():
    weight = from_blocks.block_weights([8, 3, 1], 100, centre=True)
    assert weight.tolist() == [56, 0, 0]
    assert from_blocks.block_weights([8, 3, 1], 100, centre=False).tolist() == [56, 6, 0]


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa", "nbs", "spectral"])
@pytest.mark.parametrize("centre", [False, True])
def test_a_last_block_of_one_sample_does_no_harm(index, centre):
    a, b = (recorded(net, 136, block=9) for net in (0, 1))
    assert a.block_sizes[-2:] == (9, 1)
    found = rs.compare(a, b, kernel="features", index=index, centre=centre, estimator="blocks")
    assert np.isfinite(found.scores).all()
    assert np.isfinite(found.stderr).all()
    if found.chance is not None:
        assert np.isfinite(found.chance_high).all()


def test_kernels_of_any_scale_compare_alike():
    f, g = related(0, 150)
    h, _ = related(1, 150)
    expected = None
    for scale in (1e-12, 1.0, 1e12):
        a = rs.record_arrays({k: v * scale for k, v in f.items()}, g, data_id="x", buckets=0)
        b = rs.record_arrays(h, g, data_id="x", buckets=0)
        found = rs.compare(a, b, kernel="sum")
        expected = found if expected is None else expected
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
        np.testing.assert_allclose(found.chance_high, expected.chance_high, atol=1e-4)


@pytest.mark.parametrize("estimator", ["blocks", "ratio"])
def test_the_default_dtype_of_torch_does_not_matter(estimator):
    a, b = (recorded(seed, 1100, blocks=8, block=16, elementwise=False) for seed in (0, 1))
    asked = {"kernel": "features", "centre": False, "estimator": estimator}
    expected = rs.compare(a, b, **asked)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = rs.compare(a, b, **asked)
    finally:
        torch.set_default_dtype(usual)
    for name in ("scores", "stderr"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6)


# -- trained networks over real digits -------------------------------------------------------------

TAPS = ("act1", "act2", "act3", "act4")


class DigitNet(nn.Sequential):
    def __init__(self):
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()
        self.flat = nn.Flatten()
        self.fc, self.act4 = nn.Linear(64, 32), nn.ReLU()
        self.head = nn.Linear(32, 10)


def trained(images, labels, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = DigitNet()
        optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(5):
            for at in torch.randperm(len(images)).split(64):
                loss = nn.functional.cross_entropy(net(images[at]), labels[at])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return net.eval()


def exact_parts(net, images, beta=0.5):
    """Features and gradients at every tap in float64, by plain autograd."""
    x, kept = images.double(), {}
    double = DigitNet().double()
    double.load_state_dict(net.state_dict())
    for name, part in double.requires_grad_(False).named_children():
        x = part(x)
        if name in TAPS:
            x = kept[name] = x.requires_grad_() if x.is_leaf else x
            x.retain_grad()
    log_p = x.log_softmax(1)
    (-(x.detach() * beta).softmax(1) * log_p).sum().backward()
    return {
        name: (v.detach().flatten(1).numpy(), v.grad.flatten(1).numpy()) for name, v in kept.items()
    }


@pytest.fixture(scope="session")
def digits():
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    content = sklearn_datasets.load_digits()
    images = torch.from_numpy(content.images).float()[:, None] / 16
    labels = torch.from_numpy(content.target)
    nets = [trained(images, labels, seed) for seed in (0, 1)]
    accuracy = [float((net(images).argmax(1) == labels).float().mean()) for net in nets]
    assert min(accuracy) > 0.9
    exact = [exact_parts(net, images) for net in nets]
    options = {"layers": list(TAPS), "buckets": 0, "progress": False}
    pairs = [[rs.record(net, images, seed=seed, **options) for net in nets] for seed in range(4)]
    return exact, pairs


@pytest.mark.parametrize(
    ("kernel", "centre"), [("features", True), ("gradients", False), ("product", False)]
)
def test_block_cka_of_trained_networks_is_accurate_and_covered(digits, kernel, centre):
    (exact1, exact2), pairs = digits
    flat = []
    for parts in (exact1, exact2):
        kernels = [reference.kernel(kernel, *parts[tap]) for tap in TAPS]
        kernels = [k - k.mean(0) - k.mean(1)[:, None] + k.mean() if centre else k for k in kernels]
        flat.append(np.stack([(k / np.linalg.norm(k)).ravel() for k in kernels]))
    truth = flat[0] @ flat[1].T
    found = [rs.compare(a, b, kernel=kernel) for a, b in pairs]
    assert found[0].centre is centre
    error = np.array([c.scores - truth for c in found])
    assert np.abs(error).mean() < 0.005
    ends = [c.interval() for c in found]
    assert np.mean([(low <= truth) & (truth <= high) for low, high in ends]) >= 0.93
    # they are of these very samples, and no wider than that
    stderr = np.array([c.stderr for c in found])
    assert 0.5 < stderr.mean() / np.sqrt((error**2).mean()) < 2


@pytest.mark.parametrize("kernel", ["features", "product", "sum"])
def test_each_block_is_held_against_its_own_round_off(kernel):
    """Of blocks of very different scales, the last of them short."""
    generator = np.random.default_rng(0)
    x, g = (
        generator.normal(size=(1130, 20)) * np.exp(generator.normal(size=(1130, 1))) for _ in "ab"
    )
    reps = [
        rs.record_arrays({"a": f, "b": f**3}, {"a": g, "b": g}, data_id="x", block=100, buckets=0)
        for f in (x, x + g)
    ]
    asked = CompareConfig(kernel, "cka", True, "blocks")
    said = from_blocks._block_statistics(*reps, asked, "cpu")
    for rep, unit, found in zip(reps, said.units, said.each[4:6], strict=True):
        each = [
            round_off_level(rep, kernel, slice(b, b + 1), n) for b, n in enumerate(rep.block_sizes)
        ]
        expected = torch.stack(each) / unit[:, 0] ** 2
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
        assert (found[0] != found[1]).all()
    assert len(said.each.own1) == 12
