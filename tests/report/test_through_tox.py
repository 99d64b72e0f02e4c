"""The main job as tox runs it, with a fault planted: status, reports and what GitHub reads come through.

What tox installs is left to CI, which runs the environments whole; here the package of this process stands in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = ("package=skip", "deps=", "extras=", "allowlist_externals=amp-checks")

Tox = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tox(tmp_path: Path) -> Tox:
    pytest.importorskip("tox", reason="tox is not installed in this environment")
    if not (ROOT / "tox.ini").exists():
        pytest.skip("tox.ini is in a checkout alone")

    def run(environment: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        overrides = [part for setting in STAND_IN for part in ("-x", f"testenv:{environment}.{setting}")]
        command = [
            "tox",
            "run",
            "-q",
            "-c",
            str(ROOT / "tox.ini"),
            "--workdir",
            str(tmp_path / "tox"),
            "-e",
            environment,
        ]
        return subprocess.run(
            [sys.executable, "-m", *command, *overrides, "--", *arguments],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "TOX_"))},
                "PATH": path,
                "AMP_WORKERS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "GITHUB_ACTIONS": "true",
                "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_planted_fault_comes_through(tox: Tox, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
    report = tmp_path / "report"
    fault = ("--plant", "rule-removed-mm", "--backend", "emulated-cuda-float16")
    done = tox("checks", *fault, "--report-dir", str(report))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AMP IS WRONG: 4 of 8 checks failed" in done.stdout
    assert done.stdout.count("::error ") == 4
    assert (tmp_path / "step.md").read_text(encoding="utf-8").startswith("## amp_checks: AMP IS WRONG: 4 of 8")
    assert {file.name for file in report.iterdir()} == {"results.json", "junit.xml", "summary.md", "report.html"}
    written = json.loads((report / "results.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in written["results"]].count("failed") == 4


def test_the_gate_without_cuda_is_no_green_environment(tox: Tox) -> None:
    done = tox("gpu")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "amp-checks: error: CUDA is required (--require-cuda), but " in done.stdout + done.stderr
