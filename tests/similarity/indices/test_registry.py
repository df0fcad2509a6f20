"""The registry of indices: built-in ones, those of users, and what of these cannot be had."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import reference_compare as reference
import resemblance as rs
from made_up import comparison, recorded, related
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import DataError, MismatchError
from resemblance.similarity.indices import registry
from resemblance.similarity.indices.registry import get_index, index_names, score_bounds
from resemblance.similarity.jackknife import sequence_groups
from resemblance.similarity.kernels import check_names

BUILT_IN = (
    "cca", "cka", "cka-debiased", "cknna", "distance-correlation", "jaccard", "linear-regression",
    "mutual-knn", "nbs", "procrustes", "rsa", "rsa-kendall", "rsa-spearman", "spectral", "svcca",
)  # fmt: skip


def row_cosine(k1, k2):
    """The mean over samples of the cosine of two rows."""
    norms = np.linalg.norm(k1, axis=1) * np.linalg.norm(k2, axis=1)
    return float(((k1 * k2).sum(1) / norms).mean())


@pytest.fixture
def register():
    def add(score=row_cosine, **options):
        rs.register_index("row-cosine", score, **options)

    return add


def kernels(name, n, *, centre, rows=slice(None)):
    """Kernels of each layer of two networks, over some samples of the seeded order."""
    order = seeded_permutation(n, 0)[rows]
    sides = []
    for f, g in (related(seed, n) for seed in (0, 1)):
        found = [reference.kernel(name, f[x][order], g[x][order]) for x in f]
        sides.append([reference.centre(k) if centre else k for k in found])
    return sides


def plain(name, n, *, centre, rows=slice(None)):
    one, two = kernels(name, n, centre=centre, rows=rows)
    return np.array([[row_cosine(x, y) for y in two] for x in one])


# -- which there are -------------------------------------------------------------------------------


def test_the_files_of_the_folder_are_listed_and_then_those_of_users(register):
    assert index_names() == BUILT_IN
    register()
    assert index_names() == (*BUILT_IN, "row-cosine")
    assert get_index("row-cosine").score is row_cosine


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_indices_come_from_the_registry(name, monkeypatch):
    index = get_index(name)
    assert index.name == name
    assert (index.pair_sums is None) == (bool(index.from_whole) or index.prepare is not None)
    # with another in its place, `compare` gives that one's scores
    a, b = recorded(0, 60), recorded(1, 60)
    others = {x.replace("-", "_"): get_index(x) for x in BUILT_IN}
    other = replace(
        index, pair_sums=None, from_whole=None, from_blocks=None, prepare=None, restrict=None,
        transform=None, score=lambda *_: 0.25,
    )  # fmt: skip
    monkeypatch.setattr(
        registry, "_load", lambda file: {**others, name.replace("-", "_"): other}[file]
    )
    found = rs.compare(a, b, kernel="gradients", index=name, estimator="blocks")
    np.testing.assert_array_equal(found.scores, 0.25)


def test_names_are_listed_without_torch():
    import subprocess
    import sys

    code = "import sys; from resemblance.similarity import kernels; "
    code += "from resemblance.similarity.indices.registry import index_names; "
    code += "assert 'nbs' in index_names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_name_of_none_is_refused():
    with pytest.raises(DataError, match=r"`index` must be one of cca, .*; found 'row-cosine'"):
        get_index("row-cosine")


def test_an_index_registered_again_replaces_the_first(register):
    register()
    register(lambda k1, k2: 0.5)
    a = recorded(0, 40)
    assert (rs.compare(a, a, kernel="product", index="row-cosine").scores == 0.5).all()


# -- the full Gram matrix --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "centre"), [("features", True), ("gradients", False), ("product", False)]
)
def test_scores_of_full_gram_matrices_are_the_plain_formulas(register, kernel, centre):
    register()
    a, b = recorded(0, 90), recorded(1, 90)
    found = rs.compare(a, b, kernel=kernel, index="row-cosine")
    # kernels are stored in 16 bits
    np.testing.assert_allclose(found.scores, plain(kernel, 90, centre=centre), atol=2e-4)
    assert (found.index, found.centre, found.estimator) == ("row-cosine", centre, "blocks")
    assert found.chance is None


def test_without_a_jackknife_there_is_no_standard_error_and_a_note_says_so(register):
    register()
    found = rs.compare(recorded(0, 50), recorded(1, 50), kernel="product", index="row-cosine")
    assert np.isnan(found.stderr).all()
    assert found.df is None
    assert found.replicates is None
    assert any("registered without a jackknife" in note for note in found.notes)
    assert not any(
        "standard error" in x
        for x in rs.compare(recorded(0, 50), recorded(1, 50), kernel="product").notes
    )


def test_the_jackknife_leaves_out_groups_of_samples(register):
    register(jackknife=True)
    n = 32  # as many groups as samples
    found = rs.compare(recorded(0, n), recorded(1, n), kernel="features", index="row-cosine")
    left = [plain("features", n, centre=True, rows=np.delete(np.arange(n), i)) for i in range(n)]
    spread = np.stack(left) - np.mean(left, 0)
    expected = np.sqrt((n - 1) / n * (spread**2).sum(0))
    np.testing.assert_allclose(found.stderr, expected, rtol=0.02)
    assert not any("registered without" in note for note in found.notes)


# -- blocks ----------------------------------------------------------------------------------------


def test_beyond_the_full_gram_matrix_it_is_the_mean_over_blocks(register):
    register(blocks=True)
    n, size = 1100, 128
    a, b = (recorded(seed, n, block=size) for seed in (0, 1))
    found = rs.compare(a, b, kernel="features", index="row-cosine")
    each = [
        plain("features", n, centre=True, rows=slice(start, start + size))
        for start in range(0, n - size + 1, size)  # the last block is smaller, and left out
    ]
    np.testing.assert_allclose(found.scores, np.mean(each, 0), atol=2e-4)
    error = np.std(each, 0, ddof=1) / len(each) ** 0.5  # the jackknife of a mean
    np.testing.assert_allclose(found.stderr, error, rtol=0.02)
    assert "row-cosine is the mean over blocks of samples" in found.notes


def of_tokens(seed, sequences=24, tokens=3):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    ids = torch.randint(40, (sequences, 6), generator=torch.Generator().manual_seed(1))
    options = {"layers": ["1", "2"], "buckets": 0, "block": 8, "blocks": 99, "data_id": "text"}
    return rs.record(net, ids, unit="token", tokens=tokens, **options)


def test_of_tokens_sequences_are_left_out(register):
    register(blocks=True)
    a, b = of_tokens(0), of_tokens(1)
    found = rs.compare(a, b, kernel="gradients", index="row-cosine")
    blocks = [[x.blocks("gradients").double().numpy() for x in rep] for rep in (a, b)]
    scores = np.array(
        [[[row_cosine(*ks) for ks in zip(x, y, strict=True)] for y in blocks[1]] for x in blocks[0]]
    )
    np.testing.assert_allclose(found.scores, scores.mean(-1), atol=1e-5)
    left = []
    for group in sequence_groups(a):
        rest = np.ix_(group.rest, group.rest)
        whole = np.ones(len(blocks[0][0]), dtype=bool)
        whole[group.blocks] = False
        less = np.array(
            [
                [
                    [
                        row_cosine(p[rest], q[rest])
                        for p, q in zip(x[group.blocks], y[group.blocks], strict=True)
                    ]
                    for y in blocks[1]
                ]
                for x in blocks[0]
            ]
        )
        left.append(np.concatenate([scores[..., whole], less], -1).mean(-1))
    spread = np.stack(left) - np.mean(left, 0)
    expected = np.sqrt((len(left) - 1) / len(left) * (spread**2).sum(0))
    np.testing.assert_allclose(found.stderr, expected, rtol=1e-3)


def test_another_number_of_samples_may_be_unpaired(register):
    register(blocks=True, paired=False)
    a, b = recorded(0, 1100, block=128), recorded(1, 1300, block=128)
    found = rs.compare(a, b, kernel="gradients", index="row-cosine")
    assert not found.paired
    assert np.isfinite(found.scores).all()
    assert np.isfinite(found.stderr).all()


def test_of_other_sequences_no_standard_error_is_known(register):
    register(blocks=True, paired=False)
    found = rs.compare(
        of_tokens(0), of_tokens(1, sequences=32), kernel="gradients", index="row-cosine"
    )
    assert np.isfinite(found.scores).all()
    assert np.isnan(found.stderr).all()


def test_of_two_samples_none_can_be_left_out(register):
    register(jackknife=True)
    found = rs.compare(recorded(0, 2), recorded(1, 2), kernel="gradients", index="row-cosine")
    assert np.isfinite(found.scores).all()
    assert np.isnan(found.stderr).all()


def test_a_constant_layer_has_no_score(register):
    register(blocks=True)
    for n in (60, 1100):
        f, g = related(0, n)
        f["l0"] = np.ones_like(f["l0"])
        a = rs.record_arrays(f, g, data_id=f"data of {n}", block=64)
        with pytest.warns(rs.errors.ResemblanceWarning, match="layer 'l0' of .* is constant"):
            found = rs.compare(a, a, kernel="features", index="row-cosine")
        assert np.isnan(found.scores[0]).all()
        assert found.scores[1, 1] == pytest.approx(1)


def test_blocks_without_a_score_are_left_out_of_the_mean(register):
    first = []

    def undefined_once(k1, k2):
        first.append(1)
        return math.nan if len(first) == 1 else row_cosine(k1, k2)

    register(undefined_once, blocks=True)
    n, size = 1100, 256
    a, b = (recorded(seed, n, block=size) for seed in (0, 1))
    found = rs.compare(a, b, kernel="gradients", index="row-cosine")
    rows = [slice(start, start + size) for start in range(size, n - size + 1, size)]
    each = [plain("gradients", n, centre=False, rows=x) for x in rows]
    assert found.scores[0, 0] == pytest.approx(np.mean(each, 0)[0, 0], abs=2e-4)
    assert np.isfinite(found.stderr).all()


# -- results ---------------------------------------------------------------------------------------


def test_scores_and_intervals_stay_within_the_bounds(register):
    register(lambda k1, k2: 7.0, bounds=(-2.0, 3.0))
    a, b = recorded(0, 40), recorded(1, 40)
    assert (rs.compare(a, b, kernel="product", index="row-cosine").scores == 3).all()
    found = comparison([[2.9]], index="row-cosine", stderr=np.array([[5.0]]))
    assert [float(x[0, 0]) for x in found.interval()] == [-2.0, 3.0]


def test_results_are_read_where_the_index_is_not_registered(register, tmp_path, monkeypatch):
    register(lambda k1, k2: 7.0, jackknife=True)
    found = rs.compare(recorded(0, 40), recorded(1, 40), kernel="product", index="row-cosine")
    found.save(tmp_path / "found.json")
    monkeypatch.setattr(registry, "_REGISTERED", {})
    again = rs.Comparison.load(tmp_path / "found.json")
    assert again == found
    assert score_bounds("row-cosine") == (-math.inf, math.inf)
    assert (again.interval()[1] == 7).all()


def test_the_function_may_return_an_array_of_no_dimensions_and_change_what_it_gets(register):
    def doubled(k1, k2):
        k1 *= 2
        return np.asarray(row_cosine(k1, k2))

    register(doubled)
    a, b = recorded(0, 40), recorded(1, 40)
    found = rs.compare(a, b, kernel="gradients", index="row-cosine")
    np.testing.assert_allclose(found.scores, plain("gradients", 40, centre=False), atol=2e-4)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", row_cosine), "`name` must be made of letters, digits, - and _; found ''"),
        ((7, row_cosine), "`name` must be made of letters, .* found 7"),
        (("cka", row_cosine), "'cka' is a built-in index; register yours under a different name"),
        (("mine", 0.5), "`score` must be a function of two kernels; found float"),
    ],
)
def test_what_is_no_index_is_not_registered(arguments, message):
    with pytest.raises(DataError, match=message):
        rs.register_index(*arguments)
    assert index_names() == BUILT_IN


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0,), 1.0, ("a", "b"), (0.0, math.nan)])
def test_bounds_are_two_numbers_in_order(bounds):
    with pytest.raises(DataError, match="`bounds` must be two numbers, the smaller first; found"):
        rs.register_index("mine", row_cosine, bounds=bounds)


@pytest.mark.parametrize("returned", [np.ones(2), None, "0.5", 1j], ids=str)
def test_a_function_must_return_a_number(register, returned):
    register(lambda k1, k2: returned)
    with pytest.raises(DataError, match="index 'row-cosine' must return one number, found"):
        rs.compare(recorded(0, 40), recorded(1, 40), kernel="product", index="row-cosine")


def test_larger_recordings_need_blocks(register):
    register()
    a, b = recorded(0, 1100, block=64), recorded(1, 1100, block=64)
    for estimator in ("auto", "blocks"):
        with pytest.raises(
            MismatchError, match=r"full Gram matrix .* found 1,100 and 1,100 .*blocks"
        ):
            rs.compare(a, b, kernel="product", index="row-cosine", estimator=estimator)


def test_different_samples_need_blocks_even_where_none_are_paired(register):
    register(paired=False)
    a, b = recorded(0, 40, block=16), recorded(1, 50, block=16)
    with pytest.raises(MismatchError, match=r"of the same samples, .* found 40 and 50 samples"):
        rs.compare(a, b, kernel="product", index="row-cosine")


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        ("ratio", "sample norms support plain CKA only, not row-cosine; use `index='cka'`"),
        ("buckets", "row-cosine needs blocks of shared samples: estimator is 'buckets'"),
        ("paper", "row-cosine needs blocks of shared samples: estimator is 'paper'"),
    ],
)
def test_sketches_and_norms_do_not_have_it(register, estimator, message):
    register(blocks=True)
    a, b = recorded(0, 40), recorded(1, 40)
    with pytest.raises(rs.ResemblanceError, match=message):
        rs.compare(a, b, kernel="product", index="row-cosine", estimator=estimator)


def test_different_samples_and_many_networks_do_not_have_it(register):
    register(blocks=True)
    a, b = recorded(0, 40), recorded(1, 50)
    with pytest.raises(MismatchError, match="row-cosine needs blocks of shared samples: they were"):
        rs.compare(a, b, kernel="product", index="row-cosine", unpaired=True)
    with pytest.raises(DataError, match="must be cka or cka-debiased for many networks; found 'ro"):
        rs.compare_all([a, a], kernel="product", index="row-cosine")
    with pytest.raises(DataError, match=r"`index` must be one of cca, .*, row-cosine; found 'pwcc"):
        check_names("features", "pwcca")
