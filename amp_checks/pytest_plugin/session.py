"""The state of one pytest run: what came of it, and its end.

Under xdist each worker has a session that collects and runs, and the controller one that gathers, judges the gate's
own conditions and writes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import pytest

from amp_checks.core import RAN, Outcome, Result, Status, SuiteError, UsageError
from amp_checks.families import FAMILIES
from amp_checks.pytest_plugin import devices
from amp_checks.pytest_plugin.reports import Reports
from amp_checks.pytest_plugin.selection import Selection, backend_of, on_cuda
from amp_checks.pytest_plugin.time_limit import TimeLimit
from amp_checks.report import github, rerun, terminal
from amp_checks.report.document import Document, Place
from amp_checks.report.stream import unfinished
from amp_checks.report.summary import BAD
from amp_checks.report.values import encode, result_from_json, result_to_json
from amp_checks.suite.collect import NO_FAMILY

_NORMAL = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""Exit statuses of a pytest that came to its end."""


class Session:
    """One run."""

    def __init__(self, config: pytest.Config, *, asked: bool) -> None:
        self.config = config
        self.asked = asked
        self.selection = Selection(config)
        self.results: dict[str, Result] = {}
        self.collected: set[str] = set()
        self.expected: set[str] = set()
        self.families: dict[str, str] = {}  # item that began -> its family
        self.failed_tests: set[str] = set()
        self.failed_collections: set[str] = set()
        self.lost_workers = 0
        self.tests: dict[str, Place] = {}
        self.curves: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.document: Document | None = None  # once the run is over
        self.aborted = False
        self._on_sigterm = False
        option, worker = config.option, self.selection.is_worker
        self.reports = Reports(
            start=config.invocation_params.dir,
            json=None if worker else option.amp_json,
            folder=None if worker else option.amp_report_dir,
            step_summary=os.environ.get("GITHUB_STEP_SUMMARY") if asked and not worker else None,
        )
        limit: float = 0.0 if option.usepdb or self.selection.is_controller else option.amp_time_limit
        self.time_limit = TimeLimit(limit, expired=self._expired)

    # -- the start -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Refuse to start where the run cannot give a verdict, and make ready for an end that is no good one."""
        if self.selection.is_worker:
            return
        try:
            if not self.config.option.collectonly:
                self.reports.claim()
            self.selection.check()
            self.errors += self.selection.planted
        except UsageError as error:
            self._abort(str(error), Outcome.UNMET)
        except SuiteError as error:
            self._abort(str(error), Outcome.BROKEN)
        if self.config.option.collectonly:
            return
        with self._noting_errors():
            self.reports.stream.begin(environment=self.selection.environment, selection=self.selection.as_values())
        # Whoever cancels a job sends SIGTERM; unhandled, it would take the report along.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._on_sigterm = True

    def _abort(self, message: str, outcome: Outcome) -> None:
        self.aborted = True
        self.reports.stream.drop()
        self.reports.stream.release()
        sys.stderr.write(f"amp-checks: error: {message}\n")
        if outcome is Outcome.UNMET:
            raise pytest.UsageError  # pytest prints its arguments; it has none, our line stands alone
        pytest.exit("see the line above", returncode=outcome)

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the report is being written
        raise KeyboardInterrupt("terminated (SIGTERM)")

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """What cannot be written is reported at the end; the items go on."""
        try:
            yield
        except SuiteError as error:
            self.errors.append(str(error))

    def header(self) -> list[str]:
        """Lines on what will run, and where."""
        return [] if self.selection.is_worker else self.selection.header()

    def workers(self) -> int | None:
        """How many workers ``-n auto`` means: one for each GPU where GPUs are used, else None: as xdist says."""
        if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not self.selection.on_gpu:
            return None
        return max(1, len(devices.visible()))

    def assign_devices(self, specs: list[Any]) -> None:
        """One GPU for each worker."""
        if self.selection.on_gpu:
            devices.assign(specs, devices.visible())

    # -- what came of it -----------------------------------------------------------------------------------------------

    def expect(self, names: Iterable[str]) -> None:
        """Take in the items that were chosen to run: each must leave a result."""
        self.expected.update(names)

    def add(self, report: pytest.TestReport, *, item: str | None) -> None:
        """Take in the report on one phase of a test.

        Args:
            report: with what `amp_checks.plugin` put into it.
            item: the id of the suite's item that it is on; None for another project's test.
        """
        bad = False
        if item is not None and hasattr(report, "amp_family"):
            self.families[item] = report.amp_family
            with self._noting_errors():
                self.reports.stream.note_begun(item, family=report.amp_family, backend=backend_of(item))
        for entry in getattr(report, "amp_results", []):
            result = self.results[entry["id"]] = result_from_json(entry)
            bad = bad or result.status in BAD
            if item is None:
                file, line, _ = report.location
                place = Place(node=report.nodeid, file=file, line=None if line is None else line + 1)
                self.tests[result.id] = place
            with self._noting_errors():
                self.reports.stream.write(entry)
        self.curves += getattr(report, "amp_curves", [])
        if report.failed and not bad:
            self.failed_tests.add(report.nodeid)

    def _unfinished(self, item: str, why: str) -> Result:
        return unfinished(item, why, family=self.families.get(item, NO_FAMILY), backend=backend_of(item))

    def blame(self, item: str, report: pytest.TestReport) -> None:
        """Put the result of an item whose worker died into its report: it measured nothing, and passes for nothing."""
        died = self._unfinished(
            item,
            "the worker process died while this item ran (abort, device-side assert, out of memory, kill, time limit: "
            "its last words are on standard error)",
        )
        again = rerun.of_item(item, died.backend, plant=self.config.option.amp_plant)
        report.longrepr = f"{died.describe()}\nrun it again: {again}"
        report.amp_results = [result_to_json(died)]  # type: ignore[attr-defined]

    def add_worker(self, output: dict[str, Any]) -> None:
        """Take in what a worker said when it ended."""
        self.collected.update(output["collected"])
        self.tables += [table for table in output["tables"] if table not in self.tables]

    def _tables(self) -> list[dict[str, Any]]:
        """What the families that ran cover; the controller of workers, which loads no family, has it from them."""
        if self.selection.is_controller or not self.asked:
            return self.tables
        ran = {result.family for result in self.results.values()}
        found = []
        for name in (name for name in FAMILIES if name in ran):
            with contextlib.suppress(Exception):  # a family that cannot be listed is an item, and an error
                found += [table() for table in FAMILIES[name].tables]
        return found

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, session: pytest.Session) -> None:
        """Judge the run as a whole, set the exit status, write the results."""
        self.time_limit.close()
        if self.selection.is_worker:
            output = {"collected": sorted(self.collected), "tables": encode(self._tables())}
            self.config.workeroutput["amp_checks"] = output  # type: ignore[attr-defined]
            return
        if self.aborted or self.config.option.collectonly:
            return
        status = int(session.exitstatus)
        ended, reason = self._how_it_ended(status, stopped=bool(session.shouldfail))
        if reason is not None:
            self.errors.append(reason)
        elif ended is Outcome.OK:
            self.errors += self._unmet()
        outcome = self._conclude(ended).verdict.outcome
        # A run that nobody asked to check AMP keeps pytest's own status, unless an item in it came to something worse.
        worse = outcome in (Outcome.WRONG, Outcome.BROKEN) or (self.errors and status == pytest.ExitCode.OK)
        if self.asked or (worse and status in _NORMAL):
            session.exitstatus = int(outcome)
        self.reports.stream.release()
        if self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _conclude(self, ended: Outcome) -> Document:
        """Write the reports; what is in them decides the exit status."""
        curves = sorted(self.curves, key=lambda curve: (curve["item"], curve["title"]))
        document = Document(
            results=list(self.results.values()),
            environment=self.selection.environment if self.asked else {},
            selection=self.selection.as_values(),
            ended=ended,
            errors=self.errors,
            failed_tests=sorted(self.failed_tests),
            tests=self.tests,
            curves=curves,
            tables=self._tables(),
        )
        self.document = self.reports.write(document)
        return self.document

    def _how_it_ended(self, status: int, *, stopped: bool) -> tuple[Outcome, str | None]:
        """How the run itself ended, whatever its items say, and what there is to say of it.

        Args:
            status: the exit status as pytest has it.
            stopped: whether the run ended early because enough had failed (-x, --maxfail).
        """
        missing = sorted(self.expected - self.results.keys())
        if status == pytest.ExitCode.INTERRUPTED and self.failed_collections and not self.results:
            return Outcome.UNFINISHED, f"{len(self.failed_collections)} errors during collection: nothing ran"
        self.failed_tests |= self.failed_collections
        if status == pytest.ExitCode.INTERRUPTED:
            done = f"{len(self.expected) - len(missing)} of {len(self.expected)}"
            return Outcome.UNFINISHED, f"interrupted: {done} items finished; the rest is not counted"
        if status == pytest.ExitCode.USAGE_ERROR:
            return Outcome.UNMET, "nothing ran: pytest refuses an argument, as its line ERROR says"
        if self.lost_workers:
            died = f"{self.lost_workers} worker processes died; what they ran last is not counted as passed"
            return Outcome.BROKEN, died
        if status not in _NORMAL:
            return Outcome.BROKEN, f"pytest ended with exit status {status} before the run was over"
        if missing and stopped:
            return Outcome.UNFINISHED, None
        if missing:
            return Outcome.BROKEN, f"{len(missing)} items left no result, the first: {missing[0]}"
        explained = self.failed_tests or any(result.status in BAD for result in self.results.values())
        if status == pytest.ExitCode.TESTS_FAILED and self.asked and not explained:
            return Outcome.BROKEN, "pytest counts a failure that no report is about"
        return Outcome.OK, None

    def _expired(self, item: str) -> None:
        """End the process, for an item that ran over its time limit: a worker is replaced, a run alone is concluded."""
        message = f"{item} did not end within {self.time_limit.seconds:g} s (--time-limit)"
        self.time_limit.say(f"amp-checks: error: {message}")
        if self.selection.is_worker:
            os._exit(70)
        why = f"the item did not end within {self.time_limit.seconds:g} s; the run ended with it"
        self.results[item] = self._unfinished(item, why)
        self.errors.append(message)
        outcome = Outcome.BROKEN
        try:
            outcome = self._conclude(outcome).verdict.outcome
        finally:
            with contextlib.suppress(OSError, ValueError):
                self.config.get_terminal_writer().flush()
            os._exit(outcome)

    def _unmet(self) -> list[str]:
        """The conditions that make a green run mean something."""
        results = list(self.results.values())
        ran = [result for result in results if result.status in (*RAN, Status.ERROR)]
        unmet = []
        if self.asked and not ran:
            if not self.collected:
                why = "no item of amp_checks was collected, or no test called the item it was given"
            elif not results:
                why = f"all {len(self.collected)} items were deselected"
            else:
                why = "; ".join(sorted({f"{result.backend}: {result.message}" for result in results}))
            unmet.append(f"nothing ran: {why}")
        undeclared = [Status.NOT_EMULATED, *([Status.UNAVAILABLE] if self.selection.require_cuda else [])]
        for status in undeclared:
            if skipped := [result for result in results if result.status is status]:
                unmet.append(
                    f"{len(skipped)} items were skipped without a declared reason, the first: {skipped[0].message}"
                )
        if self.selection.require_cuda and not any(on_cuda(result.backend) for result in ran):
            unmet.append("CUDA is required (--require-cuda), but no CUDA item ran")
        return unmet

    def write_summary(self, reporter: pytest.TerminalReporter) -> None:
        """Print the verdict, and what kept the run from one."""
        if self.document is None:
            return
        results = self.document.results
        if results:
            reporter.write_sep("=", "amp_checks")
            for line in terminal.lines(self.document):
                reporter.write_line(line)
        if self.selection.require_cuda:
            cuda = [name for name in self.collected if on_cuda(backend_of(name))]
            ran = [result for result in results if result.status in RAN and on_cuda(result.backend)]
            reporter.write_line(f"ran {len(ran)} of {len(cuda)} CUDA items")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github.annotate(self.document):
                reporter.write_line(line)
        for note in [*self.selection.left_out(), *self.reports.notes]:
            reporter.write_line(f"amp-checks: note: {note}")
        for error in self.document.errors:
            reporter.write_line(f"amp-checks: error: {error}", red=True)
