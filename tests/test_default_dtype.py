"""Results do not depend on torch's default dtype, nor on what it was when a recording was made."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import networks
import resemblance as rs

pytestmark = pytest.mark.filterwarnings("ignore::resemblance.errors.ResemblanceWarning")

MEASURED = ("seconds", "reasons", "date")  # of a run, or texts that hold them


def numbers(value, path=""):
    """Every number and text in a result, by where it is."""
    if isinstance(value, Tensor):
        yield path, value.double().numpy()
    elif isinstance(value, np.ndarray | int | float | str):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from numbers(each, f"{path}.{key}")
    elif isinstance(value, tuple | list):
        for i, each in enumerate(value):
            yield from numbers(each, f"{path}[{i}]")
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in MEASURED:
                yield from numbers(getattr(value, field.name), f"{path}.{field.name}")


def everything(folder):
    """A representative set of what the library computes; networks and data are float32."""
    with_default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    g = torch.Generator().manual_seed(0)
    few, many = torch.randn(120, 6, generator=g), torch.randn(1100, 6, generator=g)
    images, labels = torch.randn(40, 3, 6, 6, generator=g), torch.arange(120) % 5
    net, other = (networks.seeded(networks.MLP, seed=seed) for seed in (0, 1))
    resnet, language = networks.seeded(networks.ResNet), networks.seeded(networks.LittleForCausalLM)
    torch.set_default_dtype(with_default)

    of_tokens = {"tokens": 4, "layers": ["blocks.0", "blocks.1"]}
    a, b = (rs.record(x, (few, labels), elementwise=True) for x in (net, other))
    c, d = (rs.record(x, many, block=32, blocks=16) for x in (net, other))
    shards = [rs.record(net, many, block=32, shard=(i, 2)) for i in range(2)]
    yield "labels", rs.record(net, (few, labels), target="labels", on_bad="skip")
    yield "images", rs.record(resnet, images, pool="mean")
    yield "tokens", rs.record(language, networks.texts(40), **of_tokens)
    yield "half", rs.record(net, few, dtype="bfloat16")
    yield "shards", rs.merge(shards)
    yield "arrays", rs.record_arrays({"layer": few.numpy()}, data_id="x")
    yield "file", rs.load(a.save(folder / f"{with_default}.rsm"))
    for kernel in ("product", "sum", "transport"):
        yield f"few {kernel}", rs.compare(a, b, kernel=kernel)
        yield f"many {kernel}", rs.compare(c, d, kernel=kernel)
    for estimator in ("blocks", "buckets", "ratio"):
        options = {"kernel": "features", "estimator": estimator, "centre": estimator != "ratio"}
        yield estimator, rs.compare(c, d, **options)
    yield "rsa", rs.compare(c, d, kernel="product", index="rsa")
    yield "nbs", rs.compare(a, b, kernel="product", index="nbs")
    yield (
        "all",
        rs.compare_all([c, d, replace(c, model=replace(c.model, name="again"))], kernel="product"),
    )
    yield "behaviour", rs.behaviour(a, b)
    yield "check", rs.check(a, b, max_disagreement=0.9, max_js=0.6, min={"features": 0.1})
    yield "coordinates", rs.coordinates(a, b)
    yield "fisher_rao", rs.fisher_rao(a)
    yield "task2vec", rs.task2vec(net, (few, labels))
    yield "adaptation", rs.adaptation(a, kernel="features")
    yield "trajectory", rs.trajectory([a, b])
    yield "classifier", rs.KernelClassifier(net).fit(few, labels).predict(few)
    yield "recommend", rs.recommend({"one": net, "two": other}, (few, labels))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return dict(everything(tmp_path_factory.mktemp("usual")))


@pytest.fixture
def default(request):
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default")
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], indirect=True, ids=str)
def test_results_do_not_depend_on_the_default_dtype(expected, tmp_path):
    for name, found in everything(tmp_path):
        one, two = (dict(numbers(result)) for result in (expected[name], found))
        assert one.keys() == two.keys()
        assert one, name  # something is compared
        for path, value in one.items():
            if isinstance(value, str):
                assert two[path] == value, (name, path)
            else:  # sums of the same float32 numbers, in the same order
                np.testing.assert_allclose(two[path], value, 1e-6, 1e-9, err_msg=name + path)
