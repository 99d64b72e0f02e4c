"""The suite's items as pytest collects and runs them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.core import RAISED, RAN, Outcome, Result, SuiteError
from amp_checks.pytest_plugin import devices
from amp_checks.pytest_plugin.selection import on_cuda
from amp_checks.pytest_plugin.session import Session
from amp_checks.report import rerun
from amp_checks.report.values import encode
from amp_checks.suite.family import FAMILIES
from amp_checks.suite.item import CheckBroken, CheckFailed, Item, markers


class SuiteFile(pytest.File):
    """Collects the suite's items, whatever the ini of the repository says about files and functions."""

    def __init__(self, *, state: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.state = state

    def collect(self) -> Iterator[pytest.Item]:
        for item in self.state.selection.items():
            self.state.collected.add(item.id)
            yield SuiteItem.from_parent(self, name=item.id, item=item, state=self.state)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        if isinstance(excinfo.value, SuiteError):
            return f"amp-checks: error: {excinfo.value}"
        return super().repr_failure(excinfo)


class SuiteItem(pytest.Item):
    """One item of the suite as a pytest item."""

    def __init__(self, *, item: Item, state: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.item = item
        self.state = state
        for name in markers(item):
            self.add_marker(name)

    def runtest(self) -> None:
        try:
            if on_cuda(self.item.backend.id) and backends.why_unavailable(self.item.backend.id) is None:
                devices.bound_memory()
            with self.state.time_limit.watching(self.item.id):
                self.item()
        finally:
            if on_cuda(self.item.backend.id) and (reason := devices.poisoned()) is not None:
                self._leave(reason)

    def curves(self, results: Iterable[Result]) -> list[dict[str, Any]]:
        """Curves of what the check ran, where a report will draw them; none of a run that raised half way."""
        option = self.config.option
        if not (option.amp_json or option.amp_report_dir):
            return []
        if not all(one.status in RAN and all(f.why != RAISED for f in one.findings) for one in results):
            return []
        source = FAMILIES[self.item.case.family].curves.get(self.item.check.__name__)
        drawn = [] if source is None else source(self.item.case, self.item.backend)
        return [encode({"item": self.item.id, **curve}) for curve in drawn]

    def _leave(self, reason: str) -> None:
        """End a worker whose CUDA context is beyond use while its culprit still runs, so that xdist blames no other."""
        message = f"{self.item.id} left the CUDA context unusable: {reason}"
        if hasattr(self.config, "workerinput"):
            if (capture := self.config.pluginmanager.getplugin("capturemanager")) is not None:
                capture.suspend_global_capture(in_=True)
            os.write(2, f"amp-checks: error: {message}\n".encode())
            os._exit(70)
        pytest.exit(f"amp-checks: error: {message}", returncode=Outcome.BROKEN)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        if isinstance(excinfo.value, CheckFailed | CheckBroken):
            plant = None if self.item.mutant is None else self.item.mutant.id
            again = rerun.of_item(self.item.id, self.item.backend.id, plant=plant)
            return f"{excinfo.value}\nrun it again: {again}"
        if isinstance(excinfo.value, pytest.xfail.Exception):
            return str(excinfo.value)  # pytest would parse the source of every frame, for a traceback nobody is shown
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
