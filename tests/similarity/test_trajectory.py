"""`trajectory`: the same numbers as `compare`, pair by pair and layer by layer."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_compare as reference
import resemblance as rs
from resemblance._data.load_data import load_digits_data
from resemblance.demo.digit_networks import DigitNet, pruned_copy
from resemblance.errors import DataError, MismatchError, ResemblanceWarning

# what is said of so few samples is tested on its own
pytestmark = pytest.mark.filterwarnings("ignore:.*standard errors may be too small")


def vectors(n, i, layers=2):
    """Features and gradients at checkpoint i: they leave where they began, later layers faster."""
    start, way = np.random.default_rng(0).normal(size=(2, 2, layers, n, 5))
    return [
        {f"l{k}": start[kind, k] + 0.2 * i * (k + 1) * way[kind, k] for k in range(layers)}
        for kind in range(2)
    ]


def run(n, *, checkpoints=4, layers=2, gradients=True, **options):
    options = {"data_id": "x", "buckets": 0, **options}
    every = (vectors(n, i, layers)[: 2 if gradients else 1] for i in range(checkpoints))
    return [rs.record_arrays(*each, name=f"c{i}", **options) for i, each in enumerate(every)]


def tokens():
    """Three networks that read tables of tokens, fifty-six sequences of eight."""

    class Table(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(448, 6), torch.nn.Linear(6, 3)
            weights = torch.randn(448, 6, generator=torch.Generator().manual_seed(seed))
            common = torch.randn(448, 6, generator=torch.Generator().manual_seed(9))
            self.table.weight.data = common + weights

        def forward(self, ids):
            return self.head(self.table(ids))

    ids = torch.arange(448).view(56, 8)
    options = {"layers": ["table"], "unit": "token", "tokens": 2, "gradients": False, "buckets": 0}
    return [rs.record(Table(seed), ids, name=f"t{seed}", **options) for seed in range(3)]


KEPT = {
    "whole": lambda: run(60),
    "blocks": lambda: run(330, block=16, blocks=16),
    "of many": lambda: run(1500, block=32, blocks=20),
    "tokens": tokens,
}


@pytest.mark.parametrize("kept", KEPT)
def test_scores_and_errors_are_those_of_compare(kept):
    reps = KEPT[kept]()
    found = rs.trajectory(reps)
    courses = list(found.courses())
    assert [course.kernel for course in courses] == ["features", "gradients"][: len(courses)]
    assert found.features.estimator == "blocks"
    if found.gradients is not None:
        assert found.gradients.estimator == ("ratio" if kept == "of many" else "blocks")
    for course in courses:
        for i, j in ((0, 1), (2, 0), (1, 2)):
            options = {"kernel": course.kernel, "estimator": course.estimator}
            one = rs.compare(reps[i], reps[j], **options)
            value, error, _ = one.by_layer()
            np.testing.assert_allclose(course.scores[:, i, j], value, atol=1e-6)
            np.testing.assert_allclose(course.stderr[:, i, j], error, atol=1e-6)
            if i == 0:
                np.testing.assert_allclose(course.replicates[..., j], one.replicates, atol=1e-6)
    np.testing.assert_allclose(found.features.scores[:, 1, 1], 1, atol=1e-6)


def test_whole_kernels_give_the_plain_formula():
    found = rs.trajectory(run(60))
    made = [vectors(60, i) for i in (1, 2)]
    for kind, course in enumerate(found.courses()):
        for k, layer in enumerate(found.layers):
            kernels = (each[kind][layer] @ each[kind][layer].T for each in made)
            expected = reference.cka(*kernels, centred=course.kernel == "features")
            assert course.scores[k, 1, 2] == pytest.approx(expected, abs=1e-4)  # of 16 bits


def test_some_layers_whole_and_some_in_blocks_leave_out_the_same():
    """As in files where one layer holds the kernel of all samples, and another does not."""
    whole, blocks = (
        run(64, block=16, **options) for options in ({}, {"blocks": 4, "gradients": False})
    )
    blocks = [_in_blocks(rep) for rep in blocks]
    reps = [replace(a, layers=(a[0], b[1])) for a, b in zip(whole, blocks, strict=True)]
    reps = [replace(rep, layers=(replace(rep[0], gradients=None), rep[1])) for rep in reps]
    found = rs.trajectory(reps)
    one = rs.compare(reps[0], reps[2], kernel="features")
    np.testing.assert_allclose(found.features.scores[:, 0, 2], one.by_layer()[0], atol=1e-6)
    np.testing.assert_allclose(found.features.stderr[:, 0, 2], one.by_layer()[1], atol=1e-6)
    assert found.features.replicates.shape == (4, 2, 4)


def _in_blocks(rep):
    def cut(recorded):
        return replace(recorded, whole=None, blocks=recorded.whole.blocks)

    return replace(rep, layers=tuple(replace(x, features=cut(x.features)) for x in rep))


# -- real networks ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """A network on handwritten digits at six steps of its training, and the network."""
    images, labels = load_digits_data()
    x, y, seen = images[:600], labels[:600], images[600:900]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, reps = DigitNet(10), []
        optimiser = torch.optim.Adam(net.parameters(), lr=4e-3)
        for step in range(61):
            if step in (0, 2, 5, 15, 30, 60):
                reps.append(rs.record(net, seen, name=f"step {step}"))
            optimiser.zero_grad()
            some = torch.randint(600, (64,))
            torch.nn.functional.cross_entropy(net(x[some]), y[some]).backward()
            optimiser.step()
    return net, seen, reps


def test_training_settles_from_the_input_on(trained):
    _, _, reps = trained
    found = rs.trajectory(reps, steps=[0, 2, 5, 15, 30, 60])
    settled = found.features.settled()
    assert list(settled) == sorted(settled)  # Raghu et al. 2017: layers converge bottom up
    assert settled[0] < settled[-1]
    last = found.features.against_last()[0]
    assert (last[:, -2] > last[:, 0]).all()
    wrong = found.behaviour.disagreement[:, -1]
    assert wrong[0] > 0.5 > wrong[-2] > wrong[-1] == 0
    summary = found.summary()
    assert "from then on): act1" in summary
    assert "Predictions that differ from those of the last checkpoint (300 samples): " in summary
    assert len(found.plot().axes) == 6  # four maps, their scale, and the predictions


def test_copies_pruned_ever_more_give_a_curve_of_where_they_part(trained):
    net, seen, reps = trained
    parts = (0.1, 0.5, 0.9)
    copies = [
        rs.record(pruned_copy(copy.deepcopy(net), part), seen, name=f"{part}") for part in parts
    ]
    found = rs.trajectory([reps[-1], *copies], steps=[0.0, *parts])
    for kernel in ("features", "gradients"):
        curve = found.parting(kernel)
        assert len(curve) == 3
        for one, copied in zip(curve, copies, strict=True):
            alone = rs.compare(reps[-1], copied, kernel=kernel).parting()
            assert (one.layer, one.position) == (alone.layer, alone.position)
            if alone.found:
                assert (one.fall, one.low) == pytest.approx((alone.fall, alone.low), rel=1e-3)
    falls = [each.fall or 0.0 for each in found.parting("gradients")]
    assert falls == sorted(falls)
    assert falls[-1] > 0.5
    assert "gradients diverge from checkpoint 0.0" in found.summary()


# -- what is said, and refused ---------------------------------------------------------------------


def test_steps_are_names_numbers_or_words():
    reps = run(30, checkpoints=3, layers=1)
    assert rs.trajectory(reps).steps == ("c0", "c1", "c2")
    assert rs.trajectory([reps[0], reps[0], reps[1]]).steps == (0, 1, 2)
    given = rs.trajectory(reps, steps=np.array([10, 20, 30])).steps
    assert given == (10, 20, 30)
    assert all(type(step) is int for step in given)
    assert rs.trajectory(reps, steps=["a", 0.5, 2]).steps == ("a", 0.5, 2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([1, 2], "steps` must be different for each of 3 recordings; found"),
        ([1, 2, 2], "steps` must be different for each of 3 recordings; found"),
        ("abc", "steps` must be a list of numbers or strings, one per recording; found 'abc'"),
        (3, "steps` must be a list of numbers or strings, one per recording; found 3"),
        ([1, 2, True], "a step must be a finite number or a string; found True"),
        ([1, 2, np.nan], "a step must be a finite number or a string; found nan"),
        ([1, 2, None], "a step must be a finite number or a string; found None"),
    ],
)
def test_other_steps_are_refused(steps, message):
    with pytest.raises(DataError, match=message):
        rs.trajectory(run(30, checkpoints=3, layers=1), steps=steps)


def test_one_checkpoint_or_other_data_are_refused():
    reps = run(30, layers=1)
    with pytest.raises(DataError, match="at least two networks"):
        rs.trajectory(reps[:1])
    with pytest.raises(MismatchError, match="'c0' and 'c1' were recorded on different"):
        rs.trajectory([reps[0], run(31, layers=1)[1]])


def test_other_layers_are_matched_by_position_or_refused():
    one, two = run(30, checkpoints=2)
    renamed = replace(two, layers=tuple(replace(x, name=f"x{x.name}", bare_name="") for x in two))
    found = rs.trajectory([one, renamed])
    assert (found.matched_by, found.layers) == ("position", ("l0", "l1"))
    assert rs.trajectory([one, two]).matched_by == "name"
    with pytest.raises(MismatchError, match=r"found networks of 2 to 5 layers.*compare_all"):
        rs.trajectory([renamed, run(30, layers=5)[1]])


def test_gradients_that_some_lack_are_left_out_with_a_word():
    with_them, without = run(30), run(30, gradients=False)
    mixed = [with_them[0], replace(without[1], settings=with_them[0].settings), *with_them[2:]]
    found = rs.trajectory(mixed)
    assert found.gradients is None
    assert "Note: gradients are not compared: c1 was recorded without them." in found.summary()
    assert rs.trajectory(without).notes == ()


def test_a_constant_layer_is_named_once_and_has_no_score():
    reps = run(40, checkpoints=2, gradients=False)
    flat = {"l0": np.ones((40, 5)), "l1": np.random.default_rng(1).normal(size=(40, 5))}
    reps.insert(1, rs.record_arrays(flat, name="flat", data_id="x", buckets=0))
    with pytest.warns(ResemblanceWarning, match="layer 'l0' of 'flat' is constant") as seen:
        found = rs.trajectory(reps)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert np.isnan(found.features.scores[0, 1]).all()
    assert found.features.settled()[0] is None
    assert "layer 'l0' of 'flat' is constant" in found.summary()
    found.plot()


@pytest.mark.filterwarnings("default:.*standard errors may be too small")
def test_error_bars_that_cannot_be_trusted_are_named_once():
    rng = np.random.default_rng(0)
    heavy = np.where(np.arange(700) % 100 == 0, 100.0, 1.0)[:, None]  # seven carry everything
    x = rng.normal(size=(700, 5)) * heavy
    moved = (x + i * rng.normal(size=x.shape) for i in range(2))
    reps = [rs.record_arrays(each, data_id="x", buckets=0) for each in moved]
    with pytest.warns(
        ResemblanceWarning, match="some standard errors may be too small, of feat"
    ) as w:
        rs.trajectory(reps)
    assert len(w) == 1
