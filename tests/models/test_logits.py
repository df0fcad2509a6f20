"""What outputs are taken for, what is refused, and what may be passed instead."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import networks
import resemblance as rs
from resemblance._models.logits import LOGITS_MODES, PROBABILITY_FLOOR, LogitsReader
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.errors import DataError, ResemblanceError, ResemblanceWarning, TargetError

G = torch.Generator().manual_seed(0)
X, IMAGES = torch.randn(60, 6, generator=G), torch.randn(20, 3, 6, 6, generator=G)
MULTI_HOT = (torch.rand(60, 5, generator=G) < 0.4).float()


class Then(networks.MLP):
    """A function, and no module, comes after the last layer."""

    def __init__(self, function, **sizes):
        super().__init__(**sizes)
        self.function = function

    def forward(self, x):
        return self.function(super().forward(x))


def then(function, **sizes):
    """With logits that are spread as those of a trained network: 1 in standard deviation."""
    net = networks.seeded(lambda: Then(function, **sizes))
    with torch.no_grad():
        z = networks.MLP.forward(net, X)
        net.head.weight *= 1 / z.std(0).mean()
    return net


class Configured(networks.MLP):
    def __init__(self, kind):
        super().__init__()
        self.config = SimpleNamespace(problem_type=kind)


def ended(module):
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 5), module)


AUTOENCODER = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
SIGMOID = 'logits="sigmoid-probabilities"'
CASES = {  # network, data, why it is refused, the remedy, whether outputs are predictions
    "labels of regression": (networks.MLP(), (X, torch.randn(60, 5)), "real numbers", None),
    "configured regression": (Configured("regression"), X, "is for regression", None),
    "autoencoder": (AUTOENCODER, IMAGES, "shape of the input", None),
    "embedding": (then(lambda z: F.normalize(z, dim=-1)), X, "length one", None),
    "relu": (ended(nn.ReLU()), X, "ends in ReLU", None),
    "multi-hot labels": (networks.MLP(), (X, MULTI_HOT), "0 or 1 for each", 'logits="sigmoid"'),
    "one-hot labels": (
        networks.MLP(),
        (X, F.one_hot(torch.arange(60) % 5)),
        "0 or 1 for each",
        'logits="softmax"',
    ),
    "configured labels": (
        Configured("multi_label_classification"),
        X,
        "several labels",
        'logits="sigmoid"',
    ),
    "softmax": (ended(nn.Softmax(1)), X, "sum to one", 'logits="probabilities"'),
    "functional softmax": (
        then(lambda z: z.softmax(1)),
        X,
        "sum to one",
        'logits="probabilities"',
    ),
    "bfloat16 softmax": (
        then(lambda z: z.softmax(1).bfloat16(), classes=40),
        X,
        "sum to one",
        'logits="probabilities"',
    ),
    "sigmoid": (ended(nn.Sigmoid()), X, "lie in [0, 1]", SIGMOID),
    "functional sigmoid": (then(torch.sigmoid), X, "lie in [0, 1]", SIGMOID),
    "sigmoid in place": (then(torch.sigmoid_), X, "lie in [0, 1]", SIGMOID),
    "few samples": (then(torch.sigmoid, classes=2), X[:12], "lie in [0, 1]", SIGMOID),
    "many labels": (then(torch.sigmoid, classes=360), X, "lie in [0, 1]", SIGMOID),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_that_are_no_logits_are_refused_with_the_reason_and_the_remedy(case):
    net, data, why, remedy = CASES[case]
    with pytest.raises(TargetError) as error:
        rs.record(net, data)
    assert why in str(error.value)
    assert f"`{remedy or 'gradients=False'}`" in str(error.value)


@pytest.mark.parametrize("case", CASES)
def test_features_alone_are_recorded_and_predictions_left_out_are_named(case):
    net, data, _, remedy = CASES[case]
    if remedy is None:  # nothing that could be a prediction
        rep = rs.record(net, data, gradients=False)
    else:
        with pytest.warns(ResemblanceWarning, match=r"predictions are not recorded") as warned:
            rep = rs.record(net, data, gradients=False)
        assert remedy in str(warned[0].message)
    assert rep.predictions is None
    assert (rep.embeddings is not None) == (case == "embedding")
    assert rep.made.logits == "none"
    silent = rs.record(net, data, gradients=False, logits="none")
    assert (silent.predictions, silent.made.logits) == (None, "none")
    assert (silent.embeddings is not None) == (case != "autoencoder")  # one vector a sample


@pytest.mark.parametrize("case", [case for case in CASES if "softmax" not in case])
def test_they_are_recorded_where_the_caller_says_that_they_are_logits(case):
    net, data, *_ = CASES[case]
    count = len(data[0] if isinstance(data, tuple) else data)
    assert rs.record(net, data, logits=lambda z: z).samples == count

    def squares(outputs, batch):
        return outputs.flatten(1).square().sum(1)

    assert rs.record(net, data, target=squares).made.logits is None


def test_logits_are_recorded():
    y = torch.arange(60) % 5
    for data in (X, (X, y), (X, y.float())):  # one real number a sample may be a class
        rep = rs.record(networks.seeded(networks.MLP), data)
        assert rep.outputs.classes == 5
        assert rep.made.logits == "softmax (assumed)"
    assert rs.record(networks.seeded(networks.ResNet), IMAGES).samples == 20
    plain = rs.record(then(lambda z: z), X)
    logs = rs.record(then(lambda z: z.log_softmax(1)), X)
    assert np.allclose(plain["act2"].blocks("gradients"), logs["act2"].blocks("gradients"), 1e-3)


def test_logits_that_lie_between_zero_and_one_by_chance_are_recorded():
    net = networks.seeded(lambda: networks.MLP(classes=2))
    with torch.no_grad():  # as of an untrained network of two classes, in one of four
        net.head.weight *= 0.01
        net.head.bias.copy_(torch.tensor([0.3, 0.4]))
    rep = rs.record(net, X)
    assert 0 < rep.outputs.every.exp().min() < 1
    near = then(lambda z: z / 1000 + 0.5)
    near.function = lambda z: z / 1000 + 0.5 - (z > z[:, :1] + 1).float()
    first = X[((near(X) >= 0) & (near(X) <= 1)).all(1)][:8]
    assert len(first) == 8
    assert rs.record(near, [first, X]).outputs.rows == 68  # later samples settle it


def test_a_regression_cannot_be_seen_by_its_values_and_the_file_says_what_was_assumed(tmp_path):
    rep = rs.record(networks.seeded(networks.MLP), X)
    assert rs.load(rep.save(tmp_path / "a.rsm")).made.logits == "softmax (assumed)"
    told = rs.record(networks.seeded(networks.MLP), X, logits="softmax")
    assert told.made.logits == "softmax"


def test_log_probabilities_and_functions_must_not_be_probabilities_either():
    net = then(lambda z: z.softmax(1))
    for logits in ("softmax", lambda p: p):
        with pytest.raises(TargetError, match=r'sum to one.*`logits="probabilities"`'):
            rs.record(net, X, logits=logits)


def test_an_explicit_mode_is_trusted_with_a_warning():
    net = then(torch.sigmoid)
    for logits in ("softmax", "sigmoid"):
        with pytest.warns(ResemblanceWarning, match=r"all values lie in .*sigmoid-probabilities"):
            assert rs.record(net, X, logits=logits).made.logits == logits


@pytest.mark.parametrize("option", ["softmaxx", 3, None])
def test_other_options_are_refused(option):
    with pytest.raises(TargetError, match=r"`logits` must be one of auto, softmax, .*function"):
        rs.record(networks.MLP(), X, logits=option)


def test_single_outputs_and_other_kinds_of_numbers_are_refused():
    with pytest.raises(TargetError, match=r'one binary logit, pass `logits="sigmoid"`'):
        rs.record(networks.MLP(classes=1), X)
    with pytest.raises(TargetError, match=r"real numbers, found a complex64"):
        rs.record(then(lambda z: z.to(torch.complex64)), X)


# -- probabilities ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "option", "same_as"),
    [
        (lambda z: z.softmax(1), "probabilities", "softmax"),
        (torch.sigmoid, "sigmoid-probabilities", "sigmoid"),
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_probabilities_are_recorded_as_their_logits_are(function, option, same_as, gradients):
    plain = rs.record(then(lambda z: z), X, logits=same_as, gradients=gradients)
    found = rs.record(then(function), X, logits=option, gradients=gradients)
    p = found.outputs.every if same_as == "softmax" else found.outputs.label_logits
    expected = plain.outputs.every if same_as == "softmax" else plain.outputs.label_logits
    assert torch.allclose(p, expected, atol=1e-3)  # float32 rounds 1 - p near one
    assert found.made.logits == option
    assert found.settings.target == plain.settings.target
    if gradients:
        one, two = (rep["act2"].blocks("gradients") for rep in (plain, found))
        assert torch.allclose(one, two, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "option"),
    [
        (lambda z: (z * 20).softmax(1), "probabilities"),
        (lambda z: (z * 20).sigmoid(), "sigmoid-probabilities"),
    ],
)
def test_floored_probabilities_are_counted(function, option):
    net = then(function)
    with torch.no_grad():
        p = net(X)
    low = p < PROBABILITY_FLOOR
    high = p >= 1 - PROBABILITY_FLOOR if option != "probabilities" else torch.zeros_like(low)
    count = int((low | high).sum())
    assert 20 < count < 280  # of 300
    with pytest.warns(ResemblanceWarning, match=rf"{count} of 300 probabilities") as warned:
        rep = rs.record(net, X, logits=option)
    assert len(warned) == 1
    held = rep.outputs.every if option == "probabilities" else rep.outputs.label_logits
    assert held.isfinite().all()
    assert abs(float(held.min()) - np.log(PROBABILITY_FLOOR)) < 1e-3


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("option", "later"),
    [
        ("probabilities", lambda p: p * 1.5),
        ("probabilities", lambda p: p - 0.5),
        ("sigmoid-probabilities", lambda p: p * 3),
        ("sigmoid-probabilities", lambda p: -p),
    ],
)
def test_later_batches_must_not_contradict(option, later, gradients):
    class Turns(nn.Module):
        """Probabilities, but not for the samples that are marked."""

        def __init__(self):
            super().__init__()
            self.body = networks.seeded(networks.MLP)

        def forward(self, x):
            z = self.body(x)
            p = z.softmax(1) if option == "probabilities" else z.sigmoid()
            return torch.where(x[:, :1] > 50, later(p), p)

    marked = X.clone()
    marked[40, 0] = 100.0
    assert rs.record(Turns(), X, logits=option, gradients=gradients).samples == 60
    with pytest.raises(TargetError, match="do not look like probabilities"):
        rs.record(Turns(), list(marked.split(10)), logits=option, gradients=gradients)


def test_logits_passed_as_probabilities_are_refused():
    net = then(lambda z: z)
    with pytest.raises(TargetError, match=r'do not sum to one.*`logits="softmax"`'):
        rs.record(net, X, logits="probabilities")
    with pytest.raises(TargetError, match=r'outside \[0, 1\].*`logits="sigmoid"`'):
        rs.record(net, X, logits="sigmoid-probabilities")
    with pytest.raises(TargetError, match="do not sum to one"):
        rs.record(then(torch.sigmoid), X, logits="probabilities")


@pytest.mark.parametrize("mode", [mode for mode in LOGITS_MODES if mode not in ("auto", "none")])
def test_what_is_read_has_samples_positions_and_classes(mode):
    z = torch.rand(4, 3, 5, 6)
    assert LogitsReader(mode)(z).shape == (4, 30, 3)
    assert LogitsReader(mode)({"logits": z[:, :, 0]}).shape == (4, 3, 6)


# -- one policy ---------------------------------------------------------------------------------

CALLERS = {
    "record": lambda net, x, y, **more: rs.record(net, x, **more),
    "compiled": lambda net, x, y, **more: rs.record(net, x, compile=True, **more),
    "classifier": lambda net, x, y, **more: rs.KernelClassifier(
        net, kernel="gradients", **more
    ).fit(x, y),
    "leave one out": lambda net, x, y, **more: leave_one_out(net, x, y, kernel="product", **more),
    "task2vec": lambda net, x, y, **more: rs.task2vec(net, x, **more),
}
FORWARD = {"recommend": lambda net, x, y, **more: rs.recommend({"net": net}, x, y, **more)}


@pytest.mark.parametrize("function", [torch.sigmoid, lambda z: z.softmax(1)])
@pytest.mark.parametrize("caller", CALLERS)
def test_everyone_refuses_the_same_outputs_in_the_same_words(caller, function):
    net, y = then(function), torch.arange(60) % 3
    with pytest.raises(TargetError) as wanted:
        rs.record(net, X)
    with pytest.raises(ResemblanceError) as found:
        CALLERS[caller](net, X, y)
    assert str(wanted.value) in str(found.value)


@pytest.mark.parametrize("mode", ["sigmoid-probabilities", "sigmoid"])
@pytest.mark.parametrize("caller", CALLERS | FORWARD)
def test_everyone_works_with_multi_label_networks(caller, mode):
    net = then(torch.sigmoid if mode != "sigmoid" else lambda z: z)
    assert (CALLERS | FORWARD)[caller](net, X, torch.arange(60) % 3, logits=mode) is not None


def test_scores_of_predicted_classes_are_not_for_independent_labels():
    y = torch.arange(60) % 3
    with pytest.raises(DataError, match="leep needs one predicted class"):
        rs.recommend({"net": then(lambda z: z)}, X, y, score="leep", logits="sigmoid")
    found = rs.recommend({"net": then(lambda z: z)}, X, y, logits="sigmoid")
    assert not found.best.scores.outputs
    with pytest.warns(ResemblanceWarning, match="predictions are not recorded"):
        found = rs.recommend({"net": then(torch.sigmoid)}, X, y)
    assert not found.best.scores.outputs  # its features are ranked all the same


def test_segmentation_networks_have_their_logits_under_out():
    class Segments(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, classes, 1)

        def forward(self, x):
            return {"aux": x.mean(), "out": self.head(self.body(x).relu())}

    assert rs.record(Segments(5), IMAGES).settings.target == "tempered"
    masks = (IMAGES[:, :1] > 0).float()
    binary = rs.record(Segments(1), (IMAGES, masks), logits="sigmoid", target="labels")
    assert binary.settings.target == "labels-sigmoid"
    assert binary.outputs is None  # one prediction a pixel
