"""Average linkage and the order of leaves: SciPy's, without SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from resemblance.similarity import clustering


def random_distances(seed, n):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return np.linalg.norm(x[:, None] - x, axis=-1)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 30))
def test_average_linkage_is_scipys(seed, n):
    distance = random_distances(seed, n)
    expected = hierarchy.linkage(squareform(distance, checks=False), "average")
    found = clustering.average_linkage(distance)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert clustering.leaf_order(found) == hierarchy.leaves_list(expected).tolist()


def test_equal_distances_still_make_a_tree():
    links = clustering.average_linkage(1 - np.eye(6))
    assert links.shape == (5, 4)
    assert links[-1, 3] == 6
    assert sorted(clustering.leaf_order(links)) == list(range(6))


def test_one_item_is_a_tree_without_merges():
    links = clustering.average_linkage(np.zeros((1, 1)))
    assert links.shape == (0, 4)
    assert clustering.leaf_order(links) == [0]


def test_a_dendrogram_is_cut_at_its_widest_gap():
    distance = np.full((5, 5), 0.9)
    for group in ((0, 3), (1, 4)):
        distance[np.ix_(group, group)] = 0.2
    np.fill_diagonal(distance, 0)
    groups, gap = clustering.cut(clustering.average_linkage(distance))
    assert groups == [[0, 3], [1, 4], [2]]
    assert gap == pytest.approx((0.2, 0.9))
