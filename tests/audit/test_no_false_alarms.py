"""Correct programs of shapes that a rule might take for a fault: none of them raises an alarm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit

Build = Callable[[str, torch.dtype], Training]


def _net(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)).to(device)


def _batches(device: str, count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(16, 8).to(device), torch.randn(16, 4).to(device)) for _ in range(count)]


def _scaler(device: str, dtype: torch.dtype) -> Any:
    return torch.amp.GradScaler(device, init_scale=2.0**10, enabled=dtype is torch.float16)


def accumulation(device: str, dtype: torch.dtype) -> Training:
    """Four micro-batches for a step, zeroed after it, unscaled and clipped once."""
    model, scaler = _net(device), _scaler(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run() -> None:
        for number, (inputs, targets) in enumerate(_batches(device, 8), start=1):
            with torch.autocast(device, dtype):
                loss = nn.functional.mse_loss(model(inputs).float(), targets) / 4
            scaler.scale(loss).backward()
            if number % 4 == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=False)

    return Training(model=model, run=run)


def adversaries(device: str, dtype: torch.dtype) -> Training:
    """A generator and a critic, whose gradients the generator's backward also writes to."""
    generator, critic, scaler = nn.Linear(8, 4).to(device), nn.Linear(4, 1).to(device), _scaler(device, dtype)
    first = torch.optim.Adam(generator.parameters(), 1e-3)
    second = torch.optim.Adam(critic.parameters(), 1e-3)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        second.zero_grad()
        with torch.autocast(device, dtype):
            made = generator(batch[0])
            loss = critic(made.detach()).float().mean() - critic(batch[1]).float().mean()
        scaler.scale(loss).backward()
        scaler.step(second)
        first.zero_grad()
        with torch.autocast(device, dtype):
            loss = -critic(generator(batch[0])).float().mean()
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.update()

    return Training(model={"generator": generator, "critic": critic}, batches=_batches(device), step=step)


def gradients_looked_at(device: str, dtype: torch.dtype) -> Training:
    """Finiteness of scaled gradients, norms of unscaled ones, and norms once more after the step."""
    model, scaler, log = _net(device), _scaler(device, dtype), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def norm() -> float:
        norms = [parameter.grad.norm().item() for parameter in model.parameters() if parameter.grad is not None]
        return float(sum(norms))

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            log.append(bool(torch.isfinite(parameter.grad).all()))
        scaler.unscale_(optimizer)
        log.append(norm() > 0)
        scaler.step(optimizer)
        scaler.update()
        log.append(norm() > 0)

    return Training(model=model, batches=_batches(device), step=step)


def gradients_unscaled_for_a_log(device: str, dtype: torch.dtype) -> Training:
    """Norms of scaled gradients, each divided by the scale first."""
    model, scaler, log = _net(device), _scaler(device, dtype), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            log.append((parameter.grad / scaler.get_scale()).norm().item())
            log.append((parameter.grad * (1 / scaler.get_scale())).norm().item())
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device), step=step)


def gradients_changed_alike_at_any_scale(device: str, dtype: torch.dtype) -> Training:
    """Averaged, centred, and clipped at a norm that is scaled, before they are unscaled."""
    model, scaler = _net(device), _scaler(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = 2 * nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(2)
            if parameter.dim() > 1:
                parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device), step=step)


def averaged(device: str, dtype: torch.dtype) -> Training:
    """An average of weights and a schedule, both only after real steps; the average is evaluated in a region."""
    model, scaler = _net(device), _scaler(device, dtype)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
            with torch.no_grad():
                for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    ours.mul_(0.9).add_(theirs, alpha=0.1)
        with torch.no_grad(), torch.autocast(device, dtype):
            average(batch[0])

    return Training(model=model, batches=_batches(device), step=step)


def hard_target(device: str, dtype: torch.dtype) -> Training:
    """A target network that is copied from the trained one after each step, skipped or not."""
    model, scaler = _net(device), _scaler(device, dtype)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            with torch.no_grad():
                wanted = batch[1] + 0.9 * target(batch[0]).float()
            loss = nn.functional.mse_loss(model(batch[0]).float(), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        target.load_state_dict(model.state_dict())

    return Training(model=model, batches=_batches(device), step=step)


def checkpointed(device: str, dtype: torch.dtype) -> Training:
    """torch's own checkpointing, both kinds."""
    model, scaler = _net(device), _scaler(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        for reentrant in (False, True):
            optimizer.zero_grad()
            inputs = batch[0].clone().requires_grad_()
            with torch.autocast(device, dtype):
                output = checkpoint(model, inputs, use_reentrant=reentrant)
                loss = nn.functional.mse_loss(output.float(), batch[1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return Training(model=model, batches=_batches(device), step=step)


def penalised(device: str, dtype: torch.dtype) -> Training:
    """The gradient penalty of torch's own examples."""
    model, scaler = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device), _scaler(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        inverse = 1.0 / scaler.get_scale()
        gradients = [gradient * inverse for gradient in scaled]
        with torch.autocast(device, dtype):
            loss = loss + sum(gradient.float().pow(2).sum() for gradient in gradients).sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device), step=step)


def masked_attention(device: str, dtype: torch.dtype) -> Training:
    """Masks of -inf and of the dtype's minimum, a region that is left for the softmax, a decorated forward."""
    model, scaler = nn.Linear(8, 8).to(device), _scaler(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    mask = torch.ones(16, 16, dtype=torch.bool).triu(1).to(device)

    @torch.autocast(device, dtype)  # type: ignore[untyped-decorator]
    def forward(inputs: torch.Tensor) -> torch.Tensor:
        hidden = model(inputs)
        scores = (hidden @ hidden.t()).masked_fill(mask, float("-inf"))
        with torch.autocast(device, enabled=False):
            weights = scores.float().softmax(-1)
        scores = (hidden @ hidden.t()).masked_fill(
            mask, torch.finfo(dtype if scores.dtype is dtype else scores.dtype).min
        )
        out: torch.Tensor = weights @ hidden + scores.softmax(-1) @ hidden
        return out.float()

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        scaler.scale(forward(batch[0]).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device), step=step)


def frozen_part(device: str, dtype: torch.dtype) -> Training:
    """A frozen body, a head that trains, a counter in integers, BatchNorm, and evaluation between steps."""
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()).to(device).requires_grad_(False)
    head, scaler, seen = nn.Linear(16, 4).to(device), _scaler(device, dtype), torch.zeros((), dtype=torch.int64)
    optimizer = torch.optim.AdamW(head.parameters(), 1e-3)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        seen.add_(len(batch[0]))
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(head(body(batch[0])).float(), batch[1])
        head.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        head.eval()
        with torch.no_grad(), torch.autocast(device, dtype):
            head(body(batch[0])).argmax(-1)
        head.train()

    return Training(model=[body, head], batches=_batches(device), step=step)


def settling_scale(device: str, dtype: torch.dtype) -> Training:
    """A scale far too high at first: the first steps are skipped, and then none."""
    model = _net(device)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**24, enabled=dtype is torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device, 16), step=step)


class _Sine(nn.Module):
    """A layer of SIREN: as it is initialised there, with angles up to 45 in the first."""

    def __init__(self, inputs: int, outputs: int, *, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        bound = 1.0 / inputs if first else (6.0 / inputs) ** 0.5 / 30.0
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.sin(30.0 * self.linear(inputs))


def periodic(device: str, dtype: torch.dtype) -> Training:
    """Sines of what 16-bit layers make, and of positions in float32, in a float32 region of the attention."""
    waves = nn.Sequential(_Sine(2, 32, first=True), _Sine(32, 32), nn.Linear(32, 16)).to(device)
    attention, scaler = nn.Linear(16, 48).to(device), _scaler(device, dtype)
    optimizer = torch.optim.AdamW([*waves.parameters(), *attention.parameters()], 1e-3)
    frequencies = (10000.0 ** -(torch.arange(0, 16, 2).float() / 16)).to(device)

    def turned(value: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, enabled=False):
            angles = torch.arange(value.shape[1], device=device).float()[:, None] @ frequencies[None]
        pairs = torch.view_as_complex(value.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def step(batch: tuple[torch.Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            query, key, value = attention(waves(batch[0])).chunk(3, -1)
            # Without a dimension of heads torch computes this in float32 inside, and casts for it.
            out = nn.functional.scaled_dot_product_attention(turned(query), turned(key), value)
            loss = (out.float() - 0.3).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    places = [(torch.rand(2, 600, 2).mul(2.0).sub(1.0).to(device),) for _ in range(2)]
    return Training(model=[waves, attention], batches=places, step=step)


PROGRAMS: tuple[Build, ...] = (
    accumulation,
    adversaries,
    gradients_looked_at,
    gradients_unscaled_for_a_log,
    gradients_changed_alike_at_any_scale,
    averaged,
    hard_target,
    checkpointed,
    penalised,
    masked_attention,
    frozen_part,
    periodic,
    settling_scale,
)


@pytest.mark.parametrize("backend", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"])
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_correct_program_raises_no_alarm(build: Build, backend: str) -> None:
    report = audit(AuditCase(id=build.__name__, build=build), backends.backend(backend))
    alarms = [(one.rule, one.place, one.message) for one in report.diagnostics if one.severity is not Severity.NOTE]
    assert alarms == []


@pytest.mark.parametrize("change", ["clip", "decay", "bound"])
def test_what_takes_scaled_gradients_for_unscaled_ones_is_an_error(change: str) -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model, scaler = _net(device), _scaler(device, dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)

        def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = nn.functional.mse_loss(model(batch[0]).float(), batch[1])
            scaler.scale(loss).backward()
            if change == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif change == "bound":
                nn.utils.clip_grad_value_(model.parameters(), 10.0)
            for parameter in model.parameters() if change == "decay" else ():
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach(), alpha=1e-4)
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=_batches(device), step=step)

    report = audit(AuditCase(id=change, build=case), backends.backend("cpu-float16"))
    assert {one.rule for one in report.failures()} == {"scaled-gradients-modified"}
