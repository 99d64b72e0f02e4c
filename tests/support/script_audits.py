"""Scripts audited as a user does, and what must be true of each: found, named, placed, told in one error."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "fixtures" / "scripts"


@dataclasses.dataclass(frozen=True, slots=True)
class Faulty:
    """A script with one of its faults.

    Attributes:
        fault: its name, on the line that has it: ``# name``.
        rule: what finds it.
        file: which holds the line, from the folder of the scripts on.
        command: the script and its arguments.
    """

    fault: str
    rule: str
    file: str
    command: tuple[str, ...]

    @property
    def place(self) -> str:
        lines = (SCRIPTS / self.file).read_text().splitlines()
        (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {self.fault}")]
        return f"{self.file}:{number}"

    def __str__(self) -> str:
        return f"{self.command[-1] if self.command[0] == '-m' else self.command[0]}-{self.fault}"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, every folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def audit(folder: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any] | None, str]:
    """Exit status, the document, and what was written on standard error; nothing in the folder may have changed."""
    before, out = contents(folder), folder.parent / "out.json"
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "amp_checks", "audit", "--json", str(out), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert contents(folder) == before
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(out.read_text()) if out.exists() else None, done.stderr


def assert_healthy(folder: Path, command: tuple[str, ...], findings: tuple[str, ...] = ()) -> dict[str, Any]:
    """No finding, notes on the initial scale apart, but for ``findings``: faults of a framework. Its figures."""
    status, document, said = audit(folder, *command)
    assert document is not None, said
    found = [one["rule"] for one in document["audits"][0]["diagnostics"] if one["severity"] != "note"]
    assert (found, status) == (list(findings), 0)
    summary: dict[str, Any] = document["audits"][0]["summary"]
    assert summary["reference"] == "float64"
    return summary


def assert_found(folder: Path, faulty: Faulty) -> None:
    """The fault is found, named and placed, and there is one error at most."""
    status, document, said = audit(folder, *faulty.command, FAULT=faulty.fault)
    assert document is not None, said
    found = [one for one in document["audits"][0]["diagnostics"] if one["follows_from"] is None]
    placed = [(one["rule"], one["where"]) for one in found if one["severity"] != "note"]
    assert any(rule == faulty.rule and f"{where} ".find(faulty.place) >= 0 for rule, where in placed), placed
    errors = [one for one in found if one["severity"] == "error"]
    assert len(errors) == status <= 1
