"""How much memory each item of the gate takes, at its peak: is there one so heavy that it must run apart from others?

Usage (Linux alone: the kernel's own record of a process's peak is reset before each item)::

    python benchmarks/gate_memory.py [options of pytest and of the plugin, as --amp-backend cpu-float16]

Prints the ten items that the process grew for most, in MiB. Exits 1 if one took more than 256 MiB.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MOST = 256.0
_grown: dict[str, float] = {}


def _mebibytes(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note how far the peak of the process lies above what it held when the item began."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _mebibytes("VmRSS")
    try:
        return (yield)
    finally:
        _grown[item.name] = _mebibytes("VmHWM") - before


def main() -> int:
    from amp_checks.cli.run import CONFORMANCE

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    own = ["-q", "-c", str(CONFORMANCE / "pytest.ini"), "--rootdir", str(CONFORMANCE), "--noconftest"]
    suite = ["-p", "amp_checks.plugin", str(CONFORMANCE / "suite.amp")]
    status = pytest.main([*own, *suite, *sys.argv[1:]], plugins=[sys.modules[__name__]])
    heaviest = sorted(_grown.items(), key=lambda pair: -pair[1])[:10]
    print(f"\n{len(_grown)} items; most grown by, in MiB:")
    print("\n".join(f"{size:7.1f}  {name}" for name, size in heaviest))
    return int(status != 0 or any(size > MOST for _, size in heaviest))


if __name__ == "__main__":
    sys.exit(main())
