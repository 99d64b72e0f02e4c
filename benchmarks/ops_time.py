"""Time and findings per second of the ops family, one process, one thread, by device type and by check.

    python benchmarks/ops_time.py [--full] [BACKEND...]

Wall and processor time: the second means the same on a machine that others use. Compare with the budget of the gate:
60 s with two workers over all six device types.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import time

T0 = time.process_time()
import torch  # noqa: E402 - its import is one of the figures

IMPORT_TORCH = time.process_time() - T0

from amp_checks import backends, families  # noqa: E402


def main() -> None:
    """Print the time of the import of torch, of collecting and of running, by check."""
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    chosen = backends.resolve(names or [name for name in backends.IDS if not name.startswith("cuda-")])
    began = time.process_time()
    items = families.collect(backends=chosen, families=["ops"], full="--full" in sys.argv)
    collected = time.process_time() - began
    spent: dict[tuple[str, str], Spent] = collections.defaultdict(Spent)
    statuses = collections.Counter[str]()
    for item in items:
        wall, processor = time.perf_counter(), time.process_time()
        result = item.run()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        for key in (("all", ""), ("device", item.backend.device_type), ("check", item.check.__name__)):
            spent[key].add(wall, processor, len(result.findings))
        statuses[str(result.status)] += 1
    print(f"import torch {IMPORT_TORCH:.1f} s, collect {collected:.1f} s; {dict(statuses)}")
    print(f"{'':<44}{'items':>7}{'findings':>10}{'wall s':>9}{'CPU s':>9}{'findings/s':>12}")
    for (kind, name), found in sorted(spent.items(), key=lambda entry: (ORDER[entry[0][0]], -entry[1].processor)):
        print(f"{kind + ' ' + name:<44}{found}")


ORDER = {"all": 0, "device": 1, "check": 2}


@dataclasses.dataclass(slots=True)
class Spent:
    """What a group of items took."""

    items: int = 0
    findings: int = 0
    wall: float = 0.0
    processor: float = 0.0

    def add(self, wall: float, processor: float, findings: int) -> None:
        """Count one item."""
        self.items += 1
        self.findings += findings
        self.wall += wall
        self.processor += processor

    def __str__(self) -> str:
        rate = self.findings / max(self.processor, 1e-9)
        return f"{self.items:>7}{self.findings:>10}{self.wall:>9.1f}{self.processor:>9.1f}{rate:>12.0f}"


if __name__ == "__main__":
    main()
