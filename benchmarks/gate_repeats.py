"""Run the gate over and over, in shuffled order, with one worker and two, on other data: does any verdict change?

Usage::

    python benchmarks/gate_repeats.py [--repeats 50] [--only N ...] [--jobs 1] [--family F ...] [--backend ID ...]
                                      [--out FILE.json]

Repeat 0 is the gate as it is. Every other one shuffles the items by its own number; of each three, one also draws all
inputs, weights and orders from other seeds (``AMP_CHECKS_SEED``), and these run first; workers take turns, none, one,
two. ``--only`` runs some of them again, after a mend. Verdicts are compared item by item with repeat 0. Prints how many
items changed their verdict; exits 1 if one did, or if any repeat failed, repeat 0 among them: each row names what it
did not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

ORDER = "GATE_REPEATS_ORDER"
WORKERS = ("2", "0", "1", "0")
"""Of a length that 3 does not divide: so the repeats with other seeds, each third, meet all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle, every worker alike, as pytest-xdist wants it: the module is its own plugin."""
    if ORDER in os.environ:
        random.Random(os.environ[ORDER]).shuffle(items)


def once(number: int, selection: list[str], file: Path) -> tuple[int, float, str]:
    """One repeat, its results in ``file``: exit status of pytest, seconds, and the end of what it printed."""
    from amp_checks.cli.run import CONFORMANCE

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gate_repeats"]
    command += ["-c", str(CONFORMANCE / "pytest.ini"), "--rootdir", str(CONFORMANCE), "--noconftest"]
    command += ["-p", "amp_checks.plugin", str(CONFORMANCE / "suite.amp"), "--amp-json", str(file), *selection]
    workers = WORKERS[number % len(WORKERS)]
    if workers != "0":
        command += ["-p", "xdist.plugin", "-n", workers, "--dist", "worksteal"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    here = str(Path(__file__).parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    if number:
        environment[ORDER] = str(number)
    if number % 3 == 1:
        environment["AMP_CHECKS_SEED"] = str(number)
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not file.exists():
        raise SystemExit(f"repeat {number} left no results:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode, time.perf_counter() - started, done.stdout[-2000:] + done.stderr[-2000:]


def repeat(number: int, selection: list[str], first: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """One repeat as a row of the record, with its verdicts; ``first`` holds those of repeat 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        status, seconds, printed = once(number, selection, file)
        found = json.loads(file.read_text(encoding="utf-8"))
    verdicts = {entry["id"]: entry["status"] for entry in found["results"]}
    before = first or verdicts
    changed = {
        name: [before.get(name), verdicts.get(name)]
        for name in sorted(before.keys() | verdicts.keys())
        if before.get(name) != verdicts.get(name)
    }
    row: dict[str, Any] = {
        "repeat": number,
        "seeds": number if number % 3 == 1 else None,
        "workers": WORKERS[number % len(WORKERS)],
    }
    row |= {"status": status, "items": len(verdicts), "changed": changed, "seconds": round(seconds, 1)}
    if status:
        row["failed"] = {
            entry["id"]: entry for entry in found["results"] if entry["status"] not in ("passed", "known defect")
        }
        row["printed"] = printed
    return row, verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these repeats, and repeat 0")
    parser.add_argument("--jobs", type=int, default=1, help="repeats at a time, which also loads the machine")
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    selection = [part for name in options.family for part in ("--amp-family", name)]
    selection += [part for name in options.backend for part in ("--amp-backend", name)]
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    row, first = repeat(0, selection, {})
    keep(row)
    numbers = sorted(options.only or range(1, options.repeats), key=lambda number: number % 3 != 1)
    with ThreadPoolExecutor(options.jobs) as jobs:
        waiting = [jobs.submit(repeat, number, selection, first) for number in numbers]
        for done in as_completed(waiting):
            keep(done.result()[0])
    flaky = sorted({name for row in rows for name in row["changed"]})
    failed = [row["repeat"] for row in rows if row["status"]]
    print(f"{len(rows)} repeats of {len(first)} items: {len(flaky)} changed their verdict", *flaky, sep="\n  ")
    if failed:
        print("failed: repeats", *failed)
    return 1 if flaky or failed else 0


if __name__ == "__main__":
    sys.exit(main())
