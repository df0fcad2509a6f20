"""Task2Vec against closed forms: value, convergence, chunks, files, and every refusal."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import networks
import reference_analysis as reference
from resemblance import record
from resemblance.analysis.task2vec import TaskEmbedding, task2vec
from resemblance.errors import DataError, FormatError, LayerError, MismatchError, TargetError
from resemblance.representation import tensor_file


def convolutional(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def logistic():
    torch.manual_seed(0)
    net = nn.Linear(5, 4)
    x = torch.randn(40, 5)
    w, b = (p.detach().double().numpy() for p in (net.weight, net.bias))
    return nn.Sequential(net), x, reference.fisher_of_logistic_regression(x.double().numpy(), w, b)


def one_by_one(model, x):
    """Σ_y p_y (∂ log p_y)², one backward a sample and class, in float64."""
    model = model.double().eval()
    names = [n for n, p in model.named_parameters() if p.ndim > 1][:-1]
    own = dict(model.named_parameters())
    total = dict.fromkeys(names, 0.0)
    for sample in x.double():
        log_p = model(sample[None]).log_softmax(1)[0]
        for value in log_p:
            gradients = torch.autograd.grad(value, [own[n] for n in names], retain_graph=True)
            for n, g in zip(names, gradients, strict=True):
                total[n] = total[n] + value.exp().detach() * (g**2).flatten(1).mean(1)
    model.float()
    return {n: (v / len(x)).numpy() for n, v in total.items()}


def test_expectation_is_the_closed_form_of_logistic_regression():
    net, x, truth = logistic()
    found = task2vec(net, x, draws=None, head=True)
    np.testing.assert_allclose(found.vector, truth, rtol=1e-5)
    assert found.draws is None
    assert found.samples == 40


def test_expectation_is_one_backward_a_sample_and_class():
    model, x = convolutional(), torch.randn(12, 1, 6, 6)
    found = task2vec(model, x)
    truth = one_by_one(model, x)
    assert list(found.fisher) == ["0.weight", "5.weight"]  # in order, without the head
    for name in truth:
        np.testing.assert_allclose(found.fisher[name], truth[name], rtol=1e-4)


def test_monte_carlo_is_unbiased_and_converges():
    net, x, truth = logistic()
    error = {}
    for draws in (1, 16, 256):
        seeds = range(200 if draws == 1 else 8)
        found = np.stack([task2vec(net, x, draws=draws, seed=s, head=True).vector for s in seeds])
        error[draws] = np.abs(found - truth).mean()
        if draws == 1:
            standard = found.std(0) / len(found) ** 0.5
            assert (np.abs(found.mean(0) - truth) < 4 * standard).all()
    # 16 times the labels, a quarter of the error; a factor of two is left for chance
    assert error[16] < error[1] / 2
    assert error[256] < error[16] / 2


@pytest.mark.parametrize("draws", [None, 3])
def test_chunks_do_not_change_the_embedding(draws):
    model, x = convolutional(), torch.randn(20, 1, 6, 6)
    found = [task2vec(model, x, draws=draws, chunk=c).vector for c in (1, 7, 64)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found[0], found[2], rtol=1e-5, atol=1e-9)


def test_auto_takes_the_expectation_for_few_classes_and_draws_for_many():
    x = torch.randn(4, 3)
    few = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 16))
    many = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 17))
    assert task2vec(few, x).draws is None
    assert task2vec(many, x).draws == 10


def test_labels_in_the_data_are_not_read_and_dicts_go_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, pixels):
            return {"logits": self.head(self.body(pixels).relu())}

    torch.manual_seed(0)
    model, x = Named(), torch.randn(9, 3)
    plain = task2vec(model, {"pixels": x})
    labelled = task2vec(model, {"pixels": x, "labels": torch.zeros(9).long()})
    assert torch.equal(plain.vector, labelled.vector)


def test_model_is_untouched():
    model = convolutional().train()
    model[0].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    task2vec(model, torch.randn(6, 1, 6, 6))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()][:2] == [False, True]
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def embedding(values, name="w"):
    return TaskEmbedding({name: torch.tensor(values, dtype=torch.float64)}, 1, None, "t")


def test_distances_are_those_of_the_paper():
    a, b = np.array([1.0, 2.0, 5.0]), np.array([2.0, 2.0, 0.5])
    ea, eb = embedding(a.tolist()), embedding(b.tolist())
    assert ea.cosine(eb) == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert ea.distance(eb) == pytest.approx(reference.weighted(a, b)) == eb.distance(ea)
    flat = reference.weighted(a, np.full(3, a.mean()))
    assert ea.complexity() == pytest.approx(flat)
    assert ea.asymmetric(eb, weight=0.2) == pytest.approx(reference.weighted(a, b) - 0.2 * flat)
    assert ea.distance(ea) == pytest.approx(0, abs=1e-12)
    dead = embedding([1.0, 0.0]), embedding([2.0, 0.0])
    assert dead[0].distance(dead[1]) == pytest.approx(0, abs=1e-12)


def test_file_round_trip_and_refusal_of_others(tmp_path):
    found = task2vec(convolutional(), torch.randn(6, 1, 6, 6), name="probe")
    path = found.save(tmp_path / "task.rsm")
    loaded = TaskEmbedding.load(path)
    assert list(loaded.fisher) == list(found.fisher)
    assert torch.equal(loaded.vector, found.vector)
    assert (loaded.samples, loaded.draws, loaded.name) == (6, None, "probe")
    assert repr(loaded) == "TaskEmbedding('probe', 10 filters, 6 samples)"
    record(convolutional(), torch.randn(60, 1, 6, 6)).save(tmp_path / "rep.rsm")
    with pytest.raises(FormatError, match="no TaskEmbedding"):
        TaskEmbedding.load(tmp_path / "rep.rsm")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda h, t: h["task2vec"].pop("name"), "task2vec.name is missing"),
        (lambda h, t: h["task2vec"].update(later=1), "keys of task2vec that .* not know: .'later'"),
        (lambda h, t: h["task2vec"].update(samples=0), "samples must be a whole number from 1 up"),
        (lambda h, t: h["task2vec"].update(draws=True), "draws must be a whole number"),
        (lambda h, t: h.update(task2vec=[]), "task2vec must be an object, found"),
        (lambda h, t: h.pop("parameters"), "parameters is missing"),
        (lambda h, t: h.update(parameters=["a"]), "for each of 1 parameters .*, found 2 for 1"),
        (lambda h, t: h.update(parameters=["a", "a"]), "of different names, found 2 for 1"),
        (lambda h, t: h.update(parameters=[["a"], "b"]), "parameters must be a list of 1 or more"),
        (lambda h, t: t.pop("0"), "one tensor for each of 2 parameters .*, found 1"),
        (lambda h, t: t.update({"0": t["0"].long()}), "must be a vector of finite .*torch.int64"),
        (lambda h, t: t.update({"0": t["0"][None]}), r"found torch.float64 of shape \[1, 2\]"),
        (lambda h, t: t["1"].fill_(-1), "information of 'b' must be a vector of finite numbers"),
        (lambda h, t: t["1"].fill_(torch.nan), "information of 'b' must be a vector of finite"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_by_name(tmp_path, edit, words):
    fisher = {"a": torch.ones(2).double(), "b": torch.ones(3).double()}
    header, tensors = tensor_file.read_tensors(
        TaskEmbedding(fisher, 4, None, "x").save(tmp_path / "x.rsm")
    )
    edit(header, tensors)
    path = tensor_file.write_tensors(tmp_path / "edited.rsm", header, tensors)
    with pytest.raises(FormatError, match=f"is not a valid TaskEmbedding: .*{words}"):
        TaskEmbedding.load(path)


def test_refusals():
    x = torch.randn(4, 3)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(DataError, match="`draws` must be"):
        task2vec(net, x, draws=0)
    with pytest.raises(DataError, match="`chunk` must be"):
        task2vec(net, x, chunk=0)
    with pytest.raises(TargetError, match="two or more classes"):
        task2vec(nn.Linear(3, 1), x)
    with pytest.raises(LayerError, match="head=True"):
        task2vec(nn.Sequential(nn.Linear(3, 2)), x)
    with pytest.raises(DataError, match="NaN or Inf"):
        task2vec(net, x * torch.nan)
    with pytest.raises(MismatchError, match="'w' has 2 filters in one and 3"):
        embedding([1.0, 2.0]).cosine(embedding([1.0, 2.0, 3.0]))
    with pytest.raises(MismatchError, match="'w' has 1 filters in one and no"):
        embedding([1.0]).cosine(embedding([1.0], name="v"))
    with pytest.raises(MismatchError, match="is zero"):
        embedding([0.0]).cosine(embedding([1.0]))


@pytest.mark.parametrize("labels", [1, 3])
def test_independent_labels_have_the_fisher_information_of_bernoulli_distributions(labels):
    net = networks.seeded(networks.MLP, classes=labels)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    exact = copy.deepcopy(net).double()
    weight = exact.fc2.weight
    expected = torch.zeros(len(weight), dtype=torch.float64)
    for sample in x.double():
        z = exact(sample[None])[0]
        for y in itertools.product((0.0, 1.0), repeat=labels):  # every set of labels
            wanted = torch.tensor(y).double()
            log_p = -F.binary_cross_entropy_with_logits(z, wanted, reduction="sum")
            (g,) = torch.autograd.grad(log_p, weight, retain_graph=True)
            expected += float(log_p.detach().exp()) * (g**2).mean(1) / len(x)
    whole = task2vec(net, x, logits="sigmoid")
    assert torch.allclose(whole.fisher["fc2.weight"], expected, rtol=1e-4)
    drawn = task2vec(net, x, logits="sigmoid", draws=4000).fisher["fc2.weight"]
    # 20,000 draws: standard errors of the means are below 2 %
    assert torch.allclose(drawn, expected, rtol=0.1, atol=0.02 * float(expected.max()))
