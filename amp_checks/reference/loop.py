"""One training loop for FP32 and AMP: the precision is a parameter, all else is the same.

A `Task` builds a `Learner` (model, data, optimizers) under a seed; `train` runs it and returns what happened
as a `Trajectory`. The same seed gives the same initial weights, batches and order in every precision and on
every
backend: weights and data are drawn on the CPU and moved.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from amp_checks.core import Backend, attempt
from amp_checks.numerics import seeded


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """In which precision a loop trains: the region of its forward passes, the scaler of its backward passes.

    ``scaled`` says whether that scaler is enabled.
    """

    name: str
    region: Callable[[], AbstractContextManager[Any]]
    scaler: Callable[[], Any]
    scaled: bool


def fp32(device: str) -> Precision:
    """Plain float32 on a device type. It goes past every backend's factories: no planted fault reaches it."""
    return Precision(
        name="FP32",
        region=functools.partial(torch.autocast, device, enabled=False),
        scaler=functools.partial(torch.amp.GradScaler, device, enabled=False),
        scaled=False,
    )


def amp(backend: Backend, *, scaled: bool = True, scaler: Mapping[str, float] | None = None) -> Precision:
    """Mixed precision by the backend's own autocast and scaler.

    Args:
        backend: whose factories to use.
        scaled: whether the loss is scaled; False gives a disabled scaler.
        scaler: settings as for `torch.amp.GradScaler`; its defaults where None.
    """
    return Precision(
        name=f"AMP {backend.dtype}",
        region=backend.region,
        scaler=functools.partial(backend.scaler, enabled=scaled, **(scaler or {})),
        scaled=scaled,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One optimizer's part in a step of training.

    Attributes:
        optimizer: what steps.
        loss: ``loss(step, micro)`` gives the scalar loss of a micro-batch; called inside the region.
        accumulate: micro-batches whose gradients are averaged before the optimizer steps.
        clip_norm: the norm to which unscaled gradients are clipped, or None.
    """

    optimizer: torch.optim.Optimizer
    loss: Callable[[int, int], torch.Tensor]
    accumulate: int = 1
    clip_norm: float | None = None

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Loss and metric of a model on data it did not train on; both without region and without gradients."""

    loss: float
    metric: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What a task trains.

    Attributes:
        model: what is trained, on the device.
        turns: the optimizers of one step, in order (a GAN has two).
        validate: called before the first step and after the last, in ``eval`` mode, without gradients.
        after_step: called after each update of the scaler (a moving average of weights, say).
        speak: what a text model says, without gradients; None of other models.
    """

    model: torch.nn.Module
    turns: tuple[Turn, ...]
    validate: Callable[[], Validation]
    after_step: Callable[[], None] = lambda: None
    speak: Callable[[], str] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A recipe of training.

    Attributes:
        id: unique; what cases and reports call it.
        build: ``build(device)`` makes the learner; the global seed is set before.
        steps: optimizer steps (of each turn).
        scale_bfloat16: scale the loss in bfloat16 too, where scaling is not needed; float16 always scales.
        scaler: settings of the scaler that depart from its defaults.
    """

    id: str
    build: Callable[[str], Learner]
    steps: int
    scale_bfloat16: bool = False
    scaler: tuple[tuple[str, float], ...] = ()

    def amp(self, backend: Backend) -> Precision:
        """The mixed precision of this task on a backend."""
        return amp(
            backend, scaled=self.scale_bfloat16 or backend.dtype == "float16", scaler=dict(self.scaler)
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What happened in one training run.

    Attributes:
        losses: the training loss of each step: its turns' mean losses, added up; not scaled.
        ran: for each step, whether every optimizer really stepped.
        scales: the loss scale before the first step and after each.
        first_gradients: unscaled gradient of each parameter as its optimizer saw it when it first stepped, in
            float32 on the CPU, by name; empty where the first step was skipped.
        before, after: validation before the first step and after the last.
        learner: what was trained, as it stands after the last step.
    """

    losses: tuple[float, ...]
    ran: tuple[bool, ...]
    scales: tuple[float, ...]
    first_gradients: dict[str, torch.Tensor]
    before: Validation
    after: Validation
    learner: Learner

    @property
    def skipped(self) -> int:
        """Steps in which an optimizer did not step."""
        return self.ran.count(False)

    @property
    def backoffs(self) -> int:
        """Steps after which the loss scale was lower than before."""
        return sum(after < before for before, after in itertools.pairwise(self.scales))


def train(
    task: Task,
    *,
    precision: Precision,
    device: str,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
) -> Trajectory:
    """Train a task once.

    Args:
        task: what to train.
        precision: `fp32` or `amp` of a backend.
        device: where the model and its data live.
        seed: of weights, data and order. The global random state comes back afterwards.
        progress: called with the number of the step (from 1) and its loss after each step.

    Raises:
        Raised: forward, backward, unscale, step or update raised; the subject names it and the step.
    """
    losses: list[float] = []
    ran: list[bool] = []
    gradients: dict[str, torch.Tensor] = {}
    with seeded(seed):
        learner = task.build(device)
        scaler = precision.scaler()
        scales = [scaler.get_scale()]
        hooks = _watch_first_gradients(learner, gradients)
        before = _validated(learner)
        for step in range(task.steps):
            results = [_take(turn, step=step, precision=precision, scaler=scaler) for turn in learner.turns]
            attempt(f"scaler.update, step {step}", scaler.update)
            learner.after_step()
            losses.append(sum(loss for loss, _ in results))
            ran.append(all(stepped for _, stepped in results))
            scales.append(scaler.get_scale())
            while hooks:
                hooks.pop().remove()
            if progress is not None:
                progress(step + 1, losses[-1])
        after = _validated(learner)
    return Trajectory(
        losses=tuple(losses),
        ran=tuple(ran),
        scales=tuple(scales),
        first_gradients=gradients,
        before=before,
        after=after,
        learner=learner,
    )


def _watch_first_gradients(learner: Learner, gradients: dict[str, torch.Tensor]) -> list[Any]:
    """Hooks that copy each parameter's gradient just before its optimizer steps."""
    names = {parameter: name for name, parameter in learner.model.named_parameters()}

    def copy(parameters: list[torch.nn.Parameter], *_: Any) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                gradient = parameter.grad.detach().to(device="cpu", dtype=torch.float32, copy=True)
                gradients[names[parameter]] = gradient.to_dense() if gradient.is_sparse else gradient

    return [
        turn.optimizer.register_step_pre_hook(functools.partial(copy, turn.parameters()))
        for turn in learner.turns
    ]


def _take(turn: Turn, *, step: int, precision: Precision, scaler: Any) -> tuple[float, bool]:
    """One turn: its mean loss, and whether its optimizer stepped."""
    turn.optimizer.zero_grad()
    total = 0.0
    for micro in range(turn.accumulate):
        loss = attempt(f"forward, step {step}", _forward, turn, step, micro, precision)
        attempt(f"backward, step {step}", _backward, loss / turn.accumulate, scaler)
        total += loss.item()
    if turn.clip_norm is not None:
        attempt(f"scaler.unscale_, step {step}", scaler.unscale_, turn.optimizer)
        torch.nn.utils.clip_grad_norm_(turn.parameters(), turn.clip_norm)
    # The optimizer itself says whether it stepped: the scale says so only of a scaler that is right.
    steps: list[bool] = []
    hook = turn.optimizer.register_step_post_hook(lambda *_: steps.append(True))
    attempt(f"scaler.step, step {step}", scaler.step, turn.optimizer)
    hook.remove()
    return total / turn.accumulate, bool(steps)


def _forward(turn: Turn, step: int, micro: int, precision: Precision) -> torch.Tensor:
    with precision.region():
        return turn.loss(step, micro)


def _backward(loss: torch.Tensor, scaler: Any) -> None:
    scaler.scale(loss).backward()


def _validated(learner: Learner) -> Validation:
    learner.model.eval()
    with torch.no_grad():
        found = learner.validate()
    learner.model.train()
    return found
