"""The recording that most tests of this room look at."""

from __future__ import annotations

import pytest

from small import record


@pytest.fixture(scope="module")
def rep():
    return record(elementwise=True, name="net", data_id="probe")
