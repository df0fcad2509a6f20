"""The subcommands: what they print, what they write, and one clear line for a likely mistake."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import resemblance as rs
from resemblance.errors import install_command

# -- what works ---------------------------------------------------------------------------------


def test_layers_lists_what_runs_and_what_auto_picks(run):
    status, out, err = run("layers", "--model", "nets.py:small", "--data", "digits")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines() if "ReLU" in line] == [
        ["2", "ReLU", "16", "yes"]
    ]
    assert out.splitlines()[-1] == "4 modules run; auto selects 1: 2"


def test_layers_that_a_filter_leaves(run, refused):
    words = ("layers", "--model", "nets.py:small", "--data", "digits")
    status, out, err = run(*words, "--filter", "[13]", "--filter", "!3", "--filter", "auto")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[2:-1]] == ["1", "2"]
    assert out.splitlines()[-1] == "2 of 4 modules that run; auto selects 1: 2"
    content = json.loads(run(*words, "--filter", "3:in", "--json", "-")[1])
    assert [row["layer"] for row in content] == ["3"]
    assert refused(*words, "--filter", "9") == (
        "no layer is named '9' and no name matches it as a pattern; nearest: 0, 1, 2, 3"
    )


SHAPES = """
import torch
from torch import nn


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 12, 3), nn.LayerNorm(12)
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        return self.head(self.norm(self.stem(x).permute(0, 2, 3, 1)).relu().mean((1, 2)))


class StepsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.head = nn.Linear(8, 5), nn.Linear(5, 10)

    def forward(self, x):  # (n, 1, 8, 8) -> (8, n, 8)
        return self.head(self.step(x[:, 0].transpose(0, 1)).tanh().mean(0))
"""


def test_shapes_are_as_the_network_has_them(run, folder):
    (folder / "shapes.py").write_text(SHAPES)
    words = ("--model", "shapes.py:ChannelsLast", "--data", "digits")
    found = json.loads(run("layers", *words, "--json", "-")[1])
    assert [row["shape"] for row in found] == [[12, 6, 6], [6, 6, 12], [10]]
    run("record", *words, "--layer", "stem", "--layer", "norm", "--limit", 64, "-o", "a.rsm")
    assert [
        layer["shape"] for layer in json.loads(run("info", "a.rsm", "--json", "-")[1])[0]["layers"]
    ] == [[12, 6, 6], [6, 6, 12]]
    assert "norm   6 × 6 × 12    432  features, gradients" in run("info", "a.rsm")[1]
    words = ("--model", "shapes.py:StepsFirst", "--data", "digits")
    found = json.loads(run("layers", *words, "--json", "-")[1])
    assert [row["shape"] for row in found] == [[8, 5], [10]]


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
    from resemblance._data.load_data import load_digits_data
    from resemblance._models.loading import load_model

    images, labels = (x[:300] for x in load_digits_data())
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


def test_compare_shows_features_and_gradients_unless_asked_for_a_kernel(recorded, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    status, out, err = recorded("compare", "a.rsm", "b.rsm")
    assert (status, err) == (0, "")
    assert out.splitlines()[2].split() == ["layer", "features", "chance", "gradients", "chance"]
    status, out, err = recorded("compare", "a.rsm", "b.rsm", "--kernel", "features")
    expected = rs.compare(rs.load("a.rsm"), rs.load("b.rsm"), kernel="features")
    assert (status, err) == (0, "")
    heading, *sentences = expected.summary().split("\n")
    assert out.splitlines()[0] == heading
    assert out.splitlines()[2].split() == ["layer", "features", "chance"]
    assert out.splitlines()[-len(sentences) :] == sentences
    assert f"{expected.scores[0, 0]:.4f} ± {expected.stderr[0, 0]:.4f}" in out


def test_compare_writes_json_and_a_picture(recorded, folder):
    status, out, _ = recorded("compare", "a.rsm", "b.rsm", "--json", "c.json", "--png", "c.png")
    assert status == 0
    written = json.loads((folder / "c.json").read_text())
    assert written == rs.compare("a.rsm", "b.rsm").to_dict()
    for kernel in ("features", "gradients"):
        assert written[kernel] == rs.compare("a.rsm", "b.rsm", kernel=kernel).to_dict()
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
    one = ("--kernel", "product", "--png", "d.png", "--json", "-")
    status, out, _ = recorded("compare", "a.rsm", "b.rsm", *one)
    assert json.loads(out) == rs.compare("a.rsm", "b.rsm", kernel="product").to_dict()
    assert (folder / "d.png").read_bytes().startswith(b"\x89PNG")


def test_a_map_is_shown_where_it_fits(recorded, monkeypatch):
    _, out, _ = recorded("compare", "a.rsm", "b.rsm", "--map")
    assert "features: rows a, columns b\n" in out
    assert "gradients: rows a, columns b\n" in out


def test_permutations_give_any_index_a_chance_level(run):
    for seed in "01":
        words = ("--model", "nets.py:small", "--data", "digits", "--limit", "100", "--seed", "0")
        run("record", *words, "--layer", seed, "-o", f"{seed}.rsm")
    words = ("compare", "0.rsm", "1.rsm", "--index", "mutual-knn", "--permutations", "19")
    status, out, _ = run(*words, "--kernel", "features")
    assert status == 0
    assert "(p = 0.05, corrected for taking the best)" in " ".join(out.split())
    written = json.loads(run(*words, "--kernel", "features", "--json", "-")[1])
    assert len(written["permuted_best"]) == 19
    assert written["p_value"] == [[0.05]]
    status, _, error = run("compare", "0.rsm", "1.rsm", "--permutations", "3")
    assert status == 2
    assert "--permutations must be a whole number, 19 or more; found 3" in " ".join(error.split())


def test_adaptation_prints_a_table_for_each_file(recorded, folder):
    status, out, _ = recorded("adaptation", "a.rsm", "b.rsm", "--png", "a.png")
    assert status == 0
    assert out.count("log ratio") == 2
    assert out.count("Outputs: dispersity 0.") == 2
    assert (folder / "a.png").exists()
    content = json.loads(recorded("adaptation", "a.rsm", "--json", "-")[1])
    assert "mean_embedding" in content[0]
    assert 0 < content[0]["outputs"]["dispersity"] <= 1


def test_report_writes_a_page(recorded, folder):
    status, out, _ = recorded("report", "a.rsm", "b.rsm", "-o", "r.html")
    assert status == 0
    size = (folder / "r.html").stat().st_size
    assert out == f"r.html: 2 networks, {size / 1e6:.2f} MB\n"


def test_info_says_what_a_file_holds(recorded):
    status, out, _ = recorded("info", "a.rsm")
    assert status == 0
    for word in ("1,797", "tempered", "features, gradients", rs.load("a.rsm").data.fingerprint):
        assert word in out
    content = json.loads(recorded("info", "a.rsm", "--json", "-")[1])
    assert content[0]["layers"][0]["kinds"] == ["features", "gradients"]


def test_info_says_what_an_old_file_lacks_and_what_a_shard_keeps(run):
    golden = Path(__file__).parents[1] / "golden"
    old, shard = json.loads(
        run("info", str(golden / "a.rsm"), str(golden / "shard-0.rsm"), "--json", "-")[1]
    )
    assert (
        old["lacks"]
        == shard["lacks"]
        == (
            "squared norms of samples, sketches in coordinates, hashes of blocks, a hash of what "
            "samples hold, a hash of all weights, what the network predicted"
        )
    )
    assert old["accumulators"] == shard["accumulators"] == "kept"
    assert old["blocks"] == "16 of 19 samples"


# -- mistakes -----------------------------------------------------------------------------------


def test_a_wrong_layer_name(refused):
    words = ("--model", "nets.py:small", "--data", "digits", "-o", "a.rsm", "--layer", "2x")
    assert refused("record", *words) == (
        "no layer is named '2x' and no name matches it as a pattern; nearest: 2"
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
        "the weights in w.safetensors do not match the model: 1.weight is (3, 64) there, (16, 64) "
        "in the model; 3 missing, such as 1.bias"
    )


def test_weights_that_would_run_code(refused, folder):
    import pickle

    (folder / "w.pt").write_bytes(pickle.dumps(print))
    words = ("--model", "nets.py:small", "--weights", "w.pt", "--data", "digits", "-o", "a.rsm")
    message = refused("record", *words)
    assert message.startswith("w.pt contains no weights that can be loaded safely")


def test_an_unknown_model(refused):
    assert refused("layers", "--model", "resnet18", "--data", "digits") == (
        "no model is named 'resnet18'; expected torchvision:NAME, timm:NAME, hf:NAME, "
        "onnx:FILE, torchscript:FILE, gguf:FILE or FILE.py:FUNCTION"
    )


def test_a_function_that_is_not_there(refused):
    message = refused("layers", "--model", "nets.py:smal", "--data", "digits")
    assert message == "nets.py has no function 'smal'; it has small"


def test_a_function_that_gives_no_model(refused):
    message = refused("layers", "--model", "nets.py:nothing", "--data", "digits")
    assert message == "nets.py:nothing returned int; expected a torch.nn.Module"


def test_unpaired_files_asked_for_blocks(recorded, refused):
    recorded("record", "--model", "nets.py:small", "--data", "digits", "--limit", 99, "-o", "c.rsm")
    message = refused("compare", "a.rsm", "c.rsm", "--estimator", "blocks", "--unpaired")
    assert message == (
        "blocks cannot be compared: they were recorded on different samples; record both with the "
        "same data, seed and block size, or use --estimator buckets"
    )


def test_no_gradient_possible(run, refused):
    words = ("--model", "nets.py:regression", "--data", "digits", "-o", "a.rsm")
    assert "pass --logits sigmoid" in refused("record", *words)
    assert run("record", *words, "--features-only")[0] == 0


def test_no_extra_installed(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert refused("layers", "--model", "timm:resnet18", "--data", "digits") == (
        f"this needs timm, which is not installed: {install_command('vision')}"
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


@pytest.mark.filterwarnings("default:only .* below 50")
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
    assert message.endswith("or skip such images with --on-bad skip")
    status, out, _ = run("record", *words, "--on-bad", "skip")
    assert status == 0
    assert "11 samples (1 skipped)" in out


def test_unknown_data(refused):
    assert refused("layers", "--model", "nets.py:small", "--data", "mnist") == (
        "no data at 'mnist'; expected digits, a folder of images, an .npz, .npy, .txt, .jsonl or "
        ".parquet file, tar shards, hf:NAME, hf-stream:NAME, probe:images, probe:text or "
        "FILE.py:FUNCTION"
    )


def test_a_limit_cuts_what_has_a_length_or_an_order(refused, folder):
    (folder / "data.py").write_text("def odd():\n    return 3\n")
    words = ("--model", "nets.py:small", "--data", "data.py:odd", "--limit", 2, "-o", "a.rsm")
    assert refused("record", *words) == "--limit cannot cut int; expected data of known length"


def test_a_limit_counts_samples_not_batches(run, folder):
    (folder / "data.py").write_text(
        "import torch\n\n\ndef batches():\n    return (torch.rand(7, 1, 8, 8) for _ in range(10))\n"
    )
    words = ("--model", "nets.py:small", "--data", "data.py:batches", "--limit", 60, "-o", "a.rsm")
    status, out, _ = run("record", *words, "--batch-size", 4, "--block", 10)
    assert (status, " 60 samples, " in out) == (0, True)


# -- outputs, looked at before anything else ------------------------------------------------------

ON_WHAT_IS_NOT_THERE = {
    "layers": ("layers", "--model", "gone", "--data", "gone"),
    "record": ("record", "--model", "gone", "--data", "gone", "-o", "a.rsm"),
    "compare": ("compare", "gone.rsm", "gone.rsm"),
    "adaptation": ("adaptation", "gone.rsm"),
    "info": ("info", "gone.rsm"),
}


@pytest.mark.parametrize("words", ON_WHAT_IS_NOT_THERE.values(), ids=ON_WHAT_IS_NOT_THERE)
def test_a_json_file_that_cannot_be_written_is_refused_at_once(refused, folder, words):
    said = refused(*words, "--json", "no/a.json")
    assert said.startswith("cannot write no/a.json: its folder does not exist; expected a place")


@pytest.mark.parametrize("command", ["record", "report"])
def test_an_output_that_cannot_be_written_is_refused_at_once(refused, folder, command):
    words = ON_WHAT_IS_NOT_THERE["record"][:-2] if command == "record" else ("report", "gone.rsm")
    assert refused(*words, "-o", "/dev/null") == (
        "cannot write /dev/null: expected a file or a new name, found a device; name a file instead"
    )
    (folder / "out").mkdir()
    assert "out: expected a file or a new name, found a folder" in refused(*words, "-o", "out")


@pytest.mark.parametrize("command", ["compare", "adaptation"])
def test_a_picture_that_cannot_be_drawn_is_refused_at_once(refused, folder, command):
    words = ON_WHAT_IS_NOT_THERE[command]
    said = refused(*words, "--png", "a.foo")
    assert said.startswith("cannot draw a.foo: .foo is no format of matplotlib's; name a file that")
    assert " pdf, " in said
    assert said.endswith("webp")
    said = refused(*words, "--png", "no/a.png")
    assert said.startswith("cannot write no/a.png: its folder does not exist")


def test_a_demo_that_cannot_be_left_is_refused_at_once(refused, folder):
    assert refused("demo", "-o", "nets.py") == (
        "cannot create the folder nets.py (File exists); choose a writable location"
    )
    (folder / "out/report.html").mkdir(parents=True)
    assert "out/report.html: expected a file or a new name" in refused("demo", "-o", "out")


def test_every_output_keeps_the_mode_of_the_file_it_replaces(recorded, folder):
    for name in ("a.rsm", "c.json", "c.png", "r.html"):
        (folder / name).touch()
        (folder / name).chmod(0o600)
    recorded("record", "--model", "nets.py:small", "--data", "digits", "-o", "a.rsm")
    recorded("compare", "a.rsm", "b.rsm", "--json", "c.json", "--png", "c.png")
    recorded("report", "a.rsm", "b.rsm", "-o", "r.html")
    for name in ("a.rsm", "c.json", "c.png", "r.html"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        assert (folder / name).stat().st_size > 0


def test_the_path_of_standard_output_is_standard_output(recorded):
    status, out, _ = recorded("info", "a.rsm", "--json", "/dev/stdout")
    assert (status, json.loads(out)[0]["file"]) == (0, "a.rsm")


# -- names that want to be more -----------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e[/x]net[v2]$x$:smile:\n\r\x7f"
SHOWN = r"\x1b]0;owned\x07\x9b31m\u202e[/x]net[v2]$x$:smile:\n\r\x7f"
NETWORK = f"""
from torch import nn

NAME = {HOSTILE!r}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(NAME, nn.Linear(64, 16))
        self.add_module("act[bold]", type(NAME, (nn.ReLU,), {{}})())
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        parts = dict(self.named_children())
        return self.head(parts["act[bold]"](parts[NAME](x.flatten(1))))


def net():
    return Net()
"""


@pytest.fixture
def hostile(run, folder):
    """The command where files, networks, layers and classes have names that a terminal obeys."""
    (folder / "net.py").write_text(NETWORK, encoding="utf-8")
    file = f"{HOSTILE.replace('/', '')}.rsm"
    words = ("--model", "net.py:net", "--data", "digits", "--limit", 100, "-o", file)
    names = ("--name", HOSTILE, "--data-id", HOSTILE, "--layer", HOSTILE, "--layer", "act?bold?")
    return run, file, ("record", *words, *names)


def whole(text):
    """Without the spaces and lines that a table is folded into."""
    return "".join(text.split()).replace("─", "")


def test_names_are_printed_whole_and_never_obeyed(hostile):
    run, file, record = hostile
    shown_file = SHOWN.replace("/", "") + ".rsm"
    for words, expected in [
        (("layers", "--model", "net.py:net", "--data", "digits"), [SHOWN, "act[bold]"]),
        (record, [shown_file, SHOWN]),
        (("info", file), [shown_file, SHOWN, "act[bold]"]),
        (("compare", file, file), [SHOWN, "act[bold]"]),
        (("adaptation", file), [SHOWN, "act[bold]"]),
        (("report", file, "-o", f"{file}.html"), [f"{shown_file}.html"]),
        (("info", f"{file}.gone"), [f"nofileat{shown_file}.gone"]),
        (("layers", "--model", f"{HOSTILE}.py:net", "--data", "digits"), [f"nofileat{SHOWN}.py"]),
        (("info", f"--{HOSTILE}", file), [SHOWN[:9]]),
    ]:
        _, out, err = run(*words)
        for name in expected:
            assert whole(name) in whole(out + err), (words, out, err)
        for text in (out, err):
            assert "Traceback" not in text
            assert not {*text}.intersection("\x1b\x07\x9b\u202e\x7f\r"), text


def test_a_terminal_is_given_no_sequence_of_a_name(hostile, folder):
    _, _, record = hostile
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "resemblance", *map(str, record)]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, cwd=folder) as process:
        os.close(theirs)
        found = b""
        with contextlib.suppress(OSError):  # the other end is closed at the end
            while part := os.read(ours, 4096):
                found += part
    os.close(ours)
    assert process.returncode == 0
    assert b"recording" in found  # the bar was drawn, with colours
    assert b"\x1b]0;" not in found
    assert "\u202e".encode() not in found
    assert rb"\x1b]0;owned" in found


# -- documented keys ------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"


def documented(section, table="key"):
    """The keys in a table of a section of docs/reference/commands.md."""
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    (rows,) = re.findall(
        rf"^\| {re.escape(table)} \| value \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M
    )
    return {key for row in rows.splitlines() for key in re.findall(r"`(.*?)`", row.split("|")[1])}


def test_every_key_is_documented(run, recorded):
    rows = json.loads(
        run("layers", "--model", "nets.py:small", "--data", "digits", "--json", "-")[1]
    )
    assert all(set(row) == documented("layers") for row in rows)
    run("record", "--model", "nets.py:small", "--data", "digits", "-o", "c.rsm", "--seed", "0")
    both = json.loads(run("compare", "a.rsm", "c.rsm", "--json", "-")[1])
    assert set(both) == documented("compare")
    for kernel in ("features", "gradients"):
        assert set(both[kernel]) == documented("compare", "key of a comparison")
        assert set(both["parting"][kernel]) == documented(
            "compare", "key of a divergence (`parting`)"
        )
    assert set(both["behaviour"]) == documented("compare", "key of a behaviour")
    assert set(both["coordinates"]) == documented("compare", "key of a drift (`coordinates`)")
    (table,) = json.loads(run("adaptation", "a.rsm", "--json", "-")[1])
    assert set(table) == documented("adaptation")
    many = json.loads(run("copies", "a.rsm", "c.rsm", "--json", "-")[1])
    assert set(many) == documented("copies")
    (about,) = json.loads(run("info", "a.rsm", "--json", "-")[1])
    assert set(about) == documented("info")
    assert set(about["layers"][0]) == {"name", "shape", "dim", "folded", "kinds"}


def test_every_command_is_documented(run):
    listed = re.findall(r"^  (\w+)  ", run("--help")[1].partition("Commands:")[2], re.M)
    text = PAGE.read_text()
    assert listed
    assert [name for name in listed if f"| `{name}` |" not in text] == []
