"""Adaptation scores against full float64 kernels: value, bias, coverage, and every refusal."""

import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import reference_analysis as reference
from resemblance import record, record_arrays
from resemblance.analysis.adaptation import (
    COLUMNS,
    SquaredNorms,
    _adaptation_columns,
    _warn_if_few_effective,
    adaptation,
)
from resemblance.analysis.kernel_ridge import leave_one_out
from resemblance.errors import DataError, MismatchError, MissingExtra, ResemblanceWarning
from resemblance.similarity.jackknife import student_t
from shifted import apart, arrays, recorded, without_norms

KERNELS = ("features", "gradients", "product", "sum", "elementwise")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [8, 200])
def test_small_data_give_every_column_exactly(kernel, n):
    f, g = arrays(n=n)
    table = adaptation(recorded(f, g), kernel=kernel)
    truth = reference.adaptation(reference.kernel(kernel, f, g))
    for column in COLUMNS:
        # int16 correlations are good to 1.5e-5
        assert table[column][0] == pytest.approx(truth[column], rel=3e-4, abs=1e-9), column
        assert np.isfinite(table[f"{column}_stderr"][0])
    diagonal = np.diag(reference.kernel(kernel, f, g))
    assert table.n_eff[0] == pytest.approx(diagonal.sum() ** 2 / (diagonal**2).sum(), rel=1e-4)


def heavy(seed, n=1600, sigma=1.5):
    rng = np.random.default_rng(seed)
    f, g = rng.normal(0.5, 1, (n, 5)), rng.normal(0.4, 1, (n, 5))
    return f, g * np.exp(sigma * rng.normal(size=(n, 1)))


@pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")
def test_norms_of_all_samples_help_where_few_carry_the_kernel():
    """A quarter of the samples is in blocks; errors of the log ratio, and coverage by t."""
    errors, inside = {}, {}
    for seed in range(40):
        f, g = heavy(seed)
        truth = reference.adaptation(reference.kernel("product", f, g))["log_ratio"]
        rep = recorded(f, g, seed, block=16, blocks=25, elementwise=False, buckets=0)
        for name, found in (("norms", rep), ("blocks", without_norms(rep))):
            table = adaptation(found)
            value, (low, high) = table["log_ratio"][0], table.interval("log_ratio")
            if np.isfinite(value):
                errors.setdefault(name, []).append(value - truth)
                inside.setdefault(name, []).append(low[0] <= truth <= high[0])
    spread = {name: np.sqrt(np.mean(np.square(e))) for name, e in errors.items()}
    assert spread["norms"] < 0.7 * spread["blocks"]
    assert np.mean(inside["norms"]) >= 0.85  # 0.95 less three binomial errors of 40


def test_few_samples_that_carry_a_kernel_are_warned_of_once():
    f, g = heavy(0, sigma=2.5)
    layers = {"u": f, "v": f}
    rep = record_arrays(layers, {"u": g, "v": g}, data_id="x", blocks=10, block=16)
    with pytest.warns(ResemblanceWarning, match=r"may be too small at 2 of 2") as w:
        table = adaptation(rep)
    assert sum("a few samples dominate" in str(x.message) for x in w) == 1
    assert (table.n_eff < 30).all()
    assert adaptation(recorded(*arrays(n=400))).n_eff[0] > 40  # and nothing is said


def test_the_interval_is_that_of_student():
    table = adaptation(apart(*arrays(n=400)))
    low, high = table.interval("mean_embedding", 0.9)
    far = student_t(0.9, table.df["mean_embedding"]) * table["mean_embedding_stderr"]
    np.testing.assert_allclose(high - low, 2 * far)
    assert 1 <= table.df["mean_embedding"][0] <= 63


def test_standard_errors_cover_the_recorded_samples_and_the_source():
    """2 standard errors: of the N samples at hand (often more than 95 %), and of their source."""
    f, g = arrays(n=256)
    truth = reference.adaptation(reference.kernel("product", f, g))
    here = [adaptation(apart(f, g, seed=s)) for s in range(60)]
    d, m2 = 6, 0.7**2
    trace = (d * (1 + m2)) ** 2  # E‖f‖² E‖g‖²
    squared = (d * m2) ** 2  # ‖E g fᵀ‖² for independent f, g
    source = {
        "mean_embedding": (trace / 256 + 255 / 256 * squared) ** 0.5,
        "norm_trace": (trace / 256) ** 0.5,
    }
    new = [arrays(n=256, seed=s) for s in range(60)]
    whole, drawn = ([adaptation(make(*x)) for x in new] for make in (recorded, apart))
    for tables, values, columns in (
        (here, truth, COLUMNS),
        (drawn, source, source),
        (whole, source, source),
    ):
        for column in columns:
            inside = [
                abs(t[column][0] - values[column]) <= 2 * t[f"{column}_stderr"][0] for t in tables
            ]
            assert np.mean(inside) >= 0.85, column  # 0.95 less three binomial errors of 60


def test_estimate_below_zero_is_nan_with_a_warning_and_the_square_is_kept():
    for seed in range(50):
        rep = apart(*arrays(n=64, mean=0.0, seed=seed))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            table = adaptation(rep)
        below = table["mean_embedding_squared"][0] <= 0
        assert bool(seen) == below
        if below:
            break
    assert below  # it happens for mean-zero vectors
    assert issubclass(seen[0].category, ResemblanceWarning)
    assert all(np.isnan(table[c][0]) for c in ("mean_embedding", "ratio_trace", "log_ratio"))
    assert np.isfinite(table["mean_embedding_squared_stderr"][0])
    assert table.to_dict()["log_ratio"] == [None]


def test_a_ratio_that_is_zero_in_float64_has_no_logarithm():
    with np.errstate(invalid="ignore"):
        values = _adaptation_columns(SquaredNorms(np.array([1.0, np.inf, 1.0]), [], 1.0), "layer")[
            0
        ]
    found = dict(zip(COLUMNS, values, strict=True))
    assert found["ratio_frobenius"] == 0
    assert np.isnan(found["log_ratio"])


def test_the_estimator_of_the_paper_has_no_standard_error():
    table = adaptation(recorded(*arrays()), estimator="paper")
    assert table["mean_embedding"][0] > 0
    assert np.isnan(table["mean_embedding_stderr"][0])


def test_table_frame_dict_and_scaling_agree():
    f, g = arrays()
    rep = record_arrays({"a": f, "b": f * 2}, {"a": g, "b": g}, data_id="x")
    table = adaptation(rep)
    frame = table.to_frame()
    assert list(frame.index) == ["a", "b"]
    assert all(c in frame and f"{c}_stderr" in frame for c in COLUMNS)
    assert frame["mean_embedding"]["b"] == pytest.approx(2 * frame["mean_embedding"]["a"])
    content = table.to_dict()
    assert content["norm_trace"] == frame["norm_trace"].tolist()
    names = ["model", "data", "kernel", "estimator", "samples", "layers"]
    degrees = [f"{x}_df" for x in table.df]
    assert list(content) == [*names, *table.columns, *degrees, "n_eff", "outputs"]
    scaled = table.scaled()
    assert scaled["mean_embedding"] == pytest.approx(2 * table["mean_embedding"])
    assert scaled["mean_embedding_stderr"] == pytest.approx(2 * table["mean_embedding_stderr"])
    assert scaled["log_ratio"] == pytest.approx(table["log_ratio"])
    assert "arrays on x" in repr(table)


def test_plot_draws_one_curve_for_each_pair():
    one = adaptation(recorded(*arrays()))
    f, g = arrays()
    two = adaptation(record_arrays({"a": f, "b": g}, {"a": g, "b": f}, data_id="y"))
    figure = one.plot(two, column="mean_embedding")
    assert len(figure.axes[0].containers) == 2
    assert figure.axes[0].get_ylabel() == "mean embedding"


def test_labels_add_leave_one_out_accuracy_per_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(120, 4)
    y = (x[:, 0] > 0).long()
    rep = record(net, x)
    table = adaptation(rep, model=net, data=(x, y))
    found = leave_one_out(net, (x, y), layers=rep.layer_names)
    assert table["loo_accuracy"].tolist() == list(found.accuracies.values())
    p = table["loo_accuracy"]
    assert table["loo_accuracy_stderr"] == pytest.approx((p * (1 - p) / 120) ** 0.5)
    assert p[0] > 0.7  # one linear step above half


def test_refusals_say_what_to_do(monkeypatch):
    f, g = arrays()
    rep = recorded(f, g)
    with pytest.raises(DataError, match="transport"):
        adaptation(rep, kernel="transport")
    with pytest.raises(DataError, match="`estimator` must be one of blocks, paper"):
        adaptation(rep, estimator="exact")
    with pytest.raises(DataError, match="both `model` and `data`"):
        adaptation(rep, data=(f, g))
    with pytest.raises(DataError, match="no column 'mu'"):
        adaptation(rep)["mu"]
    with pytest.raises(MismatchError, match="blocks above"):
        adaptation(recorded(f, g, blocks=0))
    with pytest.raises(MismatchError, match="no blocks with two or more samples"):
        adaptation(recorded(f[:1], g[:1]))
    with pytest.raises(MismatchError, match="gradients"):
        adaptation(record_arrays(f, data_id="x"))
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    pooled = record(net, torch.from_numpy(f), pool=lambda x: x[:, :2])
    with pytest.raises(MismatchError, match="cannot be repeated"):
        adaptation(pooled, model=net, data=(torch.from_numpy(f), torch.arange(96) % 2))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pandas.*\[frames\]"):
        adaptation(rep).to_frame()


@pytest.mark.parametrize(("samples", "limit"), [(4000, 300), (1400, 200), (980, 100), (280, 40)])
def test_as_few_samples_are_too_few_as_in_compare(samples, limit):
    f, g = arrays(n=samples, d=2)
    rep = record_arrays(f, g, data_id="x", buckets=0)
    _warn_if_few_effective(np.array([limit + 1.0]), rep)  # warnings are errors
    with pytest.warns(ResemblanceWarning, match="may be too small at 1 of 1"):
        _warn_if_few_effective(np.array([limit - 1.0]), rep)
