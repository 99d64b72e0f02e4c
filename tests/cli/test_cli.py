"""The command line: exit statuses, one line per error, and the same verdict wherever it is called."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import document, plain, result

from amp_checks import backends, cli
from amp_checks.core import Status
from amp_checks.report import FORMATS, files
from amp_checks.suite import planting

FEW = "nan"
"""Selects a handful of items, for tests on how they are run."""


def amp_checks(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amp_checks", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        check=False,
    )


def written(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["rnu"], "argument COMMAND: invalid choice: 'rnu'"),
        (["run", "--bakend", "cpu-float16"], "unrecognized arguments: --bakend"),
        (["run", "--backend", "cpu"], "unknown backend 'cpu'; there are cuda-float16"),
        (["run", "--family", "op"], "unknown family 'op'; there are ops, fp32-only"),
        (["run", "--family", ""], "--family is given an empty name: is a variable unset?"),
        (["run", "--plant", ""], "--plant is given an empty name"),
        (["run", "--item", ""], "--item is given an empty name"),
        (["selftest", "--family", ""], "--family is given an empty name"),
        (["diff", "", "2.13.0"], "--old is given an empty name"),
        (["run", "-n", "two"], "-n takes a number or auto, not 'two'"),
        (["run", "--item", "nonsense"], "unknown item 'nonsense': an id ends with a backend"),
        (["run", "--plant", "rule-remved-mm"], "did you mean 'rule-removed-mm'"),
        (["policy", "--fresh"], "--fresh goes with --unsupported"),
        (["ranges", "--op", "nope"], "unknown op 'nope'; amp-checks ranges --list lists all"),
        (["ranges", "--op", "softmx"], "did you mean 'softmax.int' or "),
        (["selftest", "--list", "--family", "op"], "unknown family 'op'; there are ops, fp32-only"),
    ],
)
def test_bad_input_is_one_line_and_status_4(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # set by `run`: leave the environment as it was
    try:
        status = cli.entry(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    told = capfd.readouterr()
    assert status == 4
    assert told.err.startswith("amp-checks: error: ")
    assert message in told.err
    assert len(told.err.splitlines()) == 1
    assert "Traceback" not in told.out


@pytest.mark.parametrize(
    "command",
    [
        *(["env", "--json"], ["policy", "--json"], ["policy", "--unsupported", "--json"], ["selftest", "--json"]),
        *(["ranges", "--json"], ["ranges", "--backend", "cpu-float16", "--plot"]),
        *(["audit", "case.py:case", "--json"], ["audit", "case.py:case", "--html"]),
        *(["report", "no_such.json", "-o"], ["diff", "2.13.0", "2.14.1", "-o"]),
        *(["diff", "--results", "2.13.0", "2.14.1", "-o"], ["run", "--backend", "cpu-float16", "--json"]),
        ["run", "--backend", "cpu-float16", "--report-dir"],
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # set by `run`: leave the environment as it was
    monkeypatch.setattr("amp_checks.report.Format.lacks", lambda _: None)
    (tmp_path / "taken").touch()
    for target, message in ((str(tmp_path / "taken" / "x"), "taken is no folder"), ("", "is given an empty name")):
        assert cli.entry([*command, target]) == 4
        told = capfd.readouterr()
        (line,) = told.err.splitlines()
        assert line.startswith("amp-checks: error: ")
        assert message in line
        assert "Traceback" not in told.out


def test_faults_and_ops_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["selftest", "--list"]) == 0
    faults = capsys.readouterr().out.splitlines()
    assert len(faults) == sum(len(planting.mutants(family)) for family in planting.families())
    (line,) = [line for line in faults if line.startswith("rule-removed-mm ")]
    assert line.split(maxsplit=2)[1:] == ["ops", planting.mutant("rule-removed-mm").fault]
    assert cli.entry(["selftest", "--list", "--family", "scaler", "--backend", "emulated-cuda-float16"]) == 0
    some = capsys.readouterr().out.splitlines()
    assert 0 < len(some) < len(faults)
    assert {line.split()[1] for line in some} == {"scaler"}
    assert cli.entry(["ranges", "--list", "--op", "soft*"]) == 0
    assert "softmax.int" in capsys.readouterr().out.splitlines()


def test_env_says_what_there_is_and_why_a_backend_is_missing() -> None:
    done = amp_checks("env")
    assert done.returncode == 0
    assert "torch " in done.stdout
    for backend_id in backends.IDS:
        assert backend_id in done.stdout
    if backends.why_unavailable("cuda-float16"):
        assert "not available: " in done.stdout


def test_env_as_json_is_json_alone() -> None:
    done = amp_checks("env", "--json", "-")
    assert set(json.loads(done.stdout)) >= {
        "torch",
        "torch_path",
        "devices",
        "driver",
        "switches",
        "threads",
        "backends",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "-n needs pytest-xdist: pip install 'amp-checks[xdist]'"),
        (["--require-cuda"], "--require-cuda without -n 0 uses a worker for each GPU, and needs pytest-xdist: pip"),
    ],
)
def test_workers_without_xdist_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cli.entry(["run", *arguments]) == 4
    assert f"amp-checks: error: {message}" in capsys.readouterr().err


def test_the_gate_without_cuda_names_it() -> None:
    if backends.why_unavailable("cuda-float16") is None:
        pytest.skip("this machine has a CUDA device")
    done = amp_checks("run", "--require-cuda")
    assert done.returncode == 4
    assert done.stderr.startswith("amp-checks: error: CUDA is required")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stdout


@pytest.fixture
def hostile_repository(tmp_path: Path) -> Path:
    """A user's repository whose own configuration would change or hide anything that listened to it."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers -k none_of_ours --maxfail=1\npython_files = none.py\n"
        "filterwarnings = error\nxfail_strict = true\nnorecursedirs = amp_checks conformance\n",
        encoding="utf-8",
    )
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a conftest that nobody asked for')\n", encoding="utf-8")
    (tmp_path / "torch.py").write_text("raise RuntimeError('not the torch you want')\n", encoding="utf-8")
    return tmp_path


def test_the_folder_it_is_called_in_has_no_say(
    hostile_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    selection = ("run", "--family", "scaler", "--backend", "cpu-float16", "-k", FEW)
    script = Path(sys.executable).with_name("amp-checks")
    here, there = tmp_path_factory.mktemp("here"), hostile_repository
    found = []
    for folder, environment in ((here, {}), (there, {"PYTEST_ADDOPTS": "-k nothing", "PYTEST_PLUGINS": "missing"})):
        done = subprocess.run(
            [str(script), *selection, "--json", "out.json"],
            capture_output=True,
            text=True,
            cwd=folder,
            env=os.environ | environment,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(written(folder / "out.json")["results"])
    assert found[0] == found[1]
    assert found[0]


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    selection = ("run", "-k", f"{FEW} or trace or softmax or inverse or planted")
    for name, workers in (("one.json", "0"), ("two.json", "2")):
        done = amp_checks(*selection, "-n", workers, "--json", name, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = written(tmp_path / "one.json"), written(tmp_path / "two.json")
    assert one["results"] == two["results"]
    assert one["environment"] == two["environment"]
    assert [entry["id"] for entry in one["results"]] == sorted(entry["id"] for entry in one["results"])


def test_json_on_standard_output_stands_there_alone() -> None:
    done = amp_checks("run", "--family", "scaler", "--backend", "cpu-float16", "-k", FEW, "--json", "-")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["schema"] == "amp_checks/results"
    assert "AMP is right" in done.stderr


def test_a_document_on_standard_output_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    content = document([result("中野 \U0001f600 \udcff", Status.FAILED, message="ü")])
    files.write_text(tmp_path / "in.json", FORMATS["json"].render(content))
    done = subprocess.run(
        [sys.executable, "-m", "amp_checks", "report", "in.json", "--format", "json"],
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == plain(content)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_output_that_cannot_be_written_is_no_wrong_amp() -> None:
    command = f"{shlex.quote(sys.executable)} -m amp_checks ranges --list"
    for redirected, status, said in (
        (">/dev/full", 3, "amp-checks: error: [Errno 28] No space left on device\n"),
        ("| true; exit ${PIPESTATUS[0]}", 2, ""),
        (">&-", 0, ""),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{command} {redirected}"],
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (status, said), redirected


def test_pyargs_runs_the_same_items_from_a_users_repository(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\npython_files = mine_*.py\nfilterwarnings = error\nxfail_strict = true\n",
        encoding="utf-8",
    )
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(autouse=True)\ndef spoil():\n    raise RuntimeError('not for them')\n",
        encoding="utf-8",
    )
    selection = ("--amp-family", "scaler", "--amp-backend", "cpu-float16", "--amp-json", "pyargs.json")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "amp_checks", *selection, "-k", FEW],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = amp_checks(
        "run", "--family", "scaler", "--backend", "cpu-float16", "-k", FEW, "--json", "run.json", cwd=tmp_path
    )
    assert written(tmp_path / "pyargs.json")["results"] == written(tmp_path / "run.json")["results"]
