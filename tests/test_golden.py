"""Numbers that earlier versions computed come out the same (`golden/freeze.py` says which)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"
LIMITS = {
    "file": 1e-9,  # float64 throughout
    "many": 1e-6,  # float32 products, which processors add in different orders
    "pass": 1e-4,  # networks run in float32, and so are their features summed
}


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    spec = importlib.util.spec_from_file_location("freeze", GOLDEN / "freeze.py")
    freeze = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(freeze)
    frozen = dict(np.load(GOLDEN / "values.npz"))
    if not freeze.PUBLISHED.exists():
        kept = [key for key in frozen if not key.startswith(freeze.FROM_PUBLISHED)]
        frozen = {key: frozen[key] for key in kept}
    return freeze.differences(frozen, freeze.values())


@pytest.mark.parametrize("kind", LIMITS)
def test_numbers_stay_as_they_were(found, kind):
    of_kind = {key: value for key, value in found.items() if key.startswith(f"{kind}.")}
    if kind == "many" and not of_kind:
        pytest.skip("the published recordings, reproduction/results, are not here")
    assert len(of_kind) > 50
    assert {key: value for key, value in of_kind.items() if value > LIMITS[kind]} == {}


def test_moments_of_a_pass_stay_closer_than_scores(found):
    moments = {k: v for k, v in found.items() if k.startswith("pass.") and "fisher_rao" in k}
    assert len(moments) > 10
    assert max(moments.values()) < 1e-5
