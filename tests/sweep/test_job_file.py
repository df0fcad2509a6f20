"""The file of jobs: patterns, names of pairs, and every mistake with its line."""

from __future__ import annotations

import json
import random

import pytest

from resemblance._data.text import TextOptions
from resemblance.errors import DataError, FormatError
from resemblance.recording.record import NamedRecording
from resemblance.sweep.job_file import (
    NAME_SEPARATOR,
    Pair,
    expand_pattern,
    name_from_address,
    read_jobs,
    safe_file_name,
)


@pytest.fixture
def asked(tmp_path):
    def ask(text):
        (tmp_path / "jobs.yaml").write_text(text)
        return read_jobs(tmp_path / "jobs.yaml")

    return ask


def test_networks_by_data_sets(asked, tmp_path):
    found = asked("models: [a.py:f, timm:x]\ndata: [digits, images/val]\n")
    assert [pair.name for pair in found.pairs] == [
        "a-f--digits", "timm-x--digits", "a-f--images-val", "timm-x--images-val",
    ]  # fmt: skip
    assert (found.base, found.out) == (tmp_path, tmp_path / "results")
    assert found.pairs[0].wanted == NamedRecording("a.py:f", "digits")
    assert found.pairs[0].options == {"name": "a-f"}


def test_all_that_can_be_said(asked, tmp_path):
    (tmp_path / "w").mkdir()
    for name in ("10.pt", "9.pt"):
        (tmp_path / "w" / name).touch()
    found = asked(
        "out: there\n"
        "checkpoint: true\n"
        "options: {seed: 1, beta: 1, on_bad: skip}\n"
        "models:\n"
        "  - {model: a.py:f, weights: w/*.pt, name: net, options: {seed: 2}}\n"
        "  - {model: timm:x, pretrained: true, name: X}\n"
        "data:\n"
        "  val: {data: v, size: 32, raw: true, limit: 9, buffer: 7,\n"
        "    options: {seed: 3, data_id: d}}\n"
        "  text: {data: t.txt, length: 16, packing: each, text_field: body}\n"
    )
    assert found.out == tmp_path / "there"
    nine, ten, pretrained, *texts = found.pairs
    assert [nine.name, ten.name, pretrained.name] == ["net-w-9--val", "net-w-10--val", "X--val"]
    assert nine.wanted == NamedRecording(
        "a.py:f", "v", weights="w/9.pt", size=32, raw=True, skip_bad=True, limit=9, buffer=7
    )
    assert nine.options["seed"] == 2  # the network's own come last
    assert pretrained.options["seed"] == 3
    assert pretrained.options["data_id"] == "d"
    assert pretrained.wanted.pretrained
    assert texts[0].options == {"seed": 2, "beta": 1, "on_bad": "skip", "name": "net-w-9"}
    assert texts[0].wanted.text == TextOptions(16, "each", "body")
    assert all(pair.checkpoint for pair in found.pairs)


def test_what_is_named_twice_is_recorded_once(asked):
    assert len(asked("models: [a.py:f, a.py:f]\ndata: digits\n").pairs) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: a.py:f\n", "line 1: expected data to record, found none"),
        ("data: digits\nmodels: []\n", "line 2: expected models to record, found none"),
        ("modles: a.py:f\n", "line 1: unknown key 'modles'; nearest: models"),
        ("models: a.py:f\ndata: digits\nout: 3\n", "line 3: out must be a text; found 3"),
        ("models: a.py:f\ndata: digits\ncheckpoint: 9\n", "line 3: checkpoint must be true or"),
        ("data: digits\nmodels:\n  - a.py:f\n  - resnet\n", "line 4: no model is named 'resnet'"),
        ("data: digits\nmodels:\n  - a.py:f\n  - 3\n", "line 4: expected the address of models"),
        ("data: digits\nmodels:\n  - weights: a\n", "line 3: expected model: and its address"),
        ("data: digits\nmodels:\n  - x*\n", "line 3: 'x*' matches no folder"),
        (
            "data: digits\nmodels:\n  - model: a.py:f\n    weights: [w*]\n",
            "line 4: 'w*' matches no file",
        ),
        ("models: a.py:f\ndata:\n  d: {data: x, sise: 3}\n", "line 3: unknown key 'sise'"),
        ("models: a.py:f\ndata:\n  d:\n    data: x\n    size: 0\n", "line 5: size must be 1 or"),
        ("models: a.py:f\ndata:\n  d: {data: x, packing: all}\n", "packing must be packed or each"),
        (
            "models: a.py:f\ndata: x\noptions:\n  seed: 0\n  bucket: 3\n",
            "line 5: unknown key 'bucket'; nearest: buckets",
        ),
        (
            "models: a.py:f\ndata: x\noptions:\n  pool: men\n",
            "line 4: pool must be flatten, mean, first or last; found 'men'",
        ),
        ("models: a.py:f\ndata: x\noptions: 3\n", "line 3: options must be names with values"),
        (
            "models: [a.py:f, A.py:f]\ndata: x\n",
            "line 1: 'A-f--x' would be the name of a.py:f on x and of A.py:f on x; give one",
        ),
    ],
)
def test_mistakes(asked, text, says):
    with pytest.raises(FormatError) as error:
        asked(text)
    assert says in str(error.value)


@pytest.fixture
def base(tmp_path):
    for name in ("runs/checkpoint-9", "runs/checkpoint-10", "runs/logs", "odd[1]"):
        (tmp_path / name).mkdir(parents=True)
        if "log" not in name:
            (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "runs/a.pt").touch()
    return tmp_path


def test_folders_of_models(base):
    found = ["hf:runs/checkpoint-9", "hf:runs/checkpoint-10"]
    assert expand_pattern("runs/*", base, "model") == found
    assert expand_pattern("hf:**/checkpoint-*", base, "model") == found
    assert expand_pattern("hf:odd[1]", base, "model") == ["hf:odd[1]"]


def test_files_and_data(base):
    assert expand_pattern("runs/*", base, "weights") == ["runs/a.pt"]
    assert len(expand_pattern("runs/*", base, "data")) == 4
    assert expand_pattern("hf:runs/c*-9", base, "data") == ["hf:runs/checkpoint-9"]


@pytest.mark.parametrize("address", ["timm:vit_*", "nets.py:f*", "digits"])
def test_what_is_no_pattern(base, address):
    assert expand_pattern(address, base, "model") == [address]


def test_what_matches_nothing(base):
    with pytest.raises(DataError, match=r"'x/\*' matches no folder of Hugging Face's"):
        expand_pattern("x/*", base, "model")
    with pytest.raises(DataError, match=r"write model: FILE.py:FUNCTION and weights: runs/\*\.pt"):
        expand_pattern("runs/*.pt", base, "model")
    with pytest.raises(DataError, match="matches no file below"):
        expand_pattern("runs/*.bin", base, "weights")


def test_a_name_is_safe_whatever_it_is_made_of():
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(chr(draw.randrange(1, 0x2FF)) for _ in range(draw.randrange(200)))
        name = safe_file_name(text)
        assert name == safe_file_name(name)  # what is safe stays
        assert 0 < len(name.encode()) <= 90
        assert not {*name}.intersection('/\\:*?"<>| \n\0')
        assert name[0] not in ".-"
        assert NAME_SEPARATOR not in name


def test_long_names_that_differ_at_the_end_stay_apart():
    long = "a" * 300
    assert safe_file_name(f"{long}1") != safe_file_name(f"{long}2")
    assert safe_file_name("é" * 300).encode().decode()  # not cut within a character


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("hf:org/model", "org-model"),
        ("/data/x.npz", "data-x"),
        ("../runs/seed 3/last.safetensors", "runs-seed-3-last"),
        ("sub/nets.py:small", "sub-nets-small"),
        ("torchvision:resnet18", "torchvision-resnet18"),
        ("v1.5/model", "v1.5-model"),
        ("///", "unnamed"),
    ],
)
def test_names_of_addresses(address, name):
    assert name_from_address(address) == name


def test_what_a_pair_asks_for_and_opens():
    wanted = NamedRecording("nets.py:a", "x", weights="w.pt", text=TextOptions(8), device="cuda")
    pair = Pair("a--x", "x", wanted, {"seed": 1})
    asked = json.loads(json.dumps(pair.asked))
    assert (asked["weights"], asked["options"], asked["text"]["length"]) == ("w.pt", {"seed": 1}, 8)
    assert "device" not in asked
    other = Pair("b--x", "x", NamedRecording("nets.py:b", "x", text=TextOptions(8)))
    assert other.opens == pair.opens
    assert Pair("c", "x", NamedRecording("nets.py:b", "x", limit=3)).opens != pair.opens
