"""A mistake in a YAML file is told with its line."""

from __future__ import annotations

import pytest

from resemblance.errors import FormatError
from resemblance.sweep.yaml_lines import read


def written(tmp_path, text):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3: this is not YAML"),
        ("a: 1\n\na: 2\n", "line 3: 'a' was given before"),
        ("a:\n  - b: 1\n    b: 2\n", "line 3: 'b' was given before"),
        ("a: 1\n3: 2\n", "line 2: expected a text as a key; write '3'"),
        ("a: 1\nyes: 2\n", "line 2: expected a text as a key; write 'yes'"),
        ("- a\n- b\n", "expected keys such as models: and data:; it holds list"),
        ("", "it holds nothing"),
        ("a: &a [*a]\n", "this is not YAML"),
        ("a: 2021-99-99\n", "this is not YAML"),
        ("a: !!python/object:os.system {}\n", "line 1: this is not YAML"),
    ],
)
def test_what_is_refused(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(FormatError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}")
    assert says in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match=r"no file at .*gone\.yaml; expected jobs in YAML"):
        read(tmp_path / "gone.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FormatError, match=r"b\.yaml cannot be read"):
        read(tmp_path / "b.yaml")


def test_lines_of_keys_and_items(tmp_path):
    file = read(written(tmp_path, "a: 1\nb:\n  - c: 2\n  - d\n"))
    assert file.tree == {"a": 1, "b": [{"c": 2}, "d"]}
    with pytest.raises(FormatError, match="line 4: so"):
        file.refuse(("b", 1), "so")
    with pytest.raises(FormatError, match="line 3: so"):
        file.refuse(("b", 0, "c", "not there"), "so")
    with pytest.raises(FormatError, match="line 1: a must be a text; found 1"):
        file.check(("a",), 1, str)
    with pytest.raises(FormatError, match="line 1: a must be 2 or more; found 1"):
        file.check(("a",), 1, int, least=2)
    with pytest.raises(FormatError, match="line 2: nothing is called 'b'; nearest: a, beta"):
        file.check_keys((), file.tree, ["a", "beta"])
