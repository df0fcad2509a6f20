"""What is differentiated."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import networks
import reference
import resemblance as rs
from resemblance._models import losses
from resemblance._models.logits import LogitsReader, find_logits
from resemblance._models.losses import Objective
from resemblance.errors import DataError, TargetError

Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
Y = torch.tensor([0, 3, 1, 2, 2, 0])


def gradient(z, batch=None, target="tempered", beta=0.5, logits="auto", **more):
    z = z.clone().requires_grad_()
    at, found = Objective(target, beta, LogitsReader(logits), **more).start(
        z if batch is None else batch, z
    )
    return torch.autograd.grad(at, z, found)[0].numpy()


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 0.99, 2.0])
def test_tempered_gradient_is_the_closed_form(beta):
    assert np.allclose(gradient(Z, beta=beta), reference.at_logits(Z.numpy(), beta), atol=1e-12)


def test_labels_are_cross_entropy():
    found = gradient(Z, (None, Y), "labels")
    p = torch.softmax(Z, 1)
    assert np.allclose(found, p - F.one_hot(Y, 4), atol=1e-12)


def test_tokens_are_averaged_without_padding():
    z = Z.reshape(2, 3, 4)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    batch = {"attention_mask": mask}
    each = reference.at_logits(z.numpy(), 0.5)
    expected = each * mask[..., None].numpy() / mask.sum(1).numpy()[:, None, None]
    assert np.allclose(gradient(z, batch), expected, atol=1e-12)
    assert np.allclose(gradient(z), each / 3, atol=1e-12)


def test_images_of_logits_have_their_classes_second():
    z = Z.reshape(1, 2, 3, 4).movedim(-1, 1)  # (1, 4, 2, 3)
    expected = reference.at_logits(Z.numpy(), 0.5).reshape(1, 2, 3, 4) / 6
    assert np.allclose(np.moveaxis(gradient(z), 1, -1), expected, atol=1e-12)
    volume = z[..., None]
    assert np.allclose(gradient(volume)[..., 0], gradient(z), atol=1e-12)


def test_token_labels_leave_out_ignored_ones():
    z = Z.reshape(2, 3, 4)
    y = torch.tensor([[1, -100, 2], [-100, -100, 0]])
    found = gradient(z, {"labels": y}, "labels")
    per_token = (torch.softmax(z, -1) - F.one_hot(y.clamp_min(0), 4)) * (y != -100)[..., None]
    expected = per_token / (y != -100).sum(1)[:, None, None]
    assert np.allclose(found, expected, atol=1e-12)


def test_label_images():
    z = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4, 4), generator=torch.Generator().manual_seed(2))
    leaf = z.clone().requires_grad_()
    each = F.cross_entropy(leaf, y, reduction="none").mean((1, 2)).sum()
    expected = torch.autograd.grad(each, leaf)[0]
    assert np.allclose(gradient(z, (None, y), "labels"), expected, atol=1e-12)


# -- independent labels -------------------------------------------------------------------------


def bernoulli_gradient(z, wanted):
    """Of the summed binary cross-entropies with the probabilities wanted, in float64."""
    leaf = z.detach().double().requires_grad_()
    p = 1 / (1 + torch.exp(-leaf))
    loss = -(wanted * torch.log(p) + (1 - wanted) * torch.log(1 - p)).sum()
    return torch.autograd.grad(loss, leaf)[0].numpy()


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 2.0])
@pytest.mark.parametrize("labels", [1, 4])
def test_the_tempered_gradient_of_labels_is_that_of_bernoulli_distributions(labels, beta):
    z = Z[:, :labels]
    p = 1 / (1 + np.exp(-z.numpy()))
    q = torch.tensor(p**beta / (p**beta + (1 - p) ** beta))  # q ∝ p^β
    found = gradient(z, beta=beta, logits="sigmoid")
    assert np.allclose(found, bernoulli_gradient(z, q), atol=1e-12)


def test_multi_hot_labels_are_binary_cross_entropy():
    y = (Z > 0.3).double()
    assert np.allclose(
        gradient(Z, (None, y), "labels", logits="sigmoid"), bernoulli_gradient(Z, y), atol=1e-12
    )
    y[2, 1] = -100  # as torch's losses leave out
    found = gradient(Z, (None, y.long()), "labels", logits="sigmoid")
    expected = bernoulli_gradient(Z, y.clamp_min(0))
    expected[2, 1] = 0
    assert np.allclose(found, expected, atol=1e-12)
    one = gradient(Z[:, :1], (None, Y > 1), "labels", logits="sigmoid")  # (n,) of one output
    assert np.allclose(one, bernoulli_gradient(Z[:, :1], (Y > 1).double()[:, None]), atol=1e-12)


def test_labels_of_pixels_are_averaged_and_have_their_axis_second():
    z = Z.reshape(1, 2, 3, 4).movedim(-1, 1)  # (1, 4, 2, 3)
    y = (z > 0).double()
    found = gradient(z, (None, y), "labels", logits="sigmoid")
    assert np.allclose(found, bernoulli_gradient(z, y) / 6, atol=1e-12)
    found = gradient(z, logits="sigmoid")
    expected = bernoulli_gradient(z, torch.sigmoid(z / 2)) / 6
    assert np.allclose(found, expected, atol=1e-12)


def test_one_label_is_the_second_of_two_classes():
    two = gradient(torch.cat([torch.zeros(6, 1).double(), Z[:, :1]], 1))
    assert np.allclose(gradient(Z[:, :1], logits="sigmoid")[:, 0], two[:, 1], atol=1e-12)
    assert np.allclose(gradient(Z[:, 0], logits="sigmoid"), two[:, 1], atol=1e-12)


@pytest.mark.parametrize("option", ["probabilities", "sigmoid-probabilities"])
@pytest.mark.parametrize("target", ["tempered", "labels"])
def test_probabilities_have_the_gradients_of_their_logits(option, target):
    mode = {"probabilities": "softmax", "sigmoid-probabilities": "sigmoid"}[option]
    squash = torch.sigmoid if mode == "sigmoid" else partial(torch.softmax, dim=1)
    batch = (None, (Z > 0).double() if mode == "sigmoid" else Y)
    leaf = Z.clone().requires_grad_()
    start = Objective(target, 0.5, LogitsReader(option)).start(batch, squash(leaf))
    found = torch.autograd.grad(start.at, leaf, start.gradient)[0].numpy()
    assert np.allclose(found, gradient(Z, batch, target, logits=mode), atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.full((6, 4), 2), "label 2 is out of range.*from 0 to 1"),
        (torch.full((6, 4), -1.0), "label -1 is out of range"),
        (Y, "for each of 6 × 1 × 4 logits.*multi-hot"),
    ],
)
def test_labels_that_are_not_multi_hot_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        Objective("labels", logits=LogitsReader("sigmoid")).start((None, labels), Z)


def test_next_tokens_are_no_independent_labels():
    with pytest.raises(TargetError, match="next token, one class"):
        Objective("labels", logits=LogitsReader("sigmoid"), shifted=True)


def test_without_predictions_only_a_function_can_be_differentiated():
    with pytest.raises(TargetError, match=r'`logits="none"` leaves no loss.*gradients=False'):
        Objective(logits=LogitsReader("none"))
    found = Objective(lambda z, _: z.square().sum(1), logits=LogitsReader("none")).start(Z, Z)
    assert found.at == Z.square().sum()


# -- targets and logits of the caller -----------------------------------------------------------


def test_a_function_is_used_as_it_is():
    assert np.allclose(gradient(Z, target=lambda z, _: z.square().sum(1)), 2 * Z, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_logits_are_differentiated_in_float32(dtype):
    z = Z.to(dtype)
    found = Objective().start(z, z, 1024.0).gradient[:, 0]
    expected = reference.at_logits(z.double().numpy(), 0.5) * 1024
    assert found.dtype == dtype
    # each number is rounded once, at the end
    assert np.allclose(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("target", ["tempered", "labels"])
@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (2, 4, 3, 1)])
def test_how_many_logits_are_widened_at_a_time_does_not_matter(shape, target, monkeypatch):
    z, batch = Z.reshape(shape), (None, Y.reshape(shape[0], -1))
    found = []
    for many in (1, 7, 2**20):
        monkeypatch.setitem(losses._AT_ONCE, "cpu", many)
        found.append(gradient(z, batch, target))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[1], found[2])


def test_losses_of_tokens_are_summed_whatever_their_number():
    z, mask = Z.reshape(2, 3, 4), torch.tensor([[1, 1, 1], [1, 0, 0]])
    found = gradient(z, {"attention_mask": mask}, summed=True)
    expected = reference.at_logits(z.numpy(), 0.5) * mask[..., None].numpy()
    assert np.allclose(found, expected, atol=1e-12)


def test_a_decoder_has_a_mask_of_its_own():
    z = Z.reshape(2, 3, 4)
    masks = (torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    batch = {"attention_mask": masks[0], "decoder_attention_mask": masks[1]}
    expected = reference.at_logits(z.numpy(), 0.5) * masks[1][..., None].numpy()
    assert np.allclose(gradient(z, batch, summed=True), expected, atol=1e-12)


def test_labels_of_a_causal_model_are_the_tokens_that_come_next():
    z, ids = Z.reshape(2, 3, 4), Y.reshape(2, 3)
    leaf = z.clone().requires_grad_()
    each = F.cross_entropy(leaf[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    expected = torch.autograd.grad(each, leaf)[0]
    found = gradient(z, {"labels": ids}, "labels", summed=True, shifted=True)
    assert np.allclose(found, expected, atol=1e-12)
    assert not found[:, -1].any()  # nothing comes after the last


@pytest.mark.parametrize(
    "outputs",
    [Z, (Z, 1), [Z], {"loss": None, "logits": Z}, SimpleNamespace(logits=Z)],
    ids=["tensor", "tuple", "list", "dict", "attribute"],
)
def test_logits_are_found_by_convention(outputs):
    assert find_logits(outputs) is Z


@pytest.mark.parametrize("outputs", [{"embedding": Z}, SimpleNamespace(x=Z), None, ("text",)])
def test_no_logits_says_what_to_pass(outputs):
    with pytest.raises(TargetError, match=r"found no logits.*Pass `logits=.*gradients=False"):
        find_logits(outputs)


def test_logits_function():
    found = Objective(logits=LogitsReader(lambda out: out["z"])).start(Z, {"z": Z})
    assert torch.equal(found.gradient, Objective().start(Z, Z).gradient)


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "beta", "message"),
    [
        ("entropy", 0.5, 'must be "tempered", "labels" or a function .* found \'entropy\''),
        ("tempered", 1, "`beta=1` makes every gradient zero, since E_p ∇log p = 0"),
        ("tempered", 1.0, "`beta=1` makes every gradient zero"),
        ("tempered", -0.5, "`beta` must be 0 or more, finite and not 1; found -0.5"),
        ("tempered", float("nan"), "`beta` must be 0 or more, finite"),
        ("tempered", float("inf"), "`beta` must be 0 or more, finite"),
    ],
)
def test_targets_that_cannot_be(target, beta, message):
    with pytest.raises(TargetError, match=message):
        Objective(target, beta)


@pytest.mark.parametrize("shape", [(6, 1), (6,), (6, 3, 1), (6, 1, 4, 4)])
def test_a_single_output_is_refused_with_the_reason(shape):
    with pytest.raises(TargetError, match=r'binary logit, pass `logits="sigmoid"`.*regression'):
        Objective().start(Z, torch.zeros(shape))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, TargetError, 'target="labels". needs batches'),
        (Y.double(), DataError, "one integer label for each of 6 × 1 predictions"),
        (Y[:5], DataError, r"found torch.int64 labels of shape \(5,\)"),
        (F.one_hot(Y, 4), DataError, r"labels of shape \(6, 4\)"),
        (Y + 1, DataError, "label 4 is out of range: the model has 4 classes.*0 to 3"),
        (Y - 1, DataError, "label -1 is out of range"),
    ],
)
def test_labels_that_cannot_be(labels, error, message):
    batch = (Z,) if labels is None else (Z, labels)
    with pytest.raises(error, match=message):
        Objective("labels").start(batch, Z)


def test_labels_the_wrong_way_round_are_refused():
    with pytest.raises(DataError, match="2 × 3 predictions"):
        Objective("labels").start((None, Y.reshape(3, 2)), Z.reshape(2, 3, 4))


# -- through record -----------------------------------------------------------------------------

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(3))


def test_record_refuses_a_loss_that_is_averaged_over_the_batch():
    with pytest.raises(TargetError, match=r"a tensor of shape \(2,\), found shape \(\)"):
        rs.record(networks.seeded(networks.MLP), X, target=lambda z, _: z.mean())
    with pytest.raises(TargetError, match="found <class 'float'>"):
        rs.record(networks.seeded(networks.MLP), X, target=lambda z, _: 0.5)


def test_record_refuses_gradients_that_are_all_zero():
    with pytest.raises(TargetError, match="zero at every layer"):
        rs.record(networks.seeded(networks.MLP), X, target=lambda z, _: (0 * z).sum(1))


def test_record_names_the_target():
    net = networks.seeded(networks.MLP)

    class Energy:
        def __call__(self, outputs, batch):
            return outputs.square().sum(1)

    assert rs.record(net, X).settings.target == "tempered"
    assert rs.record(net, X, gradients=False).settings.target == "none"
    assert rs.record(net, X, target=Energy()).settings.target.startswith("function Energy ")
    labelled = rs.record(net, (X, torch.zeros(32, dtype=torch.long)), target="labels")
    assert (labelled.settings.target, labelled.settings.beta) == ("labels", None)
    several = rs.record(net, X, logits="sigmoid").settings
    assert (several.target, several.beta) == ("tempered-sigmoid", 0.5)
