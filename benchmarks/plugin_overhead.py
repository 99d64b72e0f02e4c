"""What the plugin adds to a trivial pytest run of another project: interleaved runs, medians.

    python benchmarks/plugin_overhead.py [--runs 15]

Each run is a whole process: ``pytest`` on one empty test, with the installed plugin and with ``-p no:amp_checks``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(folder: Path, *arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_trivial.py").write_text("def test_trivial():\n    pass\n", encoding="utf-8")
        kinds = {"with": (), "without": ("-p", "no:amp_checks")}
        for arguments in kinds.values():
            seconds(folder, *arguments)
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(runs):
            for kind, arguments in kinds.items():
                taken[kind].append(seconds(folder, *arguments))
    medians = {kind: statistics.median(times) * 1000 for kind, times in taken.items()}
    pairs = statistics.median(w - o for w, o in zip(taken["with"], taken["without"], strict=True)) * 1000
    print(f"with the plugin {medians['with']:.0f} ms, without {medians['without']:.0f} ms; ", end="")
    print(f"difference of medians {medians['with'] - medians['without']:.0f} ms, median of differences {pairs:.0f} ms")


if __name__ == "__main__":
    main()
