"""`resemblance check`, end to end: every exit status, and every form of a verdict."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from safetensors.torch import save_file

import resemblance as rs
from digit_copies import images, pruned, recorded, rounded, trained
from resemblance.gate.thresholds import collect_thresholds

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "docs" / "examples"
NET = """
from torch import nn


def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10)
    )


class Broken(nn.Linear):
    def train(self, mode=True):
        raise ZeroDivisionError("who would have thought")


def broken():
    return nn.Sequential(nn.Flatten(), Broken(64, 10))
"""

AT_80_COLUMNS = """\
base is undecided as a copy of base, judged on 1,197 samples with one-sided 95 %
bounds. Undecided: disagreement is 0 % (between 0 % and 0.25 %; limit: at most
0.1 %; Cohen's kappa 1): about 3,000 samples would decide; JS is 0 nats (between
0 nats and 0.00192 nats; limit: at most 0.001 nats): about 2,400 samples would
decide. Passed: KL is 0 nats (at most 0.00278 nats; limit: at most 0.01 nats; KL
is capped at 1 nat, exceeded by 0 % of samples, at most 0.25 %); share of
samples with KL above 0.05 nats is 0 % (at most 0.25 %; limit: at most 1 % of
samples; p99 of these samples is 0 nats).
"""


@pytest.fixture
def files(folder):
    """Recordings of a trained network and of copies, and the same as models with weights."""
    for name in ("base", "int8", "int4", "pruned"):
        recorded(name).save(folder / f"{name}.rsm")
    made = {"base": trained(), "int8": rounded(8), "pruned": pruned(0.6)}
    for name, net in made.items():
        save_file(net.state_dict(), folder / f"{name}.safetensors")
    (folder / "digit_net.py").write_text(NET)
    return folder


def test_copies_are_judged_by_the_thresholds_of_check(files, run):
    words = ("--min", "gradients=0.8", "--max-js", 0.01, "--min-kappa", 0.8, "--kl-cap", 0.5)
    words += ("--max-kl", 0.02)
    status, out, err = run("copies", "base.rsm", "int8.rsm", "pruned.rsm", *words, "--json", "-")
    assert (status, err) == (0, "")
    found = json.loads(out)
    expected = [rs.check("base.rsm", f"{name}.rsm", min="gradients=0.8", max_js=0.01, min_kappa=0.8,
                         kl_cap=0.5, max_kl=0.02).status for name in found["name"]]  # fmt: skip
    assert found["verdict"] == expected == ["passed", "failed"]


def test_a_missing_kernel_is_recorded_by_an_option_of_record(files, run):
    status, _, err = run("check", "base.rsm", "int8.rsm", "--min", "elementwise=0.8")
    assert status == 2
    assert err.endswith("lacks; record it again with --elementwise\n")


# -- exit statuses ------------------------------------------------------------------------------


def test_a_copy_that_passes_exits_with_0(files, run):
    words = ("--max-disagreement", 0.02, "--min", "gradients=0.8", "--min-db", 20)
    status, out, err = run("check", "base.rsm", "int8.rsm", *words)
    assert (status, err) == (0, "")
    assert "\nint8 passes as a copy of base, judged on 1,197 samples with one-sided 95" in out
    assert [line[:1] for line in out.splitlines()[2:5]] == ["✓"] * 3
    assert max(map(len, out.splitlines())) <= 100


def test_a_copy_that_fails_exits_with_1(files, run):
    words = ("--max-disagreement", 0.02, "--min", "mean:features=0.1")
    status, out, err = run("check", "base.rsm", "pruned.rsm", *words)
    assert (status, err) == (1, "")
    failed, passed, _, paragraph = out.splitlines()[2:6]
    assert failed.startswith("✗  disagreement")
    assert passed.startswith("✓  mean feature CKA")
    assert paragraph.startswith("pruned fails as a copy of base")
    assert "\x1b" not in out


def test_marks_are_coloured_on_a_terminal_and_words_where_they_cannot_be_encoded(files):
    words = [sys.executable, "-m", "resemblance", "check", "base.rsm", "int8.rsm"]
    words += ["--max-disagreement", "0.02"]
    outer, inner = pty.openpty()
    known = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    known.pop("NO_COLOR", None)
    with open(outer, "rb") as shown:
        subprocess.run(words, cwd=files, stdout=inner, env=known, check=True)
        os.close(inner)
        assert b"\x1b[32m\x1b[1m\xe2\x9c\x93\x1b[0m  disagreement" in shown.read1()
    known["PYTHONIOENCODING"] = "ascii"
    plain = subprocess.run(words, cwd=files, stdout=subprocess.PIPE, env=known, check=True)
    assert b"\npassed  disagreement" in plain.stdout


@pytest.mark.parametrize("command", ["check", "compare"])
def test_flips_are_written(files, run, command):
    words = ("--max-disagreement", 0.5) if command == "check" else ()
    status, out, err = run(command, "base.rsm", "pruned.rsm", *words, "--flips", "flips.csv")
    assert (status, err) == (0, "")
    expected = rs.flips("base.rsm", "pruned.rsm")
    found = (files / "flips.csv").read_text().splitlines()
    assert len(found) == 1 + len(expected.index) > 50
    assert found[1].startswith(f"{expected.index[0]},-1,{expected.class_a[0]},")
    if command == "compare":
        assert " ".join(expected.summary().split()) in " ".join(out.split())


def test_what_is_undecided_exits_with_3_and_says_what_would_decide(files, run):
    status, out, err = run("check", "base.rsm", "base.rsm", "--max-disagreement", 0.001)
    assert (status, err) == (3, "")
    assert "about 3,000 samples would decide" in out.replace("\n", " ")


def test_layers_without_a_counterpart_are_judged_only_if_they_are_ignored(files, run):
    for name, layers in (("two", ["2", "4"]), ("last", ["4"])):
        rs.record(trained(), images()[0][600:900], layers=layers).save(files / f"{name}.rsm")
    words = ("check", "two.rsm", "last.rsm", "--min", "features=0.5", "--min-db", 20)
    status, out, _ = run(*words)
    assert (status, "--ignore-unmatched" in out) == (3, True)
    assert run(*words, "--ignore-unmatched")[0] == 0


def test_the_paragraph_at_80_columns(files, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    thresholds = ("--max-disagreement", 0.001, "--max-kl", 0.01, "--max-js", 0.001)
    thresholds += ("--max-kl", "p99=0.05")
    status, out, err = run("check", "base.rsm", "base.rsm", *thresholds)
    table, _, paragraph = out.partition("\n\n")
    assert (status, paragraph, err) == (3, AT_80_COLUMNS, "")
    assert max(map(len, table.splitlines())) <= 80


def test_a_mistake_exits_with_2_and_one_line(files, run):
    status, out, err = run("check", "base.rsm", "gone.rsm", "--max-disagreement", 0.1)
    assert (status, out) == (2, "")
    assert err.startswith("error: no file at gone.rsm; expected a recording, which `resemblance re")


def test_what_nobody_expected_exits_with_70(files, run):
    words = ("digit_net.py:net", "digit_net.py:broken", "--data", "digits", "--limit", 50)
    status, out, err = run("check", *words, "--max-disagreement", 0.1)
    assert (status, out) == (70, "")
    assert "ZeroDivisionError: who would have thought" in err
    assert err.splitlines()[-1].startswith("error: internal error")


def test_a_reader_that_leaves_does_not_turn_a_failure_into_a_pass(files):
    words = "check base.rsm pruned.rsm --max-disagreement 0.02 --json -"
    line = f"{sys.executable} -m resemblance {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


# -- forms of a verdict -------------------------------------------------------------------------


def test_every_file_holds_what_the_function_gives(files, run):
    (files / "t.toml").write_text("max-disagreement = 0.02\n[min]\nfeatures = 0.1\n")
    words = ("--json", "c.json", "--junit", "c.xml", "--markdown", "c.md", "--min", "features=0.2")
    status, out, err = run("check", "base.rsm", "pruned.rsm", "--thresholds", "t.toml", *words)
    expected = rs.check(recorded(), recorded("pruned"), max_disagreement=0.02, min="features=0.2")
    assert (status, err) == (1, "")
    assert " ".join(out.partition("\n\n")[2].split()) == expected.summary().replace("\n", " ")
    assert json.loads((files / "c.json").read_text()) == expected.to_dict()
    assert (files / "c.xml").read_text() == expected.to_junit()
    assert (files / "c.md").read_text() == expected.to_markdown()


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_what_goes_to_standard_output_is_alone_there(files, run, option):
    words = ("check", "base.rsm", "int8.rsm", "--max-kl", 0.5, option, "-")
    status, out, err = run(*words)
    expected = rs.check(recorded(), recorded("int8"), max_kl=0.5)
    texts = {"--json": json.dumps(expected.to_dict(), indent=1) + "\n"}
    texts |= {"--junit": expected.to_junit(), "--markdown": expected.to_markdown()}
    assert (status, out, err) == (0, texts[option], "")


def test_a_mistake_is_an_error_of_the_junit_file(files, refused):
    (files / "c.xml").write_text("of an earlier run, which passed")
    words = ("--max-disagreement", 0.1, "--junit", "c.xml")
    message = refused("check", "base.rsm", "gone.rsm", *words)
    (suite,) = ElementTree.parse(files / "c.xml").getroot()
    assert suite.get("errors") == "1"
    assert suite[0].find("error").get("message") == message


# -- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no threshold was given"),
        (("--max-disagreement", "2"), "max-disagreement must be above 0 and below 1, a share of"),
        (("--max-kl", "low"), "max-kl must be x, mean=x or pNN=x"),
        (("--min", "gradient=0.8"), "no kernel is named 'gradient'; nearest: gradients"),
        (
            ("--min-db", "3", "--json", "-", "--junit", "-"),
            "only one output can go to standard output",
        ),
        (("--min-db", "3", "--json", "no/c.json"), "cannot write no/c.json"),
        (("--min-db", "3", "--data", "digits"), "--data applies to models only"),
        (
            ("--min-db", "3", "--base-weights", "w"),
            "--base-weights applies to models only, and base.rsm",
        ),
        (("--thresholds", "gone.toml"), "no file at gone.toml; expected a TOML file"),
    ],
)
def test_likely_mistakes(files, refused, words, message):
    assert refused("check", "base.rsm", "int8.rsm", *words).startswith(message)


def test_a_model_needs_data(files, refused):
    assert refused("check", "digit_net.py:net", "base.rsm", "--min-db", 20) == (
        "digit_net.py:net is a model, so --data is required to record it; add --data, or pass a "
        "recording (.rsm)"
    )


# -- the example --------------------------------------------------------------------------------


def test_the_example_of_thresholds_is_read():
    if not EXAMPLES.exists():
        pytest.skip("the documentation is not there")
    names = [
        threshold.name for threshold in collect_thresholds(thresholds=EXAMPLES / "thresholds.toml")
    ]
    assert names == [
        "max-disagreement", "max-kl", "max-kl p99", "min-kappa", "min-db", "min gradients",
        "min mean:features",
    ]  # fmt: skip


def test_help_has_every_exit_status(run):
    out = run("check", "--help")[1]
    assert re.search(r"0 if all .* 1 if any .* 3 if none .* 2 on a", out, re.DOTALL)


def test_few_samples_are_noted_once(files, run):
    words = ("--data", "digits", "--limit", 40, "--max-disagreement", 0.9)
    models = ("digit_net.py:net", "digit_net.py:net")
    _, out, err = run("check", *models, *words)
    assert out.count("only 40 samples") == 1
    assert "only 40 samples" not in err
