"""Time of the range table, one process, one thread, and the figures that its thresholds stand on.

    python benchmarks/ranges_time.py [--full] [BACKEND...]

Processor time, not wall time. The family fp32-only has 45 s in the gate for all default backends; ranges may take 20.
"""

from __future__ import annotations

import collections
import math
import sys
import time
import warnings

import torch

from amp_checks import backends
from amp_checks.families.ranges import checks
from amp_checks.families.ranges import probe as ranges
from amp_checks.families.ranges.cases import CASES
from amp_checks.families.ranges.inputs import DIRECTIONS, SAFE, RangeCase
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend

Figure = tuple[float, str]


def errors(case: RangeCase, backend: Backend) -> list[Figure]:
    """The error at magnitude 1, in the unit of `ranges.BOUND`, where AMP is safe there."""
    probe = ranges.Probe(case, backend)
    found: list[Figure] = []
    with backend.activate():
        verdicts = probe.at(1.0)
        inputs = probe.inputs(1.0)
        given, exact = probe.under_amp(inputs), probe.plain(inputs, torch.float64)
    for direction, actual, expected in zip(DIRECTIONS, given, exact, strict=True):
        if verdicts.get(direction, ("", ""))[0] == SAFE:
            for one, other in zip(actual, expected, strict=True):
                ratio = ranges.error(one, other, low=backend.low_dtype)
                found.append((ratio, f"{case.name} {backend.id} {direction}"))
    return found


def main() -> None:
    """Print seconds by check and backend, and the largest healthy figures of each threshold."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = backends.resolve([name for name in sys.argv[1:] if not name.startswith("--")])
    rows = [case for case in CASES if "--full" in sys.argv or not case.full]
    spent: dict[tuple[str, str], float] = collections.defaultdict(float)
    figures: dict[str, list[Figure]] = collections.defaultdict(list)
    items, failed = 0, 0
    for backend in chosen:
        for case in rows:
            if not case.runs_on(backend):
                continue
            for check in checks.checks_for(case):
                began = time.process_time()
                result = measure(check, case, backend)
                spent[check.__name__, backend.id] += time.process_time() - began
                items += 1
                failed += len(result.failures) > 0
                for finding in result.findings:
                    if finding.subject.endswith("safe magnitude") and math.isfinite(finding.ratio):
                        kind = "not finite" if finding.threshold == checks.SHARP.value else "finite and wrong"
                        figures[kind].append((finding.ratio, f"{result.id} {finding.subject}"))
            figures["error at magnitude 1"] += errors(case, backend)
    print(f"{len(rows)} rows, {items} items, {failed} with failures (known defects are not told apart here)")
    print(f"{sum(spent.values()):.1f} s of processor time")
    for (name, backend_id), seconds in sorted(spent.items()):
        print(f"  {name:<22}{backend_id:<26}{seconds:6.1f} s")
    for kind, found in figures.items():
        print(f"{kind}: {len(found)}, largest:")
        for ratio, where in sorted(found, reverse=True)[:6]:
            print(f"  {ratio:6.2f}  {where}")


if __name__ == "__main__":
    main()
