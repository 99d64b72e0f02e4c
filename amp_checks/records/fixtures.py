"""Where recorded data lies: inside the installed package, or in the checkout's ``fixtures/``."""

from __future__ import annotations

from pathlib import Path

from amp_checks.core import SuiteError

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
