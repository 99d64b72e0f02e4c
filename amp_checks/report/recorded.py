"""Results of the gate that ship with the package, one file for each supported torch: something to compare with on the
first day.

``fixtures/results/torch-<version>.json.xz`` is a results document without times and without paths of the machine;
``benchmarks/record_results.py`` makes it.
"""

from __future__ import annotations

import dataclasses
import json
import lzma
from pathlib import Path

from amp_checks.core import SuiteError, UsageError
from amp_checks.records import fixtures
from amp_checks.report.document import Document
from amp_checks.report.json_format import as_values
from amp_checks.report.reading import from_values
from amp_checks.report.values import encode

_PREFIX, _SUFFIX = "torch-", ".json.xz"
_OF_ONE_MACHINE = ("torch_path", "platform")


def versions() -> dict[str, Path]:
    """Torch version -> the file of its recorded results, oldest version first."""
    found = fixtures.fixture("results").glob(f"{_PREFIX}*{_SUFFIX}")
    by_version = {path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): path for path in found}
    return dict(sorted(by_version.items(), key=lambda pair: [int(part) for part in pair[0].split(".")]))


def read(version: str) -> Document:
    """The recorded results of a version.

    Raises:
        SuiteError: the file is damaged.
    """
    path = versions()[version]
    try:
        return from_values(json.loads(lzma.decompress(path.read_bytes())), name=path.name)
    except (OSError, ValueError, lzma.LZMAError, UsageError) as error:
        raise SuiteError(f"{path.name} cannot be read as recorded results: {error}") from error


def write(folder: Path, document: Document) -> Path:
    """Record a document under its torch's release number.

    Raises:
        SuiteError: the run did not finish, so it is nothing to compare with.
    """
    if not document.complete:
        raise SuiteError("a run that did not finish is nothing to compare with: it is not recorded")
    environment = {name: value for name, value in document.environment.items() if name not in _OF_ONE_MACHINE}
    lasting = as_values(dataclasses.replace(document, environment=environment, curves=(), tests={}, tables=()))
    del lasting["seconds"]
    text = json.dumps(encode(lasting), ensure_ascii=False, allow_nan=False)
    path = folder / f"{_PREFIX}{environment['torch'].partition('+')[0]}{_SUFFIX}"
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    return path
