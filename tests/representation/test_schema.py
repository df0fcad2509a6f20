"""What a file must hold: each rule, in a file whose checksums are right."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

import networks
import resemblance as rs
from resemblance.errors import FormatError
from resemblance.representation import schema, tensor_file
from resemblance.representation.outputs import Outputs
from small import record

GOLDEN = Path(__file__).parents[1] / "golden"
HASH = "0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The header and tensors of recordings of each form, by name."""
    path = tmp_path_factory.mktemp("files") / "net.rsm"
    made = {
        "blocks": record(blocks=3, keep_sums=True, elementwise=True),
        "short": record(blocks=15, data=torch.randn(58, 6), shard=(0, 2)),
        "whole": record(),
        "features": record(gradients=False, buckets=0),
        "tokens": rs.record(
            networks.seeded(networks.LittleForCausalLM),
            networks.texts(12),
            **{"tokens": 3, "block": 8, "layers": ["blocks.0", "blocks.1"]},
        ),
    }
    rows = sum(made["whole"].block_sizes)
    outputs = Outputs(3, label_logits=torch.zeros(rows, 3), labels=torch.zeros(rows, 3).short())
    made["multi-label"] = dataclasses.replace(made["whole"], outputs=outputs)
    return {name: tensor_file.read_tensors(rep.save(path)) for name, rep in made.items()}


@pytest.fixture
def edited(tmp_path, files):
    """What loads from a file after an edit of its header and tensors."""

    def load(edit, name="blocks"):
        header, tensors = copy.deepcopy(files[name])
        edit(header, tensors)
        return rs.load(tensor_file.write_tensors(tmp_path / "edited.rsm", header, tensors))

    return load


def put(key, value):
    """An edit that sets one value; `key` is a path such as `layers.0.name`."""

    def edit(header, tensors):
        *path, last = key.split(".")
        for step in path:
            header = header[int(step) if isinstance(header, list) else step]
        header[int(last) if isinstance(header, list) else last] = value

    return edit


def drop(key):
    def edit(header, tensors):
        *path, last = key.split(".")
        for step in path:
            header = header[int(step) if isinstance(header, list) else step]
        del header[last]

    return edit


@pytest.mark.parametrize("name", ["blocks", "short", "whole", "features", "tokens"])
def test_what_was_recorded_obeys_the_rules(edited, name):
    found = edited(lambda header, tensors: None, name)
    assert {layer.name for layer in found} in ({"act1", "act2"}, {"blocks.0", "blocks.1"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("samples", 0, "samples must be a whole number from 1 up, found 0"),
        ("samples", True, "samples must be a whole number"),
        ("samples", 60.0, "samples must be a whole number"),
        ("samples", 2**63, "samples must be a whole number"),
        ("settings", [], "settings must be an object"),
        ("settings.seed", -1, "seed must be a whole number below 2⁶⁴"),
        ("settings.seed", 2**64, "seed must be a whole number below"),
        ("settings.block", "4", "settings.block must be a whole number"),
        ("settings.beta", "0.5", "beta must be a finite number or null"),
        ("settings.beta", 10**400, "beta must be a finite number or null, found 1000"),
        ("settings.elementwise", 1, "elementwise must be true or false"),
        ("settings.unit", "word", "unit must be one of sample, token"),
        ("settings.tokens", 0, "tokens must be a whole number from 1 up"),
        ("settings.pool", None, "pool must be text"),
        ("settings.later", 1, "keys of settings that this version does not know: .'later'"),
        ("model.name", 3, "model.name must be text"),
        ("model.weights", HASH.upper(), "weights must be 16 hexadecimal digits or null"),
        ("data.order", "random", "order must be one of seeded, stream"),
        ("data.shards", [], "shards must be ascending pairs"),
        ("data.shards", [[1, 1]], "shards must be ascending pairs"),
        ("data.shards", [[0, 2], [0, 2]], "shards must be ascending pairs"),
        ("data.shards", [[0, 2], [1, 3]], "shards must be ascending pairs"),
        ("data.fingerprint", "x", "fingerprint must be 16 hexadecimal digits, found 'x'"),
        ("made.date", 5, "made.date must be text"),
        ("block_sizes", [4, 4, 0], "block_sizes must be a list, each a whole number from 1 up"),
        ("block_hashes", [HASH, HASH, 5], "block_hashes must be a list, each 16 hexadecimal"),
        ("layers", [], "layers must be a list of 1 or more, each an object"),
        ("layers", [3], "layers must be a list of 1 or more, each an object"),
        ("layers.0.shape", [7, -1], "shape must be a list, each a whole number from 1 up"),
        ("layers.1.moments", None, r"layers\[1\].moments must be an object"),
        ("layers.1.moments.inner", 10**400, "inner must be a finite number"),
        ("layers.1.moments.trace_features", -1.0, "trace_features must be a finite number from 0"),
        ("layers.1.moments.mean_gradients", "", "mean_gradients must be a finite number from 0"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(edited, key, value, words):
    with pytest.raises(FormatError, match=f"is not a valid Representation: .*{words}"):
        edited(put(key, value))


@pytest.mark.parametrize(
    "key",
    [
        *("samples", "settings", "layers", "block_sizes", "settings.seed", "model.name"),
        *("data.shards", "made.torch", "layers.1.dim", "layers.0.moments.product"),
    ],
)
def test_a_key_that_is_missing_is_refused_by_name(edited, key):
    name = key.split(".")[-1]
    with pytest.raises(FormatError, match=rf"{name} is missing, which must be .*; record it again"):
        edited(drop(key))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put("layers.1.name", "act1"), "names of layers must differ, found .'act1', 'act1'"),
        (put("block_numbers", [0, 2, 1]), "block_numbers must ascend"),
        (put("block_numbers", [0, 1]), "block_numbers must ascend, one for each"),
        (put("block_numbers", [0, 1, 3]), "block_numbers must be below the setting blocks"),
        (put("settings.block", 3), "block_sizes must be at most the setting block"),
        (put("samples", 11), "block_sizes must add up to at most samples, found .4, 4, 4."),
        (put("block_hashes", [HASH]), "block_hashes and label_hashes must come one a block"),
        (put("settings.tokens", 3), "tokens must be 1 where a sample is no token, found 3"),
        (put("settings.per_sample", 3), "buckets must be a multiple of per_sample, found 16"),
        (put("settings.target", "none"), "moments must have traces of .'features', 'elem"),
        (put("settings.elementwise", False), "moments must have traces of"),
        (drop("layers.0.moments.trace_gradients"), r"layers\[0\].moments must have traces of"),
    ],
)
def test_keys_that_do_not_agree_are_refused(edited, edit, words):
    with pytest.raises(FormatError, match=words):
        edited(edit)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put("settings.unit", "sample"), "tokens must be 1 where a sample is no token"),
        (put("settings.tokens", 2), "blocks of tokens must come in whole windows"),
        (put("block_numbers", [0, 1, 2, 3, 4, 6]), "whole windows"),
        (put("block_sizes", [8, 8, 8, 4, 4, 3]), "whole windows"),
        (lambda _, x: x["rows.position"].neg_(), "rows.position must have places from 0 up"),
        (lambda _, x: x["rows.sequence"][5].fill_(2), "rows.sequence must have places"),
        (lambda _, x: x.pop("rows.sequence"), "tensor rows.sequence is missing"),
        (lambda _, x: x.update({"rows.later": torch.zeros(2)}), "tensors that this version does"),
    ],
)
def test_blocks_of_tokens_that_do_not_agree_are_refused(edited, edit, words):
    with pytest.raises(FormatError, match=words):
        edited(edit, "tokens")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put("classes", 4), r"outputs.every must be F32 \[12, 4\], found F32 \[12, 5\]"),
        (put("classes", 1), "classes must be a whole number from 2 to 4,194,304 or null"),
        (put("classes", 2**22 + 1), "classes must be a whole number from 2 to 4,194,304 or null"),
        (put("classes", None), "groups of tensors that this version does not know: .'outputs'"),
        (lambda _, x: x["outputs.every"].neg_(), "outputs.every holds values that it cannot have"),
        (lambda _, x: x["outputs.every"].sub_(1), "outputs.every must hold probabilities"),
        (lambda _, x: x.pop("outputs.every"), "tensor outputs.every is missing"),
        (
            lambda _, x: x.update({"outputs.labels": torch.full((12,), 5)}),
            "outputs.labels must hold classes",
        ),
        (lambda _, x: x.update({"outputs.later": torch.zeros(2)}), "this version does not know"),
    ],
)
def test_outputs_that_cannot_be_are_refused(edited, edit, words):
    with pytest.raises(FormatError, match=words):
        edited(edit)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put("labels", 0), "labels must be a whole number from 1 to 16384, found 0"),
        (put("labels", 2), r"outputs.label_logits must be F32 \[60, 2\], found F32 \[60, 3\]"),
        (lambda header, _: header.pop("labels"), "labels is missing"),
        (put("classes", 3), "classes must be null, found 3"),
        (put("format", 2), "groups of tensors that this version does not know: .'outputs'"),
        (lambda _, x: x["outputs.label_logits"].fill_(torch.inf), "values that it cannot have"),
        (lambda _, x: x.pop("outputs.label_logits"), "outputs.label_logits is missing"),
        (lambda _, x: x["outputs.labels"].fill_(2), "outputs.labels must hold classes"),
        (lambda _, x: x.update({"outputs.top": torch.zeros(60, 3).long()}), "does not know"),
    ],
)
def test_outputs_of_labels_that_cannot_be_are_refused(edited, edit, words):
    with pytest.raises(FormatError, match=words):
        edited(edit, "multi-label")


def test_rows_of_samples_that_are_no_tokens_are_refused(edited):
    with pytest.raises(FormatError, match="groups of tensors that this version does not know"):
        edited(lambda _, x: x.update({"rows.sequence": torch.zeros(3, 4).long()}))


def test_what_later_versions_may_add_is_passed_over(edited, tmp_path):
    plain = edited(lambda header, tensors: None)

    def add(header, tensors):
        parts = (header["model"], header["data"], header["made"], header["layers"][0])
        for part in (header, *parts, header["layers"][0]["moments"]):
            part["later"] = {"any": ["thing"]}

    assert edited(add) == plain


def test_moments_that_were_not_recorded_are_passed_over(edited):
    def add(header, tensors):
        header["layers"][0]["moments"] |= {"inner": "text", "mean_features": []}

    assert edited(add, "features")[0].products is None


def test_a_number_may_lack_its_point(edited):
    found = edited(put("layers.0.moments.trace_features", 5))[0].features.trace
    assert (found, type(found)) == (5.0, float)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("signs", "tensor signs is missing"),
        ("sketch_signs", "tensor sketch_signs is missing"),
        ("0.features.blocks.triangle", "tensor 0.features.blocks.triangle is missing"),
        ("1.gradients.buckets.mean", "tensor 1.gradients.buckets.mean is missing"),
        ("1.elementwise.sums", "tensor 1.elementwise.sums is missing"),
        ("0.features.sketch.total", "tensor 0.features.sketch.total is missing"),
    ],
)
def test_a_tensor_that_is_missing_is_refused_by_name(edited, name, words):
    with pytest.raises(FormatError, match=words):
        edited(lambda header, tensors: tensors.pop(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("later", "tensors that this version does not know: .'later'"),
        ("0.features.later", "tensors that this version does not know: .'0.features.later'"),
        ("0.elementwise.norms", "tensors that this version does not know"),
        ("0.features.whole.triangle", "tensors that this version does not know"),
        ("2.features.norms", "groups of tensors that this version does not know: .'2'"),
        ("later.x", "groups of tensors that this version does not know: .'later'"),
    ],
)
def test_a_tensor_that_nobody_knows_is_refused(edited, name, words):
    with pytest.raises(FormatError, match=words):
        edited(lambda header, tensors: tensors.update({name: torch.ones(3)}))


@pytest.mark.parametrize("name", ["signs", "0.features.blocks.diagonal", "1.gradients.sums"])
def test_a_tensor_of_another_dtype_or_shape_is_refused(edited, name):
    for other in (
        lambda x: x.view(torch.int32),
        lambda x: x.double(),
        lambda x: x[..., :-1],
        lambda x: x[None],
        lambda x: x[:0],
    ):
        with pytest.raises(FormatError, match=rf"tensor {name} must be F32 \[.*\], found \w+ \["):
            edited(
                lambda header, tensors, other=other: tensors.update({name: other(tensors[name])})
            )


def set_to(name, value, at=-1):
    def edit(header, tensors):
        tensors[name].view(-1)[at] = value

    return edit


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["signs", "0.features.buckets.mean", "1.gradients.total"])
def test_a_number_that_is_not_finite_is_refused(edited, name, value):
    with pytest.raises(FormatError, match=f"tensor {name} holds values that it cannot have"):
        edited(set_to(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.features.blocks.triangle", -(2**15)),
        ("0.features.blocks.diagonal", -1e-9),
        ("0.gradients.buckets.diagonal", -1.0),
        ("0.gradients.norms", -1.0),
        ("0.features.norms", torch.inf),
    ],
)
def test_squares_below_zero_and_correlations_beyond_one_are_refused(edited, name, value):
    with pytest.raises(FormatError, match=f"tensor {name} holds values that it cannot have"):
        edited(set_to(name, value))


def test_a_bucket_correlation_beyond_one_is_refused(edited):
    def edit(header, tensors):
        tensors["1.features.buckets.triangle"][3] = torch.tensor([0, 0, 0x80])

    with pytest.raises(FormatError, match="triangle holds values that it cannot have"):
        edited(edit)


def test_a_norm_may_be_unknown(edited):
    def forget(header, tensors):
        for name in (name for name in tensors if name.endswith(".norms")):
            tensors[name][-1] = torch.nan

    assert edited(forget)[0].features.norms[-1].isnan()


def test_norms_of_other_samples_are_refused(edited):
    with pytest.raises(FormatError, match="norms must be of the same samples in all layers"):
        edited(lambda header, tensors: tensors["1.gradients.norms"][3].fill_(torch.nan))
    with pytest.raises(FormatError, match="norms must be of the same samples in all layers"):
        edited(lambda h, t: t.update({"1.gradients.norms": t["1.gradients.norms"][:-1]}))
    with pytest.raises(FormatError, match="norms must be of at most 59 samples"):
        edited(put("samples", 59))


@pytest.mark.parametrize("part", ["triangle", "diagonal"])
def test_beyond_a_short_block_there_is_nothing(edited, part, files):
    header, _ = files["short"]
    (row,) = (i for i, n in enumerate(header["block_sizes"]) if n == 2)

    def edit(header, tensors):
        tensors[f"1.gradients.blocks.{part}"][row, -1] = 1

    words = f"gradients.blocks.{part} must be zero beyond the 2 samples of block {row}"
    with pytest.raises(FormatError, match=words):
        edited(edit, "short")


@pytest.mark.parametrize("name", ["a", "shard-0"])
def test_files_of_format_1_obey_the_rules(name, tmp_path):
    old = rs.load(GOLDEN / f"{name}.rsm")
    new = rs.load(old.save(tmp_path / "new.rsm"))
    assert new == old
    assert dataclasses.replace(new.settings, unit="sample") == new.settings


def test_rules_say_what_they_want():
    rule = schema.or_null(schema.list_of(schema.list_of(schema.COUNT, 2, 2), 1))
    assert rule.words == (
        "a list of 1 or more, each a list of 2, each a whole number from 0 up or null"
    )
    assert [rule.holds(x) for x in (None, [[1, 2]], [], [[1]], [[1, True]], ((1, 2),))] == [
        *(True, True, False, False, False, False)
    ]
