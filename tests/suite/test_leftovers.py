"""State that is left changed is a failed finding where the code under test did it, and an error where the check did."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_checks.core import Finding, Result, Status, attempt, bounded, exact
from amp_checks.suite import measure
from amp_checks.suite.row import Row
from amp_checks.torch_api import state
from amp_checks.torch_api.backend import Backend

BACKEND = Backend(id="cpu-bfloat16", device_type="cpu", dtype="bfloat16")


class StubCase(Row):
    family = "tests"
    id = "stub"


def of_ratio(ratio: float) -> Finding:
    return bounded("size", ratio=ratio, threshold=1.0, why="made for this test")


class Forgetful:
    """A region that forgets one switch when it is left."""

    def __init__(self, forget: Callable[[], object], **settings: Any) -> None:
        self.region = torch.autocast("cpu", **settings)
        self.forget = forget

    def __enter__(self) -> Any:
        return self.region.__enter__()

    def __exit__(self, *error: object) -> Any:
        result = self.region.__exit__(*error)
        self.forget()
        return result


FORGETS: dict[str, Callable[[], object]] = {
    "autocast enabled for cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype for cpu": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast cache enabled": lambda: torch.set_autocast_cache_enabled(False),
    "autocast nesting depth": torch.autocast_increment_nesting,
}


def forgetful(name: str) -> Backend:
    def autocast(device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> Any:
        del device_type
        return Forgetful(FORGETS[name], dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return dataclasses.replace(BACKEND, autocast=autocast)


def result_on(body: Callable[[Backend], Iterator[Finding]], backend: Backend = BACKEND) -> Result:
    def check_stub(case: StubCase, backend: Backend) -> Iterator[Finding]:
        del case
        yield from body(backend)

    before = state.capture()
    result = measure.measure(check_stub, StubCase(), backend)
    assert state.restore(before) == []
    return result


def opens_region(backend: Backend) -> Iterator[Finding]:
    for _ in range(2):
        with backend.region():
            attempt("inside", lambda: None)
    yield of_ratio(0.0)


def opens_region_in_attempt(backend: Backend) -> Iterator[Finding]:
    def call() -> None:
        with backend.region():
            pass

    attempt("the call", call)
    yield of_ratio(0.0)


def goes_wrong_after_region(backend: Backend) -> Iterator[Finding]:
    with backend.region():
        pass
    yield of_ratio(0.0)
    raise KeyError("of the check")


@pytest.mark.parametrize("name", FORGETS)
@pytest.mark.parametrize(
    ("body", "where"),
    [
        (opens_region, "a region"),
        (opens_region_in_attempt, "the call"),
        (goes_wrong_after_region, "a region"),
    ],
)
def test_a_region_that_leaves_state_changed_fails_and_says_which(
    name: str, body: Callable[[Backend], Iterator[Finding]], where: str
) -> None:
    result = result_on(body, forgetful(name))
    assert result.status is Status.FAILED
    assert [finding.subject for finding in result.failures] == [f"{name} after {where}"]
    assert f"{name} after {where} = " in result.describe()


def test_the_check_goes_on_in_the_state_that_was() -> None:
    def body(backend: Backend) -> Iterator[Finding]:
        with backend.region():
            pass
        yield exact("enabled", actual=torch.is_autocast_enabled("cpu"), expected=False, why="it was off")

    result = result_on(body, forgetful("autocast enabled for cpu"))
    assert [finding.passed for finding in result.findings] == [True, False]


def test_an_exception_goes_through_the_border_and_state_is_blamed_all_the_same() -> None:
    def fail() -> None:
        torch.set_grad_enabled(False)
        raise RuntimeError("half way")

    def body(_: Backend) -> Iterator[Finding]:
        attempt("call", fail)
        yield of_ratio(0.0)

    result = result_on(body)
    assert result.status is Status.FAILED
    assert [finding.subject for finding in result.failures] == ["grad mode after call", "call"]


class Broken:
    """A region of which one method raises."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.fail("__init__")

    def fail(self, method: str) -> None:
        if method == self.method:
            raise RuntimeError("of the region")

    def __enter__(self) -> None:
        self.fail("__enter__")

    def __exit__(self, *_: object) -> None:
        self.fail("__exit__")


@pytest.mark.parametrize(
    ("method", "subject"),
    [("__init__", "making a region"), ("__enter__", "entering a region"), ("__exit__", "leaving a region")],
)
def test_what_a_region_of_a_check_raises_is_the_code_under_tests(method: str, subject: str) -> None:
    backend = dataclasses.replace(BACKEND, autocast=lambda *_, **__: Broken(method))
    result = result_on(opens_region, backend)
    assert result.status is Status.FAILED
    assert [finding.subject for finding in result.failures] == [subject]


def test_what_a_check_raises_inside_a_region_is_its_own() -> None:
    def body(backend: Backend) -> Iterator[Finding]:
        yield of_ratio(0.0)
        with backend.region():
            raise KeyError("of the check")

    assert result_on(body).status is Status.ERROR


@pytest.mark.parametrize("body", [opens_region, opens_region_in_attempt])
def test_a_region_that_restores_all_passes(body: Callable[[Backend], Iterator[Finding]]) -> None:
    assert result_on(body).status is Status.PASSED


@pytest.mark.parametrize("name", FORGETS)
def test_a_check_that_forgets_between_the_borders_is_an_error(name: str) -> None:
    def body(_: Backend) -> Iterator[Finding]:
        attempt("call", lambda: None)
        with BACKEND.region():
            pass
        FORGETS[name]()
        yield of_ratio(0.0)

    result = result_on(body)
    assert result.status is Status.ERROR
    assert name in result.message


def test_random_numbers_that_code_under_test_uses_up_are_the_checks_to_put_back() -> None:
    def body(_: Backend) -> Iterator[Finding]:
        attempt("call", torch.randn, 1)
        yield of_ratio(0.0)

    assert result_on(body).status is Status.ERROR


def test_inside_an_attempt_a_region_is_torchs_own() -> None:
    def body(backend: Backend) -> Iterator[Finding]:
        yield exact("type", actual=type(attempt("region", backend.region)).__name__, expected="autocast", why="")
        yield exact("type outside", actual=type(backend.region()).__name__ == "autocast", expected=False, why="")

    assert result_on(body).status is Status.PASSED
    assert type(BACKEND.region()) is torch.autocast


def test_what_a_region_is_asked_beyond_a_with_statement_reaches_it() -> None:
    def body(backend: Backend) -> Iterator[Finding]:
        region: Any = backend.region()
        inside = region(lambda: torch.is_autocast_enabled("cpu"))()
        yield exact("decorated function", actual=inside, expected=True, why="")
        yield exact("device", actual=region.device, expected="cpu", why="")

    assert result_on(body).status is Status.PASSED


SLIPS = {
    "not is_autocast_available(self.device)": "making a region = RuntimeError: User specified",
    "torch.set_autocast_enabled(self.device, self.prev)": "autocast enabled for cpu after ",
    "torch.set_autocast_dtype(self.device, self.prev_fastdtype)": "autocast dtype for cpu after ",
    "torch.set_autocast_cache_enabled(self.prev_cache_enabled)": "autocast cache enabled after ",
    "torch.autocast_increment_nesting()": "autocast nesting depth after ",
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_torch_that_is_wrong_ends_with_status_1(slip: str, tmp_path: Path) -> None:
    """The whole run, on a torch with one edit in its autocast: AMP is wrong (1), the suite is not (3)."""
    script = f"""
        import torch
        from amp_checks import cli
        from amp_checks.suite import edits
        module = "torch.amp.autocast_mode"
        edit = next(each for each in edits.edits(edits.source_of(module)) if each.before == {slip!r})
        with edits.in_place(module, edit):
            code = cli.entry("run --family ops --backend cpu-float16 -n 0 -k".split() + ["nested or nesting"])
        raise SystemExit(code)
        """
    path = tmp_path / "torch_that_forgets.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert SLIPS[slip] in done.stdout
