"""Tokens as samples: exact against float64, whatever the batches and the padding."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import little_language as little
import networks
import reference
import resemblance as rs
import stored
from resemblance._data.hugging_face import TokenizerInfo, tokenizer_info
from resemblance._models.language_models import resolve_unit, sample_positions
from resemblance._utils.hashing import seeded_permutation
from resemblance.errors import DataError, LayerError, MismatchError, ResemblanceWarning

LAYERS = ["blocks.0", "blocks.1", "head:in"]
SPECIAL = [0, 1, 2, 3]
BETA = 0.5


def model(dtype=torch.float32):
    return networks.seeded(networks.LittleForCausalLM).to(dtype).eval()


def record(net=None, data=None, **options):
    options = {"tokens": 3, "block": 8, "layers": LAYERS, **options}
    return rs.record(net or model(), data or networks.texts(), **options)


def by_hand(net, data, beta=BETA, at_logits=reference.at_logits):
    """{layer: [(features, gradients) (length, width) of each sequence]}, one by one, in float64."""
    net = copy.deepcopy(net).double()
    out = {name: [] for name in LAYERS}
    for ids, mask in zip(*data.values(), strict=True):
        real = ids[mask.bool()][None]
        x = net.tokens(real) + net.places(torch.arange(real.shape[1]))
        values = []
        for block in net.blocks:
            x = block(x)
            values.append(x)
        z = net.head(x)
        at = torch.from_numpy(at_logits(z.detach().numpy(), beta))
        found = torch.autograd.grad(z, values, at)
        pairs = [(f[0].detach().numpy(), g[0].numpy()) for f, g in zip(values, found, strict=True)]
        for name, pair in zip(LAYERS, [*pairs, pairs[-1]], strict=True):
            out[name].append(pair)
    return out


def rows_of(data, tokens, seed=0):
    """Positions among the real tokens that are recorded of each sequence."""
    out = []
    for i, (ids, mask) in enumerate(zip(*data.values(), strict=True)):
        real = ids[mask.bool()].numpy()
        out.append(sample_positions(~np.isin(real, SPECIAL)[None], np.array([i]), tokens, seed)[0])
    return out


def of_labels(z, beta):
    """The gradient at the logits of independent labels."""
    return 1 / (1 + np.exp(-z)) - 1 / (1 + np.exp(-beta * z))


@pytest.mark.parametrize(
    ("batch_size", "side", "logits"),
    [
        *((n, side, "auto") for n in (1, 3, 8, 20) for side in ("right", "left")),
        (8, "left", "sigmoid"),
    ],
)
def test_kernels_of_tokens_match_float64(batch_size, side, logits):
    data = networks.texts(side=side)
    rep = record(model(torch.float64), data, batch_size=batch_size, logits=logits)
    at_logits = reference.at_logits if logits == "auto" else of_labels
    exact, at = by_hand(model(), data, at_logits=at_logits), rows_of(data, 3)
    order = seeded_permutation(20, 0)
    assert rep.block_sizes == (8,) * 6 + (4,) * 3
    assert rep.samples == 60
    for name in LAYERS:
        for kind, which in (("features", 0), ("gradients", 1)):
            kernels = rep[name].blocks(kind)
            for block, kernel in enumerate(kernels):
                window, token = divmod(block, 3)
                x = np.stack([exact[name][i][which][at[i][token]] for i in order[window * 8 :][:8]])
                expected, n = x @ x.T, len(x)
                scale = np.sqrt(np.outer(*[np.diag(expected)] * 2))
                assert np.abs(kernel[:n, :n].numpy() - expected).max() < 4e-5 * scale.max()
            trace = sum((p[which][t] ** 2).sum() for p, t in zip(exact[name], at, strict=True))
            assert rep[name].recorded(kind).trace == pytest.approx(trace, rel=1e-6)


@pytest.mark.parametrize("batch_size", [3, 20])
def test_a_file_says_which_token_each_row_is(batch_size, tmp_path):
    data = networks.texts(side="left")
    rep = rs.load(record(data=data, batch_size=batch_size).save(tmp_path / "a.rsm"))
    at, order = rows_of(data, 3), seeded_permutation(20, 0)
    for block, (sequence, position) in enumerate(
        zip(rep.rows.sequence.tolist(), rep.rows.position.tolist(), strict=True)
    ):
        window, token = divmod(block, 3)
        expected = order[window * 8 :][:8].tolist()
        size = rep.block_sizes[block]
        assert sequence == expected + [-1] * (8 - size)
        assert position == [at[i][token] for i in expected] + [-1] * (8 - size)


@settings(max_examples=15, deadline=None)
@given(
    batch_size=st.integers(1, 20),
    side=st.sampled_from(["right", "left"]),
    longer=st.integers(0, 6),
    seed=st.integers(0, 50),
)
def test_neither_batches_nor_padding_show(batch_size, side, longer, seed):
    expected = record(seed=seed)
    data = networks.texts(side=side)
    data = {key: nn.functional.pad(x, (longer, 0)) for key, x in data.items()}
    found = record(data=data, seed=seed, batch_size=batch_size)
    assert found.block_hashes == expected.block_hashes
    assert found.data == expected.data
    stored.assert_same(found, expected, tolerance=1e-4)


def test_truncation_moves_only_what_it_cuts():
    """Causal features do not see what comes later; tokens are drawn from what is left."""
    data = networks.texts()
    short = {key: x[:, :9] for key, x in data.items()}
    found, exact = record(model(torch.float64), short), by_hand(model(), data)
    at, order = rows_of(short, 3), seeded_permutation(20, 0)
    x = np.stack([exact["blocks.1"][i][0][at[i][0]] for i in order[:8]])
    kernel = found["blocks.1"].blocks("features")[0].numpy()
    assert np.abs(kernel - x @ x.T).max() < 4e-5 * np.abs(x @ x.T).max()


def test_shards_share_out_windows_and_merge_to_the_whole():
    whole = record(keep_sums=True)
    parts = [record(shard=(i, 3)) for i in range(3)]
    assert parts[1].block_numbers == (3, 4, 5)
    merged = rs.merge(parts, keep_sums=True)
    assert merged.block_hashes == whole.block_hashes
    assert merged.rows == whole.rows
    stored.assert_same(merged, whole, tolerance=1e-5)


def test_a_sequence_that_is_not_finite_goes_with_all_its_tokens():
    net, data = model(), networks.texts()
    data["input_ids"][5, 1] = 22
    (data["input_ids"] == 22).sum()
    others = data["input_ids"].eq(22).any(1)
    with torch.no_grad():
        net.tokens.weight[22] = torch.nan
    with pytest.raises(DataError, match=r"NaN or Inf .* at sample"):
        record(net, data)
    rep = record(net, data, on_bad="skip", batch_size=3)
    assert rep.samples == 3 * int((~others).sum())
    assert rep.data.skipped == int(others.sum())
    assert len(set(rep.block_sizes[:3])) == 1
    assert sum(rep.block_sizes) == rep.samples


def test_blocks_kept_are_those_of_whole_windows():
    rep = record(blocks=7)
    assert rep.block_numbers == (0, 1, 2, 3, 4, 5)  # of two windows, three tokens each
    assert rep.samples == 60
    assert len(record(blocks=2).block_sizes) == 3  # one window at the least


def test_a_stream_of_batches_and_a_data_set_hold_the_same_tokens():
    data = networks.texts()
    parts = [{key: x[i : i + 7] for key, x in data.items()} for i in range(0, 20, 7)]
    rep = record(data=parts)
    assert rep.samples == 60
    assert rep.data.order == "stream"
    assert rep.block_sizes == (8,) * 6 + (4,) * 3


def test_auto_takes_tokens_for_causal_models_and_samples_for_others():
    assert record().settings.unit == "token"
    assert record(pool="mean").settings.unit == "sample"
    assert record(unit="sample", pool="last").settings.tokens == 1
    assert rs.record(networks.seeded(networks.MLP), torch.randn(30, 6)).settings.unit == "sample"


def test_a_plain_network_that_predicts_every_token_is_asked_about():
    class Plain(networks.LittleForCausalLM):
        pass

    net, data = networks.seeded(Plain), networks.texts()
    with pytest.warns(ResemblanceWarning, match='unit="token"` to record single tokens'):
        whole = record(net, {"input_ids": data["input_ids"]})
    assert whole.settings.unit == "sample"
    assert record(net, {"input_ids": data["input_ids"]}, unit="sample").samples == 20
    assert record(net, data, unit="token").samples == 60


def test_blocks_of_other_tokens_are_other_blocks():
    """Networks that take other tokens for special draw others, and are not paired with these."""
    others = networks.seeded(networks.LittleForCausalLM)
    others.config.eos_token_id = [2, 3, 7, 8, 9]
    a, b = record(), record(others)
    assert a.data.content == b.data.content
    assert a.block_hashes != b.block_hashes
    with pytest.raises(
        MismatchError, match="blocks cannot be compared: different tokens of the same seq"
    ):
        rs.compare(a, b, kernel="features", estimator="blocks")


def test_settings_of_units_are_compared():
    with pytest.raises(MismatchError, match="tokens differs: 3"):
        rs.compare(record(), record(tokens=2), kernel="product")
    with pytest.raises(MismatchError, match="unit differs"):
        rs.compare(record(), record(pool="last"), kernel="features")


@pytest.mark.filterwarnings("ignore:.*standard errors may be too small")
def test_tokens_of_different_tokenizers_are_not_the_same_samples():
    def made_by(rep, tokenizer):
        return dataclasses.replace(rep, model=dataclasses.replace(rep.model, tokenizer=tokenizer))

    rep = record()
    one, two = made_by(rep, "1" * 16), made_by(rep, "2" * 16)
    for refused in (
        lambda: rs.compare(one, two, kernel="product"),
        lambda: rs.compare_all([one, two], kernel="product"),
    ):
        with pytest.raises(MismatchError, match="token by token with different tokenizers"):
            refused()
    assert rs.compare(one, made_by(rep, None), kernel="product") == rs.compare(
        rep, rep, kernel="product"
    )  # unknown, or the same
    whole = record(pool="last")
    other, another = made_by(whole, "1" * 16), made_by(whole, "2" * 16)
    assert rs.compare(other, another, kernel="product") == rs.compare(
        whole, whole, kernel="product"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "token", "pool": "mean"}, "reduces a sequence to one vector"),
        ({"unit": "word"}, '`unit` must be "auto", "sample" or "token"'),
        ({"tokens": 0}, "`tokens` must be"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(DataError, match=message):
        record(**options)


def test_a_layer_without_positions_is_refused_by_name_and_left_out_of_auto():
    class Pooled(networks.LittleForCausalLM):
        def __init__(self):
            super().__init__()
            self.whole = nn.Linear(12, 12)

        def forward(self, input_ids, attention_mask=None):
            x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
            x = x + self.whole(x.mean(1))[:, None]
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    net = networks.seeded(Pooled)
    with pytest.raises(LayerError, match="'whole': expected one row for each position"):
        record(net, layers=["whole", "blocks.1"], unit="token")
    with pytest.warns(ResemblanceWarning, match="layers skipped.*whole"):
        rep = record(net, layers="auto", unit="token")
    assert "whole" not in rep.layer_names


def test_memory_that_does_not_do_is_met_with_halves(monkeypatch):
    from resemblance._models import run

    monkeypatch.setattr(run, "_RUNS_OUT", {"cpu"})

    class SmallForCausalLM(networks.LittleForCausalLM):
        def forward(self, input_ids, attention_mask=None):
            if input_ids.numel() > 60:
                raise torch.OutOfMemoryError("no more")
            return super().forward(input_ids, attention_mask)

    expected = record(networks.seeded(networks.LittleForCausalLM))
    with pytest.warns(ResemblanceWarning, match=r"out of memory with a batch of \d"):
        found = record(networks.seeded(SmallForCausalLM), batch_size=8)
    stored.assert_same(found, expected, tolerance=1e-4)

    class TinyForCausalLM(networks.LittleForCausalLM):
        def forward(self, input_ids, attention_mask=None):
            if len(input_ids) == 2:  # the trial
                return super().forward(input_ids, attention_mask)
            raise torch.OutOfMemoryError("no more")

    with (
        pytest.warns(ResemblanceWarning, match="continuing with 1 per batch"),
        pytest.raises(DataError, match="out of memory with a single sample"),
    ):
        record(networks.seeded(TinyForCausalLM), batch_size=3)


@pytest.fixture
def masked():
    """A masked model, texts for it, its tokenizer, and the token ids that it is run on."""
    pytest.importorskip("transformers")
    net, words, seen = little.bert(), little.framing_tokenizer(), []
    net.register_forward_pre_hook(
        lambda _, args, inputs: seen.append(inputs["input_ids"].clone()), with_kwargs=True
    )
    made = words(little.TEXTS, truncation=True, max_length=20, padding=True, return_tensors="pt")
    data = {key: made[key] for key in ("input_ids", "attention_mask")}
    return net, data, words, seen


def test_a_masked_model_sees_the_mask_in_place_of_what_is_drawn(masked):
    net, data, words, seen = masked
    rep = rs.record(net, data, tokens=3, tokenizer=words, buckets=0, batch_size=20)
    assert rep.model.tokenizer == tokenizer_info(words).hash
    assert all(((ids == words.mask_token_id).sum(1) == 3).all() for ids in seen)
    assert sum(len(ids) for ids in seen) >= len(little.TEXTS)


def test_batch_size_changes_nothing_for_a_masked_model_whose_sequences_grow(masked, monkeypatch):
    from resemblance._models import batch_size as batch_size_module

    monkeypatch.setattr(batch_size_module, "_TOKENS", 64)  # "auto" splits all but the first batches
    net, data, words, seen = masked
    for i, mask in enumerate(data["attention_mask"]):
        mask[6 + i // 3 :] = 0
    stream = [{key: x[i : i + 4] for key, x in data.items()} for i in range(0, 40, 4)]

    def recorded(batch_size):
        seen.clear()
        rep = rs.record(net, stream, tokens=3, tokenizer=words, block=8, batch_size=batch_size)
        return rep, max(map(len, seen))

    one, _ = recorded(1)
    for size in (3, 8, "auto"):
        rep, largest = recorded(size)
        stored.assert_same(rep, one, tolerance=1e-4)
        assert size != "auto" or largest < 8


def test_a_masked_model_without_its_mask_token_is_warned_of(masked):
    net, data, words, seen = masked
    with pytest.warns(
        ResemblanceWarning, match="not masked, because the mask token is unknown"
    ) as w:
        rep = rs.record(net, data, tokens=3, buckets=0)
    assert {str(x.message)[:4] for x in w} == {"only", "what"} or len(w) == 2
    assert {x.filename for x in w} == {__file__}
    assert rep.model.tokenizer is None
    assert not any((ids == words.mask_token_id).any() for ids in seen)
    with pytest.warns(ResemblanceWarning, match="not masked"):
        rs.record(net, data, tokens=3, buckets=0, tokenizer=little.tokenizer())
    rs.record(net, data, unit="sample", pool="mean", buckets=0)  # nothing is drawn


def test_special_tokens_of_the_tokenizer_are_never_drawn():
    net = networks.seeded(networks.MLP)
    known = TokenizerInfo("0" * 16, frozenset({5, 6}), None)
    assert resolve_unit(net, "token", 2, "flatten", 0, known).draw.special == {5, 6}
    causal = resolve_unit(model(), "auto", 2, "flatten", 0, known)
    assert causal.draw.special == {0, 1, 2, 3, 5, 6}
    assert causal.draw.mask_token is None
