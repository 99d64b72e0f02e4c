"""Torch's scaler and the oracle, over random scripts: fixed seeds by default, new and more of them by profile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from scaler_machine import Both, distribution, report, transitions

from amp_checks import backends
from amp_checks.families.scaler.oracle import oracle, program
from amp_checks.families.scaler.oracle.driver import drive
from amp_checks.families.scaler.oracle.program import INF, Program
from amp_checks.families.scaler.oracle.script import as_script

_QUICK = (Phase.generate,)
"""A failure is looked for, not made small."""
GATE = settings(max_examples=30, stateful_step_count=25, derandomize=True, deadline=None, database=None)
NIGHTLY_TRANSITIONS = 10_000


def _profile() -> settings:
    chosen = settings.default if settings.get_current_profile_name() == "nightly" else GATE
    assert chosen is not None
    return settings(chosen, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_torch_and_oracle_agree(capsys: pytest.CaptureFixture[str]) -> None:
    transitions.clear()
    run_state_machine_as_test(Both, settings=_profile())
    with capsys.disabled():
        sys.stdout.write(f"\n{torch.__version__}: {distribution()}\n")
    wanted = NIGHTLY_TRANSITIONS if settings.get_current_profile_name() == "nightly" else 500
    assert transitions.total() >= wanted
    assert len(transitions) >= 13, "some action was never tried"


@pytest.mark.parametrize("departure", oracle.Departure)
def test_machine_finds_departure(departure: oracle.Departure) -> None:
    """With one departure taken from the oracle, random scripts must find that torch differs."""

    class Strict(Both):
        departures = oracle.AS_RELEASED - {departure}

    with pytest.raises(AssertionError, match="the oracle says"):
        run_state_machine_as_test(Strict, settings=settings(_profile(), max_examples=400, phases=_QUICK))


def test_failing_example_is_a_script_that_runs() -> None:
    failing = Program(
        actions=(
            program.backward(p0=(1.0, INF)),
            program.Step(),
            program.Update(),
            program.Update(3.0, tensor=True),
            program.Copy(),
            program.Scale(),
            program.Step(fails=True),
        ),
        optimizers=(program.OptimizerSpec(kind=program.Kind.SCALING), program.OptimizerSpec()),
    )
    seen = drive(failing, backends.backend("cpu-float16"))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", as_script(failing)], capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    assert lines[-4] == "step(0, fails=True) raised ArithmeticError the optimizer fails"
    assert seen[-1].error == "ArithmeticError: the optimizer fails"
    assert f"'scale': {seen[-1].scale}" in lines[-3]
    assert lines[-1].split("parameters ")[1] == f"[{seen[-1].parameters[0]}]"
    assert "scale: '3.0', but the oracle says '4.0'" in report(failing, seen[-1], seen[2])
