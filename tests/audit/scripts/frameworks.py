"""Scripts of Lightning, accelerate and transformers, as they are: ``tox -e scripts`` runs this file beside the tests.

It is not collected by name: these libraries are no requirement of the tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from script_audits import SCRIPTS, Faulty, assert_found, assert_healthy

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
