"""The state of one pytest run: what was asked, what was collected, what came of it, and the exit status.

Under xdist each worker has a session that collects and runs, and the controller one that gathers, judges the gate's
own conditions and writes. The controller imports no torch: it asks another process about the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.backends import environment
from amp_checks.core import Backend, Result, Status, SuiteError, UsageError
from amp_checks.families import FAMILIES
from amp_checks.pytest_plugin import devices
from amp_checks.pytest_plugin.time_limit import TimeLimit
from amp_checks.report import FORMATS, Format, github, json_format, rerun, summary, terminal
from amp_checks.report.rerun import Place
from amp_checks.report.stream import Stream, unfinished
from amp_checks.suite import collect
from amp_checks.suite.item import Item

OUR_ERRORS = {"wrong": 1, "broken": 3, "gate": 4}


class Session:
    """One run."""

    def __init__(self, config: pytest.Config, *, asked: bool) -> None:
        self.config = config
        self.asked = asked
        self.require_cuda: bool = config.option.amp_require_cuda
        self.results: dict[str, Result] = {}
        self.collected: dict[str, str] = {}  # item -> family
        self.expected: set[str] = set()
        self.lost_workers = 0
        self.broken_modules = 0
        self.complete = True
        self._on_sigterm = False
        self.others_failed = False
        self.aborted = False
        self.tests: dict[str, Place] = {}
        self.curves: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.notes: list[str] = []
        folder: str | None = config.option.amp_report_dir
        self.stream = Stream(config.invocation_params.dir / folder if folder and not self.is_worker else None)
        limit: float = 0.0 if config.option.usepdb or self.is_controller else config.option.amp_time_limit
        self.time_limit = TimeLimit(limit, expired=self._expired)

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
        if not asked:
            asked = backends.default_ids(require_cuda=self.require_cuda, why=self._why_unavailable)
        return backends.resolve(asked)

    def _why_unavailable(self, backend_id: str) -> str | None:
        """As `backends.why_unavailable`; the controller, which starts no CUDA, has asked another process."""
        if not self.is_controller:
            return backends.why_unavailable(backend_id)
        reason: str | None = self.environment["backends"][backend_id]
        return reason

    def _left_out(self) -> list[str]:
        """What a run on CUDA does not cover, where the device cannot run it and nobody asked for it."""
        chosen = {backend.id for backend in self.backends}
        if not any(map(on_cuda, chosen)):
            return []
        lacking = {name: self._why_unavailable(name) for name in backends.IDS if on_cuda(name) and name not in chosen}
        return [f"{name} is not run: {reason}" for name, reason in lacking.items() if reason is not None]

    @property
    def families(self) -> Sequence[str]:
        asked: list[str] = self.config.option.amp_family
        if unknown := [name for name in asked if name not in FAMILIES]:
            raise UsageError(f"unknown family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
        return [name for name in FAMILIES if name in asked] or list(FAMILIES)

    def items(self) -> list[Item]:
        """The items of this run, in order.

        Raises:
            UsageError: a backend, family or item is unknown.
        """
        option = self.config.option
        if option.amp_plant:
            return self._planted(option.amp_plant)
        full = option.amp_full or bool(option.amp_item)
        found = collect.collect_or_explain(backends=self.backends, families=self.families, full=full)
        if not option.amp_item:
            return found
        known = {item.id: item for item in found}
        for name in option.amp_item:
            if name not in known:
                raise UsageError(self._why_not(name, known))
        return [item for item in found if item.id in option.amp_item]

    def _why_not(self, name: str, known: Iterable[str]) -> str:
        """Why no item of that id is among those to run: others were asked for, or there is none."""
        its_own = backends.backend(_backend_of(name))
        family = collect.family_of(name, its_own.id)
        if family != collect.NO_FAMILY:
            asked = "--backend" if its_own not in self.backends else "--family"
            return f"{name} is an item of {family} on {its_own.id}, which {asked} leaves out"
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        return f"unknown item {name!r}{hint}; --collect-only lists them"

    def _planted(self, name: str) -> list[Item]:
        """Every check on the case of a planted fault, with the fault in place: the red demonstration."""
        from amp_checks.suite import planting

        mutant = planting.mutant(name)
        if self.config.option.amp_item or mutant.family not in self.families:
            raise UsageError(f"--plant {name} runs the checks of family {mutant.family} on its case: name no other")
        rows = [planting.case_of(mutant)]
        chosen = [backend for backend in self.backends if mutant.applies(backend)]
        found = [dataclasses.replace(item, mutant=mutant) for item in collect.items_of(rows, chosen)]
        if not found:
            raise UsageError(f"{name} is planted on none of {', '.join(backend.id for backend in self.backends)}")
        told = f"a fault is planted on purpose (--plant {name}): {mutant.fault}"
        self.errors += [told] if told not in self.errors else []
        return found

    def header(self) -> list[str]:
        if self.is_worker:
            return []
        try:
            chosen = ", ".join(backend.id for backend in self.backends)
            return [*environment.lines(self.environment), f"backends: {chosen}", *self._left_out()]
        except SuiteError:
            return []  # told by check_conditions, which follows

    def check_conditions(self) -> None:
        """Refuse to start where the run cannot give a verdict: unknown names, no CUDA for the gate, another torch."""
        if self.is_worker:
            return
        try:
            self._check_targets()
            self._check_conditions()
            self._begin()
        except UsageError as error:
            self._abort(str(error))
        except SuiteError as error:
            self._abort(str(error), status=OUR_ERRORS["broken"])

    def _check_conditions(self) -> None:
        for name in ("amp_plant", "amp_json", "amp_report_dir"):
            if getattr(self.config.option, name) == "":
                raise UsageError(f"--{name.replace('_', '-')} is given an empty name: is a variable unset?")
        _ = self.backends, self.families
        if self.config.option.amp_item or self.config.option.amp_plant:
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

    def _check_targets(self) -> None:
        """Refuse to start where the reports could not be written at the end; and remove those of an earlier run there.

        They would outlive this run, were it refused or killed, and be taken for its own.
        """
        option, start = self.config.option, self.config.invocation_params.dir
        if option.collectonly:
            return
        targets = [start / option.amp_json] if option.amp_json and option.amp_json != "-" else []
        targets += [start / option.amp_report_dir / kind.file for kind in FORMATS.values() if option.amp_report_dir]
        for target in targets:
            json_format.check_target(target)
        self.stream.claim()
        for target in targets:
            if target.is_file():
                target.unlink(missing_ok=True)

    def _begin(self) -> None:
        """Make ready for an end that is no good one: a report on disk from the start, and SIGTERM as an interrupt."""
        if self.config.option.collectonly:
            return
        with self._noting_errors():
            self.stream.begin(environment=self.environment, selection=self._selection())
        # Whoever cancels a job sends SIGTERM; unhandled, it would take the report along.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._on_sigterm = True

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the report is being written
        raise KeyboardInterrupt("terminated (SIGTERM)")

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """What cannot be written is told at the end; the items go on."""
        try:
            yield
        except SuiteError as error:
            self.errors.append(str(error))

    # -- parallel workers ----------------------------------------------------------------------------------------------

    @property
    def on_gpu(self) -> bool:
        """Whether this run uses a CUDA device; False where that cannot be said yet (`check_conditions` will)."""
        try:
            return self.require_cuda or any(on_cuda(backend.id) for backend in self.backends)
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
        died = unfinished(
            item,
            "the worker process died while this item ran (abort, device-side assert, out of memory, kill, time limit: "
            "its last words are on standard error)",
        )
        again = rerun.of_item(item, died.backend, plant=self.config.option.amp_plant)
        report.longrepr = f"{died.describe()}\nrun it again: {again}"
        report.amp_results = [json_format.result_to_json(died)]  # type: ignore[attr-defined]

    def _abort(self, message: str, *, status: int = OUR_ERRORS["gate"]) -> None:
        self.aborted = True
        self.stream.drop()
        self.stream.release()
        sys.stderr.write(f"amp-checks: error: {message}\n")
        if status == OUR_ERRORS["gate"]:
            raise pytest.UsageError  # pytest prints its arguments; it has none, our line stands alone
        pytest.exit("see the line above", returncode=status)

    # -- what came of it -----------------------------------------------------------------------------------------------

    def expect(self, names: Iterable[str]) -> None:
        """Take in the items that were chosen to run: each must leave a result."""
        self.expected.update(names)

    def begins(self, item: str) -> None:
        """An item of ours begins."""
        with self._noting_errors():
            self.stream.note_begun(item)

    def add(self, report: pytest.TestReport, entries: Sequence[dict[str, Any]], *, ours: bool) -> None:
        """Take in the report of a test, ours or another project's."""
        for entry in entries:
            result = json_format.result_from_json(entry)
            self.results[result.id] = result
            if not ours:
                file, line, _ = report.location
                self.tests[result.id] = Place(node=report.nodeid, file=file, line=None if line is None else line + 1)
            with self._noting_errors():
                self.stream.write(entry)
        self.curves += getattr(report, "amp_curves", [])
        if report.failed and not entries:
            self.others_failed = True

    def add_worker(self, output: dict[str, Any]) -> None:
        """Take in what a worker said when it ended."""
        self.collected.update(output["collected"])

    def finish(self, session: pytest.Session) -> None:
        """Judge the run as a whole, set the exit status, write the results."""
        self.time_limit.close()
        if self.is_worker:
            self.config.workeroutput["amp_checks"] = {"collected": self.collected}  # type: ignore[attr-defined]
            return
        if self.aborted or self.config.option.collectonly:
            return
        session.exitstatus = self._conclude(int(session.exitstatus), stopped=bool(session.shouldfail))
        self.stream.release()
        if self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _conclude(self, ended: int, *, stopped: bool) -> int:
        """Judge and write; the exit status.

        Args:
            ended: the exit status as pytest has it.
            stopped: whether the run ended early because enough had failed (-x, --maxfail).
        """
        missing = sorted(self.expected - self.results.keys())
        normal = ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        self.complete = normal and not missing and not self.lost_workers
        if self.complete:
            self.errors += self._unmet()
        elif ended == pytest.ExitCode.INTERRUPTED and self.broken_modules and not self.results:
            self.errors.append(f"{self.broken_modules} errors during collection: nothing ran")
        elif ended == pytest.ExitCode.INTERRUPTED:
            done = len(self.expected) - len(missing)
            self.errors.append(f"interrupted: {done} of {len(self.expected)} items finished; the rest is not counted")
        elif ended == pytest.ExitCode.USAGE_ERROR:
            self.errors.append("nothing ran: pytest refuses an argument, as its line ERROR says")
        elif self.lost_workers:
            self.errors.append(
                f"{self.lost_workers} worker processes died; what they ran last is not counted as passed"
            )
        elif missing and not stopped:
            self.errors.append(f"{len(missing)} items left no result, the first: {missing[0]}")
        status = self._exit_status(ended, normal=normal, stopped=stopped)
        written = self._write(complete=self.complete)
        return status if written or status == OUR_ERRORS["wrong"] else OUR_ERRORS["broken"]

    def _expired(self, item: str) -> None:
        """End the process, for an item that ran over its time limit: a worker is replaced, a run alone is concluded."""
        message = f"{item} did not end within {self.time_limit.seconds:g} s (--time-limit)"
        self.time_limit.say(f"amp-checks: error: {message}")
        if self.is_worker:
            os._exit(70)
        why = f"the item did not end within {self.time_limit.seconds:g} s; the run ended with it"
        hung = unfinished(item, why, family=self.collected.get(item))  # no table is read beside what hangs
        self.results[item] = hung
        self.errors.append(message)
        try:
            self._write(complete=False)
        finally:
            with contextlib.suppress(OSError, ValueError):
                self.config.get_terminal_writer().flush()
            os._exit(OUR_ERRORS["broken"])

    def _unmet(self) -> list[str]:
        """The conditions that make a green run mean something."""
        results = list(self.results.values())
        ran = [result for result in results if result.status in (*summary.RAN, Status.ERROR)]
        unmet = []
        if self.asked and not ran:
            if not self.collected:
                why = "no item of amp_checks was collected, or no test called the item it was given"
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
        if not any(on_cuda(result.backend) for result in ran):
            unmet.append("CUDA is required (--require-cuda), but no CUDA item ran")
        return unmet

    def _exit_status(self, ended: int, *, normal: bool, stopped: bool) -> int:
        if not (normal or stopped):
            return ended
        counts = summary.count(self.results.values())
        if counts[Status.FAILED] or self.others_failed:
            return OUR_ERRORS["wrong"]
        if counts[Status.ERROR] or not (self.complete or stopped):
            return OUR_ERRORS["broken"]
        if self.errors:
            return OUR_ERRORS["gate"]
        return ended

    def _tests(self) -> dict[str, Any]:
        return {name: dataclasses.asdict(place) for name, place in sorted(self.tests.items())}

    def _selection(self) -> dict[str, Any]:
        return {
            "backends": [backend.id for backend in self.backends],
            "families": list(self.families),
            "full": self.config.option.amp_full,
            "items": list(self.config.option.amp_item),
            "plant": self.config.option.amp_plant,
            "require_cuda": self.require_cuda,
        }

    def _document(self, *, complete: bool) -> dict[str, Any]:
        content = json_format.document(
            self.results.values(),
            environment=self.environment,
            selection=self._selection(),
            complete=complete,
            errors=self.errors,
        )
        if self.tests:
            content["tests"] = self._tests()
        if self.curves:
            content["curves"] = sorted(self.curves, key=lambda curve: (curve["item"], curve["title"]))
        return content

    def _write(self, *, complete: bool) -> bool:
        """Write what was asked for: the JSON file, the report folder, and GitHub's own places where it runs us.

        Each apart: one that cannot be written, for a full disk say, takes no other with it. Returns whether all were.
        """
        target: str | None = self.config.option.amp_json
        folder: str | None = self.config.option.amp_report_dir
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY") if self.asked else None
        if not (target or folder or step_summary):
            return True
        content = self._document(complete=complete)
        start = self.config.invocation_params.dir
        files: list[Callable[[], object]] = []
        if target and target != "-":
            files.append(lambda: json_format.write(start / target, content))
        for kind in FORMATS.values() if folder else ():
            if (why := kind.lacks()) is None:
                files.append(functools.partial(_render, kind, content, start / str(folder)))
            else:
                self.notes.append(f"not written: {why}")
        failures = _try_all(files)
        if failures:
            content |= {"complete": False, "errors": [*self.errors, *failures]}
            _try_all(files)  # those that can be written say that others could not
        last: list[Callable[[], object]] = []
        if target == "-":
            last.append(lambda: sys.stdout.write(json_format.dumps(content)))
        if step_summary:
            last.append(lambda: _append(Path(step_summary), FORMATS["markdown"].render(content)))
        failures += _try_all(last)
        self.errors += failures
        if not failures:
            self.stream.drop()
        return not failures

    def write_summary(self, reporter: pytest.TerminalReporter) -> None:
        """Print the verdict, and what kept the run from one."""
        if self.aborted or self.is_worker or self.config.option.collectonly:
            return
        results = list(self.results.values())
        if results:
            reporter.write_sep("=", "amp_checks")
            told = terminal.lines(results, limits=_limits(), complete=self.complete, errors=self.errors)
            for line in told:
                reporter.write_line(line)
        if self.require_cuda:
            cuda = [name for name in self.collected if on_cuda(_backend_of(name))]
            ran = [result for result in results if result.status in summary.RAN and on_cuda(result.backend)]
            reporter.write_line(f"ran {len(ran)} of {len(cuda)} CUDA items")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in github.annotate(results, {"tests": self._tests(), "selection": self._selection()}):
                reporter.write_line(line)
        for note in [*self._left_out(), *self.notes]:
            reporter.write_line(f"amp-checks: note: {note}")
        for error in self.errors:
            reporter.write_line(f"amp-checks: error: {error}", red=True)


def _try_all(writes: Iterable[Callable[[], object]]) -> list[str]:
    """Call each; what those say that cannot write."""
    failures = []
    for write in writes:
        try:
            write()
        except (SuiteError, OSError) as error:
            failures.append(str(error))
    return failures


def _render(kind: Format, content: dict[str, Any], folder: Path) -> None:
    json_format.write_text(folder / kind.file, kind.render(content))


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SuiteError(f"$GITHUB_STEP_SUMMARY, {path}, cannot be written: {error.strerror or error}") from error


def _limits() -> tuple[str, ...]:
    from amp_checks.core.limits import EMULATION

    return EMULATION


def on_cuda(backend_id: str) -> bool:
    """Whether the backend of that id runs on a CUDA device."""
    return backend_id.startswith("cuda-")


def _backend_of(name: str) -> str:
    """The backend that an item's id ends with; the longest, for ``cuda-float16`` ends ``emulated-cuda-float16`` too."""
    found = [backend_id for backend_id in backends.IDS if name.endswith(f"-{backend_id}")]
    if not found:
        raise UsageError(f"unknown item {name!r}: an id ends with a backend ({', '.join(backends.IDS)})")
    return max(found, key=len)
