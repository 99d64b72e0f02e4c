"""Does the user's program train as well under AMP as in float32? Paired seeds, the suite's own statistic."""

from __future__ import annotations

import dataclasses
import math
import statistics

from amp_checks.audit.case import AuditCase
from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.audit.runs.plan import NEUTRAL, Runs, Setup
from amp_checks.reference import parity
from amp_checks.torch_api.backend import Backend

RULE = "training-differs"


def compare_seeds(case: AuditCase, backend: Backend) -> list[Diagnostic]:
    """Train ``case.seeds`` times in each precision; a diagnostic where the mean losses are not equivalent."""
    results: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(case.seeds):
        runs = Runs(dataclasses.replace(case, id=f"{case.id}#{seed}"), backend)
        for neutral, losses in results.items():
            trace = runs.trace(Setup(changes=NEUTRAL.changes if neutral else ()))
            of_run = [loss for _, loss in trace.losses]
            losses.append(statistics.fmean(of_run) if of_run and trace.failure is None else math.nan)
    found = parity.compare(fp32=results[True], amp=results[False])
    if found.verdict is parity.Verdict.EQUIVALENT:
        return []
    undecided = found.verdict in (parity.Verdict.TOO_FEW_SEEDS, parity.Verdict.NO_SPREAD)
    return [
        Diagnostic(
            rule=RULE,
            severity=Severity.WARNING if undecided else Severity.ERROR,
            message=f"mean training loss, AMP against FP32: {found.describe()}",
            remedy="give more seeds or batches" if undecided else "see the other findings, or train longer to see more",
        )
    ]
