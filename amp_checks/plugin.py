"""The pytest plugin: hooks and nothing else.

It is loaded in every pytest run of every project of the environment it is installed in, so it imports no torch and
next to nothing else, and does nothing until an option of ours is given or an item of ours is collected.

(PYTEST_DONT_REWRITE: there is no assert to rewrite here, and rewriting costs every run.)
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amp_checks.pytest_plugin import emulated, time_limit

if TYPE_CHECKING:
    import torch

    from amp_checks.pytest_plugin.session import Session

SUITE = Path(__file__).parent / "conformance" / "suite.amp"
_RESULTS = pytest.StashKey[list[Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("amp_checks", "amp_checks: checks of automatic mixed precision")
    group.addoption(
        "--amp-backend",
        action="append",
        default=[],
        metavar="ID",
        help="backend to check, repeatable (default: cuda-* if there is a device, else cpu-* and emulated-cuda-*)",
    )
    group.addoption(
        "--amp-family", action="append", default=[], metavar="FAMILY", help="family of checks to run, repeatable"
    )
    group.addoption("--amp-item", action="append", default=[], metavar="ID", help="one item to run, repeatable")
    group.addoption("--amp-plant", metavar="FAULT", help="plant that fault of the suite's own, to see it caught")
    group.addoption("--amp-full", action="store_true", help="also the rows that a pull-request gate leaves out")
    group.addoption(
        "--amp-require-cuda", action="store_true", help="the gate: fail unless a CUDA device ran the checks"
    )
    group.addoption("--amp-json", metavar="FILE", help="write the results there ('-': standard output)")
    group.addoption("--amp-report-dir", metavar="DIR", help="write every report format into that folder")
    group.addoption("--amp-expect-torch", metavar="VERSION", help="fail unless torch is of this version")
    group.addoption(
        "--amp-time-limit",
        type=time_limit.seconds,
        default=time_limit.SECONDS,
        metavar="SECONDS",
        help=f"end an item that runs longer, and name it; 0 for no limit (default: {time_limit.SECONDS:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: an amp_checks item that needs a CUDA device")
    config.addinivalue_line("markers", "cpu: an amp_checks item on the CPU's own autocast")
    config.addinivalue_line("markers", "emulated: an amp_checks item under another device's rules, on the CPU")
    config.addinivalue_line("markers", emulated.DESCRIPTION)
    config.pluginmanager.register(Hooks(config), "amp_checks_hooks")


@pytest.fixture
def emulated_cuda(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A CUDA device, emulated on the CPU: its autocast rules, a real GradScaler, `torch.cuda` as on one idle GPU."""
    with emulated.device(request.node) as device:
        yield device


class Hooks:
    """The hooks that need the state of a run; the state is made on first use."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._session: Session | None = None
        self.asked = self._is_asked()

    def _is_asked(self) -> bool:
        given = self.config.option
        options = (
            *(given.amp_backend, given.amp_family, given.amp_item, given.amp_full, given.amp_plant),
            *(given.amp_require_cuda, given.amp_json, given.amp_report_dir, given.amp_expect_torch or None),
        )
        return any(option or option == "" for option in options) or any(map(self._is_our_suite, self.config.args))

    def _is_our_suite(self, argument: str) -> bool:
        name = argument.partition("::")[0]
        if self.config.option.pyargs and name in ("amp_checks", "amp_checks.conformance"):
            return True
        path = (self.config.invocation_params.dir / name).resolve()
        return path in (SUITE, SUITE.parent, SUITE.parent.parent)

    @property
    def session(self) -> Session:
        if self._session is None:
            from amp_checks.pytest_plugin.session import Session

            self._session = Session(self.config, asked=self.asked)
        return self._session

    def pytest_report_header(self) -> list[str]:
        return self.session.header() if self.asked else []

    def pytest_sessionstart(self) -> None:
        if self.asked:
            self.session.start()

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path.name != SUITE.name or file_path.resolve() != SUITE:
            return None
        from amp_checks.pytest_plugin.items import SuiteFile

        collector: pytest.Collector = SuiteFile.from_parent(parent, path=file_path, state=self.session)
        return collector

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._session is not None:
            self._session.expect(_names(item.nodeid for item in session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self._session is not None:
            self._session.failed_collections.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if self.asked:
            self.session.expect(_names(ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        measure = sys.modules.get("amp_checks.suite.measure")
        if measure is None:  # nothing of ours is in use, so nothing can be recorded
            return (yield)
        with measure.recording() as results:
            item.stash[_RESULTS] = results
            value = yield
        if not results and (given := _given(item)):
            pytest.fail(f"this test never called {given}, so it checked nothing: call item()", pytrace=False)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # An attribute of a report travels from an xdist worker to the controller as it is.
        if call.when == "setup" and _names([item.nodeid]):
            report.amp_family = item.item.case.family  # type: ignore[attr-defined]
        if call.when == "call" and item.stash.get(_RESULTS, []):
            from amp_checks.report.values import result_to_json

            report.amp_results = [result_to_json(result) for result in item.stash[_RESULTS]]  # type: ignore[attr-defined]
            if _names([item.nodeid]):
                report.amp_curves = item.curves(item.stash[_RESULTS])  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "amp_results") or self._session is not None:
            self.session.add(report, item=next(iter(_names([report.nodeid])), None))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_auto_num_workers(self) -> int | None:
        return self.session.workers() if self.asked else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        if self.asked:
            self.session.assign_devices(specs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        for name in _names([crashitem]):
            self.session.blame(name, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        output = getattr(node, "workeroutput", {})
        if "amp_checks" in output:
            self.session.add_worker(output["amp_checks"])
        elif error is not None and self.asked:
            self.session.lost_workers += 1

    # First: xdist waits here for workers that may hang, and whoever cancelled the run may not wait for it.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._session is not None:
            self._session.finish(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._session is not None:
            self._session.write_summary(terminalreporter)


def _given(item: pytest.Item) -> str | None:
    """The id of the suite's item that `parametrize_with_checks` gave to a user's test; None for other tests."""
    if (suite := sys.modules.get("amp_checks.suite.collect")) is None:
        return None
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return next((value.id for value in values if isinstance(value, suite.Item)), None)


def _names(node_ids: Iterable[str]) -> list[str]:
    """The ids of our own items among those of pytest."""
    return [node_id.rpartition("::")[2] for node_id in node_ids if f"{SUITE.name}::" in node_id]
