"""Do the audit's verdicts hang on the numbers drawn? Every pair of fixtures under other seeds.

    python benchmarks/audit_seeds.py --seeds 20 [--first 0] [--only TEXT]

A fault counts as found where the rule of its pair names it on the marked line, and as told once where it is one error
at most (two for the pair whose one line has two). An alarm is a finding above a note on a corrected program. Each miss
is a line; the last lines give the figures, and where there is no alarm the rate above which that would have a chance
below 5 %. Exit status 1 where anything was missed.
"""

from __future__ import annotations

import argparse
import os
import sys

from amp_checks.audit import Severity
from amp_checks.families.audit.mutants import TWO_ERRORS, alarms_in, audited, missed, pairs
from amp_checks.torch_api.numerics import SALT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--only", default="", help="pairs whose name holds this")
    args = parser.parse_args()
    chosen = [pair for pair in pairs() if args.only in pair.id]
    found = once = tried = alarms = 0
    for seed in range(args.first, args.first + args.seeds):
        os.environ[SALT] = str(seed)
        for pair in chosen:
            for name in pair.backends:
                faulty, corrected = (audited(pair, name, fault=fault) for fault in (True, False))
                told = [one.rule for one in faulty.diagnostics if one.severity is Severity.ERROR]
                wrong = alarms_in(corrected)
                is_found, is_once = not missed(pair, faulty), len(told) <= (2 if pair.id in TWO_ERRORS else 1)
                tried, found, once, alarms = tried + 1, found + is_found, once + is_once, alarms + bool(wrong)
                for ok, what in ((is_found, "missed"), (is_once, "told more than once"), (not wrong, "false alarm")):
                    if not ok:
                        print(f"seed {seed}: {pair.id} under {name}: {what}: {wrong or told}", flush=True)
    print(f"faults found: {found} of {tried}; told as one error: {once}")
    bound = f" (rate at most {1 - 0.05 ** (1 / tried):.2%})" if tried and not alarms else ""
    print(f"false alarms: {alarms} of {tried} corrected programs{bound}")
    return 0 if found == once == tried and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())
