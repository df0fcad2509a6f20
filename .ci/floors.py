"""Installs the oldest versions that pyproject.toml allows and tries them: `make floors`.

A fresh virtual environment in a temporary folder gets every dependency, and those of every extra
but dev, at its lower bound. A small network is then recorded, compared, checked and reported, each
extra is used once, and every command prints its help. This takes some GB and minutes, as old
versions of torch come with CUDA: `--torch 2.13.0+cpu` takes another one, without torchvision.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def floors() -> dict[str, str]:
    """The lower bound of each dependency outside of the extra dev."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k != "dev"}
    every = [*project["dependencies"], *(x for some in extras.values() for x in some)]
    found = {}
    for requirement in every:
        match = re.match(r"([\w-]+)>=([\w.]+)", requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} has no lower bound; write NAME>=VERSION")
        found[match[1]] = match[2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="python3.10", help="the oldest that is supported")
    parser.add_argument("--torch", default="", help="instead of the oldest; without torchvision")
    parser.add_argument(
        "--smoke", action="store_true", help="try this interpreter, install nothing"
    )
    given = parser.parse_args()
    if given.smoke:
        smoke()
        return
    wanted = floors()
    if given.torch:
        wanted["torch"] = given.torch
        for name in ("torchvision", "timm"):  # which need the torch of their time
            del wanted[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([given.python, "-m", "venv", folder], check=True)
        python = Path(folder, "bin", "python")
        pins = [f"{name}=={version}" for name, version in wanted.items()]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, ROOT, *pins], check=True)
        subprocess.run([python, __file__, "--smoke"], cwd=folder, check=True)
    print("works with", ", ".join(pins))


def command(*words: str) -> str:
    """What the command prints; an error if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "resemblance", *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def smoke() -> None:
    """Use each dependency of this interpreter once."""
    import importlib.util

    import torch
    from torch import nn

    import resemblance as rs

    torch.manual_seed(0)
    x = torch.randn(200, 8)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    base = rs.record(net, x, name="base")
    with torch.no_grad():
        net[2].weight += 0.01 * torch.randn(16, 16)
    copy = rs.record(net, x, name="copy")
    base.save("base.rsm")
    copy.save("copy.rsm")
    assert rs.compare(base, copy, kernel="features").mean()[0] > 0.99
    assert rs.check(base, copy, min={"features": 0.5})
    command("compare", "base.rsm", "copy.rsm", "--map", "--png", "map.png")
    command("check", "base.rsm", "copy.rsm", "--min", "features=0.5")
    command("report", "base.rsm", "copy.rsm")
    rs.adaptation(base).to_frame()  # pandas
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    torch.onnx.export(net, (x[:2],), "net.onnx", dynamo=False, **axes)
    assert rs.record("onnx:net.onnx", x, gradients=False).layer_names == base.layer_names
    import gguf  # noqa: F401 - transformers reads such files with it

    from resemblance.callbacks import Monitor, lightning_callback

    lightning_callback(Monitor(x, "monitor"))

    for zoo in ("zoo", "lance:table"):
        command("zoo", "add", zoo, "base.rsm", "copy.rsm")
        assert "copy" in command("zoo", "search", zoo, "base.rsm")
    if importlib.util.find_spec("timm"):
        import timm
        import torchvision  # noqa: F401 - timm needs it

        rs.record(timm.create_model("resnet10t"), torch.randn(64, 3, 64, 64), gradients=False)
    _text(rs)
    _jobs()
    import resemblance.web.application  # noqa: F401 - fastapi

    _helps()


def _text(rs: Any) -> None:
    """A language model and tokenised text."""
    import datasets
    import transformers

    ids = [[1 + (i + j) % 29 for j in range(9)] for i in range(64)]
    words = datasets.Dataset.from_dict({"input_ids": ids})
    config = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    rs.record(transformers.GPT2LMHeadModel(config), words, tokens=4)


def _jobs() -> None:
    """A sweep over handwritten digits, in this process's folder and with Ray."""
    Path("nets.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))\n"
    )
    Path("jobs.yaml").write_text(
        "models: [nets.py:net]\ndata:\n  digits: {data: digits, limit: 64}\n"
    )
    command("sweep", "jobs.yaml")
    Path("ray.yaml").write_text("out: by-ray\n" + Path("jobs.yaml").read_text())
    command("sweep", "ray.yaml", "--engine", "ray", "--workers", "1")


def _helps(*path: str) -> None:
    """Every command has a help, and so has every command below it."""
    _, _, listed = command(*path, "--help").partition("\nCommands:\n")
    for name in re.findall(r"^  (\w[\w-]*)  ", listed, re.M):
        _helps(*path, name)


if __name__ == "__main__":
    main()
