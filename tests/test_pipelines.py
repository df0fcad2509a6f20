"""The GitHub action and the examples for pipelines, run as the shells of those services do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from safetensors.torch import save_file

from digit_copies import pruned, recorded, rounded, trained

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]  # `shell: bash` of an action
OURS = {"torchvision:resnet18": "net.py:net", "validation/": "digits"}  # in place of an example's
NET = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10)
    )
"""

if not (ROOT / "action.yml").exists() or not EXAMPLES.exists():
    pytest.skip("the action or the examples are not there", allow_module_level=True)


@pytest.fixture
def folder(tmp_path):
    """A repository with recordings, weights and thresholds."""
    for name in ("base", "int8", "pruned"):
        recorded(name).save(tmp_path / f"{name}.rsm")
    for name, net in {"base": trained(), "int8": rounded(8), "pruned": pruned(0.6)}.items():
        save_file(net.state_dict(), tmp_path / f"{name}.safetensors")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "thresholds.toml").write_text((EXAMPLES / "thresholds.toml").read_text())
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"python": "", "resemblance": " -m resemblance"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)
    return tmp_path


def environment(folder, **more):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **{name: str(value) for name, value in more.items()}}


def shell(folder, command, **variables):
    return subprocess.run(
        [*BASH, command],
        cwd=folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
    )


class Action:
    """The action with its inputs: its `run` steps, and what they leave for the runner."""

    def __init__(self, folder, **inputs):
        self.folder, self.content = folder, yaml.safe_load((ROOT / "action.yml").read_text())
        known = self.content["inputs"]
        names = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert names.keys() <= known.keys()
        required = {name for name, one in known.items() if one.get("required")}
        assert required <= names.keys()
        self.inputs = {name: one.get("default", "") for name, one in known.items()} | names
        self.files = {name: folder / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}

    def step(self, name, **variables):
        """Runs one step; its status and what it printed."""
        (step,) = (one for one in self.content["runs"]["steps"] if one.get("name") == name)
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # an input is a variable, and so never code
        given = {key: self.filled(value) for key, value in step["env"].items()}
        given |= {"GITHUB_ACTION_PATH": ROOT, "RUNNER_TEMP": self.folder / "runner temp"}
        done = shell(self.folder, step["run"], **given, **self.files, **variables)
        return done.returncode, done.stdout + done.stderr

    def filled(self, text):
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: self.inputs[found[1]], text)

    def outputs(self):
        """As a workflow reads them."""
        lines = self.files["GITHUB_OUTPUT"].read_text().splitlines()
        given = dict(line.split("=", 1) for line in lines)
        named = self.content["outputs"].items()
        return {
            name: given[
                re.fullmatch(r"\$\{\{ steps\.check\.outputs\.([\w-]+) \}\}", one["value"])[1]
            ]
            for name, one in named
        }

    def summary(self):
        return self.files["GITHUB_STEP_SUMMARY"].read_text()


@pytest.mark.slow
def test_the_action_installs_the_package(folder):
    """Into a folder of its own, without dependencies, which are here."""
    target = folder / "installed"
    pip = {"PIP_TARGET": target, "PIP_NO_DEPS": 1, "PIP_NO_BUILD_ISOLATION": 0}
    status, out = Action(folder, base="", copy="").step("install", **pip)
    assert status == 0, out
    assert (target / "resemblance" / "py.typed").exists()
    code = "import resemblance; print(resemblance.__file__)"
    assert str(target) in shell(folder, f"python -c '{code}'", PYTHONPATH=target).stdout


def test_a_copy_that_fails_stops_the_workflow_and_is_in_its_summary(folder):
    action = Action(folder, base="base.rsm", copy="pruned.rsm", thresholds="thresholds.toml")
    assert action.step("check")[0] == 1
    assert "### `pruned` fails as a copy of `base`" in action.summary()
    outputs = action.outputs()
    assert outputs["exit-status"] == "1"
    cases = ElementTree.parse(outputs["junit"]).getroot()[0]
    assert int(cases.get("failures")) > 0
    assert Path(outputs["markdown"]).read_text() == action.summary()
    assert '"status": "failed"' in Path(outputs["json"]).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("undecided", "expected"), [("fail", 3), ("warn", 0)])
def test_an_undecided_check_stops_or_warns(folder, undecided, expected):
    arguments = "--max-disagreement 0.0001\n--min mean:features=0.5\n"
    files = {"base": "base.rsm", "copy": "base.rsm"}
    action = Action(folder, **files, arguments=arguments, undecided=undecided)
    status, out = action.step("check")
    assert status == expected
    assert ("::warning::" in out) == (undecided == "warn")
    assert action.outputs()["exit-status"] == "3"
    assert "max-disagreement 0.01 %" in action.summary()
    assert "min mean:features 0.5" in action.summary()


@pytest.mark.slow
def test_a_mistake_is_an_error_in_the_summary_and_in_the_junit_file(folder):
    action = Action(folder, base="base.rsm", copy="nowhere $(touch gone).rsm", arguments="--min a")
    status, out = action.step("check")
    assert status == 2
    assert "error: " in out
    assert "could not be made" in action.summary()
    assert not (folder / "gone").exists()


@pytest.mark.slow
def test_the_example_of_a_workflow_uses_the_action(folder):
    workflow = yaml.safe_load((EXAMPLES / "check-workflow.yml").read_text())
    steps = workflow["jobs"]["check"]["steps"]
    (used,) = (step for step in steps if "/resemblance@" in step.get("uses", ""))
    inputs = {name: OURS.get(value, value) for name, value in used["with"].items()}
    action = Action(folder, **inputs)
    status, out = action.step("check")
    assert status == 0, out
    assert "passes as a copy of `base.safetensors`" in action.summary()
    read = re.findall(r"steps\.check\.outputs\.([\w-]+)", str(steps))
    assert set(read) <= action.outputs().keys()


@pytest.mark.slow
def test_the_example_for_gitlab_runs(folder):
    (job,) = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text()).values()
    install, check = job["script"]
    assert install.startswith("pip install 'resemblance[")
    for example, ours in OURS.items():
        check = check.replace(example, ours)
    assert shell(folder, check).returncode == 0
    assert ElementTree.parse(folder / job["artifacts"]["reports"]["junit"]).getroot() is not None
    assert all((folder / path).exists() for path in job["artifacts"]["paths"])
    assert job["allow_failure"] == {"exit_codes": 3}


@pytest.mark.slow
def test_the_example_of_a_makefile_runs(folder):
    text = (EXAMPLES / "check.mk").read_text()
    for example, ours in OURS.items():
        text = text.replace(example, ours)
    (folder / "check.mk").write_text(text)
    (folder / "base.rsm").unlink()
    done = shell(folder, "make -f check.mk")
    assert done.returncode == 0, done.stderr
    assert "passes as a copy of" in (folder / "check.md").read_text()
    (folder / "int8.safetensors").write_bytes((folder / "pruned.safetensors").read_bytes())
    again = shell(folder, "make -f check.mk")
    assert "resemblance record" not in again.stdout  # the base is recorded once
    assert again.returncode == 2  # make's own
    assert "fails as a copy of" in (folder / "check.md").read_text()
