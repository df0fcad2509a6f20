"""Hashes of weights: equal for equal weights, buffers among them."""

from __future__ import annotations

import networks
from resemblance._model.weight_hash import of_weights


def test_weights():
    net = networks.seeded(networks.ResNet)
    base = of_weights(net)
    assert base == of_weights(networks.seeded(networks.ResNet))
    assert base != of_weights(networks.seeded(networks.ResNet, seed=1))
    net.bn1.running_mean[0] += 1  # buffers count
    assert base != of_weights(net)


def test_state_that_is_not_a_tensor_is_passed_over():
    class Net(networks.MLP):
        def get_extra_state(self):
            return {"epoch": 3}

    assert len(of_weights(networks.seeded(Net))) == 16
