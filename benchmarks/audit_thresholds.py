"""What the audit's thresholds stand on: errors of gradients and loss on every pair of fixtures, corrected and faulty.

    python benchmarks/audit_thresholds.py [--only TEXT]

One line a program: the worst parameter's gradient error, the loss error (units of `amp_checks.audit.measures`), all
gradients' relative error, the common factor's distance from 1. The last lines give the healthy range.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings

from amp_checks import backends
from amp_checks.audit import AuditCase, measures
from amp_checks.audit.runs import plan
from amp_checks.records import fixtures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="pairs whose name holds this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = fixtures.fixture("audit")
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("loops_*.py")):
        importlib.import_module(path.stem)
    healthy: list[tuple[float, float, float, float]] = []
    for pair in importlib.import_module("audit_pairs").PAIRS:
        if args.only not in pair.id:
            continue
        for name in pair.backends:
            for fault in (False, True):
                case = AuditCase(id=pair.id, build=pair.twin(fault=fault))
                evidence = plan.gather(case, backends.backend(name))
                row = (
                    max(measures.ratios(evidence).values(), default=0.0),
                    measures.loss_ratio(evidence) or 0.0,
                    measures.total_error(evidence),
                    abs(measures.bias(evidence) or 0.0),
                )
                if not fault:
                    healthy.append(row)
                kind = "faulty" if fault else "corrected"
                print(f"{pair.id:44} {name:24} {kind:9} " + " ".join(f"{value:10.4g}" for value in row), flush=True)
    for label, column in zip(("gradient", "loss", "all gradients", "factor"), zip(*healthy, strict=True), strict=True):
        print(f"corrected, {label}: {min(column):.4g} to {max(column):.4g}")


if __name__ == "__main__":
    main()
