"""Trainings in which a fault begins late, each with its corrected twin: the same program without the fault.

Every program trains on the CPU under autocast. A fault is a method of `Program`, called in the iteration in which it
begins and in those after it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EVERY = 10
"""Iterations from one sample to the next, by which the steps below are stated."""
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(functional.relu(self.norm(self.conv(x.unflatten(1, (1, 4, 4))))).flatten(1))
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embed(x.unflatten(1, (4, 4)))).mean(1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "conv": Conv, "attention": Attention}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.02, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3),
}


class Program:
    """A training loop whose parts a fault may change."""

    def __init__(self, model: str, optimizer: str, dtype: torch.dtype, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = MODELS[model]()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=100, enabled=dtype is F16)
        self.autocast = True
        self.uses_scaler = True
        self.factor = 1.0
        self.change: Callable[[Tensor, int], Tensor] | None = None
        self.changes_gradients: Callable[[int], None] | None = None
        self.schedule: Callable[[bool], None] | None = None
        self.target = nn.Linear(16, 4)

    def leaf(self, *, last: bool = False) -> nn.Linear | nn.Conv2d:
        found = [one for one in self.model.modules() if isinstance(one, nn.Linear | nn.Conv2d)]
        return found[-1 if last else 0]

    def run(self, steps: int, fault: Callable[[Program, int], None] | None = None, begin: int = 0) -> None:
        for step in range(steps):
            inputs = torch.randn(32, 16)
            with torch.no_grad():
                wanted = self.target(inputs).tanh()
            if fault is not None and step >= begin:
                fault(self, step - begin)
            if self.change is not None:
                inputs = self.change(inputs, step)
            self.optimizer.zero_grad()
            with torch.autocast(
                "cpu", self.dtype if self.dtype is not F32 else BF16, enabled=self.autocast and self.dtype is not F32
            ):
                output = self.model(inputs)
            loss = functional.mse_loss(output.float(), wanted) * self.factor
            before = self.scaler.get_scale()
            if self.uses_scaler:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if self.changes_gradients is not None:
                self.changes_gradients(step)
            if self.uses_scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            if self.schedule is not None:
                self.schedule(self.scaler.get_scale() >= before)


# --- Faults.


def loss_grows(program: Program, since: int) -> None:
    """The gradient overflows at ever smaller scales."""
    program.factor = 1.5**since


def gradients_infinite(program: Program, since: int) -> None:
    """One parameter's gradient is infinite from here on, whatever the scale."""
    parameter = next(program.model.parameters())
    program.changes_gradients = lambda _: fill(parameter, math.inf)


def gradients_nan_often(program: Program, since: int) -> None:
    """Two of three steps have a NaN."""
    parameter = next(program.model.parameters())
    program.changes_gradients = lambda step: fill(parameter, math.nan) if step % 3 else None


def inputs_grow(program: Program, since: int) -> None:
    """Data that was normalised no longer is: activations drift towards 65504."""
    factor = 1.06**since
    program.change = lambda inputs, _: inputs * factor


def weights_grow(program: Program, since: int) -> None:
    """Weights of the first layer grow until float16 cannot hold what it gives."""
    with torch.no_grad():
        program.leaf().weight.mul_(1.08)


def bad_batch(program: Program, since: int) -> None:
    """One batch holds an infinity."""
    program.change = (lambda inputs, _: inputs.index_fill(0, torch.tensor([3]), math.inf)) if since == 0 else None


def bad_batches(program: Program, since: int) -> None:
    """One batch in four holds NaN."""
    program.change = lambda inputs, step: inputs.index_fill(0, torch.tensor([3]), math.nan) if step % 4 == 0 else inputs


def layer_underflows(program: Program, since: int) -> None:
    """What reaches a layer from behind becomes so small that float16 loses it."""
    if since == 0:
        program.leaf().register_forward_hook(smaller_gradient)


def loss_shrinks(program: Program, since: int) -> None:
    """The loss is multiplied down: under a scale that does not follow, gradients are lost."""
    program.factor = 10.0 ** -min(since / 4, 9.0)
    program.scaler.set_growth_interval(10**6)


def layer_cut_off(program: Program, since: int) -> None:
    """The gradient of a layer is masked to zero."""
    parameter = program.leaf().weight
    program.changes_gradients = lambda _: fill(parameter, 0.0)


def layer_frozen(program: Program, since: int) -> None:
    """A layer is frozen and nobody knows."""
    program.leaf().requires_grad_(False)


def autocast_lost(program: Program, since: int) -> None:
    program.autocast = False


def weights_halved(program: Program, since: int) -> None:
    """The optimizer goes on with weights in 16 bits."""
    if since == 0:
        program.model.bfloat16()
        program.target.float()
    program.change = lambda inputs, _: inputs.bfloat16() if not program.autocast else inputs


def scaler_left_out(program: Program, since: int) -> None:
    program.uses_scaler = False


def weights_nan(program: Program, since: int) -> None:
    """One weight is overwritten."""
    if since == 0:
        with torch.no_grad():
            program.leaf(last=True).weight.view(-1)[0] = math.nan


def smaller_gradient(_: nn.Module, __: object, output: Tensor) -> None:
    output.register_hook(lambda gradient: gradient * 1e-11)


def fill(parameter: Tensor, value: float) -> None:
    if parameter.grad is not None:
        parameter.grad.fill_(value)


def skips(program: Program) -> None:
    """An overflow each fiftieth step, as a healthy training has."""
    parameter = next(program.model.parameters())
    program.changes_gradients = lambda step: fill(parameter, math.inf) if step % 50 == 20 else None
    program.scaler.set_growth_interval(30)


def scheduler_runs_ahead(program: Program, *, faulty: bool) -> None:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(program.optimizer, 1000)
    program.schedule = lambda real: scheduler.step() if real or faulty else None
    skips(program)


def average_runs_ahead(program: Program, *, faulty: bool) -> None:
    average = torch.optim.swa_utils.AveragedModel(program.model)
    program.schedule = lambda real: average.update_parameters(program.model) if real or faulty else None
    skips(program)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A late fault.

    Attributes:
        rules: of which one must find it.
        within: steps after it begins in which it must be found.
        prepare: what changes the program before it runs, ``faulty`` or as the twin.
    """

    id: str
    model: str
    optimizer: str
    begin: int
    rules: tuple[str, ...]
    within: int
    fault: Callable[[Program, int], None] | None = None
    prepare: Callable[..., None] | None = None
    dtype: torch.dtype = F16
    seed: int = 0

    def run(self, *, faulty: bool, steps: int | None = None) -> None:
        program = Program(self.model, self.optimizer, self.dtype, self.seed)
        if self.prepare is not None:
            self.prepare(program, faulty=faulty)
        program.run(steps or self.begin + self.within + 2, self.fault if faulty else None, self.begin)


def _rows() -> list[Late]:
    found: list[Late] = []

    def add(fault: Any, rules: str, within: int, *rows: tuple[Any, ...], prepare: Any = None) -> None:
        for model, optimizer, begin, *dtype in rows:
            name = (prepare or fault).__name__.replace("_", "-")
            found.append(
                Late(
                    id=f"{name}-{model}-{begin}" + ("-bfloat16" if dtype else ""), model=model, optimizer=optimizer,
                    begin=begin, rules=tuple(rules.split()), within=within, fault=fault, prepare=prepare,
                    dtype=dtype[0] if dtype else F16, seed=len(found),
                )
            )  # fmt: skip

    add(loss_grows, "loss-scale-falls", 60, ("mlp", "adam", 80), ("conv", "sgd", 200), ("attention", "adam", 120))
    add(gradients_infinite, "loss-scale-falls steps-skipped", 20, ("mlp", "sgd", 60), ("conv", "adam", 300))
    add(gradients_infinite, "weights-not-finite", 12, ("mlp", "sgd", 75, BF16), ("attention", "adam", 110, BF16))
    add(gradients_nan_often, "loss-scale-falls steps-skipped", 24, ("mlp", "adam", 150), ("attention", "sgd", 90))
    add(inputs_grow, "headroom-shrinks", 160, ("mlp", "sgd", 60), ("mlp", "adam", 100), ("attention", "adam", 70))
    add(
        weights_grow,
        "headroom-shrinks loss-scale-falls value-not-finite",
        160,
        ("mlp", "adam", 100),
        ("attention", "sgd", 80),
    )
    add(bad_batch, "loss-not-finite", 4, ("mlp", "adam", 123), ("conv", "sgd", 77), ("attention", "adam", 201))
    add(bad_batch, "loss-not-finite", 4, ("mlp", "adam", 111, BF16), ("conv", "adam", 64, BF16))
    add(bad_batches, "loss-not-finite", 6, ("mlp", "adam", 95), ("attention", "sgd", 140))
    add(
        layer_underflows,
        "gradient-zero gradient-underflow-grows",
        40,
        ("mlp", "adam", 60),
        ("mlp", "sgd", 100),
        ("attention", "adam", 80),
    )
    add(loss_shrinks, "gradient-zero gradient-underflow-grows", 80, ("mlp", "adam", 60), ("mlp", "sgd", 110))
    add(layer_cut_off, "gradient-zero", 40, ("conv", "adam", 60), ("mlp", "adam", 150, BF16))
    add(layer_frozen, "gradient-gone", 40, ("mlp", "adam", 70), ("attention", "adam", 100))
    add(
        autocast_lost,
        "autocast-stopped",
        25,
        ("mlp", "adam", 80),
        ("conv", "sgd", 160),
        ("attention", "adam", 55, BF16),
    )
    add(
        weights_halved,
        "weights-converted",
        15,
        ("mlp", "sgd", 80, BF16),
        ("conv", "sgd", 50, BF16),
        ("attention", "sgd", 120, BF16),
    )
    add(scaler_left_out, "scaler-left-out", 8, ("mlp", "adam", 90), ("attention", "sgd", 500))
    add(weights_nan, "loss-not-finite", 5, ("mlp", "adam", 66), ("conv", "adam", 130, BF16))
    add(
        None,
        "scheduler-stepped-on-skipped-step",
        160,
        ("mlp", "sgd", 50),
        ("conv", "adam", 60),
        prepare=scheduler_runs_ahead,
    )
    add(
        None,
        "average-updated-on-skipped-step",
        160,
        ("mlp", "adam", 50),
        ("attention", "sgd", 60),
        prepare=average_runs_ahead,
    )
    return found


LATE = _rows()


def clip(program: Program) -> None:
    if program.scaler.is_enabled():
        program.scaler.unscale_(program.optimizer)
    nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)


def healthy(seed: int) -> None:
    """A correct training of its own kind for each seed: model, optimizer, dtype, accumulation, schedule."""
    models, optimizers, dtypes = list(MODELS), list(OPTIMIZERS), (F16, F16, BF16, F32)
    program = Program(models[seed % 3], optimizers[seed % 2], dtypes[seed % 4], seed)
    if seed % 5 == 0:
        scheduler_runs_ahead(program, faulty=False)
        if seed % 4 >= 2:
            program.changes_gradients = None
    elif seed % 5 == 1:
        program.changes_gradients = lambda _: clip(program)
    elif seed % 5 == 2:
        schedule = torch.optim.lr_scheduler.OneCycleLR(program.optimizer, 0.01, total_steps=1000)
        program.schedule = lambda real: schedule.step() if real else None
    program.run(300)
