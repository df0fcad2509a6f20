"""One small tree of errors."""

from __future__ import annotations

import inspect

from resemblance import errors


def test_every_error_is_in_the_tree_and_in_its_drawing():
    for name, member in inspect.getmembers(errors, inspect.isclass):
        if member.__module__ == errors.__name__:
            assert name in errors.__doc__
            assert issubclass(member, errors.ResemblanceError | errors.ResemblanceWarning)


def test_nearest_falls_back_to_the_first_names():
    assert errors.nearest("zzz", ["a", "b", "c"], count=2) == "a, b"
