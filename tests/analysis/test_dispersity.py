"""Scores of predictions: against float64 references, their errors, and every refusal."""

import numpy as np
import pytest
import torch
from torch import nn

import reference_analysis as reference
import resemblance as rs
from resemblance.analysis.dispersity import _parts, _standard_error, output_adaptation


def logits(n=300, classes=6, seed=0, scale=2.0):
    return (scale * np.random.default_rng(seed).normal(size=(n, classes))).astype(np.float32)


def recorded(z, **options):
    return rs.record_arrays(outputs=z, data_id="x", **options)


@pytest.mark.parametrize("n", [300, 4])
def test_both_scores_are_those_of_the_formula(n):
    z = logits(n)
    found = output_adaptation(recorded(z))
    assert found.samples == n
    assert found.dispersity == pytest.approx(
        reference.dispersity(reference.softmax(z.astype(float))), rel=1e-6
    )
    expected = reference.mean_gradient(z.astype(float), 0.5)
    assert found.mean_gradient == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("options", "beta"), [({"beta": 0.2}, 0.2), ({"target": "labels"}, 0.5)])
def test_the_tempered_prediction_has_the_exponent_of_the_recording(options, beta):
    net, x = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(200, 5)
    labels = torch.randint(4, (200,))
    table = rs.adaptation(rs.record(net, (x, labels), progress=False, **options))
    assert table.outputs.beta == beta
    with torch.no_grad():
        z = net(x).double().numpy()
    expected = reference.mean_gradient(z, beta)
    assert table.outputs.mean_gradient == pytest.approx(expected, rel=1e-4)


def test_the_mean_gradient_is_the_mean_embedding_of_the_last_bias():
    """At the logits the gradient is p − q: with features of one, ψ(x) is that gradient."""
    net, x = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(200, 5)
    table = rs.adaptation(rs.record(net, x, layers=["2"], progress=False), kernel="gradients")
    assert table["mean_embedding"][0] == pytest.approx(table.outputs.mean_gradient, rel=1e-3)


def test_certain_and_even_predictions_have_dispersity_one_and_equal_ones_less():
    certain = 60 * torch.eye(4).repeat(25, 1).numpy()
    assert output_adaptation(recorded(certain)).dispersity == pytest.approx(1)
    one_class = np.tile(certain[:1], (100, 1))
    assert output_adaptation(recorded(one_class)).dispersity == pytest.approx(0.5)  # 1 / √C
    uniform = output_adaptation(recorded(np.zeros((100, 4))))
    assert uniform.dispersity == pytest.approx(0.25)  # 1 / C


@pytest.mark.parametrize(("n", "classes"), [(400, 5), (100, 20), (60, 30)])
def test_standard_errors_are_those_of_new_samples(n, classes):
    """Where the mean of 60 draws has a relative error of a tenth, and the estimate is too small by
    at most a third at two samples a class."""
    bias = np.linspace(0, 2, classes, dtype=np.float32)  # else the mean gradient is near zero
    found = [output_adaptation(recorded(logits(n, classes, seed) + bias)) for seed in range(60)]
    for score in ("dispersity", "mean_gradient"):
        spread = np.std([getattr(x, score) for x in found], ddof=1)
        stated = np.mean([getattr(x, f"{score}_stderr") for x in found])
        assert 0.65 < stated / spread < 1.4, score


def test_below_two_samples_a_class_dispersity_has_no_error():
    found = output_adaptation(recorded(logits(39, 20)))
    assert np.isfinite(found.dispersity)
    assert np.isnan(found.dispersity_stderr)
    assert np.isfinite(found.mean_gradient_stderr)


def test_tokens_of_one_sequence_count_as_one_part():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 20)

        def forward(self, ids):
            return self.head(self.embedding(ids))

    rep = rs.record(Table(), torch.randint(20, (40, 9)), unit="token", tokens=3, progress=False)
    parts = _parts(rep)
    assert len(parts) == rep.predictions.rows
    np.testing.assert_array_equal(parts.bincount(), 3)
    assert np.isfinite(output_adaptation(rep).mean_gradient_stderr)
    influence = torch.randn(40, dtype=torch.float64)
    influence -= influence.mean()
    thrice = _standard_error(influence.repeat(3) / 3, torch.arange(40).repeat(3))
    assert thrice == pytest.approx(_standard_error(influence, torch.arange(40)))


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=1)


def many_classes():
    return recorded(logits(20, 1100))


def multi_label():
    return recorded(logits(), logits="sigmoid")


def embeddings():
    return rs.record(Embedder(), torch.randn(50, 5), logits="none", gradients=False, progress=False)


def nothing():
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    return rs.record(net, torch.randn(50, 5), outputs=False, progress=False)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (many_classes, "1,100 classes only the likeliest are stored"),
        (multi_label, "labels are predicted independently"),
        (embeddings, "has embeddings"),
        (nothing, "has no predictions"),
    ],
)
def test_what_cannot_be_computed_is_withheld_with_the_reason(make, why):
    rep = make()
    found = output_adaptation(rep)
    assert why in found.withheld
    assert why in found.sentence()
    assert np.isnan([found.dispersity, found.mean_gradient]).all()


def test_the_result_shows_them():
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    table = rs.adaptation(rs.record(net, torch.randn(100, 5), progress=False))
    assert "Outputs: dispersity 0." in table.summary()
    written = table.to_dict()["outputs"]
    assert written["mean_gradient"] == table.outputs.mean_gradient
    assert written["withheld"] is None
