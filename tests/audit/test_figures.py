"""What a report says besides its findings: figures, places, how many iterations, from which loss scale."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit
from amp_checks.audit.report import Report
from amp_checks.audit.watching import magnitudes
from amp_checks.audit.watching.arithmetic import computes_with
from amp_checks.core import UsageError
from amp_checks.torch_api import private

BACKENDS = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


def _audited(build: Callable[..., Any], backend: str = "cpu-float16") -> Report:
    return audit(AuditCase(id=build.__name__, build=build), backends.backend(backend))


def _batches(device: str, count: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(16, 8).to(device), torch.randn(16, 4).to(device)) for _ in range(count)]


def _loop(device: str, dtype: torch.dtype, model: nn.Module, *, factor: float = 1.0, count: int = 4) -> Training:
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16, enabled=dtype is torch.float16)

    def step(batch: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            outputs = model(batch[0])
        scaler.scale(factor * nn.functional.mse_loss(outputs.float(), batch[1])).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=_batches(device, count), step=step)


def dropping(device: str, dtype: torch.dtype) -> Training:
    """Dropout allocates what it fills."""
    return _loop(device, dtype, nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4), nn.Dropout(0.1)))


def convolving(device: str, dtype: torch.dtype) -> Training:
    """New memory of a padded image."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(1, 1, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            room = inputs.new_empty(16, 1, 8, dtype=dtype)
            room.copy_(inputs[:, None])
            out: Tensor = self.layer(room)[:, 0]
            return out

    return _loop(device, dtype, Padded())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("build", [dropping, convolving])
def test_figures_do_not_hang_on_what_lies_in_new_memory(build: Callable[..., Any], backend: str) -> None:
    plain = _audited(build, backend)
    with private.new_memory_is_nan():
        assert _audited(build, backend).summary == plain.summary


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = self.into(inputs).chunk(3, -1)
        scores = query @ key.t()
        later = torch.ones(16, 16, dtype=torch.bool, device=inputs.device).triu(1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        out: Tensor = self.out(scores.softmax(-1).to(value.dtype) @ value)
        return out


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_is_no_headroom(backend: str) -> None:
    def masked(device: str, dtype: torch.dtype) -> Training:
        return _loop(device, dtype, _Attention())

    summary = _audited(masked, backend).summary
    assert "0.00% saturated" in summary["headroom, activations"]
    assert not summary["headroom, activations"].startswith("0.0 bits")
    if "float16" in backend and "bfloat16" not in backend:
        assert float(summary["largest float16 value, activations"].split()[0]) < 100


def test_what_lies_at_the_other_end_is_saturated() -> None:
    found = magnitudes.of(torch.tensor([65504.0, -65504.0, -math.inf, 2.0]), torch.float16)
    assert found is not None
    assert (found.saturated, found.greatest) == (2, 65504.0)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("updates", [True, False])
def test_iterations_of_a_whole_loop_are_counted_with_a_disabled_scaler_too(enabled: bool, updates: bool) -> None:
    def whole(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=enabled)
        batches = _batches(device, 5)

        def run() -> None:
            for inputs, targets in batches:
                optimizer.zero_grad()
                with torch.autocast(device, dtype):
                    loss = nn.functional.mse_loss(model(inputs).float(), targets)
                scaler.scale(loss).backward()
                scaler.step(optimizer) if updates or enabled else optimizer.step()
                if updates or enabled:
                    scaler.update()

        return Training(model=model, run=run)

    summary = _audited(whole).summary
    assert summary["iterations"] == "5"
    assert int(summary["forward ops"].split(",")[0]) < 12


@pytest.mark.parametrize("backend", ["cpu-float16", "emulated-cuda-float16"])
def test_an_error_is_placed_in_the_users_code(backend: str) -> None:
    def fails(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1][:3, 0].long())  # here

        return Training(model=model, batches=_batches(device), loss=loss)

    number = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# here"))
    with pytest.raises(UsageError, match=rf"test_figures\.py:{number}\)"):
        _audited(fails, backend)


def test_a_place_in_a_library_comes_with_the_line_that_led_there(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "a_library.py"
    library.parent.mkdir()
    library.write_text(
        "import torch\n"
        "def train(model, optimizer, scaler, batch, device, dtype):\n"
        "    optimizer.zero_grad()\n"
        "    with torch.autocast(device, dtype):\n"
        "        scaler.scale((model(batch[0]).float() - batch[1]).square().mean()).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n",
        encoding="utf-8",
    )
    sys.path.insert(0, str(library.parent))
    try:
        from a_library import train  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(library.parent))

    def uses(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=256.0)

        def step(batch: tuple[Tensor, Tensor]) -> None:
            train(model, optimizer, scaler, batch, device, dtype)  # calls

        return Training(model=model, batches=_batches(device), step=step)

    (found,) = [one for one in _audited(uses).diagnostics if one.rule == "backward-in-autocast"]
    number = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# calls"))
    assert found.where is not None
    assert found.where.startswith("a_library.py:5 (called at ")
    assert found.where.endswith(f"test_figures.py:{number})")


@pytest.mark.parametrize("holds", ["nothing", "an optimizer", "weights"])
def test_a_checkpoint_without_weights_is_named_as_that(holds: str) -> None:
    def saved(device: str, dtype: torch.dtype) -> Training:
        del dtype
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def save() -> dict[str, Any]:
            return {"step": 3} | {"optimizer": optimizer.state_dict()} if holds != "weights" else model.state_dict()

        def load(state: dict[str, Any]) -> None:
            if holds == "an optimizer":
                optimizer.load_state_dict(state["optimizer"])

        return Training(
            model=model,
            batches=_batches(device),
            loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]).float(), batch[1]),
            optimizer=optimizer,
            save=save,
            load=load,
        )

    (found,) = [one for one in _audited(saved).diagnostics if one.rule == "checkpoint-not-restored"]
    assert ("holds no weights" in found.message) is (holds != "weights")
    assert ("model.state_dict()" in found.remedy) is (holds != "weights")


@pytest.mark.parametrize(("bad", "severity"), [({6}, Severity.WARNING), (set(range(10)), Severity.ERROR)])
def test_one_bad_batch_of_many_is_no_error(bad: set[int], severity: Severity) -> None:
    def overflows(device: str, dtype: torch.dtype) -> Training:
        training = _loop(device, dtype, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), count=10)
        batches = [(x * 1e6 if n in bad else x, y) for n, (x, y) in enumerate(training.batches)]
        return Training(model=training.model, batches=batches, step=training.step)

    (found,) = [one for one in _audited(overflows).diagnostics if one.rule == "loss-not-finite"]
    assert found.severity is severity
    assert ("1 of 10 iterations" in found.message) is (len(bad) == 1)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_case_with_too_few_batches_is_audited_from_where_its_scale_settles(count: int) -> None:
    def settles(device: str, dtype: torch.dtype) -> Training:
        return _loop(device, dtype, nn.Linear(8, 4), factor=3000.0, count=count)

    report = _audited(settles)
    assert [one.rule for one in report.diagnostics] == ["initial-loss-scale-unsuitable"]
    assert "65536, all was skipped" in report.summary["loss scale at the start"]
    assert "headroom, gradients unscaled" in report.summary


@pytest.mark.parametrize("count", [2, 6])
def test_gradients_that_overflow_at_every_loss_scale_are_an_error(count: int) -> None:
    def never(device: str, dtype: torch.dtype) -> Training:
        return _loop(device, dtype, nn.Linear(8, 4), factor=1e8, count=count)

    errors = [one for one in _audited(never).diagnostics if one.severity is Severity.ERROR]
    assert [one.rule for one in errors] == ["gradient-not-finite"]
    (skipped,) = [one for one in _audited(never).diagnostics if one.rule == "steps-skipped"]
    assert skipped.follows_from == "gradient-not-finite"
    assert "at every loss scale from 65536 down to" in skipped.message


def test_arithmetic_is_seen_in_bytecode() -> None:
    seen: list[bool] = []

    def given() -> float:
        frame = sys._getframe(1)
        seen.append(computes_with((frame.f_code, frame.f_lineno, frame.f_lasti, None)))
        return 4.0

    def by_name() -> float:
        scale = given()
        return 3.0 / scale

    def compared() -> bool:
        before = given()
        return before > 3.0

    def kept() -> list[float]:
        return [given()]

    for function in (lambda: 1.0 / given(), by_name, compared, kept):
        function()
    assert seen == [True, True, False, False]
