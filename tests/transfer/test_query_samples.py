"""At most so many samples, by class, from whatever holds them."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from resemblance.errors import DataError
from resemblance.transfer.query_samples import draw_query, stratified_positions

X = torch.arange(200.0)[:, None].repeat(1, 3)
Y = torch.tensor([0] * 150 + [1] * 45 + [2] * 5)


def values(query):
    """The samples drawn, by their own number, and the labels beside them."""
    if isinstance(query.samples, tuple | torch.Tensor):
        x = query.samples[0] if isinstance(query.samples, tuple) else query.samples
    else:
        data = query.samples.dataset if isinstance(query.samples, DataLoader) else query.samples
        x = torch.stack([data[i][0] for i in range(len(data))])
    return x[:, 0].long().numpy()


def sources():
    data = TensorDataset(X, Y)
    return {
        "arrays": ((X, Y), None),
        "apart": (X, Y),
        "dict": ({"x": X, "labels": Y}, None),
        "data set": (data, None),
        "loader": (DataLoader(data, batch_size=16), None),
        "set and apart": (TensorDataset(X), Y.tolist()),
    }


@pytest.mark.parametrize("kind", list(sources()))
def test_each_class_has_its_share_and_every_sample_its_label(kind):
    query = draw_query(*sources()[kind], at_most=40)
    assert query.count == 40
    assert query.total == 200
    assert query.classes == 3
    assert np.bincount(query.labels).tolist() == [30, 9, 1]
    if kind != "dict":
        assert (Y[values(query)].numpy() == query.labels).all()


def test_the_draw_is_a_function_of_the_seed():
    one, again, other = (stratified_positions(Y.numpy(), 40, seed) for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    assert len(set(one.tolist())) == 40


def test_a_class_is_never_lost_and_there_are_never_more_than_asked_for():
    labels = np.array([0] * 500 + list(range(1, 21)))
    found = stratified_positions(labels, 30, seed=0)
    assert len(found) == 30
    assert set(labels[found]) == set(range(21))
    assert len(stratified_positions(labels, 10, seed=0)) == 21  # one of each class is the least


def test_few_samples_are_taken_whole():
    assert draw_query((X, Y), at_most=200).samples[0] is X


@pytest.mark.parametrize("data", [X, TensorDataset(X), DataLoader(TensorDataset(X))])
def test_data_without_labels_are_refused_with_what_to_do(data):
    with pytest.raises(DataError, match=r"no labels.*a few hundred are enough, and pass `labels`"):
        draw_query(data)


def test_a_stream_is_read_until_there_is_enough():
    read = []

    def batches():
        while len(read) < 1000:  # as good as endless
            read.append(20)
            yield X[::10], Y[::10]

    query = draw_query(batches(), at_most=170)
    assert query.count == query.total == 170
    assert len(read) < 20
    assert (Y[values(query)].numpy() == query.labels).all()
    with pytest.raises(DataError, match="the data are empty"):
        draw_query(iter(()))


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="199 labels for 200 samples"):
        draw_query(X, Y[:-1])
    with pytest.raises(DataError, match="two or more classes"):
        draw_query(X, torch.zeros(200))
    with pytest.raises(DataError, match="200 labels that differ among 200 samples, of which 200"):
        draw_query(X, torch.arange(200) / 7)
    with pytest.raises(DataError, match="100 labels that differ among 200 samples, of which 50"):
        draw_query(X, torch.arange(200) // 2, at_most=50)
    for missing in ([None] * 200, [float("nan")] * 200):
        with pytest.raises(DataError, match="remove samples without"):
            draw_query(X, missing)


def test_names_are_labels():
    query = draw_query(X, np.array(["cat", "dog", "owl"])[Y], at_most=40)
    assert sorted(set(query.labels)) == ["cat", "dog", "owl"]


@pytest.mark.parametrize("data", [X[:0], (X[:0], Y[:0]), TensorDataset(X[:0], Y[:0])])
def test_no_samples_are_refused(data):
    with pytest.raises(DataError, match="the data are empty"):
        draw_query(data)
