"""Where recorded data lies: inside the installed package, or in the checkout's ``fixtures/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from amp_checks.core import SuiteError

T = TypeVar("T")

_PACKAGE = Path(__file__).resolve().parents[1]


def fixture(name: str) -> Path:
    """Path of a fixture, ``name`` relative to ``fixtures/``.

    Raises:
        SuiteError: it is in neither place: the installation is incomplete.
    """
    for root in (_PACKAGE / "fixtures", _PACKAGE.parent / "fixtures"):
        if (root / name).exists():
            return root / name
    message = f"the fixture {name!r} is missing from this installation of amp_checks: install it again"
    raise SuiteError(message)


def of_versions(folder: str) -> dict[str, Path]:
    """The files of a folder of records, ``torch-<version>.json``, by torch version, oldest first."""
    from packaging.version import Version

    paths = {path.stem.removeprefix("torch-"): path for path in fixture(folder).glob("torch-*.json")}
    return {version: paths[version] for version in sorted(paths, key=Version)}


def nearest(version: str, known: Mapping[str, T]) -> T:
    """What is known, oldest first, of a torch version: its own, else the newest before it, else the oldest."""
    from packaging.version import Version

    wanted = Version(Version(version).base_version)
    older = [found for one, found in known.items() if Version(one) <= wanted]
    return older[-1] if older else next(iter(known.values()))
