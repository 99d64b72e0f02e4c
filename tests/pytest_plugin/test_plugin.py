"""The plugin: what is collected, how verdicts become pytest's, and when a green run is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch  # noqa: F401 - loaded here once, it is not loaded again by every run inside this process
from stubs import StubCase

from amp_checks import backends
from amp_checks.families import FAMILIES
from amp_checks.plugin import SUITE

Install = Callable[[Sequence[StubCase]], None]

CPU = ("--amp-backend", "cpu-float16")


def results(pytester: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    fixed = ("-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-json", "out.json")
    done = pytester.runpytest_inprocess(*fixed, *arguments, no_reraise_ctrlc=True)
    file = pytester.path / "out.json"
    return done, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def test_a_right_run_is_green_and_says_what_ran(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="two")])
    done, written = results(pytester, *CPU)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*torch *from*", "AMP is right: 2 checks ran on cpu-float16"])
    assert [entry["id"] for entry in written["results"]] == ["check_stub-one-cpu-float16", "check_stub-two-cpu-float16"]
    assert written["complete"] is True


def test_a_failure_shows_the_finding_and_the_command_that_reruns_it(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="wrong", does="fail")])
    done, _ = results(pytester, *CPU)
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "*output.dtype = float32, but should be float16; stub rule",
            "run it again: amp-checks run --item check_stub-wrong-cpu-float16",
            "AMP IS WRONG: 1 of 2 checks failed on cpu-float16",
        ]
    )


def test_a_broken_check_is_status_3(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="broken", does="break")])
    done, _ = results(pytester, *CPU)
    assert done.ret == 3
    done.stdout.fnmatch_lines(["*the check itself raised LookupError: row is missing*"])


def test_what_the_emulation_lacks_is_an_undeclared_skip(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="lacking", does="lack")])
    done, written = results(pytester, "--amp-backend", "emulated-cuda-float16")
    done.assert_outcomes(passed=1, skipped=1)
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: 1 items were skipped without a declared reason*torch.cuda.Stream*"])
    assert [entry["status"] for entry in written["results"]] == ["not emulated", "passed"]


def test_a_missing_backend_is_a_skip_with_its_reason_and_alone_it_is_no_green_run(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    if backends.why_unavailable("cuda-float16") is None:
        pytest.skip("this machine has a CUDA device, so that backend is not missing")
    stub_suite([StubCase(id="one")])
    done, _ = results(pytester, *CPU, "--amp-backend", "cuda-float16")
    done.assert_outcomes(passed=1, skipped=1)
    assert done.ret == 0
    done, _ = results(pytester, "--amp-backend", "cuda-float16")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: nothing ran: cuda-float16: *CUDA*"])


def test_a_run_whose_items_are_all_deselected_is_refused(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    done, _ = results(pytester, *CPU, "-k", "no_such_name")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: nothing ran: all 1 items were deselected"])


def test_collect_only_lists_the_ids_and_is_exempt(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="softmax.int")])
    done, written = results(pytester, "--collect-only", "-q", "--amp-require-cuda", "--amp-backend", "cuda-float16")
    assert done.ret == 0
    assert written == {}
    done.stdout.fnmatch_lines(["*::check_stub-softmax.int-cuda-float16"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--amp-backend", "cuda-float61"], "unknown backend 'cuda-float61'; there are cuda-float16,*"),
        (["--amp-family", ""], "unknown family ''; there are stub"),
        (["--amp-plant", ""], "--amp-plant is given an empty name: is a variable unset?"),
        (["--amp-json", ""], "--amp-json is given an empty name: is a variable unset?"),
        (["--amp-family", "oops"], "unknown family 'oops'; there are stub"),
        (["--amp-item", "check_stub-one-cpu-float61"], "unknown item 'check_stub-one-cpu-float61'*"),
        (["--amp-expect-torch", "1.0"], "expected torch 1.0, but torch * is installed in *"),
    ],
)
def test_bad_input_is_one_line_and_status_4(
    pytester: pytest.Pytester, stub_suite: Install, arguments: list[str], message: str
) -> None:
    stub_suite([StubCase(id="one")])
    done, _ = results(pytester, *arguments)
    assert done.ret == 4
    done.stderr.fnmatch_lines([f"amp-checks: error: {message}"])
    assert len(done.errlines) == 1
    done.stdout.no_fnmatch_line("*Traceback*")


def test_an_expression_that_pytest_refuses_is_status_4(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    done, written = results(pytester, *CPU, "-k", "and and")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: nothing ran: pytest refuses an argument*"])
    assert written["complete"] is False


def test_an_unknown_item_names_the_nearest(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    done, _ = results(pytester, "--amp-item", "check_stub-on-cpu-float16")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*did you mean 'check_stub-one-cpu-float16'*"])


def test_an_item_that_other_options_leave_out_is_not_called_unknown(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one", full=True)])
    done, _ = results(pytester, "--amp-item", "check_stub-one-cpu-bfloat16", *CPU)
    assert done.ret == 4
    done.stderr.fnmatch_lines(
        ["*check_stub-one-cpu-bfloat16 is an item of stub on cpu-bfloat16, which --backend leaves out"]
    )


def test_an_item_is_found_by_its_id_alone_full_rows_too(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="heavy", full=True)])
    done, written = results(pytester, "--amp-item", "check_stub-heavy-cpu-bfloat16")
    assert done.ret == 0
    assert [entry["id"] for entry in written["results"]] == ["check_stub-heavy-cpu-bfloat16"]


def test_full_rows_run_only_when_asked_for(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="heavy", full=True)])
    results(pytester, *CPU)[0].assert_outcomes(passed=1)
    results(pytester, *CPU, "--amp-full")[0].assert_outcomes(passed=2)


def test_the_gate_names_cuda_and_leaves_no_traceback(pytester: pytest.Pytester, stub_suite: Install) -> None:
    if backends.why_unavailable("cuda-float16") is None:
        pytest.skip("this machine has a CUDA device")
    stub_suite([StubCase(id="one")])
    done, _ = results(pytester, "--amp-require-cuda")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["amp-checks: error: CUDA is required (--require-cuda), but cuda-float16 cannot run: *"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done, _ = results(pytester, "--amp-require-cuda", *CPU)
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*no cuda backend is selected"])


@pytest.fixture
def cuda_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose CUDA backends are available; the stub check touches no device."""
    monkeypatch.setattr(backends, "why_unavailable", lambda backend_id: None)
    monkeypatch.setattr("amp_checks.backends.environment._devices", list)


@pytest.mark.usefixtures("cuda_stand_in")
def test_the_gate_counts_the_cuda_items_that_ran(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="two")])
    done, _ = results(pytester, "--amp-require-cuda")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["ran 4 of 4 CUDA items"])
    done, _ = results(pytester, "--amp-require-cuda", "-k", "one")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["ran 2 of 4 CUDA items"])
    done, _ = results(pytester, "--amp-require-cuda", "-k", "nothing_of_that_name")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["ran 0 of 4 CUDA items", "amp-checks: error: *"])


@pytest.mark.usefixtures("cuda_stand_in")
def test_the_gate_refuses_a_skip(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="two", does="lack")])
    done, _ = results(pytester, "--amp-require-cuda")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: 2 items were skipped without a declared reason*"])


def test_an_interrupted_run_keeps_what_finished_marked_incomplete(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="stop", does="interrupt"), StubCase(id="three")])
    done, written = results(pytester, *CPU)
    assert done.ret == 2
    assert written["complete"] is False
    assert [entry["id"] for entry in written["results"]] == ["check_stub-one-cpu-float16"]


def test_results_that_cannot_be_written_are_refused_before_anything_runs(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one")])
    (pytester.path / "taken").write_text("a file where a folder should be", encoding="utf-8")
    for target in ("taken/out.json", "."):
        done = pytester.runpytest_inprocess("--pyargs", "amp_checks", *CPU, "--amp-json", target)
        assert done.ret == 4
        done.stderr.fnmatch_lines(["amp-checks: error: the report * cannot be written: *"])
        assert len(done.errlines) == 1
        done.stdout.no_fnmatch_line("*passed*")


def test_json_on_standard_output(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    done = pytester.runpytest_inprocess("--pyargs", "amp_checks", *CPU, "--amp-json", "-")
    done.stdout.fnmatch_lines([' "schema": "amp_checks/results",'])


def test_an_ini_that_hides_every_python_file_hides_nothing_of_ours(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one")])
    pytester.makeini(
        "[pytest]\npython_files = none_*.py\npython_functions = nothing_*\npython_classes = Nothing\n"
        "xfail_strict = true\nfilterwarnings = error\naddopts = --strict-markers"
    )
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(autouse=True)\ndef spoil():\n    raise RuntimeError('not for them')\n"
    )
    results(pytester, *CPU)[0].assert_outcomes(passed=1)


def test_our_suite_hidden_beside_a_green_project_is_refused(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one")])
    pytester.makepyfile("def test_theirs():\n    pass\n")
    done = pytester.runpytest_inprocess("--pyargs", "amp_checks", str(pytester.path), f"--ignore={SUITE}")
    assert done.ret == 4
    done.stdout.fnmatch_lines(["amp-checks: error: nothing ran: no item of amp_checks was collected, or no test *"])


def test_another_projects_run_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_theirs():\n    pass\n")
    done = pytester.runpytest_inprocess()
    assert done.ret == 0
    done.stdout.no_fnmatch_line("*faults planted*")
    done.stdout.no_fnmatch_line("torch *")


def test_a_users_test_that_never_calls_its_item_checks_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from amp_checks import parametrize_with_checks
        from amp_checks.families.scaler.cases import CASES

        @parametrize_with_checks(CASES[:1], backends=["cpu-float16"])
        def test_forgot(item):
            pass
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:hypothesispytest")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*this test never called check_*-cpu-float16, so it checked nothing: call item()"])


def test_a_step_summary_that_cannot_be_written_is_named_and_hides_no_failure(
    pytester: pytest.Pytester, stub_suite: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path))
    for does, status in (("pass", 3), ("fail", 1)):
        stub_suite([StubCase(id="one", does=does)])
        done = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "--pyargs", "amp_checks", *CPU)
        assert done.ret == status
        done.stdout.fnmatch_lines([f"amp-checks: error: $GITHUB_STEP_SUMMARY, {pytester.path}, cannot be written: *"])


def test_a_users_test_with_our_decorator_reports_its_results(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([])
    pytester.makepyfile(
        """
        from conftest_cases import CASES
        from amp_checks import parametrize_with_checks

        @parametrize_with_checks(CASES, backends=["cpu-float16"])
        def test_amp(item):
            item()
        """,
        conftest_cases="""
        from stubs import StubCase

        CASES = [StubCase(id="mine"), StubCase(id="wrong", does="fail")]
        """,
    )
    pytester.syspathinsert()
    pytester._monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--amp-report-dir", "report")
    done.assert_outcomes(passed=1, failed=1)
    again = "pytest '*.py::test_amp?check_stub-wrong-cpu-float16?'"
    done.stdout.fnmatch_lines([f"::error file=*.py,line=4,title=*run it again: {again}"])
    markdown = (pytester.path / "report" / "summary.md").read_text(encoding="utf-8")
    assert "Run it again: `pytest '" in markdown
    assert "amp-checks run" not in markdown
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        ["*output.dtype = float32, but should be float16*", "AMP IS WRONG: 1 of 2 checks failed on cpu-float16"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("[]", "nothing to run: some_cases is empty (backends: cpu-float16"),
        (
            "[CASE], backends=['cpu-bfloat16']",
            "nothing to run: none of the 1 cases has a check that runs (backends: cpu-b",
        ),
        ("[1, 'x']", "some_cases[0] is 1, of type int, and no case: a case is a row of a family's table"),
        ("[CASE, LOST]", "some_cases[1] is StubCase(id='lost'"),
        ("CASE", "and should be a list of cases"),
        ("'CASE'", "some_cases is 'CASE', and should be a list of cases"),
        ("[CASE], backends=['cpu']", "unknown backend 'cpu'; there are cuda-float16"),
        ("[CASE], backends=[1]", "unknown backend 1; there are cuda-float16"),
        ("[CASE], backends='cpu-float16'", "backends is 'cpu-float16', and should be a list of ids"),
        ("[CASE, CASE]", "two cases give an item of the id 'check_stub-mine-cpu-float16'"),
    ],
)
def test_a_decorator_that_would_run_nothing_is_an_error_of_one_message(
    pytester: pytest.Pytester, stub_suite: Install, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_suite([])
    if backends.why_unavailable("cuda-float16") is None:
        monkeypatch.setattr(backends, "default_ids", lambda **_: ("cpu-float16",))
    pytester.makepyfile(
        f"""
        from stubs import StubCase
        from amp_checks import parametrize_with_checks

        CASE = StubCase(id="mine", backends=("cpu-float16",))
        LOST = StubCase(id="lost", family="no_such")

        @parametrize_with_checks({arguments})
        def test_amp(item):
            item()

        def test_theirs():
            pass
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--amp-json", "out.json")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines(["amp-checks: error: 1 errors during collection: nothing ran"])
    done.assert_outcomes(errors=1)
    text = done.stdout.str()
    assert "test_a_decorator_that_would_run_nothing_is_an_error_of_one_message.py:7: parametrize_with_checks: " in text
    assert message in text
    assert "Traceback" not in text
    assert "parametrize.py" not in text


def test_a_family_that_cannot_be_listed_is_an_error_and_the_others_run(
    pytester: pytest.Pytester, stub_suite: Install
) -> None:
    stub_suite([StubCase(id="one")])
    FAMILIES.declare("missing", "amp_checks.families.missing.family")  # into the stand-in of `stub_suite`
    done, _ = results(pytester, *CPU)
    done.assert_outcomes(passed=1, failed=1)
    assert done.ret == 3
    done.stdout.fnmatch_lines(["*family missing: ModuleNotFoundError: No module named 'amp_checks.families.missing'*"])


def test_two_items_of_one_id_are_refused(pytester: pytest.Pytester, stub_suite: Install) -> None:
    stub_suite([StubCase(id="one"), StubCase(id="one")])
    done, _ = results(pytester, *CPU)
    assert done.ret == 3
    done.stdout.fnmatch_lines(["*two items share the id 'check_stub-one-cpu-float16'*"])
