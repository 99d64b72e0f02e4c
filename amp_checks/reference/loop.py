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
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from amp_checks.core import attempt
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import seeded


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
        return amp(backend, scaled=self.scale_bfloat16 or backend.dtype == "float16", scaler=dict(self.scaler))


Gradients = dict[str, torch.Tensor]
"""Gradient of each parameter that has one, by name: dense, float32, on the CPU."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What happened in one training run.

    Attributes:
        losses: the training loss of each step: its turns' mean losses, added up; not scaled.
        forward_losses: what each forward pass gave, micro-batch by micro-batch.
        ran: for each step, whether every optimizer really stepped.
        scales: the loss scale before the first step and after each.
        left_behind: gradients as backward left them at the first step, still scaled.
        first_gradients: gradients as the optimizers saw them when they first stepped; empty if they never did.
        loss_dtypes: dtypes of the losses that the forward passes gave, sorted.
        validations: before the first step, at even distances during training, and after the last step.
        learner: what was trained, as it stands after the last step.
    """

    losses: tuple[float, ...]
    forward_losses: tuple[float, ...]
    ran: tuple[bool, ...]
    scales: tuple[float, ...]
    left_behind: Gradients
    first_gradients: Gradients
    loss_dtypes: tuple[str, ...]
    validations: tuple[Validation, ...]
    learner: Learner

    @property
    def before(self) -> Validation:
        return self.validations[0]

    @property
    def after(self) -> Validation:
        return self.validations[-1]

    @property
    def best_loss(self) -> float:
        """The lowest validation loss of all; NaN if any is NaN."""
        losses = [validation.loss for validation in self.validations]
        return math.nan if any(map(math.isnan, losses)) else min(losses)

    @property
    def skips(self) -> frozenset[int]:
        """The steps, counted from 0, in which an optimizer did not step."""
        return frozenset(step for step, ran in enumerate(self.ran) if not ran)

    @property
    def backoffs(self) -> int:
        """Steps after which the loss scale was lower than before."""
        return sum(after < before for before, after in itertools.pairwise(self.scales))

    def steps_to(self, loss: float) -> int | None:
        """How many steps it took until the training loss was at most ``loss``; None if it never was."""
        return next((step for step, found in enumerate(self.losses, start=1) if found <= loss), None)


VALIDATIONS = 4
"""How often a run is validated after its start, the last time at its end."""


def train(
    task: Task,
    *,
    precision: Precision,
    device: str,
    seed: int,
    leave_out: frozenset[int] = frozenset(),
    progress: Callable[[int, float], None] | None = None,
) -> Trajectory:
    """Train a task once.

    Args:
        task: what to train.
        precision: `fp32` or `amp` of a backend.
        device: where the model and its data live.
        seed: of weights, data and order. The global random state comes back afterwards.
        leave_out: steps, counted from 0, at which nothing is learned: their batches are drawn and lost, as they are
            in a step that a scaler skips.
        progress: called with the number of the step (from 1) and its loss after each step.

    Raises:
        Raised: forward, backward, unscale, step or update raised; the subject names it and the step.
    """
    with seeded(seed):
        learner = task.build(device)
        run = _Run(learner=learner, precision=precision, scaler=precision.scaler())
        validations = [_validated(learner)]
        for step in range(task.steps):
            run.step(step, learn=step not in leave_out)
            if (step + 1) * VALIDATIONS // task.steps > step * VALIDATIONS // task.steps:
                validations.append(_validated(learner))
            if progress is not None:
                progress(step + 1, run.losses[-1])
    return Trajectory(
        losses=tuple(run.losses),
        forward_losses=tuple(run.forward_losses),
        ran=tuple(run.ran),
        scales=tuple(run.scales),
        left_behind=run.left_behind,
        first_gradients=run.first_gradients,
        loss_dtypes=tuple(sorted(run.loss_dtypes)),
        validations=tuple(validations),
        learner=learner,
    )


class _Run:
    """A training run under way, and what is noted of it (see `Trajectory`)."""

    def __init__(self, *, learner: Learner, precision: Precision, scaler: Any) -> None:
        self.learner = learner
        self.precision = precision
        self.scaler = scaler
        self.losses: list[float] = []
        self.forward_losses: list[float] = []
        self.ran: list[bool] = []
        self.scales: list[float] = [scaler.get_scale()]
        self.left_behind: Gradients = {}
        self.first_gradients: Gradients = {}
        self.loss_dtypes: set[str] = set()
        self.names = {parameter: name for name, parameter in learner.model.named_parameters()}

    def step(self, step: int, *, learn: bool) -> None:
        """One step: every turn, then the scaler's update."""
        results = [self._take(turn, step=step, learn=learn) for turn in self.learner.turns]
        attempt(f"scaler.update, step {step}", self.scaler.update)
        self.learner.after_step()
        self.losses.append(sum(loss for loss, _ in results))
        self.ran.append(all(stepped for _, stepped in results))
        self.scales.append(self.scaler.get_scale())

    def _take(self, turn: Turn, *, step: int, learn: bool) -> tuple[float, bool]:
        """One turn: its mean loss, and whether its optimizer stepped."""
        optimizer, scaler = turn.optimizer, self.scaler
        optimizer.zero_grad()
        for micro in range(turn.accumulate):
            loss = attempt(f"forward, step {step}", _forward, turn, step, micro, self.precision)
            attempt(f"backward, step {step}", _backward, loss / turn.accumulate, scaler)
            self.loss_dtypes.add(dtype_name(loss.dtype))
            self.forward_losses.append(loss.item())
        mean = sum(self.forward_losses[-turn.accumulate :]) / turn.accumulate
        if step == 0:
            self._copy_gradients(turn, self.left_behind)
        if not learn:
            return mean, False
        if turn.clip_norm is not None:
            attempt(f"scaler.unscale_, step {step}", scaler.unscale_, optimizer)
            torch.nn.utils.clip_grad_norm_(turn.parameters(), turn.clip_norm)
        # The optimizer itself says whether it stepped: the scale says so only of a scaler that is right.
        stepped: list[bool] = []
        hooks = [optimizer.register_step_post_hook(lambda *_: stepped.append(True))]
        if not any(self.ran):
            hooks.append(optimizer.register_step_pre_hook(lambda *_: self._copy_gradients(turn, self.first_gradients)))
        attempt(f"scaler.step, step {step}", scaler.step, optimizer)
        for hook in hooks:
            hook.remove()
        return mean, bool(stepped)

    def _copy_gradients(self, turn: Turn, into: Gradients) -> None:
        for parameter in turn.parameters():
            if parameter.grad is not None:
                gradient = parameter.grad.detach().to(device="cpu", dtype=torch.float32, copy=True)
                into[self.names[parameter]] = gradient.to_dense() if gradient.is_sparse else gradient


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
