"""Pairs have names that file systems take, that differ, and that stay."""

from __future__ import annotations

import json
import random

import pytest

from resemblance._data.tokenized_text import TextOptions
from resemblance.recording.by_name import Wanted
from resemblance.sweep.pairs import BETWEEN, Pair, joined, name_of, safe


def test_a_name_is_safe_whatever_it_is_made_of():
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(chr(draw.randrange(1, 0x2FF)) for _ in range(draw.randrange(200)))
        name = safe(text)
        assert name == safe(name)  # what is safe stays
        assert 0 < len(name.encode()) <= 90
        assert not {*name}.intersection('/\\:*?"<>| \n\0')
        assert name[0] not in ".-"
        assert BETWEEN not in name


def test_long_names_that_differ_at_the_end_stay_apart():
    long = "a" * 300
    assert safe(f"{long}1") != safe(f"{long}2")
    assert safe("é" * 300).encode().decode()  # not cut within a character


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
    assert name_of(address) == name


def test_what_a_pair_asks_for_and_opens():
    wanted = Wanted("nets.py:a", "x", weights="w.pt", text=TextOptions(8), device="cuda")
    pair = Pair(joined("a", "x"), "a", "x", wanted, {"seed": 1})
    asked = json.loads(json.dumps(pair.asked))
    assert (asked["weights"], asked["options"], asked["text"]["length"]) == ("w.pt", {"seed": 1}, 8)
    assert "device" not in asked
    other = Pair("b--x", "b", "x", Wanted("nets.py:b", "x", text=TextOptions(8)))
    assert other.opens == pair.opens
    assert Pair("c", "b", "x", Wanted("nets.py:b", "x", limit=3)).opens != pair.opens
