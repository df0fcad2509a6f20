"""TorchScript: files and modules, of which outputs are recorded; a real one that keeps a state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import resemblance as rs
from exported import images, resnet
from resemblance._models.runtimes.onnx import OnnxModel
from resemblance._models.runtimes.torchscript import TorchScriptModel
from resemblance.errors import DataError, FormatError, ResemblanceWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*has no gradients", "ignore:.*torch.jit")


@pytest.mark.parametrize("how", ["scripted", "traced", "file"])
def test_outputs_are_those_of_the_network(how: str, tmp_path: Path) -> None:
    net, x = resnet(), images()
    script = torch.jit.trace(net, x[:2]) if how == "traced" else torch.jit.script(net)
    model: nn.Module | str = script
    if how == "file":
        torch.jit.save(script, tmp_path / "net.pt")
        model = f"torchscript:{tmp_path / 'net.pt'}"
    a, b = rs.record(net, x, progress=False), rs.record(model, x, progress=False)
    assert b.layer_names == ["outputs"]
    assert rs.behaviour(a, b).disagreement == 0
    own = rs.record(net, x, layers="fc", gradients=False, progress=False)
    assert rs.compare(own, b, kernel="features").scores[0, 0] == pytest.approx(1)


def test_a_file_is_recognised_without_a_prefix_and_other_archives_are_not(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(resnet()), tmp_path / "net.pt")
    found = rs.record(str(tmp_path / "net.pt"), images(), progress=False)
    assert found.model.name == "net"
    torch.save(resnet().state_dict(), tmp_path / "state.pt")
    with pytest.raises(DataError, match=r"expected a torch\.nn\.Module"):
        rs.record(str(tmp_path / "state.pt"), images(), progress=False)
    with pytest.raises(FormatError, match="not a TorchScript file"):
        TorchScriptModel(tmp_path / "state.pt")


class Counter(nn.Module):
    """Adds what it saw before, until it is reset."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(3)
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum(0)
        return self.fc(x + self.total)

    @torch.jit.export
    def reset_states(self) -> None:
        self.total = torch.zeros(3)


def test_a_state_is_reset_for_each_sample() -> None:
    net = Counter()
    x = torch.randn(40, 3)
    model = TorchScriptModel(torch.jit.script(net))
    with torch.no_grad():
        expected = net.fc(x + x)
        assert torch.allclose(model(x), expected, atol=1e-6)
        assert torch.allclose(model(x.flip(0)).flip(0), expected, atol=1e-6)


def test_silero_vad_is_the_same_in_torchscript_and_onnx() -> None:
    folder = Path(pytest.importorskip("silero_vad").__file__).parent / "data"
    speech = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * 0.1
    script = torch.jit.load(folder / "silero_vad.jit")

    def run(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, 16000)

    a = rs.record(script, speech, call=run, logits="sigmoid-probabilities", progress=False)
    assert a.layer_names == ["outputs"]
    engine = OnnxModel(folder / "silero_vad.onnx")

    def run_engine(model: nn.Module, batch: Tensor) -> Tensor:
        context = torch.zeros(len(batch), 64)
        state = torch.zeros(2, len(batch), 128)
        return model(torch.cat([context, batch], 1), state, torch.tensor(16000))["output"]

    with pytest.warns(ResemblanceWarning):
        b = rs.record(
            engine, speech, call=run_engine, logits="sigmoid-probabilities", progress=False
        )
    assert rs.behaviour(a, b).disagreement == 0
    with torch.no_grad():
        one, other = run(TorchScriptModel(script), speech), run_engine(engine, speech)
    assert torch.allclose(one, other, atol=1e-4)
