"""What is differentiated."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import networks
import reference
import resemblance as rs
from resemblance._model import losses
from resemblance._model.losses import Objective, find_logits
from resemblance.errors import DataError, TargetError

Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
Y = torch.tensor([0, 3, 1, 2, 2, 0])


def gradient(z, batch=None, target="tempered", beta=0.5, logits=None, **more):
    z = z.clone().requires_grad_()
    at, found = Objective(target, beta, logits, **more).start(z if batch is None else batch, z)
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
    with pytest.raises(TargetError, match=r"found no logits.*Pass logits=.*gradients=False"):
        find_logits(outputs)


def test_logits_function():
    found = Objective(logits=lambda out: out["z"]).start(Z, {"z": Z})
    assert torch.equal(found.gradient, Objective().start(Z, Z).gradient)


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "beta", "message"),
    [
        ("entropy", 0.5, 'must be "tempered", "labels" or a function .* found \'entropy\''),
        ("tempered", 1, "beta=1 makes every gradient zero, since E_p ∇log p = 0"),
        ("tempered", 1.0, "beta=1 makes every gradient zero"),
        ("tempered", -0.5, "beta must be 0 or more, finite and not 1; found -0.5"),
        ("tempered", float("nan"), "beta must be 0 or more, finite"),
        ("tempered", float("inf"), "beta must be 0 or more, finite"),
    ],
)
def test_targets_that_cannot_be(target, beta, message):
    with pytest.raises(TargetError, match=message):
        Objective(target, beta)


@pytest.mark.parametrize("shape", [(6, 1), (6,), (6, 3, 1), (6, 1, 4, 4)])
def test_a_single_output_is_refused_with_the_reason(shape):
    with pytest.raises(TargetError, match=r"regression head \(whose tempered gradient is zero"):
        Objective().start(Z, torch.zeros(shape))


@pytest.mark.parametrize("z", [Z, Z.reshape(2, 3, 4), Z.reshape(1, 2, 3, 4).movedim(-1, 1)])
def test_probabilities_are_refused(z):
    dim = 1 if z.ndim == 4 else -1
    Objective().refuse_probabilities(z)
    Objective().refuse_probabilities(torch.log_softmax(z, dim))
    with pytest.raises(TargetError, match="seems to end in a softmax"):
        Objective().refuse_probabilities(torch.softmax(z, dim))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, TargetError, 'target="labels" needs batches'),
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


def test_record_refuses_probabilities_and_points_to_the_remedy():
    net = nn.Sequential(networks.seeded(networks.MLP), nn.Softmax(1))
    with pytest.raises(TargetError, match=r"pass logits=lambda p: p.log\(\)"):
        rs.record(net, X)
    plain = rs.record(networks.seeded(networks.MLP), X)
    healed = rs.record(net, X, logits=lambda p: p.log(), layers=["0.act1", "0.act2"])
    for a, b in zip(plain, healed, strict=True):
        assert torch.allclose(a.blocks("gradients"), b.blocks("gradients"), rtol=1e-3, atol=1e-6)


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
    assert rs.record(net, X, target=Energy()).settings.target == "function Energy"
    labelled = rs.record(net, (X, torch.zeros(32, dtype=torch.long)), target="labels")
    assert (labelled.settings.target, labelled.settings.beta) == ("labels", None)
