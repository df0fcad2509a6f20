"""The subcommands: what they print, what they write, and one clear line for a likely mistake."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from safetensors.torch import save_file

import resemblance as rs

# -- what works ---------------------------------------------------------------------------------


def test_layers_lists_what_runs_and_what_auto_picks(run):
    status, out, err = run("layers", "--model", "nets.py:small", "--data", "digits")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines() if "ReLU" in line] == [
        ["2", "ReLU", "16", "2"]
    ]
    assert out.splitlines()[-1] == "4 modules run; auto records 1: 2"


def test_layers_as_json(run):
    status, out, _ = run("layers", "--model", "nets.py:small", "--data", "digits", "--json", "-")
    assert status == 0
    assert json.loads(out)[2] == {"layer": "2", "kind": "ReLU", "shape": [16], "auto": ["2"]}


def test_record_writes_what_the_function_gives(run, folder):
    words = ["--data", "digits", "-o", "a.rsm", "--layer", "1", "--layer", "2", "--limit", "300"]
    status, out, err = run("record", "--model", "nets.py:small", *words)
    assert (status, err) == (0, "")
    size = (folder / "a.rsm").stat().st_size / 1e6
    assert out == f"a.rsm: a, 2 layers, 300 samples, {size:.1f} MB\n"
    rep = rs.load("a.rsm")
    assert rep.layer_names == ["1", "2"]
    from resemblance._data.named_data import digits
    from resemblance._model.named_models import load_model

    images, labels = (x[:300] for x in digits())
    direct = rs.record(load_model("nets.py:small"), (images, labels), layers=["1", "2"])
    assert torch.equal(rep[0].blocks("gradients"), direct[0].blocks("gradients"))


def test_record_loads_weights(run, folder):
    weights = {"1.weight": torch.ones(16, 64), "1.bias": torch.zeros(16)}
    weights |= {"3.weight": torch.randn(10, 16), "3.bias": torch.zeros(10)}
    save_file(weights, "w.safetensors")
    torch.save(weights, "w.pt")
    prints = []
    for name in ("w.safetensors", "w.pt"):
        words = ("--data", "digits", "--limit", 100, "-o", "a.rsm")
        assert run("record", "--model", "nets.py:small", "--weights", name, *words)[0] == 0
        prints.append(rs.load("a.rsm").model.fingerprint)
    assert prints[0] == prints[1]


def test_compare_prints_the_map_and_the_summary(recorded):
    status, out, err = recorded("compare", "a.rsm", "b.rsm", "--kernel", "features")
    expected = rs.compare(rs.load("a.rsm"), rs.load("b.rsm"), kernel="features")
    assert (status, err) == (0, "")
    assert out.endswith(expected.summary() + "\n")
    assert f"{expected.scores[0, 0]:.2f}" in out.split("a and b")[0]


def test_compare_writes_json_and_a_picture(recorded, folder):
    status, out, _ = recorded("compare", "a.rsm", "b.rsm", "--json", "c.json", "--png", "c.png")
    assert status == 0
    expected = rs.compare(rs.load("a.rsm"), rs.load("b.rsm"))
    assert json.loads((folder / "c.json").read_text())["scores"] == expected.scores.tolist()
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = recorded("compare", "a.rsm", "b.rsm", "--json", "-")
    assert json.loads(out)["estimator"] == "blocks"


def test_adaptation_prints_a_table_for_each_file(recorded, folder):
    status, out, _ = recorded("adaptation", "a.rsm", "b.rsm", "--png", "a.png")
    assert status == 0
    assert out.count("log ratio") == 2
    assert (folder / "a.png").exists()
    content = json.loads(recorded("adaptation", "a.rsm", "--json", "-")[1])
    assert "mean_embedding" in content[0]


def test_report_writes_a_page(recorded, folder):
    status, out, _ = recorded("report", "a.rsm", "b.rsm", "-o", "r.html")
    assert status == 0
    size = (folder / "r.html").stat().st_size
    assert out == f"r.html: 2 networks, {size / 1e6:.2f} MB\n"


def test_info_says_what_a_file_holds(recorded):
    status, out, _ = recorded("info", "a.rsm")
    assert status == 0
    for word in ("1797", "tempered", "features, gradients", rs.load("a.rsm").data.fingerprint):
        assert word in out
    content = json.loads(recorded("info", "a.rsm", "--json", "-")[1])
    assert content[0]["layers"][0]["kinds"] == ["features", "gradients"]


# -- mistakes -----------------------------------------------------------------------------------


def test_a_wrong_layer_name(refused):
    words = ("--model", "nets.py:small", "--data", "digits", "-o", "a.rsm", "--layer", "2x")
    assert refused("record", *words) == (
        "no layer is named '2x' and no name matches it as a glob; nearest: 2"
    )


def test_a_damaged_file(recorded, refused, folder):
    content = bytearray((folder / "a.rsm").read_bytes())
    content[-100] ^= 255
    (folder / "a.rsm").write_bytes(content)
    assert "a.rsm is damaged: its checksum does not match" in refused("info", "a.rsm")


def test_weights_that_do_not_fit(refused):
    save_file({"1.weight": torch.ones(3, 64)}, "w.safetensors")
    words = ("--model", "nets.py:small", "--weights", "w.safetensors", "--data", "digits")
    assert refused("record", *words, "-o", "a.rsm") == (
        "the weights in w.safetensors do not fit the model: 1.weight is (3, 64) there, (16, 64) in "
        "the model; 3 missing, such as 1.bias"
    )


def test_weights_that_would_run_code(refused, folder):
    import pickle

    (folder / "w.pt").write_bytes(pickle.dumps(print))
    words = ("--model", "nets.py:small", "--weights", "w.pt", "--data", "digits", "-o", "a.rsm")
    message = refused("record", *words)
    assert message.startswith("w.pt holds no weights that can be read safely")


def test_an_unknown_model(refused):
    assert refused("layers", "--model", "resnet18", "--data", "digits") == (
        "no model is named 'resnet18'; expected torchvision:NAME, timm:NAME, hf:NAME or "
        "FILE.py:FUNCTION"
    )


def test_a_function_that_is_not_there(refused):
    message = refused("layers", "--model", "nets.py:smal", "--data", "digits")
    assert message == "nets.py has no function 'smal'; it has small"


def test_a_function_that_gives_no_model(refused):
    message = refused("layers", "--model", "nets.py:nothing", "--data", "digits")
    assert message == "nets.py:nothing returned int; expected a torch.nn.Module"


def test_unpaired_files_asked_for_blocks(recorded, refused):
    recorded("record", "--model", "nets.py:small", "--data", "digits", "--limit", 99, "-o", "c.rsm")
    message = refused("compare", "a.rsm", "c.rsm", "--estimator", "blocks")
    assert message == (
        "blocks cannot be compared: they were recorded on different samples; record both with the "
        "same data, seed and block size, or use estimator='buckets'"
    )


def test_no_gradient_possible(run, refused):
    words = ("--model", "nets.py:regression", "--data", "digits", "-o", "a.rsm")
    assert "One output a sample is a regression head" in refused("record", *words)
    assert run("record", *words, "--features-only")[0] == 0


def test_no_extra_installed(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert refused("layers", "--model", "timm:resnet18", "--data", "digits") == (
        "this needs timm, which is not installed: pip install 'resemblance[vision]'"
    )


def test_an_empty_folder(refused, folder):
    (folder / "photos").mkdir()
    message = refused("layers", "--model", "nets.py:small", "--data", "photos")
    assert message.startswith("no images below photos; expected files such as .bmp")


def images(folder, count=12):
    from PIL import Image

    for i in range(count):
        path = folder / "photos" / str(i % 2) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 255, (10, 12, 3), np.uint8)
        Image.fromarray(pixels).save(path)


def test_an_unreadable_image_is_refused_or_skipped_with_a_count(run, refused, folder):
    images(folder)
    (folder / "photos/1/3.png").write_bytes(b"not an image")
    (folder / "conv.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))\n"
    )
    words = ("--model", "conv.py:net", "--data", "photos", "--size", 8, "-o", "a.rsm")
    message = refused("record", *words)
    assert message.startswith("cannot read the image photos/1/3.png (")
    assert message.endswith("or leave such images out with --on-bad skip")
    status, out, _ = run("record", *words, "--on-bad", "skip")
    assert status == 0
    assert "11 samples (1 skipped)" in out


def test_unknown_data(refused):
    assert refused("layers", "--model", "nets.py:small", "--data", "mnist") == (
        "no data at 'mnist'; expected digits, a folder of images, an .npz file, hf:NAME or "
        "FILE.py:FUNCTION"
    )


def test_a_limit_cuts_what_has_a_length_or_an_order(refused, folder):
    (folder / "data.py").write_text("def odd():\n    return 3\n")
    words = ("--model", "nets.py:small", "--data", "data.py:odd", "--limit", 2, "-o", "a.rsm")
    assert refused("record", *words) == "--limit cannot cut int; expected data of known length"
