"""Tasks on handwritten digits: an MLP and what loops do around it, a CNN with batch normalisation, a small GAN.

Each builder takes the device and makes a `Learner`; sizes are such that a run takes about a second on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

from amp_checks.reference.datasets import DIGITS_HELD_OUT, Batches, digits
from amp_checks.reference.loop import Learner, Task, Turn, Validation
from amp_checks.torch_api.numerics import randn

PIXELS = 64
CLASSES = 10


class Checkpointed(nn.Module):
    """A module whose activations are computed again in backward instead of kept."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


def mlp(hidden: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def checkpointed_mlp() -> nn.Module:
    def block(width: int) -> nn.Module:
        return Checkpointed(nn.Sequential(nn.Linear(width, 64), nn.LayerNorm(64), nn.GELU()))

    return nn.Sequential(block(PIXELS), block(64), block(64), nn.Linear(64, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, CLASSES),
    )


def _classifier(
    device: str,
    *,
    model: Callable[[], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    batch: int,
    accumulate: int = 1,
    clip_norm: float | None = None,
    average: float | None = None,
) -> Learner:
    """Cross-entropy on digits; the metric is the share of held-out digits that are recognised.

    ``average`` validates an exponential moving average of the weights, with that decay, in place of the weights.
    """
    images, labels = (tensor.to(device) for tensor in digits())
    seen, held_out = len(images) - DIGITS_HELD_OUT, slice(-DIGITS_HELD_OUT, None)
    net = model().to(device)
    judged = net
    after_step: Callable[[], None] = lambda: None  # noqa: E731 - the default, replaced below
    if average is not None:
        averaged = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(average))
        judged = averaged
        after_step = functools.partial(averaged.update_parameters, net)
    batches = Batches(seen, batch)

    def loss(step: int, micro: int) -> torch.Tensor:
        rows = batches(step * accumulate + micro).to(device)
        return functional.cross_entropy(net(images[rows]), labels[rows])

    def validate() -> Validation:
        judged.eval()
        outputs = judged(images[held_out])
        right = (outputs.argmax(1) == labels[held_out]).float().mean()
        return Validation(loss=functional.cross_entropy(outputs, labels[held_out]).item(), metric=right.item())

    turn = Turn(optimizer=optimizer(net.parameters()), loss=loss, accumulate=accumulate, clip_norm=clip_norm)
    return Learner(model=net, turns=(turn,), validate=validate, after_step=after_step)


def _gan(device: str) -> Learner:
    """A generator of digits against a critic: two optimizers, one scaler.

    The validation loss is the mean squared difference between the mean generated digit and the mean real one; so is
    the metric, from its standard deviation over digits.
    """
    images = digits()[0].to(device)
    noise_width = 16
    generator = nn.Sequential(nn.Linear(noise_width, 64), nn.ReLU(), nn.Linear(64, PIXELS), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(PIXELS, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    model = nn.ModuleDict({"generator": generator, "critic": critic}).to(device)
    batches = Batches(len(images), 64)
    unseen = randn(256, noise_width, seed="noise of the GAN's validation", device=device)

    def says(x: torch.Tensor, real: float) -> torch.Tensor:
        logits = critic(x)
        return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))

    def noise() -> torch.Tensor:
        return torch.randn(64, noise_width).to(device)

    def critic_loss(step: int, _: int) -> torch.Tensor:
        with torch.no_grad():
            fake = generator(noise())
        return says(images[batches(step).to(device)], 1.0) + says(fake, 0.0)

    def generator_loss(_step: int, _micro: int) -> torch.Tensor:
        return says(generator(noise()), 1.0)

    def validate() -> Validation:
        made = generator(unseen)
        return Validation(
            loss=functional.mse_loss(made.mean(0), images.mean(0)).item(),
            metric=functional.mse_loss(made.std(0), images.std(0)).item(),
        )

    adam = functools.partial(torch.optim.Adam, lr=2e-3, betas=(0.5, 0.999))
    return Learner(
        model=model,
        turns=(
            Turn(optimizer=adam(critic.parameters()), loss=critic_loss),
            Turn(optimizer=adam(generator.parameters()), loss=generator_loss),
        ),
        validate=validate,
    )


_SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
_ADAM = functools.partial(torch.optim.Adam, lr=3e-3)
_ADAMW = functools.partial(torch.optim.AdamW, lr=3e-3)

MLP = Task(
    id="digits-mlp",
    build=functools.partial(_classifier, model=mlp, optimizer=_SGD, batch=32),
    steps=40,
)
CNN = Task(
    id="digits-cnn",
    build=functools.partial(_classifier, model=cnn, optimizer=_ADAM, batch=32),
    steps=30,
)
ACCUMULATED = Task(
    id="digits-accumulated-clipped",
    build=functools.partial(_classifier, model=mlp, optimizer=_SGD, batch=16, accumulate=4, clip_norm=0.5),
    steps=30,
)
CHECKPOINTED = Task(
    id="digits-checkpointed",
    build=functools.partial(_classifier, model=checkpointed_mlp, optimizer=_ADAMW, batch=32),
    steps=30,
)
AVERAGED = Task(
    id="digits-averaged-weights",
    build=functools.partial(_classifier, model=mlp, optimizer=_ADAM, batch=32, average=0.9),
    steps=40,
)
GAN = Task(id="digits-gan", build=_gan, steps=30)
"""Short: a GAN is chaotic, and twins in two precisions part after about 50 steps."""
