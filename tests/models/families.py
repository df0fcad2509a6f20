"""Families of networks, tiny, with the blocks that each is documented to be made of.

`TIMM` and `TRANSFORMERS` hold one `Family` a line: how to build it without weights from outside,
what it takes, the classes of its blocks and how many there are, by its own documentation, at the
sizes given here. `recorded` runs one through `record` with its defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import resemblance as rs
from optional_libraries import usable_torchvision

SAMPLES = 8
TOKENS, LETTERS = 10, 60  # in a sequence, in a vocabulary


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    build: Callable[[], nn.Module]
    inputs: str | int  # of `data`: a kind, or the side of an image
    blocks: str  # class names, in the order in which they come
    number: int  # of blocks, with a stem of the same class
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `record`
    note: str = ""

    def __str__(self) -> str:
        return self.name


def data(kind: str | int) -> Any:
    """Random inputs of a kind; the same every time."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(SAMPLES, *shape, generator=generator)

    if isinstance(kind, int):
        return normal(3, kind, kind)
    ids = torch.randint(3, LETTERS, (SAMPLES, TOKENS), generator=generator)
    ids[:, -1] = 2
    kinds: dict[str, Callable[[], Any]] = {
        "text": lambda: {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        "two texts": lambda: {"input_ids": ids, "decoder_input_ids": ids[:, :6]},
        "image": lambda: {"pixel_values": normal(3, 32, 32)},
        "image and text": lambda: {"input_ids": ids, "pixel_values": normal(3, 32, 32)},
        "sound": lambda: {"input_values": normal(400)},
        "spectrum": lambda: {"input_values": normal(32, 16)},
        "spectrum and text": lambda: {
            "input_features": normal(8, 32),
            "decoder_input_ids": ids[:, :6],
        },
    }
    return kinds[kind]()


def built(family: Family) -> nn.Module:
    """A network whose head is not zero and whose batch norms have seen data, as if trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = family.build()
        for layer in net.modules():
            if isinstance(layer, nn.Linear) and not layer.weight.any():  # a head yet to be trained
                nn.init.normal_(layer.weight, std=0.02)
        norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if norms:
            for norm in norms:
                norm.momentum = None  # an average
            batch = data(family.inputs)
            with torch.no_grad():
                net.train()(**batch) if isinstance(batch, dict) else net.train()(batch)
    return net.eval()


def recorded(family: Family) -> tuple[nn.Module, rs.Representation]:
    net = built(family)
    options = {"block": 4, "buckets": 16, "progress": False, **family.options}
    return net, rs.record(net, data(family.inputs), **options)


# -- timm ---------------------------------------------------------------------------------------


def _timm(name: str, side: int, blocks: str, number: int, note: str = "", **small: Any) -> Family:
    def build() -> nn.Module:
        usable_torchvision()
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **small)

    return Family(name, build, side, blocks, number, note=note)


def _timm_class(
    name: str, where: str, side: int, blocks: str, number: int, note: str = "", **small: Any
) -> Family:
    """By its class, where the function of the name does not let sizes be chosen."""

    def build() -> nn.Module:
        usable_torchvision()
        import importlib

        module, _, kind = where.partition(":")
        made = getattr(importlib.import_module(f"timm.models.{module}"), kind)
        return made(num_classes=10, **small)

    return Family(name, build, side, blocks, number, note=note)


_VIT = {"img_size": 32, "embed_dim": 32, "depth": 4, "num_heads": 2}
_STAGES = {"dims": (8, 16, 24, 32), "depths": (2, 2, 3, 2)}
_SWIN = {
    "img_size": 64,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (2, 2, 4, 2),
    "num_heads": (2, 2, 2, 2),
}

TIMM = [
    _timm("beit_base_patch16_224", 32, "Block", 4, **_VIT),
    _timm("botnet26t_256", 64, "BottleneckBlock SelfAttnBlock", 8, img_size=64),
    _timm("cait_xxs24_224", 32, "LayerScaleBlock LayerScaleBlockClassAttn", 6, **_VIT),
    _timm("coat_lite_tiny", 64, "SerialBlock", 8, img_size=64),
    _timm(
        "coatnet_nano_rw_224",
        64,
        "MbConvBlock TransformerBlock2d",
        9,
        img_size=64,
        embed_dim=(16, 32, 64, 64),
        depths=(2, 2, 3, 2),
    ),
    _timm("convit_tiny", 32, "Block", 4, **_VIT),
    _timm_class("convmixer", "convmixer:ConvMixer", 32, "Sequential", 5, dim=16, depth=4),
    _timm("convnext_atto", 32, "ConvNeXtBlock", 9, **_STAGES),
    _timm("convnextv2_atto", 32, "ConvNeXtBlock", 9, **_STAGES),
    _timm(
        "crossvit_tiny_240",
        240,
        "MultiScaleBlock",
        2,
        "A block holds a branch for each of two patch sizes and joins them, so it is recorded as "
        "a whole, by the tokens of its first branch.",
        depth=((1, 2, 0), (1, 2, 0)),
        embed_dim=(16, 32),
        num_heads=(2, 2),
    ),
    _timm(
        "cs3darknet_focus_s",
        64,
        "CrossStage3",
        4,
        "A cross stage leads half of the channels past its blocks, so it is the block.",
    ),
    _timm(
        "davit_tiny",
        64,
        "SpatialBlock ChannelBlock",
        12,
        embed_dims=(16, 32, 48, 64),
        num_heads=(2, 2, 2, 2),
    ),
    _timm("deit3_small_patch16_224", 32, "Block", 4, **_VIT),
    _timm("deit_tiny_distilled_patch16_224", 32, "Block", 4, **_VIT),
    _timm(
        "densenet121",
        32,
        "DenseBlock",
        4,
        "A dense layer gives only what it adds; the dense block gives all.",
    ),
    _timm("dla46_c", 64, "DlaBottleneck", 12),
    _timm("dpn48b", 32, "DualPathBlock", 16),
    _timm("edgenext_xx_small", 64, "ConvBlock SplitTransposeBlock", 12),
    _timm("efficientnet_b0", 32, "DepthwiseSeparableConv InvertedResidual", 16),
    _timm("efficientvit_b0", 64, "ResidualBlock EfficientVitBlock", 10),
    _timm("efficientvit_m0", 64, "EfficientVitBlock", 6, img_size=64),
    _timm(
        "ese_vovnet19b_dw",
        32,
        "SeparableConvNormAct OsaStage",
        6,
        "Its stages have one block each; two separable convolutions of its stem count as blocks.",
    ),
    _timm(
        "eva02_tiny_patch14_224",
        28,
        "EvaBlock",
        4,
        **{**_VIT, "img_size": 28, "embed_dim": 24},
    ),
    _timm("fasternet_t0", 64, "MLPBlock", 13),
    _timm(
        "fastvit_t8",
        64,
        "MobileOneBlock RepMixerBlock",
        12,
        "Two blocks of its stem are of more than one weight matrix, and are recorded.",
    ),
    _timm_class(
        "focalnet",
        "focalnet:FocalNet",
        64,
        "FocalNetBlock",
        9,
        embed_dim=16,
        depths=(2, 2, 3, 2),
    ),
    _timm(
        "gcvit_xxtiny",
        64,
        "GlobalContextVitBlock",
        12,
        "The stem is the side path that makes the first stage's global query.",
        img_size=64,
        window_size=(2, 2, 2, 2),
        embed_dim=16,
    ),
    _timm("ghostnet_050", 32, "GhostBottleneck", 16),
    _timm_class(
        "mlp_mixer",
        "mlp_mixer:MlpMixer",
        32,
        "MixerBlock",
        4,
        img_size=32,
        num_blocks=4,
        embed_dim=32,
    ),
    _timm("hiera_tiny_224", 64, "HieraBlock", 12, img_size=(64, 64), embed_dim=16),
    _timm("hgnetv2_b0", 64, "HighPerfGpuBlock", 5),
    _timm(
        "hrnet_w18_small",
        64,
        "SequentialList",
        3,
        "A stage runs at several resolutions and joins them; recorded is the finest.",
    ),
    _timm("inception_next_atto", 64, "MetaNeXtBlock", 12),
    _timm("inception_v3", 96, "InceptionA InceptionB InceptionC InceptionD InceptionE", 11),
    _timm("lcnet_050", 32, "DepthwiseSeparableConv", 13),
    _timm("levit_128s", 64, "LevitBlock", 9, img_size=64),
    _timm("mambaout_femto", 64, "GatedConvBlock", 9, **_STAGES),
    _timm(
        "maxvit_nano_rw_256",
        64,
        "MaxxVitBlock",
        6,
        img_size=64,
        embed_dim=(32, 32, 64, 64),
        depths=(1, 2, 2, 1),
    ),
    _timm_class(
        "metaformer",
        "metaformer:MetaFormer",
        64,
        "MetaFormerBlock",
        9,
        **_STAGES,
    ),
    _timm("mobilenetv2_050", 32, "DepthwiseSeparableConv InvertedResidual", 17),
    _timm("mobilenetv3_small_050", 32, "DepthwiseSeparableConv InvertedResidual", 11),
    _timm(
        "mobilenetv4_conv_small",
        64,
        "Sequential UniversalInvertedResidual",
        14,
        "Its first two stages are pairs of convolutions in a Sequential each.",
    ),
    _timm("mobileone_s0", 32, "MobileOneBlock", 43),
    _timm("mobilevit_xxs", 64, "BottleneckBlock MobileVitBlock", 10),
    _timm("mobilevitv2_050", 64, "BottleneckBlock MobileVitV2Block", 9),
    _timm_class(
        "nest",
        "nest:Nest",
        64,
        "TransformerLayer",
        7,
        img_size=64,
        embed_dims=(16, 32, 32),
        num_heads=(2, 2, 2),
        depths=(2, 2, 3),
    ),
    _timm("nf_regnet_b0", 32, "NormFreeBlock", 16),
    _timm("pit_ti_224", 64, "Block", 12, img_size=64),
    _timm("pvt_v2_b0", 64, "Block", 8),
    _timm(
        "rdnet_tiny",
        64,
        "DenseStage",
        7,
        "As of DenseNet: the stage gives all, its dense blocks what they add.",
        num_init_features=16,
        growth_rates=(8,) * 7,
    ),
    _timm("regnetx_002", 32, "Bottleneck", 13),
    _timm("regnety_002", 32, "Bottleneck", 13),
    _timm("repghostnet_050", 32, "RepGhostBottleneck", 16),
    _timm("repvgg_a0", 32, "RepVggBlock", 22),
    _timm("repvit_m0_9", 64, "RepViTBlock", 20),
    _timm("res2net50_14w_8s", 32, "Bottle2neck", 6, layers=(1, 2, 2, 1)),
    _timm("resnest14d", 32, "ResNestBottleneck", 4),
    _timm("resnet18", 32, "BasicBlock", 8),
    _timm("resnetv2_18", 32, "PreActBasic", 8),
    _timm("rexnet_100", 32, "LinearBottleneck", 16),
    _timm("selecsls42", 32, "SelecSlsBlock", 6),
    _timm("shvit_s1", 128, "BasicBlock", 11),
    _timm("skresnet18", 32, "SelectiveKernelBasic", 8),
    _timm("starnet_s050", 64, "Block", 6),
    _timm("swiftformer_xs", 64, "ConvEncoder Block", 16),
    _timm("swin_tiny_patch4_window7_224", 64, "SwinTransformerBlock", 10, **_SWIN),
    _timm("swinv2_tiny_window8_256", 64, "SwinTransformerV2Block", 10, **_SWIN),
    _timm(
        "tiny_vit_5m_224",
        64,
        "MBConv TinyVitBlock",
        12,
        embed_dims=(16, 32, 48, 64),
        num_heads=(1, 2, 3, 4),
        window_sizes=(4, 4, 4, 2),
    ),
    _timm(
        "tnt_s_patch16_224",
        32,
        "Block",
        4,
        "A block gives pixels, which have no axis of samples, and patches, which are recorded.",
        img_size=32,
        embed_dim=32,
        depth=4,
        num_heads_outer=2,
    ),
    _timm(
        "twins_svt_small",
        64,
        "Block",
        9,
        img_size=64,
        embed_dims=(16, 32, 48, 64),
        depths=(2, 2, 3, 2),
    ),
    _timm_class(
        "vgg",
        "vgg:VGG",
        32,
        "ReLU",
        5,
        "A chain: what each convolution or linear layer hands on.",
        cfg=[8, "M", 16, "M", 16],
        mlp_ratio=1 / 128,
    ),
    _timm("test_vit", 32, "Block", 6, img_size=32),
    _timm(
        "vit_relpos_small_patch16_224",
        32,
        "RelPosBlock",
        4,
        **_VIT,
    ),
    _timm("visformer_tiny", 64, "Block", 15, img_size=64),
    _timm_class(
        "volo",
        "volo:VOLO",
        64,
        "Outlooker Transformer ClassBlock",
        10,
        img_size=64,
        layers=(2, 2, 2, 2),
        embed_dims=(24, 48, 48, 48),
        num_heads=(2, 4, 4, 4),
        post_layers=("ca", "ca"),
    ),
    _timm("xception41", 64, "XceptionModule", 13),
    _timm("xcit_nano_12_p16_224", 32, "XCABlock ClassAttentionBlock", 6, img_size=32, depth=4),
]


# -- transformers -------------------------------------------------------------------------------


_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": LETTERS,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_SOUND = {
    **{key: _IMAGE[key] for key in list(_IMAGE)[:4]},
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 4, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
_SHORT = {"n_layer": 3, "n_head": 4, "vocab_size": LETTERS, "bos_token_id": 1, "eos_token_id": 2}
_BOTH = {
    **{f"{side}_layers": 3 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
    **{key: _TEXT[key] for key in list(_TEXT)[4:]},
    "d_model": 32,
    "decoder_start_token_id": 1,
}


def _transformers(
    name: str,
    model: str,
    config: str,
    inputs: str,
    blocks: str,
    number: int = 3,
    note: str = "",
    options: dict[str, Any] | None = None,
    **small: Any,
) -> Family:
    def build() -> nn.Module:
        usable_torchvision()
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**small))

    return Family(name, build, inputs, blocks, number, options or {}, note)


def _writer(name: str, prefix: str, blocks: str, config: str = "", **small: Any) -> Family:
    """A causal language model."""
    config = config or f"{prefix}Config"
    return _transformers(name, f"{prefix}ForCausalLM", config, "text", blocks, **_TEXT, **small)


def _reader(name: str, prefix: str, blocks: str, **small: Any) -> Family:
    """A classifier of texts."""
    made = f"{prefix}ForSequenceClassification"
    return _transformers(name, made, f"{prefix}Config", "text", blocks, **_TEXT, **small)


def _viewer(name: str, prefix: str, blocks: str, number: int = 3, **small: Any) -> Family:
    """A classifier of images."""
    made = f"{prefix}ForImageClassification"
    return _transformers(name, made, f"{prefix}Config", "image", blocks, number, **small)


_FEATURES_ALONE = {"gradients": False}
_NO_LOGITS = "Gives embeddings and no logits, so features are recorded alone: `gradients=False`."

TRANSFORMERS = [
    _writer("llama", "Llama", "LlamaDecoderLayer", **_GROUPED),
    _writer("qwen2", "Qwen2", "Qwen2DecoderLayer", **_GROUPED),
    _writer("qwen3", "Qwen3", "Qwen3DecoderLayer", **_GROUPED),
    _writer(
        "qwen3_moe",
        "Qwen3Moe",
        "Qwen3MoeDecoderLayer",
        **_GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    ),
    _writer("mistral", "Mistral", "MistralDecoderLayer", **_GROUPED),
    _writer("mixtral", "Mixtral", "MixtralDecoderLayer", **_GROUPED, num_local_experts=4),
    _writer("gemma", "Gemma", "GemmaDecoderLayer", **_GROUPED),
    _writer("gemma2", "Gemma2", "Gemma2DecoderLayer", **_GROUPED),
    _writer("gemma3", "Gemma3", "Gemma3DecoderLayer", "Gemma3TextConfig", **_GROUPED),
    _writer("phi", "Phi", "PhiDecoderLayer"),
    _writer("phi3", "Phi3", "Phi3DecoderLayer"),
    _writer("olmo2", "Olmo2", "Olmo2DecoderLayer"),
    _writer("gpt_neox", "GPTNeoX", "GPTNeoXLayer"),
    _writer("opt", "OPT", "OPTDecoderLayer", ffn_dim=48, word_embed_proj_dim=32),
    _writer("falcon", "Falcon", "FalconDecoderLayer"),
    _writer("mamba", "Mamba", "MambaBlock", state_size=4),
    _writer("rwkv", "Rwkv", "RwkvBlock", attention_hidden_size=32, context_length=64),
    _transformers(
        "gpt2", "GPT2LMHeadModel", "GPT2Config", "text", "GPT2Block", **_SHORT, n_embd=32
    ),
    _transformers(
        "gptj",
        "GPTJForCausalLM",
        "GPTJConfig",
        "text",
        "GPTJBlock",
        **_SHORT,
        n_embd=32,
        rotary_dim=4,
    ),
    _transformers(
        "bloom", "BloomForCausalLM", "BloomConfig", "text", "BloomBlock", **_SHORT, hidden_size=32
    ),
    _transformers("bert", "BertForMaskedLM", "BertConfig", "text", "BertLayer", **_TEXT),
    _reader("roberta", "Roberta", "RobertaLayer"),
    _reader(
        "deberta_v2",
        "DebertaV2",
        "DebertaV2Layer",
        pos_att_type=["p2c", "c2p"],
        relative_attention=True,
    ),
    _reader("electra", "Electra", "ElectraLayer", embedding_size=16),
    _reader("albert", "Albert", "AlbertLayerGroup", embedding_size=16),
    _reader("modernbert", "ModernBert", "ModernBertEncoderLayer", cls_token_id=1, sep_token_id=2),
    _transformers(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        "two texts",
        "T5Block",
        6,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        vocab_size=LETTERS,
        decoder_start_token_id=0,
    ),
    _transformers(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        "two texts",
        "BartEncoderLayer BartDecoderLayer",
        6,
        **_BOTH,
    ),
    _transformers(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        "spectrum and text",
        "WhisperEncoderLayer WhisperDecoderLayer",
        6,
        **_BOTH,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=16,
    ),
    _viewer("vit", "ViT", "ViTLayer", **_IMAGE),
    _viewer("deit", "DeiT", "DeiTLayer", **_IMAGE),
    _viewer("dinov2", "Dinov2", "Dinov2Layer", **_IMAGE),
    _viewer(
        "swin",
        "Swin",
        "SwinLayer",
        6,
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 2, 2],
        num_heads=[2, 2, 2],
        window_size=4,
    ),
    _viewer(
        "convnext",
        "ConvNext",
        "ConvNextLayer",
        9,
        hidden_sizes=[8, 16, 24, 32],
        depths=[2, 2, 3, 2],
        image_size=32,
    ),
    _viewer(
        "resnet",
        "ResNet",
        "ResNetBottleNeckLayer",
        6,
        embedding_size=8,
        hidden_sizes=[16, 32, 32],
        depths=[2, 2, 2],
    ),
    _viewer("segformer", "Segformer", "SegformerLayer", 8, hidden_sizes=[8, 16, 24, 32]),
    _transformers(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        "image and text",
        "CLIPEncoderLayer",
        6,
        "Its logits compare every image with every text of a batch, so features are recorded "
        "alone: `gradients=False`.",
        _FEATURES_ALONE,
        text_config=_TEXT,
        vision_config={**_IMAGE, "hidden_size": 24},
        projection_dim=16,
    ),
    _transformers(
        "siglip",
        "SiglipModel",
        "SiglipConfig",
        "image and text",
        "SiglipEncoderLayer",
        6,
        "As of CLIP: `gradients=False`.",
        _FEATURES_ALONE,
        text_config=_TEXT,
        vision_config=_IMAGE,
    ),
    _transformers(
        "wav2vec2",
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        "sound",
        "Wav2Vec2EncoderLayer",
        3,
        _NO_LOGITS,
        _FEATURES_ALONE,
        **_SOUND,
    ),
    _transformers(
        "hubert",
        "HubertForSequenceClassification",
        "HubertConfig",
        "sound",
        "HubertEncoderLayer",
        **_SOUND,
    ),
    _transformers(
        "ast",
        "ASTForAudioClassification",
        "ASTConfig",
        "spectrum",
        "ASTLayer",
        **{key: _IMAGE[key] for key in list(_IMAGE)[:4]},
        max_length=32,
        num_mel_bins=16,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
    ),
]
