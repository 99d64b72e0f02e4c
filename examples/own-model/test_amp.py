"""Training the tagger under AMP reaches what FP32 reaches: `pytest` in this folder."""

import torch
from tagger import Tagger, loss_of, sequences

from amp_checks import parametrize_with_checks
from amp_checks.families.convergence.cases import ConvergenceCase
from amp_checks.reference.loop import Learner, Task, Turn, Validation

BACKENDS = ["cpu-bfloat16", "emulated-cuda-float16"]
BATCH = 32


def build(device):
    """Called anew for each run, seeded; the suite enters autocast around `loss` and scales what it returns."""
    model = Tagger().to(device)
    tokens, tags = (part.to(device) for part in sequences(512, seed=0))
    held_tokens, held_tags = (part.to(device) for part in sequences(256, seed=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step, _):
        rows = slice(step * BATCH % len(tokens), step * BATCH % len(tokens) + BATCH)
        return loss_of(model(tokens[rows]), tags[rows])

    def validate():
        logits = model(held_tokens)
        right = (logits.argmax(-1) == held_tags).float().mean().item()
        return Validation(loss=loss_of(logits, held_tags).item(), metric=right)

    return Learner(model=model, turns=(Turn(optimizer=optimizer, loss=loss, clip_norm=1.0),), validate=validate)


TAGGER = ConvergenceCase(task=Task(id="tagger", build=build, steps=60), learned=0.5)


@parametrize_with_checks([TAGGER], backends=BACKENDS)
def test_amp(item):
    item()
