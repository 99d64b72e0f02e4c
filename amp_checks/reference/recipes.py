"""The two text recipes: one that works, and one as it was published, kept as a warning.

Both teach `SimpleTextModel` the text 中野哲平 from random input: Adam at 1e-3, 100 epochs, MSELoss, a fresh
``randn(1, 4)`` each epoch. They differ in what the model is asked to produce.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

from amp_checks.reference import text
from amp_checks.reference.loop import Learner, Task, Turn, Validation
from amp_checks.reference.model import INPUTS, SimpleTextModel
from amp_checks.torch_api.numerics import randn

TEXT = "中野哲平"
EPOCHS = 100
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What the model is asked to produce for a text, and how its output is read.

    Attributes:
        encode: text to targets, ``(1, outputs)``.
        decode: one output to text; raises ValueError where an output is no character.
        right: outputs, targets (both ``(batch, outputs)``) to booleans ``(batch, characters)``.
    """

    encode: Callable[[str], torch.Tensor]
    decode: Callable[[torch.Tensor], str]
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


BITS = Encoding(
    encode=text.encode_bits,
    decode=text.decode_bits,
    right=lambda outputs, targets: ((outputs > 0) == (targets > 0)).reshape(len(outputs), -1, text.BITS).all(dim=2),
)
CODE_POINTS = Encoding(
    encode=text.encode_code_points,
    decode=text.decode_code_points,
    right=lambda outputs, targets: outputs.trunc() == targets,
)


def _build(device: str, *, encoding: Encoding) -> Learner:
    target = encoding.encode(TEXT).to(device)
    model = SimpleTextModel(target.shape[1]).to(device)
    criterion = torch.nn.MSELoss()
    # Many inputs: the validation loss of one alone would be a matter of luck.
    unseen = randn(256, INPUTS, seed="unseen input of the text recipes", device=device)

    def loss(_step: int, _micro: int) -> torch.Tensor:
        out: torch.Tensor = criterion(model(torch.randn(1, INPUTS).to(device)), target)
        return out

    def validate() -> Validation:
        outputs = model(unseen)
        targets = target.expand_as(outputs)
        right = encoding.right(outputs, targets).float().mean().item()
        return Validation(loss=criterion(outputs, targets).item(), metric=right)

    return Learner(
        model=model,
        turns=(Turn(optimizer=torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), loss=loss),),
        validate=validate,
        speak=lambda: encoding.decode(model(unseen[:1])),
    )


REFERENCE = Task(id="reference", build=functools.partial(_build, encoding=BITS), steps=EPOCHS)
"""16 bits a character as +1/-1 targets, decoded by sign: exact in FP32, float16 and bfloat16."""

AS_PUBLISHED = Task(
    id="as_published",
    build=functools.partial(_build, encoding=CODE_POINTS),
    steps=EPOCHS,
    scale_bfloat16=True,
)
"""Regression on code points (20013 to 37326): what it does wrong is what the checks are for.

The gradients of a squared error of 28000 overflow float16 at every loss scale above 1; float16 could not hold
the targets (its spacing there is 16 to 32); and Adam moves each weight by about 1e-3 a step, so no precision
gets anywhere.
"""
