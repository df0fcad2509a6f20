"""Models that `check` and `compare` record on the spot, with what the question needs."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import save_file

import resemblance as rs
from digit_copies import pruned, rounded, trained
from resemblance._data.load_data import load_digits_data
from resemblance.cli.load_or_record import NetworkArgument, RecordingNeeds, load_or_record
from resemblance.cli.options import RecordingOptions
from resemblance.errors import DataError, LayerError, MismatchError
from resemblance.recording import output_summary

NET = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10)
    )
"""
MODEL = "digit_net.py:net"


@pytest.fixture
def weights(folder):
    for name, net in {"base": trained(), "int8": rounded(8), "pruned": pruned(0.6)}.items():
        save_file(net.state_dict(), folder / f"{name}.safetensors")
    (folder / "digit_net.py").write_text(NET)
    return folder


def samples(**changes):
    return RecordingOptions(**{"data": "digits", "limit": 300, "device": "cpu"} | changes)


SCORES = RecordingNeeds(("gradients",))


@pytest.mark.parametrize(("copy", "status"), [("int8", 0), ("pruned", 1)])
def test_two_models_are_recorded_and_checked(weights, run, copy, status):
    words = ("--base-weights", "base.safetensors", "--copy-weights", f"{copy}.safetensors")
    words += ("--data", "digits", "--max-disagreement", 0.02, "--json", "c.json")
    assert run("check", MODEL, MODEL, *words)[0] == status
    content = json.loads((weights / "c.json").read_text())
    assert (content["base"], content["copy"]) == ("base.safetensors", f"{copy}.safetensors")
    assert content["samples"] == 1797


def test_a_copy_is_recorded_as_the_file_of_its_base_was(weights, run):
    words = ("--seed", 5, "--beta", 0.7, "--layer", "2", "--block", 20, "--limit", 400)
    words += ("--weights", "base.safetensors", "-o", "base.rsm")
    run("record", "--model", MODEL, "--data", "digits", *words)
    base, copy = load_or_record(
        NetworkArgument("base", "base.rsm", None),
        NetworkArgument("copy", MODEL, "int8.safetensors"),
        samples(limit=400),
        SCORES,
    )
    assert copy.settings == base.settings
    assert copy.layer_names == base.layer_names == ["2"]
    assert copy.model.address == f"{MODEL} --weights int8.safetensors"
    assert rs.check(base, copy, max_disagreement=0.05, min="gradients=0.5")


def test_samples_of_the_base_that_go_by_a_name_are_the_copys_too(weights, run):
    words = ("--weights", "base.safetensors", "--data-id", "mine", "--limit", 300, "-o", "base.rsm")
    run("record", "--model", MODEL, "--data", "digits", *words)
    both = (
        NetworkArgument("base", "base.rsm", None),
        NetworkArgument("copy", MODEL, "int8.safetensors"),
    )
    base, copy = load_or_record(*both, samples(), RecordingNeeds())
    assert copy.data == base.data
    assert rs.check(base, copy, max_disagreement=0.05)
    with pytest.raises(DataError, match=r"samples of --data digits differ .*\('mine'\)"):
        load_or_record(*both, samples(limit=299), RecordingNeeds())


def test_features_alone_are_recorded_of_a_copy_of_such_a_base(weights):
    rs.record(trained(), torch.rand(300, 1, 8, 8), gradients=False).save("base.rsm")
    both = NetworkArgument("base", "base.rsm"), NetworkArgument("copy", MODEL)
    _, copy = load_or_record(*both, samples(), RecordingNeeds(gradients=True))
    assert copy[0].kinds == ("features",)
    with pytest.raises(MismatchError, match=r"needs gradients, which .* lacks"):
        load_or_record(*both, samples(data="nothing is read of this"), SCORES)


def test_layers_that_the_copy_does_not_have(weights):
    rs.record(trained(), torch.rand(300, 1, 8, 8), layers=["2"]).save("base.rsm")
    copy = NetworkArgument("copy", "nets.py:small", None)
    (weights / "nets.py").write_text(
        "import torch\n\ndef small():\n    return torch.nn.Linear(8, 2)"
    )
    with pytest.raises(LayerError, match="no layer is named '2'"):
        load_or_record(NetworkArgument("base", "base.rsm"), copy, samples(), RecordingNeeds())


def test_a_target_of_ones_own_cannot_be_repeated(weights):
    def own(z, batch):
        return z.square().sum(1)

    rs.record(trained(), torch.rand(300, 1, 8, 8), target=own, name="base").save("base.rsm")
    both = NetworkArgument("base", "base.rsm"), NetworkArgument("copy", MODEL)
    with pytest.raises(DataError, match=r"a custom loss function.* record the second"):
        load_or_record(*both, samples(), SCORES)
    base, copy = load_or_record(*both, samples(), RecordingNeeds(("features",)))
    assert base.settings.target.startswith("function")
    assert copy[0].kinds == ("features",)


def test_what_is_a_model_and_what_a_file():
    models = ("torchvision:resnet18", "timm:resnet18", "hf:folder", "a/b.py:net")
    assert all(NetworkArgument("base", address, None).is_model for address in models)
    assert not any(NetworkArgument("base", file, None).is_model for file in ("a.rsm", "b", "hf"))


# -- what is recorded ------------------------------------------------------------------------------

INT8 = """

def int8():
    from safetensors.torch import load_file

    trained = net()
    trained.load_state_dict(load_file("base.safetensors"))
    return torch.ao.quantization.quantize_dynamic(trained, {nn.Linear})
"""


@pytest.fixture
def int8(weights):
    (weights / "digit_net.py").write_text(f"import torch{NET}{INT8}")
    return weights


def test_gradients_and_buckets_are_recorded_only_where_they_are_needed(weights):
    both = (
        NetworkArgument("base", MODEL, "base.safetensors"),
        NetworkArgument("copy", MODEL, "int8.safetensors"),
    )
    for needs, kinds, buckets in (
        (RecordingNeeds(), ("features",), 0),
        (RecordingNeeds(("features",)), ("features",), 0),
        (RecordingNeeds(("product",)), ("features", "gradients"), 0),
        (RecordingNeeds(("elementwise",)), ("features", "gradients", "elementwise"), 0),
        (
            RecordingNeeds(("features",), gradients=True, buckets=True),
            ("features", "gradients"),
            512,
        ),
    ):
        for rep in load_or_record(*both, samples(), needs):
            assert (rep[0].kinds, rep.settings.buckets) == (kinds, buckets)


def test_a_copy_of_a_file_is_recorded_without_what_no_threshold_asks_for(weights, run):
    words = ("--weights", "base.safetensors", "--limit", 300, "-o", "base.rsm")
    run("record", "--model", MODEL, "--data", "digits", *words)
    both = NetworkArgument("base", "base.rsm"), NetworkArgument("copy", MODEL, "int8.safetensors")
    base, copy = load_or_record(*both, samples(), RecordingNeeds())
    assert copy[0].kinds == ("features",)
    assert base.settings.buckets == copy.settings.buckets == 512  # the sketches are those of both
    assert rs.check(base, copy, max_disagreement=0.1, min="features=0.5", min_db=1)


@pytest.mark.filterwarnings("ignore:.*quantiz")  # notes of torch
def test_int8_copies_are_checked_by_what_they_predict_and_by_features(int8, run):
    words = ("check", MODEL, "digit_net.py:int8", "--base-weights", "base.safetensors")
    words += ("--data", "digits")
    few = ("--max-disagreement", 0.05, "--min", "features=0.9", "--min-db", 5)
    status, out, err = run(*words, *few)
    assert (status, err) == (0, ""), out
    status, _, err = run(*words, "--min", "gradients=0.5")
    assert status == 2
    assert "layer '3' is quantised and has no backward pass" in err
    assert "Use features or predictions" in err


@pytest.mark.filterwarnings("ignore:.*quantiz", "always:.*recorded without gradients")
def test_int8_copies_are_compared_by_features_with_a_note(int8, run):
    words = ("compare", MODEL, "digit_net.py:int8", "--a-weights", "base.safetensors")
    status, _, err = run(*words, "--data", "digits", "--json", "c.json")
    assert status == 0
    assert "recorded without gradients: its layer '3' is quantised" in err
    content = json.loads((int8 / "c.json").read_text())
    assert content["features"] is not None
    assert content["gradients"] is None


def test_two_different_models_are_compared_at_their_own_layers(weights, run):
    words = ("--a-weights", "base.safetensors", "--data", "digits", "--limit", 200)
    status, out, _ = run("compare", MODEL, "nets.py:small", *words, "--features-only")
    assert status == 0, out
    assert "base.safetensors and nets.py:small" in out
    assert "gradients are not compared" in out


def test_the_copy_alone_in_bfloat16(weights, run):
    words = ("check", MODEL, MODEL, "--base-weights", "base.safetensors")
    words += ("--copy-weights", "base.safetensors", "--data", "digits", "--max-disagreement", 0.02)
    status, out, _ = run(*words, "--min-db", 25, "--copy-dtype", "bfloat16")
    assert status == 0, out
    assert run(*words, "--min-db", 70, "--copy-dtype", "bfloat16")[0] == 1  # 8 bits: about 50 dB
    assert run(*words, "--min-db", 70, "--dtype", "bfloat16")[0] == 0  # both: nothing differs
    base, copy = load_or_record(
        NetworkArgument("base", MODEL, "base.safetensors"),
        NetworkArgument("copy", MODEL, "base.safetensors", "bfloat16"),
        samples(dtype="float32"),
        RecordingNeeds(),
    )
    assert (base.made.dtype, copy.made.dtype) == ("float32", "bfloat16")
    assert copy.name == "base.safetensors (bfloat16)"


def test_pooling_and_batch_size_reach_the_pass(weights):
    both = NetworkArgument("base", "nets.py:conv"), NetworkArgument("copy", "nets.py:conv")
    on = samples(data="probe:noise", size=8, limit=60, pool="mean", batch_size=7)
    for rep in load_or_record(*both, on, RecordingNeeds(("features",))):
        assert rep.settings.pool == "mean"
    with pytest.raises(DataError, match="`batch_size` must be"):
        load_or_record(
            *both, samples(data="probe:noise", size=8, limit=60, batch_size=0), RecordingNeeds()
        )


def test_multi_label_copies_are_read_as_their_base_was(weights, run):
    (weights / "labels.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))\n"
    )
    words = ("--model", "labels.py:net", "--data", "digits", "--limit", 300, "-o", "base.rsm")
    run("record", *words, "--logits", "sigmoid")
    words = ("check", "base.rsm", "labels.py:net", "--data", "digits", "--limit", 300)
    status, out, _ = run(*words, "--max-disagreement", 0.02, "--min", "gradients=0.5")
    assert status == 0, out
    both = NetworkArgument("base", "base.rsm"), NetworkArgument("copy", "labels.py:net")
    base, copy = load_or_record(*both, samples(), SCORES)
    assert copy.outputs.multi_label
    assert copy.settings == base.settings


SQUASHED = """
import torch
from torch import nn


class Squashed(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 30))

    def forward(self, x):
        return torch.sigmoid(3 * self.body(x))


def one():
    return Squashed(0)


def two():
    return Squashed(1)
"""


def test_networks_that_end_in_a_functional_sigmoid_cannot_pass_as_logits(weights, run):
    (weights / "squashed.py").write_text(SQUASHED)
    words = ("check", "squashed.py:one", "squashed.py:two", "--data", "digits", "--limit", 300)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as outside of tests: a line on standard error
        status, out, err = run(*words, "--max-kl", 0.05)
    assert (status, out) == (2, "")
    assert "Pass --logits sigmoid-probabilities" in err
    status, out, _ = run(*words, "--max-kl", 0.05, "--logits", "sigmoid-probabilities")
    assert status == 1, out
    run("record", "--model", words[1], *words[3:], "-o", "one.rsm", "--features-only",
        "--logits", "sigmoid-probabilities")  # fmt: skip
    same = ("check", "one.rsm", "squashed.py:one", *words[3:], "--max-kl", 0.05)
    assert run(*same)[0] == 0


def test_logits_by_a_function_cannot_be_repeated(weights):
    rs.record(trained(), torch.rand(300, 1, 8, 8), logits=lambda z: z, name="base").save("base.rsm")
    both = NetworkArgument("base", "base.rsm"), NetworkArgument("copy", MODEL)
    with pytest.raises(DataError, match=r"a function that returns the logits, .*pass both files"):
        load_or_record(*both, samples(), SCORES)


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "compare"])
def test_options_that_have_no_effect_are_refused(command, weights, refused, run):
    run("record", "--model", "nets.py:small", "--data", "digits", "-o", "a.rsm")
    ask = ("--max-kl", 0.5) if command == "check" else ()
    own = "copy" if command == "check" else "b"
    words = (command, "a.rsm", "a.rsm", *ask)
    for option in (("--data", "digits"), ("--pool", "mean"), ("--features-only",)):
        assert f"{option[0]} applies to models only" in refused(*words, *option)
    for option in (f"--{own}-weights", f"--{own}-dtype"):
        assert f"{option} applies to models only, and a.rsm is a recording" in refused(
            *words, option, "x"
        )
    assert "--data is required" in refused(command, "a.rsm", "nets.py:small", *ask)


def test_features_only_and_a_threshold_on_gradients_exclude_each_other(weights, refused):
    words = ("check", MODEL, MODEL, "--data", "digits", "--features-only")
    assert "--features-only conflicts" in refused(*words, "--min", "product=0.5")


MANY_CLASSES = """
import torch
from torch import nn


def net(noise=0.0):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3000))
    with torch.no_grad():
        made[3].weight.add_(noise * torch.randn(3000, 8))
    return made


def copy():
    return net(0.05)
"""


@pytest.mark.parametrize("room", [True, False])
def test_divergences_of_two_models_of_many_classes_are_exact(folder, run, monkeypatch, room):
    """Unless all probabilities take too much memory: then they are estimated, as from files."""
    (folder / "many.py").write_text(MANY_CLASSES)
    if not room:
        monkeypatch.setattr(output_summary, "MAX_FULL_BYTES", 4 * 3000 * 299)
    networks = (NetworkArgument(role, f"many.py:{what}") for role, what in
                (("base", "net"), ("copy", "copy")))  # fmt: skip
    base, copy = load_or_record(*networks, samples(), RecordingNeeds())
    assert (base.outputs.every is not None) == room
    found = rs.behaviour(base, copy)
    assert (found.js_upper is None) == room
    spaces = {}
    exec(MANY_CLASSES, spaces)
    x, _ = load_digits_data()
    exact = rs.behaviour(spaces["net"](), spaces["copy"](), data=x[:300])
    assert found.kl == pytest.approx(exact.kl, rel=1e-5 if room else 0.2)
    words = ("--data", "digits", "--limit", 300, "--max-kl", 0.05)
    assert run("check", "many.py:net", "many.py:copy", *words)[0] == 0
