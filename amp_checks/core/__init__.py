"""The words of the suite, and its one rule of judgement.

A *check* is a generator function ``check_<property>(case, backend)`` that measures and yields a `Finding` for each
thing it measured. It never judges, skips, marks or logs. `measure` is the only judge:

* a finding passes when ``ratio < threshold`` (so NaN fails);
* a check passes when it yielded at least one finding and all of them pass;
* an exception from the code under test (told apart by `attempt`, and only there) is a failed finding; any other
  exception is an error of the suite;
* a check that yields nothing, or leaves global state changed, is an error of the suite.

This module imports no torch: the plugin reads it in every pytest run of every project of an environment.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
T = TypeVar("T")

Value = str | int | float | bool | None
"""What a finding may hold as its actual and expected value: JSON scalars, dtypes as names such as ``float16``."""


class CastPolicy(enum.StrEnum):
    """What an autocast rule does with an op. Names are those of ``at::autocast::CastPolicy``, and two of our own.

    ``banned`` ops raise inside a region; ``unlisted`` ops have no rule and run in the dtype of their inputs.
    """

    LOWER_PRECISION_FP = "lower_precision_fp"
    FP32 = "fp32"
    FP32_SET_OPT_DTYPE = "fp32_set_opt_dtype"
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    PROMOTE = "promote"
    BANNED = "banned"
    UNLISTED = "unlisted"


class NotEmulated(RuntimeError):
    """The emulation, not AMP, lacks an operation: neither a pass nor a failed check.

    ``op`` is the operation as its user wrote it or as the dispatcher names it; ``reason`` ends with what to change.
    """

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} cannot be emulated (the emulation lacks it, not AMP): {reason}")
        self.op = op
        self.reason = reason


class SuiteError(Exception):
    """The suite cannot do what was asked: bad table, bad fixture, unknown id. One message, no traceback."""


class UsageError(SuiteError):
    """What the user asked for does not exist or cannot be had (exit status 4)."""


RAISED = "the code under test raised"
"""The ``why`` of a finding that stands for an exception."""


class Raised(Exception):
    """The code under test raised. A check catches it where an exception is what it expects."""

    def __init__(self, subject: str, error: BaseException) -> None:
        super().__init__(f"{subject}: {type(error).__name__}: {error}")
        self.subject = subject
        self.error = error

    def finding(self) -> Finding:
        """The failed finding that stands for an exception which the check did not expect."""
        return Finding(
            subject=self.subject,
            actual=f"{type(self.error).__name__}: {first_line(self.error)}",
            expected="no exception",
            ratio=math.inf,
            threshold=1.0,
            why=RAISED,
        )


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text: torch appends C++ stack traces and hints after it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def attempt(subject: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: D417
    """Run code under test, and nothing else, through here.

    Args:
        subject: what is being run, as a finding will name it (``"forward"``, ``"scaler.step"``).
        function: the code under test; called with the rest of the arguments.

    Raises:
        Raised: the code under test raised; ``error`` holds its exception.
        NotEmulated: passed on as it is: the emulation's lack is no fault of the code under test.
        MemoryError, torch.OutOfMemoryError, ...: passed on: want of memory says nothing of the code under test.
    """
    try:
        return function(*args, **kwargs)
    except (NotEmulated, Raised):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise Raised(subject, error) from error


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Every warning told inside, save of files left open: those come when memory is reclaimed, by whoever runs then."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        yield caught


def out_of_memory(error: BaseException | None) -> bool:
    """Whether the error says that memory ran out: the device's, the CPU allocator's (a bare RuntimeError), Python's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measurement.

    Attributes:
        subject: what was measured: ``"output[0].dtype"``, ``"scale after step 3"``.
        actual, expected: the values, for a reader.
        ratio: the measurement in the unit of its threshold; exact properties give 0.0 or infinity.
        threshold: passes when ``ratio < threshold``.
        why: the source of the expectation: the policy row, the documentation, the formula and its unit.
    """

    subject: str
    actual: Value
    expected: Value
    ratio: float
    threshold: float
    why: str

    @property
    def passed(self) -> bool:
        return self.ratio < self.threshold

    def describe(self) -> str:
        """One line for a person: ``output.dtype = float16, but should be float32``."""
        if self.passed:
            return f"{self.subject} = {_show(self.actual)} (expected {_show(self.expected)})"
        size = "" if math.isinf(self.ratio) else f" [ratio {self.ratio:.4g}, threshold {self.threshold:.4g}]"
        return f"{self.subject} = {_show(self.actual)}, but should be {_show(self.expected)}{size}; {self.why}"


def _show(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def exact(subject: str, *, actual: Value, expected: Value, why: str) -> Finding:
    """A finding on a property that holds or does not: ratio 0.0 when equal, infinity when not (NaN equals nothing)."""
    same = actual == expected and type(actual) is type(expected)
    return Finding(
        subject=subject, actual=actual, expected=expected, ratio=0.0 if same else math.inf, threshold=1.0, why=why
    )


def bounded(
    subject: str, *, ratio: float, threshold: float, why: str, actual: Value = None, expected: Value = None
) -> Finding:
    """A finding on a measured size. ``actual`` and ``expected`` default to the ratio and its bound."""
    return Finding(
        subject=subject,
        actual=ratio if actual is None else actual,
        expected=f"ratio below {threshold:g}" if expected is None else expected,
        ratio=ratio,
        threshold=threshold,
        why=why,
    )


class Autocast(Protocol):
    """Anything called like `torch.autocast` that returns a context manager."""

    def __call__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> AbstractContextManager[Any]: ...


class GradScaler(Protocol):
    """Anything called like `torch.amp.GradScaler`: ``grad_scaler(device, init_scale=..., ...)``."""

    def __call__(self, device: str, /, **settings: Any) -> Any: ...


def _torch_autocast(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(*args, **kwargs)


def _torch_grad_scaler(device: str, /, **settings: Any) -> Any:
    import torch

    return torch.amp.GradScaler(device, **settings)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The AMP under test: the one seam where devices, emulation, mutants and other people's AMP come in.

    Attributes:
        id: ``cuda-float16``, ``emulated-cuda-bfloat16``, ...
        device_type: the device whose autocast rules apply, and where tensors are asked for (``device="cuda"`` works
            under emulation too: the tensors stay on the CPU).
        dtype: name of the low dtype, ``"float16"`` or ``"bfloat16"``.
        emulated: True where the rules are the device's and the kernels are the CPU's.
        numerics: where the arithmetic comes from: ``"device"``, or of an emulation ``"native"`` (the CPU's own half
            kernels) or ``"float32"`` (float32 inside, one rounding).
        autocast: factory of regions, called like `torch.autocast`.
        grad_scaler: factory of scalers, called like `torch.amp.GradScaler`.
        activate: entered around each check; starts the emulation.
    """

    id: str
    device_type: str
    dtype: str
    emulated: bool = False
    numerics: str = "device"
    autocast: Autocast = _torch_autocast
    grad_scaler: GradScaler = _torch_grad_scaler
    activate: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def low_dtype(self) -> torch.dtype:
        """The autocast dtype of this backend's regions."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def region(self, *, enabled: bool = True, cache_enabled: bool | None = None) -> AbstractContextManager[Any]:
        """An autocast region of this backend, in its low dtype."""
        return self.autocast(self.device_type, dtype=self.low_dtype, enabled=enabled, cache_enabled=cache_enabled)

    def scaler(self, **settings: Any) -> Any:
        """A gradient scaler of this backend; ``settings`` as for `torch.amp.GradScaler`."""
        return self.grad_scaler(self.device_type, **settings)


@runtime_checkable
class Case(Protocol):
    """One row of a table: what to run, what is expected and why. Frozen; holds no test directives.

    ``full`` rows run only where ``--full`` asks for them. `runs_on` says whether the row means anything on a backend
    (an op that a device lacks); it is no place to hide a failure.
    """

    @property
    def id(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def full(self) -> bool: ...
    def runs_on(self, backend: Backend) -> bool: ...


class Check(Protocol):
    """A generator function ``check_<property>(case, backend)``; its name is its identity in ids and reports."""

    __name__: str

    def __call__(self, case: Any, backend: Backend, /) -> Iterator[Finding]: ...


class Status(enum.StrEnum):
    """The verdict on one item."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN_DEFECT = "known defect"
    ERROR = "error"
    NOT_EMULATED = "not emulated"
    UNAVAILABLE = "unavailable"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one check on one case under one backend.

    Attributes:
        check, case, family, backend: their names.
        emulated: whether the backend was emulated.
        status: the verdict.
        findings: everything that the check measured, in its order.
        message: what happened where no finding says it (errors, lacks, unavailable), or the known defect's reason.
        detail: the traceback of an error of the suite, for its authors; empty otherwise.
        seconds: wall time; never part of a verdict.
    """

    check: str
    case: str
    family: str
    backend: str
    emulated: bool
    status: Status
    findings: tuple[Finding, ...] = ()
    message: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def id(self) -> str:
        return item_id(self.check, self.case, self.backend)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def describe(self) -> str:
        """All that a person needs: the item, every failed finding, the message."""
        lines = [f"{self.id}: {self.status}"]
        lines += [f"  {finding.describe()}" for finding in self.failures]
        lines += [f"  {line}" for line in self.message.splitlines()]
        return "\n".join(lines)


def item_id(check: str, case: str, backend: str) -> str:
    """``check_output_dtype-softmax.int-emulated-cuda-float16``."""
    return f"{check}-{case}-{backend}"


_recorders: list[list[Result]] = []


@contextmanager
def recording() -> Iterator[list[Result]]:
    """Collect every result that is `record`ed inside, for a report. Nested recordings each get all results."""
    results: list[Result] = []
    recorders = _recorders
    recorders.append(results)
    try:
        yield results
    finally:
        recorders[:] = [other for other in recorders if other is not results]  # two empty lists are equal


def record(result: Result) -> Result:
    """Hand a result to whoever is `recording`; returns it."""
    for results in _recorders:
        results.append(result)
    return result


def measure(check: Check, case: Case, backend: Backend) -> Result:
    """Run one check on one case and judge it, known defects apart.

    Torch runs on one thread inside: two threads and one give different bits for ``mm`` and ``sum``.
    """
    from amp_checks import state

    findings: list[Finding] = []
    error: Exception | None = None
    began = time.perf_counter()
    # A user's strict warning filters must not change a verdict; checks that look at warnings record their own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with state.one_thread():
            before = state.capture()
            try:
                with backend.activate():
                    for finding in check(case, backend):
                        if not isinstance(finding, Finding):
                            _refuse(check, finding)
                        findings.append(finding)
            except Exception as raised:  # noqa: BLE001 - every kind becomes a verdict below
                error = raised
            changed = state.restore(before)

    status, message, detail = _judge(findings, error, changed)
    if isinstance(error, Raised):
        findings.append(error.finding())
    if error is not None and out_of_memory(error):
        state.release_memory(error)
    return Result(
        check=check.__name__,
        case=case.id,
        family=case.family,
        backend=backend.id,
        emulated=backend.emulated,
        status=status,
        findings=tuple(findings),
        message=message,
        detail=detail,
        seconds=time.perf_counter() - began,
    )


def _refuse(check: Check, what: object) -> NoReturn:
    message = f"{check.__name__} yielded {type(what).__name__}, but a check yields Finding objects only"
    raise SuiteError(message)


def _judge(findings: list[Finding], error: Exception | None, changed: list[str]) -> tuple[Status, str, str]:
    if isinstance(error, NotEmulated):
        return Status.NOT_EMULATED, str(error), ""
    if error is not None and out_of_memory(error):
        return Status.ERROR, f"out of memory, so nothing can be said: {first_line(error)}", _traceback(error)
    if changed and isinstance(error, Raised):
        # The code under test raised half way: what it left behind is its doing, and restored.
        return Status.FAILED, f"global state left behind: {'; '.join(changed)}", ""
    if isinstance(error, Raised):
        return Status.FAILED, "", ""
    if error is not None:
        return Status.ERROR, _place(error), _traceback(error)
    if changed:
        return Status.ERROR, f"the check left global state changed: {'; '.join(changed)}", ""
    if not findings:
        return Status.ERROR, "the check measured nothing: it yielded no finding", ""
    return (Status.PASSED if all(finding.passed for finding in findings) else Status.FAILED), "", ""


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" [{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}]" if frames else ""
    return f"the check itself raised {type(error).__name__}: {first_line(error)}{where}"
