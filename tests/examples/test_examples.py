"""The examples, exercised as far as a machine without GPU, Docker or GitHub's runner can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import example_files as examples
import pytest
import torch

from amp_checks import cli

TEXTS = [examples.WORKFLOW, *sorted(examples.FOLDER.rglob("*.md"))]


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: str(file.relative_to(examples.FOLDER)))
def test_every_command_in_a_text_is_one_that_the_command_line_knows(file: Path) -> None:
    for arguments in examples.commands(file.read_text(encoding="utf-8")):
        cli.parse(arguments)


def test_the_commands_are_found() -> None:
    found = examples.commands(examples.WORKFLOW.read_text(encoding="utf-8"))
    assert [arguments[0] for arguments in found] == ["run", "run", "diff"]
    assert ["run", "--require-cuda", "-n", "auto", "--report-dir", "amp-report"] in found


def test_the_workflow_is_one_by_githubs_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="GitHub's schema of workflows comes with check-jsonschema")

    def validate(file: Path) -> int:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert validate(examples.WORKFLOW) == 0
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(examples.WORKFLOW.read_text(encoding="utf-8").replace("runs-on:", "runs-upon:"), encoding="utf-8")
    assert validate(wrong) == 1


@pytest.mark.parametrize("dockerfile", examples.DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_runs_the_gate_and_copies_what_there_is(dockerfile: Path) -> None:
    program, *arguments = examples.entry_point(dockerfile)
    assert Path(program).name == "amp-checks"
    given = cli.parse(arguments)
    assert given.require_cuda
    found = examples.instructions(dockerfile)
    assert [rest for name, rest in found if name == "COPY"] == [". /src/amp-checks"]
    assert given.report_dir == dict(found)["VOLUME"] == dict(found)["WORKDIR"]


@pytest.mark.parametrize("dockerfile", examples.DOCKERFILES, ids=lambda file: file.stem)
def test_the_run_lines_of_an_image_work_outside_docker(dockerfile: Path, tmp_path: Path) -> None:
    """In a fresh interpreter that finds this one's torch; nothing is fetched from an index."""
    pytest.importorskip("hatchling", reason="the package is built here without fetching its build backend")
    for name in ("amp_checks", "fixtures", "pyproject.toml", "README.md", "LICENSE"):
        source, target = examples.ROOT / name, tmp_path / "src" / "amp-checks" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PATH": f"{base / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": sysconfig.get_paths()["purelib"],
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this switch the wrong way round: 0 turns isolation off
        "TORCH": torch.__version__,
    }
    ran = []
    for name, rest in examples.instructions(dockerfile):
        if name == "RUN" and not rest.startswith("apt-get"):
            script = rest.replace("/src/", f"{tmp_path}/src/").replace("/opt/venv", f"{tmp_path}/venv")
            done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
            ran.append(done.stdout)
    assert "emulated-cuda-float16" in ran[-1]
    program = str(examples.entry_point(dockerfile)[0]).replace("/opt/venv", f"{tmp_path}/venv")
    found = shutil.which(program, path=environment["PATH"])
    assert found is not None
    assert Path(found).is_relative_to(tmp_path)


def run_own_model(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    folder = tmp_path / "own-model"
    shutil.copytree(examples.OWN_MODEL, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_own_model_trains_right_under_amp(own_model: Path) -> None:
    done = run_own_model(own_model, "pytest", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "AMP is right: 12 checks ran on cpu-bfloat16, emulated-cuda-float16 (emulated)" in done.stdout


def test_a_fault_in_the_own_model_is_found_where_it_hurts(own_model: Path) -> None:
    file = own_model / "tagger.py"
    text = file.read_text(encoding="utf-8")
    # In FP32 and bfloat16 the normalisation that follows takes the factor away; in float16 it overflows first.
    wrong = text.replace("need_weights=False)[0])", "need_weights=False)[0] * 1e6)")
    assert wrong != text
    file.write_text(wrong, encoding="utf-8")
    done = run_own_model(own_model, "pytest", "-p", "no:cacheprovider", "-k", "check_learns or check_steps_run")
    assert done.returncode == 1, done.stdout
    assert "run it again" not in done.stdout  # amp-checks run knows the suite's own items only
    assert "FAILED test_amp.py::test_amp[check_steps_run-tagger-emulated-cuda-float16]" in done.stdout
    assert "FAILED test_amp.py::test_amp[check_steps_run-tagger-cpu-bfloat16]" not in done.stdout


def test_the_own_models_step_is_audited(own_model: Path) -> None:
    arguments = ("audit", "audit_case.py:case", "--backend", "emulated-cuda-float16")
    done = run_own_model(own_model, "amp_checks", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout


DEFECTS = {
    "autocast_stays_on_after_recursion": "autocast is on: True, a product is torch.bfloat16;",
    "found_inf_is_reduced_over_the_first_mesh": "[512.0, 512.0, 1024.0, 1024.0];",
    "fused_sgd_takes_what_lay_in_memory_as_momentum": " of 1000 weights are wrong",
    "sparse_gradient_overflows_unseen": "weight after the step: -3e+38, loss scale 2.0;",
}
"""Programs that show a defect of torch, and what each prints as long as torch has it."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_program_shows_its_defect(name: str) -> None:
    folder = examples.FOLDER / "defects_of_torch"
    assert {file.stem for file in folder.glob("*.py")} == set(DEFECTS)
    command = [sys.executable, str(folder / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    last = done.stdout.strip().splitlines()[-1]
    assert DEFECTS[name] in last
    assert "should be" in last
    assert not last.startswith("0 of")
