"""One small tree of errors."""

from __future__ import annotations

import inspect

import pytest

from resemblance import errors


def test_every_error_is_in_the_tree_and_in_its_drawing():
    for name, member in inspect.getmembers(errors, inspect.isclass):
        if member.__module__ == errors.__name__:
            assert name in errors.__doc__
            assert issubclass(member, errors.ResemblanceError | errors.ResemblanceWarning)


def test_nearest_falls_back_to_the_first_names():
    assert errors.close_matches("zzz", ["a", "b", "c"], count=2) == "a, b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import one_that_is_gone", "cannot be imported (No module named 'one_that_is_gone')"),
        ("raise OSError('libx.so: no such file\\nand more')", "(libx.so: no such file); install"),
        ("from os import gone_from_here", "(cannot import name 'gone_from_here'"),
    ],
)
def test_a_package_that_is_there_but_broken_says_why_in_a_line(
    tmp_path, monkeypatch, content, said
):
    (tmp_path / "a_broken_one.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.MissingExtra) as refusal:
        errors.import_optional("a_broken_one", "broken", "vision")
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("this needs broken, which is installed but cannot be")
    assert "\n" not in str(refusal.value)


def test_a_package_that_is_missing_is_said_to_be():
    with pytest.raises(errors.MissingExtra, match=r"not installed: pip install .*\[x\]'"):
        errors.import_optional("one_that_is_gone.part", "gone", "x")
