"""Where the gate's time goes: seconds of each family over all default backends, against its budget.

Usage::

    python benchmarks/gate_time.py [-n 2] [--json results.json]

Runs ``amp-checks run`` once, or reads the results of such a run. A family's figure is the sum over its items, divided
by the workers; the budgets are those of the pull-request gate with two workers. Prints a table; exits 1 if the whole
gate took more than its budget.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

BUDGETS = {"ops": 60.0, "scaler": 30.0, "fp32-only": 45.0, "convergence": 120.0, "planted": 15.0}
WHOLE = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--json", type=Path, help="results of a run with that many workers, instead of a new one")
    options = parser.parse_args()
    wall = None
    with tempfile.TemporaryDirectory() as folder:
        file = options.json or Path(folder) / "results.json"
        if options.json is None:
            began = time.perf_counter()
            command = [sys.executable, "-m", "amp_checks", "run", "-n", str(options.n), "--json", str(file)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            wall = time.perf_counter() - began
        content = json.loads(file.read_text(encoding="utf-8"))
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for entry in content["results"]:
        seconds[entry["family"]] += content["seconds"].get(entry["id"], 0.0) / options.n
        counts[entry["family"]][0] += 1
        counts[entry["family"]][1] += len(entry["findings"])
    print("| family | items | findings | seconds | budget | findings per second |")
    print("|---|---|---|---|---|---|")
    for family, spent in sorted(seconds.items(), key=lambda pair: -pair[1]):
        items, findings = counts[family]
        budget = f"{BUDGETS[family]:g}" if family in BUDGETS else ""
        print(f"| {family} | {items} | {findings} | {spent:.1f} | {budget} | {findings / max(spent, 1e-9):.0f} |")
    total = sum(seconds.values()) if wall is None else wall
    print(
        f"\nwhole gate, {options.n} workers: {total:.0f} s of {WHOLE:g} ({'of its items' if wall is None else 'wall'})"
    )
    return int(total > WHOLE)


if __name__ == "__main__":
    sys.exit(main())
