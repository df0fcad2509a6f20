"""Options that commands share, and messages that name options as the command line does."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import resemblance
from resemblance.cli.options import ThresholdOptions, cli_options_in, yaml_options_in
from resemblance.testing import assert_same_network

SOURCE = Path(resemblance.__file__).parent
# an option as Python takes it, inside backticks or not; not part of an address, a path or a call
NAMED = re.compile(r"(?<![\w./?&({-])([a-z][a-z_]*)=(?![=\s])")
MARKED = re.compile(r"`[^`]*`")
ON_COMMAND_LINE = re.compile(r"(?<![\w-])--([a-z-]+)")
THRESHOLD = re.compile(r"\b(min )?gradients=0\.8")  # how `check` takes it on the command line, too
PUBLIC = [getattr(resemblance, name) for name in resemblance.__all__]
OPTIONS = {
    name
    for public in PUBLIC
    if callable(public) and not issubclass(public.__class__, type)
    for name in inspect.signature(public).parameters
}
OF_NO_COMMAND = {"alpha", "head", "sketch", "tags"}  # parameters of what no command calls


def messages(path):
    """The texts in a module that are not docstrings, each with the number of its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside, silent = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
            silent |= {id(x) for x in ast.walk(node)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inside |= {id(x) for x in ast.walk(node) if x is not node}
    for node in ast.walk(tree):
        if id(node) in inside | silent:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (x.value if isinstance(x, ast.Constant) else "{}" for x in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def library_messages():
    """Messages of the package that a command may print, and that do not come from the command."""
    rooms = ("cli", "demo", "web")
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in rooms:
            for line, text in messages(path):
                yield f"{path.relative_to(SOURCE)}:{line}", text


def test_every_message_names_options_in_backticks_as_python_takes_them():
    wrong = {}
    for where, text in library_messages():
        bare = OPTIONS.intersection(NAMED.findall(MARKED.sub("", THRESHOLD.sub("", text))))
        if bare:
            wrong[where] = bare
    assert not wrong, "put these options in backticks, as `gradients=False`"


def test_every_message_that_names_an_option_names_one_of_a_command_there():
    seen = 0
    for where, text in library_messages():
        for option in MARKED.findall(text):
            name, value, _ = option.strip("`").partition("=")
            if value and name in OPTIONS - OF_NO_COMMAND:
                seen += 1
                said = cli_options_in(option.replace("{}", "7"))
                plain = THRESHOLD.sub("", said)
                assert not re.search(r"`|\b[a-z_]+=", plain), f"{where}: {option} is {said}"
    assert seen > 40  # so many there were when this was written, and more


def test_no_message_of_the_library_is_about_the_command_line():
    of_the_command = ("sweep/ray_engine.py", "recording/record.py")  # --workers; an address
    for where, text in library_messages():
        found = OPTIONS.intersection(x.replace("-", "_") for x in ON_COMMAND_LINE.findall(text))
        assert not found or where.startswith(of_the_command), f"{where}: {text}"


@pytest.mark.parametrize(
    ("option", "command", "file"),
    [
        ("`gradients=False`", "--features-only", "gradients: false"),
        ("`compile=True`", "--compile", "compile: true"),
        ("`centre=False`", "--no-centre", "centre: false"),
        ('`layers="auto"`', "--layer auto", "layers: auto"),
        ("`estimator='blocks'`", "--estimator blocks", "estimator: blocks"),
        ("`batch_size`", "--batch-size", "batch_size"),
        ("`length=4`", "--length 4", "length: 4"),
        ("`max_dim=None`", "a different width of the fold (Python only)", "max_dim: null"),
        ("`max_dim`", "max_dim (Python only)", "max_dim"),
        ("`target=<function>`", *["your own loss function (Python only)"] * 2),
        ("`unheard_of`", "`unheard_of`", "unheard_of"),
        ("`resemblance zoo add`", *["`resemblance zoo add`"] * 2),
    ],
)
def test_an_option_is_named_as_each_front_takes_it(option, command, file):
    assert cli_options_in(f"use {option} here") == f"use {command} here"
    assert yaml_options_in(f"use {option} here") == f"use {file} here"


def test_a_path_that_looks_like_an_option_stays_as_it_is():
    path = "no weights at runs/seed=0,buckets=8/net.pt"
    assert cli_options_in(path) == yaml_options_in(path) == path


@pytest.mark.filterwarnings("ignore:.*quantiz")  # notes of torch
def test_mistakes_on_the_command_line_name_its_options(refused, folder):
    (folder / "int8.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "def net():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))\n"
        "    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})\n"
    )
    words = ("record", "--data", "digits", "-o", "a.rsm", "--model")
    assert refused(*words, "int8.py:net").endswith("record with --features-only")
    assert refused(*words, "nets.py:small", "--batch-size", 0).startswith("--batch-size must be")
    assert "--beta must be" in refused(*words, "nets.py:small", "--beta", -1)


def test_a_failed_pair_of_a_sweep_names_the_keys_of_its_file(run, folder):
    (folder / "jobs.yaml").write_text(
        "models: [nets.py:small]\ndata: [digits]\noptions: {pool: mean, unit: token}\n"
    )
    status, out, _ = run("sweep", "jobs.yaml", "--devices", "cpu")
    assert status == 1
    assert "pool: mean reduces a sequence to one vector" in " ".join(out.split()), out


def keywords(function):
    """The keyword-only parameters of a function."""
    found = inspect.signature(function).parameters.values()
    return {each.name for each in found if each.kind is each.KEYWORD_ONLY}


def test_every_threshold_of_check_is_an_option_and_an_argument_of_a_test():
    limits = keywords(resemblance.check)
    assert set(ThresholdOptions.__dataclass_fields__) == limits
    assert keywords(assert_same_network) - {"record"} == limits
