"""GGUF files, as transformers dequantises them: features, gradients, outputs and tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import resemblance as rs
from optional_libraries import usable_torchvision
from resemblance.cli.main import app
from resemblance.errors import DataError

usable_torchvision()
import transformers  # noqa: E402

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 32
WORDS = [chr(97 + i) + chr(97 + j) for i in range(16) for j in range(16)]
LETTERS = ["\u2581", *map(chr, range(97, 123))]
VOCABULARY = ["<unk>", "<s>", "</s>", *LETTERS, *WORDS]
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(VOCABULARY), hidden_size=WIDTH, intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
            max_position_embeddings=LENGTH, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip


def write(net: transformers.PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A GGUF file of a Llama, its matrices in the given type."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(net.config.rms_norm_eps)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([0.0, 0.0, 0.0, *(-float(i) for i in range(len(VOCABULARY) - 3))])
    writer.add_token_types([2, 3, 3, *[1] * (len(VOCABULARY) - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, weight in net.state_dict().items():
        x = weight.float().numpy()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp turns pairs of neighbours
            x = x.reshape(HEADS, 2, x.shape[0] // HEADS // 2, *x.shape[1:])
            x = x.swapaxes(1, 2).reshape(weight.shape)
        matrix = x.ndim == 2
        data = gguf.quants.quantize(x, kind) if matrix else x.astype(np.float32)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, block, rest = name.split(".", 3)
    return f"blk.{block}.{_NAMES[rest.removesuffix('.weight')]}.weight"


@pytest.fixture(scope="module")
def files(
    llama: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    kinds = gguf.GGMLQuantizationType
    return {
        "f32": write(llama, folder / "f32.gguf", kinds.F32),
        "q8": write(llama, folder / "q8.gguf", kinds.Q8_0),
    }


@pytest.fixture(scope="module")
def sequences() -> torch.Tensor:
    ids = torch.Generator().manual_seed(1)
    return torch.randint(3, len(VOCABULARY), (48, LENGTH), generator=ids)


def test_a_file_in_float32_is_the_network_with_its_gradients(
    llama: transformers.PreTrainedModel, files: dict[str, Path], sequences: torch.Tensor
) -> None:
    a = rs.record(llama, sequences, progress=False)
    b = rs.record(f"gguf:{files['f32']}", sequences, progress=False)
    assert a.layer_names == b.layer_names
    assert b.settings.gradients
    assert b.settings.unit == "token"
    comparison = rs.compare(a, b)
    for kernel in ("features", "gradients"):
        assert comparison[kernel].scores.diagonal() == pytest.approx(1, abs=1e-4)
    assert rs.behaviour(a, b).disagreement == 0


def test_a_quantised_file_is_near_the_network_by_as_much_as_its_weights_are(
    llama: transformers.PreTrainedModel, files: dict[str, Path], sequences: torch.Tensor
) -> None:
    a = rs.record(llama, sequences, gradients=False, progress=False)
    b = rs.record(f"gguf:{files['q8']}", sequences, gradients=False, progress=False)
    db = rs.coordinates(a, b).to_frame().decibels
    assert db.min() > 25
    assert db.max() < 60


def test_text_is_made_into_tokens_by_the_files_own_tokenizer(
    files: dict[str, Path], tmp_path: Path
) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(" ".join(WORDS[i : i + 40]) for i in range(0, 200, 2)))
    out = tmp_path / "q8.rsm"
    found = CliRunner().invoke(
        app,
        ["record", "--model", f"gguf:{files['q8']}", "--data", str(text), "--length", "16",
         "--out", str(out)],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert rs.load(out).model.tokenizer is not None


def test_errors_name_the_file(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file at .*none\.gguf"):
        rs.record(f"gguf:{tmp_path / 'none.gguf'}", torch.zeros(4, 8, dtype=torch.long))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(files["f32"].read_bytes()[:1000])
    with pytest.raises(DataError, match=r"no Hugging Face model at .*damaged"):
        rs.record(str(damaged), torch.zeros(4, 8, dtype=torch.long))
