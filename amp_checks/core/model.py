"""The words of the suite: backends, cases, checks, findings, results.

A *check* is a generator function ``check_<property>(case, backend)`` that measures and yields a `Finding` for each
thing it measured. It never judges, skips, marks or logs; `amp_checks.suite.measure` judges, and `Finding.passed` is its
rule: ``ratio < threshold``, so NaN fails.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from amp_checks.torch_api.backend import Backend

Value = str | int | float | bool | None
"""What a finding may hold as its actual and expected value: JSON scalars, dtypes as names such as ``float16``."""


DEVICE_TYPES = ("cuda", "cpu", "xpu", "mps", "mtia", "maia")
"""Device types whose autocast rules every torch build registers, whatever hardware it was built for."""

LOW_DTYPES = ("float16", "bfloat16")
"""Names of the dtypes of an autocast region."""


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
