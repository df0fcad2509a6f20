"""Estimates from blocks: unbiased by enumeration, and on trained networks over real digits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import reference_compare as reference
import resemblance as rs
from resemblance.errors import MismatchError
from resemblance.similarity import block_estimates as from_blocks
from resemblance.similarity import chance_level as chance
from resemblance.similarity import pair_sums as block_sums

KERNELS = ("features", "gradients", "product", "sum", "elementwise")


def population(seed, n=7, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + 1, rng.normal(size=(n, d)) + 0.5


def packed(k):  # (n, n) -> (1, t), (1, n)
    k = torch.from_numpy(k)
    rows, columns = torch.tril_indices(len(k), len(k), -1)
    return k[rows, columns][None], k.diagonal()[None].clone()


def sums_of(k1, k2):
    return block_sums.pair_sums(*(block_sums.side(*packed(k)) for k in (k1, k2)))


def subsets(n, size):
    return [list(chosen) for chosen in itertools.combinations(range(n), size)]


# -- no bias: the mean over all blocks is the value for all samples --------------------------------


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [4, 5, 7])
def test_inner_product_over_all_blocks_averages_to_the_exact_one(name, size, centre):
    k1, k2 = (reference.kernel(name, *population(seed)) for seed in (0, 1))
    found = [
        float(
            block_sums.inner_product(
                sums_of(k1[np.ix_(at, at)], k2[np.ix_(at, at)]), size, 7, centre=centre
            )
        )
        for at in subsets(7, size)
    ]
    assert np.mean(found) == pytest.approx(reference.inner(k1, k2, centred=centre), rel=1e-9)


@pytest.mark.parametrize("centre", [False, True])
def test_debiased_inner_product_is_a_u_statistic(centre):
    k1, k2 = (reference.kernel("product", *population(seed)) for seed in (0, 1))
    form = reference.hsic if centre else reference.pairs
    for size in (4, 6, 7):
        found = []
        for at in subsets(7, size):
            one, two = k1[np.ix_(at, at)], k2[np.ix_(at, at)]
            value = float(block_sums.inner_product(sums_of(one, two), size, np.inf, centre=centre))
            assert value == pytest.approx(form(one, two), rel=1e-9)
            found.append(value)
        assert np.mean(found) == pytest.approx(form(k1, k2), rel=1e-9)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_covariance_over_all_blocks_averages_to_the_exact_one(size):
    x, y = (reference.distances(reference.kernel("features", *population(s))) for s in (0, 1))
    rows, columns = np.tril_indices(7, -1)
    square1, square2 = np.zeros((7, 7)), np.zeros((7, 7))
    for square, values in ((square1, x), (square2, y)):
        square[rows, columns] = square[columns, rows] = values
    found = [
        float(
            block_sums.covariance(
                sums_of(square1[np.ix_(at, at)], square2[np.ix_(at, at)]), size, 7
            )
        )
        for at in subsets(7, size)
    ]
    assert np.mean(found) == pytest.approx(np.mean(x * y) - x.mean() * y.mean(), rel=1e-9)


def test_own_sums_are_pair_sums_with_oneself():
    k = reference.kernel("product", *population(0))
    own = block_sums.own_sums(block_sums.side(*packed(k)))
    torch.testing.assert_close(own[:, 0], sums_of(k, k)[:, 0, 0, 0])


@pytest.mark.parametrize("samples", [6, 50, np.inf])
def test_levelling_changes_no_centred_estimate(samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=6)) for seed in (0, 1))
    one, two = packed(k1), packed(k2)
    plain = block_sums.pair_sums(block_sums.side(*one), block_sums.side(*two))
    level = [block_sums.level(*x) for x in (one, two)]
    again = block_sums.side(*level[0][:2])
    assert max(float((x - y).abs().max()) for x, y in zip(level[0], again, strict=True)) < 1e-9
    expected = block_sums.inner_product(plain, 6, samples, centre=True)
    found = block_sums.inner_product(block_sums.pair_sums(*level), 6, samples, centre=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("samples", [5, 40, np.inf])
@pytest.mark.parametrize("form", ["plain", "centred", "covariance"])
def test_permuted_sums_are_the_mean_over_all_permutations(form, samples):
    k1, k2 = (reference.kernel("product", *population(seed, n=5)) for seed in (0, 1))
    if form == "covariance":
        samples = 40

    def combine(sums):
        if form == "covariance":
            return float(block_sums.covariance(sums, 5, samples))
        return float(block_sums.inner_product(sums, 5, samples, centre=form == "centred"))

    every = [
        combine(sums_of(k1, k2[np.ix_(order, order)])) for order in itertools.permutations(range(5))
    ]
    expected = combine(chance.permuted_sums(sums_of(k1, k2), 5))
    assert expected == pytest.approx(np.mean(every), rel=1e-9, abs=1e-9)
    if form == "centred" and samples == np.inf:
        assert expected == pytest.approx(0, abs=1e-9)  # the debiased index has no chance level


def test_drawn_permutations_permute_rows_and_columns_alike():
    """Two blocks of three layers in four orders, each against the permuted square matrix."""
    kernels = [reference.kernel("product", *population(seed, n=5)) for seed in range(6)]
    triangles, diagonals = (torch.cat(x) for x in zip(*map(packed, kernels), strict=True))
    orders = chance.orders(2, 4, 5, torch.Generator().manual_seed(0))
    found = chance.permuted(block_sums.side(triangles, diagonals), orders)
    assert [len(x) for x in found] == [24] * 5
    expected = [
        packed(kernels[3 * block + layer][np.ix_(order, order)])
        for block in range(2) for order in orders[block].numpy() for layer in range(3)
    ]  # fmt: skip
    again = block_sums.side(*(torch.cat(x) for x in zip(*expected, strict=True)))
    for one, two in zip(found, again, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("draws", [2, 4, 16])
def test_the_spread_of_few_draws_a_block_is_that_of_all(draws):
    """The 95 % quantile of a weighted mean of independent normal blocks is 1.645 √Σw²."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 20, 20, draws, generator=generator).double() + 3
    share = torch.linspace(1, 2, 60).double()
    share /= share.sum()
    found = chance.spread(values, share, generator)
    expected = 1.645 * float(share.square().sum().sqrt())
    assert float(found.mean()) == pytest.approx(expected, rel=0.03)


# -- whole estimates -------------------------------------------------------------------------------


def related(seed, n, d=6, layers=2):
    """Features and gradients of layers that share a hidden cause; seeds share it too."""
    cause = np.random.default_rng(99).normal(size=(n, 4))
    rng = np.random.default_rng(seed)
    f = {f"l{i}": cause @ rng.normal(size=(4, d)) + rng.normal(size=(n, d)) for i in range(layers)}
    g = {f"l{i}": cause @ rng.normal(size=(4, d)) + rng.normal(size=(n, d)) for i in range(layers)}
    return f, g


def recorded(seed, n, *, name="net", **options):
    f, g = related(seed, n)
    options = {"buckets": 64, "data_id": f"data of {n}", "elementwise": True, **options}
    return rs.record_arrays(f, g, name=name, **options)


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
    assert np.isnan(found.stderr).all()  # one block leaves nothing to leave out


@pytest.mark.parametrize("index", ["nbs", "spectral"])
@pytest.mark.parametrize("centre", [False, True])
def test_one_block_gives_the_exact_nbs_and_spectrum(index, centre):
    a, b = recorded(0, 15), recorded(1, 15)
    k1, k2 = (reference.kernel("gradients", *(x["l0"] for x in related(s, 15))) for s in (0, 1))
    if centre:
        k1, k2 = reference.centre(k1), reference.centre(k2)
    found = rs.compare(a, b, kernel="gradients", index=index, centre=centre, estimator="blocks")
    expected = getattr(reference, index)(k1, k2)
    assert found.scores[0, 0] == pytest.approx(expected, abs=2e-3)  # roots of round-off count


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa", "nbs", "spectral"])
@pytest.mark.parametrize("name", [*KERNELS, "transport"])
def test_a_network_is_exactly_like_itself(name, index):
    a = recorded(0, 100)
    for centre in (False, True):
        found = rs.compare(a, a, kernel=name, index=index, centre=centre, estimator="blocks")
        np.testing.assert_allclose(np.diag(found.scores), 1, atol=1e-6)
        np.testing.assert_allclose(np.diag(found.stderr), 0, atol=1e-6)
        assert np.all((found.scores <= 1) & (found.scores >= -1))


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa"])
def test_how_many_blocks_are_taken_at_a_time_does_not_matter(index, monkeypatch):
    a, b = (recorded(seed, 100, block=8, name=f"{seed}") for seed in (0, 1))  # the last is shorter
    found = []
    for rows in (1, 6, 1000):
        monkeypatch.setitem(from_blocks._ROWS, "cpu", rows)
        found.append(rs.compare(a, b, index=index))
    for other in found[1:]:
        for name in ("scores", "stderr", "chance", "chance_high"):
            np.testing.assert_allclose(getattr(other, name), getattr(found[0], name), atol=1e-6)


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


@pytest.mark.parametrize("index", ["cka", "cka-debiased", "rsa", "nbs", "spectral"])
def test_a_layer_lost_in_round_off_is_called_constant(index):
    rng = np.random.default_rng(0)
    f = {"flat": 1 + 1e-5 * rng.normal(size=(200, 5)), "alive": rng.normal(size=(200, 5))}
    a = rs.record_arrays(f, data_id="x", buckets=0, name="net")
    with pytest.warns(rs.errors.ResemblanceWarning, match="layer 'flat' of 'net' is constant") as w:
        found = rs.compare(a, a, kernel="features", index=index, centre=True, estimator="blocks")
    assert len(w) == 1
    assert np.isnan(found.scores[0]).all()
    assert np.isnan(found.scores[:, 0]).all()
    assert found.scores[1, 1] == pytest.approx(1, abs=1e-6)


def test_blocks_too_small_to_centre_are_refused():
    f, _ = related(0, 40)
    a = rs.record_arrays(f, data_id="x", block=3, buckets=0)
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
    weight = from_blocks.weights([8, 3, 1], 100, centre=True)
    assert weight.tolist() == [56, 0, 0]
    assert from_blocks.weights([8, 3, 1], 100, centre=False).tolist() == [56, 6, 0]


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


def test_unpaired_spectra_add_their_variances():
    f, _ = related(0, 200)
    h, _ = related(1, 200)
    a = rs.record_arrays(f, data_id="x", buckets=0)
    b, c = (rs.record_arrays(h, data_id=name, buckets=0) for name in ("x", "y"))
    together = rs.compare(a, b, kernel="features", index="spectral")
    apart = rs.compare(a, c, kernel="features", index="spectral")
    np.testing.assert_array_equal(together.scores, apart.scores)
    assert (apart.stderr > 0).all()
    assert not np.allclose(apart.stderr, together.stderr)
    fewer = replace(
        c,
        block_sizes=c.block_sizes[:1],
        block_numbers=c.block_numbers[:1],
    )
    assert np.isnan(rs.compare(a, fewer, kernel="features", index="spectral").stderr).all()


def test_nbs_from_blocks_lies_above_that_of_all_samples():
    f, _ = related(0, 400)
    h, _ = related(1, 400)
    a, b = (rs.record_arrays(x, data_id="x", buckets=0) for x in (f, h))
    found = rs.compare(a, b, kernel="features", index="nbs")
    whole = reference.nbs(*(reference.centre(x["l0"] @ x["l0"].T) for x in (f, h)))
    assert found.scores[0, 0] > whole
    assert any("lies above" in note for note in found.notes)


# -- chance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["features", "product"])
@pytest.mark.parametrize("n", [64, 512, 4096])
def test_independent_features_sit_at_the_stated_chance_level(n, kernel):
    layers = 16  # 256 pairs of layers, nearly independent of each other
    rng = np.random.default_rng(n)
    make = lambda: {f"l{i}": rng.normal(size=(n, 6)).astype(np.float32) for i in range(layers)}  # noqa: E731
    a, b = (rs.record_arrays(make(), make(), data_id="x", buckets=0) for _ in range(2))
    found = rs.compare(a, b, kernel=kernel, centre=True)
    # a mean of 256 scores: three of its standard errors, and what cutting at zero adds to it
    tolerance = 3 * found.scores.std() / layers + 5e-4
    assert abs((found.scores - found.chance).mean()) < tolerance
    above = (found.scores > found.chance_high).mean()
    assert 0.015 < above < 0.095  # 5 % of 256, give or take three standard errors


def test_the_chance_level_of_a_pair_of_layers_is_its_own():
    """The same permutations are drawn for any number of layers, so each pair may stand alone."""
    a, b = recorded(0, 200, block=20), recorded(1, 200, block=20)
    b = replace(b, layers=(*b.layers, replace(a.layers[0], name="third")))  # 2 × 3 layers
    whole = rs.compare(a, b, kernel="features")
    for i, one in enumerate(a.layers):
        for j, other in enumerate(b.layers):
            alone = rs.compare(
                replace(a, layers=(one,)), replace(b, layers=(other,)), kernel="features"
            )
            assert whole.chance_high[i, j] == pytest.approx(alone.chance_high[0, 0], abs=1e-6)


def test_the_debiased_index_has_no_chance_level():
    rng = np.random.default_rng(0)
    a, b = (rs.record_arrays(rng.normal(size=(400, 30)), data_id="x", buckets=0) for _ in "ab")
    found = rs.compare(a, b, kernel="features", index="cka-debiased")
    assert found.chance[0, 0] == pytest.approx(0, abs=1e-9)
    assert abs(found.scores[0, 0]) < 4 * found.stderr[0, 0]
    plain = rs.compare(a, b, kernel="features")
    assert plain.chance[0, 0] > 0.05  # 30 directions and 400 samples


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
    stderr = np.array([c.stderr for c in found])
    assert np.abs(error).mean() < 0.005
    assert (np.abs(error) <= 2 * stderr).mean() >= 0.93
