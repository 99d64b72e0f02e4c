"""The one judge: runs a check on a case and turns what it measured into a verdict.

* a finding passes when ``ratio < threshold`` (so NaN fails);
* a check passes when it yielded at least one finding and all of them pass;
* an exception from the code under test (distinguished by `attempt`, and only there) is a failed finding; any other
  exception is an error of the suite;
* global state that the code under test left changed is a failed finding, and put back (`amp_checks.suite.leftovers`);
* a check that yields nothing, or itself leaves global state changed, is an error of the suite.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

from amp_checks.core import (
    Case,
    Check,
    Finding,
    NotEmulated,
    Raised,
    Result,
    Status,
    SuiteError,
    border,
    first_line,
    out_of_memory,
)
from amp_checks.torch_api.backend import Backend

_recorder: ContextVar[list[Result] | None] = ContextVar("recorder", default=None)


@contextmanager
def recording() -> Iterator[list[Result]]:
    """Collect every result that is `record`ed inside, for a report; of nested recordings, the innermost collects."""
    results: list[Result] = []
    token = _recorder.set(results)
    try:
        yield results
    finally:
        _recorder.reset(token)


def record(result: Result) -> Result:
    """Hand a result to whoever is `recording`; returns it."""
    results = _recorder.get()
    if results is not None:
        results.append(result)
    return result


def measure(check: Check, case: Case, backend: Backend) -> Result:
    """Run one check on one case and judge it, known defects apart.

    Torch runs on one thread inside: two threads and one give different bits for ``mm`` and ``sum``.
    """
    from amp_checks.suite.leftovers import Leftovers
    from amp_checks.torch_api import state

    findings: list[Finding] = []
    error: Exception | None = None
    began = time.perf_counter()
    # A user's strict warning filters must not change a verdict; checks that look at warnings record their own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with state.one_thread():
            before, left = state.capture(), Leftovers()
            try:
                with border.watched_by(left), backend.activate():
                    for finding in check(case, backend):
                        if not isinstance(finding, Finding):
                            _refuse(check, finding)
                        findings.append(finding)
            except Exception as raised:  # noqa: BLE001 - every kind becomes a verdict below
                error = raised
            changed = state.restore(before)

    findings += left.findings.values()
    status, message, detail = _judge(findings, error, changed, blamed=bool(left.findings))
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


def _judge(
    findings: list[Finding], error: Exception | None, changed: list[str], *, blamed: bool
) -> tuple[Status, str, str]:
    if error is not None and out_of_memory(error):
        return Status.ERROR, f"out of memory, so nothing can be said: {first_line(error)}", _traceback(error)
    if isinstance(error, NotEmulated) and not blamed:
        return Status.NOT_EMULATED, str(error), ""
    written = [] if error is None or isinstance(error, Raised | NotEmulated) else [_place(error)]
    written += [f"the check left global state changed: {'; '.join(changed)}"] if changed else []
    if blamed or isinstance(error, Raised):
        # A check that goes wrong where the code under test already has is no fault of the suite.
        return Status.FAILED, "\n".join(written), ""
    if written:
        return Status.ERROR, written[0], "" if error is None else _traceback(error)
    if not findings:
        return Status.ERROR, "the check measured nothing: it yielded no finding", ""
    return (Status.PASSED if all(finding.passed for finding in findings) else Status.FAILED), "", ""


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" [{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}]" if frames else ""
    return f"the check itself raised {type(error).__name__}: {first_line(error)}{where}"
