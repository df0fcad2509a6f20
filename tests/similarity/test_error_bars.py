"""Standard errors, their degrees of freedom, and Student's t against its tables."""

import numpy as np
import pytest
import torch

from resemblance.similarity import error_bars


@pytest.mark.parametrize(
    ("level", "df", "expected"),
    [
        (0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 5, 2.5706), (0.95, 63, 1.9983),
        (0.99, 3, 5.8409), (0.99, 31, 2.7440), (0.5, 10, 0.6998), (0.95, 1000, 1.9623),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(level, df, expected):
    assert float(error_bars.student_t(level, np.array(float(df)))) == pytest.approx(
        expected, abs=2e-4
    )


def test_students_t_of_broken_degrees_of_freedom():
    stats = pytest.importorskip("scipy.stats")
    df = np.array([[1.5, 3.3], [17.2, np.nan]])
    np.testing.assert_allclose(
        error_bars.student_t(0.9, df), stats.t.ppf(0.95, df), rtol=1e-4, equal_nan=True
    )


def test_a_jackknife_of_means_is_the_standard_error_of_a_mean():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    rest = (x.sum(0) - x) / 39
    expected = x.std(0) / 40**0.5
    torch.testing.assert_close(error_bars.jackknife(rest), expected)
    torch.testing.assert_close(error_bars.standard_error([error_bars.left_out(rest)])[0], expected)


def test_degrees_of_freedom_are_those_of_a_normal_or_of_the_few_that_matter():
    normal = torch.randn(64, 500, generator=torch.Generator().manual_seed(0)).double()
    _, df = error_bars.standard_error([error_bars.left_out(normal)])
    assert 64 * 2 / 3 < float(df.median()) < 63
    one = torch.zeros(64, 1).double()
    one[3] = 5
    assert float(error_bars.standard_error([error_bars.left_out(one)])[1]) == pytest.approx(
        4 / 3, rel=0.05
    )
    alike = torch.ones(64, 1).double()  # nothing moves the score
    error, df = error_bars.standard_error([error_bars.left_out(alike)])
    assert (float(error), float(df)) == (0, 63)


def test_replicates_have_the_same_standard_error():
    generator = torch.Generator().manual_seed(0)
    sets = [error_bars.left_out(torch.randn(k, 2, generator=generator)) for k in (16, 9)]
    expected, _ = error_bars.standard_error(sets)
    found = error_bars.replicates(torch.tensor([0.5, 0.7]), sets)
    assert found.shape == (25, 2)
    torch.testing.assert_close(error_bars.jackknife(found), expected)
    torch.testing.assert_close(found.mean(0), torch.tensor([0.5, 0.7]))


def test_effective_numbers():
    shares = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert error_bars.effective(shares).tolist() == [4, 1]


@pytest.mark.parametrize("df", [1.0, 1.4, 3.3, 31.0, 1000.0])
def test_the_tail_of_students_t_is_that_of_the_tables(df):
    stats = pytest.importorskip("scipy.stats")
    t = np.array([-3.0, -0.2, 0.0, 0.7, 2.5, 9.0, 60.0])
    found = error_bars.student_tail(t, np.full(len(t), df))
    np.testing.assert_allclose(found, stats.t.sf(t, df), rtol=2e-3, atol=1e-300)


def test_the_tail_of_students_t_undoes_its_quantile_and_has_ends():
    df = np.array([1.0, 4.5, 63.0])
    for level in (0.5, 0.95, 0.999):
        at = error_bars.student_t(level, df)
        np.testing.assert_allclose(error_bars.student_tail(at, df), (1 - level) / 2, rtol=2e-3)
    ends = error_bars.student_tail(np.array([np.inf, -np.inf, np.nan]), np.full(3, 5.0))
    np.testing.assert_array_equal(ends, [0, 1, np.nan])
