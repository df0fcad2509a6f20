"""Models by name, from real libraries, without a network; exported networks are no weights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import resemblance as rs
from optional_libraries import needs, usable_torchvision
from resemblance._data.load_data import load_data
from resemblance._models.loading import load_model, load_weights
from resemblance.errors import DataError, FormatError, ResemblanceWarning


@pytest.fixture
def torchvision():
    """torchvision, also where its compiled operators do not load."""
    usable_torchvision()
    import torchvision

    return torchvision


@needs("torchvision")
def test_a_torchvision_model_is_built_and_recorded(torchvision):
    with pytest.warns(ResemblanceWarning, match="random weights"):
        net = load_model("torchvision:resnet18")
    rep = rs.record(net, torch.randn(16, 3, 64, 64), block=8)
    assert rep.layer_names == [
        "maxpool",
        *(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)),
        "fc:in",
    ]


@needs("torchvision")
def test_an_unknown_torchvision_model_names_the_nearest(torchvision):
    with pytest.raises(DataError, match="no model 'resnet17'; nearest: resnet1"):
        load_model("torchvision:resnet17")


@needs("timm")
def test_a_timm_model_is_built_and_recorded(torchvision):
    with pytest.warns(ResemblanceWarning, match="random weights"):
        net = load_model("timm:vit_tiny_patch16_224")
    rep = rs.record(net, torch.randn(4, 3, 224, 224), layers="auto", pool="mean", block=4)
    assert rep.layer_names[1:-1] == [f"blocks.{i}" for i in range(12)]
    with pytest.raises(DataError, match="timm has no model"):
        load_model("timm:vit_of_the_future")


@needs("transformers")
def test_a_hugging_face_folder_is_loaded_and_recorded(torchvision, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=12)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    net = load_model(f"hf:{tmp_path / 'gpt'}")
    ids = torch.randint(0, 50, (20, 12))
    mask = (torch.arange(12) < torch.randint(4, 12, (20, 1))).long()
    rep = rs.record(net, {"input_ids": ids, "attention_mask": mask}, pool="mean")
    assert [n for n in rep.layer_names if ".h." in n] == ["transformer.h.0", "transformer.h.1"]
    with pytest.raises(DataError, match="no folder at"):
        load_model(f"hf:{tmp_path / 'nowhere'}")


def test_weights_in_a_checkpoint_and_what_is_refused(tmp_path):
    net = nn.Linear(2, 3)
    torch.save({"state_dict": nn.Linear(2, 3).state_dict(), "epoch": 3}, tmp_path / "c.pt")
    load_weights(net, str(tmp_path / "c.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="contains list; expected a dict of tensors"):
        load_weights(net, str(tmp_path / "list.pt"))
    torch.save({**net.state_dict(), "more": torch.ones(1)}, tmp_path / "more.pt")
    with pytest.raises(FormatError, match="1 unknown, such as more"):
        load_weights(net, str(tmp_path / "more.pt"))
    with pytest.raises(FormatError, match="no weights at"):
        load_weights(net, str(tmp_path / "gone.pt"))


@pytest.fixture
def own_code(tmp_path):
    """The folder of a model that brings code, and the mark that it would leave if it ran."""
    mark = tmp_path / "it ran"
    folder = tmp_path / "own"
    folder.mkdir()
    parts = {"AutoConfig": "code.Config", "AutoModel": "code.Net", "AutoTokenizer": "code.Words"}
    config = {"model_type": "of-its-own", "auto_map": parts, "architectures": ["Net"]}
    (folder / "config.json").write_text(json.dumps(config))
    words = {"auto_map": {"AutoTokenizer": ["code.Words", None]}, "tokenizer_class": "Words"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    (folder / "code.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizer\n\n\n"
        "class Config(PretrainedConfig):\n    model_type = 'of-its-own'\n\n\n"
        "class Net(PreTrainedModel):\n    config_class = Config\n\n\n"
        "class Words(PreTrainedTokenizer):\n    pass\n"
    )
    return folder, mark


def answering_yes(*words):
    """Python in a process of its own, in which every question is answered with y: what it says."""
    words = [sys.executable, *words]
    done = subprocess.run(words, input="y\n" * 20, capture_output=True, text=True)
    assert done.returncode
    return done.stderr


@needs("transformers")
def test_code_that_comes_with_a_model_never_runs(own_code, refused, monkeypatch):
    folder, mark = own_code
    command = ("-m", "resemblance", "layers", "--model", f"hf:{folder}", "--data", "digits")
    said = answering_yes(*command)
    assert said.endswith(
        f"error: '{folder}' on Hugging Face needs custom code, which is never run; "
        "review it, then load the model yourself in FILE.py:FUNCTION\n"
    )
    assert "Traceback" not in said
    # a known kind of model whose class is not the library's
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "custom code, which is never run" in refused(*command[2:])
    assert not mark.exists()


@needs("transformers")
@needs("datasets")
def test_code_that_comes_with_a_tokeniser_never_runs(own_code, tmp_path, monkeypatch):
    import datasets

    folder, mark = own_code
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "words")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(DataError, match=r"no tokenizer at|custom code, which is never run"):
        load_data(f"hf:{tmp_path / 'words'}", model=f"hf:{folder}")
    assert not mark.exists()


X = torch.rand(60, 4)


def test_an_onnx_model_in_memory_is_known_by_its_library():
    kind = type("InferenceSession", (), {"__module__": "onnxruntime.capi"})
    with pytest.raises(
        DataError, match=r'found InferenceSession; save the ONNX model .*"onnx:FILE"'
    ):
        rs.record(kind(), X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["net.onnx", "NET.ONNX", "net.torchscript", "net.gguf"])
def test_exported_models_are_no_weights_and_no_data(run, refused, folder, name):
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), folder / name)
    run("record", "--model", "nets.py:small", "--data", "digits", "-o", "a.rsm")
    (folder / "pool.toml").write_text('[models]\nsmall = "nets.py:small"\n')
    kind = {"onnx": "ONNX", "gguf": "GGUF"}.get(name.lower()[-4:], "TorchScript")
    for words in (
        ("record", "--model", "nets.py:small", "--data", name, "-o", "b.rsm"),
        ("record", "--model", "nets.py:small", "--weights", name, "--data", "digits", "-o", "b"),
        ("compare", "a.rsm", "nets.py:small", "--data", name),
        ("recommend", "--data", name, "--models", "pool.toml"),
    ):
        said = refused(*words)
        expected = f"{name} contains a network ({kind}), not weights or data; pass it as the model"
        assert said.startswith(expected), (words, said)
    for words in (("check", "a.rsm", name, "--max-kl", 0.5), ("compare", name, "a.rsm")):
        assert f"{name} is a model, so --data is required" in refused(*words)
    assert "includes its weights" in refused(
        "record", "--model", f"onnx:{name}", "--weights", "w.pt", "--data", "digits", "-o", "b.rsm"
    )
