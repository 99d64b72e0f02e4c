"""What is seen while a program runs must be what the oracle says: one check for each thing that can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amp_checks.core import Check, Finding, Value, exact
from amp_checks.families.scaler.oracle.driver import drive
from amp_checks.families.scaler.oracle.oracle import expect
from amp_checks.families.scaler.oracle.program import Observation
from amp_checks.families.scaler.programs.rows import ProgramCase
from amp_checks.torch_api.backend import Backend


def checks_for(_: ProgramCase) -> Iterator[Check]:
    yield check_error
    yield check_step
    yield check_scale
    yield check_growth_tracker
    yield check_gradients
    yield check_parameters
    yield check_optimizer_state


def _compare(case: ProgramCase, backend: Backend, what: str, read: Callable[[Observation], Value]) -> Iterator[Finding]:
    expected = expect(case.program)
    actual = drive(case.program, backend)
    for number, action in enumerate(case.program.actions):
        yield exact(
            f"{what} after action {number} ({type(action).__name__})",
            actual=read(actual[number]),
            expected=read(expected[number]),
            why=f"{case.shows} [{case.source}]",
        )


def check_error(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """Each action raises what it must, with its message, or nothing."""
    yield from _compare(case, backend, "error", lambda seen: seen.error)


def check_step(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """The steps that must run, run, and no others; ``scaler.step`` returns what ``optimizer.step`` returned."""
    yield from _compare(
        case,
        backend,
        "steps made",
        lambda seen: f"{', '.join(map(str, seen.steps))}; returned {seen.returned}",
    )


def check_scale(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """``get_scale()``, bit for bit."""
    yield from _compare(case, backend, "scale", lambda seen: seen.scale)


def check_growth_tracker(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """The number of consecutive unskipped iterations, as ``state_dict`` gives it (-1: disabled, no state)."""
    yield from _compare(case, backend, "growth tracker", lambda seen: seen.tracker)


def check_gradients(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """Scaled, unscaled, or none: every gradient bit for bit."""
    yield from _compare(case, backend, "gradients", lambda seen: " ".join(seen.gradients))


def check_parameters(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """Every parameter, bit for bit."""
    yield from _compare(case, backend, "parameters", lambda seen: " ".join(seen.parameters))


def check_optimizer_state(case: ProgramCase, backend: Backend) -> Iterator[Finding]:
    """The optimizer's own state (the sum of the gradients it has used), bit for bit."""
    yield from _compare(case, backend, "optimizer state", lambda seen: " ".join(seen.states))
