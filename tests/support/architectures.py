"""Architectures of torchvision, timm, transformers and diffusers in small configurations, with random weights.

One row an architecture: the one place to add another. ``build()`` gives the model, ``batch()`` its inputs on the CPU.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

EMULATED = ("emulated-cuda-float16", "emulated-cuda-bfloat16")
BACKENDS = ("cpu-float16", "cpu-bfloat16", *EMULATED)
Batch = dict[str, torch.Tensor] | torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture.

    Attributes:
        id: its name.
        kind: ``cnn``, ``vision transformer``, ``mixer``, ``text``, ``speech``, ``recurrent``, ``diffusion``.
        build: makes the model; the random state is seeded before.
        batch: makes one batch.
        backends: where it is audited.
        true_findings: ids of rules that rightly find something in it.
    """

    id: str
    kind: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    backends: tuple[str, ...] = BACKENDS
    true_findings: frozenset[str] = frozenset()


def _image(size: int = 32, count: int = 4) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(count, 3, size, size)


def _tokens(length: int = 12, count: int = 2) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"input_ids": torch.randint(0, 100, (count, length))}


def _labelled(length: int = 12, count: int = 2) -> Callable[[], dict[str, torch.Tensor]]:
    def batch() -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 100, (count, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return batch


def _torchvision(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        model: nn.Module = models.get_model(name, weights=None, num_classes=10, **settings)
        return model

    return build


def _vit() -> nn.Module:
    made: nn.Module = importlib.import_module("torchvision.models").VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )
    return made


def _swin() -> nn.Module:
    made: nn.Module = importlib.import_module("torchvision.models").SwinTransformer(
        patch_size=[2, 2], embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=10
    )
    return made


def _mixer() -> nn.Module:
    made: nn.Module = importlib.import_module("timm.models.mlp_mixer").MlpMixer(
        num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=64
    )
    return made


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = importlib.import_module("timm").create_model(
            name, pretrained=False, num_classes=10, **settings
        )
        return model

    return build


def _transformers(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = importlib.import_module("transformers")
        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made.train()

    return build


_ENCODER = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_LLAMA = {**_ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_WHISPER = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "max_source_positions": 32,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
_WAV2VEC = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}


class Lstm(nn.Module):
    """Two layers of LSTM and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(inputs)
        out: torch.Tensor = self.head(hidden[:, -1])
        return out


class Unet(nn.Module):
    """A small diffusion U-Net at a fixed time step."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = importlib.import_module("diffusers").UNet2DModel(
            sample_size=16,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(16, 32),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
            attention_head_dim=8,
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.unet(inputs, 10).sample
        return out


ARCHITECTURES = (
    Architecture(id="resnet18", kind="cnn", build=_torchvision("resnet18"), batch=_image()),
    Architecture(id="mnasnet0_5", kind="cnn", build=_torchvision("mnasnet0_5"), batch=_image()),
    Architecture(id="mobilenet_v3_small", kind="cnn", build=_torchvision("mobilenet_v3_small"), batch=_image()),
    Architecture(id="squeezenet1_1", kind="cnn", build=_torchvision("squeezenet1_1"), batch=_image()),
    Architecture(id="shufflenet_v2_x0_5", kind="cnn", build=_torchvision("shufflenet_v2_x0_5"), batch=_image()),
    Architecture(id="efficientnet_b0", kind="cnn", build=_torchvision("efficientnet_b0"), batch=_image()),
    Architecture(id="vit", kind="vision transformer", build=_vit, batch=_image()),
    Architecture(id="swin", kind="vision transformer", build=_swin, batch=_image()),
    Architecture(id="mixer", kind="mixer", build=_mixer, batch=_image()),
    Architecture(
        id="timm_vit",
        kind="vision transformer",
        build=_timm("vit_tiny_patch16_224", img_size=32, depth=2),
        batch=_image(),
    ),
    Architecture(id="timm_resnet10t", kind="cnn", build=_timm("resnet10t"), batch=_image()),
    Architecture(id="convnext", kind="cnn", build=_timm("convnext_atto"), batch=_image()),
    Architecture(
        id="bert", kind="text", build=_transformers("BertForMaskedLM", "BertConfig", **_ENCODER), batch=_labelled()
    ),
    Architecture(
        id="distilbert",
        kind="text",
        build=_transformers(
            "DistilBertForMaskedLM", "DistilBertConfig", vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64
        ),
        batch=_labelled(),
    ),
    Architecture(
        id="gpt2",
        kind="text",
        build=_transformers(
            "GPT2LMHeadModel", "GPT2Config", vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64
        ),
        batch=_labelled(),
    ),
    Architecture(
        id="llama", kind="text", build=_transformers("LlamaForCausalLM", "LlamaConfig", **_LLAMA), batch=_labelled()
    ),
    Architecture(
        id="mistral",
        kind="text",
        build=_transformers("MistralForCausalLM", "MistralConfig", **_LLAMA),
        batch=_labelled(),
    ),
    # It casts the input of `wo` to float32, so that the product does not overflow; autocast casts it down again.
    Architecture(
        id="t5",
        true_findings=frozenset({"cast-back-and-forth"}),
        kind="text",
        build=_transformers("T5ForConditionalGeneration", "T5Config", **_T5),
        batch=_labelled(),
    ),
    Architecture(
        id="whisper",
        kind="speech",
        build=_transformers("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER),
        batch=lambda: {"input_features": torch.randn(2, 16, 64), "labels": torch.randint(4, 100, (2, 8))},
    ),
    Architecture(
        id="wav2vec2",
        kind="speech",
        build=_transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAV2VEC),
        batch=lambda: {"input_values": torch.randn(2, 800), "labels": torch.randint(1, 32, (2, 5))},
    ),
    # oneDNN has no 16-bit LSTM for CPUs without avx512_bf16: torch raises there, with or without an audit.
    Architecture(id="lstm", kind="recurrent", build=Lstm, batch=lambda: torch.randn(4, 6, 16), backends=EMULATED),
    Architecture(id="unet", kind="diffusion", build=Unet, batch=_image(16, 2)),
)
"""Every architecture that is audited."""


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The model's own loss where it has one; else its outputs' mean square distance from 1, in float32."""
    if isinstance(batch, dict):
        out: torch.Tensor = model(**batch).loss
        return out
    value: torch.Tensor = (model(batch).float() - 1.0).square().mean()
    return value


def move(batch: Batch, device: str) -> Batch:
    """The batch on the device."""
    if isinstance(batch, dict):
        return {name: value.to(device) for name, value in batch.items()}
    return batch.to(device)
