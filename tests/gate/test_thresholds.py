"""Thresholds: the same from arguments, words and files, and what is refused, word by word."""

from __future__ import annotations

import pytest

import resemblance as rs
from resemblance.errors import DataError, FormatError
from resemblance.gate.thresholds import Threshold, collect_thresholds

FILE = """
max-disagreement = 0.02
max-kl = { mean = 0.5, "p99.9" = 2 }
max-js = "p95=0.1"
min-kappa = 0.9
min-db = 20

[min]
gradients = 0.8
"mean:features" = 0.95
"""
EXPECTED = [
    Threshold("disagreement", 0.02),
    Threshold("kl", 0.5, cap=1.0),
    Threshold("kl", 2.0, percentile=99.9),
    Threshold("js", 0.1, percentile=95.0),
    Threshold("kappa", 0.9),
    Threshold("decibels", 20.0),
    Threshold("score", 0.8, "gradients"),
    Threshold("score", 0.95, "features", mean=True),
]


@pytest.fixture
def file(tmp_path):
    def written(text):
        (tmp_path / "t.toml").write_text(text, encoding="utf-8")
        return tmp_path / "t.toml"

    return written


def test_arguments_words_and_a_file_say_the_same(file):
    given = {"max_disagreement": 0.02, "max_js": ["p95=0.1"], "min_kappa": 0.9, "min_db": 20}
    given["max_kl"] = {"mean": 0.5, "p99.9": 2}
    assert list(collect_thresholds(thresholds=file(FILE))) == EXPECTED
    assert (
        list(collect_thresholds(min={"gradients": 0.8, "mean:features": 0.95}, **given)) == EXPECTED
    )
    assert (
        list(collect_thresholds(min=["gradients=0.8", "mean:features=0.95"], **given)) == EXPECTED
    )
    given["max_kl"] = ["p99.9=2", "0.5"]
    assert set(collect_thresholds(min=["gradients=0.8", "mean:features=0.95"], **given)) == set(
        EXPECTED
    )
    assert collect_thresholds(min="gradients=.8")[0] == EXPECTED[-2]
    assert collect_thresholds(max_kl="mean=0.5") == collect_thresholds(max_kl=0.5) == (EXPECTED[1],)


def test_what_is_given_replaces_what_the_file_says(file):
    found = collect_thresholds(max_kl=0.2, min="gradients=0.9", max_js=0.1, thresholds=file(FILE))
    limits = {threshold.name: threshold.limit for threshold in found}
    assert limits == {
        "max-disagreement": 0.02, "max-kl": 0.2, "max-kl p99.9": 2, "max-js p95": 0.1,
        "min-kappa": 0.9, "min-db": 20.0, "min gradients": 0.9, "min mean:features": 0.95,
        "max-js": 0.1,
    }  # fmt: skip


def test_the_cap_of_kl_from_an_argument_a_file_or_by_default(file):
    text = "max-kl = 2\nkl-cap = 3"
    assert collect_thresholds(max_kl=0.5)[0].cap == 1
    assert collect_thresholds(thresholds=file(text))[0].cap == 3
    assert collect_thresholds(thresholds=file(text), kl_cap=5)[0].cap == 5
    assert collect_thresholds(max_kl=4, kl_cap=5)[0].cap == 5
    assert collect_thresholds(max_kl="p99=4")[0].allowed == 0.01
    with pytest.raises(DataError, match="max-kl must be below kl-cap, which is 1; found 2"):
        collect_thresholds(thresholds=file("max-kl = 2"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no threshold was given; give one or more of"),
        ({"max_disagreement": 2}, r"must be above 0 and below 1, a share .*0\.02 for 2 %.*found 2"),
        ({"max_disagreement": 0}, "max-disagreement must be above 0"),
        ({"max_disagreement": True}, "found True"),
        ({"max_kl": -1}, "max-kl must be above 0, in nats; found -1"),
        ({"max_js": float("inf")}, "max-js must be above 0, in nats; found inf"),
        ({"max_kl": 1}, "max-kl must be below kl-cap, which is 1; found 1"),
        ({"max_kl": 0.1, "kl_cap": 0.05}, "max-kl must be below kl-cap, which is 0.05"),
        ({"max_kl": 0.1, "kl_cap": -1}, "kl-cap must be above 0 and finite"),
        ({"max_kl": "high"}, "max-kl must be x, mean=x or pNN=x, such as .*; found 'high'"),
        ({"max_kl": "p100=0.5"}, "max-kl must be x, mean=x or pNN=x.*found 'p100=0.5'"),
        ({"max_kl": {"p0": 0.5}}, "max-kl must be x, mean=x or pNN=x.*found 'p0=0.5'"),
        ({"max_kl": {"p99": "a"}}, "max-kl p99 must be above 0, in nats; found 'a'"),
        ({"max_kl": ["0.1", "mean=0.2"]}, "max-kl was given twice; omit one"),
        ({"min_kappa": 1}, "min-kappa must be above 0 and below 1; found 1"),
        ({"min_db": float("nan")}, "min-db must be finite; found nan"),
        ({"min": {"gradients": 1}}, "min gradients must be above 0 and below 1; found 1"),
        ({"min": {"gradients": "0.8"}}, "min gradients must be .* found '0.8'"),
        (
            {"min": ["gradients"]},
            "expected KERNEL=x or mean:KERNEL=x, such as gradients=0.8; found",
        ),
        ({"min": ["gradients=high"]}, "expected KERNEL=x .* found 'gradients=high'"),
        ({"min": [0.8]}, "expected KERNEL=x .* found 0.8"),
        ({"min": ["gradient=0.8"]}, "no kernel is named 'gradient'; nearest: gradients"),
        ({"min": ["median:gradients=0.8"]}, "no kernel is named 'median:gradients'"),
        ({"min": ["sum=0.8", "sum=0.9"]}, "min sum was given twice; omit one"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(DataError, match=message):
        collect_thresholds(**given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max-disagreement 0.02",
            r"t\.toml cannot be read as TOML .*expected lines such as max-dis",
        ),
        ("max_disagreement = 0.02", "no threshold is named 'max_disagreement'; there are max-dis"),
        ("min = 0.8", "min must be a table of kernels, such as .*; found 0.8"),
        ("[min]\nproducts = 0.8", r"t\.toml: no kernel is named 'products'; nearest: product"),
        ("[min]\nfeatures = '0.8'", "min features must be .* found '0.8'"),
        ("kl-cap = '2'", "kl-cap must be above 0 and finite"),
        ("max-js = 0", "max-js must be above 0, in nats; found 0"),
    ],
)
def test_what_is_refused_of_a_file(file, text, message):
    with pytest.raises(FormatError, match=message):
        collect_thresholds(thresholds=file(text))


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(FormatError, match=r"no file at .*gone.toml; expected a TOML file"):
        collect_thresholds(thresholds=tmp_path / "gone.toml")
    with pytest.raises(FormatError, match="cannot be read as TOML"):
        collect_thresholds(thresholds=tmp_path)
    (tmp_path / "t.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="cannot be read as TOML"):
        collect_thresholds(thresholds=tmp_path / "t.toml")


def test_mistakes_are_told_before_files_are_read():
    with pytest.raises(DataError, match="no threshold was given"):
        rs.check("gone.rsm", "gone.rsm")
