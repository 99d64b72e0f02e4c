"""The rule of judgement: what passes, what fails, what is an error, and that nothing else decides."""

from __future__ import annotations

import dataclasses
import gc
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stubs import StubCase

from amp_checks import core
from amp_checks.core import Finding, NotEmulated, Raised, Status, attempt, bounded, exact
from amp_checks.suite import measure
from amp_checks.suite.item import run
from amp_checks.torch_api.backend import Backend

CASE = StubCase(id="stub")
BACKEND = Backend(id="cpu-bfloat16", device_type="cpu", dtype="bfloat16")


def judged(body: Callable[[], Iterator[Any]], backend: Backend = BACKEND) -> core.Result:
    def check_stub(case: StubCase, backend: Backend) -> Iterator[Finding]:
        yield from body()

    return measure.measure(check_stub, CASE, backend)


def of_ratio(ratio: float, threshold: float = 1.0) -> Finding:
    return bounded("size", ratio=ratio, threshold=threshold, why="made for this test")


@pytest.mark.parametrize(
    ("ratio", "passes"),
    [(0.0, True), (0.999, True), (1.0, False), (math.inf, False), (math.nan, False), (-math.inf, True)],
)
def test_a_finding_passes_only_below_its_threshold(ratio: float, passes: bool) -> None:
    assert of_ratio(ratio).passed is passes


def test_a_nan_threshold_passes_nothing() -> None:
    assert not of_ratio(0.0, threshold=math.nan).passed


def test_exact_tells_equal_values_of_different_types_apart() -> None:
    assert exact("flag", actual=True, expected=True, why="").passed
    assert not exact("flag", actual=1, expected=True, why="").passed
    assert not exact("flag", actual=1.0, expected=1, why="").passed
    assert not exact("value", actual=math.nan, expected=math.nan, why="").passed


def test_all_findings_below_their_thresholds_pass() -> None:
    result = judged(lambda: iter([of_ratio(0.1), of_ratio(0.2)]))
    assert result.status is Status.PASSED
    assert len(result.findings) == 2


def test_every_finding_is_kept_and_every_failed_one_is_told() -> None:
    findings = [
        exact("first", actual=1, expected=2, why="a"),
        of_ratio(0.5),
        exact("third", actual=3, expected=4, why="b"),
    ]
    result = judged(lambda: iter(findings))
    assert result.status is Status.FAILED
    assert result.findings == tuple(findings)
    assert "first = 1, but should be 2" in result.describe()
    assert "third = 3, but should be 4" in result.describe()


def test_a_check_that_yields_nothing_is_an_error() -> None:
    result = judged(lambda: iter(()))
    assert result.status is Status.ERROR
    assert "measured nothing" in result.message


def test_a_check_that_yields_something_else_is_an_error() -> None:
    result = judged(lambda: iter([True]))
    assert result.status is Status.ERROR
    assert "yielded bool" in result.message


def test_an_exception_of_the_code_under_test_is_a_failed_finding() -> None:
    def fail() -> None:
        raise RuntimeError("mat1 and mat2 must have the same dtype\nC++ stack follows")

    def body() -> Iterator[Finding]:
        yield of_ratio(0.0)
        attempt("forward", fail)

    result = judged(body)
    assert result.status is Status.FAILED
    assert result.failures[0].actual == "RuntimeError: mat1 and mat2 must have the same dtype"
    assert result.failures[0].subject == "forward"


def test_an_exception_of_the_check_is_an_error_with_its_place() -> None:
    def body() -> Iterator[Finding]:
        yield of_ratio(0.0)
        raise KeyError("missing row")

    result = judged(body)
    assert result.status is Status.ERROR
    assert "the check itself raised KeyError" in result.message
    assert "test_measure.py" in result.message
    assert "Traceback" in result.detail


def test_a_check_may_expect_an_exception_of_the_code_under_test() -> None:
    def fail() -> None:
        raise ValueError("no")

    def body() -> Iterator[Finding]:
        try:
            attempt("call", fail)
        except Raised as raised:
            yield exact("call raises", actual=type(raised.error).__name__, expected="ValueError", why="documented")

    assert judged(body).status is Status.PASSED


def test_what_the_emulation_lacks_is_neither_a_pass_nor_a_failure() -> None:
    def lack() -> None:
        raise NotEmulated("torch.cuda.Stream", "use no stream")

    def body() -> Iterator[Finding]:
        yield of_ratio(0.0)
        attempt("call", lack)

    result = judged(body)
    assert result.status is Status.NOT_EMULATED
    assert "torch.cuda.Stream" in result.message
    assert "the emulation lacks it, not AMP" in result.message


def _device_runs_out() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")


def _cpu_runs_out() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def _python_runs_out() -> None:
    raise MemoryError("no more")


@pytest.mark.parametrize("body", [_device_runs_out, _cpu_runs_out, _python_runs_out])
def test_want_of_memory_is_an_error_even_where_an_exception_is_expected(body: Callable[[], None]) -> None:
    def check() -> Iterator[Finding]:
        yield of_ratio(0.5)
        with pytest.raises(Raised):
            attempt("forward", body)
        yield of_ratio(0.5)

    result = judged(check)
    assert result.status is Status.ERROR
    assert result.message.startswith("out of memory, so nothing can be said: ")
    assert "\n" not in result.message
    assert body.__name__ in result.detail


def test_what_an_item_held_when_memory_ran_out_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(all(one() is None for one in held)))

    def check() -> Iterator[Finding]:
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        yield of_ratio(0.5)
        attempt("forward", _device_runs_out)

    gc.disable()  # a collection by chance would give it back as well
    try:
        judged(check)
    finally:
        gc.enable()
    assert emptied == [True]


def test_interruption_is_no_verdict() -> None:
    def body() -> Iterator[Finding]:
        yield of_ratio(0.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(body)


def leave_grad_off() -> None:
    torch.set_grad_enabled(False)


def leave_region_open() -> None:
    torch.autocast("cpu", dtype=torch.float16).__enter__()


def draw() -> None:
    torch.randn(1)


LEFTOVERS: dict[str, Callable[[], object]] = {
    "grad mode": leave_grad_off,
    "autocast enabled for cpu": leave_region_open,
    "CPU random state": draw,
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "autocast dtype for cuda": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "autocast cache enabled": lambda: torch.set_autocast_cache_enabled(False),
    "autocast nesting depth": torch.autocast_increment_nesting,
    "anomaly detection": lambda: torch.set_anomaly_enabled(True),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "cuDNN benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "number of threads": lambda: torch.set_num_threads(2),
}


@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_check_that_leaves_global_state_changed_is_an_error_and_the_state_comes_back(name: str) -> None:
    from amp_checks.torch_api import state

    before = state.capture()

    def body() -> Iterator[Finding]:
        LEFTOVERS[name]()
        yield of_ratio(0.0)

    result = judged(body)
    assert result.status is Status.ERROR
    assert name in result.message
    assert state.restore(before) == []


def test_state_left_behind_by_code_under_test_that_raised_is_told_and_restored() -> None:
    def fail() -> None:
        torch.set_grad_enabled(False)
        raise RuntimeError("half way")

    def body() -> Iterator[Finding]:
        attempt("call", fail)
        yield of_ratio(0.0)

    result = judged(body)
    assert result.status is Status.FAILED
    assert "grad mode" in result.describe()
    assert torch.is_grad_enabled()


def test_a_check_runs_on_one_thread_and_the_callers_number_comes_back() -> None:
    before = torch.get_num_threads()

    def body() -> Iterator[Finding]:
        yield exact("threads", actual=torch.get_num_threads(), expected=1, why="bits depend on it")

    torch.set_num_threads(2)
    try:
        assert judged(body).status is Status.PASSED
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_strict_warning_filters_of_a_caller_change_no_verdict() -> None:
    def body() -> Iterator[Finding]:
        warnings.warn("from torch", UserWarning, stacklevel=1)
        yield of_ratio(0.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judged(body).status is Status.PASSED


def test_a_check_of_warnings_sees_no_file_that_memory_gave_up_meanwhile(tmp_path: Path) -> None:
    with core.recorded_warnings() as caught:
        warnings.warn("of the code under test", DeprecationWarning, stacklevel=1)
        _leave_a_file_open(tmp_path / "left")
        gc.collect()
    assert [str(entry.message) for entry in caught] == ["of the code under test"]


def _leave_a_file_open(path: Path) -> None:
    """Leave a cycle that holds an open file, so that collecting it warns."""
    held: list[object] = [path.open("w", encoding="utf-8")]
    held.append(held)


def test_results_go_to_the_innermost_recording_and_nowhere_else() -> None:

    def check_stub(case: StubCase, backend: Backend) -> Iterator[Finding]:
        yield of_ratio(0.0)

    with measure.recording() as outer:
        with measure.recording() as inner:
            first = run(check_stub, CASE, BACKEND)
        second = run(check_stub, CASE, BACKEND)
    assert inner == [first]
    assert outer == [second]


def test_a_backend_takes_other_peoples_autocast_and_scaler() -> None:
    from contextlib import nullcontext

    entered: list[tuple[str, Any]] = []

    def autocast(device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> Any:
        entered.append((device_type, dtype))
        return nullcontext()

    def grad_scaler(device: str, /, **settings: Any) -> Any:
        return device, settings

    backend = dataclasses.replace(BACKEND, autocast=autocast, grad_scaler=grad_scaler)
    with backend.region():
        pass
    assert entered == [("cpu", torch.bfloat16)]
    assert backend.scaler(init_scale=4.0) == ("cpu", {"init_scale": 4.0})


def test_torchs_own_autocast_and_scaler_are_the_default() -> None:
    with BACKEND.region():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert isinstance(BACKEND.scaler(), torch.amp.GradScaler)
