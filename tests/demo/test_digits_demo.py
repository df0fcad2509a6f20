"""The demo, whole but trained less: everything it promises is written, and what it says is so."""

from __future__ import annotations

import re
import shlex

import pytest

import resemblance as rs
from resemblance.demo import digit_networks, digits_demo

pytestmark = pytest.mark.slow  # they share one demo, which takes half a minute


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The demo's folder and the lines it printed, after six epochs instead of twenty."""
    out = tmp_path_factory.mktemp("demo")
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digit_networks, "EPOCHS", 6)
        digits_demo.run(out, say=lines.append)
    return out, lines


def test_writes_files_figures_page_and_steps(told):
    out, _ = told
    names = {path.name for path in out.iterdir()}
    nets = ["twin-1", "twin-2", "twin-3", "odd-even", "untrained"]
    nets += ["twin-1-tuned", "twin-1-int8", "twin-1-int4", "twin-1-pruned"]
    assert {f"{net}.rsm" for net in nets} <= names
    assert {f"{net}.safetensors" for net in nets} <= names
    figures = {"networks.png", "twins.png", "tasks.png", "copies.png", "adaptation.png"}
    assert figures | {"report.html", "README.md", "networks.py"} <= names


def test_lines_fit_a_terminal_of_eighty_columns(told):
    out, lines = told
    assert all(len(line) <= 80 for line in lines if str(out) not in line)


def test_the_sentences_hold_the_numbers_measured(told):
    out, lines = told
    bullets = "\n".join(lines).split("\n\n")[0].split("\n• ")[1:]
    said = [" ".join(bullet.split()) for bullet in bullets]
    assert len(said) == 4
    reps = {name: rs.load(out / f"{name}.rsm") for name in ("twin-1", "odd-even", "twin-1-pruned")}
    seen = rs.compare(reps["twin-1"], reps["odd-even"], kernel="features").by_layer()[0]
    assert f"{seen[0]:.2f} at act1" in said[1]
    left = rs.compare(reps["twin-1"], reps["twin-1-pruned"], kernel="gradients").by_layer()[0]
    assert re.search(rf"gradient CKA at {left.mean():.2f}\b", said[3])
    does = rs.behaviour(reps["twin-1"], reps["twin-1-pruned"])
    share, error = 100 * does.disagreement, 100 * does.disagreement_stderr
    assert (
        f"different digit for {share:.1f} ± {error:.1f} % of images (KL {does.kl:.2g} ±" in said[3]
    )


def test_it_ends_in_the_check_that_catches_the_pruned_copy(told, run, monkeypatch):
    out, lines = told
    end = "\n".join(lines).split("\n\n")[1]
    assert "This check stops the pruned copy" in " ".join(end.split())
    typed = [line.strip().rstrip("\\") for line in end.splitlines() if line.startswith("    ")]
    words = shlex.split("".join(typed))
    assert words[:2] == ["resemblance", "check"]
    monkeypatch.chdir(out)
    status, said, _ = run(*words[1:])
    assert status == 1
    table, paragraph = said.split("\nNote:")[0].strip().split("\n\n")
    assert "✗" in table
    verdict = " ".join(paragraph.split())
    assert " ".join(end.split()).endswith(f"{verdict} Exit status 1.")
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert verdict in readme


def test_the_first_command_of_its_readme_gives_the_same_file(told, tmp_path, run, monkeypatch):
    out, _ = told
    text = (out / "README.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("resemblance record"))
    words = shlex.split(command)[1:]
    words[words.index("-o") + 1] = str(tmp_path / "again.rsm")
    monkeypatch.chdir(out)
    assert run(*words)[0] == 0
    again, first = rs.load(tmp_path / "again.rsm"), rs.load(out / "twin-1.rsm")
    assert again.model.fingerprint == first.model.fingerprint
    assert rs.compare(again, first, kernel="product").scores[0, 0] == pytest.approx(1, abs=1e-6)


def test_the_number_of_threads_is_left_as_it_was():
    import torch

    before = torch.get_num_threads()
    with digits_demo.quietly_on_one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
