"""Names that will go: they warn at the caller's line, and cannot be forgotten."""

from __future__ import annotations

import pytest

from resemblance._utils import validation
from resemblance._utils.validation import warn_deprecated


def old_name():
    warn_deprecated("old", "new", since="0.2")


@pytest.mark.parametrize("version", ["0.2.0.dev0", "0.2.0", "0.3.1"])
def test_a_warning_names_what_goes_when_and_what_to_use(version, monkeypatch):
    monkeypatch.setattr(validation, "__version__", version)
    with pytest.warns(
        DeprecationWarning,
        match=r"old is deprecated since 0\.2 and will be removed after 0\.3; use new instead",
    ) as caught:
        old_name()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
def test_what_should_be_gone_by_now_fails(version, monkeypatch):
    monkeypatch.setattr(validation, "__version__", version)
    with pytest.raises(AssertionError, match=r"old was deprecated in 0\.2 and must be removed"):
        old_name()
