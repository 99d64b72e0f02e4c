"""Plant every negative control in every task it applies to, and say which check notices, and by how much.

Usage::

    python benchmarks/convergence_negative_controls.py [--backend ID ...] [--task ID ...] [--out FILE.json]

Prints a table; exits 1 if a control goes unnoticed by the check that must notice it. One line per cell goes to standard
error as it is done, and to the file, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from amp_checks import backends, families
from amp_checks.core import Status
from amp_checks.families.convergence import checks
from amp_checks.families.convergence.cases import CASES, ConvergenceCase
from amp_checks.families.convergence.mutants.controls import CONTROLS, Control
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend

DEFAULT = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


def cell(control: Control, case: ConvergenceCase, backend: Backend) -> dict[str, Any]:
    """One control in one task on one backend: who notices, and the statistic of the losses."""
    noticed, statistic = [], 0.0
    for check in families.checks_for(case):
        with control.plant(backend) as faulty:
            result = measure(check, case, faulty)
        if result.status is Status.FAILED:
            noticed.append(check.__name__)
        if check.__name__ == "check_trains_like_fp32":
            ratios = [finding.ratio / finding.threshold for finding in result.findings]
            statistic = math.inf if any(map(math.isnan, ratios)) else max(ratios)
        if result.status is Status.ERROR:
            raise SystemExit(result.detail)
    return {
        "control": control.id,
        "task": case.id,
        "backend": backend.id,
        "must": control.must,
        "noticed_by": noticed,
        "loss_statistic_over_margin": statistic if math.isfinite(statistic) else "inf",
        "caught": control.must in noticed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=backends.IDS)
    parser.add_argument("--task", action="append", choices=[case.id for case in CASES if not case.full])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = []
    for name in options.backend or DEFAULT:
        backend = backends.backend(name)
        for case in CASES:
            if case.full or case.id == "as_published" or (options.task and case.id not in options.task):
                continue
            if measure(checks.check_learns, case, backend).status is not Status.PASSED:
                print(f"{case.id} does not train on {name} here, fault or no fault: left out", file=sys.stderr)
                continue
            for control in CONTROLS:
                if control.applies(case, backend):
                    cells.append(cell(control, case, backend))
                    print(cells[-1], file=sys.stderr, flush=True)
                    if options.out:
                        record = {"torch": torch.__version__, "cells": cells}
                        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("| control | task | backend | loss statistic over margin | noticed by |")
    print("|---|---|---|---|---|")
    for row in cells:
        statistic = row["loss_statistic_over_margin"]
        shown = statistic if isinstance(statistic, str) else f"{statistic:.3g}"
        names = ", ".join(name.removeprefix("check_") for name in row["noticed_by"]) or "nobody"
        print(f"| {row['control']} | {row['task']} | {row['backend']} | {shown} | {names} |")
    missed = [row for row in cells if not row["caught"]]
    print(f"\n{len(cells)} cells, {len(cells) - len(missed)} caught by the check that must")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
