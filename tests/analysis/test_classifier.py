"""KernelClassifier against float64 kernel ridge: exact, sketched, and every refusal."""

import numpy as np
import pytest
import torch
from torch import nn

import reference_analysis as reference
from resemblance import CountSketch, record
from resemblance.analysis.classifier import GatheredSamples, KernelClassifier, sketch_targets
from resemblance.analysis.kernel_ridge import RidgeProblem
from resemblance.analysis.layer_vectors import PassConfig, visit_batches
from resemblance.errors import DataError, LayerError, MismatchError, ResemblanceError, TargetError

N, NEW = 90, 25


@pytest.fixture(scope="module")
def task():
    """A small trained-looking network, and three classes that overlap a little."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    y = torch.arange(N + NEW) % 3
    x = torch.randn(N + NEW, 6) + 1.5 * nn.functional.one_hot(y, 6)
    return net, x[:N], y[:N], x[N:], y[N:]


def vectors(net, x, layer="1"):
    """Features and gradients in the order of the data, float64."""
    found = []

    def consume(indices, labels, layers):
        found.append((indices, layers[layer]))

    visit_batches(net, x, layer, PassConfig(("features", "gradients")), consume)
    back = np.argsort(np.concatenate([i for i, _ in found]))
    return {
        kind: torch.cat([v[kind] for _, v in found])[back].double().numpy()
        for kind in ("features", "gradients")
    }


def kernel(name, a, b):
    kinds = ("features", "gradients") if name == "product" else (name,)
    return np.prod([a[kind] @ b[kind].T for kind in kinds], axis=0)


KERNELS = ("features", "gradients", "product")


@pytest.mark.parametrize("name", KERNELS)
def test_exact_fit_is_kernel_ridge_and_its_score_is_leave_one_out(task, name):
    net, x, y, new, _ = task
    a, b = vectors(net, x), vectors(net, new)
    k, t = kernel(name, a, a), reference.one_hot(y.numpy())
    alpha = 0.3 * np.trace(k) / N
    fitted = KernelClassifier(net, layer="1", kernel=name, alpha=alpha).fit(x, y)
    assert fitted.sketch_ is None
    np.testing.assert_allclose(
        fitted.decision_function(new), reference.ridge(k, t, alpha, kernel(name, b, a)), atol=1e-5
    )
    left_out = reference.leave_one_out(k, t, alpha)
    assert fitted.loo_score_ == pytest.approx((left_out.argmax(1) == t.argmax(1)).mean())


@pytest.mark.parametrize("name", KERNELS)
def test_sketched_fits_are_their_formulas_with_a_dense_sketch(task, name):
    net, x, y, new, _ = task
    a, b = vectors(net, x), vectors(net, new)
    t = reference.one_hot(y.numpy())
    s = CountSketch(32, seed=3).matrix(np.arange(N)).double().numpy()
    bucket = {kind: s @ rows for kind, rows in a.items()}
    signs = s**2 if name == "product" else s  # a product of two signed sums has no sign left
    expected = reference.ridge(
        kernel(name, bucket, bucket), signs @ t, 0.4, kernel(name, b, bucket)
    )
    fitted = KernelClassifier(
        net, layer="1", kernel=name, alpha=0.4, sketch="both", buckets=32, seed=3
    ).fit(x, y)
    np.testing.assert_allclose(fitted.decision_function(new), expected, atol=2e-5)
    assert fitted.sketch_ == "both"
    assert 0 <= fitted.cv_score_ <= 1
    assert fitted.loo_score_ is None


@pytest.mark.parametrize("sketch", ["data", "labels"])
def test_sketches_of_one_side_are_deprecated_for_both_sides(task, sketch):
    net, x, y, new, _ = task
    options = {"layer": "1", "alpha": 0.4, "buckets": 32}
    both = KernelClassifier(net, sketch="both", **options).fit(x, y)
    with pytest.warns(DeprecationWarning, match=f"sketch='{sketch}'.*use `sketch='both'") as caught:
        old = KernelClassifier(net, sketch=sketch, **options).fit(x, y)
    assert caught[0].filename == __file__
    assert old.sketch_ == "both"
    assert (old.decision_function(new) == both.decision_function(new)).all()


def test_cross_validation_takes_a_fold_off_the_sums_exactly(task):
    """The score of a sketched fit is that of refitting without each fold."""
    net, x, y, _, _ = task
    a, t = vectors(net, x), reference.one_hot(y.numpy())
    fitted = KernelClassifier(net, layer="1", sketch="both", buckets=32, alpha=0.5).fit(x, y)
    order = []
    visit_batches(net, x, "1", PassConfig(), lambda indices, labels, layers: order.append(indices))
    position = np.concatenate(order)  # samples in the order of the pass
    hits = 0
    for fold in np.array_split(np.random.default_rng(0).permutation(N), 5):
        out = position[fold]
        kept = np.setdiff1d(np.arange(N), out)
        s = CountSketch(32).matrix(kept).double().numpy()
        f = s @ a["features"][kept]
        predicted = reference.ridge(f @ f.T, s @ t[kept], 0.5, a["features"][out] @ f.T)
        hits += (predicted.argmax(1) == t[out].argmax(1)).sum()
    assert fitted.cv_score_ == pytest.approx(hits / N)


def test_sketched_error_falls_with_the_number_of_buckets(task):
    net, x, y, new, _ = task
    exact = KernelClassifier(net, layer="1", alpha=1.0).fit(x, y).decision_function(new)
    error = [
        np.mean(
            [
                np.abs(
                    KernelClassifier(net, layer="1", alpha=1.0, sketch="both", buckets=m, seed=s)
                    .fit(x, y)
                    .decision_function(new)
                    - exact
                ).mean()
                for s in range(6)
            ]
        )
        for m in (16, 128, 4096)
    ]
    assert error[0] > error[1] > error[2]
    assert error[2] < 0.02  # 90 samples in 4096 buckets all but never meet


def test_auto_keeps_samples_until_there_are_too_many_then_sketches_all(task):
    net, x, y, new, _ = task
    options = {"layer": "1", "alpha": 0.5, "buckets": 32, "batch_size": 16}
    assert KernelClassifier(net, **options).fit(x, y).sketch_ is None
    auto = KernelClassifier(net, exact_up_to=40, **options).fit(x, y)
    both = KernelClassifier(net, sketch="both", **options).fit(x, y)
    assert auto.sketch_ == "both"
    np.testing.assert_allclose(auto.decision_function(new), both.decision_function(new), atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_representation_with_its_sums_gives_the_same_fit_as_a_pass(task, name):
    net, x, y, new, _ = task
    rep = record(net, x, buckets=32, seed=3, keep_sums=True)
    options = {"layer": "1", "kernel": name, "alpha": 0.4, "buckets": 32, "seed": 3}
    once = KernelClassifier(net, **options).fit_representation(rep, y)
    passed = KernelClassifier(net, sketch="both", **options).fit(x, y)
    np.testing.assert_allclose(
        once.decision_function(new), passed.decision_function(new), atol=1e-4
    )
    assert once.sketch_ == "both"


def test_predictions_come_in_the_order_of_the_data_whatever_its_form(task):
    net, x, y, new, true = task
    names = np.array(["a", "b", "c"])[y]
    fitted = KernelClassifier(net).fit(x, names)
    assert fitted.layer_ == "1"  # the last automatic layer
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    whole = fitted.predict(new)
    assert whole.tolist() == [fitted.predict(new[i : i + 1])[0] for i in range(NEW)]
    assert whole.tolist() == fitted.predict(iter(new.split(4))).tolist()
    assert fitted.score(new, np.array(["a", "b", "c"])[true]) == (whole == names[:NEW]).mean()
    labelled = KernelClassifier(net).fit(torch.utils.data.TensorDataset(x, y))
    assert labelled.score((new, true)) == labelled.score(new, true) > 0.6
    assert labelled.alpha_ > 0


def test_scikit_learn_can_clone_validate_and_search(task):
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV, cross_val_score

    net, x, y, _, _ = task
    classifier = KernelClassifier(net, layer="1")
    assert is_classifier(classifier)
    assert clone(classifier).get_params()["layer"] == "1"
    scores = cross_val_score(classifier, x.numpy(), y.numpy(), cv=3)
    assert scores.mean() > 0.6
    search = GridSearchCV(classifier, {"alpha": [0.1, 10.0]}, cv=2).fit(x.numpy(), y.numpy())
    assert search.best_params_["alpha"] in (0.1, 10.0)


def test_parameters_round_trip(task):
    net = task[0]
    classifier = KernelClassifier(net, alpha=2.0)
    assert classifier.set_params(alpha=3.0, layer="0") is classifier
    assert KernelClassifier(**classifier.get_params()).get_params() == classifier.get_params()
    assert "layer='0'" in repr(classifier)
    with pytest.raises(DataError, match="no parameter 'gamma'"):
        classifier.set_params(gamma=1)


def test_model_is_untouched(task):
    net, x, y, new, _ = task
    net.train()
    fitted = KernelClassifier(net, kernel="product").fit(x, y)
    fitted.predict(new)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


class Embedder(nn.Module):
    """No logits: a dict without them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, x):
        return {"embedding": self.body(x)}


def test_model_without_logits_serves_features_alone(task):
    _, x, y, _, _ = task
    model = Embedder()
    assert KernelClassifier(model, layer="body").fit(x, y).loo_score_ > 0.4
    with pytest.raises(TargetError, match="no logits"):
        KernelClassifier(model, layer="body", kernel="product").fit(x, y)


def test_bad_labels_are_refused(task):
    net, x, y, new, true = task
    fit = KernelClassifier(net, layer="1").fit
    with pytest.raises(DataError, match="two or more classes, found 1 alone"):
        fit(x, torch.ones(N).long())
    with pytest.raises(DataError, match="no sample of class 7"):
        KernelClassifier(net, layer="1", classes=[0, 1, 2, 7]).fit(x, y)
    with pytest.raises(DataError, match="samples of class 2, which is missing from `classes`"):
        KernelClassifier(net, layer="1", classes=[0, 1]).fit(x, y)
    with pytest.raises(DataError, match="found no labels"):
        fit(x)
    with pytest.raises(DataError, match="one label per sample"):
        fit(x, y[:-5])
    with pytest.raises(DataError, match="expected 90 labels"):
        fit(x, torch.cat([y, y]))
    with pytest.raises(DataError, match="not one-hot"):
        fit((x, nn.functional.one_hot(y)))
    fitted = fit(x, y)
    with pytest.raises(DataError, match="label 9 was not among the classes of fit"):
        fitted.score(new, torch.full((NEW,), 9))
    with pytest.raises(DataError, match="labels to score by"):
        fitted.score(new)
    with pytest.raises(DataError, match="expected 25 labels"):
        fitted.score(new, true[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha must be a positive"),
        ({"alpha": -1.0}, "alpha must be a positive"),
        ({"alpha": float("nan")}, "alpha must be a positive"),
        ({"kernel": "sum"}, "`kernel` must be one of"),
        ({"sketch": "all"}, "`sketch` must be one of"),
    ],
)
def test_bad_parameters_are_refused(task, options, message):
    net, x, y, _, _ = task
    with pytest.raises(DataError, match=message):
        KernelClassifier(net, layer="1", **options).fit(x, y)


def test_other_refusals(task):
    net, x, y, new, _ = task
    with pytest.raises(ResemblanceError, match="not fitted"):
        KernelClassifier(net).predict(new)
    with pytest.raises(LayerError, match="matches 0, 1"):
        KernelClassifier(net, layer="[01]").fit(x, y)
    broken = x.clone()
    broken[4] = torch.nan
    with pytest.raises(DataError, match="sample 4"):
        KernelClassifier(net, layer="1").fit(broken, y)
    flat = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(3))
    fitted = KernelClassifier(flat, layer="0").fit(x, y)
    with pytest.raises(DataError, match="width 6 as before, found 8"):
        fitted.predict(torch.randn(5, 8))


def test_bad_representations_are_refused(task):
    net, x, y, _, _ = task
    classifier = KernelClassifier(net, kernel="product", alpha=1.0)
    with pytest.raises(MismatchError, match="no accumulators of features"):
        classifier.fit_representation(record(net, x), y)
    plain = record(net, x, gradients=False, keep_sums=True)
    with pytest.raises(MismatchError, match="no accumulators of gradients"):
        classifier.fit_representation(plain, y)
    rep = record(net, x, keep_sums=True)
    with pytest.raises(DataError, match="pass `alpha`"):
        KernelClassifier(net).fit_representation(rep, y)
    with pytest.raises(DataError, match="expected 90 labels"):
        classifier.fit_representation(rep, y[:4])
    with pytest.raises(MismatchError, match="beta differs"):
        KernelClassifier(net, kernel="product", alpha=1.0, beta=0.2).fit_representation(rep, y)
    with pytest.raises(MismatchError, match="pool differs"):
        KernelClassifier(net, alpha=1.0, pool="mean").fit_representation(rep, y)
    broken = x.clone()
    broken[4] = torch.nan
    skipped = record(net, broken, keep_sums=True, on_bad="skip")
    with pytest.raises(MismatchError, match="1 samples were skipped"):
        classifier.fit_representation(skipped, y)


@pytest.mark.parametrize("width", [None, 70, 3])
def test_a_channels_last_recording_fits_as_a_pass_does(width):
    """Sums are kept as the layer's shape has them, however features lie in memory."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(120, 3, 6, 6, generator=generator)
    labels = torch.arange(120) % 3
    images += labels[:, None, None, None]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))
    predicted = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = net.to(memory_format=layout)
        rep = record(net, images[:80], keep_sums=True, max_dim=width)
        fitted = KernelClassifier(net, layer="1", alpha=1.0).fit_representation(rep, labels[:80])
        predicted.append(fitted.predict(images[80:]))
    assert rep["1"].shape == (5, 4, 4)
    assert (predicted[0] == predicted[1]).all()
    assert (predicted[0] == labels[80:].numpy()).mean() > 0.55 or width == 3


def test_reservoir_holds_any_sample_with_equal_chance():
    early = []
    for seed in range(20):
        gathered = GatheredSamples(CountSketch(4, seed), exact_up_to=0)
        for start in range(0, 3000, 500):
            rows = {"features": torch.zeros(500, 1)}
            gathered.add(np.arange(start, start + 500), rows)
        held = np.array(list(gathered.held))
        assert len(held) == 1000
        early.append((held < 1500).mean())
    assert np.mean(early) == pytest.approx(0.5, abs=0.02)  # four standard errors of 20,000 draws


def added(exact_up_to, sizes=(7, 5, 8), per_sample=1):
    """Twenty samples of two kinds, in batches, with their indices out of order."""
    generator = torch.Generator().manual_seed(0)
    rows = {kind: torch.randn(20, 3, generator=generator) for kind in ("features", "gradients")}
    indices = np.random.default_rng(0).permutation(20)
    gathered = GatheredSamples(CountSketch(8, 1, per_sample), exact_up_to)
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        gathered.add(indices[part], {k: x[part] for k, x in rows.items()})
        start += size
    return gathered, rows, indices


def test_samples_are_kept_up_to_the_limit_and_sketched_beyond():
    kept, rows, indices = added(exact_up_to=20)
    assert kept.exact
    problem = kept.problem(torch.eye(3, dtype=torch.float64)[indices % 3])
    assert all(torch.equal(x, rows[kind]) for kind, x in problem.items.items())
    sketched, _, _ = added(exact_up_to=19)
    assert not sketched.exact
    assert sketched.count == kept.count == 20


@pytest.mark.parametrize("per_sample", [1, 2])
@pytest.mark.parametrize("exact_up_to", [0, 10, 19])
def test_a_sketched_problem_is_the_dense_sketch_whenever_sketching_began(exact_up_to, per_sample):
    gathered, rows, indices = added(exact_up_to, per_sample=per_sample)
    targets = torch.eye(3, dtype=torch.float64)[indices % 3]
    S = CountSketch(8, 1, per_sample).matrix(indices).double()
    items = {kind: S @ x.double() for kind, x in rows.items()}
    expected = RidgeProblem.of_items(items, sketch_targets(targets, gathered.sketch, indices, 2))
    found = gathered.problem(targets)
    torch.testing.assert_close(found.weights(0.5), expected.weights(0.5), rtol=1e-4, atol=1e-5)


def test_held_samples_can_be_taken_off_as_if_they_had_never_come():
    gathered, rows, indices = added(exact_up_to=0)
    targets = torch.eye(3, dtype=torch.float64)[indices % 3]
    out = [2, 11, 19]
    kept = np.setdiff1d(np.arange(20), out)
    S = CountSketch(8, 1).matrix(indices[kept]).double()
    items = {kind: S @ x[kept].double() for kind, x in rows.items()}
    table = sketch_targets(targets[kept], gathered.sketch, indices[kept], 2)
    found = gathered.problem(targets, without=out).weights(0.5)
    expected = RidgeProblem.of_items(items, table).weights(0.5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
