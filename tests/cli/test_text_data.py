"""Text from the command line: the model's own tokenizer, and the same as from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import little_language as little
import resemblance as rs
import stored
from resemblance.errors import MismatchError

pytest.importorskip("transformers")
pytest.importorskip("datasets")

TESTS = Path(__file__).resolve().parents[1]
# the command in a process of its own, also where torchvision's operators do not load
COMMAND = (
    f"import sys; sys.path.insert(0, {str(TESTS)!r}); import little_language as little\n"
    "little.usable_torchvision(); from resemblance.cli.main import main; main()"
)
# The texts are fewer than fifty: the command says so, and goes on
pytestmark = pytest.mark.filterwarnings("default:only .* below 50")
FEW = (
    "warning: only 40 sequences: below 50, standard errors, chance levels and bounds are "
    "unreliable, so record more sequences"
)
SMALL = ("--tokens", 4, "--buckets", 64)


def write_txt(path):
    path.write_text("\n\n".join(little.TEXTS), encoding="utf-8")


def write_jsonl(path):
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in numbered()))


def write_parquet(path):
    import pandas

    pandas.DataFrame(numbered(), columns=["id", "words"]).to_parquet(path)


def write_table(path):
    import datasets

    made = datasets.Dataset.from_dict({"label": [0, 1] * 20, "sentence": little.TEXTS})
    datasets.DatasetDict({"train": made.select(range(3)), "test": made}).save_to_disk(path)


def numbered():
    return list(enumerate(little.TEXTS))


FORMS = {
    "a.txt": (write_txt, "a.txt"),
    "a.jsonl": (write_jsonl, "a.jsonl (text)"),
    "a.parquet": (write_parquet, "a.parquet (words)"),
    "table": (write_table, "table, test (sentence)"),
}


@pytest.fixture
def gpt2(folder):
    return little.saved(folder / "gpt2", little.gpt2(), little.tokenizer())


def by_hand(model, words, name):
    """The same from Python: tokens made here, with padding and mask of the tokenizer's."""
    if name == "a.txt":
        ids = words("\n\n".join(little.TEXTS), add_special_tokens=False)["input_ids"]
        rows = [ids[i : i + 24] for i in range(0, len(ids), 24)]
    else:
        rows = [words(text)["input_ids"][:24] for text in little.TEXTS]
    words.pad_token = words.eos_token
    data = dict(words.pad({"input_ids": rows}, return_tensors="pt"))
    return rs.record(model, data, tokens=4, buckets=64, tokenizer=words, name="a"), rows


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_the_command_records_what_python_does(gpt2, folder, name):
    write, called = FORMS[name]
    write(folder / name)
    words = ["--model", "hf:gpt2", "--data", name, "-o", "a.rsm", *map(str, SMALL)]
    packing = [] if name == "a.txt" else ["--packing", "each", "--batch-size", "3"]
    process = subprocess.run(
        [sys.executable, "-c", COMMAND, "record", *words, *packing],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert process.returncode == 0, process.stderr
    rep = rs.load("a.rsm")
    expected, rows = by_hand(little.gpt2(), little.tokenizer(), name)
    size = os.path.getsize("a.rsm") / 1e6
    assert process.stdout == f"a.rsm: a, 4 layers, {4 * len(rows)} tokens, {size:.1f} MB\n"
    assert f"\n{called}: " in f"\n{process.stderr}"
    assert rep.data == expected.data
    assert rep.model.tokenizer == expected.model.tokenizer is not None
    assert rep.model.weights == expected.model.weights
    stored.assert_same(rep, expected, tolerance=1e-4)


def test_length_packing_field_and_limit(run, gpt2, folder):
    write_jsonl(folder / "a.jsonl")
    words = ("record", "--model", f"hf:{gpt2}", "--data", "a.jsonl", "-o", "a.rsm", *SMALL)
    status, out, err = run(*words, "--length", 10, "--limit", 7, "--text-field", "text")
    told, warned = err.splitlines()
    assert (status, told) == (0, "a.jsonl (text): 70 tokens, packed into 7 sequences of up to 10")
    assert warned.startswith("warning: only 7 sequences")
    assert ", 28 tokens, " in out
    status, out, err = run(*words, "--packing", "each", "--unit", "sample", "--pool", "mean")
    assert status == 0
    assert " 40 samples, " in out
    assert err.startswith("a.jsonl (text): 40 sequences, one a text, of up to 24 tokens; ")
    assert rs.load("a.rsm").model.tokenizer is not None
    status, out, _ = run(*words, "--json", "-")
    assert (status, json.loads(out)["tokens"]) == (0, 4)


def test_a_copy_is_checked_on_sequences_as_long_as_its_bases(run, gpt2, folder):
    write_jsonl(folder / "a.jsonl")
    words = ("--data", "a.jsonl", "--length", 10, "--limit", 12)
    run("record", "--model", f"hf:{gpt2}", "-o", "base.rsm", *words, *SMALL)
    status, out, _ = run("check", "base.rsm", f"hf:{gpt2}", *words, "--max-disagreement", 0.5)
    assert (status, "on 48 tokens of 12 sequences" in " ".join(out.split())) == (0, True)


def test_a_llama_reads_each_line(run, folder):
    little.saved(folder / "llama", little.llama(), little.tokenizer())
    (folder / "a.txt").write_text("\n\n".join(little.TEXTS))
    words = ("--model", "hf:llama", "--data", "a.txt", "-o", "a.rsm", "--packing", "each", *SMALL)
    status, out, err = run("record", *words)
    assert (status, "160 tokens" in out) == (0, True)
    assert "a.txt: 40 sequences, one a text, of up to 24 tokens" in err
    assert "39 empty left out" in err


def test_drawn_tokens_of_a_masked_model_are_masked(run, folder):
    words = little.framing_tokenizer()
    little.saved(folder / "bert", little.bert(), words)
    write_jsonl(folder / "a.jsonl")
    options = ("--model", "hf:bert", "--data", "a.jsonl", "-o", "a.rsm", "--packing", "each")
    status, _, err = run("record", *options, *SMALL)
    assert status == 0
    assert [x for x in err.splitlines() if x.startswith("warning")] == [FEW]
    made = dict(words(little.TEXTS, truncation=True, max_length=24, padding=True,
                      return_tensors="pt"))  # fmt: skip
    made.pop("token_type_ids", None)
    expected = rs.record(little.bert(), made, tokens=4, buckets=64, tokenizer=words)
    rep = rs.load("a.rsm")
    assert rep.data == expected.data
    stored.assert_same(rep, expected, tolerance=1e-4)


def test_tokens_of_different_tokenizers_are_not_compared(run, refused, gpt2, folder):
    other = little.tokenizer(290, little.SENTENCES[:2])
    little.saved(folder / "other", little.gpt2(290, seed=1), other)
    write_jsonl(folder / "a.jsonl")
    for name in ("gpt2", "other"):
        words = ("--model", f"hf:{name}", "--data", "a.jsonl", "--packing", "each", *SMALL)
        assert run("record", *words, "--data-id", "texts", "-o", f"{name}.rsm")[0] == 0
        pooled = ("--unit", "sample", "--pool", "mean", "--data-id", "texts")
        assert run("record", *words, *pooled, "-o", f"{name}-whole.rsm")[0] == 0
    said = refused("compare", "gpt2.rsm", "other.rsm")
    assert said.startswith("'gpt2' and 'other' were recorded token by token with different token")
    assert run("compare", "gpt2-whole.rsm", "other-whole.rsm", "--kernel", "features")[0] == 0
    with pytest.raises(MismatchError, match="different tokenizers"):
        rs.compare_all(["gpt2.rsm", "other.rsm"], kernel="product")


def test_mistakes_are_one_line(run, refused, gpt2, folder):
    def said(data, *more, model="hf:gpt2"):
        return refused("record", "--model", model, "--data", data, "-o", "a.rsm", *more)

    write_jsonl(folder / "a.jsonl")
    (folder / "nothing.txt").write_text("")
    (folder / "empty.jsonl").write_text("")
    little.saved(folder / "bare", little.gpt2())
    little.saved(folder / "small", little.gpt2(200), little.tokenizer())
    assert said("a.jsonl", model="hf:bare").startswith("no tokenizer at 'bare' (no file with its")
    assert said("a.jsonl", "--text-field", "txt") == "a.jsonl has no field 'txt'; nearest: text"
    assert said("nothing.txt").startswith("no text in nothing.txt: expected")
    assert said("empty.jsonl").startswith("empty.jsonl is empty")
    assert said("a.jsonl", "--packing", "both") == "--packing must be packed or each; found 'both'"
    assert said("a.jsonl", "--length", 25) == (
        "--length 25 is more than the 24 tokens that 'gpt2' takes"
    )
    assert said("a.jsonl", model="nets.py:small") == (
        "a.jsonl (text) is text, and only models hf:NAME and gguf:FILE have a tokenizer. Pass a "
        "folder or a Hugging Face name as --tokenizer, or tokenize in FILE.py:FUNCTION"
    )
    assert said("a.jsonl", model="hf:small").startswith("the tokenizer at 'small' produces token 2")


def test_layers_read_no_more_text_than_a_trial_needs(run, gpt2, folder):
    """The end of the file is no text at all, and is never reached."""
    write_jsonl(folder / "a.jsonl")
    start = (folder / "a.jsonl").read_text()
    (folder / "a.jsonl").write_text(start * 50 + "no row\n")
    status, out, _ = run("layers", "--model", "hf:gpt2", "--data", "a.jsonl")
    assert status == 0
    assert "transformer.h.0" in out
