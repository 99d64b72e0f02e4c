"""Scripts of Lightning, accelerate and transformers, as they are: ``tox -e scripts`` runs this file beside the tests.

It is not collected by name: these libraries are no requirement of the tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from script_audits import SCRIPTS, Faulty, assert_found, assert_healthy, audit

AUTOMATIC = "frameworks/lightning_automatic.py"
MANUAL = "frameworks/lightning_manual.py"
ACCELERATED = "frameworks/accelerated.py"
TRAINED = "frameworks/trained.py"

HEALTHY: dict[str, tuple[str, ...]] = {
    AUTOMATIC: (),
    MANUAL: ("backward-in-autocast",),  # Lightning runs training_step, in which one calls backward, inside its region
    ACCELERATED: (),
    TRAINED: (),
}
FAULTY = (
    Faulty("kept-in-half", "loss-not-finite", AUTOMATIC, (AUTOMATIC, "--fault", "kept-in-half")),
    Faulty("changed-scaled", "scaled-gradients-modified", AUTOMATIC, (AUTOMATIC, "--fault", "changed-scaled")),
    Faulty("not-scaled", "loss-scaling-missing", MANUAL, (MANUAL,)),
    Faulty("clipped-scaled", "scaled-gradients-modified", MANUAL, (MANUAL,)),
    Faulty("not-scaled", "loss-not-scaled", ACCELERATED, (ACCELERATED, "not-scaled")),
    Faulty("clipped-scaled", "scaled-gradients-modified", ACCELERATED, (ACCELERATED, "clipped-scaled")),
    Faulty("penalty-in-half", "loss-not-finite", TRAINED, (TRAINED, "--fault", "penalty-in-half")),
    Faulty("changed-scaled", "scaled-gradients-modified", TRAINED, (TRAINED, "--fault", "changed-scaled")),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the scripts, as a user has them."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize("script", HEALTHY)
def test_a_healthy_script_has_no_finding_but_those_of_its_framework(script: str, folder: Path) -> None:
    assert_healthy(folder, (script,), HEALTHY[script])


@pytest.mark.parametrize("faulty", FAULTY, ids=str)
def test_a_fault_of_a_script_is_found_named_and_placed(faulty: Faulty, folder: Path) -> None:
    assert_found(folder, faulty)


CASES = "frameworks/cases.py"
FAULTY_CASES = {"normalising": "normalised-scaled", "clipping": "clipped-scaled"}


@pytest.mark.parametrize("name", ["automatic", "trained"])
def test_a_healthy_case_of_a_framework_has_no_finding(name: str, folder: Path) -> None:
    (folder / "out").mkdir()  # a Trainer makes its folder when it is made, audited or not
    assert_healthy(folder, (f"{CASES}:{name}", "--backend", "emulated-cuda-float16"))


@pytest.mark.parametrize("name", FAULTY_CASES)
def test_a_fault_of_a_case_is_found_named_and_placed(name: str, folder: Path) -> None:
    (folder / "out").mkdir()
    command = (f"{CASES}:{name}", "--backend", "emulated-cuda-float16")
    assert_found(folder, Faulty(FAULTY_CASES[name], "scaled-gradients-modified", CASES, command))


def test_lightning_is_audited_under_each_backend_that_it_has(folder: Path) -> None:
    status, document, _ = audit(folder, f"{CASES}:automatic")
    assert status == 0
    assert document is not None
    backends = [one["backend"] for one in document["audits"]]
    assert backends == ["cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"]
    status, _, said = audit(folder, f"{CASES}:automatic", "--backend", "cpu-float16")
    assert status == 4
    assert "Lightning has no precision 16-mixed on cpu: audit it on another backend" in said
