"""The folder that the demo writes: commands that name its files, and a module that runs."""

from __future__ import annotations

import runpy
import shlex

import pytest
import torch

import resemblance as rs
from resemblance._data.load_data import load_digits_data
from resemblance.demo import digits_demo
from resemblance.demo.digit_networks import TRAIN_COUNT, DigitNet, Network
from resemblance.errors import DataError


@pytest.fixture
def written(tmp_path):
    nets = [Network("ten", "ten digits", DigitNet(10), 0.943), Network("two", "", DigitNet(2), 1)]
    rep = rs.record_arrays(torch.randn(60, 6), data_id="noise")
    verdict = rs.check(rep, rep, min={"features": 0.5})
    digits_demo.write_demo_files(
        tmp_path, nets, ["It holds {braces}.", "It is ± 1."], "resemblance check", verdict
    )
    return tmp_path


def test_the_readme_holds_findings_networks_and_a_command_for_each(written):
    text = (written / "README.md").read_text(encoding="utf-8")
    assert "\n- It holds {braces}.\n- It is ± 1.\n" in text
    assert "\n| ten | ten digits | 94.3% |\n" in text
    records = [shlex.split(line) for line in text.splitlines() if "resemblance record" in line]
    assert [words[words.index("--model") + 1] for words in records] == [
        "networks.py:ten_digits",
        "networks.py:odd_even",
    ]
    assert "\nresemblance report ten.rsm two.rsm -o report.html\n" in text


def test_the_readme_closes_with_a_check_and_its_verdict(written):
    text = (written / "README.md").read_text(encoding="utf-8")
    assert "\n```sh\nresemblance check\n```\n" in text
    assert "passes as a copy of" in text
    assert "The exit status is 0," in text


def test_the_module_builds_the_networks_and_the_images(written):
    names = runpy.run_path(str(written / "networks.py"))
    assert names["ten_digits"]().state_dict().keys() == DigitNet(10).state_dict().keys()
    assert names["odd_even"]().head.out_features == 2
    assert torch.equal(names["unseen"](), load_digits_data()[0][TRAIN_COUNT:])


def test_a_folder_that_cannot_be_made_or_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot create the folder .*file \(File exists\); choose"):
        digits_demo.make_demo_folder(tmp_path / "file")
    (tmp_path / "out/README.md").mkdir(parents=True)
    with pytest.raises(DataError, match=r"README\.md: .*found a folder"):
        digits_demo.make_demo_folder(tmp_path / "out")
