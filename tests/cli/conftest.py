"""A folder that holds files which the command recorded."""

from __future__ import annotations

import pytest


@pytest.fixture
def recorded(run):
    run("record", "--model", "nets.py:small", "--data", "digits", "-o", "a.rsm")
    run("record", "--model", "nets.py:other", "--data", "digits", "-o", "b.rsm")
    return run
