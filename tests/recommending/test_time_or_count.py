"""A budget in candidates or in time."""

import pytest

from resemblance.errors import DataError
from resemblance.recommending.time_or_count import Budget


def test_a_whole_number_is_candidates_and_a_unit_makes_it_time():
    assert Budget.of(3).candidates == Budget.of("3").candidates == 3
    assert [Budget.of(text).seconds for text in ("90s", "2 m", "0.5h")] == [90, 120, 1800]
    said = [str(Budget.of(x)) for x in (3, 1, "90s")]
    assert said == ["3 candidates", "1 candidate", "90 seconds"]
    assert str(Budget.of(None)) == "none"


def test_candidates_are_counted_and_time_is_measured_after_the_first():
    assert [Budget.of(2).spent(n) for n in range(4)] == [False, False, True, True]
    over = Budget(seconds=1e-9, began=0.0)
    assert [over.spent(n) for n in (0, 1)] == [False, True]
    assert not Budget.of(None).spent(100)
    assert not Budget.of("1h").spent(100)


@pytest.mark.parametrize("given", [0, -1, 2.5, "0s", "soon", "3 days", True])
def test_what_is_neither_is_refused(given):
    with pytest.raises(DataError, match="budget must be a number of candidates"):
        Budget.of(given)
