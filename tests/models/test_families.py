"""Real families of networks: what `auto` picks of each, recorded with the defaults."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path

import families
import pytest

from optional_libraries import needs

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs/reference/layers.md"
FEW = {"resnet18", "convnext_atto", "swin_tiny_patch4_window7_224", "llama", "t5", "clip"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*standard errors may be too small"),
    # logits of every image against every text; in GCViT, the global query of another image
    pytest.mark.filterwarnings("ignore:.*depends on the rest of its batch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of libraries among themselves
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is a masked language model"),  # no tokenizer comes with it
]


def listed(found, package):
    marks = [needs(package)]
    return [
        pytest.param(
            family, id=family.name, marks=marks + [pytest.mark.slow] * (family.name not in FEW)
        )
        for family in found
    ]


@pytest.fixture(scope="module")
def build_models():
    spec = importlib.util.spec_from_file_location("build_models", ROOT / "docs/build_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows():
    lines = [line for line in MADE.read_text().splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


@pytest.mark.parametrize(
    "family", listed(families.TIMM, "timm") + listed(families.TRANSFORMERS, "transformers")
)
def test_auto_takes_the_blocks_a_family_is_made_of(family, build_models):
    net, rep = families.recorded(family)
    modules = dict(net.named_modules())
    kinds = {
        name: type(modules[name.split("#")[0]]).__name__
        for name in rep.layer_names
        if not name.endswith(":in")
    }
    blocks = [name for name, kind in kinds.items() if kind in family.blocks.split()]
    assert len(blocks) == family.number
    assert set(family.blocks.split()) == {kinds[name] for name in blocks}
    stems = [name for name in kinds if name not in blocks]
    assert len(stems) <= (2 if "text" in str(family.inputs) and family.number > 3 else 1)
    for layer in rep:
        for kind in layer.kinds:
            assert math.isfinite(layer.recorded(kind).trace), (layer.name, kind)
            assert layer.recorded(kind).trace > 0, (layer.name, kind)
    with_gradients = family.options.get("gradients", True)
    assert all(("gradients" in layer.kinds) == with_gradients for layer in rep)
    assert rows()[family.name] == build_models.row(family, rep.layer_names), (
        "run python docs/build_models.py"
    )


WIDTHS = {  # of the channels at each stage
    "swin_tiny_patch4_window7_224": [16, 32, 64, 128],
    "swinv2_tiny_window8_256": [16, 32, 64, 128],
    "mambaout_femto": [8, 16, 24, 32],
    "volo": [24, 48],
    "nest": [16, 32],
    "tiny_vit_5m_224": [16, 32, 48, 64],
    "convnext_atto": [8, 16, 24, 32],
    "davit_tiny": [16, 32, 48, 64],
    "coatnet_nano_rw_224": [16, 32, 64],
    "resnet18": [64, 128, 256, 512],
}


@needs("timm")
@pytest.mark.parametrize("name", WIDTHS)
def test_a_mean_over_pixels_leaves_the_channels_wherever_they_are(name):
    family = next(family for family in families.TIMM if family.name == name)
    pooled = dataclasses.replace(family, options={"pool": "mean", "gradients": False})
    net, rep = families.recorded(pooled)
    modules = dict(net.named_modules())
    kinds = {n: type(modules[n]).__name__ for n in rep.layer_names if not n.endswith(":in")}
    widths = {rep[n].dim for n, kind in kinds.items() if kind in family.blocks.split()}
    assert sorted(widths) == WIDTHS[name]


def test_the_page_of_families_is_up_to_date(build_models):
    assert MADE.read_text() == build_models.page(rows()), "run python docs/build_models.py"


def test_there_are_as_many_families_as_the_page_promises():
    assert len({family.name for family in families.TIMM}) == len(families.TIMM) >= 60
    names = {family.name for family in families.TRANSFORMERS}
    assert len(names) == len(families.TRANSFORMERS) >= 25


def test_successive_names_are_written_as_one(build_models):
    names = ["stem", "b.0.0", "b.0.1", "b.1.0", "b.1.1", "b.1.2", "head:in"]
    assert build_models.short(names) == ["stem", "b.0.{0..1}", "b.1.{0..2}", "head:in"]
