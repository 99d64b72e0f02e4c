"""However a run ends: ``amp-checks report --gate`` on its JSON exits as the run did, and every format says why."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch  # noqa: F401 - loaded here once, it is not loaded again by every run inside this process
from stubs import StubCase

from amp_checks import cli
from amp_checks.core import Outcome
from amp_checks.pytest_plugin.items import SuiteItem
from amp_checks.report import FORMATS, reading

Install = Callable[[Sequence[StubCase]], None]

FAILING = "def test_theirs():\n    assert False\n"
BROKEN = "import no_such_module\n"
RAISES_INSIDE = "import pytest\ndef test_theirs():\n    pytest.exit('gone', returncode=7)\n"
PASSES_ITS_ITEM_AND_FAILS = """
from stubs import StubCase
from amp_checks import parametrize_with_checks

@parametrize_with_checks([StubCase(id="mine")], backends=["cpu-float16"])
def test_amp(item):
    item()
    assert False
"""
FAILS_IN_TEARDOWN = """
import pytest

@pytest.fixture
def spoilt():
    yield
    raise RuntimeError

def test_theirs(spoilt):
    pass
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """A run: what the suite's items do, a user's file beside them, options, what is replaced; and its exit status."""

    status: int
    does: tuple[str, ...] = ("pass",)
    beside: str = ""
    options: tuple[str, ...] = ()
    silent: str = ""


ENDINGS = {
    "right": Ending(status=0),
    "wrong": Ending(status=1, does=("pass", "fail")),
    "broken": Ending(status=3, does=("pass", "break")),
    "wrong and broken": Ending(status=1, does=("break", "fail")),
    "skipped": Ending(status=4, does=("pass", "lack")),
    "nothing ran": Ending(status=4, does=("lack",)),
    "deselected": Ending(status=4, options=("-k", "nothing")),
    "refused expression": Ending(status=4, options=("-k", "and and")),
    "interrupted": Ending(status=2, does=("pass", "interrupt", "pass")),
    "interrupted after a failure": Ending(status=1, does=("fail", "interrupt", "pass")),
    "interrupted after an error": Ending(status=3, does=("break", "interrupt", "pass")),
    "stopped at a failure": Ending(status=1, does=("fail", "pass"), options=("-x",)),
    "stopped at an error": Ending(status=3, does=("break", "pass"), options=("-x",)),
    "without a result": Ending(status=3, does=("pass", "pass"), silent="1"),
    "no result at all": Ending(status=3, silent="0"),
    "other test failed": Ending(status=1, beside=FAILING),
    "other test failed and stopped": Ending(status=1, beside=FAILING, options=("-x",)),
    "other test failed, nothing of ours": Ending(status=1, does=("lack",), beside=FAILING),
    "failed besides its item": Ending(status=1, beside=PASSES_ITS_ITEM_AND_FAILS),
    "teardown failed": Ending(status=1, beside=FAILS_IN_TEARDOWN),
    "collection broken": Ending(status=2, beside=BROKEN),
    "collection broken and continued": Ending(status=1, beside=BROKEN, options=("--continue-on-collection-errors",)),
    "ended by a test": Ending(status=3, beside=RAISES_INSIDE),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_gate_on_the_results_exits_as_the_run(
    ending: Ending,
    pytester: pytest.Pytester,
    stub_suite: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub_suite([StubCase(id=f"{number}", does=does) for number, does in enumerate(ending.does)])
    if ending.silent:
        run_it = SuiteItem.runtest
        silent = f"check_stub-{ending.silent}-cpu-float16"
        monkeypatch.setattr(SuiteItem, "runtest", lambda self: None if self.name == silent else run_it(self))
    if ending.beside:
        pytester.makepyfile(ending.beside)
        pytester.syspathinsert(Path(sys.modules[StubCase.__module__].__file__ or "").parent)
    fixed = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--amp-backend", "cpu-float16")
    paths = ("--pyargs", "amp_checks", str(pytester.path))
    done = pytester.runpytest_inprocess(
        *fixed, *paths, "--amp-json", "out.json", *ending.options, no_reraise_ctrlc=True
    )
    assert done.ret == ending.status
    check(pytester.path, ending.status, capsys)


def check(folder: Path, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare the exit status of a run with that of the gate on its ``out.json``, and with what the formats say."""
    out = folder / "out.json"
    document = reading.read(out)
    capsys.readouterr()
    assert cli.entry(["report", str(out), "--gate", "-o", str(folder / "report.md")]) == status
    said = capsys.readouterr().err
    assert document.verdict.outcome == status
    assert said == (f"amp-checks: error: {document.verdict.line}\n" if status else "")
    assert (folder / "report.md").read_text(encoding="utf-8").startswith(f"## amp_checks: {document.verdict.line}\n")
    green = "<failure" not in (junit := FORMATS["junit"].render(document)) and "<error" not in junit
    assert green is (status == 0)
    if FORMATS["html"].lacks() is None:
        state = {0: "right", 1: "wrong"}.get(status, "none")
        assert f'class="verdict {state}"' in FORMATS["html"].render(document)


WITH_WORKERS = {
    "other test failed": Ending(status=1, beside=FAILING),
    "collection broken": Ending(status=1, beside=BROKEN),  # the workers go on
    "worker died": Ending(status=3, does=("pass", "die")),
    "worker died in another test": Ending(status=1, beside="import os\ndef test_theirs():\n    os.abort()\n"),
    "stopped at a failure": Ending(status=1, does=("fail", "pass", "pass"), options=("-x",)),
}


@pytest.mark.parametrize("ending", WITH_WORKERS.values(), ids=WITH_WORKERS)
def test_the_gate_exits_as_a_run_with_workers(
    ending: Ending, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    support = Path(sys.modules[StubCase.__module__].__file__ or "").parent
    pytester.makepyfile(
        stand_in=f"""
        import os
        import sys

        sys.path.insert(0, {str(support)!r})
        import stubs

        def check(case, backend):
            if case.does == "die":
                os.abort()
            yield from stubs.check_stub(case, backend)

        stubs.only_family([stubs.StubCase(id=str(n), does=does) for n, does in enumerate({ending.does!r})], check)
        """
    )
    if ending.beside:
        pytester.makepyfile(test_beside=ending.beside)
    pytester.syspathinsert()
    pytester._monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    fixed = ("-p", "stand_in", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--amp-backend", "cpu-float16")
    paths = ("--pyargs", "amp_checks", str(pytester.path))
    done = pytester.runpytest_subprocess(*fixed, *paths, "-n", "2", "--amp-json", "out.json", *ending.options)
    assert done.ret == ending.status, done.stdout.str()
    check(pytester.path, ending.status, capsys)


@pytest.mark.parametrize("does", ["pass", "fail"])
def test_a_summary_that_cannot_be_written_is_in_the_results_too(
    does: str,
    pytester: pytest.Pytester,
    stub_suite: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub_suite([StubCase(id="one", does=does)])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path))
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-backend", "cpu-float16")
    done = pytester.runpytest_inprocess(*fixed, "--amp-json", "out.json")
    assert done.ret == (Outcome.WRONG if does == "fail" else Outcome.BROKEN)
    check(pytester.path, int(done.ret), capsys)
