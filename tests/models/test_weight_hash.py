"""Hashes of weights: equal for equal weights, buffers among them."""

from __future__ import annotations

import copy
import hashlib

import pytest
import torch
from torch import nn

import networks
from resemblance._models import hashes
from resemblance._models.hashes import hash_all_weights, hash_sampled_weights


def test_weights():
    net = networks.seeded(networks.ResNet)
    base = hash_sampled_weights(net)
    assert base == hash_sampled_weights(networks.seeded(networks.ResNet))
    assert base != hash_sampled_weights(networks.seeded(networks.ResNet, seed=1))
    net.bn1.running_mean[0] += 1  # buffers count
    assert base != hash_sampled_weights(net)


def test_the_quick_hash_is_of_evenly_spaced_values_by_name():
    """As files of format 1 have it."""
    big, small = numbers(40, 2500).double(), numbers(3).half()
    digest = hashlib.blake2b(digest_size=8)
    digest.update(b"a (3,)" + small.numpy().tobytes())
    digest.update(b"b (40, 2500)" + big.flatten()[::25].numpy().tobytes())
    assert hash_sampled_weights(Holding(b=big, a=small)) == digest.hexdigest()
    assert hash_sampled_weights(Holding(b=big.T.contiguous().T, a=small)) == digest.hexdigest()


def test_both_together_are_those_of_each_alone():
    net = networks.seeded(networks.ResNet)
    assert hashes.begin_weight_hashes(net)() == (
        hash_sampled_weights(net),
        hash_all_weights(net),
    )


def test_state_that_is_not_a_tensor_is_passed_over():
    class Net(networks.MLP):
        def get_extra_state(self):
            return {"epoch": 3}

    assert len(hash_sampled_weights(networks.seeded(Net))) == 16


# -- of all weights --------------------------------------------------------------------------------


class Holding(nn.Module):
    """Nothing but the tensors it is given."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def of_one(tensor):
    return hash_all_weights(Holding(w=tensor))


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_every_byte_of_every_weight_counts():
    net = networks.seeded(networks.ResNet, channels=1, blocks=1)
    before, seen = {k: w.clone() for k, w in net.state_dict().items()}, {hash_all_weights(net)}
    count = 0
    for weight in net.state_dict().values():
        raw = weight.reshape(-1).view(torch.uint8)
        for i in range(len(raw)):
            raw[i] ^= 1
            seen.add(hash_all_weights(net))
            raw[i] ^= 1
            count += 1
    assert len(seen) == count + 1  # each its own
    assert all(torch.equal(before[k], w) for k, w in net.state_dict().items())
    assert hash_all_weights(net) == hash_all_weights(copy.deepcopy(net))


def test_a_value_that_the_quick_hash_does_not_read_is_read():
    weight = numbers(40, 2500)
    net = Holding(w=weight)
    quick, whole = hash_sampled_weights(net), hash_all_weights(net)
    weight[0, 1] += 1
    assert hash_sampled_weights(net) == quick
    assert hash_all_weights(net) != whole


def test_the_order_of_values_counts_wherever_they_are():
    x = numbers(3 * 2**18)  # six parts
    base = of_one(x)
    for i, j in ((0, 1), (0, 2), (1, 2**17), (5, 3 * 2**18 - 1), (2**18 - 1, 2**18)):
        other = x.clone()
        other[[i, j]] = other[[j, i]]
        assert of_one(other) != base
    assert of_one(x.flip(0)) != base
    assert of_one(x.roll(2**17)) != base  # by one part


def test_so_do_names_dtypes_shapes_and_where_a_weight_ends():
    zeros = torch.zeros(4)
    found = [
        Holding(w=zeros),
        Holding(v=zeros),
        Holding(w=zeros.int()),
        Holding(w=zeros.reshape(2, 2)),
        Holding(w=torch.zeros(5)),
        Holding(w=zeros, v=zeros[:0]),
        Holding(w=zeros[:2], v=zeros[:2]),
        Holding(),
    ]
    assert len({hash_all_weights(net) for net in found}) == len(found)
    x = numbers(4)
    assert hash_all_weights(Holding(a=x[:3], b=x[3:])) != hash_all_weights(
        Holding(a=x[:1], b=x[1:])
    )
    assert hash_all_weights(Holding(a=x[:2], b=x[2:])) != hash_all_weights(
        Holding(a=x[2:], b=x[:2])
    )


@pytest.mark.parametrize("parts", [8, 64, 4096])
def test_it_does_not_depend_on_how_much_is_mixed_at_a_time(parts, monkeypatch):
    net = Holding(a=numbers(37, 5, 3), b=numbers(4, 7, 3).permute(2, 0, 1), c=numbers(3).half())
    whole = hash_all_weights(net)
    monkeypatch.setattr(hashes, "_ON_CPU", parts)
    assert hash_all_weights(net) == whole


def test_no_more_than_that_is_copied_at_a_time(monkeypatch):
    sizes, hash_sum = [], hashes.hash_sum

    def noted(words, place):
        sizes.append(words.nbytes)
        return hash_sum(words, place)

    monkeypatch.setattr(hashes, "hash_sum", noted)
    monkeypatch.setattr(hashes, "_ON_CPU", 4096)
    hash_all_weights(Holding(a=numbers(700), b=numbers(5000), c=numbers(300), d=numbers(3)))
    assert sum(sizes) == 4 * (700 + 5000 + 300 + 3) + 4
    assert len(sizes) == 7
    assert max(sizes) == 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_layout_in_memory_does_not_count(dtype):
    x = (
        (numbers(6, 5, 4, 3) > 0).to(dtype)
        if dtype == torch.bool
        else numbers(6, 5, 4, 3).to(dtype)
    )
    base = of_one(x)
    assert of_one(x.to(memory_format=torch.channels_last)) == base
    assert of_one(x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)) == base
    shifted = torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x)  # begins between words
    assert of_one(shifted) == base
    assert of_one(torch.stack([x, x], -1)[..., 0]) == base
    row = x[:1]
    assert of_one(row.expand(6, 5, 4, 3)) == of_one(row.repeat(6, 1, 1, 1))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    ],
    ids=str,
)
def test_any_dtype(dtype):
    x = torch.tensor([1, 0, 1, 1, 0, 0, 1]).to(dtype)
    other = torch.tensor([1, 0, 1, 1, 0, 1, 1]).to(dtype)
    assert of_one(x) == of_one(x.clone())
    assert of_one(x) != of_one(other)
    assert of_one(x) != of_one(x[:-1])
    assert of_one(x[0]) != of_one(other[1])  # without axes


def test_conjugates_are_read_as_they_are():
    z = torch.complex(numbers(5), numbers(5) + 1)
    assert of_one(z.conj()) == of_one(z.conj().resolve_conj()) != of_one(z)
    assert of_one(z.conj().imag) == of_one(-z.imag)


class Compiled(nn.Module):
    """What torch.compile makes of a module's names, without the seconds that it takes to load."""

    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner


def test_wrappers_and_tied_weights():
    net = networks.seeded(networks.MLP)
    base = hash_all_weights(net)
    assert hash_all_weights(nn.DataParallel(net)) == base
    assert hash_all_weights(Compiled(net)) == base
    net.fc1 = Compiled(net.fc1)  # "fc1._orig_mod.weight"
    assert hash_all_weights(net) == base
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert hash_all_weights(tied) == hash_all_weights(copy.deepcopy(tied))
    parted = copy.deepcopy(tied)
    parted[1].weight = nn.Parameter(tied[0].weight.detach().clone())
    assert hash_all_weights(parted) == hash_all_weights(tied)


def test_other_state_is_passed_over_and_weights_elsewhere_count_by_name():
    class Net(networks.MLP):
        def get_extra_state(self):
            return {"epoch": 3}

    assert hash_all_weights(networks.seeded(Net)) == hash_all_weights(networks.seeded(networks.MLP))
    with torch.device("meta"):
        nets = [networks.MLP(), networks.MLP(), networks.MLP(width=9)]
    same, again, wider = map(hash_all_weights, nets)
    assert same == again != wider


class Scaled(torch.Tensor):
    """Values and their scale as one tensor, as quantised weights are made."""

    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, *_):
        return Scaled(**inner)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert function is torch.ops.aten.detach.default  # by state_dict
        return args[0]


def test_weights_made_of_several_tensors_count_with_all_of_them():
    x, y = torch.tensor([1, 2, 3], dtype=torch.int8), torch.tensor([1, 2, 4], dtype=torch.int8)
    pairs = [(x, 1.0), (x, 2.0), (y, 1.0), (x.clone(), 1.0)]
    found = [of_one(Scaled(values, torch.tensor(scale))) for values, scale in pairs]
    assert found[0] == found[3]
    assert len(set(found)) == 3
    learnt = Scaled(x, torch.tensor(1.0, requires_grad=True))
    assert hashes.begin_weight_hashes(Holding(w=learnt))()[1] == found[0]
    sparse = torch.tensor([0.0, 2.0, 0.0]).to_sparse()
    assert of_one(sparse) != of_one(2 * sparse)


def test_it_is_what_plain_arithmetic_gives():
    x, n = numbers(5), 2**64
    raw = x.numpy().tobytes() + bytes(4)
    total = 0
    for i in range(3):
        w = (int.from_bytes(raw[8 * i : 8 * i + 8], "little") + i * 0x9E3779B97F4A7C15) % n
        w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9 % n
        w = (w ^ (w >> 27)) * 0x94D049BB133111EB % n
        total += w ^ (w >> 31)
    digest = hashlib.blake2b(b"w torch.float32 (5,)\n", digest_size=8)
    digest.update((total % n).to_bytes(8, "little"))
    assert of_one(x) == digest.hexdigest()
