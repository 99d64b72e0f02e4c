"""The state of one pytest run: what was asked, what was collected, what came of it, and the exit status.

Under xdist each worker has a session that collects and runs, and the controller one that gathers, judges the gate's
own conditions and writes. The controller imports no torch: it asks another process about the environment.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from amp_checks import backends, devices, environment, suite
from amp_checks.core import Backend, Result, Status, SuiteError, UsageError
from amp_checks.report import FORMATS, github, json_format, summary, terminal
from amp_checks.report.stream import Stream

OUR_ERRORS = {"wrong": 1, "broken": 3, "gate": 4}


class Session:
    """One run."""

    def __init__(self, config: pytest.Config, *, asked: bool) -> None:
        self.config = config
        self.asked = asked
        self.require_cuda: bool = config.option.amp_require_cuda
        self.results: dict[str, Result] = {}
        self.collected: set[str] = set()
        self.others_failed = False
        self.aborted = False
        self.errors: list[str] = []
        self.notes: list[str] = []
        folder: str | None = config.option.amp_report_dir
        self.stream = Stream(config.invocation_params.dir / folder if folder and not self.is_worker else None)

    # -- what was asked ------------------------------------------------------------------------------------------------

    @property
    def is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    @property
    def is_controller(self) -> bool:
        return not self.is_worker and bool(getattr(self.config.option, "numprocesses", None))

    @functools.cached_property
    def environment(self) -> environment.Environment:
        return environment.describe_elsewhere() if self.is_controller else environment.describe()

    @functools.cached_property
    def backends(self) -> tuple[Backend, ...]:
        option = self.config.option
        asked = option.amp_backend or [_backend_of(name) for name in option.amp_item]
        if not asked and self.is_controller:
            usable = self.environment["backends"]["cuda-float16"] is None
            asked = [f"cuda-{dtype}" for dtype in backends.DTYPES] if usable else []
        return backends.resolve(asked, require_cuda=self.require_cuda)

    @property
    def families(self) -> Sequence[str]:
        asked: list[str] = self.config.option.amp_family
        if unknown := next((name for name in asked if name not in suite.FAMILIES), None):
            raise UsageError(f"unknown family {unknown!r}; there are {', '.join(suite.FAMILIES)}")
        return [name for name in suite.FAMILIES if name in asked] or list(suite.FAMILIES)

    def items(self) -> list[suite.Item]:
        """The items of this run, in order.

        Raises:
            UsageError: a backend, family or item is unknown.
        """
        option = self.config.option
        full = option.amp_full or bool(option.amp_item)
        found = suite.collect_or_explain(backends=self.backends, families=self.families, full=full)
        if not option.amp_item:
            return found
        known = {item.id: item for item in found}
        for name in option.amp_item:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; the nearest is {near[0]!r}" if near else ""
                raise UsageError(f"unknown item {name!r}{hint}; --collect-only lists them")
        return [item for item in found if item.id in option.amp_item]

    def header(self) -> list[str]:
        if self.is_worker:
            return []
        try:
            chosen = ", ".join(backend.id for backend in self.backends)
            return [*environment.lines(self.environment), f"backends: {chosen}"]
        except SuiteError:
            return []  # told by check_conditions, which follows

    def check_conditions(self) -> None:
        """Refuse to start where the run cannot give a verdict: unknown names, no CUDA for the gate, another torch."""
        if self.is_worker:
            return
        try:
            self._check_conditions()
        except UsageError as error:
            self._abort(str(error))
        except SuiteError as error:
            self._abort(str(error), status=OUR_ERRORS["broken"])

    def _check_conditions(self) -> None:
        _ = self.backends, self.families
        if self.config.option.amp_item:
            self.items()
        expected: str | None = self.config.option.amp_expect_torch
        found = self.environment["torch"]
        if expected and expected not in (found, found.partition("+")[0]):
            raise UsageError(
                f"expected torch {expected}, but torch {found} is installed in {self.environment['torch_path']}"
            )
        if self.require_cuda and not self.config.option.collectonly:
            cuda = [backend for backend in self.backends if backend.device_type == "cuda" and not backend.emulated]
            if not cuda:
                raise UsageError("CUDA is required (--require-cuda), but no cuda backend is selected")
            for backend in cuda:
                reason = self.environment["backends"][backend.id]
                if reason is not None:
                    raise UsageError(f"CUDA is required (--require-cuda), but {backend.id} cannot run: {reason}")

    # -- parallel workers ----------------------------------------------------------------------------------------------

    @property
    def on_gpu(self) -> bool:
        """Whether this run uses a CUDA device; False where that cannot be said yet (`check_conditions` will)."""
        try:
            return self.require_cuda or any(_on_cuda(backend.id) for backend in self.backends)
        except SuiteError:
            return False

    def workers(self) -> int | None:
        """How many workers ``-n auto`` means: one for each GPU where GPUs are used, else None: as xdist says."""
        if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not self.on_gpu:
            return None
        return max(1, len(devices.visible()))

    def assign_devices(self, specs: list[Any]) -> None:
        """One GPU for each worker."""
        if self.on_gpu:
            devices.assign(specs, devices.visible())

    def blame(self, item: str, report: pytest.TestReport) -> None:
        """Put the result of an item whose worker died into its report: it measured nothing, and passes for nothing."""
        try:
            backend_id = _backend_of(item)
        except UsageError:
            return
        check, _, case = item.removesuffix(f"-{backend_id}").partition("-")
        died = Result(
            check=check,
            case=case,
            family="unknown",
            backend=backend_id,
            emulated=backend_id.startswith("emulated-"),
            status=Status.ERROR,
            message="the worker process died while this item ran (abort, device-side assert, out of memory, kill)",
        )
        report.longrepr = f"{died.describe()}\nrun it again: amp-checks run --item {item}"
        report.amp_results = [json_format.result_to_json(died)]  # type: ignore[attr-defined]

    def _abort(self, message: str, *, status: int = OUR_ERRORS["gate"]) -> None:
        self.aborted = True
        sys.stderr.write(f"amp-checks: error: {message}\n")
        if status == OUR_ERRORS["gate"]:
            raise pytest.UsageError  # pytest prints its arguments; it has none, our line stands alone
        pytest.exit("see the line above", returncode=status)

    # -- what came of it -----------------------------------------------------------------------------------------------

    def add(self, report: pytest.TestReport, entries: Sequence[dict[str, Any]]) -> None:
        """Take in the report of a test, ours or another project's."""
        for entry in entries:
            result = json_format.result_from_json(entry)
            self.results[result.id] = result
            try:
                self.stream.write(entry)
            except SuiteError as error:  # told once, and again should the whole report fail; the items go on
                self.errors.append(str(error))
        if report.failed and not entries:
            self.others_failed = True

    def add_worker(self, output: dict[str, Any]) -> None:
        """Take in what a worker said when it ended."""
        self.collected.update(output["collected"])

    def finish(self, session: pytest.Session) -> None:
        """Judge the run as a whole, set the exit status, write the results."""
        if self.is_worker:
            self.config.workeroutput["amp_checks"] = {"collected": sorted(self.collected)}  # type: ignore[attr-defined]
            return
        if self.aborted or self.config.option.collectonly:
            return
        ended = int(session.exitstatus)
        complete = ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        if complete:
            self.errors += self._unmet()
        session.exitstatus = self._exit_status(ended)
        try:
            self._write(complete=complete)
        except (SuiteError, OSError) as error:
            self.errors.append(str(error))
            session.exitstatus = OUR_ERRORS["broken"]

    def _unmet(self) -> list[str]:
        """The conditions that make a green run mean something."""
        results = list(self.results.values())
        ran = [result for result in results if result.status in (*summary.RAN, Status.ERROR)]
        unmet = []
        if self.asked and not ran:
            if not self.collected:
                why = "no item of amp_checks was collected"
            elif not results:
                why = f"all {len(self.collected)} items were deselected"
            else:
                why = "; ".join(sorted({f"{result.backend}: {result.message}" for result in results}))
            unmet.append(f"nothing ran: {why}")
        lacking = [result for result in results if result.status is Status.NOT_EMULATED]
        if lacking:
            unmet.append(f"{len(lacking)} items were skipped undeclared, the first: {lacking[0].message}")
        if self.require_cuda:
            unmet += self._unmet_by_cuda(ran)
        return unmet

    def _unmet_by_cuda(self, ran: Sequence[Result]) -> list[str]:
        missing = [result for result in self.results.values() if result.status is Status.UNAVAILABLE]
        unmet = []
        if missing:
            unmet.append(f"{len(missing)} items were skipped undeclared, the first: {missing[0].message}")
        if not any(_on_cuda(result.backend) for result in ran):
            unmet.append("CUDA is required (--require-cuda), but no CUDA item ran")
        return unmet

    def _exit_status(self, ended: int) -> int:
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ended
        counts = summary.count(self.results.values())
        if counts[Status.FAILED] or self.others_failed:
            return OUR_ERRORS["wrong"]
        if counts[Status.ERROR]:
            return OUR_ERRORS["broken"]
        if self.errors:
            return OUR_ERRORS["gate"]
        return ended

    def _write(self, *, complete: bool) -> None:
        """Write what was asked for: the JSON file, the report folder, and GitHub's own places where it runs us."""
        target: str | None = self.config.option.amp_json
        folder: str | None = self.config.option.amp_report_dir
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY") if self.asked else None
        if not (target or folder or step_summary):
            return
        content = json_format.document(
            self.results.values(),
            environment=self.environment,
            selection={
                "backends": [backend.id for backend in self.backends],
                "families": list(self.families),
                "full": self.config.option.amp_full,
                "items": list(self.config.option.amp_item),
                "require_cuda": self.require_cuda,
            },
            complete=complete,
        )
        start = self.config.invocation_params.dir
        if target == "-":
            sys.stdout.write(json_format.dumps(content))
        elif target:
            json_format.write(start / target, content)
        if folder:
            for kind in FORMATS.values():
                if (why := kind.lacks()) is None:
                    json_format.write_text(start / folder / kind.file, kind.render(content))
                else:
                    self.notes.append(f"not written: {why}")
            self.stream.drop()
        if step_summary:
            with Path(step_summary).open("a", encoding="utf-8") as file:
                file.write(FORMATS["markdown"].render(content))

    def write_summary(self, reporter: pytest.TerminalReporter) -> None:
        """Print the verdict, and what kept the run from one."""
        if self.aborted or self.is_worker or self.config.option.collectonly:
            return
        results = list(self.results.values())
        if results:
            reporter.write_sep("=", "amp_checks")
            for line in terminal.lines(results, limits=_limits()):
                reporter.write_line(line)
        if self.require_cuda:
            cuda = [name for name in self.collected if _on_cuda(_backend_of(name))]
            ran = [result for result in results if result.status in summary.RAN and _on_cuda(result.backend)]
            reporter.write_line(f"ran {len(ran)} of {len(cuda)} CUDA items")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github.annotate(results):
                reporter.write_line(line)
        for note in self.notes:
            reporter.write_line(f"amp-checks: note: {note}")
        for error in self.errors:
            reporter.write_line(f"amp-checks: error: {error}", red=True)


def _limits() -> tuple[str, ...]:
    from amp_checks.limits import EMULATION

    return EMULATION


def _on_cuda(backend_id: str) -> bool:
    return backend_id.startswith("cuda-")


def _backend_of(name: str) -> str:
    """The backend that an item's id ends with; the longest, for ``cuda-float16`` ends ``emulated-cuda-float16`` too."""
    found = [backend_id for backend_id in backends.IDS if name.endswith(f"-{backend_id}")]
    if not found:
        raise UsageError(f"unknown item {name!r}: an id ends with a backend ({', '.join(backends.IDS)})")
    return max(found, key=len)


class SuiteFile(pytest.File):
    """Collects the suite's items, whatever the ini of the repository says about files and functions."""

    def __init__(self, *, state: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.state = state

    def collect(self) -> Iterator[pytest.Item]:
        for item in self.state.items():
            self.state.collected.add(item.id)
            yield SuiteItem.from_parent(self, name=item.id, item=item)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        if isinstance(excinfo.value, SuiteError):
            return f"amp-checks: error: {excinfo.value}"
        return super().repr_failure(excinfo)


class SuiteItem(pytest.Item):
    """One item of the suite as a pytest item."""

    def __init__(self, *, item: suite.Item, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.item = item
        for name in suite.markers(item):
            self.add_marker(name)

    def runtest(self) -> None:
        try:
            self.item()
        finally:
            if _on_cuda(self.item.backend.id) and (reason := devices.poisoned()) is not None:
                self._leave(reason)

    def _leave(self, reason: str) -> None:
        """End a worker whose CUDA context is beyond use while its culprit still runs, so that xdist blames no other."""
        message = f"{self.item.id} left the CUDA context unusable: {reason}"
        if hasattr(self.config, "workerinput"):
            if (capture := self.config.pluginmanager.getplugin("capturemanager")) is not None:
                capture.suspend_global_capture(in_=True)
            os.write(2, f"amp-checks: error: {message}\n".encode())
            os._exit(70)
        pytest.exit(f"amp-checks: error: {message}", returncode=OUR_ERRORS["broken"])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        if isinstance(excinfo.value, suite.CheckFailed | suite.CheckBroken):
            return f"{excinfo.value}\nrun it again: amp-checks run --item {self.item.id}"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
