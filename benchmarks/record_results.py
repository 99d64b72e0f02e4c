"""Record the gate's results for the torch that is installed, to ship with the package.

Usage::

    amp-checks run -n 2 --json results.json; python benchmarks/record_results.py results.json

Writes ``fixtures/results/torch-<version>.json.xz``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from amp_checks.report import reading, recorded

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    path = recorded.write(FOLDER, reading.read(options.file))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
