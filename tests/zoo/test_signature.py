"""Signatures against CKA of plain float64 kernels, and their randomness by its theorem."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import made_up
import reference_compare
import resemblance as rs
from resemblance.zoo.signature import (
    DEPTHS,
    SEARCH_KERNELS,
    WIDTH,
    depth_indices,
    layers_at_depths,
    signature,
    signature_checksums,
    signatures,
    verified_signatures,
)


def exact(kernel, one, two, names):
    """The mean CKA over layers of these names."""
    kernels = [[reference_compare.kernel(kernel, f[x], g[x]) for x in names] for f, g in (one, two)]
    centred = kernel == "features"
    return np.mean(
        [reference_compare.cka(a, b, centred=centred) for a, b in zip(*kernels, strict=True)]
    )


def cosine(a, b):
    return float(a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("kernel", SEARCH_KERNELS)
@pytest.mark.parametrize("samples", [200, 1100])  # a kernel of all, and blocks
def test_the_cosine_is_the_mean_cka_without_bias_and_of_the_spread_of_a_sketch(kernel, samples):
    data = [made_up.related(seed, samples) for seed in (1, 2)]
    reps = [rs.record_arrays(f, g, data_id="x") for f, g in data]
    truth = exact(kernel, *data, ["l0", "l1"])
    found = np.array(
        [
            cosine(*(signature(rep, kernel, layers_at_depths(rep), seed=seed) for rep in reps))
            for seed in range(24)
        ]
    )
    # blocks hold a part of the pairs that there are, and so have an error of their
    # own, which no projection changes
    of_blocks = 0.0 if samples == 200 else 2 * rs.compare(*reps, kernel=kernel).stderr.max()
    most = 1 / (WIDTH * DEPTHS) ** 0.5
    assert found.mean() == pytest.approx(truth, abs=3 * most / 24**0.5 + of_blocks + 2e-3)
    # of 24 draws, a standard deviation is known to a seventh of itself
    assert 0.3 * (1 - truth**2) * most < found.std() < 1.5 * most


def test_each_depth_has_a_projection_of_its_own_with_a_spread_of_one_over_its_root():
    f = {"a": made_up.population(1, 150, 40)[0], "b": made_up.population(2, 150, 40)[0]}
    a, b = (rs.record_arrays(x, data_id="x") for x in f.values())
    truth = reference_compare.cka(*(x @ x.T for x in f.values()), centred=True)
    found = []
    for seed in range(20):
        one, two = (
            signature(x, "features", [x[0]] * DEPTHS, seed=seed).reshape(DEPTHS, WIDTH) * 2.0
            for x in (a, b)
        )
        found.append((one * two).sum(1))
    errors = np.array(found) - truth
    assert errors.std() == pytest.approx((1 - truth**2) / WIDTH**0.5, rel=0.3)
    assert abs(np.corrcoef(errors.T)[np.triu_indices(DEPTHS, 1)]).max() < 0.75  # 3.2 of 1/√20


def test_a_signature_has_length_one_and_is_like_itself():
    rep = made_up.recorded(1, 90)
    found = signatures(rep)
    assert set(found) == set(SEARCH_KERNELS)
    for x in found.values():
        assert x.shape == (DEPTHS * WIDTH,)
        assert x.dtype == np.float16
        assert cosine(x, x) == pytest.approx(1, abs=2e-3)  # 16 bits
    again = signatures(made_up.recorded(1, 90))
    assert all(np.array_equal(found[key], again[key]) for key in found)


def test_the_projection_stays_what_it_was():
    """Signatures of zoos that were filled before must meet those of today."""
    f = np.arange(24, dtype=float).reshape(8, 3) % 5
    x = signatures(rs.record_arrays(f, data_id="x"))["features"].reshape(DEPTHS, WIDTH)
    assert [np.flatnonzero(row)[:4].tolist() for row in x] == [
        [28, 35, 45, 57],
        [14, 52, 78, 79],
        [5, 27, 90, 113],
        [46, 55, 74, 78],
    ]


def test_what_was_not_recorded_has_no_signature():
    f, g = made_up.related(1, 60)
    assert set(signatures(rs.record_arrays(f, data_id="x"))) == {"features"}
    assert signatures(rs.record_arrays(f, g, data_id="x", blocks=0)) == {}


def test_a_layer_that_is_left_out_or_constant_adds_nothing():
    f = made_up.related(1, 60)[0] | {"l9": np.ones((60, 3))}
    rep = rs.record_arrays(f, data_id="x")
    constant = signature(rep, "features", [rep["l9"]] * DEPTHS)
    assert not constant.any()
    found = signature(rep, "features", [None, rep["l0"], None, None]).reshape(DEPTHS, WIDTH)
    assert found[1].any()
    assert not found[[0, 2, 3]].any()
    assert cosine(found.ravel(), found.ravel()) == pytest.approx(1, abs=2e-3)


def test_a_kernel_that_was_not_kept_whole_meets_the_pairs_of_its_blocks():
    f, g = made_up.related(1, 300)
    rep = rs.record_arrays(f, g, data_id="x")
    whole = rep["l0"].features.whole
    assert whole is not None
    blocks = replace(rep["l0"].features, whole=None, blocks=whole.blocks)
    cut = replace(rep, layers=(replace(rep["l0"], features=blocks), rep["l1"]))
    one, two = (signatures(x)["features"].reshape(DEPTHS, WIDTH) * 2.0 for x in (rep, cut))
    found = (one * two).sum(1)
    assert found[2:] == pytest.approx(1, abs=2e-3)  # the second layer is as it was
    # as many pairs as blocks have, of all that there are
    share = sum(n * n for n in rep.block_sizes) / 300**2
    assert found[:2] == pytest.approx(share**0.5, abs=0.1)


def test_large_means_do_not_drown_differences():
    f, g = made_up.related(1, 120)
    moved = {name: x + 1e3 for name, x in f.items()}
    one, two = (signatures(rs.record_arrays(x, g, data_id="x"))["features"] for x in (f, moved))
    assert cosine(one, two) > 0.999


def test_blocks_too_small_to_centre_say_nothing():
    f, g = made_up.related(1, 9)
    rep = rs.record_arrays(f, g, data_id="x", block=3)
    assert signatures(rep)["gradients"].any()


@pytest.mark.parametrize(("layers", "places"), [(1, [0] * 4), (3, [0, 1, 1, 2]), (4, [0, 1, 2, 3])])
def test_depths_run_from_the_first_layer_to_the_last(layers, places):
    assert depth_indices(layers) == places


def test_stored_signatures_are_compared_with_their_checksums():
    whole, short = (np.arange(n, dtype="<f2").tobytes() for n in (DEPTHS * WIDTH, 8))
    facts = {
        name: json.dumps({"signatures": signature_checksums({"features": x})})
        for name, x in (("whole", whole), ("short", short))
    }
    rows = [
        ("a", facts["whole"], whole),
        ("flipped", facts["whole"], whole[::-1]),
        ("missing", facts["whole"], None),
        ("of a different width", facts["short"], short),
        ("without one", json.dumps({"signatures": {}}), whole),
        ("without checksums", "{}", whole),
        ("facts that are no text", 3, whole),
    ]
    ids, found = verified_signatures(rows, "features")
    assert ids == ["a", "flipped", "missing", "without checksums", "facts that are no text"]
    assert np.isnan(found).all(1).tolist() == [False, True, True, True, True]
    assert found[0].tobytes() == whole
    assert verified_signatures([], "features")[1].shape == (0, DEPTHS * WIDTH)
