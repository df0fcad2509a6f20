"""A YAML file: mistakes with their line, and values checked by the fields of `RecordConfig`."""

from __future__ import annotations

import pytest

from resemblance.errors import FormatError
from resemblance.recording.config import FILE_OPTIONS, RecordConfig
from resemblance.sweep.yaml_file import describe_kinds, is_of_kind, read_yaml


def written(tmp_path, text):
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3: this is not YAML"),
        ("a: 1\n\na: 2\n", "line 3: 'a' is given twice"),
        ("a:\n  - b: 1\n    b: 2\n", "line 3: 'b' is given twice"),
        ("a: 1\n3: 2\n", "line 2: expected a text as a key; write '3'"),
        ("a: 1\nyes: 2\n", "line 2: expected a text as a key; write 'yes'"),
        ("- a\n- b\n", "expected keys such as models: and data:; it holds list"),
        ("", "it holds nothing"),
        ("a: &a [*a]\n", "aliases"),
        ("a: 2021-99-99\n", "this is not YAML"),
        ("a: !!python/object:os.system {}\n", "line 1: this is not YAML"),
    ],
)
def test_what_is_refused(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(FormatError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}")
    assert says in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match=r"no file at .*gone\.yaml; expected jobs in YAML"):
        read_yaml(tmp_path / "gone.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FormatError, match=r"b\.yaml cannot be read"):
        read_yaml(tmp_path / "b.yaml")


def test_lines_of_keys_and_items(tmp_path):
    file = read_yaml(written(tmp_path, "a: 1\nb:\n  - c: 2\n  - d\n"))
    assert file.tree == {"a": 1, "b": [{"c": 2}, "d"]}
    with pytest.raises(FormatError, match="line 4: so"):
        file.refuse(("b", 1), "so")
    with pytest.raises(FormatError, match="line 3: so"):
        file.refuse(("b", 0, "c", "not there"), "so")
    with pytest.raises(FormatError, match="line 1: a must be a text; found 1"):
        file.check((), file.tree, {"a": (str,), "b": ()})
    with pytest.raises(FormatError, match="line 1: a must be 2 or more; found 1"):
        file.check((), file.tree, {"a": (int,), "b": ()}, {"a": 2})
    with pytest.raises(FormatError, match="line 2: unknown key 'b'; nearest: a, beta"):
        file.check((), file.tree, {"a": (), "beta": ()})


@pytest.mark.parametrize("merge", [False, True])
def test_aliases_that_expand_without_end_are_refused_before_they_do(tmp_path, merge):
    """Nine values, each nine times the one before: 9^10 values from some 350 bytes."""
    lines = ["a0: &a0 {x: 1}" if merge else "a0: &a0 [1]"]
    for i in range(1, 11):
        nine = ", ".join([f"*a{i - 1}"] * 9)
        lines.append(f"a{i}: &a{i} {{<<: [{nine}]}}" if merge else f"a{i}: &a{i} [{nine}]")
    with pytest.raises(FormatError, match=r"aliases .* at most 100,000 are read"):
        read_yaml(written(tmp_path, "\n".join(lines)))


def test_a_few_aliases_are_read(tmp_path):
    text = "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n"
    assert read_yaml(written(tmp_path, text)).tree["c"] == [{"x": 1}] * 2


def fits(option, value):
    return any(is_of_kind(value, kind) for kind in FILE_OPTIONS[option].metadata["kinds"])


@pytest.mark.parametrize(
    ("option", "good", "wrong"),
    [
        ("layers", ["auto", ["1", "2"]], [3, [], [1]]),
        ("beta", [0.5, 1], ["0.5", True, None]),
        ("gradients", [True], [1, "yes"]),
        ("block", [64, "auto"], ["automatic", 1.5, None]),
        ("max_dim", [64, "auto", None], ["none"]),
        ("pool", ["mean", "last"], ["men", 1]),
        ("target", ["labels"], ["label"]),
        ("outputs_of", ["base.rsm", None], [1]),
        ("logits", ["sigmoid"], ["argmax"]),
    ],
)
def test_what_fits(option, good, wrong):
    assert [fits(option, value) for value in good] == [True] * len(good)
    assert [fits(option, value) for value in wrong] == [False] * len(wrong)


def test_what_a_sweep_sets_itself_or_only_python_can_give_is_no_option_of_a_file():
    own = {"call", "checkpoint", "name", "progress", "shard", "tokenizer"}
    assert set(FILE_OPTIONS) == set(vars(RecordConfig())) - own


def test_defaults_fit_what_they_are_defaults_of():
    assert all(fits(name, field.default) for name, field in FILE_OPTIONS.items())


def test_every_value_that_a_file_may_give_is_one_that_record_takes():
    for name, field in FILE_OPTIONS.items():
        for value in field.metadata["kinds"]:
            if not isinstance(value, type):
                RecordConfig(**{"gradients": False, name: value})


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("pool", "flatten, mean, first or last"),
        ("layers", "a text or a list of texts"),
        ("max_dim", "a whole number, auto or null"),
        ("gradients", "true or false"),
        ("beta", "a number"),
    ],
)
def test_words(option, words):
    assert describe_kinds(FILE_OPTIONS[option].metadata["kinds"]) == words
