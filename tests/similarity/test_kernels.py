"""The table of what is not offered: what it names is refused in its words, all else is computed."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import resemblance as rs
from cases import named
from made_up import recorded
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.errors import DataError
from resemblance.similarity import kernels
from resemblance.similarity.indices.registry import get_index, index_names
from resemblance.similarity.kernels import ESTIMATORS, KERNELS, unsupported_combinations

INDICES, UNSUPPORTED = index_names(), unsupported_combinations()
GOLDEN = Path(__file__).parent.parent / "golden"
CENTRES = (None, True, False)
# What can be asked for, by use: kernel, index, estimator, centre.
ASKED = {
    "compare": list(itertools.product(KERNELS, INDICES, ESTIMATORS, CENTRES)),
    "compare_all": list(itertools.product(KERNELS, INDICES, ["blocks"], CENTRES)),
    "adaptation": list(itertools.product(KERNELS, ["cka"], ["blocks", "paper"], [False])),
    "ridge": list(itertools.product(KERNELS, ["cka"], ["blocks"], [False])),
}


@pytest.fixture(scope="module")
def pair():
    """Two networks on the same samples, with everything that can be recorded."""
    return [with_norms(rs.load(GOLDEN / f"{name}.rsm")) for name in "ab"]


def with_norms(rep):
    """As newer files have it: the norm of every sample, all of which are in blocks."""
    layers = []
    for layer in rep:
        kinds = {}
        for kind in layer.kinds:
            rows = zip(layer.packed_blocks(kind).diagonal, rep.block_sizes, strict=True)
            norms = torch.cat([row[:n] for row, n in rows])
            assert len(norms) == rep.samples
            kinds[kind] = replace(layer.recorded(kind), norms=norms)
        layers.append(replace(layer, **kinds))
    return replace(rep, layers=tuple(layers))


@pytest.fixture(scope="module")
def whole():
    """Two networks whose files hold the full Gram matrix, which the golden ones do not."""
    return [recorded(seed, 60) for seed in (0, 1)]


@pytest.fixture(scope="module")
def labelled():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


@pytest.fixture(scope="module")
def network():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return net


def rule_against(use, kernel, index, estimator, centre):
    """The first line of the table that names a combination, or None."""
    if centre is None:  # what `compare` documents of its default
        centre = kernel == "features" and estimator != "paper"
    for rule in UNSUPPORTED:
        if (
            use in rule.use
            and kernel in rule.kernel
            and index in rule.index
            and estimator in rule.estimator
            and centre in rule.centre
        ):
            return rule
    return None


def computed_or_refused(call, use, kernel, index="cka", estimator="blocks", centre=False):
    """What `call` returns if the table offers it, or None once it was refused as the table says."""
    rule = rule_against(use, kernel, index, estimator, centre)
    if rule is None:
        return call()
    with pytest.raises(rule.error) as caught:
        call()
    why = rule.why.format(kernel=kernel, index=index, obstacle=f"estimator is {estimator!r}")
    assert type(caught.value) is rule.error
    assert str(caught.value) == f"{why}; {rule.instead}"
    return None


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_compare_computes_what_is_offered_and_refuses_the_rest(pair, whole, kernel, estimator):
    for index, centre in itertools.product(INDICES, CENTRES):
        asked = {"kernel": kernel, "index": index, "estimator": estimator, "centre": centre}
        reps = pair if get_index(index).blocks else whole
        with named(**asked):
            found = computed_or_refused(partial(rs.compare, *reps, **asked), "compare", **asked)
            if found is not None:
                assert np.isfinite(found.scores).all()
                assert (found.kernel, found.index, found.estimator) == (kernel, index, estimator)
                assert centre is None or found.centre is centre


@pytest.mark.parametrize("kernel", KERNELS)
def test_compare_all_computes_what_is_offered_and_refuses_the_rest(pair, kernel):
    for index, centre in itertools.product(INDICES, CENTRES):
        asked = {"kernel": kernel, "index": index, "centre": centre}
        with named(**asked):
            found = computed_or_refused(
                partial(rs.compare_all, pair, **asked), "compare_all", **asked
            )
            if found is not None:
                assert np.isfinite(found.scores).all()
                assert (found.kernel, found.index) == (kernel, index)
                assert centre is None or found.centre is centre


@pytest.mark.parametrize("estimator", ["blocks", "paper"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_adaptation_computes_what_is_offered_and_refuses_the_rest(pair, kernel, estimator):
    asked = {"kernel": kernel, "estimator": estimator}
    found = computed_or_refused(lambda: rs.adaptation(pair[0], **asked), "adaptation", **asked)
    if found is not None:
        assert np.isfinite(found["norm_frobenius"]).all()
        assert (found.kernel, found.estimator) == (kernel, estimator)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_ridge_computes_what_is_offered_and_refuses_the_rest(network, labelled, kernel):
    found = computed_or_refused(
        lambda: rs.KernelClassifier(network, kernel=kernel).fit(*labelled), "ridge", kernel
    )
    assert found is None or 0 <= found.score(*labelled) <= 1
    found = computed_or_refused(
        lambda: leave_one_out(network, *labelled, kernel=kernel), "ridge", kernel
    )
    assert found is None or found.samples == 60


def test_every_rule_is_met_first_by_something_that_can_be_asked_for():
    met = {rule_against(use, *asked) for use, combos in ASKED.items() for asked in combos}
    assert met == {None, *UNSUPPORTED}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_index_that_is_offered_is_another_under_its_name(pair, whole, kernel, estimator):
    reps = whole if estimator == "blocks" else pair
    offered = [x for x in INDICES if not rule_against("compare", kernel, x, estimator, False)]
    scores = [
        rs.compare(*reps, kernel=kernel, index=index, estimator=estimator, centre=False).scores
        for index in offered
    ]
    assert len(scores) >= 3 or estimator == "ratio"
    for one, two in itertools.combinations(scores, 2):
        assert np.abs(one - two).max() > 1e-4  # far above round-off, the same numbers would be 0


def test_where_blocks_cannot_be_had_the_obstacle_is_named():
    with pytest.raises(rs.errors.MismatchError, match="rsa needs blocks of shared samples: none"):
        kernels.check_combination(
            "compare", "features", "rsa", "buckets", obstacle="none were recorded"
        )


# -- misspelt names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf"}, f"`kernel` must be one of {', '.join(KERNELS)}; found 'rbf'"),
        ({"index": "pwcca"}, f"`index` must be one of {', '.join(INDICES)}; found 'pwcca'"),
        (
            {"estimator": "best"},
            f"`estimator` must be one of auto, {', '.join(ESTIMATORS)}; found 'best'",
        ),
    ],
    ids=str,
)
def test_a_misspelt_name_lists_what_there_is(pair, options, message):
    with pytest.raises(DataError) as caught:
        rs.compare(*pair, **options)
    assert str(caught.value) == message
    with pytest.raises(DataError) as caught:
        kernels.check_names(**{"kernel": "sum", **options})
    assert str(caught.value) == message
    if "estimator" not in options:  # which lists what it takes itself
        with pytest.raises(DataError) as caught:
            rs.compare_all(pair, **options)
        assert str(caught.value).split()[-2:] == message.split()[-2:]
        assert not {"nbs", "transport"} & set(str(caught.value).replace(",", "").split())


def test_a_misspelt_kernel_is_refused_by_every_use(pair, network, labelled):
    for call in (
        lambda: rs.adaptation(pair[0], kernel="rbf"),
        lambda: rs.KernelClassifier(network, kernel="rbf").fit(*labelled),
        lambda: leave_one_out(network, *labelled, kernel="rbf"),
    ):
        with pytest.raises(DataError, match=r"`kernel` must be one of features, .* found 'rbf'"):
            call()


@pytest.mark.parametrize("estimator", ["auto", "buckets", "best"])
def test_adaptation_lists_its_own_estimators(pair, estimator):
    with pytest.raises(DataError) as caught:
        rs.adaptation(pair[0], estimator=estimator)
    message = f"`estimator` must be one of blocks, paper; found {estimator!r}"
    assert str(caught.value) == message


def test_names_that_there_are_pass():
    for names in itertools.product(KERNELS, INDICES, ["auto", *ESTIMATORS]):
        kernels.check_names(*names)
