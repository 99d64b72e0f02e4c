"""A record survives what ends a run, a watched training gives the same bits, and nothing of the watch stays behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from late_faults import BF16, F16, MODELS, OPTIMIZERS, Program, fill
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils.checkpoint import checkpoint

import amp_checks
from amp_checks.core import UsageError
from amp_checks.monitor import Stopped, journal, report, watch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "fixtures" / "scripts" / "watched.py"


def state_of(program: Program) -> list[Any]:
    state = program.optimizer.state_dict()["state"]
    inner = [value for row in state.values() for value in row.values() if isinstance(value, torch.Tensor)]
    return [
        *program.model.state_dict().values(),
        *inner,
        torch.get_rng_state(),
        torch.tensor(program.scaler.get_scale()),
    ]


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_run_watched_and_unwatched_gives_the_same_bits(
    model: str, optimizer: str, dtype: torch.dtype, every: int, tmp_path: Path
) -> None:
    plain, watched = (Program(model, optimizer, dtype, 3) for _ in range(2))
    ends = []
    for program in (plain, watched):
        torch.manual_seed(11)
        random.seed(11)
        if program is watched:
            with watch(tmp_path / "record.jsonl", every=every):
                program.run(25)
        else:
            program.run(25)
        ends.append((state_of(program), random.getstate()))
    (first, first_random), (second, second_random) = ends
    assert first_random == second_random
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_nothing_of_the_watch_stays_behind(tmp_path: Path) -> None:
    def hooks() -> list[Any]:
        return [
            dict(module_hooks._global_forward_hooks),
            dict(module_hooks._global_forward_pre_hooks),
            dict(optimizer_hooks._global_optimizer_pre_hooks),
            dict(optimizer_hooks._global_optimizer_post_hooks),
            torch.amp.GradScaler.step,
            torch.amp.GradScaler.update,
            torch.autograd.graph._engine_run_backward,
        ]

    before = hooks()
    program = Program("mlp", "adam", F16, 0)
    with watch(tmp_path / "record.jsonl"):
        assert hooks() != before
        program.run(3)
    assert hooks() == before
    assert not any(one._forward_hooks or one._backward_hooks for one in program.model.modules())


def test_every_step_is_recorded_with_what_the_scaler_did(tmp_path: Path) -> None:
    program = Program("mlp", "sgd", F16, 0)
    parameter = next(program.model.parameters())
    program.changes_gradients = lambda step: fill(parameter, float("nan")) if step == 7 else None
    program.scaler.set_growth_interval(5)
    scales = [program.scaler.get_scale()]
    program.schedule = lambda _: scales.append(program.scaler.get_scale())
    with watch(tmp_path / "record.jsonl", every=10) as watched:
        program.run(20)
    steps = [one for one in journal.read(watched.path).records if one["kind"] == "step"]
    assert [one["step"] for one in steps] == list(range(20))
    assert [one["scale"] for one in steps] == scales[:-1]
    assert [one["step"] for one in steps if not one["taken"]] == [7]
    assert all(one["seconds"] > 0 for one in steps)
    samples = [one["step"] for one in journal.read(watched.path).records if one["kind"] == "sample"]
    assert samples == [0, 8, 9, 10]  # the three after a skipped step


def test_sizes_are_those_of_the_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Identity())
    with torch.no_grad():
        next(model.parameters()).copy_(torch.eye(4) * 3.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    inputs = torch.tensor([[100.0, -200.0, 1e-9, 0.0]])
    with watch(tmp_path / "record.jsonl") as watched:
        with torch.autocast("cpu", F16):
            output = model(inputs)
        (output.float() * torch.tensor([1.0, 1e-6, 0.0, 1.0])).sum().backward()
        optimizer.step()
    sample = next(one for one in journal.read(watched.path).records if one["kind"] == "sample")
    row = sample["modules"]["0"]
    assert row["dtype"] == "float16"
    assert row["max"] == 600.0
    assert row["lost"] == 0.5
    assert row["gradient_max"] == 1.0
    assert row["gradient_lost"] == 0.25
    assert sample["gradients"]["0.weight"]["max"] == 200.0
    assert sample["weights"]["0.weight"] == {"dtype": "float32", "norm": 6.0}
    assert sample["flops"] == {"float16": 1.0}
    assert (sample["casts"], sample["cast_bytes"]) == (2, (4 + 16) * 6)
    assert report.headroom(row) == pytest.approx(6.77, abs=0.01)


def test_the_first_value_that_is_not_finite_is_placed(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
            self.factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.before(x) * self.factor
            return self.after(hidden)  # type: ignore[no-any-return]

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with watch(tmp_path / "record.jsonl") as watched:
        for step in range(20):
            model.factor = 1e6 if step >= 14 else 1.0
            with torch.autocast("cpu", F16):
                loss = model(torch.ones(2, 4)).float().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    first = next(one for one in journal.read(watched.path).records if one["kind"] == "nonfinite")
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.after(hidden)" in text)
    assert (first["step"], first["what"], first["module"], first["op"]) == (15, "input", "after", "mul")
    assert first["where"].endswith(f"test_recorder.py:{line}")
    assert "2x4 " in first["batch"]
    (found,) = [one for one in watched.findings if one.rule == "value-not-finite" and one.severity == "error"]
    assert found.module == "after"


def test_a_float16_sum_of_gradients_past_the_floor_and_in_every_sample(tmp_path: Path) -> None:
    program = Program("mlp", "adam", F16, 0)
    parameter = next(program.model.parameters())
    program.changes_gradients = lambda step: fill(parameter, float("inf")) if step >= 30 else None
    with watch(tmp_path / "record.jsonl", every=5) as watched:
        program.run(60)
    assert {"loss-scale-at-floor", "gradient-not-finite"} <= {one.rule for one in watched.findings}


class OwnUpdate(torch.amp.GradScaler):
    """A scaler that updates its scale by itself, as FSDP's does."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        self._per_optimizer_states.clear()


class CallsUpdate(torch.amp.GradScaler):
    """A scaler that has more to do at an update."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OwnUpdate, CallsUpdate])
@pytest.mark.parametrize("fused", [False, True])
def test_other_scalers_and_fused_optimizers(kind: type[torch.amp.GradScaler], fused: bool, tmp_path: Path) -> None:
    model, scaler = nn.Linear(4, 4), kind("cpu", init_scale=8.0)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    before = kind.update
    with watch(tmp_path / "record.jsonl", every=2) as watched:
        for step in range(9):
            with torch.autocast("cpu", F16):
                loss = model(torch.ones(2, 4)).float().sum() * (float("inf") if step == 4 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert kind.update is before
    steps = [one for one in journal.read(watched.path).records if one["kind"] == "step"]
    assert [one["taken"] for one in steps] == [step != 4 for step in range(9)]
    assert journal.read(watched.path).records[-1]["trouble"] is None


def test_two_optimizers_of_like_modules_keep_their_names_apart(tmp_path: Path) -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (one, other)]
    with watch(tmp_path / "record.jsonl", every=1) as watched:
        for _ in range(4):
            for model, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
    samples = [one for one in journal.read(watched.path).records if one["kind"] == "sample"]
    assert len(samples) == 4
    assert all(len(one["gradients"]) == 4 for one in samples[1:])


def test_stop_on_error_ends_the_training(tmp_path: Path) -> None:
    program = Program("mlp", "adam", F16, 0)
    program.uses_scaler = True
    with pytest.raises(Stopped, match="scaler-left-out at step"), watch(tmp_path / "r.jsonl", stop_on="error"):
        program.run(100, lambda one, _: setattr(one, "uses_scaler", False), begin=40)
    assert journal.read(tmp_path / "r.jsonl").records[-1]["steps"] < 50


def accumulation(step: int, model: nn.Module, optimizer: Any) -> None:
    for _ in range(2):
        with torch.autocast("cpu", BF16):
            loss = model(torch.randn(4, 16)).float().square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def checkpointed(step: int, model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", BF16):
        output = checkpoint(model, torch.randn(4, 16, requires_grad=True), use_reentrant=bool(step % 2))
    output.float().square().mean().backward()
    optimizer.step()


def closure(step: int, model: nn.Module, optimizer: Any) -> None:
    def lose() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    optimizer.step(lose)


def evaluated(step: int, model: nn.Module, optimizer: Any) -> None:
    accumulation(step, model, optimizer)
    model.eval()
    with torch.no_grad():
        model(torch.full((2, 16), float("inf")))
    model.train()


@pytest.mark.parametrize("loop", [accumulation, checkpointed, closure, evaluated])
def test_loops_of_other_shapes_are_watched_without_alarm(loop: Callable[..., None], tmp_path: Path) -> None:
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(tmp_path / "record.jsonl", every=3) as watched:
        for step in range(30):
            loop(step, model, optimizer)
    records = journal.read(watched.path).records
    assert watched.findings == ()
    assert sum(one["kind"] == "step" for one in records) == 30
    assert records[-1]["trouble"] is None


def test_a_killed_run_is_readable_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    command = [sys.executable, "-m", "amp_checks", "watch", "--record", str(path), str(SCRIPT), "--endless"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until and (not path.exists() or path.stat().st_size < 20_000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    recorded = journal.read(path)
    steps = [one["step"] for one in recorded.records if one["kind"] == "step"]
    assert steps == list(range(len(steps)))
    assert len(steps) > 10
    (missing,) = [text for text in recorded.missing if "did not say that it ended" in text]
    assert f"after step {steps[-1]}" in missing
    assert "the record is incomplete" in report.verdict([recorded], report.judged([recorded]))


def test_a_full_disk_ends_the_record_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, room = os.write, [3000]

    def full(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: room[0]]
        room[0] -= len(part)
        return write(file, part)

    program = Program("mlp", "adam", F16, 0)
    with monkeypatch.context() as patched, watch(tmp_path / "record.jsonl") as watched:
        patched.setattr(os, "write", full)
        program.run(40)
    recorded = journal.read(watched.path)
    assert watched.path.read_bytes().endswith(b"\n")
    assert "No space left" in capsys.readouterr().err
    assert len(recorded.missing) == 1
    assert watched.history.counts["steps"] == 40


def test_what_is_no_record_is_refused_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    with watch(tmp_path / "record.jsonl") as watched:
        Program("mlp", "adam", F16, 0).run(5)
    whole = watched.path.read_bytes()
    count = len(journal.read(watched.path).records)
    watched.path.write_bytes(whole[:-7])
    assert len(journal.read(watched.path).records) == count - 1
    assert "cut off" in journal.read(watched.path).missing[0]
    for content in (b"", b"{}\n", b"no json\n", whole.replace(b'"version":1', b'"version":9')):
        watched.path.write_bytes(content)
        with pytest.raises(UsageError):
            journal.read(watched.path)
    with pytest.raises(UsageError, match="cannot be read"):
        journal.read(tmp_path / "missing.jsonl")


def test_the_public_name_is_the_watch(tmp_path: Path) -> None:
    with amp_checks.watch(tmp_path / "record.jsonl", every=2) as watched:
        Program("conv", "sgd", BF16, 0).run(3)
    assert amp_checks.watch is watch
    assert watched.findings == ()
