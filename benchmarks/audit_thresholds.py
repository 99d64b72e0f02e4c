"""What the audit's thresholds stand on: errors of gradients and loss on every pair of fixtures, corrected and faulty.

    python benchmarks/audit_thresholds.py [--only TEXT]

One line a program: the worst parameter's gradient error, the loss error (units of `amp_checks.audit.measures`), all
gradients' relative error, the common factor's distance from 1. The last lines give the healthy range.
"""

from __future__ import annotations

import argparse
import warnings

from amp_checks import backends
from amp_checks.audit import AuditCase, measures
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.runs.plan import Runs
from amp_checks.families.audit.mutants import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="pairs whose name holds this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    healthy: list[tuple[float, float, float, float]] = []
    for pair in pairs():
        if args.only not in pair.id:
            continue
        for name in pair.backends:
            for fault in (False, True):
                case = AuditCase(id=pair.id, build=pair.twin(fault=fault))
                compared = Evidence(Runs(case, backends.backend(name))).compared
                row = (
                    max(measures.ratios(compared).values(), default=0.0),
                    measures.loss_ratio(compared) or 0.0,
                    measures.total_error(compared),
                    abs(measures.bias(compared) or 0.0),
                )
                if not fault:
                    healthy.append(row)
                kind = "faulty" if fault else "corrected"
                print(f"{pair.id:44} {name:24} {kind:9} " + " ".join(f"{value:10.4g}" for value in row), flush=True)
    for label, column in zip(("gradient", "loss", "all gradients", "factor"), zip(*healthy, strict=True), strict=True):
        print(f"corrected, {label}: {min(column):.4g} to {max(column):.4g}")


if __name__ == "__main__":
    main()
