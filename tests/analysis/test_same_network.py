"""A network other than the one that was recorded is refused; the same one, wrapped, is not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import networks
import resemblance as rs
from resemblance.errors import DataError, MismatchError

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 2
NET = networks.seeded(networks.MLP)
REP = rs.record(NET, X, name="mine", keep_sums=True)

ASKING = {
    "classifier": lambda net, rep: rs.KernelClassifier(net, alpha=1.0).fit_representation(rep, Y),
    "adaptation": lambda net, rep: rs.adaptation(rep, kernel="features", model=net, data=(X, Y)),
}


def changed(change):
    net = copy.deepcopy(NET)
    with torch.no_grad():
        change(net)
    return net


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (networks.seeded(networks.MLP, seed=1), "weights differ; pass"),
        (changed(lambda net: net.fc2.weight[0, 0].add_(1e-3)), "weights differ; pass"),
        (
            changed(lambda net: net.half()),
            "weights differ, and are float16 now and were float32; .* in the precision",
        ),
        (nn.Sequential(nn.Identity()), "and are none now and were float32"),
    ],
    ids=["other", "one weight", "precision", "no weights"],
)
def test_other_networks_are_refused(asking, net, message):
    name = type(net).__name__
    with pytest.raises(
        MismatchError, match=f"this {name} is not the network of the recording 'mine': .*{message}"
    ):
        ASKING[asking](net, REP)


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("wrap", [copy.deepcopy, nn.DataParallel, lambda net: net.train()])
def test_the_same_network_is_not(asking, wrap):
    ASKING[asking](wrap(copy.deepcopy(NET)), REP)


@pytest.mark.parametrize("asking", ASKING)
def test_older_recordings_are_known_by_some_of_their_weights_and_arrays_by_none(asking):
    older = replace(REP, model=replace(REP.model, weights=None))
    ASKING[asking](NET, older)
    with pytest.raises(MismatchError, match="weights differ"):
        ASKING[asking](networks.seeded(networks.MLP, seed=1), older)
    unknown = replace(REP, model=replace(REP.model, weights=None, fingerprint=None))
    ASKING[asking](networks.seeded(networks.MLP, seed=1), unknown)


@pytest.mark.parametrize("asking", ASKING)
def test_what_is_no_network(asking):
    with pytest.raises(DataError, match=r"expected a torch\.nn\.Module, found str"):
        ASKING[asking]("net", REP)
