"""Results of the gate that ship with the package, one file for each supported torch: something to compare with on the
first day.

``fixtures/results/torch-<version>.json.xz`` is a results document without times and without paths of the machine;
``benchmarks/record_results.py`` makes it.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from amp_checks.core import SuiteError
from amp_checks.records import fixtures

_PREFIX, _SUFFIX = "torch-", ".json.xz"
_OF_ONE_MACHINE = ("torch_path", "platform")


def versions() -> dict[str, Path]:
    """Torch version -> the file of its recorded results, oldest version first."""
    found = fixtures.fixture("results").glob(f"{_PREFIX}*{_SUFFIX}")
    by_version = {path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): path for path in found}
    return dict(sorted(by_version.items(), key=lambda pair: [int(part) for part in pair[0].split(".")]))


def read(version: str) -> dict[str, Any]:
    """The recorded results of a version.

    Raises:
        SuiteError: the file is damaged.
    """
    path = versions()[version]
    try:
        content: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise SuiteError(f"{path.name} cannot be read as recorded results: {error}") from error
    return content


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Record a results document under its torch's release number.

    Raises:
        SuiteError: the run did not finish, so it is nothing to compare with.
    """
    if not content["complete"]:
        raise SuiteError("a run that did not finish is nothing to compare with: it is not recorded")
    environment = {name: value for name, value in content["environment"].items() if name not in _OF_ONE_MACHINE}
    lasting = {name: value for name, value in content.items() if name not in ("seconds", "curves", "tests")}
    text = json.dumps({**lasting, "environment": environment}, ensure_ascii=False, allow_nan=False)
    path = folder / f"{_PREFIX}{environment['torch'].partition('+')[0]}{_SUFFIX}"
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    return path
