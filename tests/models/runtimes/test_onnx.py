"""ONNX files of real networks against the PyTorch networks that they were exported from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import resemblance as rs
from exported import export, images, masked_transformer, quantise, resnet, tokens, transformer
from resemblance._models.run import open_pass
from resemblance._models.runtimes.onnx import OnnxModel
from resemblance.errors import DataError, FormatError, LayerError, ResemblanceWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*has no gradients")

FORMS = ("float", "qdq", "operators", "dynamic")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet": (resnet, images),
    "transformer": (transformer, tokens),
}
LEAST_DECIBELS = {"float": 100.0, "qdq": 22.0, "operators": 22.0, "dynamic": 22.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Path]:
    folder = tmp_path_factory.mktemp("onnx")
    found = {}
    for name, (network, data) in NETWORKS.items():
        for exporter in ("dynamo", "trace"):
            source = folder / f"{name}-{exporter}.onnx"
            export(network(), data(), source, dynamo=exporter == "dynamo")
            found[name, exporter, "float"] = source
            for form in FORMS[1:]:
                target = folder / f"{name}-{exporter}-{form}.onnx"
                found[name, exporter, form] = quantise(source, data(), target, form)
    return found


def values(net: nn.Module, x: Tensor, names: list[str]) -> dict[str, Tensor]:
    """What layers return, or are given (`name:in`), at each of their calls (`name#2`)."""
    found: dict[str, Tensor] = {}
    runs: dict[str, int] = {}
    modules = dict(net.named_modules())
    hooks = []
    for name in {name.removesuffix(":in").split("#")[0] for name in names}:

        def given(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
            runs[name] = runs.get(name, 0) + 1
            if inputs:
                found[_call(name, runs[name]) + ":in"] = inputs[0].clone()

        def gave(_: nn.Module, inputs: object, output: Tensor, name: str = name) -> None:
            found[_call(name, runs[name])] = output.clone()

        hooks.append(modules[name].register_forward_pre_hook(given))
        hooks.append(modules[name].register_forward_hook(gave))
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return found


def _call(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def decibels(a: Tensor, b: Tensor) -> float:
    noise = (a - b).double().square().sum().clamp_min(1e-30)
    return float(10 * torch.log10(a.double().square().sum() / noise))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exporter", ["dynamo", "trace"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_that_has_a_name_of_pytorchs_holds_what_that_layer_holds(
    files: dict[tuple[str, str, str], Path], name: str, exporter: str, form: str
) -> None:
    net, x = NETWORKS[name][0](), NETWORKS[name][1](8)
    copy = OnnxModel(files[name, exporter, form])
    with open_pass(copy, x) as run:
        calls = run.calls
    own = dict(net.named_modules())
    names = [call.name for call in calls if call.module in own]
    names += [f"{call.name}:in" for call in calls if call.module in own and call.input]
    one, other = values(net, x, names), values(copy, x, names)
    compared = [n for n in names if one[n].is_floating_point()]
    low = {n: decibels(one[n], other[n]) for n in compared}
    low = {n: db for n, db in low.items() if db < LEAST_DECIBELS[form]}
    assert not low
    assert len(compared) >= (12 if name == "resnet" else 50)
    unknown = [call.name for call in calls if call.module not in own]
    assert all(name.endswith(".fused") for name in unknown)


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("exporter", ["dynamo", "trace"])
@pytest.mark.parametrize("name", NETWORKS)
def test_decibels_of_recordings_are_the_truth(
    files: dict[tuple[str, str, str], Path], name: str, exporter: str, form: str
) -> None:
    net, x = NETWORKS[name][0](), NETWORKS[name][1]()
    copy = OnnxModel(files[name, exporter, form])
    a = rs.record(net, x, progress=False)
    b = rs.record(copy, x, batch_size=len(x), progress=False)
    shared = [layer for layer in b.layer_names if layer in a.layer_names]
    assert len(shared) >= 5
    one, other = values(net, x, shared), values(copy, x, shared)
    found = rs.coordinates(a, b).to_frame()
    for layer in shared:
        row = found[(found.layer == layer) & (found.kind == "features")].iloc[0]
        assert row.counterpart == layer
        assert abs(row.decibels - decibels(one[layer], other[layer])) < 0.3
    session = onnxruntime.InferenceSession(files[name, exporter, form])
    logits = session.run(None, {"x": x.numpy()})[0]
    with torch.no_grad():
        assert np.array_equal(copy(x).numpy(), logits)  # bit for bit those of the file as it is
        differ = (net(x).argmax(1).numpy() != logits.argmax(1)).mean()
    assert rs.behaviour(a, b).disagreement == pytest.approx(differ, abs=1e-12)


def test_a_fixed_batch_is_filled_and_cut(tmp_path: Path) -> None:
    net, x = resnet(), images(37)
    copy = OnnxModel(export(net, x, tmp_path / "net.onnx", dynamo=False, batch=8))
    with torch.no_grad():
        assert torch.allclose(copy(x), net(x), atol=1e-5)
    a, b = rs.record(net, x, progress=False), rs.record(copy, x, progress=False)
    scores = rs.compare(a, b, kernel="features").to_frame()
    matched = scores[scores.row == scores.column]
    assert len(matched) == 6
    assert (matched.score > 1 - 1e-6).all()


class TwoInputs(nn.Module):
    """Two inputs, and two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.left(left)) * self.right(right)
        return self.head(y), y


def test_inputs_and_outputs_by_name(tmp_path: Path) -> None:
    net = TwoInputs().eval()
    batch = {"left": torch.randn(40, 4), "right": torch.randn(40, 3)}
    path = tmp_path / "two.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (batch["left"], batch["right"]), path, dynamo=False,
            input_names=["left", "right"], output_names=["logits", "hidden"],
            dynamic_axes={"left": {0: "n"}, "right": {0: "n"}},
        )  # fmt: skip
    a, b = rs.record(net, batch, progress=False), rs.record(f"onnx:{path}", batch, progress=False)
    assert a.layer_names == b.layer_names
    assert rs.behaviour(a, b).disagreement == 0
    with pytest.raises(DataError, match=r"takes 'left'.* 'right'.*; found left$"):
        OnnxModel(path)(left=batch["left"])


class Shared(nn.Module):
    """One block that runs twice, and a product without a module of its own at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x + self.block(x)) @ self.weight + self.bias


@pytest.mark.parametrize("form", ["float", "operators", "dynamic"])
@pytest.mark.parametrize("exporter", ["dynamo", "trace"])
def test_a_block_that_runs_twice_has_two_calls_or_none(
    tmp_path: Path, exporter: str, form: str
) -> None:
    torch.manual_seed(0)
    net, x = Shared().eval(), torch.randn(64, 6)
    path = export(net, x, tmp_path / "net.onnx", dynamo=exporter == "dynamo")
    if form != "float":
        path = quantise(path, x, tmp_path / "quantised.onnx", form)
    copy = OnnxModel(path)
    with open_pass(copy, x) as run:
        names = [call.name for call in run.calls]
        own = [call.name for call in run.calls if ".fused" not in call.name]
    assert len(set(names)) == len(names)
    if form == "dynamic":  # which transposes a weight that is shared twice, and so breaks the copy
        session = onnxruntime.InferenceSession(path)
        assert np.array_equal(copy(x).numpy(), session.run(None, {"x": x.numpy()})[0])
        return
    own = [name for name in own if name.split("#")[0] in dict(net.named_modules())]
    one, other = values(net, x, own), values(copy, x, own)
    assert [name for name in own if decibels(one[name], other[name]) < 20] == []
    if form == "float":
        assert {"block.0", "block.0#2", "block.1", "block.1#2"} <= set(own)


class Fork(nn.Module):
    """A part from which two tensors leave."""

    def __init__(self) -> None:
        super().__init__()
        self.fork = nn.Module()
        self.fork.left, self.fork.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.fork.forward = lambda x: (self.fork.left(x), self.fork.right(x))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.fork(x)
        return self.head(left.tanh() * right)


@pytest.mark.parametrize("exporter", ["dynamo", "trace"])
def test_a_mask_that_blocks_share_is_the_output_of_none(tmp_path: Path, exporter: str) -> None:
    net, x = masked_transformer(), tokens()
    base = rs.record(net, x, gradients=False, progress=False)
    assert base.layer_names == ["embed", "blocks.0", "blocks.1", "blocks.2", "head:in"]
    source = export(net, x, tmp_path / "net.onnx", dynamo=exporter == "dynamo")
    quantised = quantise(source, x, tmp_path / "dynamic.onnx", "dynamic")
    for path, least in ((source, 100), (quantised, 20)):
        copy = rs.record(f"onnx:{path}", x, batch_size=len(x), gradients=False, progress=False)
        assert copy.layer_names == base.layer_names
        assert (rs.coordinates(base, copy).decibels > least).all()


@pytest.mark.parametrize("exporter", ["dynamo", "trace"])
def test_a_part_from_which_several_tensors_leave_is_lost(tmp_path: Path, exporter: str) -> None:
    x = torch.randn(64, 6)
    copy = OnnxModel(export(Fork().eval(), x, tmp_path / "net.onnx", dynamo=exporter == "dynamo"))
    with open_pass(copy, x) as run:
        names = {call.name for call in run.calls}
    assert {"fork.left", "fork.right", "head"} <= names
    assert "fork" not in names
    assert "fork" in copy.lost


def test_lost_layers_are_named_and_the_rest_is_recorded(
    files: dict[tuple[str, str, str], Path],
) -> None:
    copy = OnnxModel(files["resnet", "trace", "float"])
    with pytest.warns(ResemblanceWarning, match="skipped: bn1, layer1.0.bn2$"):
        found = rs.record(
            copy, images(), layers=["bn1", "conv1:in", "layer1.0", "layer1.0.bn2"], progress=False
        )
    assert found.layer_names == ["conv1.fused:in", "layer1.0"]
    assert found.layers[0].bare_name == "conv1:in"


def test_gradients_are_left_out_with_one_note(files: dict[tuple[str, str, str], Path]) -> None:
    path = files["resnet", "trace", "float"]
    with pytest.warns(ResemblanceWarning) as notes:
        found = rs.record(f"onnx:{path}", images(), progress=False)
    assert [str(note.message) for note in notes] == [
        f"{path} has no gradients, because it runs outside of PyTorch; pass `gradients=False` "
        "to silence this note"
    ]
    assert not found.settings.gradients
    assert found.model.name == path.stem
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rs.record(f"onnx:{path}", images(), gradients=False, progress=False)
    with pytest.raises(LayerError, match="runs outside of PyTorch, so there are no gradients"):
        rs.task2vec(OnnxModel(path), images())
    for option in ({"dtype": "bfloat16"}, {"compile": True}):
        with pytest.raises(DataError, match="applies to PyTorch models only"):
            rs.record(OnnxModel(path), images(), progress=False, **option)


def test_scales_of_a_whole_batch_are_warned_about(
    files: dict[tuple[str, str, str], Path],
) -> None:
    path = files["resnet", "trace", "dynamic"]
    with pytest.warns(ResemblanceWarning, match="quantised dynamically.*Pass the `batch_size`"):
        rs.record(f"onnx:{path}", images(), gradients=False, progress=False)


def test_execution_providers(files: dict[tuple[str, str, str], Path]) -> None:
    path = files["resnet", "trace", "float"]
    x = images(4)
    assert torch.equal(OnnxModel(path, "cpu")(x), OnnxModel(path)(x))
    with pytest.raises(DataError, match=r"no execution provider 'npu'.*CPUExecutionProvider"):
        rs.record(f"onnx:{path}?provider=npu", x, progress=False)


def test_external_weights_lie_beside_the_file_or_are_refused(
    files: dict[tuple[str, str, str], Path], tmp_path: Path
) -> None:
    proto = onnx.load(files["resnet", "trace", "float"])
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    a = rs.record(f"onnx:{files['resnet', 'trace', 'float']}", images(), progress=False)
    b = rs.record(f"onnx:{path}", images(), progress=False)
    assert (a.model.weights, a.layer_names) == (b.model.weights, b.layer_names)
    assert rs.compare(a, b, kernel="features").scores.diagonal() == pytest.approx(1)
    for place in ("../weights.bin", "/etc/passwd", "..\\weights.bin"):
        hostile = onnx.load(path, load_external_data=False)
        for tensor in hostile.graph.initializer:
            for entry in tensor.external_data:
                entry.value = place if entry.key == "location" else entry.value
        (tmp_path / "hostile.onnx").write_bytes(hostile.SerializeToString())
        with pytest.raises(FormatError, match="weights outside of its folder"):
            OnnxModel(tmp_path / "hostile.onnx")


def test_malformed_files(files: dict[tuple[str, str, str], Path], tmp_path: Path) -> None:
    good = files["resnet", "trace", "float"].read_bytes()
    path = tmp_path / "bad.onnx"
    for content in (b"", b"not a model", good[: len(good) // 2], good[:50]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"bad\.onnx"):
            OnnxModel(path)
    with pytest.raises(DataError, match="no file at"):
        OnnxModel(tmp_path / "missing.onnx")
    proto = onnx.load(files["resnet", "trace", "float"])
    proto.graph.node[3].op_type = "NoSuchOperator"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(FormatError, match="ONNX Runtime cannot run"):
        OnnxModel(path)


def test_hostile_names_make_no_deep_modules(
    files: dict[tuple[str, str, str], Path], tmp_path: Path
) -> None:
    proto = onnx.load(files["resnet", "trace", "float"])
    names = ("/" + "/".join("a" * 5000) + "/Conv", "/" + "b" * 10_000 + "/Relu", "/forward/x/Conv")
    for node, name in zip(proto.graph.node, names, strict=False):
        node.name = name
    path = tmp_path / "deep.onnx"
    path.write_bytes(proto.SerializeToString())
    copy = OnnxModel(path)
    assert max(name.count(".") for name, _ in copy.named_modules()) < 100
    assert max(len(name) for name, _ in copy.named_modules()) < 1000
    rs.record(copy, images(), progress=False)


def test_a_graph_without_names_is_recorded_and_compared_by_position(
    files: dict[tuple[str, str, str], Path], tmp_path: Path
) -> None:
    proto = onnx.load(files["transformer", "trace", "float"])
    known = {"x", "logits"}
    new: dict[str, str] = {}

    def rename(name: str) -> str:
        return name if not name or name in known else new.setdefault(name, f"t{len(new)}")

    for i, node in enumerate(proto.graph.node):
        node.name = f"n{i}"
        for names in (node.input, node.output):
            names[:] = [rename(name) for name in names]
    for tensor in proto.graph.initializer:
        tensor.name = rename(tensor.name)
    del proto.graph.value_info[:]
    path = tmp_path / "plain.onnx"
    path.write_bytes(proto.SerializeToString())
    found = rs.record(f"onnx:{path}", tokens(), progress=False)
    a = rs.record(transformer(), tokens(), progress=False)
    assert rs.behaviour(a, found).disagreement == 0
    assert found.layer_names
