"""Real architectures of torchvision, timm and transformers, with random weights, trained under emulated CUDA.

Needs those packages: the tox environment ``models`` has them. Three steps each in float16 and bfloat16: parameters stay
finite, every op with a rule of CUDA's runs in the dtype that the rule says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_checks.backends.observe import OpCall, observe
from amp_checks.emulation import emulate

pytest.importorskip("torchvision", reason="the tox environment 'models' has torchvision")
pytest.importorskip("timm", reason="the tox environment 'models' has timm")
pytest.importorskip("transformers", reason="the tox environment 'models' has transformers")

import timm
import torchvision
import transformers

SIZE = 64


def vision(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None, num_classes=4, **settings)


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, pretrained=False, num_classes=4, **settings)


def text(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**settings)
        model: nn.Module = getattr(transformers, f"{kind}Model")(config)
        return model

    return make


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}

IMAGES: dict[str, Callable[[], nn.Module]] = {
    "torchvision resnet18": vision("resnet18"),
    "torchvision mobilenet_v3_small": vision("mobilenet_v3_small"),
    "torchvision efficientnet_b0": vision("efficientnet_b0"),
    "torchvision densenet121": vision("densenet121"),
    "torchvision shufflenet_v2_x0_5": vision("shufflenet_v2_x0_5"),
    "torchvision squeezenet1_1": vision("squeezenet1_1"),
    "torchvision vit": lambda: torchvision.models.VisionTransformer(SIZE, 16, 2, 4, 32, 64, num_classes=4),
    "torchvision swin": lambda: torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [2, 4], [4, 4], num_classes=4),
    "timm convnext_atto": timm_model("convnext_atto"),
    "timm mixer": timm_model("mixer_s32_224", img_size=SIZE),
    "timm regnetx_002": timm_model("regnetx_002"),
    "timm deit_tiny": timm_model("deit_tiny_patch16_224", img_size=SIZE),
}

TEXTS: dict[str, Callable[[], nn.Module]] = {
    "transformers bert": text("Bert", **SMALL),
    "transformers gpt2": text("GPT2", vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "transformers llama": text("Llama", **SMALL, num_key_value_heads=2),
    "transformers t5 encoder": lambda: transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    ),
}

LOWER = {"linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "conv1d", "conv2d", "convolution", "einsum"}
HIGHER = {"layer_norm", "group_norm", "softmax.int", "nll_loss", "pow.Tensor_Scalar", "rsqrt", "exp", "mse_loss"}


def assert_follows_policy(calls: list[OpCall], dtype: torch.dtype) -> None:
    ruled = 0
    for call in calls:
        floating = {kind for kind in call.input_dtypes if kind.is_floating_point}
        name = call.op.removeprefix("aten::")
        if name in LOWER:
            assert floating == {dtype}, call
            ruled += 1
        elif name in HIGHER and floating:
            assert floating == {torch.float32}, call
            ruled += 1
    assert ruled > 3


def train(make: Callable[[], nn.Module], batch: Tensor, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with emulate("cuda", numerics="float32"):
        model = make().to("cuda")
        model.train()
        batch = batch.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0, enabled=dtype is torch.float16)
        for step in range(3):
            optimizer.zero_grad()
            with observe() as calls, torch.autocast("cuda", dtype=dtype):
                out = model(batch)
                out = getattr(out, "last_hidden_state", out)
                loss = nn.functional.mse_loss(out.float(), torch.ones_like(out, dtype=torch.float32))
            if step == 0:
                assert_follows_policy(calls, dtype)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.isfinite(loss)
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
        assert all(parameter.dtype is torch.float32 for parameter in model.parameters())
        assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", IMAGES)
def test_image_models(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    train(IMAGES[name], torch.randn(2, 3, SIZE, SIZE), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_models(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    train(TEXTS[name], torch.randint(0, 50, (2, 12)), dtype)
