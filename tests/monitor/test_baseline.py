"""A run against good runs: planted regressions are found, another seed is no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import late_faults
import pytest
import torch
from late_faults import F16, Program
from torch import Tensor, nn

from amp_checks.audit.finding import Severity
from amp_checks.cli import entry
from amp_checks.monitor import baseline, journal, watch

STEPS = 120


def record(path: Path, model: str, optimizer: str, seed: int, change: Callable[[Program], None] | None = None) -> Path:
    with watch(path, every=5):
        program = Program(model, optimizer, F16, seed)
        if change is not None:
            change(program)
        program.run(STEPS)
    return path


def in_float32(program: Program) -> None:
    """One layer runs outside the region."""
    layer = program.leaf()
    forward = layer.forward

    def outside(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(x.float())

    layer.forward = outside  # type: ignore[method-assign, assignment]


def without_autocast(program: Program) -> None:
    program.autocast = False


def without_scaler(program: Program) -> None:
    program.uses_scaler = False


def larger_weights(program: Program) -> None:
    with torch.no_grad():
        program.leaf().weight.mul_(64.0)


def small_scale(program: Program) -> None:
    program.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=10**6)


def bad_batches(program: Program) -> None:
    program.change = lambda inputs, step: inputs * (float("nan") if step % 10 == 5 else 1.0)


def smaller_gradient(program: Program) -> None:
    program.leaf(last=True).register_forward_hook(late_faults.smaller_gradient)


REGRESSIONS: dict[Callable[[Program], None], str] = {
    in_float32: "output-dtype",
    without_autocast: "output-dtype",
    without_scaler: "scale",
    larger_weights: "headroom",
    small_scale: "scale",
    bad_batches: "skips",
    smaller_gradient: "underflow",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[journal.Recorded]]:
    folder = tmp_path_factory.mktemp("good")
    return {
        model: [journal.read(record(folder / f"{model}{seed}.jsonl", model, "adam", seed)) for seed in (0, 1, 2)]
        for model in late_faults.MODELS
    }


@pytest.mark.parametrize("change", REGRESSIONS, ids=lambda change: str(change.__name__))
@pytest.mark.parametrize("model", late_faults.MODELS)
def test_a_planted_regression_is_found(
    model: str, change: Callable[[Program], None], good: dict[str, list[journal.Recorded]], tmp_path: Path
) -> None:
    new = journal.read(record(tmp_path / "new.jsonl", model, "adam", 7, change))
    assert f"baseline-{REGRESSIONS[change]}" in [one.rule for one in baseline.compare(good[model], new)]


@pytest.mark.parametrize("seed", range(100, 120))
def test_a_good_run_with_another_seed_is_no_alarm(
    seed: int, good: dict[str, list[journal.Recorded]], tmp_path: Path
) -> None:
    model = list(late_faults.MODELS)[seed % 3]
    new = journal.read(record(tmp_path / "new.jsonl", model, "adam", seed))
    found = baseline.compare(good[model], new)
    assert [one for one in found if one.severity is not Severity.NOTE] == []


def test_diff_and_baseline_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, change in (("good", None), ("same", None), ("new", without_autocast)):
        record(Path(f"{name}.jsonl"), "mlp", "adam", 0, change)
    assert entry(["diff", "good.jsonl", "same.jsonl"]) == 0
    assert entry(["diff", "good.jsonl", "new.jsonl"]) == 1
    assert "baseline-output-dtype  [in 0]" in capsys.readouterr().out
    assert entry(["diff", "good.jsonl", "new.jsonl", "--fail-on", "never"]) == 0
    assert entry(["watch", "--baseline", "good.jsonl", "--read", "same.jsonl"]) == 0
    assert entry(["watch", "--baseline", "good.jsonl", "--read", "new.jsonl"]) == 1
    assert "AMP GOES WRONG" in capsys.readouterr().out
    assert entry(["watch", "--baseline", "missing.jsonl", "--read", "new.jsonl"]) == 4


def test_a_layer_is_a_layer() -> None:
    assert isinstance(Program("conv", "sgd", F16, 0).leaf(), nn.Conv2d)
