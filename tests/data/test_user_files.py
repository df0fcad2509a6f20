"""FILE.py:FUNCTION, the user's own program."""

from __future__ import annotations

import pickle
import sys

import pytest

from resemblance._data.user_files import call_function
from resemblance._model.named_models import load_model
from resemblance.errors import DataError

PROGRAM = """
from beside import value

class Thing:
    pass

def make():
    return Thing()

def answer():
    return value

number = 3
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("value = 42\n")
    (tmp_path / "mine.py").write_text(PROGRAM)
    yield str(tmp_path / "mine.py")
    for name in ("beside", "_user_mine"):
        sys.modules.pop(name, None)


def test_a_function_is_called_and_finds_what_lies_beside_it(program):
    before = list(sys.path)
    assert call_function(f"{program}:answer") == 42
    assert sys.path == before


def test_what_it_makes_can_be_sent_to_worker_processes(program):
    made = call_function(f"{program}:make")
    assert type(pickle.loads(pickle.dumps(made))) is type(made)


@pytest.mark.parametrize("name", ["answr", "number"])
def test_a_name_that_is_no_function_lists_the_nearest(program, name):
    with pytest.raises(DataError, match=f"has no function '{name}'; it has .*(answer|make)"):
        call_function(f"{program}:{name}")


def test_a_program_that_fails_leaves_the_path_as_it_was(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    before = list(sys.path)
    with pytest.raises(ZeroDivisionError):
        call_function(f"{tmp_path}/broken.py:net")
    assert sys.path == before
    sys.modules.pop("_user_broken", None)


def test_a_file_that_is_not_there():
    for run in (call_function, load_model):
        with pytest.raises(DataError, match=r"no file at gone\.py"):
            run("gone.py:net")
