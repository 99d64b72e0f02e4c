"""Runs that end badly: interrupted, terminated, killed, out of disk, hung. What finished is kept and is marked
incomplete; what did not finish passes for nothing; the exit status is not zero.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - loaded here once, it is not loaded again by every run inside this process
from documents import ENVIRONMENT, RIGHT, result
from stubs import StubCase

from amp_checks import cli
from amp_checks.core import Outcome, Status, SuiteError
from amp_checks.report import FORMATS, Format, files, reading
from amp_checks.report.stream import FILE, Stream
from amp_checks.report.values import result_to_json

PATIENCE = 300.0

STAND_IN = '''
import ctypes
import os
import pathlib
import signal
import sys
import time

import torch  # here, not in the first item: its import is slow beside the limits of these tests

sys.path.insert(0, {support!r})
from stubs import StubCase, only_family

from amp_checks import core
from amp_checks.pytest_plugin import time_limit

time_limit.GRACE = 2.0


def check_ending(case, backend):
    """Does what its case says, having said that it begins."""
    pathlib.Path(f"began-{{case.id}}").touch()
    match case.does:
        case "sleep":
            time.sleep(300)
        case "hang":
            while True:
                pass
        case "hang in C":
            ctypes.PyDLL(None).sleep(300)  # PyDLL keeps the interpreter's lock
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    yield core.exact("one", actual=1, expected=1, why="stand-in")


only_family([StubCase(id=f"{{n}}", does=does) for n, does in enumerate({does!r})], check_ending)
'''


class Run:
    """A run in a process group of its own, in a folder of its own, with its reports in ``report``."""

    def __init__(self, folder: Path, does: Sequence[str], *arguments: str) -> None:
        self.folder = folder
        support = str(Path(__file__).parents[1] / "support")
        (folder / "stand_in.py").write_text(STAND_IN.format(support=support, does=list(does)), encoding="utf-8")
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("GITHUB_STEP_SUMMARY", None)
        fixed = ("-p", "stand_in", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--pyargs", "amp_checks")
        options = ("--amp-backend", "cpu-float16", "--amp-report-dir", "report")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *fixed, *options, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A job in the background of a shell ignores SIGINT, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread runs here
        )

    def wait_for(self, case: str) -> None:
        """Wait until that case runs."""
        until = time.monotonic() + PATIENCE
        while not (self.folder / f"began-{case}").exists():
            assert time.monotonic() < until
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Exit status and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def statuses(self, file: str = "results.json") -> dict[str, str]:
        document = reading.read(self.folder / "report" / file)
        assert not document.complete
        return {one.case: str(one.status) for one in document.results}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def begin(*arguments: Any) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_an_interrupted_or_terminated_run_keeps_what_finished(
    start: Callable[..., Run], number: signal.Signals, workers: tuple[str, ...]
) -> None:
    run = start(["pass", "sleep", "sleep", "pass"], *workers)
    run.wait_for("1")
    if workers:
        run.wait_for("2")
        os.killpg(run.process.pid, number)  # as a terminal does, and a runner that stops a job
    else:
        run.process.send_signal(number)
    status, output = run.end()
    assert status == 2
    statuses = run.statuses()
    assert statuses.get("0", "passed") == "passed"
    assert "1" not in statuses
    assert "2" not in statuses
    assert "amp-checks: error: interrupted: " in output
    assert "AMP is right" not in output
    folder = run.folder / "report"
    assert {file.name for file in folder.iterdir()} == {kind.file for kind in FORMATS.values() if not kind.lacks()}
    assert ET.parse(folder / "junit.xml").getroot().find(".//property[@name='complete'][@value='True']") is None
    assert "**Incomplete**" in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_killed_run_leaves_what_finished_to_be_reported(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(["pass", "sleep", "pass"])
    run.wait_for("1")
    os.killpg(run.process.pid, signal.SIGKILL)
    assert run.end()[0] == -signal.SIGKILL
    assert run.statuses(FILE) == {"0": "passed", "1": "error"}
    assert cli.entry(["report", str(run.folder / "report" / FILE)]) == 0
    told = capsys.readouterr().out
    assert "**Incomplete**" in told
    assert "the run ended while this item ran" in told


def test_a_killed_worker_is_told_and_its_item_passes_for_nothing(start: Callable[..., Run]) -> None:
    run = start(["pass", "die", "pass", "pass"], "-n", "2")
    status, output = run.end()
    assert status == 3
    assert run.statuses() == {"0": "passed", "1": "error", "2": "passed", "3": "passed"}
    assert "amp-checks: error: 1 worker processes died" in output
    assert "AMP is right" not in output


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "worker"])
def test_a_hung_item_ends_and_is_named(start: Callable[..., Run], workers: tuple[str, ...]) -> None:
    run = start(["pass", "hang", "pass"], "--amp-time-limit", "5", *workers)
    status, output = run.end()
    assert status == 3
    assert "amp-checks: error: check_ending-1-cpu-float16 did not end within 5 s" in output
    assert "in check_ending" in output
    assert run.statuses() == {"0": "passed", "1": "error", **({"2": "passed"} if workers else {})}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "worker"])
def test_an_item_that_hangs_and_holds_the_interpreter_ends_and_is_named(
    start: Callable[..., Run], workers: tuple[str, ...]
) -> None:
    run = start(["pass", "hang in C", "pass"], "--amp-time-limit", "5", *workers)
    status, output = run.end()
    assert status == (3 if workers else 1)
    assert "in check_ending" in output
    expected = {"0": "passed", "1": "error", **({"2": "passed"} if workers else {})}
    assert run.statuses("results.json" if workers else FILE) == expected


def run_here(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", "cpu-float16")
    return pytester.runpytest_inprocess(*fixed, *arguments, no_reraise_ctrlc=True)


Install = Callable[[Sequence[StubCase]], None]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("full", ["results.json", "summary.md", FILE])
def test_a_full_disk_costs_no_report_that_still_fits(pytester: pytest.Pytester, stub_suite: Install, full: str) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="two")])
    folder = pytester.mkdir("report")
    (folder / full).symlink_to("/dev/full")
    _keep(pytester, full)
    done = run_here(pytester, "--amp-report-dir", "report", "--amp-json", "out.json")
    assert done.ret == (4 if full == FILE else 3)
    done.stdout.fnmatch_lines([f"amp-checks: error: the report *{full} cannot be written: No space left on device"])
    done.stdout.no_fnmatch_line("AMP is right*")
    for file in ("report/results.json", "report/summary.md", "report/junit.xml", "out.json"):
        if not file.endswith(full):
            assert (pytester.path / file).stat().st_size > 0
    content = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in content["results"]] == ["passed", "passed"]
    assert content["complete"] is (full == FILE)
    assert any("No space left on device" in error for error in content["errors"])
    left = {file.name for file in folder.iterdir()}
    assert not any(name.endswith(".part") for name in left)
    assert (FILE in left) is (full != FILE or (folder / FILE).is_symlink())


def _keep(pytester: pytest.Pytester, name: str) -> None:
    """Let a stand-in for a full disk outlive the start of the run, which removes earlier reports."""
    unlink = Path.unlink

    def spare(path: Path, missing_ok: bool = False) -> None:
        if path.name != name:
            unlink(path, missing_ok=missing_ok)

    pytester._monkeypatch.setattr(Path, "unlink", spare)


def test_a_report_that_cannot_be_made_costs_no_other(
    pytester: pytest.Pytester, stub_suite: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "junit", Format(file="junit.xml", module="no_such"))
    stub_suite([StubCase(id="one")])
    done = run_here(pytester, "--amp-report-dir", "report")
    assert done.ret == 3
    done.stdout.fnmatch_lines(["amp-checks: error: junit.xml could not be made: ModuleNotFoundError: *no_such'"])
    assert (pytester.path / "report" / "summary.md").exists()
    assert (pytester.path / "report" / FILE).exists()


def test_reports_of_an_earlier_run_do_not_outlive_a_killed_one(
    pytester: pytest.Pytester, stub_suite: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_checks.pytest_plugin.session import Session

    stub_suite([StubCase(id="one")])
    assert run_here(pytester, "--amp-report-dir", "report").ret == 0
    assert (pytester.path / "report" / "results.json").exists()
    assert run_here(pytester, "--amp-json", "own.json").ret == 0
    monkeypatch.setattr(Session, "finish", lambda self, session: None)  # as if the run were killed before its end
    run_here(pytester, "--amp-report-dir", "report", "--amp-json", "own.json")
    assert [file.name for file in (pytester.path / "report").iterdir()] == [FILE]
    assert not (pytester.path / "own.json").exists()


def test_reports_of_an_earlier_run_do_not_outlive_a_refused_one(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    targets = ("--amp-report-dir", "report", "--amp-json", "own.json")
    assert run_here(pytester, *targets).ret == 0
    refused = run_here(pytester, *targets, "--amp-expect-torch", "0.1")
    assert refused.ret == 4
    assert list((pytester.path / "report").iterdir()) == []
    assert not (pytester.path / "own.json").exists()


def test_a_run_stopped_at_its_first_failure_is_incomplete(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="wrong", does="fail"), StubCase(id="two")])
    done = run_here(pytester, "-x", "--amp-json", "out.json")
    assert done.ret == 1
    assert json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))["complete"] is False


def test_an_item_without_a_result_is_no_pass(
    pytester: pytest.Pytester, stub_suite: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_checks.pytest_plugin.items import SuiteItem

    monkeypatch.setattr(SuiteItem, "runtest", lambda self: None)
    stub_suite([StubCase(id="one"), StubCase(id="two")])
    done = run_here(pytester, "--amp-json", "out.json")
    assert done.ret == 3
    done.stdout.fnmatch_lines(["amp-checks: error: 2 items left no result, the first: check_stub-one-cpu-float16"])


@pytest.mark.parametrize("limit", ["-1", "inf", "nan", "soon"])
def test_a_time_limit_that_means_nothing_is_refused(pytester: pytest.Pytester, limit: str) -> None:
    assert run_here(pytester, f"--amp-time-limit={limit}").ret == 4


def test_sigterm_is_handled_as_before_once_the_run_is_over(pytester: pytest.Pytester, stub_suite: Install) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stub_suite([StubCase(id="one")])
    assert run_here(pytester).ret == 0
    assert signal.getsignal(signal.SIGTERM) is before


def stream_of(folder: Path) -> Stream:
    stream = Stream(folder)
    stream.begin(environment=ENVIRONMENT, selection={})
    stream.note_begun("check_output_dtype-mm-emulated-cuda-float16", family="ops", backend="emulated-cuda-float16")
    stream.write(result_to_json(result("mm", Status.PASSED, RIGHT)))
    stream.note_begun("check_error-bmm-cpu-float16", family="ops", backend="cpu-float16")
    return stream


def test_a_stream_reads_back_as_a_document(tmp_path: Path) -> None:
    stream_of(tmp_path)
    document = reading.read(tmp_path / FILE)
    assert document.environment == ENVIRONMENT
    assert document.ended is Outcome.UNFINISHED
    begun, done = document.results
    assert done == result("mm", Status.PASSED, RIGHT)
    assert (begun.id, begun.status) == ("check_error-bmm-cpu-float16", Status.ERROR)
    assert (begun.family, begun.backend, begun.emulated) == ("ops", "cpu-float16", False)


@pytest.mark.parametrize("cut", [1, 10])
def test_a_last_line_that_was_cut_short_is_let_go(tmp_path: Path, cut: int) -> None:
    stream_of(tmp_path)
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    (tmp_path / FILE).write_text(text[:-cut], encoding="utf-8")
    assert [one.case for one in reading.read(tmp_path / FILE).results] == ["mm"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 2', '"version": 3', "is of version 3 .*install"),
        ('"status"', '"state"', "malformed result"),
        ("{", "", "JSON"),
    ],
    ids=["version", "result", "no JSON"],
)
def test_a_stream_that_is_none_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    stream_of(tmp_path)
    head, rest = (tmp_path / FILE).read_text(encoding="utf-8").split("\n", 1)
    text = f"{head.replace(old, new, 1)}\n{rest}" if old == '"version": 2' else f"{head}\n{rest.replace(old, new, 1)}"
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=message):
        reading.read(tmp_path / FILE)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_text(pipe, "text")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_folder_in_the_place_of_a_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="cannot be written"):
        files.write(tmp_path, {})
